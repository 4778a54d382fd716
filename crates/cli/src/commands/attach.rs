//! `owlet attach`: functions and USDT probes of a running process, through the kernel; without `--kernel`
//! it is `calls`.
//!
//! Everything that can be checked is checked before the process is touched; the last line is that of
//! `owlet record`.

use super::directory;
use crate::agents;
use crate::args::AttachArgs;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::{Out, note};
use crate::procfs::Process;
use crate::recorder::clock::SessionClock;
use crate::recorder::kernel::{End, Parts, Recording};
use crate::recorder::stop::Stop;
use crate::text::{count, escape, near, plural};
use crate::units::larger_ring;
use owlet_ring::{LOSS_REASONS, Loss};
use owlet_store::TraceMeta;
use owlet_uprobe::{
    Attachment, Error, ErrorKind, Events, Found, Moments, NoMatch, Of, Options, Pattern, Scope,
    Site, Way,
};
use owlet_wire::filter::{Filter, Verdict};
use serde_json::json;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Runs the subcommand.
pub(crate) fn run(args: &AttachArgs) -> Result<Exit> {
    if !args.kernel {
        return super::calls::run(args);
    }
    let patterns = args.patterns.iter().map(|text| Pattern::parse(text));
    let patterns = patterns.collect::<std::result::Result<Vec<_>, _>>().map_err(failure)?;
    let scope = args.pid.map_or(Scope::Everyone, Scope::Process);
    if let Scope::Process(pid) = scope {
        is_process(pid)?;
    }
    if !args.list {
        owlet_uprobe::check().map_err(failure)?;
    }
    // Before the files are read: a process that ends meanwhile is noticed.
    let target = match scope {
        Scope::Process(pid) => owlet_sys::process::pidfd_open(pid).ok(),
        Scope::Everyone => None,
    };
    let found = owlet_uprobe::find(scope, &patterns).map_err(unmatched)?;
    for warning in &found.warnings {
        note!("warning: {}", escape(warning.as_bytes()));
    }
    let moments = moments(args, &found)?;
    if args.list { list(args, &found) } else { record(args, scope, &found, moments, target) }
}

fn moments(args: &AttachArgs, found: &Found) -> Result<Moments> {
    let probes = found.sites.iter().any(|site| site.of != Of::Function);
    let moments = match (args.entry, args.exit, args.latency) {
        (_, _, true) => Moments::Latency,
        (true, true, _) => Moments::Both,
        (_, true, _) => Moments::Exit,
        _ => Moments::Entry,
    };
    if probes && moments != Moments::Entry {
        let option = if args.latency { "--latency" } else { "--exit" };
        return Err(Failure::with(Exit::Usage, format!("{option}: a USDT probe has no return"))
            .hint("attach to functions and to probes by two commands"));
    }
    Ok(moments)
}

/// Says why a number is no process that can be looked into.
fn is_process(pid: u32) -> Result<()> {
    let Some(process) = Process::read(pid) else {
        return Err(Failure::with(Exit::Nothing, format!("no process {pid}")));
    };
    if process.tgid != pid {
        let process = process.tgid;
        return Err(Failure::with(
            Exit::Nothing,
            format!("{pid} is a thread of process {process}"),
        )
        .hint(format!("use `-p {process}`: a process is recorded with all its threads")));
    }
    if process.state == 'Z' {
        let who = agents::describe(pid);
        return Err(Failure::with(Exit::Nothing, format!("{who} has ended already")));
    }
    Ok(())
}

/// What the back end says, as a failure of the command.
fn failure(error: Error) -> Failure {
    let exit = match error.kind {
        ErrorKind::NoProcess | ErrorKind::NoMatch => Exit::Nothing,
        ErrorKind::Permission | ErrorKind::Dangerous => Exit::Refused,
        ErrorKind::Pattern => Exit::Usage,
        ErrorKind::Unsupported | ErrorKind::BadFile | ErrorKind::Io => Exit::Failure,
    };
    let failure = Failure::with(exit, escape(error.message.as_bytes()));
    if error.hint.is_empty() { failure } else { failure.hint(error.hint) }
}

/// The same, with what may have been meant.
fn unmatched(nothing: NoMatch) -> Failure {
    let NoMatch { error, names, wanted } = nothing;
    let near: Vec<_> =
        closest(&wanted, &names).into_iter().map(|name| escape(name.as_bytes())).collect();
    let mut hints: Vec<_> = [error.hint.clone()].into_iter().filter(|h| !h.is_empty()).collect();
    if !near.is_empty() {
        hints.push(format!("the closest names: {}", near.join(", ")));
    }
    let failure = failure(Error { hint: String::new(), ..error });
    if hints.is_empty() { failure } else { failure.hint(hints.join("\n")) }
}

