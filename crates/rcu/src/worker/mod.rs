//! The one thread that brings about what nobody waits for: polled cookies, callbacks, async waits.
//!
//! It is started when first needed, sleeps while there is nothing to do, and never ends; a forked
//! child starts one of its own when it first needs one. An engine that has work is put on a list of
//! the worker's ([`drive`]); the worker asks the [`SOURCES`] of each engine on it what they need,
//! leads grace periods for them, several domains at once, and lets go of engines that need nothing.
//!
//! How work gets here, and how the worker sleeps without missing any: `crate::link`.
//!
//! Where no thread can be had, the caller does what can be done without waiting ([`help`]), and
//! whoever comes next tries again. Callbacks are called by whoever waits at a barrier then, and by
//! nobody else: a poster may hold what they need.
//!
//! | `STARTED` | meaning | next |
//! |---|---|---|
//! | 0 | no worker | a thread makes one: 2n + 1 |
//! | 2n + 1 | being made, in the process of generation n | made: 2n; impossible: 0 |
//! | 2n | made | |
//!
//! Who finds one being made counts on it, so the thread that fails to make it wakes all async waiters:
//! they see for themselves. Who sleeps at a barrier looks again after 10 ms.

mod wakers;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use core::time::Duration;

use owlet_sys::fork::generation;
use owlet_sys::process;

use crate::engine::pace::{self, Futex, Pace, Slack};
use crate::engine::{Engine, EngineRef, Herd};
use crate::held;
use crate::link::{self, Pokes};
use crate::seq::Cookie;

pub(crate) use wakers::{Ticket, Wakers};

/// What a source still needs of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// The moment that has to come about.
    pub(crate) cookie: Cookie,
    /// May be put off that long.
    pub(crate) within: Duration,
    /// In a hurry.
    pub(crate) expedited: bool,
    /// The source has more to do and only let others have their turn.
    pub(crate) again: bool,
}

/// Does what has become possible for an engine (runs callbacks, wakes waiters) and says what it
/// still needs. Called on the worker, when driven and after every grace period.
pub(crate) type Source = fn(EngineRef) -> Option<Need>;

/// Everybody for whom the worker works.
const SOURCES: &[Source] = &[cookies, wakers::serve, crate::callback::serve, crate::free::serve];

/// The source of polled cookies.
fn cookies(engine: EngineRef) -> Option<Need> {
    let cookie = engine.wanted();
    (!engine.poll(cookie)).then(|| {
        let expedited = engine.hurried();
        let within = if expedited { Duration::ZERO } else { engine.flavour().patience(true) };
        Need { cookie, within, expedited, again: false }
    })
}

/// An engine's place in the worker's lists.
#[derive(Debug)]
pub(crate) struct Link {
    link: link::Link,
    next: AtomicPtr<Engine>,
}

