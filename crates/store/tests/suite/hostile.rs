//! Files that no recorder wrote. Nothing panics, nothing hangs, nothing is believed.

use crate::common::{dump, encode, meta, packet, push, rich, tick, tick_payload, write_ticks};
use owlet_store::{ErrorKind, StreamName, TraceReader, TraceWriter, recover};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FILES: [&str; 4] = ["cpu_0", "threads", ".owlet", "metadata"];

fn copy(from: &Path, to: &Path) {
    for file in FILES {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

fn events(dump: &str) -> Vec<&str> {
    dump.lines().filter(|line| line.contains("demo:tick")).collect()
}

fn open_error(dir: &Path) -> (ErrorKind, String) {
    let error = TraceReader::open(dir).unwrap_err();
    assert!(error.to_string().starts_with(&dir.display().to_string()), "{error}");
    assert!(!error.hint().is_empty(), "{error} has no hint");
    (error.kind, error.what)
}

/// L8: a recorder killed at any byte leaves every whole packet readable.
#[test]
fn l8_truncated_at_every_byte() {
    let source = tempfile::tempdir().unwrap();
    write_ticks(source.path(), 7).finish().unwrap();
    let full = dump(source.path());
    let whole = fs::read(source.path().join("cpu_0")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    copy(source.path(), dir.path());
    let mut last = 0;
    for cut in 0..whole.len() {
        fs::write(dir.path().join("cpu_0"), &whole[..cut]).unwrap();
        let now = dump(dir.path());
        let events = events(&now);
        assert!(crate::hostile::events(&full).starts_with(&events), "cut at {cut}:\n{now}");
        assert!(events.len() >= last && events.len() - last <= 3);
        last = events.len();
        // Said, between two packets, too; and it is no notice, since the recording ended in order.
        let trace = TraceReader::open(dir.path()).unwrap();
        let told: Vec<_> = trace.problems().iter().map(ToString::to_string).collect();
        let missing = format!(", with {} of 7 events", 7 - events.len());
        assert!(told.iter().any(|told| told.ends_with(&missing)), "cut at {cut}:\n{now}");
        assert!(trace.problems().iter().all(|problem| !problem.notice));
    }
    assert_eq!(last, 6);
}

/// The sidecar cut at any byte: the metadata describes the rest. Without that, an error with a hint, or
/// what is whole before the cut.
#[test]
fn sidecar_truncated_at_every_byte() {
    let source = tempfile::tempdir().unwrap();
    write_ticks(source.path(), 2).finish().unwrap();
    let whole = fs::read(source.path().join(".owlet")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    copy(source.path(), dir.path());
    let outcomes = || {
        let mut outcomes = std::collections::BTreeSet::new();
        for cut in 0..whole.len() {
            fs::write(dir.path().join(".owlet"), &whole[..cut]).unwrap();
            match TraceReader::open(dir.path()) {
                Ok(trace) => {
                    assert!(!trace.finished() && !trace.problems().is_empty());
                    outcomes.insert(format!("schemas {}", trace.schemas().len()));
                }
                Err(error) => {
                    assert!(!error.hint().is_empty() && !error.hint().contains("owlet recover"));
                    outcomes.insert(format!("{:?}", error.kind));
                }
            }
        }
        outcomes.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(outcomes(), ["schemas 1"]);
    fs::remove_file(dir.path().join("metadata")).unwrap();
    assert_eq!(outcomes(), ["Corrupt", "schemas 0", "schemas 1"]);
}

/// R1: every length and every other word of a packet header at its extremes.
#[test]
fn r1_header_words_at_their_extremes() {
    let source = tempfile::tempdir().unwrap();
    write_ticks(source.path(), 7).finish().unwrap();
    let whole = fs::read(source.path().join("cpu_0")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    copy(source.path(), dir.path());
    let second = u64::from_le_bytes(whole[56..64].try_into().unwrap()) as usize / 8;
    let words: &[(usize, usize)] = &[
        (0, 4),
        (20, 4),
        (24, 8),
        (32, 8),
        (40, 8),
        (48, 8),
        (56, 8),
        (64, 8),
        (72, 8),
        (80, 4),
        (88, 8),
        (96, 4),
        (100, 4),
    ];
    for start in [0, second] {
        for (at, size) in words {
            for value in [0, 1, 7, 8, 0xff, 1 << 31, u64::MAX >> 1, u64::MAX - 7, u64::MAX] {
                let mut bytes = whole.clone();
                let word = &mut bytes[start + at..start + at + size];
                word.copy_from_slice(&value.to_le_bytes()[..*size]);
                fs::write(dir.path().join("cpu_0"), &bytes).unwrap();
                let text = dump(dir.path());
                assert!(!text.starts_with("error"), "{text}");
                if *at == 100 {
                    // A record's length: under 24, or over what is left.
                    assert!(text.contains("record of impossible length"), "{value}:\n{text}");
                }
                let done = recover(dir.path()).unwrap();
                if let [cut] = &done.cut[..] {
                    // What was cut is kept, byte for byte, and so is all the rest.
                    let kept = fs::read(dir.path().join(".cut-cpu_0")).unwrap();
                    let left = fs::read(dir.path().join("cpu_0")).unwrap();
                    let at = cut.offset as usize;
                    assert!(cut.file == "cpu_0" && cut.bytes == kept.len() as u64);
                    assert_eq!([&left[..at], &kept, &left[at..]].concat(), bytes);
                    // Both of the other packets are still there.
                    assert!(
                        events(&dump(dir.path())).len() >= 4 - usize::from(start != 0),
                        "{text}"
                    );
                    fs::remove_file(dir.path().join(".cut-cpu_0")).unwrap();
                }
            }
        }
    }
}

/// R1: a packet that claims the next one's bytes, and one that claims half a terabyte.
#[test]
fn r1_packets_that_claim_more() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 7).finish().unwrap();
    let path = dir.path().join("cpu_0");
    let whole = fs::read(&path).unwrap();
    let size = u64::from_le_bytes(whole[56..64].try_into().unwrap());
    let mut bytes = whole.clone();
    bytes[48..56].copy_from_slice(&(size + 64).to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let text = dump(dir.path());
    assert!(text.contains("impossible packet") && events(&text).len() == 4, "{text}");

    let mut bytes = whole;
    for at in [48, 56] {
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 42).to_le_bytes());
    }
    fs::write(&path, &bytes).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let begun = Instant::now();
    let text = dump(dir.path());
    assert!(text.contains("impossible packet") && events(&text).len() == 4, "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20), "a terabyte was searched");
}

/// Garbage in any place of a stream costs the packets it lies in, before and after recovery.
#[test]
fn damage_costs_the_packet_it_lies_in() {
    let source = tempfile::tempdir().unwrap();
    write_ticks(source.path(), 12).finish().unwrap();
    let full = dump(source.path());
    let whole = fs::read(source.path().join("cpu_0")).unwrap();
    let size = |at: usize| u64::from_le_bytes(whole[at + 56..at + 64].try_into().unwrap()) / 8;
    let mut starts = vec![0];
    while let Some(&last) = starts.last().filter(|last| **last < whole.len()) {
        starts.push(last + size(last) as usize);
    }
    assert_eq!(starts.len(), 5, "four packets");
    for packet in 0..4 {
        let mut garbled = whole.clone();
        garbled[starts[packet]..starts[packet] + 30].fill(0x5a);
        let inserted = [&whole[..starts[packet]], &[7; 777], &whole[starts[packet]..]].concat();
        for (bytes, kept) in [(garbled, 9), (inserted, 12)] {
            let dir = tempfile::tempdir().unwrap();
            copy(source.path(), dir.path());
            fs::write(dir.path().join("cpu_0"), &bytes).unwrap();
            let before = dump(dir.path());
            let problem = format!("problem cpu_0 at byte {}: no packet begins", starts[packet]);
            assert!(before.contains(&problem), "{before}");
            assert_eq!(events(&before).len(), kept, "{before}");
            assert!(events(&before).iter().all(|event| full.contains(event)));
            let done = recover(dir.path()).unwrap();
            let gap = if kept == 9 { starts[packet + 1] - starts[packet] } else { 777 };
            assert!(done.damaged() == gap as u64 && !done.cut[0].torn, "{done:?}");
            assert_eq!(done.remaining.is_empty(), kept == 12, "{done:?}");
            assert_eq!(events(&dump(dir.path())), events(&before));
            assert_eq!(fs::read(dir.path().join(".cut-cpu_0")).unwrap().len(), gap);
        }
    }
}

/// The sidecar names the streams: one that is gone is told, by the reader and by recovery.
#[test]
fn a_missing_stream_is_told() {
    for name in ["cpu_0", "threads"] {
        let dir = tempfile::tempdir().unwrap();
        write_ticks(dir.path(), 7).finish().unwrap();
        assert!(TraceReader::open(dir.path()).unwrap().problems().is_empty());
        fs::remove_file(dir.path().join(name)).unwrap();
        let told = |problems: &[owlet_store::Problem]| {
            let [problem] = problems else { panic!("{problems:?}") };
            assert_eq!((problem.file.as_str(), problem.repairable), (name, false));
            assert!(problem.message.starts_with("the file is missing"), "{problem}");
        };
        told(TraceReader::open(dir.path()).unwrap().problems());
        told(&recover(dir.path()).unwrap().remaining);
    }
}

/// A changed bit anywhere in the sidecar is told.
#[test]
fn sidecar_damage_is_told() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 2).finish().unwrap();
    let path = dir.path().join(".owlet");
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let text = dump(dir.path());
        let told = text.starts_with("error") || text.contains("problem .owlet at byte");
        assert!(told, "byte {at}:\n{text}");
        // The version alone is believed.
        assert!((8..12).contains(&at) || events(&text).len() == 2, "byte {at}:\n{text}");
    }
}

/// One changed bit in the sidecar costs no event, before and after recovery, and no description in the
/// metadata: what the sidecar no longer says is learnt from there.
#[test]
fn damage_of_the_sidecar_costs_no_description() {
    let (rich, values) = rich();
    for at in [20, 40, 150, 200, 260, 400, 600] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = write_ticks(dir.path(), 7);
        writer.add_schema(2, &rich).unwrap();
        let mut run = Vec::new();
        push(&mut run, 2000, 2, 101, &encode(&rich, &values));
        let done = writer.append_packet(StreamName::cpu(1), &packet(&run, 0, 2000, 0)).unwrap();
        assert_eq!(done.events, 1);
        writer.finish().unwrap();
        let full = dump(dir.path());
        let lines = |text: &str| {
            let found =
                text.lines().filter(|line| line.contains("demo:tick") || line.contains("app:rich"));
            found.map(|line| line.replace(" BROKEN", "")).collect::<Vec<_>>()
        };
        assert_eq!(lines(&full).len(), 8);
        let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
        let (mut sidecar, metadata) = (read(".owlet"), read("metadata"));
        sidecar[at] ^= 1;
        fs::write(dir.path().join(".owlet"), &sidecar).unwrap();
        let before = dump(dir.path());
        assert_eq!(lines(&before).len(), 8, "byte {at}:\n{before}");
        assert!(before.contains("problem .owlet at byte"), "byte {at}:\n{before}");
        // Times are the same to the last digit, and so are all values of what is still described.
        let ticks = |text: &str| {
            lines(text).iter().filter(|l| l.contains("tick")).cloned().collect::<Vec<_>>()
        };
        assert_eq!(ticks(&before), ticks(&full), "byte {at}");
        let done = recover(dir.path()).unwrap();
        assert!(done.cut.is_empty() && !done.metadata_rewritten, "byte {at}: {done:?}");
        assert!(done.remaining.iter().any(|problem| !problem.notice), "byte {at}: {done:?}");
        assert_eq!((read(".owlet"), read("metadata")), (sidecar, metadata), "byte {at}");
    }
}

