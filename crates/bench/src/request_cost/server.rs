//! The server, its load, and the recorder beside it.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The programs of this build that take part.
pub(super) struct Programs {
    server: PathBuf,
    owlet: PathBuf,
}

impl Programs {
    /// Finds them beside this program, or has cargo build them.
    pub(super) fn find() -> Result<Self> {
        ensure!(
            Command::new("redis-benchmark").arg("--version").output().is_ok(),
            "redis-benchmark is absent\nhint: apt-get install redis-tools"
        );
        let this = std::env::current_exe()?;
        let folder = this.parent().context("the folder of this program")?;
        let (server, owlet) = (folder.join("mini-redis"), folder.join("owlet"));
        if !server.exists() || !owlet.exists() {
            build(folder)?;
        }
        Ok(Self { server, owlet })
    }
}

fn build(folder: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "-p", "owlet-e2e", "--bin", "mini-redis"]);
    command.args(["-p", "owlet-cli", "--bin", "owlet"]);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.env("CARGO_TARGET_DIR", folder.parent().context("the target folder")?);
    let status = command.stdout(Stdio::null()).status().context("run cargo")?;
    ensure!(status.success(), "the server and the owlet command do not build");
    Ok(())
}

/// mini-redis. Killed when dropped.
pub(super) struct Server {
    child: Child,
    clock: libc::clockid_t,
    port: String,
    /// Kept open: what it prints must go somewhere.
    _output: BufReader<ChildStdout>,
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    /// CPU time of the server.
    pub(super) cpu: Duration,
    /// Time on the wall.
    pub(super) wall: Duration,
}

impl Server {
    /// Starts it on a port of the kernel's choice.
    pub(super) fn start(programs: &Programs, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(&programs.server);
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().context("its output")?);
        output.read_line(&mut line)?;
        let port = line.trim_end().rsplit_once(':').map(|(_, port)| port.to_owned());
        let mut clock = 0;
        // SAFETY: the pointer is to a live local.
        let error = unsafe { libc::clock_getcpuclockid(child.id().cast_signed(), &raw mut clock) };
        let server = Self { child, clock, port: port.unwrap_or_default(), _output: output };
        ensure!(!server.port.is_empty(), "mini-redis says {line:?}");
        ensure!(error == 0, "no CPU clock of the server: error {error}");
        Ok(server)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it `requests` and says what they took.
    pub(super) fn serve(&self, requests: u64) -> Result<Spent> {
        let mut load = Command::new("redis-benchmark");
        load.args(["-h", "127.0.0.1", "-p", &self.port, "-c", "8", "-q", "-r", "1000", "-n"]);
        load.arg(requests.to_string()).args(["set", "key:__rand_int__", "some value"]);
        let (start, cpu) = (Instant::now(), self.cpu());
        let output = load.output().context("run redis-benchmark")?;
        let spent = Spent { cpu: self.cpu() - cpu, wall: start.elapsed() };
        ensure!(output.status.success(), "redis-benchmark: {}", output.status);
        Ok(spent)
    }

    fn cpu(&self) -> Duration {
        Duration::from_nanos(crate::harness::serve::clock(self.clock))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `owlet record -p PID` of everything.
pub(super) struct Recording {
    child: Child,
    messages: BufReader<ChildStderr>,
    _folder: TempDir,
}

impl Recording {
    /// Returns when every point is on.
    pub(super) fn start(programs: &Programs, pid: u32) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(&programs.owlet);
        command.args(["record", "--size", "8M", "-p", &pid.to_string(), "-o"]);
        command.arg(folder.path().join("trace"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start owlet record")?;
        let messages = BufReader::new(child.stderr.take().context("its messages")?);
        let mut recording = Self { child, messages, _folder: folder };
        recording.line("recording ")?;
        Ok(recording)
    }

    /// Ends it as Ctrl-C does; events recorded and lost.
    pub(super) fn stop(mut self) -> Result<(u64, u64)> {
        // SAFETY: the pid is our child's, which has not been waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGINT) };
        let last = self.line("recorded ")?;
        let status = self.child.wait()?;
        ensure!(status.success(), "owlet record: {status}: {last}");
        let numbers: Vec<u64> = last
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect();
        match numbers.as_slice() {
            [events, lost, ..] => Ok((*events, *lost)),
            _ => bail!("owlet record says {last:?}"),
        }
    }

    /// The next line that starts so.
    fn line(&mut self, start: &str) -> Result<String> {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if self.messages.read_line(&mut line)? == 0 {
                bail!("owlet record ended: {said}");
            }
            if line.starts_with(start) {
                return Ok(line);
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
