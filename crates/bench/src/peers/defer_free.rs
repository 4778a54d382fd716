//! The cases of `defer-free`: the same producers and readers around every way of freeing what was
//! unpublished. One call is one run; the process ends after it, so that its memory is its own.
//!
//! | variant | how |
//! |---|---|
//! | `call-offloaded` | before, A: a callback for each object, called by one thread with nice +10 on CPU 0 that sleeps 10 ms between batches (the stand-in for offloaded callbacks) |
//! | `call` | a callback for each object, by the library's worker |
//! | `two-batches` | before, B: two batches for each producer, queued as work that waits for a grace period |
//! | `pool`, `domain` | after: blocks with cookies |
//! | `recycled` | the same pool, which new objects also come from |
//! | `crossbeam-epoch`, `seize` | peers; `call_rcu` of liburcu is in `urcu/bench.c` |
//! | `malloc` | freed as late and in batches as `domain` does, without protection: the allocator's share |
//! | `floor` | freed at once: no protection |

use crate::harness::inner::pin;
use crate::harness::serve::{Case, clock};
use anyhow::{Context, Result, bail};
use owlet_rcu::free::{Backpressure, Limits, Pool};
use owlet_rcu::{Head, Srcu};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Barrier, LazyLock, Mutex, OnceLock};
use std::time::Duration;

/// What is retired: `N` words, of which the first is a stamp for one object in [`SAMPLE`].
#[repr(transparent)]
pub(crate) struct Object<const N: usize>([u64; N]);

/// One object in so many tells for how long it waited.
const SAMPLE: u64 = 256;
const SHARDS: usize = 64;

/// Freed objects, the sampled ones, and their ages in ns; by thread, so that counting costs little.
#[repr(align(128))]
struct Shard {
    freed: AtomicU64,
    sampled: AtomicU64,
    age: AtomicU64,
    oldest: AtomicU64,
}

impl Shard {
    const fn new() -> Self {
        Self {
            freed: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            age: AtomicU64::new(0),
            oldest: AtomicU64::new(0),
        }
    }
}

static FREED: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
}

impl<const N: usize> Drop for Object<N> {
    #[inline]
    fn drop(&mut self) {
        let shard = &FREED[MINE.with(|mine| *mine)];
        let add = |count: &AtomicU64, n: u64| {
            count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&shard.freed, 1);
        let [stamp, ..] = self.0.as_slice() else { return };
        if *stamp != 0 {
            let age = clock(libc::CLOCK_MONOTONIC).saturating_sub(*stamp);
            add(&shard.sampled, 1);
            add(&shard.age, age);
            shard.oldest.fetch_max(age, Ordering::Relaxed);
        }
    }
}

fn sum(of: fn(&Shard) -> &AtomicU64) -> u64 {
    FREED.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
}

static DOMAIN: Srcu = Srcu::named("defer-free");

/// A way of freeing what was unpublished.
trait Way<const N: usize>: 'static {
    /// What a producer keeps.
    type Thread;

    fn prepare() {}
    fn thread() -> Self::Thread;
    /// A new object.
    #[inline(always)]
    fn make(i: u64) -> *mut Object<N> {
        fill(Box::new_uninit(), i)
    }
    /// A section of a reader around `body`.
    fn section(body: impl FnOnce()) {
        let _section = DOMAIN.read();
        body();
    }
    /// Frees the object once no section needs it.
    ///
    /// # Safety
    /// From a box, unpublished, once.
    unsafe fn retire(thread: &mut Self::Thread, object: NonNull<Object<N>>);
    /// Has everything freed.
    fn finish(_: Self::Thread) {}
    /// Once the producers are done: what has to be done again and again until everything is freed.
    fn nudge() {}
    /// Grace periods so far, where they are counted.
    fn grace_periods() -> u64 {
        DOMAIN.stats().grace_periods
    }
}