/// Without a sidecar the streams are read as the metadata describes them; there is nothing to repair.
#[test]
fn a_missing_sidecar_costs_no_event() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 7).finish().unwrap();
    let full = dump(dir.path());
    fs::remove_file(dir.path().join(".owlet")).unwrap();
    let text = dump(dir.path());
    assert_eq!(events(&text), events(&full));
    assert!(text.contains("problem .owlet at byte 0: the file is missing: "), "{text}");
    assert!(!text.contains("not ended in order"), "{text}");
    let error = recover(dir.path()).unwrap_err();
    assert!(error.what.contains(".owlet file is missing") && error.hint().contains("report"));
}

/// A metadata that says otherwise than the whole sidecar is written anew, and kept.
#[test]
fn a_metadata_that_is_replaced_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 7).finish().unwrap();
    let path = dir.path().join("metadata");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..300]).unwrap();
    assert!(recover(dir.path()).unwrap().metadata_rewritten);
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert_eq!(fs::read(dir.path().join(".cut-metadata")).unwrap(), whole[..300]);
    assert!(!recover(dir.path()).unwrap().metadata_rewritten);
}

/// X5: directories that are no trace of ours, each told for what it is.
#[test]
fn x5_strangers() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(open_error(&at("nosuch")).0, ErrorKind::NotFound);
    fs::write(at("file"), "x").unwrap();
    assert_eq!(open_error(&at("file")).0, ErrorKind::NotADirectory);
    let make = |name: &str, file: &str, content: &[u8]| {
        fs::create_dir_all(at(name)).unwrap();
        fs::write(at(name).join(file), content).unwrap();
        open_error(&at(name))
    };
    let text = make("empty", "note", b"");
    assert_eq!(text, (ErrorKind::NotATrace, "not an owlet trace".to_owned()));
    let other = "a CTF trace of another tracer";
    assert_eq!(make("ctf", "metadata", b"/* CTF 1.8 */\n").1, other);
    // LTTng's metadata is in packets.
    assert_eq!(make("lttng", "metadata", &[0x57, 0x1d, 0xd1, 0x75, 0, 0]).1, other);
    fs::create_dir_all(at("session/ust/uid")).unwrap();
    assert!(open_error(&at("session")).1.contains("LTTng session"));
    // Like /etc.
    fs::create_dir_all(at("other/kernel")).unwrap();
    assert_eq!(open_error(&at("other")).1, "not an owlet trace");
    make("kernel/kernel", "metadata", b"");
    assert!(open_error(&at("kernel")).1.contains("LTTng session"));
    let lost = make("lost", "metadata", b"/* CTF 1.8 */\nenv { tracer_name = \"owlet\"; };");
    assert!(lost.1.contains(".owlet file is missing"));

    let error = TraceReader::open(&{
        fs::create_dir(at("garbage")).unwrap();
        fs::write(at("garbage/.owlet"), b"garbage garbage garbage").unwrap();
        at("garbage")
    })
    .unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotATrace);
    fs::write(at("garbage/.owlet"), b"OWLTRACE\x02\0\0\0").unwrap();
    let error = TraceReader::open(&at("garbage")).unwrap_err();
    assert_eq!(error.what, "trace of format 2; this owlet reads 1");
    assert_eq!(error.kind, ErrorKind::Version);
    assert!(recover(&at("garbage")).is_err());
    assert_eq!(fs::read(at("garbage/.owlet")).unwrap(), b"OWLTRACE\x02\0\0\0", "left alone");
}

