//! What travels between a traced process and the tools outside: record headers, event schemas,
//! field encoding, log entries, filters and control messages.
//!
//! This crate knows bytes and values. It knows no ring, no socket and no file, so that every
//! encoder and decoder can be tested on plain slices.
//!
//! | module | owns |
//! |---|---|
//! | [`record`] | the fixed header of every event record |
//! | [`schema`] | what an event's payload looks like: borrowed form (target) and owned form (outside) |
//! | [`value`] | decoding one payload field by field, with every length checked |
//! | [`entry`] | what the session's append-only log holds: schemas, threads, processes |
//! | [`config`] | what a session records: patterns, level, filter |
//! | [`control`] | requests and replies between the command and an agent |
//! | [`functions`] | those about traced functions |
//! | [`frame`] | those messages on a byte stream |
//! | [`filter`] | the expression language of `--where`: parse, bind to a schema, evaluate |

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod config;
pub mod control;
pub mod entry;
pub mod filter;
pub mod frame;
pub mod functions;
pub mod record;
pub mod schema;
pub mod value;

/// Version of everything in this crate that two different builds may have to agree on.
///
/// Bump it whenever the meaning of a byte changes. A peer of another version is refused with a
/// message that names both versions.
pub const WIRE_VERSION: u32 = 2;
