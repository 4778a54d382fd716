//! `owlet enable` and `owlet disable`: in the recordings that run.

use crate::agents;
use crate::args::ToggleArgs;
use crate::client::{Client, ClientError, Matched};
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::out::note;
use crate::text::plural;
use owlet_wire::config::Rule;
use std::thread;

/// Runs the subcommand.
pub(crate) fn run(args: &ToggleArgs, enable: bool) -> Result<Exit> {
    if let Some(pattern) = args.patterns.iter().find(|pattern| pattern.starts_with('!')) {
        let other = if enable { "disable" } else { "enable" };
        return Err(Failure::with(
            Exit::Usage,
            format!("'{pattern}': a pattern here cannot begin with '!'"),
        )
        .hint(format!("use `owlet {other}` for it")));
    }
    let (clients, silent) = match args.pids.as_slice() {
        [] => agents::all()?.reachable()?,
        pids => (agents::of(pids)?, 0),
    };
    let rules: Vec<_> = args.patterns.iter().map(|p| Rule { pattern: p.clone(), enable }).collect();
    let answers = ask(&clients, &rules);
    tell(args, enable, &clients, answers, silent)
}

type Answer = std::result::Result<Matched, ClientError>;

fn ask(clients: &[Client], rules: &[Rule]) -> Vec<Answer> {
    let gone = || Err(ClientError::Gone);
    thread::scope(|scope| {
        let asked: Vec<_> =
            clients.iter().map(|client| scope.spawn(|| client.control(rules.to_vec()))).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|_| gone())).collect()
    })
}

/// What the answers come to.
#[derive(Default)]
struct Sum {
    all: Matched,
    /// Where something was switched.
    processes: u64,
    /// Processes that did not answer, or refused.
    silent: u64,
    /// Processes that were named and have ended.
    ended: u64,
}

fn sum(args: &ToggleArgs, clients: &[Client], answers: Vec<Answer>, silent: u64) -> Sum {
    let mut sum = Sum { silent, ..Sum::default() };
    for (client, answer) in clients.iter().zip(answers) {
        match answer {
            Ok(matched) => {
                sum.all.matched += matched.matched;
                if matched.matched > 0 && matched.sessions > 0 {
                    sum.processes += 1;
                    sum.all.enabled += matched.enabled;
                }
                sum.all.sessions += matched.sessions;
            }
            Err(error) => {
                let failure = agents::explain(client.pid, &error);
                match failure.exit {
                    // Ended meanwhile: nothing is left to switch.
                    Exit::Nothing if args.pids.is_empty() => continue,
                    Exit::Nothing => sum.ended += 1,
                    _ => sum.silent += 1,
                }
                note!("warning: {}", failure.message);
            }
        }
    }
    sum
}

fn tell(
    args: &ToggleArgs,
    enable: bool,
    clients: &[Client],
    answers: Vec<Answer>,
    silent: u64,
) -> Result<Exit> {
    let Sum { all, processes, silent, ended } = sum(args, clients, answers, silent);
    let word = if enable { "enabled" } else { "disabled" };
    let exit = match (silent, ended) {
        (0, 0) => Exit::Done,
        (0, _) => Exit::Nothing,
        _ => Exit::Refused,
    };
    if all.matched == 0 {
        return Err(match exit {
            Exit::Done => unmatched(args, clients),
            // Those that answered have nothing of the kind; the others may.
            exit if args.pids.is_empty() => Failure { exit, ..unmatched(args, clients) },
            exit => Failure::silent(exit),
        });
    }
    let n = plural(all.matched.into(), "trace point");
    if all.sessions == 0 {
        let these = if silent == 0 { "these processes" } else { "the processes that answer" };
        return Err(Failure::with(
            if silent == 0 { Exit::Nothing } else { Exit::Refused },
            format!("{n} matched, but nobody is recording {these}"),
        )
        .hint(
            "trace points are switched in a running recording: start `owlet record -p PID` first",
        ));
    }
    let elsewhere = match silent {
        0 => String::new(),
        n => format!(" there; {} not switched", plural(n, "process")),
    };
    note!("{word} {n} in {}; {} on now{elsewhere}", plural(processes, "process"), all.enabled);
    Ok(exit)
}

fn unmatched(args: &ToggleArgs, clients: &[Client]) -> Failure {
    let names: Vec<String> = clients
        .iter()
        .filter_map(|client| client.list("*").ok())
        .flatten()
        .map(|point| point.name)
        .collect();
    let patterns: Vec<_> = args.patterns.iter().map(String::as_str).collect();
    let whose = match args.pids.as_slice() {
        [] => "any process of yours".to_string(),
        [pid] => agents::describe(*pid),
        _ => "these processes".to_string(),
    };
    super::patterns::unmatched(&patterns, names.iter().map(String::as_str), &whose)
}
