//! `owlet record`: checks everything that can be checked before a process is touched, records, and
//! always ends with one line that says how many events were recorded and how many were lost.

use super::patterns::{self, nothing_selected};
use super::verdict::{self, Before};
use crate::agents;
use crate::args::RecordArgs;
use crate::client::Client;
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::out::note;
use crate::recorder::clock::SessionClock;
use crate::recorder::rendezvous::Rendezvous;
use crate::recorder::session::{Plan, Session, Target};
use crate::recorder::stop::Stop;
use crate::recorder::{Parts, Recording};
use crate::text::{escape, plural};
use owlet_wire::config::Rule;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Name of the variable a process finds its session by.
const SESSION_VARIABLE: &str = "OWLET_SESSION";

/// Runs the subcommand.
pub(crate) fn run(args: &RecordArgs) -> Result<Exit> {
    let stop = Stop::new()
        .map_err(|error| Failure::new(format!("cannot catch signals: {}", reason(&error))))?;
    let rules = patterns::rules(&args.events);
    if args.command.is_empty() { processes(args, stop, rules) } else { command(args, stop, rules) }
}

/// Records processes that run already.
fn processes(args: &RecordArgs, stop: Stop, rules: Vec<Rule>) -> Result<Exit> {
    let clients = agents::of(&args.pids)?;
    let mut before = look(args, &rules, &clients)?;
    let name = match args.pids.as_slice() {
        [pid] => pid.to_string(),
        [pid, rest @ ..] => format!("{pid}-and-{}-more", rest.len()),
        [] => "nothing".into(),
    };
    let dir = directory(args, &name)?;
    let rendezvous = Rendezvous::new()?;
    let clock = SessionClock::choose();
    let mut session = Session::create(&plan(args, rules, &rendezvous), clock.kind)?;
    session.attach(clients)?;
    before.on = session.targets.iter().map(|target| u64::from(target.matched.enabled)).sum();
    let whose = whose(&args.pids);
    let mut recording = Recording::begin(parts(args, session, clock, rendezvous, &dir, stop))?;
    note!(
        "recording {} of {whose} into {}; Ctrl-C ends it",
        plural(before.on, "trace point"),
        show(&dir)
    );
    let end = recording.run(args.duration);
    let (end, _) = recording.end(end);
    Ok(verdict::tell(&recording, end, &before, !args.wait))
}

/// Starts a command and records it from its first event.
fn command(args: &RecordArgs, stop: Stop, rules: Vec<Rule>) -> Result<Exit> {
    let [program, words @ ..] = args.command.as_slice() else {
        return Err(Failure::with(Exit::Usage, "no command given"));
    };
    let path = find(program)?;
    let name = path.file_name().unwrap_or(program).to_string_lossy().into_owned();
    let dir = directory(args, &name)?;
    let rendezvous = Rendezvous::new()?;
    let clock = SessionClock::choose();
    let plan = plan(args, rules, &rendezvous);
    let session = Session::create(&plan, clock.kind)?;
    let session_path = session.path();
    let mut recording = Recording::begin(parts(args, session, clock, rendezvous, &dir, stop))?;
    match spawn(program, words, &session_path) {
        Ok(child) => recording.follow(child, escape(name.as_bytes())),
        Err(failure) => {
            // Nothing ran, so nothing was recorded; the directory is ours and holds no event.
            recording.discard();
            return Err(failure);
        }
    }
    let end = recording.run(args.duration);
    let (end, child) = recording.end(end);
    if let Some(child) = &child {
        verdict::leave(child);
    }
    Ok(verdict::tell(&recording, end, &Before::default(), !args.wait))
}

/// Checks that something will be recorded, before anything is switched on.
fn look(args: &RecordArgs, rules: &[Rule], clients: &[Client]) -> Result<Before> {
    let mut points = Vec::new();
    for client in clients {
        points.extend(client.list("*").map_err(|error| agents::explain(client.pid, &error))?);
    }
    if !args.wait
        && let Some(failure) = nothing_selected(rules, args.level.0, &points, &whose(&args.pids))
    {
        return Err(failure);
    }
    if let Some(text) = args.filter.as_ref().filter(|_| !args.wait)
        && let Some(failure) =
            patterns::nothing_passes(rules, &super::report::parse(text)?, &points)
    {
        return Err(failure);
    }
    let names: Vec<_> = points.iter().map(|point| point.name.as_str()).collect();
    for rule in rules.iter().filter(|_| !args.wait) {
        if !names.iter().any(|name| owlet_wire::config::glob(&rule.pattern, name)) {
            let pattern = escape(rule.pattern.as_bytes());
            note!("warning: no trace point matches '{pattern}' yet; one that appears later will");
        }
    }
    Ok(Before { hits: points.iter().map(|point| point.hits).sum(), ..Before::default() })
}

fn whose(pids: &[u32]) -> String {
    match pids {
        [pid] => agents::describe(*pid),
        pids => plural(pids.len() as u64, "process"),
    }
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

/// The directory to record into; refused now rather than after a process was touched.
fn directory(args: &RecordArgs, name: &str) -> Result<PathBuf> {
    let dir = match &args.output {
        Some(dir) => dir.clone(),
        None => {
            PathBuf::from(format!("owlet-trace-{}-{}", safe_name(name), crate::units::timestamp()))
        }
    };
    let exists =
        |what: &str, hint: &str| Err(Failure::at("cannot record into", &dir, what).hint(hint));
    match std::fs::read_dir(&dir).map(|mut entries| entries.next().is_some()) {
        Ok(true) => exists(
            "the directory is not empty",
            "name a directory that does not exist yet, or empty this one",
        ),
        Ok(false) => Ok(dir),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(dir),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            exists("there is a file of that name", "name another directory with -o")
        }
        Err(error) => Err(Failure::at("cannot record into", &dir, reason(&error))),
    }
}

/// A file name of letters, digits, dots and dashes, whatever the program is called.
fn safe_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let name: String = name.chars().take(40).map(safe).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "program".into() } else { name.into() }
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
        Failure::new(format!("cannot start {shown}: no such command"))
            .hint("name a file with its directory, as in ./server, or a command in PATH")
    })
}

fn spawn(program: &OsStr, words: &[OsString], session: &str) -> Result<Child> {
    Command::new(program).args(words).env(SESSION_VARIABLE, session).spawn().map_err(|error| {
        Failure::new(format!("cannot start {}: {}", escape(program.as_bytes()), reason(&error)))
    })
}
