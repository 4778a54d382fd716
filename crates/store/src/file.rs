//! Files that only ever grow by whole units.
//!
//! [`AppendFile::append`] writes all of a unit or, as far as the system lets it, nothing: what a
//! failed write left behind is cut off, at once or before the next write.
//!
//! # Others
//! Somebody may change the file meanwhile. Whether it became shorter is seen from its length. Where it
//! has grown again, its time of modification is not that of our last write, and then the last unit is
//! read back: it was behind the cut, wherever that was. A change within the clock tick of our own write
//! (a few milliseconds) is not seen that way; [`TraceWriter::check`](crate::TraceWriter::check) finds it
//! at the end.

use crate::error::{ErrorKind, StoreError};
use crate::reader::open_plain;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const TRUNCATED: &str = "was truncated while it was being written";
/// It has grown again since, or somebody wrote over its end.
pub(crate) const GROWN: &str = "was changed by somebody else while it was being written";

/// A file of the trace, open or not.
#[derive(Debug)]
pub(crate) struct AppendFile {
    path: PathBuf,
    file: Option<File>,
    /// Device and inode: a file of that name may be another one later.
    identity: (u64, u64),
    /// Bytes of whole units.
    len: u64,
    /// The last unit: where it begins, and its CRC-32.
    last: (u64, u32),
    /// When the file was modified, after our last write to it.
    modified: (i64, i64),
    /// A write failed and its remains may still be there.
    dirty: bool,
}

impl AppendFile {
    /// Makes the file, which must not exist, with mode 0600.
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let made =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let failed = |error| StoreError::io(&path, "cannot make the file", error);
        let file = made.map_err(failed)?;
        let now = file.metadata().map_err(failed)?;
        let (identity, modified) = (identity(&now), modified(&now));
        let last = (0, crc32fast::hash(&[]));
        Ok(Self { path, file: Some(file), identity, len: 0, last, modified, dirty: false })
    }

    /// The directory is another one now; or the same one, which was moved.
    pub(crate) fn moved(&mut self, dir: &Path) {
        if let Some(name) = self.path.file_name() {
            self.path = dir.join(name);
        }
    }

    /// Locks the file as long as it is open, so that others see that it is being written. File
    /// systems without locks go without.
    pub(crate) fn lock(&self) {
        let _ = self.file.as_ref().map(File::try_lock);
    }

    /// Whether the file is still there, and all of it. One `stat`, and a read of the last unit when
    /// somebody else has written to the file.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let changed = |what: &str| Err(StoreError::new(ErrorKind::Changed, &self.path, what));
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                changed("was removed while it was being written")
            }
            // The next write tells.
            Err(_) => Ok(()),
            Ok(now) if identity(&now) != self.identity => {
                changed("was replaced while it was being written")
            }
            Ok(now) if now.len() < self.len => changed(TRUNCATED),
            Ok(now) if !self.is_ours(&now) => changed(GROWN),
            Ok(_) => Ok(()),
        }
    }

    /// Whether the file is as our last write left it, as far as can be told from the last unit.
    fn is_ours(&self, now: &std::fs::Metadata) -> bool {
        // What a failed write of ours left is not looked at: the next one cuts it.
        if self.dirty || modified(now) == self.modified {
            return true;
        }
        let (from, crc) = self.last;
        let mut unit = vec![0; usize::try_from(self.len - from).unwrap_or(0)];
        let read = match &self.file {
            Some(file) => file.read_exact_at(&mut unit, from),
            None => open_plain(&self.path).and_then(|file| file.read_exact_at(&mut unit, from)),
        };
        match read {
            Ok(()) => crc32fast::hash(&unit) == crc,
            // Shorter by now, or not to be read: the next write or check tells.
            Err(_) => true,
        }
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
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
            self.file = Some(OpenOptions::new().read(true).write(true).open(&self.path)?);
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("not open"))
    }

    /// Appends one unit whole.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        // Behind the new end of a truncated file, a hole would take the place of what is gone.
        if let Some(Ok(now)) = self.file.as_ref().map(File::metadata) {
            let changed = |what| Err(StoreError::new(ErrorKind::Changed, &self.path, what));
            if now.len() < self.len {
                return changed(TRUNCATED);
            }
            if !self.is_ours(&now) {
                return changed(GROWN);
            }
        }
        match self.try_append(bytes) {
            Ok(()) => {
                self.last = (self.len, crc32fast::hash(bytes));
                self.len += bytes.len() as u64;
                if let Some(Ok(now)) = self.file.as_ref().map(File::metadata) {
                    self.modified = modified(&now);
                }
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

/// Device and inode.
pub(crate) fn identity(meta: &std::fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn modified(meta: &std::fs::Metadata) -> (i64, i64) {
    (meta.mtime(), meta.mtime_nsec())
}

/// Whether somebody writes the file: it is locked by another descriptor than this.
pub(crate) fn is_locked(file: &File) -> bool {
    let locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    if !locked {
        let _ = file.unlock();
    }
    locked
}

/// Writes a file of its own beside `path` and renames it over `path`: readers see the old content
/// or the new, never a part. Refuses a path that is no regular file.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    regular(path)?;
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

/// Refuses what is no regular file, links included: a trace may come from somebody who would have us
/// change a file elsewhere.
pub(crate) fn regular(path: &Path) -> Result<(), StoreError> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.is_file() => {
            let what = "is no regular file, and is left as it is";
            Err(StoreError::new(ErrorKind::Invalid, path, what))
        }
        Ok(_) | Err(_) => Ok(()),
    }
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
        /// It fails again and again.
        static FULL: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets `writes` writes pass; the next stores `partial` bytes and fails with ENOSPC, once.
    pub(crate) fn arm(writes: usize, partial: usize) {
        FULL.set(false);
        PLAN.set(Some((writes, partial)));
    }

    /// The same, and so does every write after it.
    pub(crate) fn arm_full(writes: usize, partial: usize) {
        arm(writes, partial);
        FULL.set(true);
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
        PLAN.set(FULL.get().then_some((0, partial)));
        Some((partial.min(len), io::Error::from(io::ErrorKind::StorageFull)))
    }
}
