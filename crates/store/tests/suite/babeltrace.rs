//! babeltrace2 reads every trace, silently, and agrees with our reader.

use crate::common::{
    Babel, CLOCK, babeltrace, dump, encode, meta, packet, process, push, rich, schema, thread,
    tick, tick_payload, u64t, write_ticks,
};
use owlet_store::{ClockInfo, ClockKind, StreamName, TraceReader, TraceWriter, recover};
use owlet_wire::schema::{Kind, Level, Scalar, Type};
use owlet_wire::value::Value;
use std::fs;
use std::process::Command;

fn near(a: i64, b: i64) -> bool {
    a == b
}

/// Several streams, several packets: same count, same fields, same times, in the order of time.
#[test]
fn count_fields_and_times_agree() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    writer.add_schema(2, &schema("app:empty", Kind::Event, &[])).unwrap();
    // The same name again under another id, as two processes of one program have it.
    writer.add_schema(3, &tick()).unwrap();
    let streams = [StreamName::cpu(0), StreamName::cpu(1), StreamName::portable(0)];
    for round in 0..20_u64 {
        for (at, stream) in streams.into_iter().enumerate() {
            let mut run = Vec::new();
            let begin = 1_000_000_000 + round * 1_000_000;
            for i in 0..10 {
                let time = begin + i * 70_001 + at as u64 * 333;
                let payload = tick_payload(round * 10 + i, b"text");
                push(&mut run, time, [1, 3, 1][at], 101, &payload);
            }
            push(&mut run, begin + 800_000, 2, 101, &[]);
            let done =
                writer.append_packet(stream, &packet(&run, begin, begin + 900_000, 0)).unwrap();
            assert_eq!((done.events, done.malformed), (11, 0));
        }
    }
    writer.finish().unwrap();

    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(trace.problems().is_empty(), "{:?}", trace.problems());
    let mut ours = Vec::new();
    for at in 0..trace.streams().len() {
        let mut events = trace.events(at).unwrap();
        while let Some(event) = events.next_event() {
            let seq = event.payload.first_chunk::<8>().map(|seq| u64::from_le_bytes(*seq));
            ours.push((trace.clock().unix_ns(event.header.time), seq));
        }
    }
    ours.sort_unstable();
    assert_eq!(ours.len(), 20 * 3 * 11);

    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    let lines = babel.events();
    assert_eq!(lines.len(), ours.len());
    let mut theirs: Vec<_> = lines
        .iter()
        .map(|line| {
            let seq = line.split("seq = ").nth(1).and_then(|rest| rest.split(',').next());
            (Babel::time(line), seq.map(|seq| seq.parse::<u64>().unwrap()))
        })
        .collect();
    assert!(theirs.is_sorted_by_key(|(time, _)| *time), "babeltrace2 saw time go back");
    theirs.sort_unstable();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(near(ours.0, theirs.0) && ours.1 == theirs.1, "{ours:?} {theirs:?}");
    }
}

/// C4, R1: every type, NUL, invalid UTF-8, empty text, arrays of no element, extremes.
#[test]
fn c4_every_type() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, values) = rich();
    let payload = encode(&schema, &values);
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &schema).unwrap();
    writer.add_schema(2, &tick()).unwrap();
    let mut run = Vec::new();
    for i in 0..3 {
        push(&mut run, 1000 + i * 2, 1, 101, &payload);
        push(&mut run, 1001 + i * 2, 2, 101, &tick_payload(i, b""));
    }
    let done = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    assert_eq!((done.events, done.malformed), (6, 0));
    writer.finish().unwrap();
    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    assert_eq!(babel.lines.len(), 6);
    let expected = "app:rich: { cpu_id = 0 }, { pid = 100, tid = 101 }, \
        { _nul_length = 3, nul = \"a\", _invalid_length = 2, invalid = \"\u{fffd}\u{fffd}\", \
        _empty_length = 0, empty = \"\", _bytes_length = 2, bytes = [ [0] = 0, [1] = 1 ], \
        max = 18446744073709551615, min = -9223372036854775808, nan = nan, single = -0, \
        yes = ( \"true\" : container = 1 ), zero0 = [ ], after0 = 1, zero1 = [ ], zero2 = [ ], \
        zero3 = [ ], _none_seq_length = 0, none_seq = [ ], \
        _seq_length = 2, seq = [ [0] = 1, [1] = 65535 ], pair = [ [0] = 7, [1] = 8 ], \
        bools = [ [0] = ( \"false\" : container = 0 ) ], \
        colour = ( \"green\" : container = 2 ), signed = ( \"minus\" : container = -1 ), \
        plain = 9, _some_tag = ( \"some\" : container = 1 ), some = { { len = 1, text = \"x\" } }, \
        _none_tag = ( \"none\" : container = 0 ), none = { { } }, \
        _deep_tag = ( \"some\" : container = 1 ), deep = { { tag = ( \"some\" : container = 1 ), \
        value = { { len = 1, list = [ [0] = 5 ] } } } }, \
        _odyn_tag = ( \"some\" : container = 1 ), odyn = { { tag = ( \"i64\" : container = 2 ), \
        value = { -3 } } }, \
        _oarr_tag = ( \"some\" : container = 1 ), oarr = { { list = [ [0] = 1, [1] = 2 ] } }, \
        _oenum_tag = ( \"some\" : container = 1 ), oenum = { ( \"green#3\" : container = 3 ) }, \
        _d_u_tag = ( \"u64\" : container = 1 ), d_u = { 1 }, \
        _d_i_tag = ( \"i64\" : container = 2 ), d_i = { -1 }, \
        _d_f_tag = ( \"f64\" : container = 3 ), d_f = { 0.5 }, \
        _d_b_tag = ( \"bool\" : container = 4 ), d_b = { ( \"true\" : container = 1 ) }, \
        _d_s_tag = ( \"str\" : container = 5 ), d_s = { { len = 3, text = \"dyn\" } }, \
        _d_y_tag = ( \"bytes\" : container = 6 ), d_y = { { len = 1, data = [ [0] = 7 ] } }, \
        _d_n_tag = ( \"absent\" : container = 0 ), d_n = { { } } }";
    let (_, shown) = babel.lines[0].split_once("app:rich").unwrap();
    assert_eq!(format!("app:rich{shown}"), expected);
}

