//! Models of the maps' protocols, on the product's own code: `map/hash.rs` and `map/ring.rs` are compiled into
//! this test with loom's atomics, once as they are and once for each order that is taken away. A twin that
//! passes means that the model proves nothing.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p owlet-ebpf --release --test loom`
//!
//! A value is one word here, an atomic of loom's, so that its publication is part of the model.
#![cfg(loom)]

use std::sync::Arc;

/// Stands for `crate::memory`: one word a value.
mod memory {
    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug)]
    pub(crate) struct Values {
        words: Box<[AtomicU64]>,
        pub(crate) size: usize,
    }

    impl Values {
        pub(crate) fn new(count: usize) -> Self {
            Self { words: (0..count).map(|_| AtomicU64::new(0)).collect(), size: 8 }
        }

        pub(crate) fn at(&self, index: usize) -> Option<*mut u8> {
            self.words.get(index).map(|word| (&raw const *word).cast_mut().cast())
        }
    }

    fn word<'a>(at: *const u8) -> &'a AtomicU64 {
        // SAFETY: all addresses here are of such words, which outlive the model's threads.
        unsafe { &*at.cast() }
    }

    pub(crate) unsafe fn load(at: *const u8, _: usize) -> u64 {
        word(at).load(Relaxed)
    }

    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, _: usize) {
        word(to).store(word(from).load(Relaxed), Relaxed);
    }

    pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
        to.copy_from_slice(&word(from).load(Relaxed).to_le_bytes());
    }
}

