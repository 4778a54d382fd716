//! Traced functions over the agent's socket: recorded, counted, listed, and let go of.

mod common;
#[path = "common/child.rs"]
mod proc;

use common::{Client, LATE, Recorder, Wanted};
use owlet_ring::Loss;
use owlet_wire::control::{Reply, Request};
use owlet_wire::functions::{
    Attach, FunctionInfo, MAX_PATTERNS, Moments, Standing, Work, bounds, bucket,
};
use owlet_wire::schema::Kind;
use proc::{Target, eventually, hear, say};
use std::collections::BTreeMap;

traced_program!(child);

/// What the program says when it has done something.
const DONE: &str = "done";

mod cmd {
    #[derive(Debug)]
    pub(crate) struct NoSuchKey;

    #[owlet::traced]
    pub(crate) fn get(key: &str, number: u64) -> Result<u32, NoSuchKey> {
        if key == "nothing" { Err(NoSuchKey) } else { Ok(number as u32 * 2) }
    }

    #[owlet::traced]
    pub(crate) fn set(key: String, negative: i32, _: bool, ret: char) -> Option<f64> {
        drop(key);
        (ret == 'x').then_some(f64::from(negative) / 2.0)
    }

    #[owlet::traced(name = "functions::cmd::Store::fall")]
    pub(crate) fn fall(value: u8) -> u8 {
        assert!(value < 200, "falls");
        value
    }

    #[owlet::traced]
    pub(crate) fn sleep(ms: u64) {
        std::thread::sleep(std::time::Duration::from_millis(ms));
    }
}

#[owlet::traced]
fn other(n: u64) -> u64 {
    n
}

/// `get N KEY`, `set N`, `fall N`, `sleep MS`, `other N`, `threads T N`, `fork N`.
fn child(_mode: &str) {
    owlet::init().unwrap();
    say("ready");
    while let Some(line) = hear() {
        let words: Vec<_> = line.split(' ').collect();
        let n: u64 = words.get(1).map_or(0, |word| word.parse().unwrap());
        match words[0] {
            "get" => (0..n).for_each(|n| drop(cmd::get(words[2], n))),
            "set" => (0..n).for_each(|n| {
                let number = if n == 0 { -3 } else { n as i32 };
                _ = cmd::set(format!("key{n}"), number, true, if n == 0 { 'x' } else { 'ä' });
            }),
            "fall" => {
                std::panic::set_hook(Box::new(|_| {}));
                for n in [n as u8, 255] {
                    _ = std::panic::catch_unwind(|| cmd::fall(n));
                }
            }
            "sleep" => cmd::sleep(n),
            "other" => (0..n).for_each(|n| _ = other(n)),
            "threads" => threads(n, words[2].parse().unwrap()),
            "fork" => {
                fork(n);
                // The child says when it is done: one line at a time.
                continue;
            }
            "signals" => {
                let (main, handler) = signals(n);
                say(&format!("counted {}", main + handler));
                continue;
            }
            other => panic!("{other}"),
        }
        say(DONE);
    }
}

/// Each thread's first event is at the same time as everybody's.
fn threads(threads: u64, calls: u64) {
    let barrier = std::sync::Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                (0..calls).for_each(|n| _ = other(n));
            });
        }
    });
}

/// Calls from the main program and from handlers that interrupt it anywhere, inside the recording, too.
fn signals(interrupts: u64) -> (u64, u64) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handle(_signal: libc::c_int) {
        other(0);
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    let timer = |us| {
        let every = libc::timeval { tv_sec: 0, tv_usec: us };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        // SAFETY: a whole timer, and no room for the old one.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    };
    let handler: extern "C" fn(libc::c_int) = handle;
    // SAFETY: the handler calls a traced function and adds to a word.
    unsafe { libc::signal(libc::SIGALRM, handler as *const () as libc::sighandler_t) };
    timer(200);
    let mut calls = 0;
    while HANDLED.load(Ordering::Relaxed) < interrupts {
        (0..64).for_each(|n| _ = other(n));
        calls += 64;
    }
    timer(0);
    (calls, HANDLED.load(Ordering::Relaxed))
}

fn fork(calls: u64) {
    // SAFETY: the child calls traced functions, writes a line and ends.
    match unsafe { libc::fork() } {
        0 => {
            (0..calls).for_each(|n| _ = other(n));
            say("forked");
            // As long as its parent, so that it can be asked.
            while hear().is_some_and(|line| line != "end") {}
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) };
        }
        pid => assert!(pid > 0),
    }
}

