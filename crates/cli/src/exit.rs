//! What the command's exit status means. This table is the only source: `--help`, the man page and
//! the README print it.

use std::process::ExitCode;

/// Exit statuses, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// Something failed; the message says what.
    Failure,
    /// The command line makes no sense.
    Usage,
    /// Nothing to work on: no such process, none with an agent, or nothing that a pattern matches.
    Nothing,
    /// A recording ended properly without a single event.
    Empty,
    /// A process is there but does not answer, refuses, or speaks another version.
    Refused,
    /// Something of a trace is missing or cannot be read.
    Damaged,
    /// The recording went well; the recorded command did not, and this is its status.
    Command(u8),
}

/// Every fixed status with its meaning.
pub(crate) const TABLE: [(Exit, &str); 7] = [
    (Exit::Done, "done; also when the reader of a pipe went away"),
    (Exit::Failure, "something failed; the message says what"),
    (Exit::Usage, "the command line makes no sense"),
    (Exit::Nothing, "no such process, none with an agent, or nothing that a pattern matches"),
    (Exit::Empty, "a recording ended properly without a single event"),
    (
        Exit::Refused,
        "a process does not answer, refuses, or speaks another version; or the kernel refuses",
    ),
    (Exit::Damaged, "something of a trace is missing or damaged; what is whole was read or kept"),
];

impl Exit {
    /// The number the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Nothing => 3,
            Self::Empty => 4,
            Self::Refused => 5,
            Self::Damaged => 6,
            Self::Command(status) => status,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// The table as text, for `--help` and the man page.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit status:\n");
    for (exit, meaning) in TABLE {
        text += &format!("  {}  {meaning}\n", exit.code());
    }
    text + "`owlet record -- CMD` ends with the status of CMD when the recording itself went well, \
            and with 128 + N when signal N ended CMD. When the recording fails, CMD goes on and is \
            waited for; the status is 1, whatever that of CMD is."
}
