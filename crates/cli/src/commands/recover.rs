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
    for cut in &recovered.cut {
        let (file, bytes) = (escape(cut.file.as_bytes()), plural(cut.bytes, "byte"));
        out.line(format_args!("{file}: cut {bytes} at byte {}", cut.offset))?;
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
    // The trace is as whole as it gets, and readers read it: with the same status as this.
    let damaged = recovered.damaged();
    if damaged > 0 {
        let bytes = plural(damaged, "byte");
        let what = "of damaged data were cut, perhaps with events in them; .cut-* files have them";
        note!("warning: {bytes} {what}");
    }
    let whole = recovered.finished
        && damaged == 0
        && recovered.remaining.iter().all(|problem| problem.notice);
    Ok(super::summary::read_status(!whole))
}
