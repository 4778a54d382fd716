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
    let clients =
        if args.pids.is_empty() { agents::all()?.reachable()? } else { agents::of(&args.pids)? };
    let rules: Vec<_> = args.patterns.iter().map(|p| Rule { pattern: p.clone(), enable }).collect();
    let answers = ask(&clients, &rules);
    tell(args, enable, &clients, answers)
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

fn tell(args: &ToggleArgs, enable: bool, clients: &[Client], answers: Vec<Answer>) -> Result<Exit> {
    let mut sum = Matched::default();
    let mut processes = 0_u64;
    let mut refused = false;
    for (client, answer) in clients.iter().zip(answers) {
        match answer {
            Ok(matched) => {
                sum.matched += matched.matched;
                if matched.matched > 0 && matched.sessions > 0 {
                    processes += 1;
                    sum.enabled += matched.enabled;
                }
                sum.sessions += matched.sessions;
            }
            // Ended meanwhile: nothing is left to switch.
            Err(ClientError::Gone) if args.pids.is_empty() => {}
            Err(error) => {
                refused = true;
                note!("warning: {}", agents::explain(client.pid, &error).message);
            }
        }
    }
    let word = if enable { "enabled" } else { "disabled" };
    if sum.matched == 0 {
        if refused {
            return Err(Failure::silent(Exit::Refused));
        }
        return Err(unmatched(args, clients));
    }
    if sum.sessions == 0 {
        let n = plural(sum.matched.into(), "trace point");
        return Err(Failure::with(
            Exit::Nothing,
            format!("{n} matched, but nobody is recording these processes"),
        )
        .hint(
            "trace points are switched in a running recording: start `owlet record -p PID` first",
        ));
    }
    note!(
        "{word} {} in {}; {} on now",
        plural(sum.matched.into(), "trace point"),
        plural(processes, "process"),
        sum.enabled
    );
    Ok(if refused { Exit::Refused } else { Exit::Done })
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
