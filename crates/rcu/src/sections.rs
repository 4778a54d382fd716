//! Which thread is in which section, for stall reports: debug builds and the feature `stacks`.
//!
//! A thread gets a record when it first enters a section, with room for [`SLOTS`] sections at a time;
//! those beyond go unrecorded. Records are linked into one list for ever; that of a thread that has
//! ended is taken over by the next, once none of its sections is open any more: until then it says who
//! left them behind. Async-signal-safe without the feature; with it, entering a section
//! allocates and captures a stack.
//!
//! A section moved to another thread stays in the taker's record until it ends.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::backtrace::Backtrace;

use owlet_sys::clock::monotonic_coarse_ns;
use owlet_sys::memory::Mapping;
use owlet_sys::{fork, process};

use crate::engine::{Engine, Holder};
use crate::held;

/// True if sections are recorded.
const ON: bool = cfg!(any(debug_assertions, feature = "stacks"));
/// What a section is called whose thread has ended: it was forgotten, or its guard is elsewhere.
const ENDED: &str = "orphaned section";
/// Sections of a thread that are recorded at a time.
const SLOTS: usize = 30;

struct Slot {
    /// The domain's engine; 0 = free.
    engine: AtomicU32,
    since: AtomicU64,
    stack: AtomicPtr<Backtrace>,
}

/// What a thread is in. `owner` is its id, `generation` the process's it lives in.
struct Record {
    owner: AtomicU32,
    generation: AtomicU64,
    serial: AtomicU64,
    next: AtomicPtr<Record>,
    slots: [Slot; SLOTS],
}

static HEAD: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

thread_local! {
    static MINE: AtomicPtr<Record> = const { AtomicPtr::new(core::ptr::null_mut()) };
}

/// The calling thread enters a section of the domain.
#[inline(always)]
pub(crate) fn enter(domain: &Engine) {
    if ON {
        enter_slow(domain.id());
    }
}

/// The calling thread leaves one that it entered.
#[inline(always)]
pub(crate) fn leave(domain: &Engine) {
    if ON && let Some(record) = mine() {
        record.leave(domain.id());
    }
}

/// One that the thread `serial` entered is left by another.
#[inline(always)]
pub(crate) fn leave_elsewhere(domain: &Engine, serial: u64) {
    if ON && let Some(record) = all().find(|r| r.serial.load(Ordering::Relaxed) == serial) {
        record.leave(domain.id());
    }
}

/// Who is inside, as far as is recorded.
pub(crate) fn holders(domain: &Engine, out: &mut Vec<Holder>) {
    let engine = domain.id();
    let generation = fork::generation();
    let now = monotonic_coarse_ns();
    for record in all().filter(|r| r.generation.load(Ordering::Relaxed) == generation) {
        for slot in record.slots.iter().filter(|s| s.engine.load(Ordering::Acquire) == engine) {
            let tid = record.owner.load(Ordering::Relaxed);
            let since = slot.since.load(Ordering::Relaxed);
            out.push(Holder {
                thread: process::name_of_thread(tid),
                tid,
                what: if process::thread_is_gone(tid) { ENDED } else { "section" },
                age: Duration::from_nanos(now.saturating_sub(since)),
                stack: slot.stack_text(),
            });
        }
    }
}

/// In a forked child, on its only thread: its own record is of the new process.
pub(crate) fn survived() {
    if ON && let Some(record) = mine() {
        record.owner.store(process::gettid(), Ordering::Relaxed);
        record.generation.store(fork::generation(), Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn enter_slow(engine: u32) {
    let Some(record) = mine().or_else(claim) else { return };
    let free = |slot: &&Slot| {
        slot.engine.compare_exchange(0, engine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(slot) = record.slots.iter().find(free) {
        slot.since.store(monotonic_coarse_ns(), Ordering::Relaxed);
        #[cfg(feature = "stacks")]
        slot.stack.store(Box::into_raw(Box::new(Backtrace::force_capture())), Ordering::Release);
    }
}

impl Record {
    fn leave(&self, engine: u32) {
        let here = |slot: &&Slot| slot.engine.load(Ordering::Relaxed) == engine;
        if let Some(slot) = self.slots.iter().rev().find(here) {
            slot.forget();
        }
    }
}

impl Slot {
    fn forget(&self) {
        let stack = self.stack.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !stack.is_null() {
            // SAFETY: came from `Box::into_raw`; the swap made it ours.
            drop(unsafe { Box::from_raw(stack) });
        }
        self.engine.store(0, Ordering::Release);
    }

    /// The stack is borrowed by taking it out: a section that ends meanwhile leaves it to us.
    fn stack_text(&self) -> String {
        let stack = self.stack.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if stack.is_null() {
            return String::new();
        }
        // SAFETY: came from `Box::into_raw`; the swap made it ours.
        let stack = unsafe { Box::from_raw(stack) };
        let text = stack.to_string();
        let open = self.engine.load(Ordering::Acquire) != 0;
        if open {
            // Ended and begun again meanwhile, it gets the wrong one: reports are worth that much.
            self.stack.store(Box::into_raw(stack), Ordering::Release);
        }
        text
    }
}

fn mine() -> Option<&'static Record> {
    // SAFETY: null, or a record, which is never unmapped.
    MINE.with(|mine| unsafe { mine.load(Ordering::Relaxed).as_ref() })
}

fn all() -> impl Iterator<Item = &'static Record> {
    let mut at = HEAD.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: the list holds null and records, which are never unmapped.
        let record: &'static Record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

/// A record for this thread: that of one that has ended, or a new one.
fn claim() -> Option<&'static Record> {
    let (me, now) = (process::gettid(), fork::generation());
    let take = |record: &&Record| {
        let owner = record.owner.load(Ordering::Acquire);
        record.generation.load(Ordering::Relaxed) == now
            && owner != me
            && record.slots.iter().all(|slot| slot.engine.load(Ordering::Acquire) == 0)
            && process::thread_is_gone(owner)
            && record.owner.compare_exchange(owner, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let record = all().find(take).or_else(|| make(me, now))?;
    record.slots.iter().for_each(Slot::forget);
    record.serial.store(held::serial(), Ordering::Relaxed);
    MINE.with(|mine| mine.store(core::ptr::from_ref(record).cast_mut(), Ordering::Relaxed));
    Some(record)
}

fn make(me: u32, now: u64) -> Option<&'static Record> {
    let at = Mapping::anonymous(size_of::<Record>()).ok()?.leak().cast::<Record>();
    // SAFETY: fresh pages; all zero is a record with free slots.
    let record: &'static Record = unsafe { at.as_ref() };
    record.owner.store(me, Ordering::Relaxed);
    record.generation.store(now, Ordering::Relaxed);
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        record.next.store(head, Ordering::Relaxed);
        match HEAD.compare_exchange_weak(head, at.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(record),
            Err(other) => head = other,
        }
    }
}
