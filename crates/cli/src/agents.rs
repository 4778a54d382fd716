//! Finding agents: which processes can be traced, and why one cannot.

use crate::client::{Client, ClientError, PATIENCE};
use crate::error::{Failure, Result, reason};
use crate::exit::Exit;
use crate::out::note;
use crate::procfs::{self, Process};
use crate::sockets::{self, Socket};
use crate::text::{escape, plural, program};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// What agents call their thread.
const AGENT_THREAD: &[u8] = b"owlet-agent";
/// How often it is looked whether a process has ended, 10 ms apart.
const ENDING_LOOKS: u32 = 20;

/// Agents that answered, and processes whose agent did not.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    /// By pid.
    pub(crate) clients: Vec<Client>,
    /// Sockets of living processes that could not be talked to.
    pub(crate) troubled: Vec<(u32, ClientError)>,
}

impl Agents {
    /// Says on stderr which agents could not be asked.
    pub(crate) fn warn(&self) {
        for (pid, error) in &self.troubled {
            note!("warning: {}", explain(*pid, error).message);
        }
    }

    /// The agents that answered, and how many did not: those are named on stderr.
    ///
    /// # Errors
    /// When none answered: there is none, or why the first did not.
    pub(crate) fn reachable(self) -> Result<(Vec<Client>, u64)> {
        let silent = self.troubled.len() as u64;
        match self.troubled.as_slice() {
            [] if self.clients.is_empty() => return Err(none()),
            [(pid, error)] if self.clients.is_empty() => return Err(explain(*pid, error)),
            _ => self.warn(),
        }
        if self.clients.is_empty() {
            return Err(Failure::silent(Exit::Refused));
        }
        Ok((self.clients, silent))
    }
}

/// The failure when there is no agent at all.
pub(crate) fn none() -> Failure {
    Failure::with(Exit::Nothing, "no process of yours has an agent")
        .hint("call `owlet::init()` in the program's main, or try `owlet demo`")
}

/// Asks every agent of this user, all at once, so that one that is stopped delays nobody.
pub(crate) fn all() -> Result<Agents> {
    Ok(connect(sockets::own()?))
}

/// The agents of `pids`, in that order.
///
/// # Errors
/// The first process that cannot be traced, and why.
pub(crate) fn of(pids: &[u32]) -> Result<Vec<Client>> {
    // A process may have its sockets elsewhere, so that ours are not missed yet.
    let (own, untrusted) = match sockets::own() {
        Ok(own) => (own, None),
        Err(failure) => (Vec::new(), Some(failure)),
    };
    let mut agents = connect(own);
    let mut found = Vec::new();
    for &pid in pids {
        if found.iter().any(|client: &Client| client.pid == pid) {
            continue;
        }
        let mine = |client: &mut Client| client.pid == pid;
        let before = found.len();
        // A process may hold the library several times, each copy with its own trace points.
        found.extend(agents.clients.extract_if(.., mine));
        if found.len() > before {
            continue;
        }
        if let Some((_, error)) = agents.troubled.iter().find(|(troubled, _)| *troubled == pid) {
            return Err(explain(pid, error));
        }
        // A process in a container or of another user keeps its sockets elsewhere.
        let mut elsewhere = connect(sockets::elsewhere(pid));
        found.extend(elsewhere.clients.extract_if(.., mine));
        if found.len() > before {
            continue;
        }
        return Err(match elsewhere.troubled.first() {
            Some((_, error)) => explain(pid, error),
            None => match untrusted {
                Some(failure) if Process::read(pid).is_some() => failure,
                _ => no_agent(pid, &others(found.iter().chain(&agents.clients), &agents.troubled)),
            },
        });
    }
    Ok(found)
}

