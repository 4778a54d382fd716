//! `request-cost`: CPU time of a request to a server that is not traced, traced, or logging text.
//!
//! The server is mini-redis of the registry with Owlet's line, as in the end-to-end tests;
//! redis-benchmark sends SET requests on 8 connections. `off` and `on` are the same process, before
//! and while `owlet record -p PID` records everything it has; `text` is a second one that also
//! formats every event with tracing-subscriber 0.2, as the server's own binary does, and throws the
//! text away. CPU time is that of the whole server process, its agent included.

mod server;

use crate::Options;
use crate::harness::report::{Bound, Kind, Report, Table, number, rounded};
use crate::harness::stats::{median, spread_percent};
use anyhow::Result;
use serde::Serialize;
use server::{Programs, Recording, Server};

#[derive(Serialize)]
struct Line {
    bench: &'static str,
    case: &'static str,
    cpu_us_per_request: Option<f64>,
    wall_us_per_request: Option<f64>,
    events_per_request: Option<f64>,
    lost_events: u64,
    ratio_to_off: Option<f64>,
}

#[derive(Default)]
struct Runs {
    cpu_us: Vec<f64>,
    wall_us: Vec<f64>,
    events: u64,
    lost: u64,
}

impl Runs {
    fn add(&mut self, spent: server::Spent, requests: u64) {
        let per = |time: std::time::Duration| time.as_secs_f64() * 1e6 / requests as f64;
        self.cpu_us.push(per(spent.cpu));
        self.wall_us.push(per(spent.wall));
    }
}

/// Events of a request that the target is given for.
const EVENTS: f64 = 21.0;

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let requests = options.size(100_000, 5_000);
    report.parameter("requests", &format!("{requests} SETs a run on 8 connections"));
    let programs = Programs::find()?;
    let plain = Server::start(&programs, &[])?;
    let logging = Server::start(&programs, &["--log"])?;
    // The allocator's arenas, the connections' tasks, the call sites' first hits.
    plain.serve(requests / 4 + 1)?;
    logging.serve(requests / 4 + 1)?;
    let (mut off, mut on, mut text) = (Runs::default(), Runs::default(), Runs::default());
    for _ in 0..options.reps() {
        off.add(plain.serve(requests)?, requests);
        let recording = Recording::start(&programs, plain.pid())?;
        on.add(plain.serve(requests)?, requests);
        let (events, lost) = recording.stop()?;
        on.events += events;
        on.lost += lost;
        text.add(logging.serve(requests)?, requests);
    }
    let all = requests * u64::from(options.reps());
    tell(&[("off", &off), ("on", &on), ("text", &text)], all, report)?;
    judge(&off, &on, all, report);
    Ok(())
}

fn tell(cases: &[(&'static str, &Runs)], requests: u64, report: &mut Report) -> Result<()> {
    let mut table =
        Table::new(&["case", "cpu us/request", "+-%", "wall us/request", "events/request", "lost"]);
    let off = cases.first().map_or(f64::NAN, |(_, runs)| median(&runs.cpu_us));
    for (case, runs) in cases {
        let cpu = median(&runs.cpu_us);
        let events = (runs.events + runs.lost) as f64 / requests as f64;
        table.row(vec![
            (*case).to_owned(),
            number(cpu, 2),
            number(spread_percent(&runs.cpu_us), 1),
            number(median(&runs.wall_us), 2),
            number(events, 2),
            runs.lost.to_string(),
        ]);
        report.line(&Line {
            bench: "request-cost",
            case,
            cpu_us_per_request: rounded(cpu),
            wall_us_per_request: rounded(median(&runs.wall_us)),
            events_per_request: rounded(events),
            lost_events: runs.lost,
            ratio_to_off: rounded(cpu / off),
        })?;
    }
    report.say(&format!("\n{}", table.text()));
    Ok(())
}

fn judge(off: &Runs, on: &Runs, requests: u64, report: &mut Report) {
    let events = (on.events + on.lost) as f64 / requests as f64;
    // Each request is at least one event and one span: less, and nothing was traced.
    report.gate("events missing to 2 a request", (2.0 - events).max(0.0), 0.0);
    let cost = median(&on.cpu_us) - median(&off.cpu_us);
    report.say(&format!("time         recording costs {cost:.2} us of CPU a request"));
    let what = format!("us of CPU for {EVENTS} events of a request");
    report.judge(&what, cost / events * EVENTS, Bound::Most(3.0), Kind::Cpu);
}
