//! PO-08: cookies are taken and polled by a handler that interrupts grace periods, without a lock and
//! without an allocation, and by threads that the library has never heard of.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use owlet_rcu::{Qsbr, Srcu};

/// The system's allocator, which counts what handlers ask of it.
struct Counting;

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IN_HANDLER.try_with(Cell::get).unwrap_or(false) {
            ALLOCATED.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static DOMAIN: Srcu = Srcu::new();
static OTHER: Qsbr = Qsbr::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Handlers that interrupted a grace period.
static MIDWAY: AtomicU64 = AtomicU64::new(0);
/// Cookies that had passed when they had just been taken.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// Nobody but the interrupted thread brings grace periods about: nothing passes while it is held up here.
extern "C" fn handler(_: i32) {
    IN_HANDLER.with(|inside| inside.set(true));
    let (cookie, full, other) = (DOMAIN.snapshot(), DOMAIN.snapshot_full(), OTHER.snapshot());
    let early = DOMAIN.poll(cookie) || DOMAIN.poll_full(&full) || OTHER.poll(other);
    EARLY.fetch_add(u64::from(early), Ordering::Relaxed);
    let last = LAST.with(Cell::get);
    MIDWAY.fetch_add(u64::from(cookie != last && !DOMAIN.poll(last)), Ordering::Relaxed);
    IN_HANDLER.with(|inside| inside.set(false));
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

thread_local! {
    /// The cookie of the interrupted thread, taken while no grace period was running.
    static LAST: Cell<owlet_rcu::Cookie> = const { Cell::new(owlet_rcu::Cookie::completed()) };
}

#[test]
fn po_08_cookies_in_a_signal_handler() {
    common::handle(libc::SIGURG, handler);
    // First use, by a thread that has never read.
    let cookie = DOMAIN.snapshot();
    DOMAIN.wait(cookie);
    common::in_storm(libc::SIGURG, || {
        common::watched("signals in the middle of grace periods", || {
            while MIDWAY.load(Ordering::Relaxed) < 50 || HANDLED.load(Ordering::Relaxed) < 500 {
                let cookie = DOMAIN.snapshot();
                LAST.with(|last| last.set(cookie));
                DOMAIN.synchronize();
                assert!(DOMAIN.poll(cookie));
                OTHER.synchronize();
            }
        });
    });
    assert_eq!(EARLY.load(Ordering::Relaxed), 0, "passed before a grace period could begin");
    assert_eq!(ALLOCATED.load(Ordering::Relaxed), 0, "allocated in a handler");
}
