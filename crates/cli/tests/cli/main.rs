//! The command, run as a user runs it, against a traced program that this test program is itself.

mod answers;
mod attach;
mod common;
mod errors;
mod integrity;
mod output;
mod reading;
mod record;
mod starting;
mod stopping;

/// Not a test: what the traced program does. See [`common::target_main`].
#[test]
fn target() {
    common::target_main();
}
