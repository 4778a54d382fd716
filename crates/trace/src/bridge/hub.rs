//! Tells `tracing` and `log` that tracepoints were switched: both cache what is on.

use crate::registry::{self, Change};
use std::sync::Once;

/// Makes sure that we hear of every switch.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| registry::set_listener(changed));
}

/// Runs on the thread that switched, usually the agent's.
fn changed(change: Change) {
    // A subscriber of the user's may run below. A panic of his must not end the agent.
    let told = std::panic::catch_unwind(|| {
        #[cfg(feature = "tracing")]
        super::tracing::changed(change);
        #[cfg(feature = "log")]
        super::log::changed(change);
    });
    if let Err(payload) = told {
        // Its destructor might panic as well.
        core::mem::forget(payload);
    }
}
