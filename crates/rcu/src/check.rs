//! Debug checks: waits that could never end, and uses where they protect nothing.
//!
//! Debug builds and the feature `checks` have them; otherwise everything here is nothing.
//!
//! # What is checked
//! - A thread that waits for a grace period of a domain in whose section it is (it would wait for
//!   itself): a panic at the wait.
//! - The same where the section may have gone to another thread, because it is a guard's that can be
//!   moved ([`SrcuGuard`](crate::SrcuGuard), [`ClassicGuard`](crate::ClassicGuard)): the wait goes on,
//!   and if after a second the grace period is not over and the section not ended,
//!   [`crate::stall`] is told ([`Kind::OwnSection`](crate::stall::Kind::OwnSection)), if it is the
//!   waiting thread that leads the grace period.
//! - *Wait-for cycles*: a thread that holds X (is in a section of domain X, or owns lock X) and waits
//!   for Y (a grace period of Y, or lock Y) makes an edge X -> Y, for good. When an edge closes a
//!   cycle of any length, threads that come together badly will wait for each other for ever; that is
//!   reported the first time an edge closes it, though nothing has gone wrong yet. Entering a section
//!   waits for nobody and makes no edge.
//! - [`Qsbr::assert_online`](crate::Qsbr::assert_online) and its like: a use while offline.
//!
//! Locks take part by a [`Lock`] inside them.
//!
//! # How
//! Each thread has a small set of what it holds: one word per domain or lock, its address and a
//! count. No destructor, no allocation; a handler that interrupts an update leaves the word as it
//! found it, so sections in handlers are fine. The graph is behind a mutex that nobody waits for: who
//! cannot have it (a forked child of a thread that had it, say) goes without the check.
//!
//! # What it does not see
//! - More than [`HELD`] things held by one thread at a time.
//! - Domains one of whose guards has been given back by another thread than took it: their sections
//!   cannot be told by thread, and are left out from then on. While such a guard is on its way its
//!   section counts as the taker's, also in the graph of waits, unless it went as a
//!   [`RawSection`](crate::RawSection): that is nobody's. The same goes for holds of locks: whoever waits
//!   for a lock while a guard of it that he has sent elsewhere lives is refused, as if he held it.
//! - A shared and an exclusive hold of a lock are one: two readers that take two locks in opposite
//!   order are reported, since a writer waiting between them would be the deadlock.
//!
//! # Fork
//! In a forked child the forking thread holds what it held, but what [`crate::rwlock`] says is over there: its
//! shared holds of locks are kept apart, and struck out.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

use crate::engine::Engine;

/// True if the checks are compiled in.
pub(crate) const ON: bool = cfg!(any(debug_assertions, feature = "checks"));

/// Things a thread can hold at a time and be checked for.
pub const HELD: usize = 24;

/// A lock's part in the checks: a field of whatever makes threads wait for each other.
///
/// Call [`Lock::waits`] before blocking for it, [`Lock::enter`] once it is held (shared or not), and
/// [`Lock::leave`] when it no longer is. Without the checks these are nothing.
#[derive(Debug)]
pub struct Lock {
    name: &'static str,
}