fn start() -> (Target, Client) {
    let mut target = Target::start("functions");
    target.expect("ready");
    let client = Client::connect(target.pid());
    (target, client)
}

fn run(target: &mut Target, what: &str) {
    target.tell(what);
    target.expect(DONE);
}

fn wanted(pattern: &str, work: Work, filter: &str) -> Request {
    let patterns = pattern.split(' ').map(str::to_owned).collect();
    Request::AttachFunctions(Attach { patterns, work, filter: filter.to_owned() })
}

/// A session without tracepoints.
fn recorder(ring_bytes: usize) -> Recorder {
    Recorder::new(&Wanted { rules: Vec::new(), ring_bytes, ..Wanted::default() })
}

/// Attaches a recorder to functions; how many.
fn record(
    client: &Client,
    recorder: &Recorder,
    pattern: &str,
    moments: Moments,
    filter: &str,
) -> u32 {
    assert!(matches!(client.attach(recorder), Reply::Matched { enabled: 0, .. }));
    links(&client.ask(&wanted(pattern, Work::Record(moments), filter)))
}

fn links(reply: &Reply) -> u32 {
    match reply {
        Reply::FunctionsMatched { links, .. } => *links,
        other => panic!("{other:?}"),
    }
}

fn refusal(reply: Reply) -> String {
    match reply {
        Reply::Error { message, hint } => format!("{message}; {hint}"),
        other => panic!("{other:?}"),
    }
}

fn standing(client: &Client) -> Standing {
    match client.ask(&Request::Standing { maps: false }) {
        Reply::Standing(standing) => standing,
        other => panic!("{other:?}"),
    }
}

/// Calls by function, those without any left out.
fn calls(client: &Client) -> BTreeMap<String, u64> {
    let counted = standing(client).functions.into_iter().filter(|f| f.calls > 0);
    counted.map(|f| (f.name, f.calls)).collect()
}

fn list(client: &Client, pattern: &str) -> Vec<FunctionInfo> {
    match client.ask(&Request::Functions { pattern: pattern.to_owned() }) {
        Reply::Functions(functions) => functions,
        other => panic!("{other:?}"),
    }
}

