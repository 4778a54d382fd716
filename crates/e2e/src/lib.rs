//! Starting programs, recording them with the `owlet` command, and reading what it wrote.
//!
//! The programs are the binaries of this package and Debian's load generators. A test that drives a
//! package that is absent says so and passes, unless `OWLET_REQUIRE_TOOLS=1`.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The folder of this build's programs.
fn bin_dir() -> Result<PathBuf> {
    let mut dir = std::env::current_exe().context("path of the test")?;
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    Ok(dir)
}

/// The `owlet` command of this build.
///
/// # Errors
/// When it was not built.
pub fn owlet() -> Result<Command> {
    program("owlet", "owlet-cli")
}

/// The example `paced` of this build.
///
/// # Errors
/// When it was not built.
pub fn paced() -> Result<Command> {
    program("examples/paced", "owlet --example paced")
}

fn program(name: &str, package: &str) -> Result<Command> {
    let path = bin_dir()?.join(name);
    ensure!(
        path.exists(),
        "{} does not exist\nhint: cargo build --release -p {package}",
        path.display()
    );
    Ok(Command::new(path))
}

/// Whether `tool` of Debian's package `package` can be used; `false` means: skip, it was said.
///
/// # Panics
/// When it is absent and `OWLET_REQUIRE_TOOLS=1`.
#[must_use]
pub fn have(tool: &str, package: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|dir| dir.join(tool).exists()) {
        return true;
    }
    let required = std::env::var("OWLET_REQUIRE_TOOLS").is_ok_and(|value| value == "1");
    assert!(!required, "{tool} is absent: apt-get install {package}");
    eprintln!("skipped: {tool} is absent (apt-get install {package})");
    false
}

/// A program under test. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    /// Starts `command` with its output to us.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let out = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, out })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads lines until one starts with `prefix`; returns what follows it.
    ///
    /// # Errors
    /// When its output ends before.
    pub fn wait_for(&mut self, prefix: &str) -> Result<String> {
        let mut line = String::new();
        loop {
            line.clear();
            ensure!(self.out.read_line(&mut line)? > 0, "its output ended before {prefix:?}");
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// When it does not read.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        use std::io::Write;
        let input = self.child.stdin.as_mut().context("its input")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// Ends its standard input, after a line break.
    ///
    /// # Errors
    /// When it does not read.
    pub fn go(&mut self) -> Result<()> {
        use std::io::Write;
        let mut input = self.child.stdin.take().context("its input")?;
        Ok(input.write_all(b"\n")?)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the pid is our child's, which has not been waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When it does not within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < end, "still running after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its CPU time so far, user and system.
    ///
    /// # Errors
    /// When /proc does not tell.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let (_, rest) = stat.rsplit_once(')').context("/proc/PID/stat")?;
        let ticks: u64 =
            rest.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        // USER_HZ is 100 on every Linux that Rust runs on.
        Ok(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A recording in progress: `owlet record` as a child.
#[derive(Debug)]
pub struct Recording {
    child: Option<Child>,
    dir: tempfile::TempDir,
}

impl Recording {
    /// Starts `owlet record ARGS` into a fresh folder and waits until every point is on.
    ///
    /// # Errors
    /// When it ends instead, with what it said.
    pub fn start<A: AsRef<OsStr>>(args: &[A]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut child = owlet()?
            .arg("record")
            .arg("-o")
            .arg(dir.path().join("trace"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut messages = BufReader::new(child.stderr.take().context("its messages")?);
        let mut said = String::new();
        loop {
            let before = said.len();
            if messages.read_line(&mut said)? == 0 {
                bail!("the recording ended: {said}");
            }
            if said[before..].starts_with("recording ") {
                break;
            }
        }
        child.stderr = Some(messages.into_inner());
        Ok(Self { child: Some(child), dir })
    }

    /// The recorder's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Ends it as Ctrl-C does.
    ///
    /// # Errors
    /// When it fails.
    pub fn stop(self) -> Result<Recorded> {
        // SAFETY: the pid is our child's, which has not been waited for.
        unsafe { libc::kill(self.pid().cast_signed(), libc::SIGINT) };
        self.finish()
    }

    /// Waits until it ends by itself, since what it records has ended.
    ///
    /// # Errors
    /// When it fails.
    pub fn finish(mut self) -> Result<Recorded> {
        let output = self.child.take().context("a recording")?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "owlet record: {}: {said}", output.status);
        let last = said.lines().last().unwrap_or_default().to_owned();
        Ok(Recorded { dir: self.dir, last })
    }
}

/// A finished recording. Its folder goes when it is dropped.
#[derive(Debug)]
pub struct Recorded {
    dir: tempfile::TempDir,
    /// The last line that the recorder printed.
    pub last: String,
}

impl Recorded {
    /// The trace directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    /// All events, as `owlet report --json` prints them.
    ///
    /// # Errors
    /// When the command fails or a line is no JSON.
    pub fn events(&self) -> Result<Vec<serde_json::Value>> {
        let text = stdout(owlet()?.arg("report").arg("--json").arg(self.path()))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// What `owlet stat --json` prints.
    ///
    /// # Errors
    /// When the command fails.
    pub fn stat(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&stdout(owlet()?.arg("stat").arg("--json").arg(self.path()))?)?)
    }
}

/// Runs `command`, which must succeed and say nothing on standard error; its standard output.
///
/// # Errors
/// When it fails or complains.
pub fn stdout(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output()?;
    let complaints = String::from_utf8_lossy(&stderr);
    ensure!(status.success() && stderr.is_empty(), "{command:?}: {status}: {complaints}");
    Ok(String::from_utf8(stdout)?)
}

/// The lines that babeltrace2 prints for a trace. It must read it without a word on standard error.
///
/// # Errors
/// When it fails or complains.
pub fn babeltrace(dir: &Path) -> Result<Vec<String>> {
    let text =
        stdout(Command::new("babeltrace2").args(["--clock-seconds", "--no-delta"]).arg(dir))?;
    Ok(text.lines().map(str::to_owned).collect())
}
