//! LTTng-UST, when Debian's lttng-tools and liblttng-ust-dev are installed: a C program, compiled
//! against what is there, in a session of its own with rings big enough not to lose anything
//! (8 sub-buffers of 8 MiB a CPU, discard mode, per user).
//!
//! A session daemon that already runs is used; otherwise one is started and ended again.

use crate::harness::inner::die_with_parent;
use crate::harness::worker::{Started, Worker};
use crate::peers::program;
use anyhow::{Context, Result, bail};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A session with its daemon and its program. Dropping it ends all three.
pub(crate) struct Lttng {
    worker: Option<Worker>,
    session: Session,
}

impl Lttng {
    /// Builds and starts everything; the reason, where something is not installed.
    pub(crate) fn start() -> Result<std::result::Result<Self, String>> {
        if output("lttng", &["--version"]).is_err() || output("lttng-sessiond", &["-V"]).is_err() {
            return Ok(Err("lttng-tools is not installed".to_owned()));
        }
        let folder = tempfile::tempdir()?;
        let files =
            [("bench.c", include_str!("lttng/bench.c")), ("tp.h", include_str!("lttng/tp.h"))];
        if let Err(why) = program::build(folder.path(), &files, &["-llttng-ust", "-ldl"]) {
            return Ok(Err(format!("{why:#}")));
        }
        let session = Session::start(folder)?;
        let mut program = Command::new(session.folder.path().join("bench"));
        program.env("LTTNG_HOME", session.folder.path()).stderr(Stdio::null());
        let worker: Started = Worker::start_program(program).context("start the LTTng program")?;
        Ok(worker.map(|worker| Self { worker: Some(worker), session }))
    }

    /// The program.
    pub(crate) fn worker(&mut self) -> Option<&mut Worker> {
        self.worker.as_mut()
    }

    /// Ends the program and says how many events the session lost, as far as LTTng says.
    pub(crate) fn lost(&mut self) -> String {
        self.worker = None;
        let text = self.session.lttng(&["list", &self.session.name]).unwrap_or_default();
        let lost = text.lines().find_map(|l| l.trim().strip_prefix("Discarded events: "));
        lost.unwrap_or("unknown").to_owned()
    }
}

struct Session {
    daemon: Option<Child>,
    folder: TempDir,
    name: String,
}

impl Session {
    fn start(folder: TempDir) -> Result<Self> {
        let name = format!("owlet-bench-{}", std::process::id());
        let mut session = Self { daemon: None, folder, name };
        if session.lttng(&["list"]).is_err() {
            session.daemon = Some(session.start_daemon()?);
        }
        let name = session.name.clone();
        let output = format!("--output={}", session.folder.path().join("trace").display());
        session.lttng(&["create", &name, &output])?;
        let s = ["-s", name.as_str()];
        let channel = ["--subbuf-size=8M", "--num-subbuf=8", "--discard", "c"];
        session.lttng(&[&["enable-channel", "-u"], &s[..], &channel].concat())?;
        let events = "owlet_bench:on_1,owlet_bench:on_3";
        session.lttng(&[&["enable-event", "-u"], &s[..], &["-c", "c", events]].concat())?;
        session.lttng(&["start", &name])?;
        Ok(session)
    }

    fn start_daemon(&self) -> Result<Child> {
        let mut command = Command::new("lttng-sessiond");
        command.arg("--no-kernel").env("LTTNG_HOME", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec only one call, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                die_with_parent();
                Ok(())
            })
        };
        let mut daemon = command.spawn().context("start lttng-sessiond")?;
        let start = Instant::now();
        while self.lttng(&["list"]).is_err() {
            if start.elapsed() > Duration::from_secs(5) {
                end(&mut daemon);
                bail!("lttng-sessiond does not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(daemon)
    }

    /// Standard output of `lttng ARGS`.
    fn lttng(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("lttng");
        command.args(["--no-sessiond"]).args(args).env("LTTNG_HOME", self.folder.path());
        let output = command.stdin(Stdio::null()).output().context("run lttng")?;
        if !output.status.success() {
            bail!("lttng {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.lttng(&["destroy", "--no-wait", &self.name]);
        if let Some(daemon) = &mut self.daemon {
            end(daemon);
        }
    }
}

/// Asks the daemon to end, which it does not always do, then makes it.
fn end(daemon: &mut Child) {
    // SAFETY: takes numbers; the child has not been waited for, so the pid is its own.
    unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) };
    let start = Instant::now();
    while matches!(daemon.try_wait(), Ok(None)) {
        if start.elapsed() > Duration::from_secs(5) {
            let _ = daemon.kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn output(program: &str, args: &[&str]) -> std::io::Result<Output> {
    Command::new(program).args(args).stdin(Stdio::null()).output()
}
