//! `owlet demo`: an instrumented server with load of its own, recorded live.

use crate::args::{DemoArgs, DemoServerArgs};
use crate::error::{Failure, Result};
use crate::exit::Exit;

/// Runs the subcommand.
pub(crate) fn run(args: &DemoArgs) -> Result<Exit> {
    let _ = args;
    Err(Failure::new("the demo is not built in"))
}

/// The server.
pub(crate) fn serve(args: &DemoServerArgs) -> Result<Exit> {
    let _ = args;
    Err(Failure::new("the demo is not built in"))
}
