//! Where an export goes. What is there stays whole until the export is, and nothing that is no
//! regular file is ever replaced:
//!
//! | the path is | what happens |
//! |---|---|
//! | not there, or a link into nowhere | a file is made beside it and renamed |
//! | a regular file, or a link to one | the same, beside the file itself; its mode stays |
//! | a pipe, a device, a socket | written to as it is |
//! | a descriptor (`/dev/fd/N`, `/dev/stdout`, `/proc/PID/fd/N`) | written to as it is |
//! | a directory | refused |
//! | in the trace directory that is read ([`is_in`]) | refused by the caller |

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Links followed at most, as the kernel does.
const LINKS_MAX: usize = 40;

/// A place that is being written.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) file: File,
    /// The file beside, and what it becomes.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Target {
    /// Opens it. `mode` is that of a file which is not there yet, less what the umask takes away.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let (path, descriptor) = resolve(path)?;
        let there = match std::fs::metadata(&path) {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if there.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if descriptor || there.as_ref().is_some_and(|meta| !meta.is_file()) {
            let file = File::options().write(true).open(&path)?;
            return Ok(Self { file, rename: None });
        }
        if there.is_some() {
            // A file that may not be written is not to be replaced either.
            File::options().write(true).open(&path)?;
        }
        let (file, partial) = beside(&path, mode)?;
        if let Some(meta) = there {
            file.set_permissions(Permissions::from_mode(meta.permissions().mode() & 0o777))?;
        }
        Ok(Self { file, rename: Some((partial, path)) })
    }

    /// Everything is written: the file takes its place.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if let Some((partial, path)) = &self.rename {
            std::fs::rename(partial, path)?;
        }
        self.rename = None;
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((partial, _)) = &self.rename {
            // The half-written file helps nobody; if it stays, the failure itself is still told.
            let _ = std::fs::remove_file(partial);
        }
    }
}

/// Whether writing to `path` would change the directory `dir`: it leads to a name in it, by whatever
/// links and mounts, or is a descriptor of one of its files.
pub(crate) fn is_in(path: &Path, dir: &Path) -> io::Result<bool> {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    let (path, descriptor) = resolve(path)?;
    if descriptor {
        let Ok(file) = std::fs::metadata(&path) else { return Ok(false) };
        let files = std::fs::read_dir(dir)?.flatten().filter_map(|entry| entry.metadata().ok());
        return Ok(files.into_iter().any(|other| same(&file, &other)));
    }
    let parent = match path.parent() {
        Some(parent) => std::fs::metadata(parent)?,
        None => return Ok(false),
    };
    Ok(same(&parent, &std::fs::metadata(dir)?))
}

/// A new file in the same directory, under a name that nobody has.
fn beside(path: &Path, mode: u32) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    for number in 0..100 {
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(format!(".{}-{number}", std::process::id()));
        let partial = path.with_file_name(partial);
        match OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial) {
            Ok(file) => return Ok((file, partial)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Follows links by hand, to the last one that names a descriptor: that leads to an open file, not to a
/// name. The path, and whether it is a descriptor's.
fn resolve(path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let Some(name) = path.file_name() else { return Ok((path, false)) };
        let whole = parent.canonicalize()?.join(name);
        if whole.starts_with("/proc") && whole.parent().is_some_and(|dir| dir.ends_with("fd")) {
            return Ok((whole, true));
        }
        match std::fs::read_link(&whole) {
            Ok(link) => path = whole.with_file_name("").join(link),
            Err(_) => return Ok((whole, false)),
        }
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()))
}
