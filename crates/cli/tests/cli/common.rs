//! Running the command, and a traced program to run it against: this test program itself, started
//! again as its own test `target`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

owlet::tracepoint! {
    /// What the traced program of these tests does.
    pub(crate) mod probe {
        /// Counts up from 0 over all threads.
        #[level(Info)]
        tick(seq: u64, note: &str);
        /// Never happens.
        #[level(Debug)]
        never(a: u8);
    }
}

/// What a run of the command left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ran {
    fn new(output: Output, took: Duration) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            took,
        }
    }

    /// The last line of stderr: the verdict of a recording.
    pub(crate) fn verdict(&self) -> &str {
        self.stderr.lines().last().unwrap_or("")
    }
}

/// The command, not yet started. `dir` is where it runs.
pub(crate) fn owlet(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owlet"));
    command.current_dir(dir).args(args).env_remove("OWLET_SESSION").env("NO_COLOR", "1");
    command.env("XDG_RUNTIME_DIR", sockets()).stdin(Stdio::null());
    command
}

thread_local! {
    static SOCKETS: tempfile::TempDir = tempfile::tempdir().unwrap();
}

/// A socket directory of this test's own. The command looks into `/tmp/owlet-UID` as well, so that
/// `list` may show processes of others.
pub(crate) fn sockets() -> std::path::PathBuf {
    SOCKETS.with(|dir| dir.path().to_owned())
}