/// Makes an object, with a stamp if it is one of the sample. Written in place, word by word: built on the
/// stack and copied it stalls on its own stores, for as long as the allocator takes.
#[inline(always)]
fn fill<const N: usize>(mut room: Box<MaybeUninit<Object<N>>>, i: u64) -> *mut Object<N> {
    let stamp = if i.is_multiple_of(SAMPLE) { clock(libc::CLOCK_MONOTONIC) } else { 0 };
    // SAFETY: words without contents may be anything.
    let words: &mut [MaybeUninit<u64>; N] = unsafe { &mut *room.as_mut_ptr().cast() };
    for (n, word) in words.iter_mut().enumerate() {
        word.write(if n == 0 { stamp } else { i });
    }
    Box::into_raw(room).cast()
}

struct Floor;

impl<const N: usize> Way<N> for Floor {
    type Thread = ();

    fn thread() {}

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
    }
}

/// What `domain` takes beyond it is the library's.
struct Later;
/// Objects of a batch, and batches that wait.
const BATCH: usize = 251;
const BATCHES: usize = 2 * 16;

struct Ring {
    batches: [Vec<*mut ()>; BATCHES],
    at: usize,
}

impl<const N: usize> Way<N> for Later {
    type Thread = Ring;

    fn thread() -> Ring {
        Ring { batches: std::array::from_fn(|_| Vec::with_capacity(BATCH)), at: 0 }
    }

    #[inline(always)]
    unsafe fn retire(ring: &mut Ring, object: NonNull<Object<N>>) {
        let Some(batch) = ring.batches.get_mut(ring.at) else { return };
        batch.push(object.as_ptr().cast());
        if batch.len() == BATCH {
            ring.at = (ring.at + 1) % BATCHES;
            for at in ring.batches[ring.at].drain(..) {
                // SAFETY: the caller's, when it was put in.
                unsafe { free_object::<N>(at) };
            }
        }
    }

    fn finish(ring: Ring) {
        for at in ring.batches.into_iter().flatten() {
            // SAFETY: as in `retire`.
            unsafe { free_object::<N>(at) };
        }
    }
}

struct ByPool;
static POOL_24: Pool<Object<3>> = Pool::new(&DOMAIN);
static POOL_64: Pool<Object<8>> = Pool::new(&DOMAIN);

impl Way<3> for ByPool {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<3>>) {
        // SAFETY: the caller's.
        unsafe { POOL_24.retire_raw(object) };
    }
}

impl Way<8> for ByPool {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<8>>) {
        // SAFETY: the caller's.
        unsafe { POOL_64.retire_raw(object) };
    }
}

/// A pool that objects also come from.
struct Recycled;

impl Way<3> for Recycled {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn make(i: u64) -> *mut Object<3> {
        fill(POOL_24.uninit(), i)
    }

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<3>>) {
        // SAFETY: the caller's.
        unsafe { POOL_24.retire_raw(object) };
    }
}

impl Way<8> for Recycled {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn make(i: u64) -> *mut Object<8> {
        fill(POOL_64.uninit(), i)
    }

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<8>>) {
        // SAFETY: the caller's.
        unsafe { POOL_64.retire_raw(object) };
    }
}

struct ByDomain;

impl<const N: usize> Way<N> for ByDomain {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: the caller's.
        unsafe { DOMAIN.retire_raw(object) };
    }
}

/// A head beside an object, as `call_rcu` wants it inside.
#[repr(C)]
struct Headed {
    head: Head,
    next: *mut Headed,
    object: *mut (),
    free: unsafe fn(*mut ()),
}

/// # Safety
/// `at` came from a box of such an object.
unsafe fn free_object<const N: usize>(at: *mut ()) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(at.cast::<Object<N>>()) });
}

unsafe fn free_headed(head: NonNull<Head>) {
    // SAFETY: the first field of a box.
    let headed = unsafe { Box::from_raw(head.cast::<Headed>().as_ptr()) };
    // SAFETY: an object, and what frees it.
    unsafe { (headed.free)(headed.object) };
}

