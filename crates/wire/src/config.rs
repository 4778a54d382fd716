//! What a session records. Written once into the segment by the recorder; later changes go through
//! [`control`](crate::control).
//!
//! # Bytes
//! [`WIRE_VERSION`] as four little-endian bytes, which is what every version begins with, then the
//! fields in `postcard`. A process that inherits a session meets its recorder nowhere else, so this is
//! where it finds out that they do not understand each other.

use crate::WIRE_VERSION;
use crate::schema::Level;
use serde::{Deserialize, Serialize};

/// A session's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfig {
    /// A number no other session of this machine has.
    pub session: u64,
    /// Applied in order to every tracepoint, known now or later; the last match wins.
    pub rules: Vec<Rule>,
    /// Only events this severe or more so.
    pub level: Level,
    /// Source text of the filter, or empty. See [`filter`](crate::filter) for the language.
    pub filter: String,
    /// Where the recorder listens for processes that join by inheritance, or empty.
    pub rendezvous: String,
    /// Pid of the recorder, as the recorder sees it.
    pub recorder_pid: u32,
}

impl SessionConfig {
    /// The bytes a segment carries.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, WIRE_VERSION.to_le_bytes().to_vec()).unwrap_or_default()
    }

    /// Reads a segment's bytes, zeroes behind them included; `None` when they hold no
    /// configuration of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, bytes) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != WIRE_VERSION {
            return None;
        }
        let (config, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        rest.iter().all(|byte| *byte == 0).then_some(config)
    }
}

/// One pattern switched on or off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// A glob over full event names; `*` and `?` match any characters, `:` included.
    pub pattern: String,
    /// On or off.
    pub enable: bool,
}

/// Whether `pattern` matches `name`: `*` any run, `?` one character, everything else itself.
///
/// At most `pattern.len() * name.len()` steps; allocates nothing.
#[must_use]
pub fn glob(pattern: &str, name: &str) -> bool {
    glob_bytes(pattern.as_bytes(), name.as_bytes())
}

/// As [`glob`], for names that need not be UTF-8: a byte that starts no character is one.
#[must_use]
pub fn glob_bytes(mut pattern: &[u8], mut name: &[u8]) -> bool {
    // After the last `*`: the rest of the pattern, and where in the name it was tried last.
    let mut back: Option<(&[u8], &[u8])> = None;
    while let Some(&c) = name.first() {
        let (step, rest) = match pattern.split_first() {
            Some((b'*', rest)) => {
                back = Some((rest, name));
                pattern = rest;
                continue;
            }
            Some((b'?', rest)) => (char_len(name), Some(rest)),
            Some((p, rest)) if *p == c => (1, Some(rest)),
            _ => (0, None),
        };
        if let Some(rest) = rest {
            pattern = rest;
            name = name.get(step..).unwrap_or_default();
        } else if let Some((after_star, from)) = back {
            let from = from.get(char_len(from)..).unwrap_or_default();
            back = Some((after_star, from));
            pattern = after_star;
            name = from;
        } else {
            return false;
        }
    }
    pattern.iter().all(|&c| c == b'*')
}

/// Bytes of the UTF-8 character at the front of `bytes`; 1 for anything that is none.
fn char_len(bytes: &[u8]) -> usize {
    let len = match bytes.first() {
        Some(0xc2..=0xdf) => 2,
        Some(0xe0..=0xef) => 3,
        Some(0xf0..=0xf4) => 4,
        _ => return 1,
    };
    let tail = bytes.get(1..len);
    if tail.is_some_and(|tail| tail.iter().all(|c| c & 0xc0 == 0x80)) { len } else { 1 }
}
