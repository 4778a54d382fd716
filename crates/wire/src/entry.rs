//! What the session's append-only log holds.
//!
//! The log lives in the shared segment beside the rings, is written once and never overwritten:
//! an event whose schema is not in the log cannot have been enabled.

use crate::schema::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};

/// One entry, borrowed, as a traced process writes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum EntryRef<'a> {
    /// An event id and what its payload looks like.
    Schema(u32, SchemaRef<'a>),
    /// A thread is about to emit its first event.
    Thread(ThreadRef<'a>),
    /// A process joined the session.
    Process(ProcessRef<'a>),
}

/// A thread, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThreadRef<'a> {
    /// Process id as the process sees it.
    pub pid: u32,
    /// Thread id as the process sees it.
    pub tid: u32,
    /// The thread's name; bytes, since a program may call a thread anything.
    pub comm: &'a [u8],
}

/// A process, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProcessRef<'a> {
    /// Process id as the process sees it.
    pub pid: u32,
    /// Parent, as the process sees it.
    pub ppid: u32,
    /// Inode of its PID namespace, 0 when unknown.
    pub pid_namespace: u64,
    /// Path of the executable.
    pub exe: &'a [u8],
    /// Arguments, each ended by a NUL as in `/proc/PID/cmdline`; may be cut.
    pub args: &'a [u8],
    /// `rseq` or `portable`.
    pub backend: &'a str,
}

/// One entry, owned. See [`EntryRef`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in EntryRef")]
pub enum Entry {
    Schema(u32, Schema),
    Thread(Thread),
    Process(Process),
}

/// A thread, owned. See [`ThreadRef`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in ThreadRef")]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub comm: Vec<u8>,
}

/// A process, owned. See [`ProcessRef`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in ProcessRef")]
pub struct Process {
    pub pid: u32,
    pub ppid: u32,
    pub pid_namespace: u64,
    pub exe: Vec<u8>,
    pub args: Vec<u8>,
    pub backend: String,
}

/// Decodes one entry; `None` for bytes that are no entry of this version.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Entry> {
    let (entry, rest) = postcard::take_from_bytes::<Entry>(bytes).ok()?;
    rest.is_empty().then_some(entry)
}

/// Encodes into `buf` without allocating; `None` when it does not fit.
#[must_use]
pub fn encode<'b>(entry: &EntryRef<'_>, buf: &'b mut [u8]) -> Option<&'b [u8]> {
    postcard::to_slice(entry, buf).ok().map(|used| &*used)
}
