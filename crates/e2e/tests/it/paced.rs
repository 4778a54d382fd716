//! Exact counts at a paced rate (L1), from one process and from several in one session.

use anyhow::Result;
use owlet_e2e::{Program, Recording, babeltrace, have, paced};
use std::collections::BTreeSet;
use std::time::Duration;

/// Started, and ready to be recorded.
fn start(events: u64, rate: u64, threads: u32) -> Result<Program> {
    let mut program =
        Program::start(paced()?.args(["--wait-for-session", "20", "--hold", "0.2"]).args([
            "--events",
            &events.to_string(),
            "--rate",
            &rate.to_string(),
            "--threads",
            &threads.to_string(),
        ]))?;
    program.wait_for("waiting for a session")?;
    Ok(program)
}

/// Rings for a second of the load and more: a busy machine may keep the recorder waiting that long.
fn record(program: &Program) -> Result<Recording> {
    Recording::start(&["-p", &program.pid().to_string(), "-e", "demo:*", "--size", "4M"])
}

/// L1: 50 K events a second from two threads, sequence numbers, a reader that sleeps and wakes: all
/// of them, each once, and no loss; babeltrace2 sees the same.
#[test]
fn l1_a_paced_load_is_recorded_whole() -> Result<()> {
    let events = 100_000;
    let mut program = start(events, 50_000, 2)?;
    let recording = record(&program)?;
    let recorded = recording.finish()?;
    assert!(program.wait(Duration::from_secs(60))?.success());
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);

    let mut seen = BTreeSet::new();
    let mut last_time = String::new();
    for event in recorded.events()? {
        assert_eq!(event["event"], "demo:tick");
        let time = event["time_ns"].to_string();
        assert!((time.len(), &time) >= (last_time.len(), &last_time), "time goes back");
        last_time = time;
        assert!(seen.insert(event["fields"]["seq"].as_u64()), "twice: {event}");
    }
    assert_eq!(seen.len() as u64, events);
    assert_eq!(seen.first(), Some(&Some(0)));
    assert_eq!(seen.last(), Some(&Some(events - 1)));

    if have("babeltrace2", "babeltrace2") {
        let ticks = babeltrace(&recorded.path())?;
        let ticks = ticks.iter().filter(|line| line.contains(" demo:tick: "));
        assert_eq!(ticks.count() as u64, events);
    }
    Ok(())
}

/// L1: a program that was held up goes on at its rate. To catch up would be a burst, which is lost where it
/// is larger than the ring, and is no fault of the recorder's.
#[test]
fn l1_a_paced_load_that_was_held_up_is_recorded_whole() -> Result<()> {
    let events = 100_000;
    let mut program = start(events, 50_000, 2)?;
    let recording = record(&program)?;
    std::thread::sleep(Duration::from_millis(500));
    program.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(1000));
    program.signal(libc::SIGCONT);
    let recorded = recording.finish()?;
    assert!(program.wait(Duration::from_secs(60))?.success());
    assert_eq!(recorded.last.split(" in ").next(), Some("recorded 100000 events, lost 0"));
    // What is due in 10 ms, and in the 20 ms that a thread may catch up with, is 1,500 events.
    let events = recorded.events()?;
    let times: Vec<_> = events.iter().filter_map(|event| event["time_ns"].as_u64()).collect();
    let shortest = times.windows(2000).map(|times| times[1999] - times[0]).min();
    assert!(shortest > Some(5_000_000), "2,000 events within {shortest:?} ns");
    Ok(())
}

/// Three processes in one session share the rings; every one is complete.
#[test]
fn several_processes_share_one_session() -> Result<()> {
    let events = 20_000;
    let mut programs =
        [start(events, 20_000, 1)?, start(events, 20_000, 2)?, start(events, 20_000, 4)?];
    let mut args = vec!["-e".to_owned(), "demo:tick".to_owned()];
    for program in &programs {
        args.extend(["-p".to_owned(), program.pid().to_string()]);
    }
    let recorded = Recording::start(&args)?.finish()?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);
    let seen: Vec<_> = recorded.events()?;
    for program in &mut programs {
        assert!(program.wait(Duration::from_secs(60))?.success());
        let own: BTreeSet<_> = seen
            .iter()
            .filter(|event| event["pid"] == program.pid())
            .map(|event| event["fields"]["seq"].as_u64())
            .collect();
        assert_eq!(own.len() as u64, events);
    }
    assert_eq!(seen.len() as u64, 3 * events);
    Ok(())
}

/// 2,000 short threads neither grow the rings nor go unnamed.
#[test]
fn many_short_threads_are_all_named() -> Result<()> {
    let (events, threads) = (20_000, 2_000);
    let program = start(events, 20_000, threads)?;
    let recorded = Recording::start(&["-p", &program.pid().to_string()])?.finish()?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);
    let seen = recorded.events()?;
    assert_eq!(seen.len() as u64, events);
    let tids: BTreeSet<_> = seen.iter().map(|event| event["tid"].as_u64()).collect();
    assert_eq!(tids.len(), threads as usize);
    assert!(seen.iter().all(|event| event["comm"].as_str().is_some_and(|name| !name.is_empty())));
    Ok(())
}
