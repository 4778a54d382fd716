//! Sessions, played in one process: what is emitted is what is read back, exactly.

mod common;

use common::{Recorder, Wanted, resources, rules};
use owlet::session::{self, AttachError};
use owlet::{BytesPtr, CStrPtr, Level};
use owlet_ring::Loss;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

owlet::event_enum! {
    /// A state.
    pub enum State: i16 {
        /// Down.
        Down = -1,
        /// Up.
        Up = 7,
    }
}

owlet::tracepoint! {
    /// Events of these tests.
    pub mod rec {
        /// A tick.
        #[level(Info)]
        tick(seq: u64, thread: u32, note: &str);
        #[level(Debug)]
        all(a: u8, b: i8, c: u16, d: i16, e: u32, f: i32, g: u64, h: i64, i: f32, j: f64, k: bool);
        #[level(Trace)]
        more(text: &str, bytes: &[u8], c: &std::ffi::CStr, array: [u16; 3], seq: &[i32],
             state: State, some: Option<&str>, none: Option<u64>, size: usize, nested: Option<State>);
        #[level(Error)]
        raw(text: CStrPtr<'_>, bytes: BytesPtr<'_>);
        blob(bytes: &[u8]);
        strings(a: &str, b: &str, c: &str, d: &str);
    }
}

/// The tests share this process's tracepoints: one at a time.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn every_field_type_comes_back_as_it_was() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted::default());
    let (id, matched) = session::attach(recorder.fd()).unwrap();
    assert_eq!((matched.matched, matched.enabled, matched.known, matched.sessions), (6, 6, 6, 1));
    owlet::trace!(
        rec::all,
        255,
        -128,
        65535,
        -32768,
        u32::MAX,
        i32::MIN,
        u64::MAX,
        i64::MIN,
        f32::NAN,
        f64::INFINITY,
        true
    );
    // C4: embedded NUL, empty, long; P1 has the sizes around the limit.
    let long = "x".repeat(3000);
    owlet::trace!(
        rec::more,
        "a\0b",
        &[0, 255],
        c"c",
        [1, 2, 3],
        &[-1, 1],
        State::Down,
        Some(&long),
        None,
        9,
        Some(State::Up)
    );
    owlet::trace!(rec::more, "", &[], c"", [0; 3], &[], State::Up, None, Some(u64::MAX), 0, None);
    assert!(session::detach(id));
    assert_eq!(recorder.drain(), 3);
    let all = recorder.named("rec:all").next().unwrap();
    let values: Vec<_> = all.values.iter().map(|(_, v)| v.as_str()).collect();
    let expected = [
        "U64(255)",
        "I64(-128)",
        "U64(65535)",
        "I64(-32768)",
        "U64(4294967295)",
        "I64(-2147483648)",
        "U64(18446744073709551615)",
        "I64(-9223372036854775808)",
        "F32(NaN)",
        "F64(inf)",
        "Bool(true)",
    ];
    assert_eq!(values, expected);
    let more: Vec<_> = recorder.named("rec:more").collect();
    assert_eq!(more[0].value("text"), "a\0b");
    assert_eq!(more[0].value("bytes"), "Bytes([0, 255])");
    assert_eq!(more[0].value("array"), "List([U64(1), U64(2), U64(3)])");
    assert_eq!(more[0].value("seq"), "List([I64(-1), I64(1)])");
    assert_eq!(more[0].value("state"), "Enum(-1, Some(\"Down\"))");
    assert_eq!(more[0].value("some"), long);
    assert_eq!(more[0].value("none"), "None");
    assert_eq!(more[0].value("nested"), "Enum(7, Some(\"Up\"))");
    assert_eq!(more[1].value("text"), "");
    assert_eq!(more[1].value("some"), "None");
    assert_eq!(more[1].value("none"), "U64(18446744073709551615)");
    let schema = recorder.schemas.values().find(|s| s.name == "rec:tick").unwrap();
    assert_eq!((schema.level, schema.doc.as_str()), (Level::Info, "A tick."));
    assert!(schema.file.ends_with("record.rs") && schema.line > 0);
    assert_eq!(recorder.total_lost(), 0);
}

