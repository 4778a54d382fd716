//! `owlet attach --prog`: an eBPF program on traced functions. Loaded and verified here, run in the process.
//!
//! The process gets the image only when the verifier has passed every program of it. Its maps are read at the
//! end, and every now and then before, for the case that the process ends first. Records of ring buffers are
//! shown as they come.

use super::functions;
use crate::agents;
use crate::args::AttachArgs;
use crate::client::Client;
use crate::error::{Failure, Result, reason};
use crate::exit::Exit;
use crate::out::{Out, note};
use crate::recorder::nap;
use crate::recorder::stop::Stop;
use crate::text::{count, escape, plural};
use owlet_ebpf::image::{MapKind, ProgramDef, ProgramKind};
use owlet_ebpf::load::{self, Verified};
use owlet_wire::functions::{Attach, Map, Standing, Work};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use serde_json::json;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How old the last known state of a process that ends may be, and its records.
const LOOK: Duration = Duration::from_millis(500);
/// The same of a program with ring buffers, which are to be emptied.
const LOOK_AT_RECORDS: Duration = Duration::from_millis(50);
/// How replies call ring buffers.
const RING: &str = "ringbuf";
/// Objects larger than this are none.
const OBJECT_MAX: u64 = 16 << 20;

/// Runs it on the functions that match.
pub(super) fn run(
    args: &AttachArgs,
    prog: &str,
    client: &Client,
    mut stop: Stop,
    functions: usize,
) -> Result<Exit> {
    let (verified, program) = verified(prog)?;
    let image = verified.to_bytes().map_err(|error| Failure::new(format!("{prog}: {error}")))?;
    let wanted = Attach {
        patterns: args.patterns.clone(),
        work: Work::Program { image, program: program.clone() },
        filter: args.filter.clone().unwrap_or_default(),
    };
    let whose = agents::describe(client.pid);
    client.attach_functions(wanted).map_err(|error| functions::refused(client.pid, &error))?;
    note!(
        "running {} on {} of {whose}; Ctrl-C ends it",
        escape(program.as_bytes()),
        plural(functions as u64, "traced function")
    );
    let rings = verified.image().maps.iter().any(|map| map.kind == MapKind::RingBuf);
    let look = if rings { LOOK_AT_RECORDS } else { LOOK };
    let (standing, ended) = watch(args, client, &mut stop, look)?;
    if ended {
        note!("warning: {whose} has ended: what its last {} ms did is missing", look.as_millis());
    }
    show(args, &standing)?;
    for map in standing.maps.iter().filter(|map| map.lost > 0) {
        let (name, lost) = (escape(map.name.as_bytes()), map.lost);
        note!("note: map {name} had no room, or was busy, {}", plural(lost, "time"));
    }
    for (n, what) in
        [(standing.missed, "missed inside the program"), (standing.faults, "cut short")]
    {
        if n > 0 {
            note!("note: {} {what}", plural(n, "run"));
        }
    }
    let calls = standing.functions.iter().fold(0_u64, |sum, f| sum.saturating_add(f.calls));
    if calls == 0 {
        note!("warning: the program was never run: no call of the functions that match");
        return Ok(Exit::Empty);
    }
    note!("ran {} ({})", plural(calls, "time"), escape(standing.engine.as_bytes()));
    Ok(Exit::Done)
}

/// What a file has, no more than a byte too much. One that is none may have no end, or never begin.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(OBJECT_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The object of `FILE[:PROGRAM]`, and the name of the program meant.
fn verified(prog: &str) -> Result<(Verified, String)> {
    let (file, wanted) = match prog.rsplit_once(':') {
        Some((file, name)) if !Path::new(prog).exists() => (file, Some(name)),
        _ => (prog, None),
    };
    let path = Path::new(file);
    let failed = |why: String| Failure::at("cannot load", path, why);
    let bytes = read(path).map_err(|error| failed(reason(&error)))?;
    if bytes.len() as u64 > OBJECT_MAX {
        return Err(failed("it is too large for an object of eBPF programs".into()));
    }
    let verified = load::object(&bytes).map_err(|error| {
        let text = error.to_string();
        let (why, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
        let lines: Vec<_> = why.lines().map(|line| escape(line.as_bytes())).collect();
        let failure = failed(lines.join("\n"));
        if hint.is_empty() { failure } else { failure.hint(escape(hint.as_bytes())) }
    })?;
    let programs = &verified.image().programs;
    let fits = |program: &&ProgramDef| match wanted {
        Some(wanted) => program.name == wanted || kind(program.kind) == wanted,
        None => true,
    };
    let found: Vec<_> = programs.iter().filter(fits).map(|program| program.name.clone()).collect();
    match found.as_slice() {
        [one] => Ok((verified.clone(), one.clone())),
        found => {
            let names: Vec<_> = programs
                .iter()
                .map(|p| format!("{} ({})", escape(p.name.as_bytes()), kind(p.kind)))
                .collect();
            let message = match found {
                [] => failed("it has no such program".into()),
                _ => failed("it has several programs: say which, as in FILE.o:NAME".into()),
            };
            Err(message.hint(format!("its programs are: {}", names.join(", "))))
        }
    }
}

fn kind(kind: ProgramKind) -> &'static str {
    match kind {
        ProgramKind::Entry => "entry",
        ProgramKind::Exit => "exit",
        ProgramKind::Session => "session",
    }
}

