//! Project rules and the test command.
fn main() {}