/// Repair touches nothing outside the trace, and no device: a link stays, and what it leads to.
#[test]
fn recovery_follows_no_link() {
    for name in ["metadata", "cpu_0"] {
        let dir = tempfile::tempdir().unwrap();
        let (trace, other) = (dir.path().join("t"), dir.path().join("other"));
        drop(write_ticks(&trace, 4));
        let mut content = fs::read(trace.join(name)).unwrap();
        content.truncate(content.len() - 10);
        fs::write(&other, &content).unwrap();
        fs::remove_file(trace.join(name)).unwrap();
        std::os::unix::fs::symlink(&other, trace.join(name)).unwrap();
        let error = recover(&trace).unwrap_err();
        assert_eq!(error.path, trace.join(name));
        assert_eq!(error.what, "is no regular file, and is left as it is");
        assert!(fs::symlink_metadata(trace.join(name)).unwrap().is_symlink());
        assert_eq!(fs::read(&other).unwrap(), content);
    }
}

/// A stream of another trace cannot be repaired here: it is told and left as it is.
#[test]
fn a_stream_of_another_trace_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 7).finish().unwrap();
    let path = dir.path().join("cpu_0");
    let mut bytes = fs::read(&path).unwrap();
    // Every packet's uuid.
    let starts: Vec<_> =
        bytes.windows(20).enumerate().filter(|(_, w)| w[4..] == meta().uuid).map(|w| w.0).collect();
    starts.iter().for_each(|at| bytes[at + 4] ^= 1);
    fs::write(&path, &bytes).unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    let told: Vec<_> = trace.problems().iter().map(ToString::to_string).collect();
    assert!(told[0].starts_with("cpu_0 at byte 0: packet of another trace"), "{told:?}");
    assert!(told[1].ends_with("3 of 3 packets are missing, with 7 of 7 events"), "{told:?}");
    assert!(trace.problems().iter().all(|problem| !problem.repairable && !problem.notice));
    let done = recover(dir.path()).unwrap();
    assert!(done.cut.is_empty() && done.remaining.len() == 2, "{done:?}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

/// A stream's file that was copied inside the directory, or over another's, is told and not read twice.
#[test]
fn a_copy_of_a_stream_is_left_out() {
    let make = || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = write_ticks(dir.path(), 7);
        let mut run = Vec::new();
        push(&mut run, 2000, 1, 101, &tick_payload(7, b""));
        let _ = writer.append_packet(StreamName::cpu(1), &packet(&run, 0, 2000, 3)).unwrap();
        writer.finish().unwrap();
        dir
    };
    for (copy, left) in [("cpu_9", 8), ("portable_0", 8), ("cpu_1", 7)] {
        let dir = make();
        fs::copy(dir.path().join("cpu_0"), dir.path().join(copy)).unwrap();
        let text = dump(dir.path());
        assert_eq!(events(&text).len(), left, "{text}");
        assert!(text.contains(&format!("problem {copy} at byte 0: a copy of cpu_0")), "{text}");
    }
    // A changed bit in the only packet's number makes no copy, and a stream under another's name is read.
    let dir = make();
    let mut bytes = fs::read(dir.path().join("cpu_1")).unwrap();
    let second = u64::from_le_bytes(bytes[56..64].try_into().unwrap()) as usize / 8;
    bytes[24] ^= 1;
    bytes[second + 24] ^= 1;
    fs::write(dir.path().join("cpu_1"), bytes).unwrap();
    let text = dump(dir.path());
    assert!(
        events(&text).len() == 8 && text.contains("problem cpu_1 at byte 0: 2 packets are"),
        "{text}"
    );
    let dir = make();
    fs::rename(dir.path().join("cpu_0"), dir.path().join("cpu_9")).unwrap();
    assert_eq!(events(&dump(dir.path())).len(), 8);
}

