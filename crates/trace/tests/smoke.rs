//! Declaration, emission and probes, as a user writes them.
use owlet::Probe;
use std::sync::atomic::{AtomicU64, Ordering};

owlet::event_enum! {
    /// A state.
    #[derive(PartialEq)]
    pub enum State: u8 {
        /// Off.
        Idle = 0,
        /// On.
        Busy = 1,
    }
}

owlet::tracepoint! {
    /// Doc.
    pub mod demo {
        /// One tick.
        #[level(Debug)]
        tick(seq: u64, thread: u32, note: &str);
        idle();
        many(a: Option<&str>, b: [u8; 3], c: &[u32], d: State, e: f64, f: bool, g: &std::ffi::CStr, h: Option<State>);
    }
    #[provider("other")]
    mod second { one(x: i64); }
}

#[test]
fn arguments_are_not_evaluated_while_off_and_probes_see_them_while_on() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    let evaluated = AtomicU64::new(0);
    let emit = || owlet::trace!(demo::tick, evaluated.fetch_add(1, Ordering::Relaxed) + 10, 2, "x");
    emit();
    assert_eq!(evaluated.load(Ordering::Relaxed), 0);
    assert!(!owlet::enabled!(demo::tick));
    let probe: Probe<demo::tick::Function> = Probe::new(Box::new(|seq, _, _| {
        SUM.fetch_add(seq, Ordering::Relaxed);
    }));
    demo::tick::TRACEPOINT.register(&probe, 0).unwrap();
    assert!(owlet::enabled!(demo::tick));
    emit();
    assert_eq!(SUM.load(Ordering::Relaxed), 10);
    owlet::trace!(demo::tick, if false; evaluated.fetch_add(1, Ordering::Relaxed), 2, "x");
    assert_eq!(evaluated.load(Ordering::Relaxed), 1);
    demo::tick::TRACEPOINT.unregister(&probe).unwrap();
    emit();
    assert_eq!(evaluated.load(Ordering::Relaxed), 1);
    owlet::trace!(demo::idle);
    owlet::trace!(second::one, 1);
    owlet::trace!(demo::many, Some("x"), [1, 2, 3], &[1, 2], State::Busy, 1.0, true, c"x", None);
    assert_eq!(second::one::TRACEPOINT.core().description().name, "other:one");
}

/// Declares, and keeps the words.
macro_rules! declared {
    ($($words:tt)*) => {
        owlet::event_enum! { $($words)* }
        const DECLARED: &str = stringify!($($words)*);
    };
}

/// What the compiler says of an enum that is no field type shows a declaration: this one, which
/// compiles and brings what the note says.
#[test]
fn u1_the_note_on_enums_shows_a_declaration_that_works() {
    declared! { pub enum Kind: u8 { Hot = 0, Cold = 1 } }
    fn brings<T: owlet::FieldValue + std::fmt::Debug + Clone + Copy>(value: T) -> String {
        format!("{value:?}")
    }
    assert_eq!([brings(Kind::Hot), brings(Kind::Cold)], ["Hot", "Cold"]);
    let source = include_str!("../src/fields.rs").replace("{{", "{").replace("}}", "}");
    let note = format!("owlet::event_enum! {{ {DECLARED} }}\"");
    assert!(source.contains(&note), "{note}");
    assert!(source.contains("which gives it Debug, Clone and Copy"));
}