fn values(event: &common::Event) -> String {
    let shown = event.values.iter().map(|(name, value)| match name.as_str() {
        "duration_ns" | "span" => format!("{name}=.."),
        _ => format!("{name}={value}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn functions_are_listed_with_their_parameters() {
    let (target, client) = start();
    let all = list(&client, "*");
    let names: Vec<_> = all.iter().map(|f| f.name.as_str()).collect();
    let expected = [
        "functions::cmd::Store::fall",
        "functions::cmd::get",
        "functions::cmd::set",
        "functions::cmd::sleep",
        "functions::other",
    ];
    assert_eq!(names, expected);
    assert_eq!(all[2].params, ["key", "negative", "_", "ret"]);
    assert!(all[1].file.ends_with("functions.rs") && all[1].line > 0 && all[1].programs == 0);
    assert_eq!(list(&client, "*::cmd::?et").len(), 2);
    assert!(list(&client, "nothing").is_empty());
    assert!(target.end().success());
}

#[test]
fn entries_have_the_arguments_and_exits_the_result() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    assert_eq!(record(&client, &recorder, "*::get *::set", Moments::Both, ""), 2);
    run(&mut target, "get 2 apple");
    run(&mut target, "get 1 nothing");
    run(&mut target, "set 2");
    run(&mut target, "other 5");
    assert_eq!(client.ask(&Request::Detach), Reply::Detached);
    run(&mut target, "get 9 apple");
    assert_eq!(recorder.drain(), 10);
    recorder.events.sort_by_key(|event| event.header.time);
    let lines: Vec<_> =
        recorder.events.iter().map(|e| format!("{} {}", e.name, values(e))).collect();
    let expected = [
        "functions::cmd::get key=apple number=U64(0)",
        "functions::cmd::get%return key=apple number=U64(0) ret=U64(0) phase=Enum(0, Some(\"return\")) duration_ns=..",
        "functions::cmd::get key=apple number=U64(1)",
        "functions::cmd::get%return key=apple number=U64(1) ret=U64(2) phase=Enum(0, Some(\"return\")) duration_ns=..",
        "functions::cmd::get key=nothing number=U64(0)",
        "functions::cmd::get%return key=nothing number=U64(0) ret=Err phase=Enum(0, Some(\"return\")) duration_ns=..",
        // What the body took over is gone at the exit; a pattern is known by its number.
        "functions::cmd::set key=key0 negative=I64(-3) arg2=None ret_arg3=x",
        "functions::cmd::set%return key=None negative=I64(-3) arg2=None ret_arg3=x ret=F64(-1.5) phase=Enum(0, Some(\"return\")) duration_ns=..",
        "functions::cmd::set key=key1 negative=I64(1) arg2=None ret_arg3=ä",
        "functions::cmd::set%return key=None negative=I64(1) arg2=None ret_arg3=ä ret=None phase=Enum(0, Some(\"return\")) duration_ns=..",
    ];
    assert_eq!(lines, expected);
    assert_eq!((recorder.total_lost(), recorder.corrupt), (0, 0));
    let process = &recorder.processes[0];
    assert!(recorder.events.iter().all(|event| event.header.pid == process.pid));
    assert!(target.end().success());
}

#[test]
fn latencies_are_spans_with_numbers_of_their_own() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    assert_eq!(record(&client, &recorder, "*::cmd::*", Moments::Latency, ""), 4);
    run(&mut target, "sleep 20");
    run(&mut target, "get 100 apple");
    run(&mut target, "fall 1");
    let expected = [("Store::fall", 2), ("get", 100), ("sleep", 1)];
    let expected = expected.map(|(name, n)| (format!("functions::cmd::{name}"), n));
    assert_eq!(calls(&client), BTreeMap::from(expected));
    drop(client);
    assert_eq!(recorder.drain(), 2 * 103);
    let mut open = BTreeMap::new();
    recorder.events.sort_by_key(|event| event.header.time);
    for event in &recorder.events {
        match recorder.schemas[&event.header.id].kind {
            Kind::SpanNew => {
                assert_eq!(event.number("parent"), 0);
                assert!(open.insert(event.number("span"), event.name.clone()).is_none());
            }
            Kind::SpanClose => {
                assert_eq!(open.remove(&event.number("span")).as_ref(), Some(&event.name));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_empty());
    let ends = recorder.named("functions::cmd::sleep").filter(|e| e.values.len() == 4);
    let durations: Vec<_> = ends.map(|event| event.number("duration_ns")).collect();
    assert!(durations.len() == 1 && durations[0] >= 20_000_000, "{durations:?}");
    let fallen = recorder.named("functions::cmd::Store::fall");
    let fallen =
        fallen.filter(|e| e.values.len() == 4).map(|e| e.value("phase")).collect::<Vec<_>>();
    assert_eq!(fallen, ["Enum(0, Some(\"return\"))", "Enum(1, Some(\"unwind\"))"]);
    assert!(target.end().success());
}

#[test]
fn a_filter_is_about_the_call() {
    let (mut target, client) = start();
    for (moments, filter, expected) in [
        (Moments::Latency, "number >= 3", 2 * 2),
        (Moments::Both, "number == 3 or number == 4", 2 * 2),
        // Decided at the end, so recorded by the end alone.
        (Moments::Latency, "ret == 8 or ret == 6", 2),
        (Moments::Latency, "number == 2 and duration < 100s", 1),
        (Moments::Exit, "duration_ns < 100000000000 and key == \"apple\"", 5),
        (Moments::Exit, "phase == \"unwind\"", 0),
        (Moments::Entry, "key ~ \"app*\"", 5),
    ] {
        let mut recorder = recorder(1 << 20);
        let client = Client::connect(target.pid());
        assert_eq!(record(&client, &recorder, "*::get", moments, filter), 1, "{filter}");
        run(&mut target, "get 5 apple");
        assert_eq!(client.ask(&Request::Detach), Reply::Detached);
        assert_eq!(recorder.drain(), expected, "{filter}");
    }
    let recorder = recorder(1 << 20);
    client.attach(&recorder);
    let refused = |pattern: &str, moments, filter| {
        refusal(client.ask(&wanted(pattern, Work::Record(moments), filter)))
    };
    let message = refused("*::get", Moments::Both, "ret == 8");
    assert!(message.contains("--latency"), "{message}");
    let message = refused("*::get", Moments::Entry, "numbr == 8");
    assert!(message.contains("their fields are: key, number"), "{message}");
    assert!(refused("*::get", Moments::Entry, "number ==").contains("does not parse"));
    assert!(refused("*::get", Moments::Entry, "comm == \"x\"").contains("comm"));
    assert_eq!(list(&client, "*").iter().map(|f| f.programs).sum::<u32>(), 0);
    assert!(target.end().success());
}

#[test]
fn u1_what_matches_nothing_is_refused_and_attaches_nothing() {
    let (target, client) = start();
    let recorder = recorder(1 << 20);
    let ask = |patterns: Vec<String>| {
        let work = Work::Record(Moments::Entry);
        let wanted = Attach { patterns, work, filter: String::new() };
        refusal(client.ask(&Request::AttachFunctions(wanted)))
    };
    assert!(ask(vec!["*".to_owned()]).contains("no session"));
    client.attach(&recorder);
    let message = ask(vec!["*::get".to_owned(), "*::gett".to_owned()]);
    assert!(message.contains("no traced function matches `*::gett`"), "{message}");
    ask(Vec::new());
    ask(vec!["*".to_owned(); MAX_PATTERNS + 1]);
    assert!(list(&client, "*").iter().all(|f| f.programs == 0));
    assert!(refusal(client.ask(&Request::Standing { maps: true })).contains("no function"));
    links(&client.ask(&wanted("*", Work::Record(Moments::Entry), "")));
    let again = client.ask(&wanted("*", Work::Record(Moments::Entry), ""));
    assert!(refusal(again).contains("already"));
    assert!(list(&client, "*").iter().all(|f| f.programs == 1));
    assert!(target.end().success());
}

#[test]
fn two_recorders_and_a_third_that_detaches() {
    let (mut target, first) = start();
    let second = Client::connect(target.pid());
    let third = Client::connect(target.pid());
    let (mut one, mut two) = (recorder(1 << 20), recorder(1 << 20));
    assert_eq!(record(&first, &one, "*::other *::get", Moments::Entry, ""), 2);
    run(&mut target, "other 3");
    assert_eq!(record(&second, &two, "*::oth*", Moments::Latency, ""), 1);
    run(&mut target, "other 4");
    assert_eq!((one.drain(), two.drain()), (7, 8));
    let matched =
        third.ask(&Request::DetachFunctions { pattern: "*::other".to_owned(), own: false });
    assert_eq!(matched, Reply::FunctionsMatched { matched: 1, links: 2 });
    let again = third.ask(&Request::DetachFunctions { pattern: "*::other".to_owned(), own: false });
    assert_eq!(again, Reply::FunctionsMatched { matched: 1, links: 0 });
    run(&mut target, "other 5");
    run(&mut target, "get 2 apple");
    assert_eq!((one.drain(), two.drain()), (2, 0));
    let own = second.ask(&Request::DetachFunctions { pattern: "*".to_owned(), own: true });
    assert_eq!(own, Reply::FunctionsMatched { matched: 5, links: 0 }, "the other's is not its own");
    let stands = |client: &Client| -> Vec<_> {
        standing(client).functions.iter().map(|f| (f.calls, f.attached)).collect()
    };
    assert_eq!(stands(&first), [(2, true), (7, false)]);
    assert_eq!(stands(&second), [(4, false)]);
    assert!(target.end().success());
}

#[test]
fn a_recorder_that_goes_away_detaches() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    record(&client, &recorder, "*", Moments::Latency, "");
    let counter = Client::connect(target.pid());
    links(&counter.ask(&wanted("*", Work::Histogram { field: None, by: None }, "")));
    let watcher = Client::connect(target.pid());
    assert!(list(&watcher, "*").iter().all(|f| f.programs == 2));
    drop((client, counter));
    assert!(eventually(LATE, || list(&watcher, "*").iter().all(|f| f.programs == 0)));
    run(&mut target, "other 5");
    assert_eq!(recorder.drain(), 0);
    assert!(target.end().success());
}

#[test]
fn what_is_lost_is_counted() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 16);
    record(&client, &recorder, "*::other", Moments::Entry, "");
    run(&mut target, "threads 4 5000");
    assert_eq!(calls(&client), BTreeMap::from([("functions::other".to_owned(), 20_000)]));
    let there = recorder.drain();
    assert!(there < 20_000, "the ring is too small for all");
    assert_eq!(there as u64 + recorder.lost[Loss::Full.index()], 20_000);
    assert_eq!(recorder.total_lost(), recorder.lost[Loss::Full.index()]);
    assert!(target.end().success());
}