/// Losses are shown with their exact count, the first packet's included, and nothing else is.
#[test]
fn losses_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    for (at, lost) in [3, 3, 10].into_iter().enumerate() {
        let mut run = Vec::new();
        let time = 1000 * (at as u64 + 1);
        push(&mut run, time, 1, 101, &tick_payload(at as u64, b""));
        let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, time, time, lost)).unwrap();
    }
    // News of losses without a record, and no news at all.
    let done = writer.append_packet(StreamName::cpu(0), &packet(&[], 3000, 3000, 12)).unwrap();
    assert!(done.bytes > 0);
    let done = writer.append_packet(StreamName::cpu(0), &packet(&[], 3000, 3000, 12)).unwrap();
    assert_eq!(done.bytes, 0);
    writer.finish().unwrap();
    let Some(babel) = babeltrace(dir.path()) else { return };
    let said: Vec<_> = babel.stderr.lines().collect();
    assert_eq!(said.len(), 3, "{said:?}");
    for (line, count) in said.iter().zip([3, 7, 2]) {
        assert!(line.starts_with(&format!("WARNING: Tracer discarded {count} events")), "{line}");
    }
    assert_eq!(babel.events().len(), 3);
}

/// Names that are keywords, quoted, dotted, control characters, empty, equal after cleaning.
#[test]
fn any_name_is_readable() {
    let names = [
        "struct",
        "variant",
        "event",
        "len",
        "_x",
        "__x",
        "a.b",
        "a_b",
        "a-b",
        "\u{e9}",
        "",
        "1st",
        "x\"y",
        "x\\",
        "nul\0",
        "esc\x1b[31m",
        "a b",
        "a_b",
        "_a_b_length",
        "string",
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    let mut run = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let id = at as u32 + 1;
        let mut fields: Vec<_> = names.iter().map(|name| (*name, Type::Str)).collect();
        fields.rotate_left(at);
        let mut schema = schema(name, Kind::Event, &fields);
        schema.level = [Level::Error, Level::Warn, Level::Debug, Level::Trace][at % 4];
        writer.add_schema(id, &schema).unwrap();
        let values = vec![Value::Str(b"v"); names.len()];
        push(&mut run, 1000 + at as u64, id, 101, &encode(&schema, &values));
    }
    let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, 1000, 2000, 0)).unwrap();
    writer.add_thread(1, &thread(1, 1, "\"\\\n\x1b]0;")).unwrap();
    let mut wild = process(1);
    wild.exe = b"\xff\"\n*/".to_vec();
    writer.add_process(2, &wild).unwrap();
    writer.finish().unwrap();
    let metadata = fs::read_to_string(dir.path().join("metadata")).unwrap();
    assert!(metadata.starts_with("/* CTF 1.8 */"), "R4");
    assert!(!metadata.contains(['\x1b', '\0']));
    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    assert_eq!(
        babel.events().iter().filter(|line| line.contains("pid = 100")).count(),
        names.len()
    );
    let first = babel.lines.iter().find(|line| line.contains(" struct: ")).unwrap();
    assert!(first.contains("{ _struct_length = 1, struct = \"v\","), "{first}");
    assert!(first.contains(", a_b = \"v\"") && first.contains(", a_b_2 = \"v\""), "{first}");
}

