//! Records of hits: what they hold, and which returns belong to which entries.

use super::{Events, Paired, cut};
use crate::attach::Moments;
use crate::hit::Hit;
use crate::program::{HEAD, Operand, SLOTS, WORDS_MAX, ZERO};
use crate::sites::{Of, Site};
use crate::usdt::{Argument, Place};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{Kind, MAX_NAME};
use owlet_wire::value::{Value, take};
use std::collections::HashMap;

fn function(name: &str) -> Site {
    Site { name: name.into(), file: 0, offset: 0x10, semaphore: 0, of: Of::Function }
}

fn hit(site: usize, on_return: bool, time: u64, stack: u64) -> Hit {
    let words = [time + 1, 2, 3, 4, 5, 6];
    Hit {
        time,
        site,
        on_return,
        pid: 7,
        tid: 8,
        cpu: 0,
        stack,
        unread: 0,
        name: [0; 16],
        words,
        probe: None,
    }
}

/// The records of those hits: name, kind, and the fields by name.
fn records(sites: &[Site], moments: Moments, hits: &[Hit]) -> (Vec<String>, Events) {
    let schemas: HashMap<_, _> = Events::schemas(sites, moments).into_iter().collect();
    for schema in schemas.values() {
        schema.check().unwrap();
    }
    let mut events = Events::new(sites, moments, 0);
    let mut bytes = Vec::new();
    hits.iter().for_each(|hit| events.push(hit, &mut bytes));
    let mut rest = bytes.as_slice();
    let mut out = Vec::new();
    while let Some(header) = RecordHeader::read(rest) {
        let schema = &schemas[&header.id];
        let mut payload = &rest[RECORD_HEADER_LEN..header.len as usize];
        let mut line = format!("{} {}", header.time, schema.name);
        if schema.kind != Kind::Event {
            line += &format!(" {:?}", schema.kind);
        }
        for field in &schema.fields {
            let value = match take(&field.ty, &mut payload).unwrap() {
                Value::U64(n) => n.to_string(),
                Value::I64(n) => n.to_string(),
                other => format!("{other:?}"),
            };
            line += &format!(" {}={value}", field.name);
        }
        assert!(payload.is_empty(), "{line}");
        assert_eq!((header.pid, header.tid), (7, 8));
        out.push(line);
        rest = &rest[header.advance()..];
    }
    assert!(rest.is_empty());
    (out, events)
}

#[test]
fn entries_and_returns_are_events() {
    let sites = [function("x:f")];
    let hits = [hit(0, false, 10, 100), hit(0, true, 20, 108)];
    let entry = "10 x:f arg0=11 arg1=2 arg2=3 arg3=4 arg4=5 arg5=6";
    let (both, events) = records(&sites, Moments::Both, &hits);
    assert_eq!(both, [entry, "20 x:f%return ret=21"]);
    assert_eq!(events.counts(), [1]);
    let (exit, events) = records(&sites, Moments::Exit, &hits[1..]);
    assert_eq!(
        (exit.as_slice(), events.counts()),
        (&["20 x:f%return ret=21".to_owned()][..], &[1][..])
    );
}

#[test]
fn calls_are_spans_inside_one_another() {
    let sites = [function("f"), function("g")];
    let hits = [
        hit(0, false, 10, 100),
        hit(1, false, 12, 80),
        hit(1, true, 15, 88),
        hit(0, true, 20, 108),
    ];
    let (lines, events) = records(&sites, Moments::Latency, &hits);
    let expected = [
        "10 f SpanNew span=1 parent=0 arg0=11 arg1=2 arg2=3 arg3=4 arg4=5 arg5=6",
        "10 f SpanEnter span=1",
        "12 g SpanNew span=2 parent=1 arg0=13 arg1=2 arg2=3 arg3=4 arg4=5 arg5=6",
        "12 g SpanEnter span=2",
        "15 g SpanExit span=2",
        "15 g SpanClose span=2 duration_ns=3 ret=16",
        "20 f SpanExit span=1",
        "20 f SpanClose span=1 duration_ns=10 ret=21",
    ];
    assert_eq!(lines, expected);
    assert_eq!((events.counts(), events.running()), (&[1, 1][..], 0));
    assert_eq!(events.paired(), Paired::default());
}

