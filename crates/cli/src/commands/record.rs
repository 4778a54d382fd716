//! `owlet record`: checks everything that can be checked before a process is touched, records, and
//! always ends with one line that says how many events were recorded and how many were lost.

use super::directory;
use super::patterns::{self, nothing_selected};
use super::verdict::{self, Asked, Before};
use crate::agents;
use crate::args::RecordArgs;
use crate::client::Client;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::clock::SessionClock;
use crate::recorder::newcomers::Newcomers;
use crate::recorder::rendezvous::Rendezvous;
use crate::recorder::session::{self, Plan, Session, Target};
use crate::recorder::stop::Stop;
use crate::recorder::{End, Parts, Recording};
use crate::text::{escape, plural};
use owlet_wire::config::Rule;
use owlet_wire::schema::Level;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

/// Runs the subcommand.
pub(crate) fn run(args: &RecordArgs) -> Result<Exit> {
    let recorded = !args.command.is_empty();
    // A command gets the first request, too.
    let stop = Stop::new(1 + u64::from(recorded))
        .map_err(|error| Failure::new(format!("cannot catch signals: {}", reason(&error))))?;
    let rules = patterns::rules(&args.events);
    if let Some(failure) = patterns::nothing_ever(&rules) {
        return Err(failure);
    }
    if recorded { command(args, stop, rules) } else { processes(args, stop, rules) }
}

/// Records processes that run already.
fn processes(args: &RecordArgs, stop: Stop, rules: Vec<Rule>) -> Result<Exit> {
    let mut pids = Vec::new();
    for pid in &args.pids {
        if !pids.contains(pid) {
            pids.push(*pid);
        }
    }
    let clients = agents::of(&pids)?;
    let whose = agents::whose(&pids);
    look(args, &rules, &clients, &whose)?;
    let name = match pids.as_slice() {
        [pid] => pid.to_string(),
        [pid, rest @ ..] => format!("{pid}-and-{}-more", rest.len()),
        [] => "nothing".into(),
    };
    let dir = directory::choose(args.output.as_deref(), &name)?;
    let rendezvous = Rendezvous::new(false)?;
    let clock = SessionClock::choose();
    let mut session = Session::create(&plan(args, rules.clone(), &rendezvous), clock.kind)?;
    session.attach(clients)?;
    let on = session.targets.iter().map(|target| u64::from(target.matched.enabled)).sum();
    // Asked for only when it may have to be told what the filter left.
    let points = args.filter.as_ref().and_then(|_| session.points()).unwrap_or_default();
    let before = Before { on, hits: patterns::hits(&rules, args.level.0, &points) };
    let path = &dir.path;
    let mut recording = Recording::begin(parts(args, session, clock, rendezvous, path, stop))?;
    note!(
        "recording {} of {whose} into {}; Ctrl-C ends it",
        plural(before.on, "trace point"),
        show(path)
    );
    let end = finish(&mut recording, deadline(args));
    let asked = Asked { args, rules: &rules, whose: &whose };
    Ok(verdict::tell(&recording, &end, None, &before, &asked))
}

/// Starts a command and records it from its first event.
fn command(args: &RecordArgs, stop: Stop, rules: Vec<Rule>) -> Result<Exit> {
    let [program, words @ ..] = args.command.as_slice() else {
        return Err(Failure::with(Exit::Usage, "no command given"));
    };
    let path = find(program)?;
    let name = path.file_name().unwrap_or(program).to_string_lossy().into_owned();
    let dir = directory::choose(args.output.as_deref(), &name)?;
    // Only what chooses can leave nothing, and has to be explained then.
    let chosen = !args.events.is_empty() || args.filter.is_some() || args.level.0 < Level::Trace;
    let rendezvous = Rendezvous::new(chosen)?;
    let clock = SessionClock::choose();
    let plan = plan(args, rules.clone(), &rendezvous);
    let session = Session::create(&plan, clock.kind)?;
    let session_path = session.path();
    let parts = parts(args, session, clock, rendezvous, &dir.path, stop);
    let mut recording = Recording::begin(parts)?;
    // Before the command: whoever appears from now on may be its.
    let newcomers = Newcomers::new(&recording.session.segment, session_path.clone());
    match spawn(program, words, &session_path) {
        Ok(child) => recording.follow(child, escape(name.as_bytes()), newcomers),
        Err(failure) => {
            // Nothing ran, so nothing was recorded; the directory is ours and holds no event.
            recording.discard();
            return Err(failure);
        }
    }
    let deadline = deadline(args);
    let end = finish(&mut recording, deadline);
    let whose = escape(name.as_bytes());
    let mut after = None;
    if matches!(end, End::Failed(_)) {
        if recording.command().is_some() {
            note!("{whose} goes on without being recorded; its end is waited for");
        }
        after = recording.wait_for_command(deadline).unwrap_or_else(|failure| {
            failure.report();
            None
        });
    }
    if let Some(child) = recording.command() {
        verdict::leave(child);
    }
    let asked = Asked { args, rules: &rules, whose: &whose };
    Ok(verdict::tell(&recording, &end, after.as_ref(), &Before::default(), &asked))
}

