//! The process that watches: starts one to be tortured for each flavour, stops its threads one at a time
//! at whatever instruction they are, and gives the verdict, also over one that died.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;

use super::Options;
use super::report::Report;
use crate::flavour::Name;
use crate::rng::Rng;

/// More than a run may take in excess of its seconds.
const GRACE: Duration = Duration::from_secs(30);

/// The whole answer.
#[derive(Serialize)]
struct Verdict {
    held: bool,
    seed: u64,
    seconds: u64,
    flavours: Vec<Report>,
}

/// Tortures each flavour in turn.
pub(super) fn run(options: &Options) -> anyhow::Result<bool> {
    let flavours = if options.flavours.is_empty() { Name::REAL } else { &options.flavours };
    let mut reports = Vec::new();
    for flavour in flavours {
        let report = torture_one(options, *flavour)?;
        if !options.json {
            say!("{report}");
        }
        reports.push(report);
    }
    let held = reports.iter().all(|report| report.held);
    if options.json {
        let (seed, seconds) = (options.seed, options.seconds);
        let verdict = Verdict { held, seed, seconds, flavours: reports };
        say!("{}", serde_json::to_string(&verdict)?);
    } else {
        let broken: Vec<&str> =
            reports.iter().filter(|r| !r.held).map(|r| r.flavour.as_str()).collect();
        say!(
            "torture: {} flavours={} seconds={} seed={} broken={broken:?}",
            if held { "PASS" } else { "FAIL" },
            reports.len(),
            options.seconds,
            options.seed
        );
    }
    Ok(held)
}

fn torture_one(options: &Options, flavour: Name) -> anyhow::Result<Report> {
    let own = std::env::current_exe().context("where am I?")?;
    let mut child = Command::new(own)
        .args(std::env::args_os().skip(1))
        .args(["--child", &flavour.text()])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process to be tortured")?;
    let over = AtomicBool::new(false);
    let stops = AtomicU64::new(0);
    let (text, status) = std::thread::scope(|s| {
        if !options.no_stops && !options.sprint {
            let (pid, over, stops) = (child.id(), &over, &stops);
            let rng = Rng::new(options.seed, 1000);
            s.spawn(move || stop_threads(pid, rng, over, stops));
        }
        let ended = wait(&mut child, Duration::from_secs(options.seconds) + GRACE);
        over.store(true, Ordering::Relaxed);
        ended
    })?;
    let parsed = text.lines().last().and_then(|line| serde_json::from_str::<Report>(line).ok());
    let mut report = parsed.unwrap_or_else(|| Report {
        flavour: flavour.text(),
        seconds: options.seconds,
        seed: options.seed,
        died: Some(status.to_string()),
        ..Report::default()
    });
    if report.held && !status.success() {
        report.held = false;
        report.died = Some(status.to_string());
    }
    report.stops = stops.load(Ordering::Relaxed);
    Ok(report)
}

/// What the child printed, and how it ended; one that does not end is killed.
pub(crate) fn wait(
    child: &mut Child,
    limit: Duration,
) -> anyhow::Result<(String, std::process::ExitStatus)> {
    let mut output = child.stdout.take().context("no pipe")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = output.read_to_string(&mut text);
        text
    });
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("wait")? {
            break status;
        }
        if begun.elapsed() > limit {
            child.kill().context("kill")?;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Its forked children may hold the pipe's other end for some seconds.
    Ok((reader.join().unwrap_or_default(), status))
}

/// Stops threads of `pid`, one at a time, until `over`.
fn stop_threads(pid: u32, mut rng: Rng, over: &AtomicBool, stops: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5 + rng.below(30)));
        let time = Duration::from_micros(rng.below(10) * rng.below(3000));
        if let Some(tid) = random_thread(pid, &mut rng)
            && stop_one(tid, time)
        {
            stops.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Any thread but the first, whose end is the process's.
fn random_thread(pid: u32, rng: &mut Rng) -> Option<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let tids: Vec<i32> = tasks
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|tid| u32::try_from(*tid) != Ok(pid))
        .collect();
    let at = rng.below(tids.len() as u64) as usize;
    tids.get(at).copied()
}

/// Stops a thread of a process of ours for some time, wherever it is; false if it cannot be done.
fn stop_one(tid: i32, time: Duration) -> bool {
    let ptrace = |request: libc::c_uint, data: i32| {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: none of the requests used here takes a pointer.
        unsafe { libc::ptrace(request, tid, nothing, data) }
    };
    if ptrace(libc::PTRACE_SEIZE, 0) != 0 {
        return false;
    }
    let mut status = 0;
    let mut wait = || {
        // SAFETY: `status` is a valid int.
        let answer = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        (answer == tid && libc::WIFSTOPPED(status)).then_some(status)
    };
    let mut signal = 0;
    if ptrace(libc::PTRACE_INTERRUPT, 0) == 0 {
        let Some(status) = wait() else { return false };
        std::thread::sleep(time);
        // Stopped on its way into a signal's handler: the signal goes on with it.
        let event = status >> 16;
        signal = if event == 0 { libc::WSTOPSIG(status) } else { 0 };
    }
    if ptrace(libc::PTRACE_DETACH, signal) != 0 {
        // It was killed meanwhile, and is ours to bury.
        wait();
        return false;
    }
    true
}
