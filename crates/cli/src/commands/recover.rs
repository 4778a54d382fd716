//! `owlet recover DIR`.

use crate::args::RecoverArgs;
use crate::error::{Result, show};
use crate::exit::Exit;
use crate::out::{Out, note};
use crate::recorder::sink::store_failure;
use crate::text::{escape, plural};

/// Runs the subcommand.
pub(crate) fn run(args: &RecoverArgs) -> Result<Exit> {
    let recovered = owlet_store::recover(&args.dir).map_err(store_failure)?;
    let mut out = Out::new();
    for (file, bytes) in &recovered.cut {
        out.line(format_args!("{}: cut {}", escape(file.as_bytes()), plural(*bytes, "byte")))?;
    }
    if recovered.metadata_rewritten {
        out.line(format_args!("metadata: written anew"))?;
    }
    if recovered.cut.is_empty() && !recovered.metadata_rewritten {
        out.line(format_args!("{}: nothing to repair", show(&args.dir)))?;
    }
    out.finish()?;
    for problem in &recovered.remaining {
        note!("warning: {}", escape(problem.to_string().as_bytes()));
    }
    // What cannot be brought back is told; the trace is as whole as it gets, and readers read it.
    Ok(Exit::Done)
}
