//! What a session records. Written once into the segment by the recorder; later changes go through
//! [`control`](crate::control).

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
    /// Source text of the filter, or empty. See [`filter`](crate) for the language.
    pub filter: String,
    /// Where the recorder listens for processes that join by inheritance, or empty.
    pub rendezvous: String,
    /// Pid of the recorder, as the recorder sees it.
    pub recorder_pid: u32,
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
/// Linear in `name` for each `*`; allocates nothing.
#[must_use]
pub fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut pi, mut ni) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while ni < n.len() {
        if pi < p.len() && p[pi] == b'*' {
            back = Some((pi + 1, ni));
            pi += 1;
        } else if pi < p.len() && (p[pi] == b'?' || p[pi] == n[ni]) {
            pi += 1;
            ni += 1;
        } else if let Some((after_star, from)) = back {
            back = Some((after_star, from + 1));
            pi = after_star;
            ni = from + 1;
        } else {
            return false;
        }
    }
    p[pi..].iter().all(|&c| c == b'*')
}
