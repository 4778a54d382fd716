//! Running this test binary again as the traced program.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test uses a part of it"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const MODE: &str = "OWLET_TEST_CHILD";

/// In the child: runs `main` instead of the tests, as a program of its own would: from the first
/// thread, with no other. Called from a constructor; see [`traced_program`].
pub fn run(main: fn(&str)) {
    if let Ok(mode) = std::env::var(MODE) {
        main(&mode);
        std::process::exit(0);
    }
}

/// Makes this test binary run `$main` when a test starts it as the traced program.
#[macro_export]
macro_rules! traced_program {
    ($main:path) => {
        extern "C" fn before_main() {
            proc::run($main);
        }

        #[used]
        // SAFETY: the section holds addresses of functions that the C library calls before `main`.
        #[unsafe(link_section = ".init_array")]
        static BEFORE_MAIN: extern "C" fn() = before_main;
    };
}

/// In the child: says a line to the test.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// In the child: waits for a line from the test; `None` at the end.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}

/// A traced program.
pub struct Target {
    pub child: Child,
    lines: BufReader<ChildStderr>,
}

/// The command that runs this binary as the traced program, in `mode`.
pub fn command(mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.arg("traced").env(MODE, mode);
    command.env_remove("OWLET_SESSION").env_remove("OWLET_DISABLE");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Target {
    pub fn start(mode: &str) -> Self {
        Self::spawn(&mut command(mode))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("no child");
        let lines = BufReader::new(child.stderr.take().expect("stderr"));
        Self { child, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line that begins with `start`; the rest of it.
    pub fn expect(&mut self, start: &str) -> String {
        self.until(start).1
    }

    /// The same, with what was said before.
    pub fn until(&mut self, start: &str) -> (String, String) {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("read") == 0 {
                panic!("the program ended before it said {start:?}, after {seen:?}");
            }
            if let Some(rest) = line.trim().strip_prefix(start) {
                return (seen, rest.trim().to_owned());
            }
            seen.push_str(&line);
        }
    }

    pub fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin");
        writeln!(stdin, "{line}").expect("the program has gone");
    }

    pub fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().expect("wait")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether `done` became true in time.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
