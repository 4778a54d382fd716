//! Bytes that are not ours are left alone.

use crate::probe::Probe;
use crate::tracepoint::Tracepoint;
use crate::{control, site};
use owlet_wire::schema::{Kind, Level, SchemaRef};
use std::os::unix::fs::FileExt;

type Function = dyn Fn() + Send + Sync;

static POINT: Tracepoint<Function> = Tracepoint::new(
    SchemaRef {
        name: "unit:held",
        kind: Kind::Event,
        level: Level::Info,
        file: "",
        line: 0,
        doc: "",
        fields: &[],
    },
    None,
);

/// A site nobody runs through while its byte is somebody else's.
#[inline(never)]
fn through() -> bool {
    'on: {
        crate::__site!(POINT, { break 'on true });
        false
    }
}

#[test]
fn a_byte_that_is_not_ours_is_left_alone_reported_and_tried_again() {
    let _one = crate::control_tests::one();
    assert!(!through());
    let at = site::address_of(POINT.core()).unwrap();
    let mem = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let byte = || {
        let mut byte = [0];
        mem.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    };
    assert_eq!(byte(), 0xa9);
    // A debugger's breakpoint.
    mem.write_all_at(&[0xcc], at).unwrap();
    let probe: Probe<Function> = Probe::new(Box::new(|| {}));
    POINT.register(&probe, 0).unwrap();
    assert_eq!(byte(), 0xcc);
    assert_eq!(control::lock().unwrap().busy_sites, 1);
    // It goes away; the next change of anything finds the site ours again.
    mem.write_all_at(&[0xa9], at).unwrap();
    let other: Probe<Function> = Probe::new(Box::new(|| {}));
    POINT.register(&other, 0).unwrap();
    control::lock().unwrap().commit().unwrap();
    assert_eq!(byte(), 0xe9);
    assert!(through());
    assert_eq!(control::lock().unwrap().busy_sites, 0);
    POINT.unregister(&probe).unwrap();
    POINT.unregister(&other).unwrap();
    assert_eq!(byte(), 0xa9);
}