fn deadline(args: &RecordArgs) -> Option<Instant> {
    args.duration.map(|duration| Instant::now() + duration)
}

/// Records, and ends the recording. A failure is told when it happens: what is recorded may go on.
fn finish(recording: &mut Recording, deadline: Option<Instant>) -> End {
    let end = recording.run(deadline);
    let early = matches!(end, End::Failed(_));
    if let End::Failed(failure) = &end {
        verdict::early(failure);
    }
    let end = recording.end(end);
    if let (End::Failed(failure), false) = (&end, early) {
        verdict::early(failure);
    }
    end
}

/// Checks that something will be recorded, before anything is switched on.
fn look(args: &RecordArgs, rules: &[Rule], clients: &[Client], whose: &str) -> Result<()> {
    let mut points = Vec::new();
    for client in clients {
        points.extend(client.list("*").map_err(|error| agents::explain(client.pid, &error))?);
    }
    let nothing = nothing_selected(rules, args.level.0, &points, whose);
    if let Some(failure) = nothing.filter(|_| !args.wait) {
        return Err(failure);
    }
    let filter = args.filter.as_deref().map(super::report::parse).transpose()?;
    if let Some(filter) = filter.as_ref().filter(|_| !args.wait)
        && let Some(failure) = patterns::nothing_passes(rules, filter, &points)
    {
        return Err(failure);
    }
    if points.is_empty() {
        note!(
            "warning: {whose} has no trace points yet; what appears later and matches is recorded"
        );
        return Ok(());
    }
    for (rule, advice) in patterns::unmatched_yet(rules, &points) {
        let (given, later) =
            (patterns::given(rule), if rule.enable { "will" } else { "is left out" });
        note!("warning: no trace point matches {given} yet; one that appears later {later}");
        for hint in advice {
            note!("hint: {hint}");
        }
    }
    if let Some(filter) = &filter {
        for line in patterns::doubts(rules, filter, &points) {
            note!("warning: --where: so far {line}");
        }
    }
    Ok(())
}

fn plan(args: &RecordArgs, rules: Vec<Rule>, rendezvous: &Rendezvous) -> Plan {
    Plan {
        rules,
        level: args.level.0,
        filter: args.filter.clone().unwrap_or_default(),
        ring_bytes: args.size,
        rendezvous: rendezvous.path.clone(),
    }
}

fn parts<'a>(
    args: &RecordArgs,
    session: Session,
    clock: SessionClock,
    rendezvous: Rendezvous,
    dir: &'a Path,
    stop: Stop,
) -> Parts<'a> {
    let words = std::env::args_os().skip(1);
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut description = format!("owlet {}", words.join(" "));
    for Target { client, .. } in &session.targets {
        if client.pid != client.hello.pid {
            description += &format!("; process {} is {} inside", client.pid, client.hello.pid);
        }
    }
    Parts { session, clock, rendezvous, dir, description, stop, progress: args.progress }
}

/// Where the command is, as `execvp` would find it.
fn find(program: &OsStr) -> Result<PathBuf> {
    let shown = escape(program.as_bytes());
    let executable = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match std::fs::metadata(&path) {
            Err(error) => Err(Failure::new(format!("cannot start {shown}: {}", reason(&error)))),
            Ok(_) if executable(&path) => Ok(path),
            Ok(_) => Err(Failure::new(format!("cannot start {shown}: it is no executable file"))),
        };
    }
    let places = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let found =
        std::env::split_paths(&places).map(|dir| dir.join(program)).find(|path| executable(path));
    found.ok_or_else(|| {
        let hint = if program.as_bytes().starts_with(b"-") {
            "options of `owlet record` stand before `--`, the command and its own after it"
        } else {
            "name a file with its directory, as in ./server, or a command in PATH"
        };
        Failure::new(format!("cannot start {shown}: no such command")).hint(hint)
    })
}

fn spawn(program: &OsStr, words: &[OsString], session: &str) -> Result<Child> {
    Command::new(program).args(words).env(session::VARIABLE, session).spawn().map_err(|error| {
        Failure::new(format!("cannot start {}: {}", escape(program.as_bytes()), reason(&error)))
    })
}