/// Waits for the end, and shows records meanwhile; how things stood then, and whether it was the process's.
fn watch(
    args: &AttachArgs,
    client: &Client,
    stop: &mut Stop,
    look: Duration,
) -> Result<(Standing, bool)> {
    let deadline = args.duration.map(|duration| Instant::now() + duration);
    let mut last = Standing::default();
    let mut looked = None::<Instant>;
    loop {
        let over = !stop.received().is_empty() || deadline.is_some_and(|d| Instant::now() >= d);
        if over {
            // What is counted is final then. If that does not work, asking does not either.
            let _ = client.detach_own_functions();
        }
        if over || looked.is_none_or(|at| at.elapsed() >= look) {
            looked = Some(Instant::now());
            match client.standing(true) {
                Ok(standing) => {
                    last = standing;
                    records(args, &last)?;
                    if last.maps.iter().any(|map| map.cut && !map.records.is_empty()) {
                        // There are more, and nobody but us to take them.
                        looked = None;
                        continue;
                    }
                }
                Err(_) if client.closed() => return Ok((last, true)),
                Err(error) => return Err(agents::explain(client.pid, &error)),
            }
        }
        if over {
            return Ok((last, false));
        }
        let mut fds = [stop.poll_fd(), PollFd::new(client, PollFlags::IN)];
        nap(&mut fds, deadline)?;
    }
}

/// Records of ring buffers, one a line.
fn records(args: &AttachArgs, standing: &Standing) -> Result<()> {
    let mut out = Out::new();
    for map in &standing.maps {
        let name = escape(map.name.as_bytes());
        for record in &map.records {
            if args.json.on {
                out.json(&json!({
                    "map": map.name, "kind": map.kind, "record": hex(record), "words": words(record),
                }))?;
            } else {
                out.line(format_args!("{name}: {}", readable(record)))?;
            }
        }
    }
    out.finish()
}

fn show(args: &AttachArgs, standing: &Standing) -> Result<()> {
    let mut out = Out::new();
    for map in standing.maps.iter().filter(|map| map.kind != RING) {
        // Bytes of a whole value for each CPU lie one behind the other.
        let size = usize::try_from(map.value_size).unwrap_or(usize::MAX).max(1);
        if args.json.on {
            for (key, value) in &map.entries {
                let values: Vec<_> = value.chunks(size).map(hex).collect();
                out.json(&json!({
                    "map": map.name, "kind": map.kind, "key": hex(key), "values": values,
                    "words": words(value),
                }))?;
            }
        } else {
            table(&mut out, map)?;
        }
        if map.cut {
            note!("note: map {} has more entries", escape(map.name.as_bytes()));
        }
    }
    out.finish()
}

/// A map as a table: words as numbers, everything else as bytes. What is all zeros is left out.
fn table(out: &mut Out, map: &Map) -> Result<()> {
    let shown: Vec<_> =
        map.entries.iter().filter(|(_, value)| value.iter().any(|byte| *byte != 0)).collect();
    let (name, kind) = (escape(map.name.as_bytes()), escape(map.kind.as_bytes()));
    out.line(format_args!("{name} ({kind}), {} set:", plural(shown.len() as u64, "value")))?;
    for (key, value) in shown {
        let key = match (key.len(), words(key)) {
            (_, Some(words)) => words.into_iter().map(count).collect::<Vec<_>>().join(" "),
            (4, _) => key.iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte)).to_string(),
            _ => hex(key),
        };
        out.line(format_args!("  {key:>16}  {}", readable(value)))?;
    }
    Ok(())
}

/// Whole words as numbers, everything else as bytes.
fn readable(bytes: &[u8]) -> String {
    match words(bytes) {
        Some(words) => words.into_iter().map(count).collect::<Vec<_>>().join(" "),
        None => hex(bytes),
    }
}

/// Bytes as 64-bit words, if they are whole ones.
fn words(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let all = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    (rest.is_empty() && !words.is_empty()).then_some(all)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