impl Lock {
    /// A lock, by the name reports give it.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name }
    }

    /// The calling thread is about to wait until nobody else holds it.
    #[inline(always)]
    pub fn waits(&self) {
        if ON {
            waits(Key::of(self), self.name, None);
        }
    }

    /// The calling thread, which may hold it upgradable, is about to wait until nobody else does.
    #[inline(always)]
    pub(crate) fn waits_for_others(&self) {
        if ON {
            waits(Key::of(self), self.name, Some(Key::of(self)));
        }
    }

    /// The calling thread has come to hold it.
    #[inline(always)]
    pub fn enter(&self) {
        if ON {
            HOLDS.with(|held| add(held, Key::of(self)));
        }
    }

    /// The calling thread holds it no longer. If it never did, another thread's hold has come to it: such
    /// a lock is left out from then on.
    #[inline(always)]
    pub fn leave(&self) {
        if ON && !HOLDS.with(|held| take(held, Key::of(self))) {
            Key::of(self).leave_out();
        }
    }

    /// [`Lock::enter`], by a hold that is over in a forked child.
    #[inline(always)]
    pub(crate) fn enter_shared(&self) {
        self.enter();
        self.share();
    }

    /// [`Lock::leave`] after [`Lock::enter_shared`].
    #[inline(always)]
    pub(crate) fn leave_shared(&self) {
        self.unshare();
        self.leave();
    }

    /// What the calling thread holds has become a hold that is over in a forked child.
    #[inline(always)]
    pub(crate) fn share(&self) {
        if ON {
            SHARED.with(|held| add(held, Key::of(self)));
        }
    }

    #[inline(always)]
    fn unshare(&self) {
        if ON {
            let _ = SHARED.with(|held| take(held, Key::of(self)));
        }
    }

    /// The calling thread holds it, as far as is known: [`Lock::enter`], and no [`Lock::leave`] since.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let key = Key::of(self);
        ON && !key.is_left_out() && HOLDS.with(|held| count(held, key)) != 0
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if ON {
            let key = Key::of(self);
            forget(key);
            // Of guards that were forgotten: the next lock at this address is another.
            while HOLDS.with(|held| take(held, key)) {}
            while SHARED.with(|held| take(held, key)) {}
        }
    }
}

/// In a forked child, on its only thread: the shared holds of locks are over.
pub(crate) fn forked() {
    if !ON {
        return;
    }
    SHARED.with(|shared| {
        for word in shared {
            let now = word.swap(0, Ordering::Relaxed);
            for _ in 0..now & COUNT_MAX {
                HOLDS.with(|held| take(held, Key(now >> COUNT_BITS)));
            }
        }
    });
}

/// The calling thread enters a section.
#[inline(always)]
pub(crate) fn enter(domain: &Engine) {
    if ON {
        HOLDS.with(|held| add(held, Key::of(domain)));
    }
}

/// The section that the calling thread has just entered is a guard's, which may be moved to others.
#[inline(always)]
pub(crate) fn guard(domain: &Engine) {
    if ON {
        GUARDS.with(|held| add(held, Key::of(domain)));
    }
}

/// The calling thread is about to leave such a section, which it entered, or to make it nobody's.
#[inline(always)]
pub(crate) fn guard_ends(domain: &Engine) {
    if ON {
        GUARDS.with(|held| take(held, Key::of(domain)));
    }
}

/// The calling thread leaves a section that it entered.
#[inline(always)]
pub(crate) fn leave(domain: &Engine) {
    if ON {
        HOLDS.with(|held| take(held, Key::of(domain)));
    }
}

/// A section of the domain is left by another thread than entered it.
#[inline(always)]
pub(crate) fn leave_elsewhere(domain: &Engine) {
    if ON {
        Key::of(domain).leave_out();
    }
}

/// The domain is gone; its engine may come to serve another.
pub(crate) fn gone(domain: &Engine) {
    if ON {
        let key = Key::of(domain);
        forget(key);
        // What was forgotten here is not to be the next domain's.
        HOLDS.with(|held| drop_all(held, key));
        GUARDS.with(|held| drop_all(held, key));
    }
}

/// The calling thread is about to wait for a grace period of the domain. `inside`: whether it is in a
/// section of it, if the flavour knows.
///
/// # Panics
/// If it is in a section of the domain that cannot have been moved to another thread.
pub(crate) fn waits_for(domain: &Engine, inside: Option<bool>) {
    if !ON {
        return;
    }
    let key = Key::of(domain);
    let inside = inside.unwrap_or_else(|| {
        let sections = HOLDS.with(|held| count(held, key));
        !key.is_left_out() && sections > GUARDS.with(|held| count(held, key))
    });
    assert!(
        !inside,
        "waiting for a grace period of domain {} inside a section of the same domain",
        Name(domain.name(), key)
    );
    waits(key, domain.name(), Some(key));
}

/// A wait as old as that is suspicious if [`suspects`] says so.
pub(crate) const SUSPICIOUS_NS: u64 = 1_000_000_000;

/// True if the calling thread has taken a guard of the domain that is open, as far as is known.
pub(crate) fn suspects(domain: &Engine) -> bool {
    let key = Key::of(domain);
    ON && !key.is_left_out() && GUARDS.with(|held| count(held, key)) != 0
}