#[test]
fn calls_of_signal_handlers_inside_the_recording_are_recorded_or_counted() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    record(&client, &recorder, "*::other", Moments::Entry, "");
    target.tell("signals 2000");
    let counted: u64 = target.expect("counted").parse().unwrap();
    assert_eq!(recorder.drain() as u64 + recorder.total_lost(), counted);
    let standing = standing(&client);
    assert_eq!((standing.functions[0].calls, standing.missed), (counted, 0));
    assert!(target.end().success());
}

#[test]
fn a6_the_first_calls_of_64_threads_at_one_barrier() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    record(&client, &recorder, "*::other", Moments::Latency, "");
    run(&mut target, "threads 64 20");
    assert_eq!(recorder.drain(), 2 * 64 * 20);
    assert_eq!(recorder.total_lost(), 0);
    let tids: std::collections::BTreeSet<_> =
        recorder.events.iter().map(|event| event.header.tid).collect();
    assert_eq!((tids.len(), recorder.threads.len()), (64, 64));
    let spans: std::collections::BTreeSet<_> =
        recorder.events.iter().map(|event| event.number("span")).collect();
    assert_eq!(spans.len(), 64 * 20);
    assert!(target.end().success());
}

#[test]
fn a_forked_child_records_on_and_counts_for_nobody() {
    let (mut target, client) = start();
    let mut recorder = recorder(1 << 20);
    record(&client, &recorder, "*::other", Moments::Entry, "");
    let counter = Client::connect(target.pid());
    links(&counter.ask(&wanted("*::other", Work::Histogram { field: None, by: None }, "")));
    target.tell("fork 7");
    target.expect("forked");
    assert!(recorder.drain_until(LATE, |r| r.events.len() == 7));
    let pid = recorder.events[0].header.pid;
    assert_ne!(pid, target.pid());
    // Its agent has let go of the histogram; the session is its own.
    let child = Client::connect(pid);
    assert_eq!(list(&child, "*::other")[0].programs, 1);
    assert_eq!((calls(&client).len(), calls(&counter).len()), (0, 0), "the parent called nothing");
    // SAFETY: ends the child of our child, which nobody waits for.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    drop(child);
    drop(target);
}