/// Names with a typing error's distance first: a program has thousands that contain any short word.
fn closest<'n>(wanted: &str, names: &'n [String]) -> Vec<&'n str> {
    const SHOWN: usize = 3;
    let word = wanted.trim_matches('*');
    let score =
        |name: &'n String| (strsim::normalized_damerau_levenshtein(word, name), name.as_str());
    let mut close: Vec<_> = names.iter().map(score).filter(|(score, _)| *score >= 0.7).collect();
    close.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    close.dedup_by_key(|(_, name)| *name);
    close.truncate(SHOWN);
    if close.is_empty() {
        return near(wanted, names.iter().map(String::as_str));
    }
    close.into_iter().map(|(_, name)| name).collect()
}

fn list(args: &AttachArgs, found: &Found) -> Result<Exit> {
    let mut out = Out::new();
    for site in &found.sites {
        let path = found.files.get(site.file).map_or("", |file| file.path.as_str());
        if args.json.on {
            out.json(&site_json(site, path))?;
        } else {
            let (name, path) = (escape(site.name.as_bytes()), escape(path.as_bytes()));
            let semaphore = if site.semaphore > 0 { "  semaphore" } else { "" };
            let arguments = match &site.of {
                Of::Probe(arguments) => format!("  {}", plural(arguments.len() as u64, "argument")),
                Of::Function => String::new(),
            };
            let offset = site.offset;
            out.line(format_args!("{name}  {path}+{offset:#x}{arguments}{semaphore}"))?;
        }
    }
    out.finish()?;
    let files = plural(found.files.len() as u64, "file");
    note!("{} in {files}", plural(found.sites.len() as u64, "site"));
    Ok(Exit::Done)
}

fn site_json(site: &Site, path: &str) -> serde_json::Value {
    let (kind, arguments) = match &site.of {
        Of::Function => ("function", None),
        Of::Probe(arguments) => ("usdt", Some(arguments.len())),
    };
    json!({
        "name": site.name, "kind": kind, "file": path, "offset": site.offset,
        "semaphore": site.semaphore, "arguments": arguments,
    })
}

fn record(
    args: &AttachArgs,
    scope: Scope,
    found: &Found,
    moments: Moments,
    target: Option<OwnedFd>,
) -> Result<Exit> {
    let stop = Stop::new(1)
        .map_err(|error| Failure::new(format!("cannot catch signals: {}", reason(&error))))?;
    let (name, whose) = match scope {
        Scope::Process(pid) => (pid.to_string(), agents::describe(pid)),
        Scope::Everyone => {
            let file = found.files.first().map_or("", |file| file.name());
            (file.to_owned(), "every process that runs it".to_owned())
        }
    };
    let filter = args.filter.as_deref().map(super::report::parse).transpose()?;
    if let Some(filter) = &filter {
        passes(filter, found, moments)?;
    }
    let dir = directory::choose(args.output.as_deref(), &name)?;
    let (ring_bytes, allow_abort) = (args.size, args.allow_abort);
    let options = Options { scope, moments, ring_bytes, way: None, allow_abort };
    let attach = || Attachment::new(found, &options).map_err(failure);
    let parts = Parts {
        found,
        scope,
        moments,
        filter: filter.as_ref(),
        dir: &dir.path,
        meta: TraceMeta {
            description: description(scope),
            ..TraceMeta::new(SessionClock::monotonic().info())
        },
        ring_bytes: args.size,
        stop,
        target,
        progress: args.progress,
    };
    let mut recording = Recording::begin(parts, attach)?;
    told_at_begin(&recording, found, &whose);
    note!(
        "recording {} of {whose} into {}; Ctrl-C ends it",
        plural(recording.attachment().attached() as u64, "site"),
        show(&recording.dir)
    );
    let end = recording.run(args.duration.map(|duration| Instant::now() + duration));
    let early = told_early(&end);
    let end = recording.finish(end);
    if !early {
        told_early(&end);
    }
    counts(args, &recording, found)?;
    Ok(tell(&recording, args, &end, &whose, filter.as_ref()))
}

