//! How fast records are checked and appended, and read back: `append [MIB]`.

use owlet_store::{
    ClockInfo, ClockKind, PacketInfo, StreamName, TraceMeta, TraceReader, TraceWriter,
};
use owlet_wire::record::RecordHeader;
use owlet_wire::schema::{Field, Kind, Level, Scalar, Schema, Type};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mib: usize = std::env::args().nth(1).map_or(Ok(256), |text| text.parse())?;
    let field = |name: &str, ty| Field { name: name.into(), ty };
    let schema = Schema {
        name: "demo:tick".into(),
        kind: Kind::Event,
        level: Level::Info,
        file: String::new(),
        line: 0,
        doc: String::new(),
        fields: vec![
            field("seq", Type::Scalar(Scalar::U64)),
            field("thread", Type::Scalar(Scalar::U32)),
            field("note", Type::Str),
        ],
    };
    let note = b"some text";
    let len = 24 + 8 + 4 + 4 + note.len();
    let mut run = Vec::new();
    let mut count = 0_u64;
    while run.len() < 1 << 20 {
        run.extend(RecordHeader { time: 1000, id: 1, len: len as u32, pid: 1, tid: 1 }.to_bytes());
        run.extend(count.to_le_bytes());
        run.extend(1_u32.to_le_bytes());
        run.extend((note.len() as u32).to_le_bytes());
        run.extend(note);
        run.resize(run.len().next_multiple_of(8), 0);
        count += 1;
    }
    let dir = std::env::temp_dir().join(format!("owlet-append-{}", std::process::id()));
    let mut writer = TraceWriter::create(
        &dir,
        &TraceMeta::new(ClockInfo::nanoseconds(ClockKind::Monotonic, 0)),
    )?;
    writer.add_schema(1, &schema)?;
    let begun = Instant::now();
    for _ in 0..mib {
        let packet = PacketInfo { cpu: 0, begin: 0, end: 1000, discarded_total: 0, records: &run };
        let _ = writer.append_packet(StreamName::cpu(0), &packet)?;
    }
    let took = begun.elapsed();
    let summary = writer.finish()?;
    report("append", summary.events, summary.bytes, took);

    let begun = Instant::now();
    let trace = TraceReader::open(&dir)?;
    let mut events = trace.events(0)?;
    let mut read = 0_u64;
    while events.advance() {
        read += 1;
    }
    report("read", read, summary.bytes, begun.elapsed());
    drop(trace);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn report(what: &str, events: u64, bytes: u64, took: std::time::Duration) {
    let ns = took.as_nanos() as f64 / events as f64;
    let rate = bytes as f64 / took.as_secs_f64() / f64::from(1 << 20);
    println!("{what}: {events} events, {ns:.1} ns/event, {rate:.0} MiB/s");
}
