//! An axum server with tower-http's spans and two tracepoints of its own, under wrk.

use anyhow::{Context, Result};
use owlet_e2e::{Program, Recording, have};
use std::process::Command;
use std::time::Duration;

#[test]
fn a_web_server_under_wrk_is_counted_exactly() -> Result<()> {
    if !have("wrk", "wrk") {
        return Ok(());
    }
    let mut server = Program::start(&mut Command::new(env!("CARGO_BIN_EXE_web")))?;
    let address = server.wait_for("listening on ")?;
    let recording =
        Recording::start(&["-p", &server.pid().to_string(), "-e", "web:*", "--size", "16M"])?;
    let url = format!("http://{address}/hello");
    let wrk = Command::new("wrk").args(["-t1", "-c4", "-d2s", &url]).output()?;
    anyhow::ensure!(wrk.status.success(), "wrk: {}", wrk.status);
    server.signal(libc::SIGTERM);
    let served: u64 = server.wait_for("served ")?.parse().context("a number")?;
    assert!(server.wait(Duration::from_secs(10))?.success());
    let recorded = recording.finish()?;
    assert!(recorded.last.contains("lost 0"), "{}", recorded.last);

    let stat = recorded.stat()?;
    for name in ["web:request", "web:response"] {
        let row =
            stat["by_event"].as_array().context("by_event")?.iter().find(|e| e["name"] == name);
        assert_eq!(row.context("a row")?["count"], served, "{name}: {stat}");
    }
    assert!(served > 1000, "wrk reached it: {served}");
    Ok(())
}
