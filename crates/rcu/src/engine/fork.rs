//! What happens to domains in a forked child.
//!
//! The child has one thread. What its parent's other threads had open or registered nobody will ever
//! close; each flavour strikes it out (`Flavour::forked`), and keeps what is the surviving thread's
//! own, which goes on protecting it.
//!
//! A leader that stayed behind is deposed; the grace period it ran is forgotten (`seq` back to even),
//! which makes cookies wait longer, never shorter. If the surviving thread *is* the leader (it forked
//! in a signal handler), it goes on.
//!
//! # When
//! In a handler of `pthread_atfork`, registered when the library is loaded. Children made past the
//! handlers (`_Fork`, raw `clone`) are noticed by `owlet_sys::fork::generation` at their first wait;
//! if they still have one thread then, the same is done; otherwise only the leaders are deposed,
//! because sections of the child's new threads cannot be told from dead ones.
//!
//! | `STATE` | meaning |
//! |---|---|
//! | 0 | never looked |
//! | n | domains are right for generation n |
//! | `FIXING` | one thread is putting them right |

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use owlet_sys::fork::generation;
use owlet_sys::process;

use crate::{check, held, rwlock, sections, worker};

static STATE: AtomicU64 = AtomicU64::new(0);
const FIXING: u64 = u64::MAX;

/// Called at the start of every wait: one load and a compare when nothing has happened.
#[inline]
pub(crate) fn check() {
    let now = generation();
    if STATE.load(Ordering::Acquire) != now {
        check_slow(now);
    }
}

#[cold]
#[inline(never)]
fn check_slow(now: u64) {
    register();
    loop {
        match STATE.load(Ordering::Acquire) {
            FIXING => std::thread::yield_now(),
            state if state == now => return,
            state => {
                let taken =
                    STATE.compare_exchange(state, FIXING, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_err() {
                    continue;
                }
                if state != 0 {
                    put_right(process::thread_count() == Ok(1));
                }
                STATE.store(now, Ordering::Release);
                return;
            }
        }
    }
}

/// Puts every domain right in a child; `alone` if this is its only thread.
fn put_right(alone: bool) {
    let me = held::identity();
    for engine in super::all() {
        if engine.turns.leader() != me {
            engine.hurry.store(0, Ordering::Relaxed);
        }
        engine.turns.depose(me);
        engine.flavour().forked(alone);
        engine.callbacks.inherit(&engine, me);
    }
    crate::free::inherit(me);
    worker::forked();
    rwlock::forked(alone);
    if alone {
        held::mark_fork();
        check::forked();
        sections::survived();
    }
}

extern "C" fn in_child() {
    if STATE.load(Ordering::Relaxed) != generation() {
        put_right(true);
        STATE.store(generation(), Ordering::Release);
    }
}

static REGISTERED: AtomicU32 = AtomicU32::new(0);

/// Registers the handler once.
fn register() {
    if REGISTERED.swap(1, Ordering::Relaxed) == 0 {
        // Before a handler can run, so that the child sees the number change.
        let now = generation();
        let _ = STATE.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        // SAFETY: a handler that is async-signal-safe and valid as long as this code is loaded; the
        // C library forgets it when the library is unloaded.
        let answer = unsafe { pthread_atfork(None, None, Some(in_child)) };
        if answer != 0 {
            // No memory for the handler: `check` still notices, by the generation.
            REGISTERED.store(0, Ordering::Relaxed);
        }
    }
}

type Handler = Option<extern "C" fn()>;

unsafe extern "C" {
    fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> i32;
}

extern "C" fn at_load() {
    register();
}

/// Runs `register` when the library is loaded, before there can be a second thread.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