#[test]
fn threads_and_process_are_announced_before_their_events() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted::default());
    let (id, _) = session::attach(recorder.fd()).unwrap();
    std::thread::scope(|scope| {
        for n in 0..8u32 {
            let thread = std::thread::Builder::new().name(format!("worker-{n}"));
            thread
                .spawn_scoped(scope, move || {
                    for seq in 0..1000 {
                        owlet::trace!(rec::tick, seq, n, "note");
                    }
                })
                .unwrap();
        }
    });
    session::detach(id);
    assert_eq!(recorder.drain(), 8000);
    assert_eq!(recorder.processes.len(), 1);
    assert_eq!(recorder.processes[0].pid, std::process::id());
    assert_eq!(recorder.threads.len(), 8);
    for event in recorder.named("rec:tick") {
        let thread = recorder.threads.iter().find(|t| t.tid == event.header.tid).unwrap();
        assert_eq!(thread.comm, format!("worker-{}", event.number("thread")).as_bytes());
        assert_eq!(event.header.pid, std::process::id());
    }
    for n in 0..8 {
        let mut own: Vec<_> =
            recorder.named("rec:tick").filter(|e| e.number("thread") == n).collect();
        own.sort_by_key(|event| event.header.time);
        assert!(own.iter().enumerate().all(|(i, e)| e.number("seq") == i as u64), "a gap");
    }
}

#[test]
fn rules_level_and_filter_decide_and_the_last_match_wins() {
    let _one = one();
    let wanted = Wanted { rules: vec![("rec:*", true), ("rec:r?w", false)], ..Wanted::default() };
    let recorder = Recorder::new(&Wanted { level: Level::Info, ..wanted });
    let (id, matched) = session::attach(recorder.fd()).unwrap();
    // all and more are below the level, raw is switched off again.
    assert_eq!((matched.matched, matched.enabled), (6, 3));
    assert!(owlet::enabled!(rec::tick) && !owlet::enabled!(rec::raw) && !owlet::enabled!(rec::all));
    let matched =
        session::control(Some(id), &rules(&[("rec:raw", true), ("rec:t*", false)])).unwrap();
    assert_eq!((matched.matched, matched.enabled, matched.sessions), (2, 3, 1));
    assert!(!owlet::enabled!(rec::tick) && owlet::enabled!(rec::raw));
    session::detach(id);
    assert!(!owlet::enabled!(rec::raw));

    let mut recorder =
        Recorder::new(&Wanted { filter: "seq >= 5 and note == \"yes\"", ..Wanted::default() });
    let (id, _) = session::attach(recorder.fd()).unwrap();
    for seq in 0..10 {
        owlet::trace!(rec::tick, seq, 0, if seq % 2 == 0 { "yes" } else { "no" });
    }
    session::detach(id);
    recorder.drain();
    let seqs: Vec<_> = recorder.named("rec:tick").map(|event| event.number("seq")).collect();
    assert_eq!(seqs, [6, 8]);
    assert_eq!(recorder.total_lost(), 0);
    let broken = Recorder::new(&Wanted { filter: "seq >", ..Wanted::default() });
    assert!(matches!(session::attach(broken.fd()), Err(AttachError::Filter(_))));
}

#[test]
fn sessions_do_not_disturb_one_another() {
    let _one = one();
    let mut first = Recorder::new(&Wanted::default());
    let mut second = Recorder::new(&Wanted { filter: "seq < 3", ..Wanted::default() });
    let (a, _) = session::attach(first.fd()).unwrap();
    let (b, _) = session::attach(second.fd()).unwrap();
    assert!(matches!(session::attach(first.fd()), Err(AttachError::Twice)));
    for seq in 0..5 {
        owlet::trace!(rec::tick, seq, 0, "");
    }
    session::detach(a);
    owlet::trace!(rec::tick, 1, 1, "");
    session::detach(b);
    assert!(!session::detach(b));
    owlet::trace!(rec::tick, 1, 2, "");
    assert_eq!((first.drain(), second.drain()), (5, 4));
}

#[test]
fn p1_too_large_is_counted_and_nothing_else_is_lost() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted::default());
    let max = recorder.segment.max_record();
    let (id, _) = session::attach(recorder.fd()).unwrap();
    let bytes = vec![7; max + 1];
    // Header, count, bytes.
    let fits = max - 24 - 4;
    for round in 1..=10 {
        for len in [fits - 1, fits, fits + 1] {
            owlet::trace!(rec::blob, &bytes[..len]);
        }
        assert_eq!(recorder.drain(), 2, "round {round}");
        assert_eq!(recorder.lost[Loss::TooLarge.index()], round);
        assert_eq!(recorder.total_lost(), round);
    }
    session::detach(id);
}