#[test]
fn histograms_are_exact() {
    let (mut target, client) = start();
    let count = |pattern: &str, field: Option<&str>, by: Option<&str>, filter: &str| {
        let client = Client::connect(target.pid());
        let own = |text: &str| text.to_owned();
        let work = Work::Histogram { field: field.map(own), by: by.map(own) };
        let made = links(&client.ask(&wanted(pattern, work, filter)));
        (client, made)
    };
    let (of_field, one) = count("*::get *::other", Some("number"), None, "");
    let (by_key, two) = count("*::get", Some("ret"), Some("key"), "");
    let (filtered, three) =
        count("*::get", Some("number"), None, "key == \"apple\" and number > 9");
    let (latency, four) = count("*::sleep", None, None, "");
    let (signed, five) = count("*::set", Some("negative"), Some("ret_arg3"), "");
    let (length, six) = count("*::set", Some("key"), None, "");
    assert_eq!([one, two, three, four, five, six], [2, 1, 1, 1, 1, 1]);
    run(&mut target, "get 1000 apple");
    run(&mut target, "get 3 nothing");
    run(&mut target, "other 4");
    run(&mut target, "sleep 10");
    run(&mut target, "set 12");
    let expect = |numbers: &mut dyn Iterator<Item = u64>| {
        let mut buckets = vec![0; 65];
        let mut sum = 0;
        for number in numbers {
            buckets[bucket(number)] += 1;
            sum += number;
        }
        let used = buckets.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
        buckets.truncate(used);
        (buckets, sum)
    };
    let found = |client: &Client| -> Vec<_> {
        let all = standing(client).histograms.into_iter();
        all.map(|h| (h.key, (h.buckets, h.sum), h.negative, h.without)).collect()
    };
    let get = "functions::cmd::get".to_owned();
    let expected = [
        (get.clone(), expect(&mut (0..1000).chain(0..3)), 0, 0),
        ("functions::other".to_owned(), (vec![], 0), 0, 4),
    ];
    assert_eq!(found(&of_field), expected);
    let expected = [
        ("apple".to_owned(), expect(&mut (0..1000).map(|n| 2 * n)), 0, 0),
        ("nothing".to_owned(), (vec![], 0), 0, 3),
    ];
    assert_eq!(found(&by_key), expected);
    assert_eq!(found(&filtered), [(get, expect(&mut (10..1000)), 0, 0)]);
    let expected =
        [("x".to_owned(), (vec![], 0), 1, 0), ("ä".to_owned(), expect(&mut (1..12)), 0, 0)];
    assert_eq!(found(&signed), expected);
    let lengths = expect(&mut (0..12).map(|n| if n < 10 { 4 } else { 5 }));
    assert_eq!(found(&length), [("functions::cmd::set".to_owned(), lengths, 0, 0)]);
    let slept = standing(&latency).histograms;
    let (low, _) = bounds(slept[0].buckets.len() - 1).unwrap();
    assert!(slept[0].buckets.iter().sum::<u64>() == 1 && slept[0].sum >= 10_000_000, "{slept:?}");
    assert!(low <= slept[0].sum, "{slept:?}");
    let work = Work::Histogram { field: Some("numbr".to_owned()), by: None };
    let message = refusal(client.ask(&wanted("*::get", work, "")));
    assert!(message.contains("`numbr`") && message.contains("key, number"), "{message}");
    assert!(target.end().success());
}

