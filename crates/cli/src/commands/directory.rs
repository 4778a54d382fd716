//! The trace directory that a recording is to make.

use crate::error::{Failure, Result, reason};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Where to record into.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// We made it, to have its name to ourselves.
    made: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            // Only an empty directory goes: when the recording has not begun.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// The directory to record into; refused now rather than after a process was touched.
pub(crate) fn choose(output: Option<&Path>, name: &str) -> Result<Directory> {
    match output {
        Some(dir) => usable(dir.to_owned()).map(|path| Directory { path, made: false }),
        None => claim(&format!("owlet-trace-{}-{}", safe_name(name), crate::units::timestamp())),
    }
}

/// Makes a directory of that name here; with a number behind it when another recording has the name.
fn claim(name: &str) -> Result<Directory> {
    let mut path = PathBuf::from(name);
    for number in 2..1000 {
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(Directory { path, made: true }),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                path = PathBuf::from(format!("{name}-{number}"));
            }
            Err(error) => {
                return Err(Failure::at("cannot make the trace directory", &path, reason(&error))
                    .hint("name a directory where you may write, with -o"));
            }
        }
    }
    Err(Failure::at("cannot make the trace directory", &path, "too many of that name"))
}

fn usable(dir: PathBuf) -> Result<PathBuf> {
    let exists =
        |what: &str, hint: &str| Err(Failure::at("cannot record into", &dir, what).hint(hint));
    match std::fs::read_dir(&dir).map(|mut entries| entries.next().is_some()) {
        Ok(true) => exists(
            "the directory is not empty",
            "name a directory that does not exist yet, or empty this one",
        ),
        Ok(false) => Ok(dir),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(dir),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            exists("there is a file of that name", "name another directory with -o")
        }
        Err(error) => Err(Failure::at("cannot record into", &dir, reason(&error))),
    }
}

/// A file name of letters, digits, dots and dashes, whatever the program is called.
fn safe_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let name: String = name.chars().take(40).map(safe).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "program".into() } else { name.into() }
}
