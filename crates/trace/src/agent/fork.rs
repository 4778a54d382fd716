//! What a forked child does.
//!
//! The child has a copy of the sessions and of the patched code, so it records on at once, under its
//! own pid (see `context`) and with a process record of its own (see `session`). It has no agent: one
//! is started here, makes a socket of its own and reports to each session's recorder.
//!
//! | step | thread | what |
//! |---|---|---|
//! | prepare | the forking one | takes `INIT`, the gate and the control lock: nothing is half done |
//! | parent | the forking one | lets go |
//! | child | the only one | closes the parent's descriptors, lets go, starts an agent |
//!
//! A child made without handlers (`_Fork`, raw `clone`) records on as well, but has no agent and holds
//! the parent's connections open until it execs or ends. A `vfork` child must not emit.

use super::{INIT, exit, thread};
use crate::control;
use crate::sync::atomic::{AtomicBool, Ordering};

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Whether children get an agent; read from the environment beforehand, since that takes a lock.
static FOLLOW: AtomicBool = AtomicBool::new(true);

/// Registers the handlers, once.
pub(super) fn install() {
    let follow = std::env::var_os("OWLET_FOLLOW_FORK").is_none_or(|value| value != "0");
    FOLLOW.store(follow, Ordering::Relaxed);
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: the three functions are of the right type and live as long as this object, which is
    // pinned. Failure (no memory) leaves children without an agent.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

extern "C" fn prepare() {
    INIT.hold();
    thread::GATE.hold();
    control::hold();
    exit::hold();
}

extern "C" fn parent() {
    exit::release();
    control::release();
    thread::GATE.release();
    INIT.release();
}

extern "C" fn child() {
    exit::release();
    control::release();
    thread::GATE.release();
    let was_running = thread::abandon();
    INIT.release();
    if was_running && FOLLOW.load(Ordering::Relaxed) {
        // Without a thread the child records on, and cannot be controlled.
        let _ = thread::spawn(None);
    }
}
