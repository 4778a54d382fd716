//! `owlet demo`: an instrumented server with load of its own, recorded live. It does nothing that a
//! user could not type: every step is this command, run again and shown with its arguments.

use crate::args::{DemoArgs, DemoServerArgs};
use crate::error::{Failure, Result, reason, show};
use crate::exit::Exit;
use crate::recorder::sink::store_failure;
use crate::text::{count, plural};
use crate::units::timestamp;
use owlet_analyze::Trace;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Lines of the report shown.
const HEAD: usize = 12;
/// The trace point that is switched on and off meanwhile.
const TOGGLED: &str = "kv:lookup";

/// A line on stdout, in order with what the steps print. The demonstration goes on without a reader.
macro_rules! tell {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($arg)*);
    }};
}

/// The server, ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It ends with its stdin; either way nobody is left behind.
        let _ = self.0.wait();
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &DemoArgs) -> Result<Exit> {
    let dir =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("owlet-demo-{}", timestamp())));
    std::fs::create_dir_all(&dir)
        .map_err(|error| Failure::at("cannot make", &dir, reason(&error)))?;
    let (trace, perfetto) = (dir.join("trace"), dir.join("trace.pftrace"));
    let server = start().inspect_err(|_| {
        // Only an empty directory goes.
        let _ = std::fs::remove_dir(&dir);
    })?;
    let pid = server.0.id().to_string();

    say("A key-value server runs, with clients of its own. Nothing of it is recorded.");
    owlet(&["list", &pid])?;
    say("Recording it live, all but one trace point. That one is switched on and off meanwhile.");
    let third = args.duration / 3;
    let duration = format!("{}ms", args.duration.as_millis());
    let leave_out = format!("!{TOGGLED}");
    let words = [
        OsStr::new("record"),
        OsStr::new("-p"),
        OsStr::new(&pid),
        OsStr::new("-e"),
        OsStr::new(&leave_out),
        OsStr::new("--duration"),
        OsStr::new(&duration),
        OsStr::new("--progress"),
        OsStr::new("-o"),
        trace.as_os_str(),
    ];
    let mut recording = command(&words)?.spawn().map_err(|error| cannot_run(&error))?;
    thread::sleep(third);
    owlet(&["enable", TOGGLED, "-p", &pid])?;
    thread::sleep(third);
    owlet(&["disable", TOGGLED, "-p", &pid])?;
    let status = recording.wait().map_err(|error| cannot_run(&error))?;
    if !status.success() {
        return Err(Failure::new("the recording failed"));
    }
    drop(server);

    say("What was recorded:");
    owlet(&[OsStr::new("stat"), trace.as_os_str()])?;
    say("The head of the report:");
    head(&trace)?;
    owlet(&[
        OsStr::new("export"),
        OsStr::new("--perfetto"),
        perfetto.as_os_str(),
        trace.as_os_str(),
    ])?;
    conclude(&trace, &perfetto)
}

/// The server.
pub(crate) fn serve(args: &DemoServerArgs) -> Result<Exit> {
    let options = owlet_demo::Options { clients: args.clients, rate: args.rate };
    owlet_demo::serve(options)
        .map_err(|error| Failure::new(format!("the demo server failed: {}", reason(&error))))?;
    Ok(Exit::Done)
}

/// Starts the server and waits until it serves.
fn start() -> Result<Server> {
    let child = Command::new(myself()?)
        .arg("demo-server")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run(&error))?;
    let mut server = Server(child);
    let mut line = String::new();
    if let Some(stdout) = server.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|error| cannot_run(&error))?;
    }
    if line.starts_with("ready") {
        Ok(server)
    } else {
        Err(Failure::new("the demo server did not start"))
    }
}

fn myself() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| cannot_run(&error))
}

fn cannot_run(error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot run a step of the demo: {}", reason(error)))
}

fn say(text: &str) {
    tell!("\n{text}");
}

/// One step, shown as it would be typed.
fn command<S: AsRef<OsStr>>(words: &[S]) -> Result<Command> {
    let quoted = |word: &S| {
        let word = word.as_ref().to_string_lossy();
        if word.contains(['*', '!', ' ']) { format!("'{word}'") } else { word.into_owned() }
    };
    let line: Vec<_> = words.iter().map(quoted).collect();
    tell!("\n$ owlet {}", line.join(" "));
    let mut command = Command::new(myself()?);
    command.args(words.iter().map(|word| OsString::from(word.as_ref())));
    Ok(command)
}

fn owlet<S: AsRef<OsStr>>(words: &[S]) -> Result<()> {
    let status = command(words)?.status().map_err(|error| cannot_run(&error))?;
    if status.success() { Ok(()) } else { Err(Failure::new("a step of the demo failed")) }
}

/// `owlet report DIR | head`.
fn head(trace: &Path) -> Result<()> {
    let mut report = command(&[OsStr::new("report"), trace.as_os_str()])?
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run(&error))?;
    if let Some(stdout) = report.stdout.take() {
        for line in BufReader::new(stdout).lines().take(HEAD).map_while(std::result::Result::ok) {
            tell!("{line}");
        }
        tell!("..");
    }
    // Ends by the closed pipe, which is success.
    report.wait().map_err(|error| cannot_run(&error))?;
    Ok(())
}

/// What was lost, what the switching did, and where everything is.
fn conclude(dir: &Path, perfetto: &Path) -> Result<Exit> {
    let trace = Trace::open(dir).map_err(store_failure)?;
    let mut events = trace.events().map_err(store_failure)?;
    let (mut all, mut begin, mut end) = (0_u64, None, 0);
    let (mut toggled, mut on, mut off) = (0_u64, None, 0);
    while let Some(event) = events.next_event() {
        all += 1;
        begin.get_or_insert(event.time_ns);
        end = event.time_ns;
        if event.name() == TOGGLED {
            toggled += 1;
            on.get_or_insert(event.time_ns);
            off = event.time_ns;
        }
    }
    let begin = begin.unwrap_or(0);
    let seconds = |ns: u64| ns.saturating_sub(begin) as f64 / 1e9;
    tell!();
    tell!("{} in {:.1} s, lost {}", plural(all, "event"), seconds(end), count(trace.lost_total()));
    tell!(
        "{TOGGLED} was on from {:.1} s to {:.1} s: {}",
        seconds(on.unwrap_or(begin)),
        seconds(off),
        plural(toggled, "event")
    );
    tell!("trace directory: {}  (owlet report, owlet stat, babeltrace2, Trace Compass)", show(dir));
    tell!("Perfetto file:   {}  (open it at https://ui.perfetto.dev)", show(perfetto));
    Ok(Exit::Done)
}