/// Stands for `crate::map`.
mod map {
    pub(crate) mod errno {
        pub(crate) const E2BIG: i64 = -7;
        pub(crate) const EAGAIN: i64 = -11;
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Update {
        Any,
        NoExist,
        Exist,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum MapError {
        Missing,
        Exists,
        Full,
        Busy,
    }

    pub(crate) struct Key(pub(crate) [u64; 2]);

    impl Key {
        pub(crate) fn words(&self) -> &[u64] {
            &self.0
        }
    }
}

use map::{Key, MapError, Update};
use memory::Values;

/// The product's code with a table of orders: of a link, the even generation, a header, the consumer's position;
/// what stands at the two fences, and a process's number.
macro_rules! variant {
    ($name:ident, $link:ident, $even:ident, $header:ident, $tail:ident, $odd:expr, $second:expr, $process:expr) => {
        #[path = "../src/map"]
        mod $name {
            use crate::map::{Key, MapError, Update, errno};

            mod order {
                use loom::sync::atomic::Ordering;

                pub(crate) const LINK: Ordering = Ordering::$link;
                pub(crate) const EVEN: Ordering = Ordering::$even;
                pub(crate) const HEADER: Ordering = Ordering::$header;
                pub(crate) const TAIL: Ordering = Ordering::$tail;

                pub(crate) fn after_odd() {
                    $odd
                }

                pub(crate) fn before_second_look() {
                    $second
                }

                pub(crate) fn process() -> u32 {
                    $process
                }
            }

            #[path = "hash.rs"]
            #[expect(dead_code, reason = "a model uses a part of it")]
            pub(crate) mod hash;
            #[path = "ring.rs"]
            #[expect(dead_code, reason = "a model uses a part of it")]
            pub(crate) mod ring;
        }
    };
}

fn fence(order: loom::sync::atomic::Ordering) {
    loom::sync::atomic::fence(order);
}

use loom::sync::atomic::Ordering::{Acquire, Release};

loom::thread_local! {
    /// A thread that takes itself for a process of its own.
    static PROCESS: std::cell::Cell<u32> = std::cell::Cell::new(1);
}

variant!(
    good,
    Release,
    Release,
    Release,
    Release,
    crate::fence(crate::Release),
    crate::fence(crate::Acquire),
    1
);
variant!(no_link, Relaxed, Release, Release, Release, (), crate::fence(crate::Acquire), 1);
variant!(
    no_even,
    Release,
    Relaxed,
    Release,
    Release,
    crate::fence(crate::Release),
    crate::fence(crate::Acquire),
    1
);
variant!(no_odd, Release, Release, Release, Release, (), crate::fence(crate::Acquire), 1);
variant!(no_second_look, Release, Release, Release, Release, crate::fence(crate::Release), (), 1);
variant!(
    no_header,
    Release,
    Release,
    Relaxed,
    Release,
    crate::fence(crate::Release),
    crate::fence(crate::Acquire),
    1
);
variant!(
    no_tail,
    Release,
    Release,
    Release,
    Relaxed,
    crate::fence(crate::Release),
    crate::fence(crate::Acquire),
    1
);
variant!(
    no_lock,
    Release,
    Release,
    Release,
    Release,
    crate::fence(crate::Release),
    crate::fence(crate::Acquire),
    crate::PROCESS.with(std::cell::Cell::get)
);

const OLD: [u64; 2] = [1, 1];
const NEW: [u64; 2] = [2, 2];

/// The one element goes from one key to another while somebody looks for `key`: the new one, or one that is
/// half of each.
macro_rules! lookup_during_reuse {
    ($variant:ident, $key:expr) => {
        loom::model(|| {
            let hash = Arc::new($variant::hash::Hash::new(1, 16, Values::new(1)));
            let put = |hash: &$variant::hash::Hash, key, value: u64| {
                let value = loom::sync::atomic::AtomicU64::new(value);
                // SAFETY: the address of a word.
                unsafe { hash.update(&Key(key), (&raw const value).cast(), Update::Any) }
            };
            put(&hash, OLD, 11).expect("room");
            let writer = loom::thread::spawn({
                let hash = Arc::clone(&hash);
                move || {
                    hash.delete(&Key(OLD)).expect("it is there");
                    put(&hash, NEW, 22).expect("room again");
                }
            });
            // Whoever only looks comes last: loom remembers one access to each word.
            let reader = loom::thread::spawn({
                let hash = Arc::clone(&hash);
                move || {
                    let mut value = [0; 8];
                    if hash.read(&Key($key), &mut value).is_ok() {
                        assert_eq!($key, NEW, "a key that nobody put");
                        assert_eq!(u64::from_le_bytes(value), 22, "an element without its value");
                    }
                }
            });
            writer.join().expect("no panic");
            reader.join().expect("no panic");
            assert_eq!(hash.keys(), [[2, 0, 0, 0, 0, 0, 0, 0].repeat(2)]);
        });
    };
}

#[test]
fn hash_lookup_during_reuse() {
    lookup_during_reuse!(good, [1, 2]);
    lookup_during_reuse!(good, [2, 1]);
    lookup_during_reuse!(good, NEW);
}

#[test]
#[should_panic(expected = "an element without its value")]
fn hash_lookup_without_even_generation_must_fail() {
    lookup_during_reuse!(no_even, NEW);
}

#[test]
#[should_panic(expected = "a key that nobody put")]
fn hash_lookup_without_fence_after_odd_must_fail() {
    lookup_during_reuse!(no_odd, [1, 2]);
}

#[test]
#[should_panic(expected = "a key that nobody put")]
fn hash_lookup_without_fence_before_second_look_must_fail() {
    lookup_during_reuse!(no_second_look, [1, 2]);
}

/// An element leaves the end of a chain and comes back at its head. A key that is there all the time is
/// found all the time, or the reader knows that it has to look again. (The fence after the odd generation would
/// do for the link as well; the twin has neither.)
macro_rules! chain_is_whole {
    ($variant:ident) => {
        loom::model(|| {
            let hash = Arc::new($variant::hash::Hash::new(2, 16, Values::new(2)));
            let bucket = |key: [u64; 2]| hash.bucket(&Key(key)).map(|(index, _)| index);
            let mut alike = (1..).map(|n| [n, 0]).filter(|key| bucket(*key) == Some(0));
            let [moves, stays] = [alike.next(), alike.next()].map(|key| key.expect("a key"));
            let put = |hash: &$variant::hash::Hash, key| {
                let value = loom::sync::atomic::AtomicU64::new(5);
                // SAFETY: the address of a word.
                unsafe { hash.update(&Key(key), (&raw const value).cast(), Update::Any) }
            };
            put(&hash, moves).expect("room");
            put(&hash, stays).expect("room");
            let writer = loom::thread::spawn({
                let hash = Arc::clone(&hash);
                move || {
                    hash.delete(&Key(moves)).expect("it is there");
                    put(&hash, moves).expect("room again");
                }
            });
            let reader = loom::thread::spawn({
                let hash = Arc::clone(&hash);
                move || {
                    let found = hash.lookup(&Key(stays)).map(|value| !value.is_null());
                    assert_ne!(found, Ok(false), "a key that is there is missed");
                }
            });
            writer.join().expect("no panic");
            reader.join().expect("no panic");
        });
    };
}

#[test]
fn hash_chain_is_whole() {
    chain_is_whole!(good);
}

#[test]
#[should_panic(expected = "a key that is there is missed")]
fn hash_chain_without_link_must_fail() {
    chain_is_whole!(no_link);
}

/// Two threads put the same key.
macro_rules! one_element_per_key {
    ($variant:ident) => {
        loom::model(|| {
            let hash = Arc::new($variant::hash::Hash::new(2, 16, Values::new(2)));
            let put = |hash: &$variant::hash::Hash| {
                let value = loom::sync::atomic::AtomicU64::new(5);
                // SAFETY: the address of a word.
                unsafe { hash.update(&Key(OLD), (&raw const value).cast(), Update::NoExist) }
            };
            let other = loom::thread::spawn({
                let hash = Arc::clone(&hash);
                move || {
                    PROCESS.with(|process| process.set(2));
                    put(&hash)
                }
            });
            let mine = put(&hash);
            let other = other.join().expect("no panic");
            let done = [mine, other].iter().filter(|done| done.is_ok()).count();
            assert_eq!(done, 1, "{mine:?} {other:?}");
            assert_eq!(hash.keys().len(), 1);
        });
    };
}

#[test]
fn hash_one_element_per_key() {
    one_element_per_key!(good);
}

#[test]
#[should_panic(expected = "left: 2")]
fn hash_one_element_without_lock_must_fail() {
    one_element_per_key!(no_lock);
}

/// Two producers and a consumer: what comes out is what went in.
macro_rules! record_is_whole {
    ($variant:ident) => {
        loom::model(|| {
            let ring = Arc::new($variant::ring::Ring::new(32));
            let producer = |value: u64| {
                let ring = Arc::clone(&ring);
                loom::thread::spawn(move || {
                    let word = loom::sync::atomic::AtomicU64::new(value);
                    // SAFETY: the address of a word.
                    unsafe { ring.push((&raw const word).cast(), 8) }.expect("room for two");
                })
            };
            let producers = [producer(7), producer(8)];
            let mut got: Vec<_> = ring.pop().into_iter().collect();
            for producer in producers {
                producer.join().expect("no panic");
            }
            got.extend(std::iter::from_fn(|| ring.pop()));
            got.sort();
            let expected = [7_u64, 8].map(|value| value.to_le_bytes().to_vec());
            assert_eq!(got, expected, "records");
        });
    };
}

#[test]
fn ring_record_is_whole() {
    record_is_whole!(good);
}

#[test]
#[should_panic(expected = "records")]
fn ring_record_without_header_must_fail() {
    record_is_whole!(no_header);
}

/// Two records that are reserved, written by their address, and committed, one of them to be skipped, meet a
/// consumer. The second one does not fit before the ring's end.
macro_rules! reservation_is_whole {
    ($variant:ident) => {
        loom::model(|| {
            let ring = Arc::new($variant::ring::Ring::new(64));
            let word = loom::sync::atomic::AtomicU64::new(1);
            // SAFETY: the address of a word.
            unsafe { ring.push((&raw const word).cast(), 8) }.expect("room");
            assert_eq!(ring.pop(), Some(1_u64.to_le_bytes().to_vec()));
            let producer = loom::thread::spawn({
                let ring = Arc::clone(&ring);
                move || {
                    for (value, keep) in [(7, false), (8, true)] {
                        // There may be none yet, while the first one is being skipped.
                        let Ok(record) = ring.reserve(24) else { return false };
                        // SAFETY: words of the ring, which are atomics here.
                        let word = unsafe { &*record.data.cast::<loom::sync::atomic::AtomicU64>() };
                        word.store(value, loom::sync::atomic::Ordering::Relaxed);
                        ring.commit(record.at, 24, keep);
                    }
                    true
                }
            });
            let mut got: Vec<_> = ring.pop().into_iter().collect();
            let both = producer.join().expect("no panic");
            got.extend(std::iter::from_fn(|| ring.pop()));
            let first: Vec<_> = got.iter().map(|record| record[0]).collect();
            assert_eq!(first, if both { &[8][..] } else { &[] }, "records");
        });
    };
}

#[test]
fn ring_reservation_is_whole() {
    reservation_is_whole!(good);
}

#[test]
#[should_panic(expected = "records")]
fn ring_reservation_without_header_must_fail() {
    reservation_is_whole!(no_header);
}

/// A full ring: a producer takes the space that the consumer has just given back.
macro_rules! space_is_given_back {
    ($variant:ident) => {
        loom::model(|| {
            let ring = Arc::new($variant::ring::Ring::new(32));
            let push = |ring: &$variant::ring::Ring, value: u64| {
                let word = loom::sync::atomic::AtomicU64::new(value);
                // SAFETY: the address of a word.
                unsafe { ring.push((&raw const word).cast(), 8) }
            };
            for value in [1, 2] {
                push(&ring, value).expect("room");
            }
            let producer = loom::thread::spawn({
                let ring = Arc::clone(&ring);
                move || push(&ring, 3)
            });
            let first = ring.pop().expect("it is there");
            let pushed = producer.join().expect("no panic");
            assert_eq!(first, 1_u64.to_le_bytes());
            let rest: Vec<_> = std::iter::from_fn(|| ring.pop()).collect();
            let expected: &[u64] = if pushed.is_ok() { &[2, 3] } else { &[2] };
            let expected: Vec<_> = expected.iter().map(|v| v.to_le_bytes().to_vec()).collect();
            assert_eq!(rest, expected, "records");
        });
    };
}

#[test]
fn ring_space_is_given_back() {
    space_is_given_back!(good);
}

#[test]
#[should_panic(expected = "records")]
fn ring_space_without_tail_must_fail() {
    space_is_given_back!(no_tail);
}
