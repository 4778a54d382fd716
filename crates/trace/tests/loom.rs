//! Models of what threads share without a lock in the bridges, on the product's own code: `table.rs`
//! and `spans.rs` are compiled into this test with loom's atomics and tables of two ways a level or
//! one. Each model has twins in which the order with one letter is taken away.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p owlet --release --test loom`
//!
//! | protocol of this crate | shown by |
//! |---|---|
//! | call sites (`bridge/table`), and the variants of one (`tracing/shape`, the same code) | models `table_..` |
//! | spans that are alive (`tracing/spans`) | models `spans_..` |
//! | probe lists: published by `probe`, freed after a grace period | the models of `owlet-rcu`; publishing is one pointer of the kind that `table_publish` shows |
//! | a tracepoint made known once (`bridge/point`) | the control lock, and one flag that says it need not be taken |
//! | numbers of tees (`tracing/tee`) | the order of one word, as [H] and [I] of `spans_owners` |
//! | `init`, sessions, fork | locks only (`sync`, `agent`); flags beside them are hints and relaxed |
//! | interests that `tracing` and `log` remember | no order of ours can: rebuilt until call sites are quiet (`tracing/live`) |
//!
//! Threads that only look are spawned last: loom remembers one access to each word, so that a thread's
//! own look before it writes hides the look of a thread that ran before, and that order is all it tries.
#![cfg(loom)]

#[path = "../src/bridge/tracing/spans.rs"]
#[expect(dead_code, reason = "a model uses a part of it")]
mod spans;
#[path = "../src/sync.rs"]
#[expect(dead_code, reason = "a model uses a part of it")]
mod sync;
#[path = "../src/bridge/table.rs"]
mod table;

mod bridge {
    pub(crate) use crate::table;
}

/// Stands for a call site: spans only point to it.
mod site {
    #[derive(Debug)]
    pub(crate) struct Site(pub(crate) u64);
}

use loom::cell::UnsafeCell;
use loom::thread;
use site::Site;
use spans::{New, Spans};
use std::sync::Arc;
use sync::letter;
use table::Table;

/// Runs `thread` on what is shared, in a thread of the model.
fn spawn<T: Send + Sync + 'static, R: 'static>(
    shared: &Arc<T>,
    thread: impl FnOnce(&T) -> R + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || thread(&shared))
}

fn join<R>(handle: thread::JoinHandle<R>) -> R {
    handle.join().expect("no panic")
}

// Call sites.

/// An entry: loom tells when it is read before it is written.
struct Entry {
    key: u64,
    made: UnsafeCell<u64>,
}

// SAFETY: loom checks every access to the cell; that is what the models are for.
unsafe impl Sync for Entry {}

impl Entry {
    fn new(key: u64) -> Self {
        let entry = Self { key, made: UnsafeCell::new(0) };
        // SAFETY: nobody else has it.
        entry.made.with_mut(|made| unsafe { *made = key });
        entry
    }

    /// Whether it has this key; reads all of it.
    fn is(&self, key: u64) -> bool {
        // SAFETY: published entries are not written; loom checks it.
        let made = self.made.with(|made| unsafe { *made });
        assert_eq!(made, self.key, "half an entry");
        self.key == key
    }
}

fn insert(table: &Table<Entry>, key: u64) -> Option<&'static Entry> {
    table.find_or_insert_slow(0, |entry| entry.is(key), || Entry::new(key))
}

/// A thread finds and walks while this one inserts into the second level.
fn publish() {
    loom::model(|| {
        let table = Arc::new(Table::new(usize::MAX));
        insert(&table, 1).expect("room");
        insert(&table, 2).expect("room");
        let looks = spawn(&table, |table| {
            if let Some(found) = table.find(0, |entry| entry.is(3)) {
                assert_eq!(found.key, 3);
            }
            let mut walked = Vec::new();
            table.for_each(|entry| {
                assert!(entry.is(entry.key));
                walked.push(entry.key);
            });
            assert!(walked == [1, 2] || walked == [1, 2, 3], "{walked:?}");
        });
        insert(&table, 3).expect("room");
        join(looks);
        assert!(table.find(0, |entry| entry.is(3)).is_some());
    });
}

