//! The rings' torture, for as long as you like.
//!
//! ```text
//! ring_torture single-event [--rounds N] [--notifier US] [--delay N] [--seed N] [--portable]
//! ring_torture kill [--seconds N] [--writers N] [--seed N] [--portable]
//! ```
//!
//! Prints parameters, counts and one verdict line; exits with 1 if the verdict is bad.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{kill, single_event};
use owlet_ring::Clock;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let value = args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
        value.map_or(Some(default), |value| value.parse().ok()).unwrap_or(default)
    };
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let clock = if has("--portable") { Clock::Monotonic } else { Clock::Tsc };
    println!("backend={:?} ({})", owlet_percpu::backend(), owlet_percpu::backend_why());
    let verdict = match args.first().map(String::as_str) {
        Some("single-event") => {
            let options = single_event::Options {
                rounds: number("--rounds", 1_000_000),
                notifier: has("--notifier").then(|| number("--notifier", 2000) as u32),
                delay: number("--delay", 1500),
                clock,
                seed: number("--seed", 1),
                stop_early: true,
            };
            println!("{options:?}");
            let report = single_event::run(&options);
            println!("{report:?}");
            report.verdict()
        }
        Some("kill") => {
            let options = kill::Options {
                writers: number("--writers", 4) as usize,
                time: Duration::from_secs(number("--seconds", 10)),
                every: Duration::from_millis(3),
                clock,
                seed: number("--seed", 1),
            };
            println!("{options:?}");
            let report = kill::run(&options);
            println!("{report:?}");
            report.verdict()
        }
        _ => Err("usage: ring_torture single-event|kill [options]".into()),
    };
    match verdict {
        Ok(()) => {
            println!("verdict: good");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("verdict: BAD: {why}");
            ExitCode::FAILURE
        }
    }
}
