//! `owlet hist`: histograms of traced functions, counted in their process.

use super::functions;
use crate::agents;
use crate::args::HistArgs;
use crate::client::Client;
use crate::error::{Failure, Result, reason};
use crate::exit::Exit;
use crate::out::{Out, note};
use crate::recorder::nap;
use crate::recorder::stop::Stop;
use crate::text::{count, escape, plural};
use crate::units::latency;
use owlet_wire::functions::{Attach, DURATION, Histogram, RET, Standing, Work, bounds};
use rustix::event::{PollFd, PollFlags};
use serde_json::json;
use std::time::{Duration, Instant};

/// How old the last known state of a process that ends may be.
const LOOK: Duration = Duration::from_millis(200);
/// Characters of the longest bar.
const WIDTH: usize = 40;

/// Runs the subcommand.
pub(crate) fn run(args: &HistArgs) -> Result<Exit> {
    let mut stop = Stop::new(1)
        .map_err(|error| Failure::new(format!("cannot catch signals: {}", reason(&error))))?;
    let (client, known) = functions::of(args.pid)?;
    let whose = agents::describe(args.pid);
    let matched = functions::matching(&args.patterns, &known, &whose)?;
    if matched.iter().any(|function| function.programs > 0) && args.field.is_none() {
        note!("note: other programs are attached, too; their time is not counted");
    }
    let wanted = Attach {
        patterns: args.patterns.clone(),
        work: Work::Histogram { field: args.field.clone(), by: args.by.clone() },
        filter: args.filter.clone().unwrap_or_default(),
    };
    client.attach_functions(wanted).map_err(|error| functions::refused(args.pid, &error))?;
    let n = plural(matched.len() as u64, "traced function");
    note!("counting {} of {n} of {whose}; Ctrl-C ends it", what(args));
    let (standing, ended) = watch(args, &client, &mut stop)?;
    if ended {
        note!("warning: {whose} has ended: its last {} ms are missing", LOOK.as_millis());
    }
    show(args, &standing)?;
    if standing.histograms.is_empty() {
        note!("warning: no call was counted: {n} on, calls 0");
        return Ok(Exit::Empty);
    }
    Ok(Exit::Done)
}

/// What is counted, for people.
fn what(args: &HistArgs) -> String {
    let of = match args.field.as_deref() {
        None | Some(DURATION) => "the latency".to_owned(),
        Some(RET) => "the result".to_owned(),
        Some(field) => format!("`{}`", escape(field.as_bytes())),
    };
    match &args.by {
        Some(by) => format!("{of} by `{}`", escape(by.as_bytes())),
        None => of,
    }
}

/// Waits for the end; how things stood then, and whether it was the process's.
fn watch(args: &HistArgs, client: &Client, stop: &mut Stop) -> Result<(Standing, bool)> {
    let deadline = args.duration.map(|duration| Instant::now() + duration);
    let mut last = Standing::default();
    let mut looked = None::<Instant>;
    loop {
        let over = !stop.received().is_empty() || deadline.is_some_and(|d| Instant::now() >= d);
        if over {
            // What is counted is final then. If that does not work, asking does not either.
            let _ = client.detach_own_functions();
        }
        if over || looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            match client.standing(false) {
                Ok(standing) => last = standing,
                Err(_) if client.closed() => return Ok((last, true)),
                Err(error) => return Err(agents::explain(args.pid, &error)),
            }
        }
        if over {
            return Ok((last, false));
        }
        if !last.functions.iter().any(|function| function.attached) {
            note!("note: somebody has detached all of the functions");
            return Ok((last, false));
        }
        let mut fds = [stop.poll_fd(), PollFd::new(client, PollFlags::IN)];
        nap(&mut fds, deadline)?;
    }
}

fn show(args: &HistArgs, standing: &Standing) -> Result<()> {
    let is_time = args.field.as_deref().is_none_or(|field| field == DURATION);
    let mut out = Out::new();
    let mut first = true;
    for histogram in &standing.histograms {
        if args.json.on {
            out.json(&as_json(histogram, args))?;
            continue;
        }
        if !std::mem::take(&mut first) {
            out.line(format_args!(""))?;
        }
        draw(&mut out, histogram, is_time)?;
    }
    out.finish()
}

/// Numbers of a histogram: how many, and their mean.
fn numbers(histogram: &Histogram) -> (u64, u64) {
    let n = histogram.buckets.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
    (n, histogram.sum.checked_div(n).unwrap_or(0))
}

fn as_json(histogram: &Histogram, args: &HistArgs) -> serde_json::Value {
    let buckets: Vec<_> = histogram
        .buckets
        .iter()
        .enumerate()
        .filter(|(_, n)| **n > 0)
        .filter_map(|(at, n)| {
            bounds(at).map(|(from, to)| json!({"from": from, "to": to, "count": n}))
        })
        .collect();
    let (n, mean) = numbers(histogram);
    json!({
        "key": histogram.key,
        "by": args.by.as_deref().unwrap_or("function"),
        "field": args.field.as_deref().unwrap_or(DURATION),
        "count": n,
        "sum": histogram.sum,
        "mean": mean,
        "negative": histogram.negative,
        "without": histogram.without,
        "buckets": buckets,
    })
}

fn draw(out: &mut Out, histogram: &Histogram, is_time: bool) -> Result<()> {
    let number = |n: u64| if is_time { latency(n) } else { count(n) };
    let (n, mean) = numbers(histogram);
    let mut facts = vec![plural(n, "value")];
    if n > 0 {
        facts.push(format!("mean {}", number(mean)));
    }
    if histogram.negative > 0 {
        facts.push(format!("{} below zero", count(histogram.negative)));
    }
    if histogram.without > 0 {
        facts.push(format!("{} without the field", plural(histogram.without, "call")));
    }
    out.line(format_args!("{}: {}", escape(histogram.key.as_bytes()), facts.join(", ")))?;
    let most = histogram.buckets.iter().copied().max().unwrap_or(0).max(1);
    let first = histogram.buckets.iter().position(|n| *n > 0).unwrap_or(0);
    for (at, n) in histogram.buckets.iter().enumerate().skip(first) {
        let Some((from, to)) = bounds(at) else { break };
        // Whole characters of a bar, and one for what is there at all.
        let share = u128::from(*n) * WIDTH as u128 / u128::from(most);
        let bar = usize::try_from(share).unwrap_or(WIDTH).max(usize::from(*n > 0));
        let (from, to) = (number(from), number(to));
        let bar = "#".repeat(bar);
        out.line(format_args!("  {from:>12} .. {to:<12} {:>12} |{bar}", count(*n)))?;
    }
    Ok(())
}
