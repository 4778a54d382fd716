//! The owlet command.
fn main() {}
