//! testdata/traces: traces as bytes, with what must be read from them. Files written by released
//! versions stay for ever. `OWLET_BLESS=1` writes traces that are not there yet and the texts.

use crate::common::{
    babeltrace, dump, encode, loss, meta, option, packet, process, push, rich, schema, thread,
    tick, tick_payload, u64t, write_ticks,
};
use owlet_store::{StreamName, TraceWriter};
use owlet_wire::schema::{Kind, Level, Type};
use owlet_wire::value::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")
}

type Recipe = (&'static str, fn(&Path));

/// How the corpus was made: the same calls must still give the same bytes.
const RECIPES: &[Recipe] =
    &[("types", types), ("ticks", ticks), ("killed", killed), ("loss", losses), ("spans", spans)];

fn ticks(dir: &Path) {
    write_ticks(dir, 20).finish().unwrap();
}

fn types(dir: &Path) {
    let (schema, values) = rich();
    let mut writer = TraceWriter::create(dir, &meta()).unwrap();
    writer.add_schema(1, &schema).unwrap();
    let mut run = Vec::new();
    push(&mut run, 1000, 1, 101, &encode(&schema, &values));
    push(&mut run, 1001, 1, 102, &encode(&schema, &values));
    let _ = writer.append_packet(StreamName::portable(0), &packet(&run, 990, 1010, 0)).unwrap();
    writer.finish().unwrap();
}

fn killed(dir: &Path) {
    drop(write_ticks(dir, 8));
    let path = dir.join("cpu_0");
    let bytes = fs::read(&path).unwrap();
    fs::write(path, &bytes[..bytes.len() - 30]).unwrap();
}

fn losses(dir: &Path) {
    let mut writer = TraceWriter::create(dir, &meta()).unwrap();
    writer.add_schema(1, &tick()).unwrap();
    for (at, lost) in [2, 2, 7].into_iter().enumerate() {
        let time = 1000 + at as u64 * 100;
        let mut run = Vec::new();
        push(&mut run, time, 1, 101, &tick_payload(at as u64, b""));
        push(&mut run, time + 1, 99, 101, b"no schema");
        let _ =
            writer.append_packet(StreamName::cpu(0), &packet(&run, time, time + 50, lost)).unwrap();
    }
    writer
        .set_losses(&[loss(Some(StreamName::cpu(0)), "full", 7), loss(None, "recursion", 1)])
        .unwrap();
    writer.finish().unwrap();
}

/// Two tasks whose spans interleave on two threads, as async code leaves them.
fn spans(dir: &Path) {
    let mut writer = TraceWriter::create(dir, &meta()).unwrap();
    let path = option(Type::Str);
    let kinds = [
        (Kind::SpanNew, vec![("span", u64t()), ("parent", u64t()), ("path", path)]),
        (Kind::SpanEnter, vec![("span", u64t())]),
        (Kind::SpanExit, vec![("span", u64t())]),
        (Kind::SpanClose, vec![("span", u64t()), ("duration_ns", u64t())]),
        (Kind::SpanEvent, vec![("span", u64t()), ("message", Type::Dynamic)]),
        (Kind::SpanFollows, vec![("span", u64t()), ("follows", u64t())]),
    ];
    let schemas: Vec<_> = kinds
        .into_iter()
        .map(|(kind, fields)| {
            let name = if kind == Kind::SpanEvent { "app:hit" } else { "app:request" };
            let mut schema = schema(name, kind, &fields);
            schema.level = Level::Debug;
            schema
        })
        .collect();
    for (at, schema) in schemas.iter().enumerate() {
        writer.add_schema(at as u32 + 1, schema).unwrap();
    }
    writer.add_process(500, &process(100)).unwrap();
    for tid in [101, 102] {
        writer.add_thread(510, &thread(100, tid, &format!("worker-{tid}"))).unwrap();
    }
    let (one, two) = (Value::U64(1), Value::U64(2));
    let steps: Vec<(u64, u32, u32, usize, Vec<Value<'_>>)> = vec![
        (1000, 0, 101, 0, vec![one.clone(), Value::U64(0), Value::Str(b"/a")]),
        (1010, 0, 101, 1, vec![one.clone()]),
        (1020, 0, 101, 4, vec![one.clone(), Value::Str(b"first")]),
        (1030, 0, 101, 2, vec![one.clone()]),
        (1040, 0, 101, 0, vec![two.clone(), one.clone(), Value::None]),
        (1050, 0, 101, 5, vec![two.clone(), one.clone()]),
        (1060, 1, 102, 1, vec![one.clone()]),
        (1070, 0, 101, 1, vec![two.clone()]),
        (1080, 1, 102, 2, vec![one.clone()]),
        (1090, 1, 102, 3, vec![one, Value::U64(34)]),
        (2000, 0, 101, 2, vec![two.clone()]),
        (2010, 0, 101, 3, vec![two, Value::U64(373)]),
    ];
    for cpu in [0, 1] {
        let mut run = Vec::new();
        for (time, _, tid, at, values) in steps.iter().filter(|step| step.1 == cpu) {
            push(&mut run, *time, *at as u32 + 1, *tid, &encode(&schemas[*at], values));
        }
        let info = owlet_store::PacketInfo { cpu, ..packet(&run, 900, 3000, 0) };
        assert_eq!(writer.append_packet(StreamName::cpu(cpu), &info).unwrap().malformed, 0);
    }
    writer.finish().unwrap();
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .filter(|(name, _)| name != "expected.txt")
        .collect();
    files.sort();
    files
}

fn bless() -> bool {
    std::env::var_os("OWLET_BLESS").is_some_and(|v| v == "1")
}

/// With OWLET_BLESS=1, adds what is not there.
fn add_missing() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for (name, make) in RECIPES.iter().filter(|_| bless()) {
            let kept = root().join(name);
            if !kept.exists() {
                make(&kept);
            }
        }
    });
}

/// The writer still gives the same bytes.
#[test]
fn written_as_ever() {
    add_missing();
    for (name, make) in RECIPES {
        let kept = root().join(name);
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let (now, then) = (files(dir.path()), files(&kept));
        let names =
            |files: &[(String, Vec<u8>)]| files.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&now), names(&then), "{name}");
        for (now, then) in now.iter().zip(&then) {
            assert!(now == then, "{name}/{} is written otherwise than it was", now.0);
        }
    }
}

/// Everything in the corpus is read as it was; babeltrace2 sees the same number of events.
#[test]
fn read_as_ever() {
    add_missing();
    let mut seen = 0;
    for entry in fs::read_dir(root()).unwrap() {
        let dir = entry.unwrap().path();
        if !dir.is_dir() {
            continue;
        }
        seen += 1;
        let text = dump(&dir);
        let expected = dir.join("expected.txt");
        if bless() {
            fs::write(&expected, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&expected).unwrap(), "{}", dir.display());

        // Other readers want whole packets and no stray file.
        let copy = tempfile::tempdir().unwrap();
        for (name, bytes) in files(&dir) {
            fs::write(copy.path().join(name), bytes).unwrap();
        }
        owlet_store::recover(copy.path()).unwrap();
        let events = text.lines().filter(|line| line.contains(" cpu ") && line.contains(" ns)"));
        let Some(babel) = babeltrace(copy.path()) else { continue };
        assert_eq!(babel.events().len(), events.count(), "{}", dir.display());
        let strange = babel.stderr.lines().find(|l| !l.starts_with("WARNING: Tracer discarded "));
        assert_eq!(strange, None, "{}", dir.display());
    }
    assert!(seen >= RECIPES.len());
}