fn headed<const N: usize>(object: NonNull<Object<N>>) -> NonNull<Headed> {
    let object = object.as_ptr().cast();
    let free = free_object::<N>;
    let next = std::ptr::null_mut();
    NonNull::from(Box::leak(Box::new(Headed { head: Head::new(), next, object, free })))
}

struct ByCall;

impl<const N: usize> Way<N> for ByCall {
    type Thread = ();

    fn thread() {}

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        // SAFETY: a head in a leaked box, freed by the callback.
        unsafe { DOMAIN.call_head(headed(object).cast(), free_headed) };
    }
}

/// Before, A. One list for all; the thread that calls is slow to come by, as an offloaded one is.
struct Offloaded;
static LIST: AtomicPtr<Headed> = AtomicPtr::new(std::ptr::null_mut());
static PACE_NS: AtomicU64 = AtomicU64::new(10_000_000);

fn offloaded_thread() {
    pin(0);
    // SAFETY: takes no pointers; the thread's own priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
    loop {
        std::thread::sleep(Duration::from_nanos(PACE_NS.load(Ordering::Relaxed)));
        let mut at = LIST.swap(std::ptr::null_mut(), Ordering::Acquire);
        if at.is_null() {
            continue;
        }
        DOMAIN.synchronize();
        while let Some(headed) = NonNull::new(at) {
            // SAFETY: in a list that only this thread has.
            at = unsafe { headed.as_ref() }.next;
            // SAFETY: likewise; its grace period is over.
            unsafe { free_headed(headed.cast()) };
        }
    }
}

impl<const N: usize> Way<N> for Offloaded {
    type Thread = ();

    fn prepare() {
        std::thread::spawn(offloaded_thread);
    }

    fn thread() {}

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        let at = headed(object).as_ptr();
        let mut top = LIST.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until it is in the list.
            unsafe { (*at).next = top };
            match LIST.compare_exchange_weak(top, at, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// Before, B. Each producer has the batch it fills and two in flight at most; what is in flight was queued
/// as work to a worker that waits for a grace period first.
struct TwoBatches;
type Batch = Vec<(*mut (), unsafe fn(*mut ()))>;
/// A batch on its way.
struct Work(Batch);
// SAFETY: nobody else has the objects.
unsafe impl Send for Work {}

static WORK: OnceLock<SyncSender<Work>> = OnceLock::new();

struct Batches {
    filling: Batch,
    work: SyncSender<Work>,
}

fn two_batches_worker(work: &Mutex<Receiver<Work>>) {
    while let Ok(Work(batch)) = work.lock().map_or(Err(()), |work| work.recv().map_err(drop)) {
        // A grace period of its own for each batch, as a callback of its own would have.
        DOMAIN.synchronize();
        for (at, free) in batch {
            // SAFETY: an object, what frees it, and its grace period.
            unsafe { free(at) };
        }
    }
}

impl<const N: usize> Way<N> for TwoBatches {
    type Thread = Batches;

    fn prepare() {
        // One in the worker's hands and one in the queue.
        let (sender, receiver) = sync_channel(1);
        let _ = WORK.set(sender);
        std::thread::spawn(move || two_batches_worker(&Mutex::new(receiver)));
    }

    fn thread() -> Batches {
        let work = WORK.get().cloned().unwrap_or_else(|| sync_channel(0).0);
        Batches { filling: Vec::new(), work }
    }

    unsafe fn retire(thread: &mut Batches, object: NonNull<Object<N>>) {
        thread.filling.push((object.as_ptr().cast(), free_object::<N>));
        if thread.filling.len().is_multiple_of(504) {
            let batch = std::mem::take(&mut thread.filling);
            // Both in flight: the monitor tries again with the next page.
            if let Err(TrySendError::Full(Work(batch))) = thread.work.try_send(Work(batch)) {
                thread.filling = batch;
            }
        }
    }

    fn finish(thread: Batches) {
        let _ = thread.work.send(Work(thread.filling));
    }
}

struct Epoch;

impl<const N: usize> Way<N> for Epoch {
    type Thread = ();

    fn thread() {}

    fn section(body: impl FnOnce()) {
        let _guard = crossbeam_epoch::pin();
        body();
    }

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        let guard = crossbeam_epoch::pin();
        let at = object.as_ptr().expose_provenance();
        let free = move || {
            // SAFETY: a box's, of that type (caller).
            unsafe { free_object::<N>(std::ptr::with_exposed_provenance_mut(at)) };
        };
        // SAFETY: the caller's.
        unsafe { guard.defer_unchecked(free) };
    }

    fn nudge() {
        crossbeam_epoch::pin().flush();
    }

    fn grace_periods() -> u64 {
        0
    }
}

struct Seize;
static COLLECTOR: LazyLock<seize::Collector> = LazyLock::new(seize::Collector::new);

impl<const N: usize> Way<N> for Seize {
    type Thread = ();

