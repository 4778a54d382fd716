//! What readers look at, and what is counted.
//!
//! | age | meaning |
//! |---|---|
//! | 0 | published |
//! | 1 | unpublished, no grace period yet |
//! | 2 and up | a grace period has passed: no reader may see it |
//!
//! An element also has a pair of marks for each long-lived reader, which only that reader writes: one
//! when its section has found the element, one before the section ends. After a grace period the two
//! must be equal; this finds a period that was too short even when the reader was too slow to see what
//! became of the element.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::flavour::Flavour;

/// Places where elements are published.
pub(super) const CELLS: usize = 4;
/// Ages told apart.
pub(crate) const AGES: usize = 8;
/// Readers with marks.
pub(super) const SEATS: usize = 16;
const GOOD: u32 = 0x600d_600d;
const POISON: u32 = 0xdead_dead;

/// The marks of one reader.
#[derive(Default)]
struct Marks {
    found: AtomicU32,
    left: AtomicU32,
    /// How many sections the next reader had begun, as seen from inside.
    neighbour: AtomicU64,
}

/// What is published.
pub(super) struct Element {
    magic: AtomicU32,
    pub(super) age: AtomicU32,
    marks: [Marks; SEATS],
}

static SHARED: [AtomicPtr<Element>; CELLS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CELLS];
/// Sections begun by each reader.
static BEGUN: [AtomicU64; SEATS] = [const { AtomicU64::new(0) }; SEATS];
/// A reader, and how many sections it had begun at some time before a grace period that is over.
static CHECK: AtomicU64 = AtomicU64::new(0);

/// The run is over.
pub(super) static STOP: AtomicBool = AtomicBool::new(false);
/// Everybody pauses.
pub(super) static PAUSE: AtomicBool = AtomicBool::new(false);
/// Ages seen at the end of sections.
pub(super) static HISTOGRAM: [AtomicU64; AGES] = [const { AtomicU64::new(0) }; AGES];

pub(super) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Between two pieces of work: joins a pause of the whole run. False once the run is over.
pub(super) fn go_on() -> bool {
    while PAUSE.load(Ordering::Relaxed) && !stopped() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    !stopped()
}

/// [`go_on`] for a thread with a seat, which rests meanwhile.
pub(super) fn go_on_seated<F: Flavour>(seat: &mut F::Seat) -> bool {
    if PAUSE.load(Ordering::Relaxed) {
        F::rest(seat, || {
            go_on();
        });
    }
    !stopped()
}

/// One table of named counters.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident, $statics:ident: $($variant:ident $text:literal $(#[$doc:meta])*),* $(,)?) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name { $($(#[$doc])* $variant),* }

        static $statics: [AtomicU64; [$($text),*].len()] =
            [const { AtomicU64::new(0) }; [$($text),*].len()];

        impl $name {
            const ALL: &'static [(Self, &'static str)] = &[$((Self::$variant, $text)),*];

            /// One more. Async-signal-safe.
            pub(super) fn note(self) {
                $statics[self as usize].fetch_add(1, Ordering::Relaxed);
            }

            /// How many so far.
            pub(super) fn get(self) -> u64 {
                $statics[self as usize].load(Ordering::Relaxed)
            }

            /// All that have happened, by name.
            pub(super) fn list() -> Vec<(&'static str, u64)> {
                let all = Self::ALL.iter().map(|(counter, name)| (*name, counter.get()));
                all.filter(|(_, n)| *n != 0).collect()
            }
        }
    };
}

counters! {
    /// What must not happen.
    Fault, FAULTS:
    Old "old" /** A reader saw an age of 2 or more. */,
    Poisoned "poisoned" /** A reader saw an element that had been freed. */,
    Unfinished "unfinished" /** A grace period ended before a section it had to wait for. */,
    Order "order" /** A count seen before a grace period was higher than after it. */,
    Cookie "cookie" /** A cookie answered what it must not. */,
    Fork "fork" /** A forked child stalled, or its own section did not hold. */,
    Callback "callback" /** A callback ran twice, never, or too early. */,
    Retired "retired" /** A retired element was freed twice, never, or too early. */,
    Barrier "barrier" /** A barrier returned before a callback had run. */,
}

counters! {
    /// What happened.
    Count, COUNTS:
    Updates "updates", Cookies "cookies", Orders "orders", Forks "forks", Signals "signals",
    Threads "threads", Moved "moved", Pauses "pauses", Delays "delays", Callbacks "callbacks",
    Barriers "barriers", Floods "floods", Laundered "laundered",
    Retired "retired", RetireBarriers "retire-barriers",
}

/// True once anything has gone wrong.
pub(super) fn faulty() -> bool {
    !Fault::list().is_empty()
}

impl Element {
    pub(super) fn new() -> *mut Self {
        Box::into_raw(Box::new(Self {
            magic: AtomicU32::new(GOOD),
            age: AtomicU32::new(0),
            marks: std::array::from_fn(|_| Marks::default()),
        }))
    }
}

/// Fills the cells.
pub(super) fn publish_first() {
    for cell in &SHARED {
        cell.store(Element::new(), Ordering::Release);
    }
}