/// What something held is known by: its address, without the three lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key(u64);

const COUNT_BITS: u32 = 12;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
static LEFT_OUT: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

impl Key {
    fn of<T>(thing: &T) -> Self {
        Self(core::ptr::from_ref(thing).addr() as u64 >> 3)
    }

    /// The bit that says whether it is left out; others may share it, and are left out too.
    fn bit(self) -> (&'static AtomicU64, u64) {
        let hash = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        let [first, ..] = &LEFT_OUT;
        (LEFT_OUT.get(hash as usize / 64).unwrap_or(first), 1 << (hash % 64))
    }

    fn leave_out(self) {
        let (word, bit) = self.bit();
        word.fetch_or(bit, Ordering::Relaxed);
    }

    fn is_left_out(self) -> bool {
        let (word, bit) = self.bit();
        word.load(Ordering::Relaxed) & bit != 0
    }
}

thread_local! {
    /// Key and count of each thing held; a count of 0 is a free place, whatever the key.
    static HOLDS: Held = const { [const { AtomicU64::new(0) }; HELD] };
    /// The same for those sections among them that are guards'.
    static GUARDS: Held = const { [const { AtomicU64::new(0) }; HELD] };
    /// The same for the holds of locks among them that are over in a forked child.
    static SHARED: Held = const { [const { AtomicU64::new(0) }; HELD] };
}

type Held = [AtomicU64; HELD];

fn count(held: &Held, key: Key) -> u64 {
    let words = held.iter().map(|word| word.load(Ordering::Relaxed));
    words.filter(|word| counts(*word, key)).map(|word| word & COUNT_MAX).sum()
}

fn drop_all(held: &Held, key: Key) {
    for word in held.iter().filter(|word| counts(word.load(Ordering::Relaxed), key)) {
        word.store(0, Ordering::Relaxed);
    }
}

fn counts(word: u64, key: Key) -> bool {
    word >> COUNT_BITS == key.0 && word & COUNT_MAX != 0
}

fn add(held: &Held, key: Key) {
    let mut free = None;
    for word in held {
        let now = word.load(Ordering::Relaxed);
        if counts(now, key) {
            // A handler between the load and the store leaves what it finds.
            word.store((now + 1).min(key.0 << COUNT_BITS | COUNT_MAX), Ordering::Relaxed);
            return;
        }
        if free.is_none() && now & COUNT_MAX == 0 {
            free = Some(word);
        }
    }
    if let Some(word) = free {
        word.store(key.0 << COUNT_BITS | 1, Ordering::Relaxed);
    }
}

/// False if nothing was held.
fn take(held: &Held, key: Key) -> bool {
    for word in held {
        let now = word.load(Ordering::Relaxed);
        if counts(now, key) {
            word.store(now - 1, Ordering::Relaxed);
            return true;
        }
    }
    false
}

/// What threads have waited for while they held what.
#[derive(Debug)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    key: Key,
    name: &'static str,
    waits_for: Vec<Key>,
}

static GRAPH: Mutex<Graph> = Mutex::new(Graph { nodes: Vec::new() });
static CYCLES: AtomicU64 = AtomicU64::new(0);
static REPORTER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// A cycle of waits that could deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cycle {
    /// The domains and locks, by name (or address), each waited for by a thread that held the one
    /// before it; the last by one that held the first.
    pub path: Vec<String>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("possible deadlock: threads have waited in a cycle: ")?;
        for name in &self.path {
            write!(f, "{name} -> ")?;
        }
        f.write_str(self.path.first().map_or("", String::as_str))
    }
}

/// Who is told of cycles, instead of the standard error stream. Called on the thread that closed one,
/// before it waits; it may panic.
pub fn set_reporter(reporter: fn(&Cycle)) {
    REPORTER.store(reporter as *mut (), Ordering::Release);
}

/// Number of cycles reported so far.
#[must_use]
pub fn cycles() -> u64 {
    CYCLES.load(Ordering::Relaxed)
}

struct Name(&'static str, Key);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { write!(f, "@{:#x}", self.1.0 << 3) } else { f.write_str(self.0) }
    }
}