/// Runs the command to its end.
pub(crate) fn run(dir: &Path, args: &[&str]) -> Ran {
    finish(owlet(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for a started command with piped outputs.
pub(crate) fn finish(child: Child) -> Ran {
    let begin = Instant::now();
    Ran::new(child.wait_with_output().unwrap(), begin.elapsed())
}

/// A traced program that runs; killed when dropped.
pub(crate) struct Target {
    child: Child,
}

impl Target {
    /// One that has no agent and only sleeps.
    pub(crate) fn plain() -> Self {
        Self { child: Command::new("sleep").arg("60").spawn().unwrap() }
    }

    /// `mode` is what [`target_main`] understands.
    pub(crate) fn start(mode: &str) -> Self {
        Self::start_in(mode, &sockets())
    }

    /// The same with another `XDG_RUNTIME_DIR` than the command has.
    pub(crate) fn start_in(mode: &str, runtime_dir: &Path) -> Self {
        let mut command = Self::command(mode);
        command.env("XDG_RUNTIME_DIR", runtime_dir);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let ready =
            stdout.lines().map_while(Result::ok).find(|line| line.contains("target is ready"));
        assert!(ready.is_some(), "the traced program did not start");
        Self { child }
    }

    /// The words that start it, for `record -- CMD`.
    pub(crate) fn words() -> [String; 4] {
        let exe = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
        [exe, "--exact".into(), "target".into(), "--nocapture".into()]
    }

    fn command(mode: &str) -> Command {
        let [exe, words @ ..] = Self::words();
        let mut command = Command::new(exe);
        command.args(words).env("OWLET_TEST_TARGET", mode).env("XDG_RUNTIME_DIR", sockets());
        command.env_remove("OWLET_SESSION");
        // SAFETY: one system call between fork and exec. The program ends with the tests.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))
                .map_err(Into::into)
            })
        };
        command
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        kill(&self.child, signal);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process we started.
pub(crate) fn kill(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The traced program: `NAME:NUMBER` in `OWLET_TEST_TARGET`. Returns at once in an ordinary test run.
pub(crate) fn target_main() {
    let Ok(mode) = std::env::var("OWLET_TEST_TARGET") else { return };
    if let Some(status) = mode.strip_prefix("exit:") {
        std::process::exit(status.parse().unwrap());
    }
    if mode.starts_with("leaves:") {
        leave();
    }
    owlet::init().unwrap();
    println!("target is ready");
    match mode.split_once(':') {
        // Exactly so many events, and the end.
        Some(("burst", n)) => (0..n.parse().unwrap()).for_each(tick),
        // So many events a second, for ever.
        Some(("paced", rate)) => {
            let begin = Instant::now();
            for seq in 0.. {
                let due = Duration::from_secs_f64(seq as f64 / rate.parse::<f64>().unwrap());
                std::thread::sleep(due.saturating_sub(begin.elapsed()));
                tick(seq);
            }
        }
        Some(("idle", seconds)) => {
            std::thread::sleep(Duration::from_secs(seconds.parse().unwrap()))
        }
        // Nothing for so many milliseconds, then 100 events, and the end.
        Some(("late", ms)) => {
            std::thread::sleep(Duration::from_millis(ms.parse().unwrap()));
            (0..100).for_each(tick);
        }
        // Events for so many milliseconds, then another program.
        Some(("exec", ms)) => {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(ms.parse().unwrap()) {
                tick(0);
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("{}", Command::new("sleep").arg("60").exec());
        }
        // Events, and headers that are none over some of them.
        Some(("junk", _)) => {
            (0..1000).for_each(tick);
            junk();
        }
        // Events, and then random bytes over the whole session, for a second.
        Some(("scribble", seed)) => {
            (0..1000).for_each(tick);
            scribble(seed.parse().unwrap());
        }
        _ => panic!("unknown mode {mode}"),
    }
    std::process::exit(0);
}

/// An agent that shakes hands, and ends when it is asked something.
fn leave() {
    use owlet_wire::control::{Hello, Reply, Request};
    use owlet_wire::frame;
    let dir = owlet_sys::runtime_dir::open().unwrap();
    let name = owlet_sys::runtime_dir::SocketName::own(0).to_string();
    let listener = std::os::unix::net::UnixListener::bind(dir.join(name)).unwrap();
    println!("target is ready");
    let (stream, _) = listener.accept().unwrap();
    std::io::Read::read_exact(&mut &stream, &mut [0; 4]).unwrap();
    let hello = Hello {
        wire_version: owlet_wire::WIRE_VERSION,
        pid: std::process::id(),
        ppid: 1,
        exe: Vec::new(),
        args: Vec::new(),
        backend: String::new(),
        backend_why: String::new(),
        site: String::new(),
        tracepoints: 1,
        sessions: 0,
        version: String::new(),
    };
    let _: Request = frame::read(&mut &stream, 1 << 16).unwrap();
    frame::write(&mut &stream, &Reply::Hello(hello)).unwrap();
    let _ = frame::read::<Request>(&mut &stream, 1 << 16);
    std::process::exit(0);
}

fn tick(seq: u64) {
    owlet::trace!(probe::tick, seq, "a note");
    if std::hint::black_box(false) {
        owlet::trace!(probe::never, 1);
    }
}

/// Overwrites an event in whatever ring it lies in, if possible before it is drained; some times.
fn junk() {
    use std::os::unix::fs::FileExt as _;
    let path = std::env::var("OWLET_SESSION").unwrap();
    let session = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let size = session.metadata().unwrap().len();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    for seq in (1..31).map(|round| round * 0x0123_4567) {
        (0..200).for_each(|_| tick(seq));
        session.read_exact_at(&mut bytes, 0).unwrap();
        let needle = [&seq.to_le_bytes()[..], b"\x06\0\0\0a note"].concat();
        let found = bytes.windows(needle.len()).rposition(|window| window == needle);
        if let Some(at) = found {
            // The record's header is 24 bytes before: its length becomes impossible.
            session.write_all_at(&[0xff; 16], at as u64 - 16).unwrap();
        }
    }
}

fn scribble(seed: u64) {
    use std::os::unix::fs::FileExt as _;
    let path = std::env::var("OWLET_SESSION").unwrap();
    let session = std::fs::File::options().write(true).open(path).unwrap();
    let size = session.metadata().unwrap().len();
    let mut random = seed;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Half of it into the first pages, where headers and control blocks are.
        let area = if random & 1 == 0 { 64 << 10 } else { size };
        session.write_all_at(&random.to_le_bytes(), (random >> 20) % (area - 8)).unwrap();
    }
}
