//! The agent: sockets, sessions over them, hostile clients.

mod common;
#[path = "common/child.rs"]
mod proc;

use common::{Client, LATE, Recorder, Wanted, matched, socket_of};
use owlet::registry::{self, DynTracepoint};
use owlet_wire::control::{MAGIC, Reply, Request};
use owlet_wire::schema::{Kind, Level, SchemaRef};
use owlet_wire::{WIRE_VERSION, frame};
use proc::{Target, eventually, hear, say};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

owlet::tracepoint! {
    /// Events of these tests.
    pub mod app {
        /// One step.
        #[level(Debug)]
        step(seq: u64, note: &str);
        other(x: Option<i32>);
    }
}

const BRIDGED: SchemaRef<'static> = SchemaRef {
    name: "",
    kind: Kind::Event,
    level: Level::Info,
    file: "bridged.rs",
    line: 0,
    doc: "",
    fields: &[],
};

traced_program!(child);

fn child(mode: &str) {
    let start = Instant::now();
    let outcome = owlet::init();
    let took = start.elapsed();
    owlet::trace!(app::step, 0, "first");
    match mode {
        "plain" => {
            say(&format!("ready {took:?} {outcome:?}"));
            while let Some(line) = hear() {
                let n = line.parse().unwrap_or(0);
                (1..=n).for_each(|seq| owlet::trace!(app::step, seq, "note"));
                say("done");
            }
        }
        // What a bridge makes: several records of one place.
        "bridged" => {
            for (name, line, kind) in [
                ("bridged:span", 1, Kind::SpanNew),
                ("bridged:span", 1, Kind::SpanEnter),
                ("bridged:span", 1, Kind::SpanExit),
                ("bridged:span", 1, Kind::SpanClose),
                ("bridged:span", 2, Kind::SpanNew),
                ("bridged:event", 3, Kind::Event),
            ] {
                let place = SchemaRef { name, kind, line, ..BRIDGED };
                assert!(registry::add(Box::leak(Box::new(DynTracepoint::new(place)))));
            }
            say("ready");
            while hear().is_some() {}
        }
        "busy" => {
            say("ready");
            std::thread::spawn(|| {
                (0..u64::MAX).for_each(|seq| owlet::trace!(app::step, seq, "busy"))
            });
            while hear().is_some() {}
        }
        // O2, T3: exit while everything is going on.
        "exit" => {
            std::thread::spawn(|| {
                (0..u64::MAX).for_each(|seq| owlet::trace!(app::step, seq, "exit"))
            });
            say("ready");
            let _ = hear();
            std::process::exit(7);
        }
        "many-inits" => {
            let barrier = std::sync::Barrier::new(64);
            let all: Vec<_> = std::thread::scope(|scope| {
                let run = || {
                    scope.spawn(|| {
                        barrier.wait();
                        owlet::trace!(app::step, 1, "at the barrier");
                        owlet::init()
                    })
                };
                let threads: Vec<_> = (0..64).map(|_| run()).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(all.iter().all(|one| *one == all[0]));
            say("ready");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn list_tells_everything_and_the_hello_who_answers() {
    let mut target = Target::start("plain");
    target.expect("ready");
    let client = Client::connect(target.pid());
    assert_eq!((client.hello.pid, client.hello.wire_version), (target.pid(), WIRE_VERSION));
    assert_eq!(client.hello.ppid, std::process::id());
    assert!(client.hello.args.ends_with(b"\0traced\0"));
    assert_eq!(client.hello.site, owlet::site::KIND);
    assert_eq!((client.hello.tracepoints, client.hello.sessions), (1, 0));
    // `other` has no site: it cannot happen.
    let points = client.list("*");
    assert_eq!(points.len(), 1);
    let step = &points[0];
    assert_eq!(
        (step.name.as_str(), step.level, step.enabled, step.hits),
        ("app:step", Level::Debug, false, 0)
    );
    assert_eq!((step.doc.as_str(), step.fields.len()), ("One step.", 2));
    assert!(client.list("nothing*").is_empty());
    assert_eq!(matched(&client.control(&[("*", true)])), (1, 0, 1, 0), "no session to switch");
    drop(client);
    assert!(target.end().success());
}

#[test]
fn replies_count_what_a_list_shows() {
    let mut target = Target::start("bridged");
    target.expect("ready");
    let recorder = Recorder::new(&Wanted { rules: Vec::new(), ..Wanted::default() });
    let client = Client::connect(target.pid());
    let lines = |pattern| client.list(pattern).len() as u32;
    assert_eq!((lines("bridged:span"), lines("bridged:*"), lines("*")), (2, 3, 4));
    assert_eq!(client.hello.tracepoints, 4);
    client.attach(&recorder);
    assert_eq!(matched(&client.control(&[("bridged:*", true)])), (3, 3, 4, 1));
    assert_eq!(matched(&client.control(&[("bridged:event", false)])), (1, 2, 4, 1));
    // From a connection without a session: what is on in any.
    let watcher = Client::connect(target.pid());
    assert_eq!(matched(&watcher.control(&[("app:*", true)])), (1, 3, 4, 1));
    drop(client);
    assert!(target.end().success());
}

#[test]
fn a_session_over_the_socket_is_exact_and_ends_with_its_connection() {
    let mut target = Target::start("plain");
    target.expect("ready");
    let mut recorder =
        Recorder::new(&Wanted { rules: vec![("other*", true)], ..Wanted::default() });
    let client = Client::connect(target.pid());
    assert_eq!(matched(&client.attach(&recorder)), (0, 0, 1, 1));
    target.tell("10");
    target.expect("done");
    assert_eq!(matched(&client.control(&[("app:*", true)])), (1, 1, 1, 1));
    target.tell("1000");
    target.expect("done");
    let watcher = Client::connect(target.pid());
    let step = &watcher.list("app:step")[0];
    assert_eq!((step.enabled, step.hits), (true, 1000));
    assert_eq!(Client::connect(target.pid()).hello.sessions, 1);
    // From a connection without a session: every session.
    assert_eq!(matched(&watcher.control(&[("app:*", false)])), (1, 0, 1, 1));
    target.tell("10");
    target.expect("done");
    watcher.control(&[("app:*", true)]);
    target.tell("5");
    target.expect("done");
    assert_eq!(recorder.drain(), 1005);
    assert_eq!(recorder.total_lost(), 0);
    assert!(recorder.threads.iter().all(|thread| thread.pid == target.pid()));
    drop(client);
    let off = || !watcher.list("app:step")[0].enabled;
    assert!(eventually(LATE, off), "the session outlived its connection");
    target.tell("10");
    target.expect("done");
    assert_eq!(recorder.drain(), 0);

    // The same again, ended by request.
    let mut recorder = Recorder::new(&Wanted::default());
    let client = Client::connect(target.pid());
    assert_eq!(matched(&client.attach(&recorder)), (1, 1, 1, 1));
    assert!(matches!(client.attach(&recorder), Reply::Error { .. }));
    target.tell("3");
    target.expect("done");
    assert_eq!(client.ask(&Request::Detach), Reply::Detached);
    assert!(matches!(client.ask(&Request::Detach), Reply::Error { .. }));
    target.tell("3");
    target.expect("done");
    assert_eq!(recorder.drain(), 3);
    assert!(target.end().success());
}

#[test]
fn owlet_session_is_joined_before_the_first_event_and_announced() {
    let dir = tempdir();
    let path = dir.join("recorder");
    let listener = UnixListener::bind(&path).unwrap();
    let rendezvous = path.to_str().unwrap().to_owned();
    let mut recorder = Recorder::new(&Wanted { rendezvous, ..Wanted::default() });
    let fd = recorder.segment.fd().as_raw_fd();
    let session = format!("/proc/{}/fd/{fd}", std::process::id());
    let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", session));
    assert!(target.expect("ready").contains("Ok"));
    let client = Client::greet(listener.accept().unwrap().0);
    assert_eq!((client.hello.pid, client.hello.sessions), (target.pid(), 1));
    target.tell("10");
    target.expect("done");
    assert_eq!(recorder.drain(), 11);
    // Rings are drained one after the other, so that it need not be the first one here.
    assert!(recorder.events.iter().any(|event| event.value("note") == "first"));
    assert_eq!(recorder.processes.len(), 1);
    assert_eq!(client.ask(&Request::Detach), Reply::Detached);
    target.tell("10");
    target.expect("done");
    assert_eq!(recorder.drain(), 0);
    assert!(target.end().success());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_session_whose_recorder_is_gone_is_left() {
    let dir = tempdir();
    let path = dir.join("recorder");
    drop(UnixListener::bind(&path).unwrap());
    let rendezvous = path.to_str().unwrap().to_owned();
    let recorder = Recorder::new(&Wanted { rendezvous, ..Wanted::default() });
    let session = format!("/proc/{}/fd/{}", std::process::id(), recorder.segment.fd().as_raw_fd());
    let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", &session));
    target.expect("ready");
    let client = Client::connect(target.pid());
    assert!(eventually(LATE, || !client.list("*")[0].enabled));
    // Without a rendezvous: the stop word.
    let recorder = Recorder::new(&Wanted::default());
    let session = format!("/proc/{}/fd/{}", std::process::id(), recorder.segment.fd().as_raw_fd());
    let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", &session));
    target.expect("ready");
    let client = Client::connect(target.pid());
    assert!(client.list("*")[0].enabled);
    recorder.segment.stop();
    assert!(eventually(LATE, || !client.list("*")[0].enabled));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn d8_a_recorder_that_never_answers_does_not_delay_the_start() {
    let dir = tempdir();
    let path = dir.join("recorder");
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: no memory is passed. A backlog of one, filled below.
    unsafe { libc::listen(listener.as_raw_fd(), 0) };
    let _filler = UnixStream::connect(&path).unwrap();
    let rendezvous = path.to_str().unwrap().to_owned();
    let mut recorder = Recorder::new(&Wanted { rendezvous, ..Wanted::default() });
    let session = format!("/proc/{}/fd/{}", std::process::id(), recorder.segment.fd().as_raw_fd());
    let mut fastest = f64::MAX;
    for _ in 0..10 {
        let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", &session));
        let ready = target.expect("ready");
        let took = ready.split(' ').next().unwrap();
        let ms: f64 = match took.strip_suffix("ms") {
            Some(ms) => ms.parse().unwrap(),
            None => took.strip_suffix("µs").expect("seconds").parse::<f64>().unwrap() / 1000.0,
        };
        fastest = fastest.min(ms);
        assert_eq!(Client::connect(target.pid()).hello.sessions, 1);
    }
    // A busy machine makes many of them late, but not each.
    assert!(fastest < 50.0, "init never took less than {fastest} ms: it waits");
    assert_eq!(recorder.drain(), 10);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn owlet_disable_switches_the_agent_off_and_bad_sessions_are_not_joined() {
    let mut target = Target::spawn(proc::command("plain").env("OWLET_DISABLE", "1"));
    assert!(target.expect("ready").ends_with("Ok(())"));
    assert!(socket_of(target.pid(), Duration::from_millis(100)).is_none());
    // X5: missing, forbidden, garbage.
    let garbage = tempdir().join("garbage");
    std::fs::write(&garbage, [0x5a; 100_000]).unwrap();
    for path in
        ["/proc/1/fd/99999", "/dev/null", "/proc/self/mem", garbage.to_str().unwrap(), "/nowhere"]
    {
        let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", path));
        assert!(target.expect("ready").ends_with("Ok(())"), "{path}");
        // The agent runs all the same.
        assert_eq!(Client::connect(target.pid()).hello.sessions, 0);
        assert!(target.end().success());
    }
}

#[test]
fn a_stopped_session_is_not_joined_and_is_no_error() {
    let mut recorder = Recorder::new(&Wanted::default());
    recorder.segment.stop();
    let session = format!("/proc/{}/fd/{}", std::process::id(), recorder.segment.fd().as_raw_fd());
    let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", &session));
    assert!(target.expect("ready").ends_with("Ok(())"));
    assert_eq!(Client::connect(target.pid()).hello.sessions, 0);
    assert!(target.end().success());
    assert_eq!(recorder.drain(), 0);
}

/// Nobody greets whom before a session is inherited: its configuration says the version.
#[test]
fn an_inherited_session_of_another_wire_version_is_not_joined() {
    let with_version = |version| {
        let wanted = Wanted { wire_version: version, ..Wanted::default() };
        let mut recorder = Recorder::new(&wanted);
        let fd = recorder.segment.fd().as_raw_fd();
        let session = format!("/proc/{}/fd/{fd}", std::process::id());
        let mut target = Target::spawn(proc::command("plain").env("OWLET_SESSION", session));
        assert!(target.expect("ready").ends_with("Ok(())"));
        let sessions = Client::connect(target.pid()).hello.sessions;
        target.tell("10");
        target.expect("done");
        assert!(target.end().success());
        (sessions, recorder.drain(), recorder.processes.len())
    };
    assert_eq!(with_version(WIRE_VERSION), (1, 11, 1));
    assert_eq!(with_version(WIRE_VERSION + 1), (0, 0, 0));
}

/// Another user can take the name of the socket directory: that stops no program, and no session that
/// it inherited.
#[test]
fn an_agent_that_cannot_start_says_why_in_a_line_and_the_program_goes_on() {
    let mut taken = vec![(tempdir(), "it is no directory"), (tempdir(), "others can enter it: ")];
    std::fs::write(taken[0].0.join("owlet"), "in the way").unwrap();
    let open = taken[1].0.join("owlet");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } == 0 {
        let dir = tempdir();
        std::fs::create_dir(dir.join("owlet")).unwrap();
        std::os::unix::fs::chown(dir.join("owlet"), Some(4711), None).unwrap();
        taken.push((dir, "it belongs to another user"));
    }
    for (dir, why) in taken {
        let mut recorder = Recorder::new(&Wanted::default());
        let fd = recorder.segment.fd().as_raw_fd();
        let session = format!("/proc/{}/fd/{fd}", std::process::id());
        for quiet in [None, Some("1")] {
            let mut command = proc::command("plain");
            command.env("XDG_RUNTIME_DIR", &dir).env("OWLET_SESSION", &session);
            let mut target = Target::spawn(command.envs(quiet.map(|q| ("OWLET_QUIET", q))));
            let (before, ready) = target.until("ready");
            assert!(ready.ends_with("Ok(())"), "{ready}");
            let place = dir.join("owlet").display().to_string();
            let expected = format!(
                "owlet: this process cannot be traced: cannot make the owlet agent's socket in {place}: {why}"
            );
            assert_eq!(before.starts_with(&expected), quiet.is_none(), "{before}");
            assert_eq!(before.lines().count(), usize::from(quiet.is_none()), "{before}");
            target.tell("3");
            target.expect("done");
            assert!(target.end().success());
        }
        assert_eq!(recorder.drain(), 8);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// Who cleans up /tmp removes sockets, too, and their directory. Connections and sessions go on.
#[test]
fn a_socket_that_somebody_removed_is_made_anew_under_its_name() {
    let dir = tempdir();
    let mut target = Target::spawn(proc::command("plain").env("XDG_RUNTIME_DIR", &dir));
    target.expect("ready");
    let sockets = dir.join("owlet");
    let only = || {
        let found = owlet_sys::runtime_dir::list(&sockets).unwrap_or_default();
        assert!(found.len() < 2, "{found:?}");
        found.into_iter().next().map(|(_, path)| path)
    };
    let connect = |path: &std::path::Path| UnixStream::connect(path).ok().map(Client::greet);
    let path = only().unwrap();
    let mut recorder = Recorder::new(&Wanted::default());
    let client = connect(&path).unwrap();
    client.attach(&recorder);
    for round in 1..3 {
        if round == 1 {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::remove_dir_all(&sockets).unwrap();
        }
        assert!(eventually(LATE, || only().is_some()), "no socket again");
        assert_eq!(only().unwrap(), path);
        assert!(eventually(LATE, || connect(&path).is_some()));
        assert_eq!(connect(&path).unwrap().hello.sessions, 1);
        target.tell("3");
        target.expect("done");
        assert_eq!(recorder.drain(), 3);
    }
    assert_eq!(client.list("*").len(), 1);
    drop(client);
    assert!(target.end().success());
    assert_eq!(only(), None, "left behind");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_backend_that_does_not_exist_is_told_once() {
    for (value, told) in [("bogus", true), ("portable", false), ("rseq", false), ("", false)] {
        let mut target = Target::spawn(proc::command("plain").env("OWLET_BACKEND", value));
        let (before, ready) = target.until("ready");
        assert!(ready.ends_with("Ok(())"), "{ready}");
        let line = before.contains(" backend: OWLET_BACKEND names no backend and is ignored");
        assert_eq!((line, before.lines().count()), (told, usize::from(told)), "{value}: {before}");
        let why = Client::connect(target.pid()).hello.backend_why;
        assert_eq!(why.contains("names no backend"), told, "{why}");
        assert!(target.end().success());
    }
}

#[test]
fn x5_garbage_segments_are_refused_and_the_program_lives() {
    let mut target = Target::start("plain");
    target.expect("ready");
    let file = std::fs::File::open("/dev/null").unwrap();
    let client = Client::connect(target.pid());
    common::send_with_fd(
        &client.stream,
        &frame::to_vec(&Request::Attach).unwrap(),
        file.as_raw_fd(),
    );
    let reply: Reply = frame::read(&mut &client.stream, u32::MAX).unwrap();
    assert!(matches!(reply, Reply::Error { .. }));
    assert!(matches!(client.ask(&Request::Attach), Reply::Error { .. }), "no descriptor");
    // The connection goes on.
    assert_eq!(client.list("*").len(), 1);
    assert!(target.end().success());
}

#[test]
fn c2_another_version_is_refused_by_both_numbers() {
    let mut target = Target::start("plain");
    target.expect("ready");
    let stream = UnixStream::connect(socket_of(target.pid(), LATE).unwrap()).unwrap();
    (&stream).write_all(&MAGIC).unwrap();
    frame::write(&mut &stream, &Request::Hello { wire_version: 4711 }).unwrap();
    let Reply::Error { message, hint } = frame::read(&mut &stream, u32::MAX).unwrap() else {
        panic!("not refused")
    };
    assert!(message.contains("4711") && message.contains(&WIRE_VERSION.to_string()), "{message}");
    assert!(!hint.is_empty());
    assert_eq!((&stream).read(&mut [0]).unwrap(), 0, "the connection is closed");
}

#[test]
fn hostile_and_slow_clients_block_nobody() {
    let mut target = Target::start("busy");
    target.expect("ready");
    let path = socket_of(target.pid(), LATE).unwrap();
    let connect = || UnixStream::connect(&path).unwrap();
    let mut held = Vec::new();
    // Says nothing; says half a magic; says half a frame; claims a huge frame; speaks HTTP.
    held.push(connect());
    for bytes in
        [&MAGIC[..2], b"OWL1\xff\0\0\0half", b"OWL1\xff\xff\xff\xffx", b"GET / HTTP/1.1\r\n\r\n"]
    {
        let stream = connect();
        (&stream).write_all(bytes).unwrap();
        held.push(stream);
    }
    // Asks for a great deal, and takes none of it.
    let greedy = connect();
    (&greedy).write_all(&MAGIC).unwrap();
    frame::write(&mut &greedy, &Request::Hello { wire_version: WIRE_VERSION }).unwrap();
    greedy.set_nonblocking(true).unwrap();
    let list = frame::to_vec(&Request::List { pattern: "*".to_owned() }).unwrap();
    let _ = (&greedy).write(&list.repeat(20_000)).unwrap();
    held.push(greedy);
    // Until nothing more fits what the greedy one does not read.
    std::thread::sleep(Duration::from_millis(300));
    let client = Client::connect(target.pid());
    assert_eq!(client.list("*").len(), 1);
    // A flood of connections: some are turned away, the one that is there is served.
    let flood: Vec<_> = (0..300).filter_map(|_| UnixStream::connect(&path).ok()).collect();
    assert_eq!(client.list("*").len(), 1);
    drop(flood);
    drop(held);
    assert!(eventually(LATE, || UnixStream::connect(&path).is_ok()));
    assert_eq!(Client::connect(target.pid()).list("*").len(), 1);
    assert!(target.end().success());
}

#[test]
fn a6_sixty_four_threads_initialise_at_once() {
    for _ in 0..20 {
        let mut target = Target::start("many-inits");
        target.expect("ready");
        assert!(target.end().success());
    }
}

#[test]
fn o2_exit_while_clients_list_and_switch() {
    let rounds = if cfg!(debug_assertions) { 60 } else { 500 };
    for round in 0..rounds {
        let mut target = Target::start("exit");
        target.expect("ready");
        let Some(path) = socket_of(target.pid(), LATE) else { panic!("no agent") };
        let recorder = Recorder::new(&Wanted { ring_bytes: 1 << 16, ..Wanted::default() });
        let client = Client::greet(UnixStream::connect(path).unwrap());
        client.attach(&recorder);
        let requests: Vec<_> = [("*", true), ("*", false)]
            .into_iter()
            .map(|rule| frame::to_vec(&Request::Control { rules: common::rules(&[rule]) }).unwrap())
            .collect();
        let list = frame::to_vec(&Request::List { pattern: "*".to_owned() }).unwrap();
        let batch = [&requests[0][..], &list, &requests[1], &list].concat().repeat(1 + round % 20);
        (&client.stream).write_all(&batch).unwrap();
        target.tell("exit");
        let status = target.child.wait().unwrap();
        assert_eq!(status.code(), Some(7), "round {round}: {status}");
    }
}

#[test]
fn the_socket_goes_with_the_program_and_stale_ones_are_cleaned() {
    let mut target = Target::start("plain");
    target.expect("ready");
    let path = socket_of(target.pid(), LATE).unwrap();
    assert!(target.end().success());
    assert!(!path.exists(), "left behind at exit");
    let mut target = Target::start("plain");
    target.expect("ready");
    let path = socket_of(target.pid(), LATE).unwrap();
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    assert!(path.exists());
    let mut next = Target::start("plain");
    next.expect("ready");
    assert!(eventually(LATE, || !path.exists()), "stale");
}

fn tempdir() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("owlet-test-{}-{n}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