    fn thread() {}

    fn section(body: impl FnOnce()) {
        let _guard = COLLECTOR.enter();
        body();
    }

    unsafe fn retire((): &mut (), object: NonNull<Object<N>>) {
        use seize::Guard;
        let guard = COLLECTOR.enter();
        // SAFETY: the caller's.
        unsafe { guard.defer_retire(object.as_ptr(), seize::reclaim::boxed) };
    }

    fn finish((): ()) {
        use seize::Guard;
        COLLECTOR.enter().flush();
    }

    fn nudge() {
        use seize::Guard;
        COLLECTOR.enter().flush();
    }

    fn grace_periods() -> u64 {
        0
    }
}

/// The knobs of a run, in the order of the call's numbers.
struct Knobs {
    producers: u64,
    /// Objects of each producer.
    objects: u64,
    readers: u64,
    hold_ns: u64,
    /// A reader is inside for so long from the beginning.
    stuck_ns: u64,
    /// 0: the default.
    cap: u64,
    /// Between two looks of the offloaded thread.
    pace_ns: u64,
}

/// Resident memory in KiB, now and at most.
fn resident() -> Result<[u64; 2]> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
    };
    Ok([of("VmRSS:").context("no VmRSS")?, of("VmHWM:").context("no VmHWM")?])
}