/// Threads and processes are events of a stream of their own, and the env block names processes.
#[test]
fn threads_and_processes_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 2).finish().unwrap();
    let metadata = fs::read_to_string(dir.path().join("metadata")).unwrap();
    for part in [
        "hostname = \"host-a\"",
        "tracer_name = \"owlet\"",
        "process_0_exe = \"/usr/bin/serv\\\"er\"",
        "process_0_args = \"server --port 80\"",
        "vpid = 100",
        "freq = 2596140000",
    ] {
        assert!(metadata.contains(part), "{part}\n{metadata}");
    }
    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    assert_eq!(babel.lines.len(), 4);
    assert!(babel.lines[0].contains("owlet:process: { cpu_id = 0 }, { pid = 100, tid = 100 }"));
    assert!(babel.lines[0].contains("exe = \"/usr/bin/serv\\\"er\""), "{}", babel.lines[0]);
    assert!(babel.lines[1].ends_with("{ _comm_length = 4, comm = \"main\" }"));
}

/// A running recording is readable at any packet; the refined clock reaches it when it ends.
#[test]
fn clock_is_refined_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write_ticks(dir.path(), 1);
    let before = CLOCK.unix_ns(1000);
    if let Some(babel) = babeltrace(dir.path()) {
        assert_eq!(babel.stderr, "");
        assert!(near(Babel::time(babel.events()[0]), before));
    }
    let refined =
        ClockInfo { freq_hz: 2_596_145_678, base_unix_ns: CLOCK.base_unix_ns + 5000, ..CLOCK };
    writer.set_clock(refined).unwrap();
    assert_eq!(TraceReader::open(dir.path()).unwrap().clock(), &refined);
    writer.finish().unwrap();
    let after = refined.unix_ns(1000);
    assert!((after - before).abs() > 1000);
    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    assert!(near(Babel::time(babel.events()[0]), after), "{} {after}", babel.events()[0]);
}

/// Real clock values: a TSC after 200 days, and nanoseconds.
#[test]
fn absolute_times_are_right() {
    let tsc = ClockInfo {
        kind: ClockKind::Tsc,
        freq_hz: 2_596_140_123,
        base_ticks: 44_861_299_440_000_000,
        base_unix_ns: 1_790_000_000_987_654_321,
    };
    for clock in [tsc, ClockInfo::nanoseconds(ClockKind::Monotonic, 1_790_000_000_000_000_001)] {
        let dir = tempfile::tempdir().unwrap();
        let mut meta = meta();
        meta.clock = clock;
        let mut writer = TraceWriter::create(dir.path(), &meta).unwrap();
        writer.add_schema(1, &tick()).unwrap();
        let mut run = Vec::new();
        let times: Vec<u64> = (0..50).map(|i| clock.base_ticks + i * i * 12_345_677).collect();
        for time in &times {
            push(&mut run, *time, 1, 101, &tick_payload(0, b""));
        }
        let end = *times.last().unwrap();
        let _ = writer.append_packet(StreamName::cpu(0), &packet(&run, times[0], end, 0)).unwrap();
        writer.finish().unwrap();
        let Some(babel) = babeltrace(dir.path()) else { return };
        assert_eq!(babel.stderr, "");
        for (line, ticks) in babel.events().iter().zip(&times) {
            // babeltrace2 computes in f64: off by up to 8 ns after 200 days of ticks, where ours goes on
            // to be exact.
            let (ours, theirs) = (clock.unix_ns(*ticks), Babel::time(line));
            assert!((ours - theirs).abs() <= 8, "{ours} {theirs}");
        }
    }
}

/// R1: whatever a packet's records hold, what the writer lets through, babeltrace2 reads.
#[test]
fn malformed_records_never_reach_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    let (rich, values) = rich();
    writer.add_schema(1, &rich).unwrap();
    let good = encode(&rich, &values);
    let mut events = 0;
    let mut malformed = 0;
    for at in 0..good.len() {
        for value in [0, 1, 2, 0x7f, 0xff] {
            let mut payload = good.clone();
            payload[at] = value;
            let time = 1000 + (at * 5) as u64;
            let mut run = Vec::new();
            push(&mut run, time, 1, 101, &payload);
            let done =
                writer.append_packet(StreamName::cpu(0), &packet(&run, time, time, 0)).unwrap();
            events += done.events as usize;
            malformed += done.malformed;
        }
    }
    assert!(events > 300 && malformed > 100, "{events} {malformed}");
    let summary = writer.finish().unwrap();
    assert_eq!(summary.malformed, malformed);
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!(
        trace.losses(),
        [crate::common::loss(Some(StreamName::cpu(0)), "malformed", malformed)]
    );
    assert_eq!(trace.streams()[0].discarded, malformed);
    let Some(babel) = babeltrace(dir.path()) else { return };
    let strange = babel.stderr.lines().find(|line| !line.starts_with("WARNING: Tracer discarded"));
    assert_eq!(strange, None);
    assert_eq!(babel.lines.len(), events);
}