#[test]
fn keys_beyond_the_limit_are_counted_together() {
    let (mut target, client) = start();
    let work = Work::Histogram { field: Some("n".to_owned()), by: Some("n".to_owned()) };
    links(&client.ask(&wanted("*::other", work, "")));
    run(&mut target, "other 5000");
    let all = standing(&client).histograms;
    let calls: u64 = all.iter().flat_map(|histogram| &histogram.buckets).sum();
    assert_eq!(calls, 5000, "none is lost");
    let others = all.iter().find(|histogram| histogram.key == "(others)").unwrap();
    let keys = all.len() - 1;
    assert!(keys > 100 && keys <= 256, "{keys}");
    assert_eq!(others.buckets.iter().sum::<u64>(), 5000 - keys as u64);
    assert!(target.end().success());
}

#[test]
fn m5_a_thousand_attaches_leave_nothing_behind() {
    let (mut target, _client) = start();
    let resources = |target: &Target| {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", target.pid())).unwrap().count();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
        (fds, maps.lines().filter(|line| line.contains("memfd:")).count())
    };
    run(&mut target, "other 1");
    let before = resources(&target);
    let mut seen = 0;
    for round in 0..200 {
        let client = Client::connect(target.pid());
        let mut recorder = recorder(1 << 16);
        assert_eq!(record(&client, &recorder, "*", Moments::Latency, ""), 5);
        if round % 20 == 0 {
            run(&mut target, "other 1");
            seen += recorder.drain();
        }
        assert_eq!(client.ask(&Request::Detach), Reply::Detached);
    }
    assert_eq!(seen, 20);
    assert!(eventually(LATE, || resources(&target) == before), "{:?}", resources(&target));
    assert!(target.end().success());
}

#[cfg(not(feature = "ebpf"))]
#[test]
fn a_program_without_the_feature_refuses_ebpf() {
    let (target, client) = start();
    let work = Work::Program { image: vec![0; 64], program: "p".to_owned() };
    assert!(refusal(client.ask(&wanted("*", work, ""))).contains("ebpf"));
    assert!(target.end().success());
}