/// A record's time outside its packet's is noticed, and moves nothing else.
#[test]
fn a_time_outside_its_packet_is_told() {
    for (at, told) in [(88 + 6, "is outside"), (88, "is outside")] {
        let dir = tempfile::tempdir().unwrap();
        write_ticks(dir.path(), 7).finish().unwrap();
        let full = dump(dir.path());
        let path = dir.path().join("cpu_0");
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 0x40;
        fs::write(&path, bytes).unwrap();
        let text = dump(dir.path());
        assert!(
            text.contains("problem cpu_0 at byte 88: the time of an event") && text.contains(told),
            "{text}"
        );
        assert_eq!(events(&text), events(&full)[1..]);
        assert!(!text.contains("time goes back"), "{text}");
    }
}

/// A FIFO or a directory by the name of a stream neither blocks nor fails the rest.
#[test]
fn odd_files_do_not_block() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 4).finish().unwrap();
    fs::create_dir(dir.path().join("cpu_7")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("cpu_8")).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("cpu_9")).unwrap();
    for other in ["cpu_x", "cpu_01", "cpu_", "cpu_99999999999", "notes.txt"] {
        fs::write(dir.path().join(other), "x").unwrap();
    }
    let begun = Instant::now();
    let text = dump(dir.path());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(events(&text).len(), 4);
    assert_eq!(text.matches("not a regular file").count(), 3, "{text}");
    assert!(!text.contains("cpu_01") && !text.contains("cpu_x"));
    let fifo = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(fifo.path().join(".owlet")).status().unwrap().success());
    assert!(TraceReader::open(fifo.path()).is_err());
}

