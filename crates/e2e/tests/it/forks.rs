//! A session of a prefork server: children and grandchildren record under their own pids.

use anyhow::Result;
use owlet_e2e::{Program, Recording};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

#[test]
fn forked_workers_record_under_their_own_pids() -> Result<()> {
    let (workers, events) = (3, 5_000);
    let mut server = Program::start(
        Command::new(env!("CARGO_BIN_EXE_prefork")).args([workers.to_string(), events.to_string()]),
    )?;
    server.wait_for("ready")?;
    let recording = Recording::start(&["-p", &server.pid().to_string(), "-e", "prefork:*"])?;
    server.go()?;
    server.wait_for("done")?;
    assert!(server.wait(Duration::from_secs(20))?.success());
    let recorded = recording.finish()?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);

    let mut by_worker: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
    for event in recorded.events()? {
        let worker = event["fields"]["worker"].as_u64();
        *by_worker.entry(worker).or_default().entry(event["pid"].as_u64()).or_default() += 1;
    }
    // The workers, one grandchild and the parent.
    assert_eq!(by_worker.len() as u64, workers + 2);
    let mut pids = std::collections::BTreeSet::new();
    for pid_counts in by_worker.values() {
        assert_eq!(pid_counts.len(), 1, "one pid for each worker: {by_worker:?}");
        pids.extend(pid_counts.keys().copied());
        assert!(pid_counts.values().all(|&count| count == events), "{by_worker:?}");
    }
    assert_eq!(pids.len() as u64, workers + 2, "each its own pid");
    Ok(())
}