#[test]
fn table_publish() {
    publish();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn table_publish_without_a_must_fail() {
    letter::without('A');
    publish();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn table_publish_without_b_must_fail() {
    letter::without('B');
    publish();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn table_publish_without_c_must_fail() {
    letter::without('C');
    publish();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn table_publish_without_d_must_fail() {
    letter::without('D');
    publish();
}

/// Three threads want the last way of the first level, two of them for the same key.
fn once(insert: fn(&Table<Entry>, u64) -> Option<&'static Entry>) {
    loom::model(move || {
        let table = Arc::new(Table::new(usize::MAX));
        insert(&table, 1).expect("room");
        let other = spawn(&table, move |table| insert(table, 2).expect("room"));
        let same = spawn(&table, move |table| insert(table, 3).expect("room"));
        let mine = insert(&table, 3).expect("room");
        let (other, theirs) = (join(other), join(same));
        assert!(std::ptr::eq(mine, theirs), "two entries for one key");
        let mut walked = Vec::new();
        table.for_each(|entry| walked.push(entry.key));
        walked.sort_unstable();
        assert_eq!((walked, other.key), (vec![1, 2, 3], 2));
    });
}

#[test]
fn table_once() {
    once(insert);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn table_once_without_b_must_fail() {
    letter::without('B');
    once(insert);
}

/// Who lost a gap takes the next one instead of looking at what is in the one it lost.
#[test]
#[should_panic(expected = "two entries")]
fn table_once_blind_must_fail() {
    once(|table, key| table.find_or_insert_slow(0, |_| false, || Entry::new(key)));
}

// Spans.

static SITES: [Site; 4] = [Site(0), Site(1), Site(2), Site(3)];

/// What a span is told by: all its words say `number`.
fn new(number: u64) -> New {
    let site = SITES.get(number as usize).expect("few spans");
    New { span: number, since: number, site, flags: number as u32 }
}

/// Looks for a span; one that is found must be one of `numbers` in all its words.
fn look(spans: &Spans, id: u64, numbers: &[u64]) -> bool {
    let found = spans.find(id);
    if let Some(known) = found {
        let words = [known.span, known.since, known.site.0, u64::from(known.flags)];
        let whole = numbers.iter().any(|number| words == [*number; 4]);
        assert!(whole, "half a span: {words:?}");
    }
    found.is_some()
}

/// Span 1 ends and span 2 gets its way, with an id of its own or the same, while another thread looks
/// for both.
fn again(id: u64) {
    loom::model(move || {
        let spans = Arc::new(Spans::new());
        assert!(spans.insert(1, &new(1)));
        let looks = spawn(&spans, move |spans| match id {
            1 => look(spans, 1, &[1, 2]),
            _ => look(spans, 1, &[1]) || look(spans, 2, &[2]),
        });
        let known = spans.find(1).expect("inserted");
        assert!(known.release());
        known.remove();
        assert!(spans.insert(id, &new(2)));
        join(looks);
        assert!(look(&spans, id, &[2]) && spans.find(3 - id).is_none());
    });
}

#[test]
fn spans_again() {
    again(2);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_again_without_a_must_fail() {
    letter::without('A');
    again(2);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_again_without_c_must_fail() {
    letter::without('C');
    again(2);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_again_without_d_must_fail() {
    letter::without('D');
    again(2);
}

#[test]
fn spans_same_id() {
    again(1);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_same_id_without_b_must_fail() {
    letter::without('B');
    again(1);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_same_id_without_c_must_fail() {
    letter::without('C');
    again(1);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_same_id_without_d_must_fail() {
    letter::without('D');
    again(1);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_same_id_without_j_must_fail() {
    letter::without('J');
    again(1);
}

#[test]
#[should_panic(expected = "half a span")]
fn spans_same_id_without_k_must_fail() {
    letter::without('K');
    again(1);
}

/// Two threads insert into a table that has no level yet; one of them looks for the other's span.
fn grow() {
    loom::model(|| {
        let spans = Arc::new(Spans::new());
        let inserts = spawn(&spans, |spans| {
            look(spans, 2, &[2]);
            spans.insert(1, &new(1))
        });
        assert!(spans.insert(2, &new(2)));
        assert!(join(inserts));
        assert!(look(&spans, 1, &[1]) && look(&spans, 2, &[2]));
    });
}

#[test]
fn spans_grow() {
    grow();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn spans_grow_without_e_must_fail() {
    letter::without('E');
    grow();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn spans_grow_without_f_must_fail() {
    letter::without('F');
    grow();
}

/// A table with one way left, and what the owners of the span in it do while they are.
struct Owned {
    spans: Spans,
    used: UnsafeCell<u64>,
}

// SAFETY: loom checks every access to the cell; that is what the models are for.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn leave(&self) {
        let known = self.spans.find(1).expect("we own it");
        // SAFETY: an owner among others only reads.
        self.used.with(|used| unsafe { *used });
        if known.release() {
            // SAFETY: the last owner is alone; loom checks it.
            self.used.with_mut(|used| unsafe { *used += 1 });
            known.remove();
        }
    }
}

/// Two owners of a span leave, and a third thread puts another span where it was.
fn owners() {
    loom::model(|| {
        let owned = Arc::new(Owned { spans: Spans::new(), used: UnsafeCell::new(0) });
        assert!(owned.spans.insert(1, &new(1)));
        assert!(owned.spans.insert(3, &new(3)));
        owned.spans.find(1).expect("inserted").retain();
        let other = spawn(&owned, Owned::leave);
        let inserts = spawn(&owned, |owned| {
            if owned.spans.insert(2, &new(2)) {
                // SAFETY: ours alone, as every word of the way; loom checks it.
                owned.used.with_mut(|used| unsafe { *used += 1 });
                assert!(owned.spans.find(2).expect("inserted").release(), "not the last owner");
            }
        });
        owned.leave();
        join(other);
        join(inserts);
    });
}

#[test]
fn spans_owners() {
    owners();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn spans_owners_without_g_must_fail() {
    letter::without('G');
    owners();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn spans_owners_without_h_must_fail() {
    letter::without('H');
    owners();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn spans_owners_without_i_must_fail() {
    letter::without('I');
    owners();
}