fn connect(sockets: Vec<Socket>) -> Agents {
    let mut agents = Agents::default();
    thread::scope(|scope| {
        let asked: Vec<_> = sockets
            .iter()
            .map(|socket| (socket, scope.spawn(|| patiently(&socket.path))))
            .collect();
        for (socket, thread) in asked {
            match thread.join() {
                Ok(Ok(client)) => agents.clients.push(client),
                // Left behind by a process that is gone; its next agent cleans up.
                Ok(Err(ClientError::Gone)) => {}
                Ok(Err(error)) if Process::read(socket.pid).is_some() => {
                    agents.troubled.push((socket.pid, error));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    });
    agents.clients.sort_by_key(|client| client.pid);
    agents.troubled.sort_by_key(|(pid, _)| *pid);
    agents
}

/// Connects; again, when it was turned away: the process may just have ended.
fn patiently(path: &Path) -> std::result::Result<Client, ClientError> {
    match Client::connect(path) {
        Err(ClientError::TurnedAway) => {
            thread::sleep(Duration::from_millis(30));
            Client::connect(path)
        }
        answer => answer,
    }
}

/// `process 4711 (server)`.
pub(crate) fn describe(pid: u32) -> String {
    match Process::read(pid) {
        Some(process) => format!("process {pid} ({})", escape(&process.comm)),
        None => format!("process {pid}"),
    }
}

/// `server`; empty when there is no such process.
pub(crate) fn name(pid: u32) -> String {
    Process::read(pid).map_or_else(String::new, |process| escape(&process.comm))
}

/// `process 4711 (server)`, or `3 processes`.
pub(crate) fn whose(pids: &[u32]) -> String {
    match pids {
        [pid] => describe(*pid),
        pids => plural(pids.len() as u64, "process"),
    }
}

/// Why a conversation with the agent of `pid` failed, as a failure of the command.
pub(crate) fn explain(pid: u32, error: &ClientError) -> Failure {
    let who = describe(pid);
    match error {
        ClientError::Gone | ClientError::TurnedAway if ended(pid) => {
            Failure::with(Exit::Nothing, format!("process {pid} has ended"))
        }
        ClientError::Gone => {
            Failure::with(Exit::Refused, format!("{who} has closed its agent's connection"))
        }
        ClientError::TurnedAway => Failure::with(
            Exit::Refused,
            format!("{who} does not answer: its agent turned the connection away"),
        )
        .hint("it may have too many connections: end what else talks to it, and try again"),
        ClientError::Silent => silent(pid, &who),
        ClientError::Version { theirs } => {
            let ours = owlet_wire::WIRE_VERSION;
            let theirs =
                theirs.map_or_else(|| "another version".into(), |v| format!("version {v}"));
            Failure::with(
                Exit::Refused,
                format!("the agent of {who} speaks {theirs} of the protocol, this command version {ours}"),
            )
            .hint("use the command built from the same release as the program's owlet crate")
        }
        ClientError::Refused { message, hint } => {
            let message = escape(message.as_bytes());
            let failure = Failure::with(Exit::Refused, format!("{who} refuses: {message}"));
            if hint.is_empty() { failure } else { failure.hint(escape(hint.as_bytes())) }
        }
        ClientError::Garbage(what) => {
            Failure::with(Exit::Refused, format!("what listens for {who} is no agent: {what}"))
        }
        ClientError::Io(error) => {
            Failure::new(format!("cannot talk to the agent of {who}: {}", reason(error)))
        }
    }
}

/// Why a process does not answer.
fn silent(pid: u32, who: &str) -> Failure {
    let failure = |why: String| Failure::with(Exit::Refused, format!("{who} does not answer{why}"));
    if Process::read(pid).is_some_and(|process| process.stopped()) {
        return failure(": it is stopped".into())
            .hint(format!("let it run with `kill -CONT {pid}`, then try again"));
    }
    if let Some(limit) = procfs::files_used_up(pid) {
        return failure(format!(": it has reached its limit on open files, {limit}"))
            .hint(format!("raise the limit: `prlimit --pid {pid} --nofile=1024`"));
    }
    failure(format!(" within {} ms", PATIENCE.as_millis()))
        .hint("it may be starved or frozen; try again when it runs")
}

/// Whether a process whose agent has hung up has ended. Its descriptors are closed a moment before that
/// is to be seen.
fn ended(pid: u32) -> bool {
    (0..ENDING_LOOKS).any(|look| {
        if look > 0 {
            thread::sleep(Duration::from_millis(10));
        }
        !procfs::runs(pid)
    })
}

fn no_agent(pid: u32, others: &str) -> Failure {
    let Some(process) = Process::read(pid) else {
        return Failure::with(Exit::Nothing, format!("no process {pid}")).hint(others);
    };
    let name = escape(&process.comm);
    if process.tgid != pid {
        let process = process.tgid;
        return Failure::with(Exit::Nothing, format!("{pid} is a thread of process {process}"))
            .hint(format!("use `-p {process}`: a process is recorded with all its threads"));
    }
    let me = rustix::process::geteuid().as_raw();
    if process.uid != me && me != 0 {
        let user = procfs::user(process.uid);
        return Failure::with(
            Exit::Refused,
            format!("process {pid} ({name}) belongs to user {user}, not to you"),
        )
        .hint(format!("run this command as user {user}"));
    }
    if process.state == 'Z' {
        return Failure::with(Exit::Nothing, format!("process {pid} ({name}) has ended already"));
    }
    if let Some(failure) = sockets::in_the_way(pid).filter(|_| process.uid == me) {
        let message = format!("process {pid} ({name}) has no agent: {}", failure.message);
        return Failure { exit: Exit::Nothing, message, ..failure };
    }
    if procfs::has_thread(pid, AGENT_THREAD) {
        return Failure::with(
            Exit::Refused,
            format!("process {pid} ({name}) cannot be reached: its agent's socket is gone"),
        )
        .hint("the agent makes it anew: try again in ten seconds");
    }
    Failure::with(Exit::Nothing, format!("process {pid} ({name}) has no agent"))
        .hint(format!("call `owlet::init()` in its main; {others}"))
}

/// A clause that names processes which do have an agent.
fn others<'c>(
    clients: impl Iterator<Item = &'c Client>,
    troubled: &[(u32, ClientError)],
) -> String {
    let mut names: Vec<_> =
        clients.map(|client| format!("{} ({})", client.pid, program(&client.hello.exe))).collect();
    names.extend(troubled.iter().map(|(pid, _)| format!("{pid} (does not answer)")));
    if names.is_empty() {
        return "no process of yours has an agent now".into();
    }
    let more = names.len().saturating_sub(4);
    names.truncate(4);
    let more =
        if more > 0 { format!(" and {}", plural(more as u64, "other")) } else { String::new() };
    format!("processes with an agent: {}{more}", names.join(", "))
}