/// Durations of the spans that were closed, and how the rest was paired.
#[track_caller]
fn pair(hits: &[Hit], durations: &[u64], without_entry: u64, without_return: u64, running: usize) {
    let sites = [function("f"), function("g")];
    let (lines, events) = records(&sites, Moments::Latency, hits);
    let closed: Vec<u64> = lines
        .iter()
        .filter_map(|line| line.split_once("duration_ns=")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(closed, durations, "{lines:#?}");
    assert_eq!(events.paired(), Paired { without_entry, without_return });
    assert_eq!(events.running(), running);
}

#[test]
fn a_return_is_never_paired_with_another_call() {
    // Begun before.
    pair(&[hit(0, true, 5, 108)], &[], 1, 0, 0);
    // The inner return is lost: the outer one is still its own.
    pair(&[hit(0, false, 1, 100), hit(0, false, 2, 80), hit(0, true, 9, 108)], &[8], 0, 1, 0);
    // The outer entry is lost.
    pair(&[hit(0, false, 2, 80), hit(0, true, 4, 88), hit(0, true, 9, 108)], &[2], 1, 0, 0);
    // Left by an exception: the next call, further up, finds it gone.
    pair(&[hit(0, false, 1, 80), hit(0, false, 5, 100), hit(0, true, 9, 108)], &[4], 0, 1, 0);
    // A tail call: both return at once, the inner one first.
    let tail =
        [hit(0, false, 1, 100), hit(1, false, 3, 100), hit(1, true, 7, 108), hit(0, true, 8, 108)];
    pair(&tail, &[4, 7], 0, 0, 0);
    // Another function returns there: not ours.
    pair(&[hit(0, false, 1, 100), hit(1, true, 3, 108)], &[], 1, 0, 1);
}

#[test]
fn threads_have_stacks_of_their_own_and_endless_ones_are_cut() {
    let mut other = hit(0, true, 9, 108);
    other.tid = 99;
    let sites = [function("f")];
    let mut events = Events::new(&sites, Moments::Latency, 0);
    let mut out = Vec::new();
    for hit in [hit(0, false, 1, 100), other] {
        events.push(&hit, &mut out);
    }
    assert_eq!(events.paired().without_entry, 1);
    for n in 0..3000u64 {
        events.push(&hit(0, false, n, 100), &mut out);
    }
    assert_eq!((events.running(), events.paired().without_return), (1024, 3001 - 1024));
}

#[test]
fn a_probes_arguments_have_its_widths() {
    let argument = |size: u8, signed, place| Argument { size, signed, place };
    let memory = Operand { base: 0, index: ZERO, shift: 0, size: 4, displacement: 0 };
    let arguments = vec![
        argument(4, true, Place::Constant(-5)),
        argument(1, false, Place::Register(3, 8)),
        argument(8, false, Place::Unknown),
        argument(4, true, Place::Memory(memory)),
        argument(8, false, Place::Memory(memory)),
        argument(2, true, Place::Register(0, 0)),
    ];
    let site = Site { of: Of::Probe(arguments), ..function("p:n") };
    // As the program writes it: registers, then operands.
    let mut words = [0u64; WORDS_MAX];
    let name = u64::from_ne_bytes(*b"worker\0\0");
    words[..HEAD].copy_from_slice(&[10, 0, 7 << 32 | 8, 2 << 32, 100, name, 0]);
    words[HEAD] = 0xffff_ffff;
    words[HEAD + 3] = 0x1234;
    words[HEAD + SLOTS] = 0xffff_fffe;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let hit = Hit::read(&bytes);
    assert_eq!(hit.thread_name(), b"worker");
    let (lines, events) = records(&[site], Moments::Entry, &[hit]);
    // The second operand could not be read.
    assert_eq!(lines, ["10 p:n arg0=-5 arg1=18 arg3=-2 arg4=None arg5=-1"]);
    assert_eq!(events.counts(), [1]);
}

#[test]
fn long_names_lose_their_middle() {
    let name = format!("x:{}end", "\u{e9}".repeat(MAX_NAME));
    let made = cut(&name, "%return");
    assert!(made.len() <= MAX_NAME && made.starts_with("x:") && made.ends_with("end%return"));
    assert_eq!(cut("x:f", "%return"), "x:f%return");
}
