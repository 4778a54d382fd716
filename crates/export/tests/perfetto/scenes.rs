//! Small traces that show one thing each, used by all engines.

use owlet_analyze::Trace;
use owlet_analyze::build::{At, Builder, Payload, at};
use owlet_wire::schema::{Kind, Scalar, Type};

/// Ids of the span records of one name.
#[derive(Clone, Copy)]
pub(crate) struct SpanIds {
    pub(crate) new: u32,
    pub(crate) enter: u32,
    pub(crate) exit: u32,
    pub(crate) close: u32,
    pub(crate) follows: u32,
    pub(crate) record: u32,
}

pub(crate) fn span_schemas(b: &mut Builder, name: &str) -> SpanIds {
    let number = ("n", Type::Scalar(Scalar::U64));
    SpanIds {
        new: b.schema(name, Kind::SpanNew, std::slice::from_ref(&number)),
        enter: b.schema(name, Kind::SpanEnter, &[]),
        exit: b.schema(name, Kind::SpanExit, &[]),
        close: b.schema(name, Kind::SpanClose, &[]),
        follows: b.schema(name, Kind::SpanFollows, &[]),
        record: b.schema(name, Kind::SpanRecord, &[("status", Type::Str)]),
    }
}

impl SpanIds {
    pub(crate) fn create(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.new, &Payload::new().u64(span).u64(0).u64(span * 100));
    }

    pub(crate) fn enter(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.enter, &Payload::new().u64(span));
    }

    pub(crate) fn exit(self, b: &mut Builder, at: At, span: u64) {
        b.event(at, self.exit, &Payload::new().u64(span));
    }

    pub(crate) fn close(self, b: &mut Builder, at: At, span: u64, duration: u64) {
        b.event(at, self.close, &Payload::new().u64(span).u64(duration));
    }

    pub(crate) fn record(self, b: &mut Builder, at: At, span: u64, status: &[u8]) {
        b.event(at, self.record, &Payload::new().u64(span).bytes(status));
    }

    pub(crate) fn follows(self, b: &mut Builder, at: At, span: u64, cause: u64) {
        b.event(at, self.follows, &Payload::new().u64(span).u64(cause));
    }
}

/// Two synchronous spans, one in the other, with an instant inside and a value recorded late.
pub(crate) fn nested() -> Trace {
    let mut b = Builder::new(2);
    let outer = span_schemas(&mut b, "app::server:request");
    let inner = span_schemas(&mut b, "app::db:query");
    let tick = b.schema("demo:tick", Kind::Event, &[("seq", Type::Scalar(Scalar::U64))]);
    b.process(10, 1, b"/usr/bin/server", b"server\0--port\x0080\0");
    b.thread(10, 11, b"worker");
    outer.create(&mut b, at(1_000), 1);
    outer.enter(&mut b, at(1_010), 1);
    inner.create(&mut b, at(1_020), 2);
    // The thread migrates to another CPU in between.
    inner.enter(&mut b, at(1_030).cpu(1), 2);
    b.event(at(1_040).cpu(1), tick, &Payload::new().u64(7));
    inner.exit(&mut b, at(1_050), 2);
    inner.close(&mut b, at(1_060), 2, 40);
    outer.record(&mut b, at(1_070), 1, b"ok");
    outer.exit(&mut b, at(1_080), 1);
    outer.close(&mut b, at(1_090), 1, 90);
    b.trace()
}

/// Two asynchronous spans on two threads, interleaved; the second follows from the first.
pub(crate) fn interleaved() -> Trace {
    let mut b = Builder::new(2);
    let task = span_schemas(&mut b, "app:task");
    b.thread(10, 11, b"tokio-1");
    b.thread(10, 12, b"tokio-2");
    let t1 = at;
    let t2 = |time| at(time).tid(12).cpu(1);
    task.create(&mut b, t1(1_000), 1);
    task.enter(&mut b, t1(1_010), 1);
    task.exit(&mut b, t1(1_020), 1);
    task.create(&mut b, t1(1_030), 2);
    task.follows(&mut b, t1(1_035), 2, 1);
    task.enter(&mut b, t1(1_040), 2);
    task.enter(&mut b, t2(1_045), 1);
    task.exit(&mut b, t1(1_050), 2);
    task.exit(&mut b, t2(1_055), 1);
    task.enter(&mut b, t1(1_060), 2);
    task.exit(&mut b, t1(1_070), 2);
    task.close(&mut b, t2(1_080), 1, 80);
    task.close(&mut b, t1(1_090), 2, 60);
    b.trace()
}

/// What a recording that begins and ends in the middle of things leaves, and losses.
pub(crate) fn cut() -> Trace {
    let mut b = Builder::new(1);
    let span = span_schemas(&mut b, "app:work");
    b.thread(10, 11, b"worker");
    // Left without having been entered.
    span.exit(&mut b, at(1_000), 1);
    // Closed without having been created: since 1500 ns, before the trace.
    span.close(&mut b, at(1_100), 2, 1_500);
    // Entered without having been created.
    span.enter(&mut b, at(1_200), 3);
    // Created, entered, never left.
    span.create(&mut b, at(1_300), 4);
    span.enter(&mut b, at(1_310), 4);
    // Created and never entered.
    span.create(&mut b, at(1_400), 5);
    b.lose("full", 20);
    b.lose("busy", 3);
    b.trace()
}

/// Values that other tools cut, confuse or refuse.
pub(crate) fn values() -> Trace {
    let mut b = Builder::new(1);
    let names = vec![(1, "Open".to_owned())];
    let fields = [
        ("nul", Type::Str),
        ("bad", Type::Str),
        ("empty", Type::Str),
        ("none", Type::Option(Box::new(Type::Str))),
        ("list", Type::Seq(Scalar::I32)),
        ("no_items", Type::Seq(Scalar::I32)),
        ("max", Type::Scalar(Scalar::U64)),
        ("min", Type::Scalar(Scalar::I64)),
        ("nan", Type::Scalar(Scalar::F64)),
        ("inf", Type::Scalar(Scalar::F32)),
        ("half", Type::Scalar(Scalar::F64)),
        ("yes", Type::Scalar(Scalar::Bool)),
        ("state", Type::Enum(Scalar::U8, names)),
        ("data", Type::Bytes),
        ("twice", Type::Scalar(Scalar::U8)),
        ("twice", Type::Scalar(Scalar::U8)),
    ];
    let id = b.schema("demo:values", Kind::Event, &fields);
    b.thread(10, 11, b"evil\x1b[2J\xff");
    b.process(10, 1, b"/opt/\x1b]0;x\x07", b"");
    let payload = Payload::new()
        .bytes(b"a\0b")
        .bytes(b"x\xff\xfey")
        .bytes(b"")
        .raw(&[0])
        .u32(3)
        .raw(&1_i32.to_le_bytes())
        .raw(&(-2_i32).to_le_bytes())
        .raw(&3_i32.to_le_bytes())
        .u32(0)
        .u64(u64::MAX)
        .raw(&i64::MIN.to_le_bytes())
        .raw(&f64::NAN.to_le_bytes())
        .raw(&f32::NEG_INFINITY.to_le_bytes())
        .raw(&0.5_f64.to_le_bytes())
        .raw(&[1])
        .raw(&[1])
        .bytes(&[0, 255])
        .raw(&[4])
        .raw(&[5]);
    b.event(at(1_000), id, &payload);
    b.trace()
}
