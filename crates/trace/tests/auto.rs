//! Feature `auto`: the agent is there without a line of code.
#![cfg(feature = "auto")]

mod common;

owlet::tracepoint! {
    /// Events of this test.
    pub mod auto {
        /// One step.
        step();
    }
}

#[test]
fn the_agent_is_there_before_main() {
    owlet::trace!(auto::step);
    let client = common::Client::connect(std::process::id());
    assert_eq!(client.list("auto:step").len(), 1);
}