/// Publishes `new` in a cell and returns what was there, which is the caller's from now on.
///
/// A plain exchange where a machine allows it would be a release store; the exchange is a full barrier
/// on x86-64, so torture cannot show that waits begin with one (models and `litmus` do).
pub(super) fn replace(cell: u64, new: *mut Element) -> *mut Element {
    let old = SHARED[cell as usize % CELLS].swap(new, Ordering::AcqRel);
    // SAFETY: unpublished by us; nobody else frees it.
    unsafe { &*old }.age.store(1, Ordering::Relaxed);
    old
}

/// The element a section sees in a cell.
#[inline(always)]
pub(super) fn look_up(cell: u64) -> *const Element {
    SHARED[cell as usize % CELLS].load(Ordering::Acquire)
}

/// Use elements, and see nothing: for a tool that watches the heap.
pub(super) static BLIND: AtomicBool = AtomicBool::new(false);

/// Counts what the element looks like at the end of a section. Async-signal-safe.
#[inline]
pub(super) fn judge(element: *const Element) {
    // SAFETY: protected by the caller's section, if the library is right; if it is not, the memory
    // is still the heap's, and what is there is what this program is about.
    let element = unsafe { &*element };
    let magic = element.magic.load(Ordering::Relaxed);
    let age = element.age.load(Ordering::Relaxed) as usize;
    if BLIND.load(Ordering::Relaxed) {
        std::hint::black_box((magic, age));
        return;
    }
    if magic != GOOD {
        Fault::Poisoned.note();
        return;
    }
    HISTOGRAM[age.min(AGES - 1)].fetch_add(1, Ordering::Relaxed);
    if age >= 2 {
        Fault::Old.note();
    }
}

/// Marks that reader `seat` has found the element. For [`leave`] before the section ends.
#[inline]
pub(super) fn find(seat: usize, element: *const Element) {
    // SAFETY: as in `judge`.
    let marks = unsafe { &(*element).marks[seat % SEATS] };
    marks.found.store(marks.found.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let neighbour = BEGUN[(seat + 1) % SEATS].load(Ordering::Relaxed);
    marks.neighbour.store(neighbour, Ordering::Relaxed);
    let begun = &BEGUN[seat % SEATS];
    begun.store(begun.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The last thing of a section that called [`find`].
#[inline]
pub(super) fn leave(seat: usize, element: *const Element) {
    // SAFETY: as in `judge`.
    let marks = unsafe { &(*element).marks[seat % SEATS] };
    marks.left.store(marks.found.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Looks, a grace period after an element was unpublished, whether all its readers have left.
pub(super) fn inspect(element: *mut Element) {
    if BLIND.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the caller's, unpublished and not freed.
    let element = unsafe { &*element };
    for (seat, marks) in element.marks.iter().enumerate() {
        let found = marks.found.load(Ordering::Relaxed);
        if found != marks.left.load(Ordering::Relaxed) {
            Fault::Unfinished.note();
        }
        if found != 0 {
            let neighbour = (seat + 1) % SEATS;
            let seen = marks.neighbour.load(Ordering::Relaxed);
            CHECK.store(seen << 8 | neighbour as u64, Ordering::Release);
        }
    }
}

/// A reader's part of the cross-check: what one reader saw of another before a grace period, a third
/// one sees after it.
pub(super) fn cross_check() {
    let check = CHECK.load(Ordering::Acquire);
    let (seat, seen) = ((check & 0xff) as usize, check >> 8);
    let now = BEGUN[seat % SEATS].load(Ordering::Relaxed);
    if now < seen {
        Fault::Order.note();
    }
    Count::Orders.note();
}

/// An element that has been through at least one grace period gets one older, and is freed at the end of
/// the pipe. False if it was freed.
pub(super) fn grow_older(element: *mut Element) -> bool {
    inspect(element);
    // SAFETY: in the pipe of the caller alone.
    let age = unsafe { &*element }.age.fetch_add(1, Ordering::Relaxed) as usize;
    if age < AGES {
        return true;
    }
    poison_and_free(element);
    false
}

/// How many poisoned elements each thread keeps before it frees the oldest.
pub(super) static QUARANTINE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static KEPT: RefCell<VecDeque<*mut Element>> = const { RefCell::new(VecDeque::new()) };
}

/// After a grace period: poisons the element, and frees it, or an older one. Once something has gone
/// wrong nothing is freed: the heap's state is then not what this program wants to report.
pub(super) fn poison_and_free(element: *mut Element) {
    inspect(element);
    // SAFETY: unpublished a grace period ago; not freed before the caller's last use, which is this.
    unsafe { &*element }.magic.store(POISON, Ordering::Relaxed);
    let old = KEPT.with_borrow_mut(|kept| {
        kept.push_back(element);
        let full = kept.len() > QUARANTINE.load(Ordering::Relaxed);
        full.then(|| kept.pop_front()).flatten()
    });
    if let Some(old) = old
        && !faulty()
    {
        // SAFETY: kept by this thread alone, and readers are gone since before it was poisoned.
        drop(unsafe { Box::from_raw(old) });
    }
}
