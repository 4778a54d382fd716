//! A shared object with tracepoints, loaded at run time by a program that knows nothing of them.

owlet::tracepoint! {
    /// What the plugin does.
    pub mod plug {
        /// One step.
        tick(seq: u64);
    }
}

/// Starts the agent of this copy of the library.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_init() -> bool {
    owlet::init().is_ok()
}

/// Emits `n` events.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_emit(n: u64) {
    for seq in 0..n {
        owlet::trace!(plug::tick, seq);
    }
}
