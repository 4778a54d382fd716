//! `owlet export --perfetto FILE DIR`.

use super::summary::{problems, read_status};
use crate::args::ExportArgs;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::sink::store_failure;
use crate::target::{self, Target};
use crate::text::count;
use owlet_analyze::Trace;
use owlet_export::perfetto::{self, Error};
use std::io::{BufWriter, IsTerminal as _, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Runs the subcommand.
pub(crate) fn run(args: &ExportArgs) -> Result<Exit> {
    let trace = Trace::open(&args.dir).map_err(store_failure)?;
    problems(&trace, trace.problems().iter());
    if args.perfetto == Path::new("-") {
        let stdout = std::io::stdout();
        if stdout.is_terminal() {
            return Err(Failure::with(
                Exit::Usage,
                "a Perfetto trace is binary: not written to a terminal",
            )
            .hint("name a file, or redirect stdout"));
        }
        let summary = write(&trace, &mut stdout.lock()).map_err(|error| match error {
            Error::Read(error) => store_failure(error),
            Error::Write(error) => Failure::stdout(&error),
        })?;
        return Ok(status(&trace, &summary));
    }
    to_file(&trace, args)
}

/// Writes into what `path` is, see [`crate::target`]; a new file is no wider open than the trace.
fn to_file(trace: &Trace, args: &ExportArgs) -> Result<Exit> {
    let path = &args.perfetto;
    let failed = |error: std::io::Error| Failure::at("cannot write", path, reason(&error));
    // Every file there is part of the trace, for us and for every other reader of CTF.
    if target::is_in(path, &args.dir).map_err(failed)? {
        let what = format!("it is in {}, the trace directory that is read", show(&args.dir));
        let failure = Failure::at("cannot write", path, what);
        return Err(Failure { exit: Exit::Usage, ..failure }.hint("name a file outside of it"));
    }
    let mode = std::fs::metadata(args.dir.join(".owlet"))
        .map_or(0o600, |meta| meta.permissions().mode() & 0o666);
    let mut target = Target::open(path, mode).map_err(failed)?;
    let summary = write(trace, &mut target.file).map_err(|error| match error {
        Error::Read(error) => store_failure(error),
        Error::Write(error) => failed(error),
    })?;
    target.finish().map_err(failed)?;
    let slices = summary.thread_slices + summary.async_slices;
    note!(
        "wrote {} slices and {} instants to {}; open it at https://ui.perfetto.dev",
        count(slices),
        count(summary.instants),
        show(path)
    );
    Ok(status(trace, &summary))
}

/// Says what could not be read of the events, and with which status the command ends.
fn status(trace: &Trace, summary: &perfetto::Summary) -> Exit {
    problems(trace, summary.problems.iter());
    read_status(trace.damaged() || !summary.problems.is_empty())
}

fn write(trace: &Trace, out: &mut impl Write) -> std::result::Result<perfetto::Summary, Error> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let summary = perfetto::write(trace, None, &mut out)?;
    out.flush()?;
    Ok(summary)
}
