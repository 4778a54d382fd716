//! The subscribers of ours that are in use, and telling `tracing` that something was switched.
//!
//! `tracing` keeps each call site's interest; [`rebuild`] makes it ask again. With a single
//! subscriber in the process it asks the *calling thread's* default, so the thread that switches (the
//! agent, which has none if the program set its subscriber for some threads only) takes one of ours
//! for the time.
//!
//! # A call site reached for the first time meanwhile
//! `tracing` stores what `register_callsite` returned after we returned it, and may thereby overwrite
//! what a rebuild has stored in between. So after call sites have become known just now, a rebuild
//! is repeated until they have been quiet for a while.

use super::site;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tracing_core::dispatcher::{self, Dispatch, WeakDispatch};

static LIVE: Mutex<Vec<WeakDispatch>> = Mutex::new(Vec::new());

/// How long ago the newest call site must have become known.
const QUIET: Duration = Duration::from_millis(5);
/// Rebuilds for one switch.
const REBUILDS: usize = 8;

/// A dispatcher with a subscriber of ours inside.
pub(crate) fn add(dispatch: &Dispatch) {
    crate::bridge::hub::install();
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|weak| weak.upgrade().is_some());
    live.push(dispatch.downgrade());
}

/// Makes `tracing` ask every subscriber about every call site.
pub(crate) fn rebuild() {
    for _ in 0..REBUILDS {
        rebuild_once();
        if u128::from(site::quiet_for()) >= QUIET.as_nanos() {
            return;
        }
        std::thread::sleep(QUIET);
    }
}

fn rebuild_once() {
    // Not held meanwhile: what runs below may register a dispatcher. In a forked child the thread
    // that held it may be missing: then it is as if there were none.
    let ours = LIVE.try_lock().ok().and_then(|live| live.iter().find_map(WeakDispatch::upgrade));
    site::look();
    match ours {
        Some(dispatch) => {
            dispatcher::with_default(&dispatch, tracing_core::callsite::rebuild_interest_cache);
        }
        None => tracing_core::callsite::rebuild_interest_cache(),
    }
}
