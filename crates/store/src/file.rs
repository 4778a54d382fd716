//! Files that only ever grow by whole units.
//!
//! [`AppendFile::append`] writes all of a unit or, as far as the system lets it, nothing: what a
//! failed write left behind is cut off, at once or before the next write.

use crate::error::StoreError;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file of the trace, open or not.
#[derive(Debug)]
pub(crate) struct AppendFile {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of whole units.
    len: u64,
    /// A write failed and its remains may still be there.
    dirty: bool,
}

impl AppendFile {
    /// Makes the file, which must not exist, with mode 0600.
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match made {
            Ok(file) => Ok(Self { path, file: Some(file), len: 0, dirty: false }),
            Err(error) => Err(StoreError::io(&path, "cannot make the file", error)),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Gives the descriptor back; the next append opens the file again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    fn open(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().write(true).open(&self.path)?);
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("not open"))
    }

    /// Appends one unit whole.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self.try_append(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.dirty = true;
                // On failure of this, too, the next append tries again.
                let _ = self.clean();
                Err(StoreError::io(
                    &self.path,
                    format!("cannot append {} bytes", bytes.len()),
                    error,
                ))
            }
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.clean()?;
        write_all(self.open()?, bytes)
    }

    /// Cuts what a failed write left, and goes to the end.
    fn clean(&mut self) -> io::Result<()> {
        if !self.dirty && self.is_open() {
            return Ok(());
        }
        let len = self.len;
        let file = self.open()?;
        file.set_len(len)?;
        file.seek(SeekFrom::Start(len))?;
        self.dirty = false;
        Ok(())
    }

    /// Asks the system to put everything on the disk.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        let done = self.open().and_then(|file| file.sync_all());
        done.map_err(|error| StoreError::io(&self.path, "cannot sync", error))
    }
}

/// Writes a file of its own beside `path` and renames it over `path`: readers see the old content
/// or the new, never a part.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        write_all(&mut file, content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        StoreError::io(path, "cannot replace the file", error)
    })
}

/// The one place where trace data is written; tests make the n-th write fail here.
fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if let Some((written, error)) = fault::strike(bytes.len()) {
        file.write_all(&bytes[..written])?;
        return Err(error);
    }
    file.write_all(bytes)
}

/// Failing writes, for tests: per thread, since tests run side by side.
#[cfg(test)]
pub(crate) mod fault {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// Writes until failure, and bytes of the failing write that still arrive.
        static PLAN: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    }

    /// Lets `writes` writes pass; the next stores `partial` bytes and fails with ENOSPC, once.
    pub(crate) fn arm(writes: usize, partial: usize) {
        PLAN.set(Some((writes, partial)));
    }

    /// Whether the failure is still to come; disarms.
    pub(crate) fn disarm() -> bool {
        PLAN.take().is_some()
    }

    pub(super) fn strike(len: usize) -> Option<(usize, io::Error)> {
        let (writes, partial) = PLAN.get()?;
        if writes > 0 {
            PLAN.set(Some((writes - 1, partial)));
            return None;
        }
        PLAN.set(None);
        Some((partial.min(len), io::Error::from(io::ErrorKind::StorageFull)))
    }
}
