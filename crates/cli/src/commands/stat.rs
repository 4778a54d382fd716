//! `owlet stat DIR`: counts, rates, span latencies, losses.

use super::summary::{causes, loss_hints, problems, read_status};
use crate::args::StatArgs;
use crate::error::{Failure, Result};
use crate::exit::Exit;
use crate::out::Out;
use crate::recorder::sink::store_failure;
use crate::text::{count, escape, plural, program};
use crate::units::rate;
use owlet_analyze::stats::{Latency, SpanStats, Stats};
use owlet_analyze::{Trace, json};

/// Threads shown; the rest is summed up.
const THREADS: usize = 20;

/// Runs the subcommand.
pub(crate) fn run(args: &StatArgs) -> Result<Exit> {
    let trace = Trace::open(&args.dir).map_err(store_failure)?;
    let mut events = trace.events().map_err(store_failure)?;
    let stats = Stats::collect(&trace, &mut events);
    let mut out = Out::new();
    if args.json.on {
        let line = json::to_string(&stats).map_err(|error| {
            Failure::new(format!("cannot write the statistics as JSON: {error}"))
        })?;
        out.line(format_args!("{line}"))?;
    } else {
        text(&mut out, &trace, &stats)?;
    }
    out.finish()?;
    problems(&trace, stats.problems.iter());
    loss_hints(&trace);
    Ok(read_status(stats.damaged))
}

fn text(out: &mut Out, trace: &Trace, stats: &Stats) -> Result<()> {
    let seconds = stats.end_ns.saturating_sub(stats.begin_ns) as f64 / 1e9;
    let lost = match stats.lost {
        0 => "lost 0".to_string(),
        lost => format!("lost {} ({})", count(lost), causes(trace)),
    };
    let host = escape(stats.hostname.as_bytes());
    out.line(format_args!(
        "{} in {seconds:.3} s on {host}, {lost}",
        plural(stats.events, "event")
    ))?;
    events(out, stats)?;
    spans(out, &stats.by_span)?;
    threads(out, trace, stats)
}

fn events(out: &mut Out, stats: &Stats) -> Result<()> {
    if stats.by_event.is_empty() {
        return Ok(());
    }
    out.line(format_args!("\n{:>14} {:>10}  {:<5} EVENT", "COUNT", "PER SECOND", "LEVEL"))?;
    for event in &stats.by_event {
        let (n, per_second, name) =
            (count(event.count), rate(event.rate_per_s), escape(event.name.as_bytes()));
        let kind = if event.kind == "event" { String::new() } else { format!(" [{}]", event.kind) };
        out.line(format_args!("{n:>14} {per_second:>10}  {:<5} {name}{kind}", event.level))?;
    }
    Ok(())
}

fn spans(out: &mut Out, spans: &[SpanStats]) -> Result<()> {
    if spans.is_empty() {
        return Ok(());
    }
    out.line(format_args!(
        "\n{:>14} {:>9} {:>9} {:>9} {:>9} {:>9}  SPAN",
        "ENDED", "P50", "P90", "P99", "P99.9", "MAX"
    ))?;
    for span in spans {
        let open =
            if span.open > 0 { format!(" ({} open)", count(span.open)) } else { String::new() };
        let name = escape(span.name.as_bytes());
        out.line(format_args!(
            "{:>14} {}  {name}{open}",
            count(span.ended),
            latencies(&span.total)
        ))?;
    }
    Ok(())
}

fn latencies(latency: &Latency) -> String {
    let all = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
    let one = |ns: u64| if latency.count == 0 { "-".into() } else { duration(ns) };
    all.map(|ns| format!("{:>9}", one(ns))).join(" ")
}

fn threads(out: &mut Out, trace: &Trace, stats: &Stats) -> Result<()> {
    if stats.by_thread.is_empty() {
        return Ok(());
    }
    out.line(format_args!("\n{:>14} {:>8} {:>8}  THREAD", "EVENTS", "PID", "TID"))?;
    let mut threads: Vec<_> = stats.by_thread.iter().collect();
    threads.sort_by_key(|thread| std::cmp::Reverse(thread.events));
    for thread in threads.iter().take(THREADS) {
        // From the trace, as the report shows them: the statistics are text for JSON.
        let exe = trace.process(thread.pid).map_or(&[][..], |process| &process.exe);
        let (exe, comm) = (program(exe), escape(trace.comm(thread.pid, thread.tid)));
        let (n, pid, tid) = (count(thread.events), thread.pid, thread.tid);
        out.line(format_args!("{n:>14} {pid:>8} {tid:>8}  {comm} of {exe}"))?;
    }
    if let Some(more) = threads.get(THREADS..).filter(|more| !more.is_empty()) {
        let events = more.iter().map(|thread| thread.events).sum();
        let of = plural(more.len() as u64, "more thread");
        out.line(format_args!("{:>14} {:>8} {:>8}  in {of}", count(events), "", ""))?;
    }
    Ok(())
}

/// `950ns`, `12.3us`, `4.56ms`, `1.20s`.
fn duration(ns: u64) -> String {
    let ns_f = ns as f64;
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns_f / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}ms", ns_f / 1e6),
        _ => format!("{:.2}s", ns_f / 1e9),
    }
}
