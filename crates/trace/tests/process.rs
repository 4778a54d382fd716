//! What programs do with processes, threads and signals, with a session attached.

mod common;
#[path = "common/child.rs"]
mod proc;

use common::{Client, LATE, Recorder, Wanted, matched, socket_of};
use owlet_wire::control::Request;
use proc::{Target, eventually, hear, say};
use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

owlet::tracepoint! {
    /// Events of these tests.
    pub mod app {
        /// One step.
        step(seq: u64, note: &str);
    }
}

traced_program!(child);

fn child(mode: &str) {
    if mode == "reap" {
        return reap();
    }
    let outcome = owlet::init();
    owlet::trace!(app::step, 0, "first");
    match mode {
        "fork" => fork(),
        "exec" => exec(),
        "signals" => signals(),
        "threads" => threads(),
        "exit" => at_exit(),
        "close-all" => close_all(),
        "handler" => handler(),
        "memory" => {
            say(&format!("ready {outcome:?}"));
            while hear().is_some() {}
        }
        other => panic!("{other}"),
    }
}

/// Forks children on request; each emits, forks a grandchild that emits, and stays until told.
fn fork() {
    say("ready");
    let _ = hear();
    // SAFETY: the child emits and waits; it holds no lock of another thread's.
    let first = unsafe { libc::fork() };
    owlet::trace!(app::step, 1, if first == 0 { "child" } else { "parent" });
    if first == 0 {
        // SAFETY: as above.
        if unsafe { libc::fork() } == 0 {
            owlet::trace!(app::step, 2, "grandchild");
            // SAFETY: ends the grandchild without running anything of the test's.
            unsafe { libc::_exit(0) };
        }
        say(&format!("child {}", std::process::id()));
        std::thread::sleep(2 * LATE);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let _ = hear();
    owlet::trace!(app::step, 3, "parent again");
    say("done");
    let _ = hear();
    // SAFETY: ends the child this program made.
    unsafe { libc::kill(first, libc::SIGKILL) };
}

/// Runs programs in a loop, each of which looks at the descriptors it has.
fn exec() {
    say("ready");
    let mut fds = std::collections::BTreeSet::new();
    for _ in 0..150 {
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", "for f in /proc/$$/fd/*; do readlink $f; done"])
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        fds.extend(
            text.lines().filter(|l| l.contains("memfd") || l.contains("socket")).map(str::to_owned),
        );
        owlet::trace!(app::step, 1, "exec");
    }
    say(&format!("leaked {fds:?}"));
    let _ = hear();
}

/// Has unreaped children before and after `init`, and reaps them by itself.
fn reap() {
    let spawn = |code| {
        // SAFETY: the child ends at once.
        match unsafe { libc::fork() } {
            // SAFETY: as above.
            0 => unsafe { libc::_exit(code) },
            pid => pid,
        }
    };
    let early: Vec<_> = (1..=5).map(|code| (spawn(code), code)).collect();
    let _ = owlet::init();
    let late: Vec<_> = (6..=10).map(|code| (spawn(code), code)).collect();
    say("ready");
    let _ = hear();
    for (pid, code) in early.into_iter().chain(late) {
        let mut status = 0;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), code);
    }
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) }, -1);
    say("all there");
}

/// Blocks a signal everywhere and takes it with sigwait.
fn signals() {
    // SAFETY: zero is a valid value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGRTMIN() + 3) };
    // SAFETY: as above. The agent's thread was made before this, and must not take the signals.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    say("ready");
    for _ in 0..1000 {
        let mut signal = 0;
        // SAFETY: both are ours.
        assert_eq!(unsafe { libc::sigwait(&raw const set, &raw mut signal) }, 0);
        owlet::trace!(app::step, 1, "signal");
    }
    say("all there");
}

/// Two thousand short threads.
fn threads() {
    say("ready");
    let _ = hear();
    for n in 0..2000 {
        std::thread::spawn(move || owlet::trace!(app::step, n, "thread")).join().unwrap();
    }
    say("done");
    let _ = hear();
}

/// Closes every descriptor, as programs that daemonize do, and opens files in their place.
fn close_all() {
    use std::io::Read;
    say("ready");
    let _ = hear();
    for fd in 3..1000 {
        // SAFETY: what the program itself has open is 0 to 2.
        unsafe { libc::close(fd) };
    }
    let mut files: Vec<_> =
        (0..100).map(|_| std::fs::File::open("/proc/self/status").unwrap()).collect();
    say("closed");
    let _ = hear();
    for file in &mut files {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the agent has closed a file of the program's");
        assert!(text.starts_with("Name:"), "the agent has read from a file of the program's");
    }
    say("intact");
}

struct Emits(&'static str);

impl Drop for Emits {
    fn drop(&mut self) {
        owlet::trace!(app::step, 9, self.0);
    }
}

thread_local! { static LAST: RefCell<Option<Emits>> = const { RefCell::new(None) } }

/// Emits from destructors of thread-locals and from exit handlers of both orders.
fn at_exit() {
    extern "C" fn emit() {
        owlet::trace!(app::step, 10, "atexit");
    }
    say("ready");
    let _ = hear();
    std::thread::spawn(|| LAST.set(Some(Emits("thread destructor")))).join().unwrap();
    LAST.set(Some(Emits("main destructor")));
    // SAFETY: the function lives as long as the program. (The agent's own handler came before.)
    unsafe { libc::atexit(emit) };
    std::process::exit(0);
}

static HANDLED: AtomicU32 = AtomicU32::new(0);

/// Emits from a signal handler that interrupts emissions.
fn handler() {
    extern "C" fn on_signal(_: i32) {
        let n = HANDLED.fetch_add(1, Ordering::Relaxed);
        owlet::trace!(app::step, u64::from(n), "handler");
    }
    say("ready");
    let _ = hear();
    let handler: extern "C" fn(i32) = on_signal;
    // SAFETY: the handler only emits, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: no memory is passed.
    let main = unsafe { libc::pthread_self() } as usize;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sender = std::thread::spawn({
        let stop = std::sync::Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: the main thread outlives this one.
                unsafe { libc::pthread_kill(main as libc::pthread_t, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    });
    let mut seq = 0;
    while HANDLED.load(Ordering::Relaxed) < 300 && seq < 10_000_000 {
        owlet::trace!(app::step, seq, "main");
        seq += 1;
        if seq % 1000 == 0 {
            // Not to outrun the reader.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    stop.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    say(&format!("handled {} {seq}", HANDLED.load(Ordering::Relaxed)));
    let _ = hear();
}

/// Ends the loop of a test's other thread, also when the test fails.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn attached(target: &mut Target, wanted: &Wanted) -> (Client, Recorder) {
    target.expect("ready");
    let recorder = Recorder::new(wanted);
    let client = Client::connect(target.pid());
    assert_eq!(matched(&client.attach(&recorder)), (1, 1, 1, 1));
    (client, recorder)
}

#[test]
fn f_forked_children_record_under_their_own_pid_and_have_an_agent() {
    let dir = std::env::temp_dir().join(format!("owlet-fork-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("recorder");
    let listener = UnixListener::bind(&path).unwrap();
    let rendezvous = path.to_str().unwrap().to_owned();
    let mut target = Target::start("fork");
    let (client, mut recorder) = attached(&mut target, &Wanted { rendezvous, ..Wanted::default() });
    target.tell("fork");
    let child: u32 = target.expect("child").parse().unwrap();
    assert!(recorder.drain_until(LATE, |r| r.events.len() >= 3));
    let pid_of = |recorder: &Recorder, note: &str| {
        recorder.events.iter().find(|e| e.value("note") == note).unwrap().header.pid
    };
    assert_eq!(pid_of(&recorder, "parent"), target.pid());
    assert_eq!(pid_of(&recorder, "child"), child);
    let grandchild = pid_of(&recorder, "grandchild");
    assert!(grandchild != child && grandchild != target.pid());
    for pid in [target.pid(), child, grandchild] {
        let process = recorder.processes.iter().find(|p| p.pid == pid).expect("no process record");
        assert!(!process.exe.is_empty());
        assert!(recorder.threads.iter().any(|thread| thread.pid == pid && thread.tid == pid));
    }
    // It reports itself, and can be found and switched on its own.
    let announced = (0..2).find_map(|_| {
        let stream = listener.accept().unwrap().0;
        // The grandchild may have ended before it is greeted.
        let greeted = std::panic::catch_unwind(|| Client::greet(stream)).ok();
        greeted.filter(|client| client.hello.pid == child)
    });
    let announced = announced.expect("the child has not announced itself");
    assert_eq!((announced.hello.pid, announced.hello.ppid), (child, target.pid()));
    let own = Client::connect(child);
    assert!(own.list("*")[0].enabled);
    assert_eq!(announced.ask(&Request::Detach), owlet_wire::control::Reply::Detached);
    assert!(!own.list("*")[0].enabled);
    // Its text is a copy: the parent is still on. And the parent's connection is not held open by it.
    target.tell("go on");
    target.expect("done");
    assert_eq!(recorder.drain(), 1);
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    let mut byte = [0];
    let end = std::io::Read::read(&mut &client.stream, &mut byte);
    assert_eq!(end.expect("a child holds the parent's connection"), 0);
    // SAFETY: ends the child, which nobody will tell to end any more.
    unsafe { libc::kill(child.cast_signed(), libc::SIGKILL) };
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn f2_children_are_the_programs_to_reap() {
    let mut target = Target::start("reap");
    target.expect("ready");
    let _client = Client::connect(target.pid());
    target.tell("reap");
    target.expect("all there");
    assert!(target.end().success());
}

#[test]
fn f3_nothing_leaks_through_exec() {
    let mut target = Target::start("exec");
    target.expect("ready");
    // Attach and detach while the program execs.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let pid = target.pid();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let recorder = Recorder::new(&Wanted { ring_bytes: 1 << 16, ..Wanted::default() });
                let client = Client::connect(pid);
                client.attach(&recorder);
                client.list("*");
            }
        });
        let _end = Stop(&stop);
        assert_eq!(target.expect("leaked"), "{}");
    });
    assert!(target.end().success());
}

#[test]
fn descriptors_that_the_program_closes_are_given_up_and_replaced() {
    let mut target = Target::start("close-all");
    let (client, recorder) = attached(&mut target, &Wanted::default());
    target.tell("close");
    target.expect("closed");
    // The old connection ends, and a new one is possible.
    let list = Request::List { pattern: "*".to_owned() };
    let _ = owlet_wire::frame::write(&mut &client.stream, &list);
    assert!(matches!(std::io::Read::read(&mut &client.stream, &mut [0]), Ok(0) | Err(_)));
    let path = socket_of(target.pid(), LATE).unwrap();
    let greeted = || std::panic::catch_unwind(|| Client::connect(target.pid())).is_ok();
    assert!(eventually(LATE, greeted), "no agent at {}", path.display());
    let again = Client::connect(target.pid());
    assert_eq!((again.hello.pid, again.hello.sessions), (target.pid(), 0));
    assert!(!again.list("*")[0].enabled);
    target.tell("look");
    target.expect("intact");
    assert!(target.end().success());
    drop(recorder);
}

#[test]
fn s1_every_signal_reaches_the_program() {
    let mut target = Target::start("signals");
    let (_client, mut recorder) = attached(&mut target, &Wanted::default());
    for _ in 0..1000 {
        // SAFETY: no memory is passed; the target waits for exactly these.
        let sent = unsafe { libc::kill(target.pid().cast_signed(), libc::SIGRTMIN() + 3) };
        assert_eq!(sent, 0);
    }
    target.expect("all there");
    assert!(target.end().success());
    recorder.drain();
    assert_eq!(recorder.named("app:step").count(), 1000);
}

#[test]
fn two_thousand_short_threads_are_all_named_and_nothing_grows_with_them() {
    let mut target = Target::start("threads");
    let (_client, mut recorder) = attached(&mut target, &Wanted::default());
    let before = rss_kib(target.pid());
    target.tell("go");
    target.expect("done");
    recorder.drain();
    assert_eq!(recorder.events.len(), 2000);
    let tids: std::collections::HashSet<_> = recorder.events.iter().map(|e| e.header.tid).collect();
    assert!(tids.iter().all(|tid| recorder.threads.iter().any(|thread| thread.tid == *tid)));
    let grown = rss_kib(target.pid()).saturating_sub(before);
    assert!(grown < 2048, "grew by {grown} KiB");
    assert!(target.end().success());
}

#[test]
fn t3_events_from_destructors_and_exit_handlers_are_recorded() {
    let mut target = Target::start("exit");
    let (_client, mut recorder) = attached(&mut target, &Wanted::default());
    target.tell("exit");
    let status = target.child.wait().unwrap();
    assert!(status.success(), "{status}");
    recorder.drain();
    let notes: Vec<_> = recorder.events.iter().map(|event| event.value("note")).collect();
    // musl's exit runs no destructors of thread-locals.
    let gnu = cfg!(target_env = "gnu").then_some("main destructor");
    for note in ["thread destructor", "atexit"].into_iter().chain(gnu) {
        assert!(notes.contains(&note), "{note} is not in {notes:?}");
    }
}

#[test]
fn tp_09_signal_handlers_that_interrupt_emissions_are_recorded_exactly() {
    let mut target = Target::start("handler");
    let (_client, mut recorder) =
        attached(&mut target, &Wanted { ring_bytes: 1 << 24, ..Wanted::default() });
    target.tell("go");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                recorder.drain();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _end = Stop(&stop);
        target.expect("handled")
    });
    let (handled, emitted) = said.split_once(' ').unwrap();
    let (handled, emitted): (u64, u64) = (handled.parse().unwrap(), emitted.parse().unwrap());
    recorder.drain();
    let count = |note: &str| {
        recorder.events.iter().filter(|event| event.value("note") == note).count() as u64
    };
    assert_eq!(recorder.total_lost(), 0);
    assert_eq!((count("main"), count("handler")), (emitted, handled));
    assert!(handled >= 300, "too few signals to mean anything: {handled}");
    assert!(target.end().success());
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    anonymous.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[test]
fn the_agent_takes_less_than_five_megabytes() {
    let measure = |disabled: &str| {
        let mut target = Target::spawn(proc::command("memory").env("OWLET_DISABLE", disabled));
        target.expect("ready");
        let pid = target.pid();
        if disabled == "0" {
            let clients: Vec<_> = (0..10).map(|_| Client::connect(pid)).collect();
            let recorder = Recorder::new(&Wanted { ring_bytes: 1 << 16, ..Wanted::default() });
            assert_eq!(matched(&clients[0].attach(&recorder)).0, 1);
            for client in &clients {
                client.list("*");
            }
        }
        rss_kib(pid)
    };
    let (without, with) = (measure("1"), measure("0"));
    let agent = with.saturating_sub(without);
    assert!(agent < 5 * 1024, "{agent} KiB");
    println!("the agent takes {agent} KiB ({without} KiB without it)");
}

#[test]
fn the_socket_of_an_earlier_program_of_the_same_process_is_replaced() {
    // A name of our own with nobody behind it, as exec leaves it.
    let dir = owlet_sys::runtime_dir::open().unwrap();
    let name = owlet_sys::runtime_dir::SocketName::own(0).to_string();
    drop(UnixListener::bind(dir.join(&name)).unwrap());
    owlet::init().unwrap();
    let found = socket_of(std::process::id(), LATE).unwrap();
    assert_eq!(found, dir.join(&name));
    assert!(
        eventually(LATE, || Client::connect(std::process::id()).hello.pid == std::process::id())
    );
}
