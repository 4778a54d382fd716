//! Requests and replies between the command and an agent.
//!
//! A connection carries frames: u32 little-endian length, then a postcard message. The client
//! speaks first, with [`Request::Hello`]; the agent answers every request with exactly one
//! [`Reply`]. A recording lasts as long as the connection that attached it: when the recorder
//! dies, its agents switch the session off by themselves.
//!
//! [`Request::Attach`] carries the segment's file descriptor (`SCM_RIGHTS`) with its first byte.

use crate::config::Rule;
use crate::functions::{Attach, FunctionInfo, Standing};
use crate::schema::{Field, Kind, Level};
use serde::{Deserialize, Serialize};

/// Four bytes in front of a [`Request::Hello`] frame, before its length: a stranger's protocol is
/// recognised before anything is allocated.
pub const MAGIC: [u8; 4] = *b"OWL1";
/// Frames longer than this are refused.
pub const FRAME_MAX: u32 = 16 << 20;

/// From the command to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Must come first.
    Hello {
        /// [`WIRE_VERSION`](crate::WIRE_VERSION) of the client.
        wire_version: u32,
    },
    /// All tracepoints whose name matches the glob.
    List {
        /// A glob; `*` for all.
        pattern: String,
    },
    /// Record into the segment that comes with this message.
    Attach,
    /// Switch patterns on or off: in the session of this connection, or, on a connection that
    /// attached none, in every session of the process.
    Control {
        /// Applied in order.
        rules: Vec<Rule>,
    },
    /// End this connection's session and wait until nothing of it can run any more.
    Detach,
    /// All traced functions whose name matches the glob.
    Functions {
        /// A glob; `*` for all.
        pattern: String,
    },
    /// Attach to traced functions; once a connection.
    AttachFunctions(Attach),
    /// Detach functions and wait until nothing runs on them any more; their counts can be asked for still.
    DetachFunctions {
        /// A glob over functions' names.
        pattern: String,
        /// Only what this connection attached; otherwise what any did.
        own: bool,
    },
    /// How what this connection attached stands.
    Standing {
        /// With the maps of an eBPF program.
        maps: bool,
    },
}

/// From an agent to the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Hello(Hello),
    /// Answer to [`Request::List`].
    Tracepoints(Vec<TracepointInfo>),
    /// Answer to [`Request::Attach`] and [`Request::Control`]. Tracepoints are counted as
    /// [`Reply::Tracepoints`] shows them: those of one call site are one.
    Matched {
        /// Tracepoints that one of the rules matched.
        matched: u32,
        /// Tracepoints on in this session (or in any, without one) after the request.
        enabled: u32,
        /// Tracepoints known.
        known: u32,
        /// Sessions that the request applied to.
        sessions: u32,
    },
    /// Answer to [`Request::Detach`].
    Detached,
    /// The request failed; nothing was changed.
    Error {
        /// What, where and why, as a lower-case fragment.
        message: String,
        /// What to do, or empty.
        hint: String,
    },
    /// Answer to [`Request::Functions`], by name.
    Functions(Vec<FunctionInfo>),
    /// Answer to [`Request::AttachFunctions`] and [`Request::DetachFunctions`].
    FunctionsMatched {
        /// Functions that a pattern matched.
        matched: u32,
        /// Links made or taken away.
        links: u32,
    },
    /// Answer to [`Request::Standing`].
    Standing(Standing),
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub struct Hello {
    pub wire_version: u32,
    pub pid: u32,
    pub ppid: u32,
    pub exe: Vec<u8>,
    pub args: Vec<u8>,
    /// `rseq` or `portable`.
    pub backend: String,
    /// Why that backend.
    pub backend_why: String,
    /// `toggle` (patched byte) or `flag`.
    pub site: String,
    pub tracepoints: u32,
    pub sessions: u32,
    /// Version of the owlet crate linked in.
    pub version: String,
}

/// One tracepoint of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the meaning")]
pub struct TracepointInfo {
    pub name: String,
    pub kind: Kind,
    pub level: Level,
    pub file: String,
    pub line: u32,
    pub doc: String,
    /// Declared fields; a `tracing` field has type `Dynamic` here.
    pub fields: Vec<Field>,
    /// On in at least one session, or has another probe.
    pub enabled: bool,
    /// Events emitted while on.
    pub hits: u64,
}