fn with_graph<T>(f: impl FnOnce(&mut Graph) -> T) -> Option<T> {
    for _ in 0..100 {
        match GRAPH.try_lock() {
            Ok(mut graph) => return Some(f(&mut graph)),
            Err(TryLockError::Poisoned(poisoned)) => return Some(f(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// `but`: what does not count as held.
fn waits(key: Key, name: &'static str, but: Option<Key>) {
    let mut held = [Key(0); HELD];
    let mut count = 0;
    HOLDS.with(|words| {
        for word in words {
            let word = word.load(Ordering::Relaxed);
            let other = Key(word >> COUNT_BITS);
            if word & COUNT_MAX != 0
                && Some(other) != but
                && !other.is_left_out()
                && let Some(place) = held.get_mut(count)
            {
                *place = other;
                count += 1;
            }
        }
    });
    if count != 0 && !key.is_left_out() {
        waits_slow(held.get(..count).unwrap_or_default(), key, name);
    }
}

#[cold]
#[inline(never)]
fn waits_slow(held: &[Key], key: Key, name: &'static str) {
    let found = with_graph(|graph| {
        graph.with_node(key, |node| node.name = name);
        let closed = |&from: &Key| graph.edge(from, key).then(|| graph.cycle(from, key)).flatten();
        held.iter().filter_map(closed).collect::<Vec<_>>()
    });
    for cycle in found.into_iter().flatten() {
        report(&cycle);
    }
}

#[cold]
fn report(cycle: &Cycle) {
    CYCLES.fetch_add(1, Ordering::Relaxed);
    let reporter = REPORTER.load(Ordering::Acquire);
    if reporter.is_null() {
        eprintln!("owlet-rcu: {cycle}");
    } else {
        // SAFETY: only `set_reporter` stores there, and it stores a `fn(&Cycle)`.
        let reporter = unsafe { core::mem::transmute::<*mut (), fn(&Cycle)>(reporter) };
        reporter(cycle);
    }
}

fn forget(key: Key) {
    let _ = with_graph(|graph| {
        graph.nodes.retain(|node| node.key != key);
        for node in &mut graph.nodes {
            node.waits_for.retain(|to| *to != key);
        }
    });
}

impl Graph {
    fn find(&self, key: Key) -> Option<&Node> {
        self.nodes.iter().find(|node| node.key == key)
    }

    /// Makes sure that there is a node, and does something with it.
    fn with_node<T>(&mut self, key: Key, f: impl FnOnce(&mut Node) -> T) -> T {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.key == key) {
            return f(node);
        }
        let mut node = Node { key, name: "", waits_for: Vec::new() };
        let answer = f(&mut node);
        self.nodes.push(node);
        answer
    }

    /// Notes that a holder of `from` has waited for `to`; true if that is new.
    fn edge(&mut self, from: Key, to: Key) -> bool {
        self.with_node(from, |node| {
            let new = !node.waits_for.contains(&to);
            if new {
                node.waits_for.push(to);
            }
            new
        })
    }

    /// The shortest cycle that the edge `from` -> `to` is part of.
    fn cycle(&self, from: Key, to: Key) -> Option<Cycle> {
        // Breadth first from `to`; each entry knows which one it came from.
        let mut seen = vec![(to, 0)];
        let mut at = 0;
        while let Some(&(key, _)) = seen.get(at) {
            if key == from {
                return Some(self.path(&seen, at));
            }
            for &next in self.find(key).map_or(&[][..], |node| &node.waits_for) {
                if seen.iter().all(|(known, _)| *known != next) {
                    seen.push((next, at));
                }
            }
            at += 1;
        }
        None
    }

    fn path(&self, seen: &[(Key, usize)], mut at: usize) -> Cycle {
        let mut path = Vec::new();
        while let Some(&(key, came_from)) = seen.get(at) {
            let name = self.find(key).map_or("", |node| node.name);
            path.push(Name(name, key).to_string());
            if at == 0 {
                break;
            }
            at = came_from;
        }
        // From `to` onwards, so that each is waited for by a holder of the one before it.
        path.reverse();
        Cycle { path }
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