#[test]
fn sixteen_sessions_and_no_more() {
    let _one = one();
    let recorders: Vec<_> = (0..17)
        .map(|_| Recorder::new(&Wanted { ring_bytes: 1 << 16, ..Wanted::default() }))
        .collect();
    let mut ids = Vec::new();
    for (n, recorder) in recorders.iter().enumerate() {
        match session::attach(recorder.fd()) {
            Ok((id, _)) => ids.push(id),
            Err(AttachError::TooMany) => assert_eq!(n, 16),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(ids.len(), 16);
    owlet::trace!(rec::tick, 1, 2, "3");
    ids.into_iter().for_each(|id| assert!(session::detach(id)));
    for mut recorder in recorders.into_iter().take(16) {
        assert_eq!(recorder.drain(), 1);
    }
}

#[test]
fn m5_a_thousand_sessions_leave_nothing_behind() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted { ring_bytes: 1 << 16, ..Wanted::default() });
    let round = |recorder: &Recorder| {
        let (id, _) = session::attach(recorder.fd()).unwrap();
        owlet::trace!(rec::tick, 1, 2, "3");
        assert!(session::detach(id));
    };
    round(&recorder);
    let before = resources();
    for _ in 0..1000 {
        round(&recorder);
    }
    assert_eq!(resources(), before);
    recorder.drain();
    assert_eq!(recorder.events.len(), 1001);
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn racing_text_and_bytes_are_copied_bounded() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted::default());
    let (id, _) = session::attach(recorder.fd()).unwrap();
    // A NUL that comes and goes, and a last one that stays.
    let text: Vec<std::sync::atomic::AtomicU8> =
        (0..200).map(|i| if i == 199 { 0 } else { b'a' }.into()).collect();
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut emitted = 1;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = turns.fetch_add(1, Ordering::Relaxed);
                text[150].store(if n.is_multiple_of(2) { 0 } else { b'b' }, Ordering::Relaxed);
            }
        });
        // Also when an event does not decode: the thread would keep the test from ending.
        let _end = Stop(&stop);
        let mut overlapping = 0;
        while overlapping < 5_000 {
            let before = turns.load(Ordering::Relaxed);
            // SAFETY: the buffer outlives the call, and its last byte is always zero.
            let racing = unsafe { CStrPtr::new(text.as_ptr().cast()) };
            // SAFETY: as above.
            let bytes = unsafe { BytesPtr::new(text.as_ptr().cast(), text.len()) };
            owlet::trace!(rec::raw, racing, bytes);
            emitted += 1;
            overlapping += u32::from(turns.load(Ordering::Relaxed) != before);
            recorder.drain();
        }
    });
    // SAFETY: null reads as empty.
    owlet::trace!(rec::raw, unsafe { CStrPtr::new(std::ptr::null()) }, unsafe {
        BytesPtr::new(std::ptr::null(), 9)
    });
    session::detach(id);
    recorder.drain();
    // Decoding in `drain` has checked that every event is exactly as long as its fields say.
    assert_eq!(recorder.events.len() as u64, emitted);
    assert_eq!((recorder.corrupt, recorder.total_lost()), (0, 0));
    assert!(recorder.events.iter().all(|event| event.value("text").len() < 200));
}

#[test]
fn external_parts_keep_their_order() {
    let _one = one();
    let mut recorder = Recorder::new(&Wanted::default());
    let (id, _) = session::attach(recorder.fd()).unwrap();
    for len in [0, 1, 63, 64, 65, 500, 5000] {
        let text = |c: char| c.to_string().repeat(len);
        owlet::trace!(rec::strings, &text('a'), "short", &text('b'), &text('c'));
    }
    session::detach(id);
    recorder.drain();
    for (event, len) in recorder.named("rec:strings").zip([0, 1, 63, 64, 65, 500, 5000]) {
        for (field, c) in [("a", "a"), ("c", "b"), ("d", "c")] {
            assert_eq!(event.value(field), c.repeat(len));
        }
        assert_eq!(event.value("b"), "short");
    }
    assert_eq!(recorder.events.len(), 7);
}
