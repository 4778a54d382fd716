//! A page shared by writers and the reader, for the ways of waking that the product does not use.
//!
//! | way | writer, after each event | reader, before it sleeps |
//! |---|---|---|
//! | before | lock; wake whoever waits; unlock | lock; announce; look; unlock; sleep |
//! | wake-per-event | wake, in any case | sleep |
//! | unsynchronised | look for an announcement without any barrier; wake | announce; look; sleep |
//!
//! The third loses wakeups, and that is the point: the reader's announcement may still be in its
//! store buffer when the writer looks, while the reader looked before the writer's event came.

use anyhow::{Context, Result};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Names the page to a worker.
pub(crate) const DOORBELL: &str = "OWLET_BENCH_DOORBELL";

/// The page. Every word on a cache line of its own.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// 0 free, 1 taken, 2 taken and somebody sleeps for it.
    lock: Line<AtomicU32>,
    /// How often the lock was taken by writers. Written under the lock.
    taken: Line<AtomicU64>,
    /// 1 while the reader wants to be woken.
    waits: Line<AtomicU32>,
    /// What the reader sleeps on; changes with every wakeup.
    bell: Line<AtomicU32>,
    /// Rounds the writer has done.
    pub(crate) done: Line<AtomicU64>,
    /// When the writer began its round, by the monotonic clock.
    pub(crate) since: Line<AtomicU64>,
    /// Rounds the reader has noticed.
    pub(crate) noticed: Line<AtomicU64>,
}

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line<T>(pub(crate) T);

/// The page, mapped.
#[derive(Debug)]
pub(crate) struct Doorbell {
    page: &'static Page,
    /// Kept open for workers to find.
    fd: OwnedFd,
}

impl Doorbell {
    /// A new page.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: the name is a C string; the kernel copies it.
        let fd = unsafe { libc::memfd_create(c"doorbell".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).context("create the shared page");
        }
        // SAFETY: the descriptor was opened just now and is nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(4096)?;
        Self::map(file.into())
    }

    /// The page named in the environment, in a worker.
    pub(crate) fn inherited() -> Result<Self> {
        let path = std::env::var(DOORBELL).context("no doorbell in the environment")?;
        Self::map(File::options().read(true).write(true).open(path)?.into())
    }

    /// What a worker needs in its environment.
    pub(crate) fn env(&self) -> (&'static str, String) {
        (DOORBELL, format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }

    fn map(fd: OwnedFd) -> Result<Self> {
        let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, rw, shared, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("map the shared page");
        }
        // SAFETY: the mapping is a page, zeroed or used as a `Page` by others, which has only
        // atomics; it stays until the process ends.
        let page = unsafe { &*at.cast::<Page>() };
        Ok(Self { page, fd })
    }

    /// The page; it outlives this value, and only workers find it through the descriptor.
    pub(crate) fn page(&self) -> &'static Page {
        self.page
    }
}

impl Page {
    /// The writer's part of "before": what every commit did once.
    #[inline]
    pub(crate) fn wake_under_lock(&self) {
        self.lock();
        let taken = self.taken.0.load(Ordering::Relaxed);
        self.taken.0.store(taken + 1, Ordering::Relaxed);
        if self.waits.0.load(Ordering::Relaxed) != 0 {
            self.waits.0.store(0, Ordering::Relaxed);
            self.ring();
        }
        self.unlock();
    }

    /// The writer's part of "wake-per-event".
    #[inline]
    pub(crate) fn wake_always(&self) {
        self.ring();
    }

    /// The writer's part of "unsynchronised".
    #[inline]
    pub(crate) fn wake_if_announced(&self) {
        if self.waits.0.load(Ordering::Relaxed) != 0 {
            self.waits.0.store(0, Ordering::Relaxed);
            self.ring();
        }
    }

    /// Locks taken by writers so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Relaxed)
    }

    /// The reader's part under the lock: sleeps unless `look` finds something; whether it was
    /// woken.
    pub(crate) fn sleep_under_lock(&self, look: impl FnOnce() -> bool, most: Duration) -> bool {
        self.lock();
        let heard = self.bell.0.load(Ordering::Relaxed);
        self.waits.0.store(1, Ordering::Relaxed);
        let data = look();
        self.unlock();
        !data && futex_wait(&self.bell.0, heard, most)
    }

    /// The reader's part without a lock or barrier; whether it was woken.
    pub(crate) fn sleep_announced(&self, look: impl FnOnce() -> bool, most: Duration) -> bool {
        let heard = self.bell.0.load(Ordering::Relaxed);
        self.waits.0.store(1, Ordering::Relaxed);
        !look() && futex_wait(&self.bell.0, heard, most)
    }

    fn ring(&self) {
        self.bell.0.fetch_add(1, Ordering::Release);
        futex_wake(&self.bell.0, i32::MAX);
    }

    fn lock(&self) {
        let word = &self.lock.0;
        if word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow();
        }
    }

    #[cold]
    fn lock_slow(&self) {
        while self.lock.0.swap(2, Ordering::Acquire) != 0 {
            futex_wait(&self.lock.0, 2, Duration::from_secs(1));
        }
    }

    fn unlock(&self) {
        if self.lock.0.swap(0, Ordering::Release) == 2 {
            futex_wake(&self.lock.0, 1);
        }
    }
}

/// Sleeps while `word` is `value`; false when `most` passed first.
fn futex_wait(word: &AtomicU32, value: u32, most: Duration) -> bool {
    let most = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos()),
    };
    let (word, null) = (word.as_ptr(), std::ptr::null_mut::<c_void>());
    // SAFETY: the word lives in a mapping that stays; the time is a live local.
    let slept = unsafe {
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &raw const most, null, 0)
    };
    slept == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

fn futex_wake(word: &AtomicU32, most: i32) {
    // SAFETY: the word lives in a mapping that stays.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn every_way_wakes_a_sleeper() {
        for wake in [Page::wake_under_lock, Page::wake_always, Page::wake_if_announced] {
            let page = Page::default();
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| page.sleep_under_lock(|| false, LONG));
                while page.waits.0.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(SHORT);
                wake(&page);
                assert!(reader.join().unwrap());
            });
        }
    }

    #[test]
    fn nobody_wakes_a_sleeper_without_an_event() {
        assert!(!Page::default().sleep_under_lock(|| false, SHORT));
        assert!(!Page::default().sleep_announced(|| false, SHORT));
    }

    #[test]
    fn the_lock_excludes_and_counts() {
        let page = Page::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| page.wake_under_lock()));
            }
        });
        assert_eq!(page.taken(), 40_000);
    }
}
