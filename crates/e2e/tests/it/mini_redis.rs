//! mini-redis of the registry (its dependencies use tracing-subscriber 0.2), attached by pid while
//! redis-benchmark drives it.

use anyhow::{Context, Result};
use owlet_e2e::{Program, Recorded, Recording, babeltrace, have};
use std::collections::BTreeMap;
use std::process::Command;

const REQUESTS: u64 = 5_000;

fn start(args: &[&str]) -> Result<(Program, String)> {
    let mut server = Program::start(Command::new(env!("CARGO_BIN_EXE_mini-redis")).args(args))?;
    let address = server.wait_for("listening on ")?;
    let port = address.rsplit_once(':').context("an address")?.1.to_owned();
    Ok((server, port))
}

fn drive(port: &str) -> Result<()> {
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", port, "-c", "8", "-q", "-n", &REQUESTS.to_string()])
        .args(["-r", "1000", "set", "key:__rand_int__", "some value"])
        .output()?;
    anyhow::ensure!(output.status.success(), "redis-benchmark: {}", output.status);
    Ok(())
}

fn counts(recorded: &Recorded) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for event in recorded.events()? {
        let (name, kind) = (event["event"].as_str(), event["kind"].as_str());
        let key = format!("{} {}", name.context("a name")?, kind.context("a kind")?);
        *counts.entry(key).or_default() += 1;
    }
    Ok(counts)
}

/// Each request is one `debug!` in the connection's loop, one in the command, and one span; nothing
/// is lost, before, between and after nothing is recorded, and babeltrace2 agrees.
#[test]
fn every_request_is_there_and_nothing_else() -> Result<()> {
    if !have("redis-benchmark", "redis-tools") {
        return Ok(());
    }
    let (server, port) = start(&[])?;
    drive(&port)?;
    let recording =
        Recording::start(&["-p", &server.pid().to_string(), "-e", "mini_redis::cmd::set*"])?;
    drive(&port)?;
    let recorded = recording.stop()?;
    drive(&port)?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);

    let counts = counts(&recorded)?;
    let of = |end: &str| -> u64 {
        counts.iter().filter(|(name, _)| name.ends_with(end)).map(|(_, count)| count).sum()
    };
    assert!(counts.keys().all(|name| name.starts_with("mini_redis::cmd::set")), "{counts:?}");
    let events: u64 = counts.iter().filter(|(name, _)| name.contains(".rs:")).map(|(_, n)| n).sum();
    assert_eq!(events, REQUESTS, "one debug! a request: {counts:?}");
    assert_eq!(of(":apply span_new"), REQUESTS, "a span a request: {counts:?}");
    assert_eq!(of(":apply span_close"), REQUESTS, "which ends: {counts:?}");
    assert_eq!(
        of(":apply span_enter"),
        of(":apply span_exit"),
        "and is left when entered: {counts:?}"
    );
    assert!(of(":apply span_enter") >= REQUESTS, "{counts:?}");

    if have("babeltrace2", "babeltrace2") {
        let lines = babeltrace(&recorded.path())?;
        let lines = lines.iter().filter(|line| line.contains(" mini_redis::cmd::set")).count();
        assert_eq!(lines as u64, counts.values().sum::<u64>());
    }
    Ok(())
}

/// The same with the server's own tracing-subscriber 0.2 in place: both see every event.
#[test]
fn works_beside_the_servers_own_subscriber() -> Result<()> {
    if !have("redis-benchmark", "redis-tools") {
        return Ok(());
    }
    let (server, port) = start(&["--log"])?;
    let recording = Recording::start(&["-p", &server.pid().to_string(), "-e", "mini_redis::*"])?;
    drive(&port)?;
    let recorded = recording.stop()?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);
    let counts = counts(&recorded)?;
    let set: u64 =
        counts.iter().filter(|(name, _)| name.contains("cmd::set:set.rs:")).map(|(_, n)| n).sum();
    assert_eq!(set, REQUESTS, "{counts:?}");
    Ok(())
}

/// A span's duration and count are in `stat`; Perfetto's file is written.
#[test]
fn statistics_and_export_of_a_recording() -> Result<()> {
    if !have("redis-benchmark", "redis-tools") {
        return Ok(());
    }
    let (server, port) = start(&[])?;
    let recording = Recording::start(&["-p", &server.pid().to_string()])?;
    drive(&port)?;
    let recorded = recording.stop()?;
    let stat = recorded.stat()?;
    let spans = stat["by_span"].as_array().context("by_span")?;
    let apply = spans
        .iter()
        .find(|span| span["name"].as_str().is_some_and(|name| name.ends_with("set:apply")))
        .with_context(|| format!("a span apply in {stat}"))?;
    assert_eq!(apply["ended"], REQUESTS);
    let file = recorded.path().with_file_name("perfetto");
    let export = owlet_e2e::owlet()?
        .args(["export", "--perfetto"])
        .arg(&file)
        .arg(recorded.path())
        .output()?;
    anyhow::ensure!(export.status.success(), "export: {}", export.status);
    assert!(std::fs::metadata(&file)?.len() > REQUESTS * 10);
    Ok(())
}
