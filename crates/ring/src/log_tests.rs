use super::*;

/// A log in private memory.
struct Memory {
    words: Box<[AtomicU64]>,
    hint: AtomicU64,
}

impl Memory {
    fn new(len: usize) -> Self {
        Self { words: (0..len / 8).map(|_| AtomicU64::new(0)).collect(), hint: AtomicU64::new(0) }
    }

    fn log(&self) -> Log<'_> {
        Log {
            base: self.words.as_ptr().cast_mut().cast(),
            len: self.words.len() * 8,
            hint: &self.hint,
        }
    }

    fn all(&self, cursor: &mut LogCursor) -> Vec<Vec<u8>> {
        core::iter::from_fn(|| self.log().read(cursor)).collect()
    }
}

#[test]
fn reads_what_was_appended() {
    let memory = Memory::new(4096);
    let mut cursor = LogCursor::default();
    assert_eq!(memory.log().read(&mut cursor), None);
    for entry in [&b"one"[..], b"", b"exactly8", b"and nine."] {
        assert_eq!(memory.log().append(entry), Ok(()));
    }
    assert_eq!(memory.all(&mut cursor), [&b"one"[..], b"", b"exactly8", b"and nine."]);
    assert_eq!(memory.log().append(b"later"), Ok(()));
    assert_eq!(memory.all(&mut cursor), [b"later"]);
    assert_eq!(memory.all(&mut LogCursor::default()).len(), 5);
}

#[test]
fn full_is_an_error_and_spoils_nothing() {
    let memory = Memory::new(64);
    assert_eq!(memory.log().append(&[7; 57]), Err(LogFull));
    assert_eq!(memory.log().append(&[7; 40]), Ok(()));
    assert_eq!(memory.log().append(b"123456789"), Err(LogFull));
    assert_eq!(memory.log().append(b"12345678"), Ok(()));
    assert_eq!(memory.log().append(b""), Err(LogFull));
    assert_eq!(memory.all(&mut LogCursor::default()), [&[7; 40][..], b"12345678"]);
}

/// A writer killed between claim and end, with or without the hint moved, holds nobody up.
#[test]
fn l8_killed_writer_holds_nobody_up() {
    let memory = Memory::new(4096);
    let mut cursor = LogCursor::default();
    assert_eq!(memory.log().append(b"before"), Ok(()));
    memory.words[2].store(CLAIMED | 20, Ordering::Relaxed);
    assert_eq!(memory.log().append(b"after"), Ok(()));
    assert_eq!(memory.all(&mut cursor), [&b"before"[..], b"after"]);
    assert_eq!(cursor.unfinished(), 1);
    // It was only slow.
    memory.words[3].store(u64::from_le_bytes(*b"finished"), Ordering::Relaxed);
    memory.words[2].store(DONE | 20, Ordering::Release);
    assert_eq!(memory.all(&mut cursor)[0][..8], *b"finished");
    assert_eq!(cursor.unfinished(), 0);
}

#[test]
fn concurrent_writers_lose_nothing() {
    let memory = Memory::new(1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let memory = &memory;
            scope.spawn(move || {
                for n in 0..2000_u32 {
                    let entry = format!("{thread} {n} {}", "x".repeat((n % 50) as usize));
                    memory.log().append(entry.as_bytes()).expect("room");
                }
            });
        }
        let mut cursor = LogCursor::default();
        let mut next = [0_u32; 4];
        let mut seen = 0;
        while seen < 8000 {
            let Some(entry) = memory.log().read(&mut cursor) else { continue };
            let text = String::from_utf8(entry).expect("text");
            let mut words = text.split(' ').map(|w| w.parse::<u32>());
            let (thread, n) = (words.next(), words.next());
            let (Some(Ok(thread)), Some(Ok(n))) = (thread, n) else { panic!("torn: {text}") };
            assert!(text.ends_with(&"x".repeat((n % 50) as usize)));
            next[thread as usize] += 1;
            seen += 1;
        }
        assert_eq!(next, [2000; 4]);
    });
}

proptest::proptest! {
    /// Whatever the words and the hint hold: no crash, no hang, no byte from outside.
    #[test]
    fn garbage_is_survived(
        words in proptest::collection::vec(
            proptest::prop_oneof![
                proptest::num::u64::ANY,
                (0_u64..80).prop_map(|n| DONE | n),
                (0_u64..80).prop_map(|n| CLAIMED | n),
                proptest::strategy::Just(0),
            ],
            1..64,
        ),
        hint in proptest::num::u64::ANY,
        at in 0_usize..1000,
    ) {
        let memory = Memory {
            words: words.into_iter().map(AtomicU64::new).collect(),
            hint: AtomicU64::new(hint),
        };
        let len = memory.words.len() * 8;
        let mut cursor = LogCursor { at, unfinished: VecDeque::from([at, len, usize::MAX]) };
        for entry in memory.all(&mut cursor) {
            proptest::prop_assert!(entry.len() <= len);
        }
        let _ = memory.log().append(b"something");
    }
}
use proptest::strategy::Strategy;