/// Knobs -> ns on the wall, CPU ns, grace periods, KiB at most, on average and by rcuscale's formula,
/// mean and greatest age in ns, bytes that the domain held at most.
fn run<const N: usize, W: Way<N>>(numbers: &[u64]) -> Result<Vec<u64>> {
    let &[producers, objects, readers, hold_ns, stuck_ns, cap, pace_ns] = numbers else {
        bail!("takes PRODUCERS OBJECTS READERS HOLD_NS STUCK_NS CAP PACE_NS")
    };
    let knobs = Knobs { producers, objects, readers, hold_ns, stuck_ns, cap, pace_ns };
    if knobs.cap != 0 {
        let limits = Limits::DEFAULT.cap(knobs.cap).backpressure(Backpressure::Wait);
        DOMAIN.set_retire_limits(limits);
    }
    PACE_NS.store(knobs.pace_ns, Ordering::Relaxed);
    W::prepare();
    let done = AtomicU64::new(0);
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(knobs.producers as usize + 1));
    let [before, _] = resident()?;
    let mut samples = Vec::with_capacity(1 << 16);
    let (mut periods, mut took, mut cpu) = (W::grace_periods(), 0, 0);
    std::thread::scope(|scope| -> Result<()> {
        for reader in 0..knobs.readers {
            let (stop, knobs) = (&stop, &knobs);
            scope.spawn(move || {
                let hold = Duration::from_nanos(knobs.hold_ns);
                // Overlapping, so that somebody is always inside.
                std::thread::sleep(hold * reader as u32 / knobs.readers.max(1) as u32);
                while !stop.load(Ordering::Relaxed) {
                    W::section(|| std::thread::sleep(hold));
                }
            });
        }
        if knobs.stuck_ns != 0 {
            scope.spawn(|| W::section(|| std::thread::sleep(Duration::from_nanos(knobs.stuck_ns))));
            std::thread::sleep(Duration::from_millis(2));
        }
        for producer in 0..knobs.producers {
            let (ready, knobs, done) = (&ready, &knobs, &done);
            scope.spawn(move || {
                pin(producer as usize);
                ready.wait();
                produce::<N, W>(knobs.objects);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        ready.wait();
        let (begun, begun_cpu) =
            (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_PROCESS_CPUTIME_ID));
        let all = knobs.producers * knobs.objects;
        while sum(|shard| &shard.freed) < all {
            samples.push(resident()?[0].saturating_sub(before));
            std::thread::sleep(Duration::from_millis(1));
            if clock(libc::CLOCK_MONOTONIC) - begun > 120_000_000_000 {
                bail!("not all is freed after two minutes");
            }
            if done.load(Ordering::Relaxed) == knobs.producers {
                W::nudge();
            }
        }
        took = clock(libc::CLOCK_MONOTONIC) - begun;
        cpu = clock(libc::CLOCK_PROCESS_CPUTIME_ID) - begun_cpu;
        periods = W::grace_periods() - periods;
        stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let peak = resident()?[1].saturating_sub(before);
    let mean = samples.iter().sum::<u64>() / samples.len().max(1) as u64;
    let age = sum(|shard| &shard.age) / sum(|shard| &shard.sampled).max(1);
    let oldest = FREED.iter().map(|shard| shard.oldest.load(Ordering::Relaxed)).max().unwrap_or(0);
    let held = DOMAIN.retire_stats().peak_bytes;
    let footprint = rcuscale(&samples);
    Ok(vec![took, cpu, periods, peak, mean, footprint, age, oldest, held])
}

/// rcuscale's footprint: a running mean, (mean + now) / 2, at each quarter of the run.
fn rcuscale(samples: &[u64]) -> u64 {
    let at = |quarter: usize| samples.get(samples.len() * quarter / 4).copied().unwrap_or(0);
    (1..4).fold(at(0), |mean, quarter| (mean + at(quarter)) / 2)
}

/// Unpublishes object after object, and retires what was there.
fn produce<const N: usize, W: Way<N>>(objects: u64) {
    let cell = AtomicPtr::new(std::ptr::null_mut::<Object<N>>());
    let mut thread = W::thread();
    for i in 0..=objects {
        let next = if i == objects { std::ptr::null_mut() } else { W::make(i) };
        if let Some(old) = NonNull::new(cell.swap(next, Ordering::AcqRel)) {
            // SAFETY: from a box, just unpublished, by this thread, which is the only one to do so.
            unsafe { W::retire(&mut thread, old) };
        }
    }
    W::finish(thread);
    DOMAIN.retire_flush();
}

/// The cases: 24 bytes (rcuscale's) and 64 (the floods').
pub(crate) fn cases() -> Result<Vec<Case>> {
    Ok(vec![
        Case::call("floor-24", run::<3, Floor>),
        Case::call("floor-64", run::<8, Floor>),
        Case::call("malloc-24", run::<3, Later>),
        Case::call("malloc-64", run::<8, Later>),
        Case::call("pool-24", run::<3, ByPool>),
        Case::call("pool-64", run::<8, ByPool>),
        Case::call("recycled-24", run::<3, Recycled>),
        Case::call("recycled-64", run::<8, Recycled>),
        Case::call("domain-24", run::<3, ByDomain>),
        Case::call("domain-64", run::<8, ByDomain>),
        Case::call("call-24", run::<3, ByCall>),
        Case::call("call-64", run::<8, ByCall>),
        Case::call("call-offloaded-24", run::<3, Offloaded>),
        Case::call("call-offloaded-64", run::<8, Offloaded>),
        Case::call("two-batches-24", run::<3, TwoBatches>),
        Case::call("two-batches-64", run::<8, TwoBatches>),
        Case::call("crossbeam-epoch-24", run::<3, Epoch>),
        Case::call("crossbeam-epoch-64", run::<8, Epoch>),
        Case::call("seize-24", run::<3, Seize>),
        Case::call("seize-64", run::<8, Seize>),
    ])
}