/// A file that is nothing but empty packets, or one record over and over: bounded problems.
#[test]
fn problems_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    let mut run = Vec::new();
    for seq in 0..5000 {
        push(&mut run, 1000, 1, 101, &tick_payload(seq, b""));
    }
    let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 1000, 0)).unwrap();
    writer.finish().unwrap();
    // Change the ids behind the writer's back.
    let path = dir.path().join("cpu_0");
    let mut bytes = fs::read(&path).unwrap();
    for record in bytes[88..].chunks_mut(40) {
        record[8] = 9;
    }
    fs::write(&path, bytes).unwrap();
    let text = dump(dir.path());
    assert_eq!(events(&text).len(), 0);
    let told: Vec<_> = text.lines().filter(|line| line.contains("unknown id")).collect();
    assert_eq!(
        told,
        ["  problem cpu_0 at byte 88: 5000 events of unknown id 9, the first is here"]
    );
    // Each of another id: told up to a bound.
    let mut bytes = fs::read(dir.path().join("cpu_0")).unwrap();
    for (at, record) in bytes[88..].chunks_mut(40).enumerate() {
        record[8..10].copy_from_slice(&(at as u16 + 2).to_le_bytes());
    }
    fs::write(dir.path().join("cpu_0"), bytes).unwrap();
    let text = dump(dir.path());
    assert_eq!(text.matches("event of unknown id").count(), 16, "{text}");
    assert!(text.contains("4984 events of other unknown ids, the first is here"), "{text}");
}

