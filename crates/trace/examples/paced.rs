//! Emits exactly N events at a steady rate and exits: something to record.
//!
//! `cargo run --release -p owlet --example paced -- --events N --rate R --threads T`
//!
//! Threads share the events as evenly as they can; `seq` counts from 0 over all threads, `thread` is
//! the thread's number. `--rate 0` is as fast as possible.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

owlet::tracepoint! {
    /// What this example does.
    pub mod demo {
        /// One event of the steady stream.
        #[level(Info)]
        tick(seq: u64, thread: u32, note: &str);
    }
}

struct Options {
    events: u64,
    rate: u64,
    threads: u64,
    wait_for_session: f64,
    hold: f64,
    quiet: bool,
}

const HELP: &str = "\
Emits exactly N events demo:tick(seq: u64, thread: u32, note: &str) and exits.

Usage: paced [OPTIONS]

  --events N              events in all [default: 100000]
  --rate R                events per second in all, at most; 0 = as fast as possible [default: 50000]
  --threads T             threads that emit them [default: 1]
  --wait-for-session S    wait up to S seconds until somebody records, before the first event
  --hold S                stay S seconds after the last event
  --quiet                 print nothing
  --help                  print this";

fn parse() -> Result<Option<Options>, String> {
    let mut options = Options {
        events: 100_000,
        rate: 50_000,
        threads: 1,
        wait_for_session: 0.0,
        hold: 0.0,
        quiet: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(argument) = args.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value =
            || inline.clone().or_else(|| args.next()).ok_or(format!("{name} needs a value"));
        let bad = |value: &str| format!("{value:?} is no value for {name}");
        let number = |value: String| value.parse().map_err(|_| bad(&value));
        let seconds = |value: String| {
            let parsed: f64 = value.parse().map_err(|_| bad(&value))?;
            if parsed.is_finite() && parsed >= 0.0 { Ok(parsed) } else { Err(bad(&value)) }
        };
        match name.as_str() {
            "--events" => options.events = number(value()?)?,
            "--rate" => options.rate = number(value()?)?,
            "--threads" => options.threads = number(value()?)?.clamp(1, 4096),
            "--wait-for-session" => options.wait_for_session = seconds(value()?)?,
            "--hold" => options.hold = seconds(value()?)?,
            "--quiet" => options.quiet = true,
            "--help" | "-h" => return Ok(None),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Some(options))
}

/// How late a thread may be and still catch up. What it was held up longer (by a busy machine, a stopped
/// process) is forgiven: to catch up with it would be a burst as fast as the processor allows, which is
/// no steady rate and fills any ring.
const CATCH_UP: Duration = Duration::from_millis(20);

/// One thread's share: events `from..to` of the whole.
fn emit(thread: u32, from: u64, to: u64, period: Duration, emitted: &AtomicU64) {
    let mut start = Instant::now();
    for (done, seq) in (from..to).enumerate() {
        if !period.is_zero() {
            // Sleeps in steps of a millisecond or more: the pace holds on average.
            let due = period * u32::try_from(done).unwrap_or(u32::MAX);
            let now = start.elapsed();
            if due >= now + Duration::from_millis(1) {
                std::thread::sleep(due - now);
            } else {
                start += now.saturating_sub(due + CATCH_UP);
            }
        }
        owlet::trace!(demo::tick, seq, thread, NOTES[(seq % 4) as usize]);
    }
    emitted.fetch_add(to - from, Ordering::Relaxed);
}

const NOTES: [&str; 4] = ["steady", "", "a note", "a somewhat longer note"];

fn main() -> ExitCode {
    let options = match parse() {
        Ok(Some(options)) => options,
        Ok(None) => {
            // Somebody who closes the pipe has read enough.
            let _ = writeln!(std::io::stdout(), "{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("paced: {message}\nhint: see --help");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = owlet::init() {
        eprintln!("paced: {error}");
    }
    if options.wait_for_session > 0.0 && !options.quiet {
        let _ = writeln!(std::io::stdout(), "waiting for a session");
    }
    let until = Instant::now() + Duration::from_secs_f64(options.wait_for_session);
    while !owlet::enabled!(demo::tick) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let emitted = AtomicU64::new(0);
    let period = match options.rate {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(options.threads as f64 / rate as f64),
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..options.threads {
            let share = |n: u64| {
                (u128::from(options.events) * u128::from(n) / u128::from(options.threads)) as u64
            };
            let (from, to, emitted) = (share(thread), share(thread + 1), &emitted);
            let named = std::thread::Builder::new().name(format!("paced-{thread}"));
            let run = move || emit(thread as u32, from, to, period, emitted);
            if let Err(error) = named.spawn_scoped(scope, run) {
                eprintln!("paced: cannot start thread {thread}: {error}");
            }
        }
    });
    let (emitted, took) = (emitted.into_inner(), start.elapsed());
    if !options.quiet {
        let _ =
            writeln!(std::io::stdout(), "emitted {emitted} events in {:.3} s", took.as_secs_f64());
    }
    std::thread::sleep(Duration::from_secs_f64(options.hold));
    if emitted == options.events { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
