//! `owlet export --perfetto FILE DIR`.

use super::summary::problems;
use crate::args::ExportArgs;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::sink::store_failure;
use crate::text::count;
use owlet_analyze::Trace;
use owlet_export::perfetto::{self, Error};
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

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
        write(&trace, &mut stdout.lock()).map_err(|error| match error {
            Error::Read(error) => store_failure(error),
            Error::Write(error) => Failure::stdout(&error),
        })?;
        return Ok(Exit::Done);
    }
    to_file(&trace, &args.perfetto)
}

/// Writes beside the file and renames: what was there stays whole until the export is. A device or a
/// pipe is written to as it is; a rename would put a file in its place.
pub(crate) fn to_file(trace: &Trace, path: &Path) -> Result<Exit> {
    let failed = |error: std::io::Error| Failure::at("cannot write", path, reason(&error));
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        let mut device = File::options().write(true).open(path).map_err(failed)?;
        write(trace, &mut device).map_err(|error| match error {
            Error::Read(error) => store_failure(error),
            Error::Write(error) => failed(error),
        })?;
        return Ok(Exit::Done);
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = File::create(&partial).map_err(failed)?;
    let written = write(trace, &mut file).map_err(|error| match error {
        Error::Read(error) => store_failure(error),
        Error::Write(error) => failed(error),
    });
    let written = written
        .and_then(|summary| std::fs::rename(&partial, path).map(|()| summary).map_err(failed));
    let summary = written.inspect_err(|_| {
        // The half-written file helps nobody; if it stays, the message above is still the one to tell.
        let _ = std::fs::remove_file(&partial);
    })?;
    let slices = summary.thread_slices + summary.async_slices;
    note!(
        "wrote {} slices and {} instants to {}; open it at https://ui.perfetto.dev",
        count(slices),
        count(summary.instants),
        show(path)
    );
    Ok(Exit::Done)
}

fn write(trace: &Trace, out: &mut impl Write) -> std::result::Result<perfetto::Summary, Error> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let summary = perfetto::write(trace, None, &mut out)?;
    out.flush()?;
    Ok(summary)
}