/// A stream of another trace, of another class, of another order.
#[test]
fn foreign_packets() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 4).finish().unwrap();
    let cpu = fs::read(dir.path().join("cpu_0")).unwrap();
    let mut foreign = cpu.clone();
    foreign[4] ^= 1;
    fs::write(dir.path().join("cpu_1"), &foreign).unwrap();
    fs::copy(dir.path().join("threads"), dir.path().join("cpu_2")).unwrap();
    let first = u64::from_le_bytes(cpu[56..64].try_into().unwrap()) as usize / 8;
    let swapped = [&cpu[first..], &cpu[..first]].concat();
    fs::write(dir.path().join("cpu_0"), swapped).unwrap();
    let text = dump(dir.path());
    for part in [
        "cpu_1 at byte 0: packet of another trace",
        "cpu_2 at byte 0: packet of stream class 1, which is not this file's",
        "packet 1 where 0 belongs",
        "packet begins before the last one ended",
        "time goes back",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any damage anywhere: no panic, no hang; recovery is stable and never adds events.
    #[test]
    fn any_damage(
        file in 0_usize..4, damage in prop::collection::vec((any::<u16>(), any::<u8>()), 1..8), cut in any::<u16>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        write_ticks(dir.path(), 7).finish().unwrap();
        let path = dir.path().join(FILES[file]);
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in damage {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        if cut % 3 == 0 {
            bytes.truncate(usize::from(cut) % bytes.len());
        }
        fs::write(&path, &bytes).unwrap();
        let before = dump(dir.path());
        if recover(dir.path()).is_ok() {
            let after = dump(dir.path());
            prop_assert_eq!(events(&before), events(&after));
            let again = recover(dir.path()).unwrap();
            prop_assert!(again.cut.is_empty() && !again.metadata_rewritten);
        }
    }

    /// Any bytes as a stream and as a sidecar.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), name in 0_usize..4) {
        let dir = tempfile::tempdir().unwrap();
        write_ticks(dir.path(), 1).finish().unwrap();
        fs::write(dir.path().join(FILES[name]), &bytes).unwrap();
        let _ = dump(dir.path());
        let _ = recover(dir.path());
    }

    /// Any bytes as a run of records: what is written is read again, and only that.
    #[test]
    fn any_run(bytes in prop::collection::vec(any::<u8>(), 0..200), good in 0_u64..4) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
        writer.add_schema(1, &tick()).unwrap();
        let mut run = Vec::new();
        for seq in 0..good {
            push(&mut run, 1000 + seq, 1, 101, &tick_payload(seq, b"ok"));
        }
        run.extend(bytes);
        let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 5000, 0)).unwrap();
        prop_assert!(done.events >= good);
        writer.finish().unwrap();
        let text = dump(dir.path());
        prop_assert_eq!(events(&text).len() as u64, done.events, "{}", text);
        prop_assert!(!text.contains("problem") && !text.contains("BROKEN"), "{}", text);
    }
}