/// Refuses a filter that can hold for no event; says what in it holds for none.
fn passes(filter: &Filter, found: &Found, moments: Moments) -> Result<()> {
    let schemas = Events::schemas(&found.sites, moments);
    let schemas: Vec<_> = schemas.into_iter().map(|(_, schema)| schema).collect();
    let doubts = super::doubts::of(filter, &schemas);
    if schemas.iter().all(|schema| filter.bind(schema).verdict() == Verdict::Never) {
        let n = plural(found.sites.len() as u64, "site");
        let message = format!("--where can hold for no event of {n}");
        return Err(Failure::with(Exit::Nothing, message).hint(doubts.join("\n")));
    }
    for line in doubts {
        note!("warning: --where: {line}");
    }
    Ok(())
}

/// The command line, and what a process in a container calls itself.
fn description(scope: Scope) -> String {
    let words = std::env::args_os().skip(1);
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut description = format!("owlet {}", words.join(" "));
    if let Scope::Process(pid) = scope {
        let inner = owlet_uprobe::inner_pid(pid);
        if inner != pid {
            description += &format!("; process {pid} is {inner} inside");
        }
    }
    description
}

fn told_at_begin(recording: &Recording, found: &Found, whose: &str) {
    const SHOWN: usize = 5;
    let attachment = recording.attachment();
    let refused = attachment.refused();
    for refused in refused.iter().take(SHOWN) {
        let name = found.sites.get(refused.site).map_or("", |site| site.name.as_str());
        note!("warning: {} is left out: {}", escape(name.as_bytes()), refused.why);
    }
    if refused.len() > SHOWN {
        let more = plural((refused.len() - SHOWN) as u64, "more site");
        note!("warning: {more} left out: the kernel cannot probe what they begin with");
    }
    if attachment.way() == Way::Perf {
        note!(
            "warning: this kernel has no uprobe.multi that filters by process: one perf event a site; \
             detaching from {whose} may take 0.1 s for each"
        );
    }
}

/// Tells at once that a recording cannot go on.
fn told_early(end: &End) -> bool {
    if let End::Failed(failure) = end {
        super::verdict::early(failure);
    }
    matches!(end, End::Failed(_))
}

/// How often each name was hit, most first, on stdout.
fn counts(args: &AttachArgs, recording: &Recording, found: &Found) -> Result<()> {
    // A probe may stand at several places.
    let mut names = std::collections::BTreeMap::<&str, u64>::new();
    for (site, hits) in found.sites.iter().zip(recording.events.counts()) {
        *names.entry(site.name.as_str()).or_default() += hits;
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|(name, hits)| (std::cmp::Reverse(*hits), *name));
    let mut out = Out::new();
    for (name, hits) in names.iter().filter(|(_, hits)| args.json.on || *hits > 0) {
        if args.json.on {
            out.json(&json!({ "name": name, "hits": hits }))?;
        } else {
            out.line(format_args!("{:>12} {}", count(*hits), escape(name.as_bytes())))?;
        }
    }
    out.finish()
}

fn tell(
    recording: &Recording,
    args: &AttachArgs,
    end: &End,
    whose: &str,
    filter: Option<&Filter>,
) -> Exit {
    if let End::Target = end {
        note!("{whose} has ended");
    }
    let paired = recording.events.paired();
    for (n, what) in [
        (paired.without_entry, "returned whose entry was not seen"),
        (paired.without_return, "were left without a return that was seen"),
    ] {
        if n > 0 {
            note!("note: {} {what}", plural(n, "call"));
        }
    }
    if recording.losses.of(LOSS_REASONS[Loss::Full.index()].name) > 0 {
        note!("hint: the ring was full: choose a larger one: --size {}", larger_ring(args.size));
    }
    let mut exit = Exit::Done;
    if recording.written == 0 {
        exit = Exit::Empty;
        let sites = plural(recording.attachment().attached() as u64, "site");
        let lost = recording.losses.total();
        if lost > 0 {
            note!("warning: no event was recorded: all {} were lost", count(lost));
        } else if recording.filtered > 0 {
            let n = plural(recording.filtered, "event");
            let text = filter.map_or("", Filter::text);
            note!("warning: no event was recorded: --where '{text}' let none of {n} pass");
        } else {
            note!("warning: no event was recorded: {sites} on, hits 0");
        }
    }
    if matches!(end, End::Failed(_)) {
        exit = Exit::Failure;
    }
    let (events, losses) = (recording.written, &recording.losses);
    note!("recorded {events} events, lost {losses} in {}", show(&recording.dir));
    exit
}