#[cfg(feature = "ebpf")]
mod ebpf {
    use super::{links, list, refusal, run, start, wanted};
    use owlet_ebpf::asm::{self, Alu, Atomic, Reg};
    use owlet_ebpf::image::{Image, MapDef, PLATFORM, ProgramDef, ProgramKind};
    use owlet_wire::control::{Reply, Request};
    use owlet_wire::functions::{Standing, Work};

    /// Counts calls and sums up their second argument.
    fn image(kind: ProgramKind) -> Vec<u8> {
        let [map, value] = asm::load_map_value(Reg::R6, 0, 0);
        let code = [
            asm::load(8, Reg::R2, Reg::R1, if kind == ProgramKind::Exit { 32 } else { 8 }),
            map,
            value,
            asm::alu_imm(Alu::Mov, Reg::R3, 1),
            asm::atomic(Atomic::Add, true, Reg::R6, 0, Reg::R3),
            asm::atomic(Atomic::Add, true, Reg::R6, 8, Reg::R2),
            asm::alu_imm(Alu::Mov, Reg::R0, 0),
            asm::exit(),
        ];
        let program = ProgramDef {
            name: "sums".to_owned(),
            kind,
            pattern: String::new(),
            code: asm::bytes(&code),
        };
        let maps = vec![MapDef::array("sums", 16, 1)];
        Image { maps, programs: vec![program] }.to_bytes().unwrap()
    }

    fn work(image: &[u8], program: &str) -> Work {
        Work::Program { image: image.to_vec(), program: program.to_owned() }
    }

    fn standing(client: &super::Client) -> Standing {
        match client.ask(&Request::Standing { maps: true }) {
            Reply::Standing(standing) => standing,
            other => panic!("{other:?}"),
        }
    }

    fn sums(standing: &Standing) -> [u64; 2] {
        assert_eq!((standing.maps.len(), standing.maps[0].name.as_str()), (1, "sums"));
        let (key, value) = &standing.maps[0].entries[0];
        assert_eq!(key, &[0; 4]);
        [0, 8].map(|at| u64::from_le_bytes(value[at..at + 8].try_into().unwrap()))
    }

    #[test]
    fn a_program_runs_on_every_call_and_shows_its_maps() {
        for (kind, filter, expected) in [
            (ProgramKind::Entry, "", [100, 99 * 50]),
            (ProgramKind::Entry, "number < 10", [10, 45]),
            (ProgramKind::Exit, "", [100, 99 * 100]),
            (ProgramKind::Exit, "ret < 20", [10, 90]),
            // Entry and exit, each with the argument.
            (ProgramKind::Session, "number < 10", [20, 90]),
        ] {
            let (mut target, client) = start();
            assert_eq!(
                links(&client.ask(&wanted("*::get", work(&image(kind), "sums"), filter))),
                1
            );
            run(&mut target, "get 100 apple");
            let found = standing(&client);
            assert_eq!(sums(&found), expected, "{kind:?} {filter}");
            assert_eq!((found.missed, found.faults), (0, 0));
            assert!(["jit", "interpreter"].contains(&found.engine.as_str()));
            drop(client);
            let client = super::Client::connect(target.pid());
            let gone = || list(&client, "*").iter().all(|f| f.programs == 0);
            assert!(super::eventually(super::LATE, gone));
            assert!(target.end().success());
        }
    }

    #[test]
    fn images_of_another_platform_and_damaged_ones_are_refused() {
        let (target, client) = start();
        let whole = image(ProgramKind::Entry);
        let refused = |image: &[u8], name| refusal(client.ask(&wanted("*", work(image, name), "")));
        let mut other = whole.clone();
        other[12..16].copy_from_slice(&(PLATFORM + 1).to_le_bytes());
        assert!(refused(&other, "sums").contains("version"));
        assert!(refused(&whole, "other").contains("no program `other`"));
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            refused(&damaged, "sums");
            refused(&whole[..at], "sums");
        }
        let late = client.ask(&wanted("*", work(&whole, "sums"), "ret == 1"));
        assert!(refusal(late).contains("at its entry"));
        assert!(list(&client, "*").iter().all(|f| f.programs == 0));
        assert!(target.end().success());
    }
}