impl Link {
    pub(crate) const fn new() -> Self {
        Self { link: link::Link::new(), next: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// True if the worker has nothing to do with the engine.
    pub(crate) fn is_idle(&self) -> bool {
        self.link.is_idle()
    }
}

static STACK: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());
static POKES: Pokes = Pokes::new();
/// Whether there is a worker: see the table above.
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Somebody counts on the worker that is being made.
static COUNTED_ON: AtomicBool = AtomicBool::new(false);
/// The generation of the process that could not make one when it last tried.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Asks the worker to look at `engine`, now that its sources have something new. Allocates if the
/// worker has to be started. False if there is no worker and none could be started.
pub(crate) fn drive(engine: EngineRef) -> bool {
    put_down(engine);
    let running = start();
    wake();
    running
}

/// Does for an engine, without waiting, what the worker would do if there were one.
#[cold]
pub(crate) fn help(engine: EngineRef, cookie: Cookie) {
    let mut herd = Herd::new(false);
    herd.want(engine, cookie, false);
    // What is not over is left to others when the herd is dropped.
    let _ = herd.step();
}

/// [`drive`] without starting a worker. Async-signal-safe.
pub(crate) fn notify(engine: EngineRef) {
    put_down(engine);
    wake();
}

fn put_down(engine: EngineRef) {
    if engine.0.work.link.offer(&Futex::default()) {
        push(engine);
    }
}

fn push(engine: EngineRef) {
    let me = core::ptr::from_ref(engine.0).cast_mut();
    let mut head = STACK.load(Ordering::Relaxed);
    loop {
        engine.0.work.next.store(head, Ordering::Relaxed);
        match STACK.compare_exchange_weak(head, me, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Makes the worker look again.
pub(crate) fn wake() {
    POKES.poke(&Futex::default(), pace::bell);
}

/// True if the calling thread is the worker.
pub(crate) fn is_me() -> bool {
    POKES.worker() == held::identity()
}

/// True if this process has a worker.
pub(crate) fn is_running() -> bool {
    STARTED.load(Ordering::Acquire) == made()
}

/// What [`STARTED`] says in a process that has a worker.
fn made() -> u64 {
    generation() << 1
}

/// The worker is to look at something that it has in hand. If it could not be made, tries again.
pub(crate) fn remind() {
    wake();
    if FAILED.load(Ordering::Relaxed) == generation() && !is_running() {
        start();
    }
}

/// Starts the worker if there is none. True if there is one, or another thread is making it.
pub(crate) fn start() -> bool {
    let making = made() | 1;
    loop {
        let started = STARTED.load(Ordering::Acquire);
        if started == made() {
            return true;
        }
        if started == making {
            COUNTED_ON.store(true, Ordering::Relaxed);
            // Full: before the second look. Pairs with the one in give_up(): either it finds
            // COUNTED_ON (and what we put down before), or we find that it has given up.
            fence(Ordering::SeqCst);
            if STARTED.load(Ordering::Acquire) == making {
                return true;
            }
            continue;
        }
        let (order, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        if STARTED.compare_exchange(started, making, order, relaxed).is_ok() {
            break;
        }
    }
    let spawned = spawn();
    if spawned {
        STARTED.store(made(), Ordering::Release);
    } else {
        give_up();
    }
    spawned
}

fn spawn() -> bool {
    #[cfg(test)]
    if tests::NO_THREADS.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(tests::SLOWNESS_MS.load(Ordering::Relaxed)));
        return false;
    }
    // Not by the standard library, which a forked child cannot rely on for that.
    owlet_sys::thread::spawn_detached(work).is_ok()
}

/// No worker can be made.
#[cold]
fn give_up() {
    FAILED.store(generation(), Ordering::Relaxed);
    STARTED.store(0, Ordering::Release);
    // Full: pairs with the one in start().
    fence(Ordering::SeqCst);
    if COUNTED_ON.swap(false, Ordering::Relaxed) {
        crate::engine::all().for_each(wakers::wake_all);
    }
}

/// In a forked child: the worker stayed behind, unless it is the thread that forked.
pub(crate) fn forked() {
    if is_me() {
        STARTED.store(made(), Ordering::Release);
        return;
    }
    POKES.depart();
    STARTED.store(0, Ordering::Release);
    STACK.store(core::ptr::null_mut(), Ordering::Relaxed);
    // What the worker was busy with goes on when the child starts its own.
    for engine in crate::engine::all() {
        if engine.0.work.link.requeue() {
            push(engine);
        }
    }
}

/// The worker's life.
fn work() {
    let _ = process::set_thread_name("owlet-rcu");
    let me = held::identity();
    POKES.arrive(&Futex::default(), me);
    let mut active: Vec<EngineRef> = Vec::new();
    let mut herd = Herd::new(false);
    let mut slack = Slack::default();
    loop {
        let pokes = POKES.seen();
        take_stack(&mut active);
        let (patience, again) = serve(&mut active, &mut herd);
        let (pace, progress) = herd.step();
        if progress || again {
            continue;
        }
        let pace = match (pace, patience) {
            (Some(pace), Some(time)) => pace.min(Pace::Sleep(time)),
            (Some(pace), None) => pace,
            (None, Some(time)) => Pace::Sleep(time),
            (None, None) => Pace::Sleep(Duration::from_secs(3600)),
        };
        slack.reduce(pace);
        let hurried = herd.hurried();
        match pace {
            Pace::Sleep(time) => {
                POKES.sleep(&Futex(time), pace::bell(me), pokes, || herd.hurried() != hurried);
            }
            pace => pace::pause(pace, || false),
        }
    }
}

fn take_stack(active: &mut Vec<EngineRef>) {
    let mut at = STACK.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: the stack holds null and engines, which live for ever.
    while let Some(engine) = unsafe { at.as_ref() } {
        at = engine.work.next.load(Ordering::Relaxed);
        engine.work.link.take();
        active.push(EngineRef(engine));
    }
}

/// Serves all active engines; says how long what is left may be put off, if anything is, and whether
/// a source has more to do at once.
fn serve(active: &mut Vec<EngineRef>, herd: &mut Herd) -> (Option<Duration>, bool) {
    let mut patience: Option<Duration> = None;
    let mut again = false;
    active.retain(|&engine| {
        let Some(need) = ask(engine).or_else(|| let_go(engine)) else { return false };
        again |= need.again;
        if need.within.is_zero() {
            herd.want(engine, need.cookie, need.expedited);
        } else {
            patience = Some(patience.map_or(need.within, |p| p.min(need.within)));
        }
        true
    });
    (patience, again)
}

/// What the engine's sources need: the furthest moment, the least patience.
fn ask(engine: EngineRef) -> Option<Need> {
    let mut all: Option<Need> = None;
    for need in SOURCES.iter().filter_map(|source| source(engine)) {
        all = Some(all.map_or(need, |other| merge(need, other)));
    }
    all
}

pub(crate) fn merge(a: Need, b: Need) -> Need {
    let later = crate::seq::is_at_or_after(a.cookie.0, b.cookie.0);
    Need {
        cookie: if later { a.cookie } else { b.cookie },
        within: a.within.min(b.within),
        expedited: a.expedited || b.expedited,
        again: a.again || b.again,
    }
}

/// Lets go of an engine that needs nothing, unless it has come to need something meanwhile.
fn let_go(engine: EngineRef) -> Option<Need> {
    engine.0.work.link.let_go(&Futex::default(), || ask(engine))
}

#[cfg(test)]
mod tests;
