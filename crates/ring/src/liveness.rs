//! Is the owner of a portable ring still alive?
//!
//! A thread killed while it owned a portable ring leaves its tag in the owner word, and the ring
//! unused until a reader has proved that the thread is gone. The tag is the low half of the inode
//! number of the owner's PID namespace, and the thread id there. Nothing is broken on suspicion:
//! if the proof cannot be had (no `/proc`, somebody else's processes), the ring stays out of use
//! and writers go to the other ones.
//!
//! | owner's namespace | proof of death |
//! |---|---|
//! | ours | `/proc/TID` is absent, or the thread is a zombie |
//! | another | no thread of any process in that namespace has that id as its innermost one |

use crate::positions::Control;
use crate::sync::Ordering;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// An owner that has not moved is looked into after this time, and again each time it has passed.
const PATIENCE: Duration = Duration::from_millis(50);

/// An owner seen, and since when it has not moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    tag: u64,
    head: u64,
    since: Instant,
}

/// Frees the ring if its owner has been the same for a while and is proved dead.
pub(crate) fn break_dead_owner(control: &Control<'_>, suspect: &mut Option<Suspect>) {
    let tag = control.owner.load(Ordering::Relaxed);
    if tag == 0 {
        *suspect = None;
        return;
    }
    let head = control.head_for_reader();
    match suspect {
        Some(seen) if seen.tag == tag && seen.head == head => {
            if seen.since.elapsed() < PATIENCE {
                return;
            }
            if is_dead(tag) == Some(true) {
                // A dead owner orders nothing any more; death itself came before we saw it.
                let _ = control.owner.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed);
                *suspect = None;
            } else {
                seen.since = Instant::now();
            }
        }
        _ => *suspect = Some(Suspect { tag, head, since: Instant::now() }),
    }
}

/// Whether the thread behind a tag is gone; `None` when that cannot be told.
fn is_dead(tag: u64) -> Option<bool> {
    let (namespace, tid) = ((tag >> 32) as u32, tag as u32);
    let ours = owlet_sys::process::pid_namespace_inode().ok()?;
    match namespace {
        0 => None,
        own if own == ours as u32 => match fs::read(format!("/proc/{tid}/stat")) {
            Ok(stat) => Some(is_gone(&stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(true),
            Err(_) => None,
        },
        other => is_absent_from(other, tid),
    }
}

/// Whether a `/proc/TID/stat` tells of a thread that runs no more.
fn is_gone(stat: &[u8]) -> bool {
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'Z' | b'X' | b'x'))
}

/// Looks for a live thread with id `tid` in a namespace below ours.
fn is_absent_from(namespace: u32, tid: u32) -> Option<bool> {
    let us = owlet_sys::process::geteuid();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let path = entry.path();
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process || fs::metadata(&path).map_or(true, |meta| meta.uid() != us && us != 0) {
            continue;
        }
        match fs::metadata(path.join("ns/pid")) {
            Ok(meta) if meta.ino() as u32 == namespace => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
            _ => continue,
        }
        let Ok(threads) = fs::read_dir(path.join("task")) else { continue };
        for thread in threads.flatten() {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            if innermost_id(&status) == Some(tid) && !status.contains("\nState:\tZ") {
                return Some(false);
            }
        }
    }
    Some(true)
}

/// The last number of the line `NSpid:` of a `/proc/PID/status`.
fn innermost_id(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