/// Cut at any byte, as a kill leaves it: refused as it is, read again after recovery.
#[test]
fn recovery_at_every_byte() {
    let source = tempfile::tempdir().unwrap();
    write_ticks(source.path(), 7).finish().unwrap();
    for name in ["cpu_0", "threads", ".owlet", "metadata"] {
        let whole = fs::read(source.path().join(name)).unwrap();
        let step = if name == "metadata" { 97 } else { 1 };
        for cut in (0..whole.len()).step_by(step) {
            let dir = tempfile::tempdir().unwrap();
            for file in ["cpu_0", "threads", ".owlet", "metadata"] {
                fs::copy(source.path().join(file), dir.path().join(file)).unwrap();
            }
            fs::write(dir.path().join(name), &whole[..cut]).unwrap();
            let before = dump(dir.path());
            let Ok(_) = recover(dir.path()) else {
                assert!(name == ".owlet" && cut < 100, "{name} cut at {cut}: {before}");
                continue;
            };
            let again = recover(dir.path()).unwrap();
            assert!(again.cut.is_empty() && !again.metadata_rewritten, "{name} {cut}: {again:?}");
            // babeltrace2 at some places: each run takes 10 ms.
            if cut % 41 == 0 || name == "metadata" {
                let Some(babel) = babeltrace(dir.path()) else { continue };
                let trace = TraceReader::open(dir.path()).unwrap();
                // Without schemas there is nothing that others could decode.
                if !trace.schemas().is_empty() {
                    assert_eq!(babel.stderr, "", "{name} cut at {cut}");
                    let ours = dump(dir.path()).matches("demo:tick").count();
                    assert_eq!(babel.events().len(), ours, "{name} cut at {cut}");
                }
            }
        }
    }
}

/// Copying through babeltrace2 changes nothing: it understood everything.
#[test]
fn round_trip_through_babeltrace() {
    let dir = tempfile::tempdir().unwrap();
    write_ticks(dir.path(), 10).finish().unwrap();
    let Some(first) = babeltrace(dir.path()) else { return };
    let copy = dir.path().with_extension("copy");
    let out =
        Command::new("babeltrace2").arg(dir.path()).args(["-o", "ctf", "-w"]).arg(&copy).output();
    assert!(out.unwrap().status.success());
    let second = babeltrace(&copy).unwrap();
    fs::remove_dir_all(&copy).unwrap();
    assert_eq!(first.lines, second.lines);
}

/// An option of each kind of inner type, absent and present, is read.
#[test]
fn options_of_everything() {
    let inner = [
        Type::Str,
        Type::Bytes,
        Type::Dynamic,
        Type::Seq(Scalar::F32),
        Type::Array(Scalar::Bool, 2),
        Type::Enum(Scalar::Bool, vec![(1, "on".into())]),
        crate::common::option(crate::common::option(u64t())),
    ];
    let fields: Vec<_> = inner.iter().map(|ty| ("o", crate::common::option(ty.clone()))).collect();
    let schema = schema("app:options", Kind::Event, &fields);
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), &meta()).unwrap();
    writer.add_schema(1, &schema).unwrap();
    let mut run = Vec::new();
    push(&mut run, 1000, 1, 101, &vec![0; fields.len()]);
    let some: &[&[u8]] = &[
        b"\x01\x01\0\0\0s",
        b"\x01\0\0\0\0",
        b"\x01\x04\x01",
        b"\x01\x01\0\0\0\0\0\x80\x3f",
        b"\x01\0\x01",
        b"\x01\x01",
        b"\x01\x01\x01\x05\0\0\0\0\0\0\0",
    ];
    push(&mut run, 1001, 1, 101, &some.concat());
    let done = writer.append_packet(StreamName::cpu(3), &packet(&run, 1000, 2000, 0)).unwrap();
    assert_eq!(done.events, 2);
    writer.finish().unwrap();
    let Some(babel) = babeltrace(dir.path()) else { return };
    assert_eq!(babel.stderr, "");
    assert_eq!(babel.lines.len(), 2);
    assert!(babel.lines[1].contains("value = { 5 }"), "{}", babel.lines[1]);
}
