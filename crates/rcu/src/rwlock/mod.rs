//! A reader-writer lock whose readers write to their own CPU's cache line only.
//!
//! While no writer is about, taking it shared is one restartable sequence that looks at the lock's
//! [`rcu_sync`](crate::rcu_sync) and counts the reader in, and giving it back is another: no locked
//! instruction, no barrier, no line that two CPUs write. The first writer after a while makes readers slow,
//! which takes one membarrier; those that follow find them so. When there has been no writer for a while,
//! readers go back to the fast way by themselves.
//!
//! # The protocol
//! Reader, fast: in one sequence, `rcu_sync` idle and entry counted. Leaves likewise.
//! Reader, slow: counts, `[A]`, looks at `block` (`protocol`). If a writer is there, counts itself out,
//! looks for a short time, joins the queue and sleeps.
//! Writer: takes the *seat* (`seat`), or joins the queue for it; enters the `rcu_sync`; closes `block`
//! `[D]`; waits until the sums of entries and exits are equal `[C]`. Gives it back: opens `block` `[X]`, or,
//! in a burst, leaves it closed for the writer who seems to wait; exits the `rcu_sync`; and gives the seat up
//! or, if somebody waits or `block` is still closed, hands it over (`hand`). Nobody has the seat and `block` is
//! closed: that is never so (invariant 1 of `seat`), or readers would wait for nobody, for ever.
//!
//! # Words
//! | word | written by |
//! |---|---|
//! | counters (`place`) | readers; the owner of the seat, for readers that it lets in |
//! | `core` | the owner of the seat; holders of [`PerCpuRwLock::hold_slow`]; readers that go back to the fast way |
//! | `block`, `wanted`, stage, owner, the end of the phase | the owner of the seat |
//! | `pressed` | readers: 1; the owner of the seat: 0 |
//! | the queue, and `QUEUE` of the seat | whoever has the queue's latch |
//!
//! # Who waits for whom
//! [`Policy`] says who is next. Under all of them nobody is passed over for ever, but writers under
//! [`Policy::ReaderPreferring`]. A thread that gives up waiting does so under the queue's latch, where it
//! finds whether it has been served: there is no moment at which both could happen. What an owner does because
//! somebody waits he does under that latch, or looks again there: who waited may be gone.
//!
//! # Panics, ends of threads, forks
//! - The lock is not poisoned: a panic in a section gives it back like any other way out, and what was
//!   half-written is there to be seen (as in `parking_lot`).
//! - A panic in a wait (of the checks' reporter, or of the grace periods that the lock was given) leaves the
//!   lock as it was. A waker that panics keeps nobody else from being woken ([`LockStats::waker_panics`]).
//! - A guard that is forgotten, by a thread that ends or not, holds the lock for ever.
//! - In a forked child, shared holds are over, those of threads that stayed behind and those of the
//!   forking thread: it must not use what it holds shared over a fork if anybody in the child writes. An
//!   exclusive hold of the forking thread goes on, whoever took it, and an upgradable one if it took that
//!   itself; one that was moved to it is over, which its guard finds out. A lock that another thread was
//!   *writing* under stays locked in the child for ever, since what it protects is half-written; one that
//!   another thread was waiting for, or had taken upgradable, is free, to tries as well. Of several
//!   writers, those that stayed behind are inside for ever. A task that waits is woken in the parent only;
//!   in the child it is to be polled or dropped (`future`). Children made by a raw `clone` find locks as they
//!   were until they first wait for a lock or a grace period, and after that too if they have started
//!   threads before.
//!
//! # Signals
//! [`PerCpuRwLock::try_read`] and the end of its guard are async-signal-safe, the first use included, and a
//! handler may interrupt anything here; but not where tasks wait for the same lock to write, since the last
//! reader to leave calls their waker, which is the runtime's. Everything else is not for handlers.
//!
//! # What is proved where
//! `tests/loom.rs`: `protocol` and `seat`, each with twins that lack a barrier, and a waiter that gives up as
//! the lock is given back, with a twin whose owner does not look again. `owlet-torture rwlock`:
//! real sequences and membarriers, timed-out waiters, signals, migrations, threads that come and go.
//!
//! # Measurements
//! AMD Zen 4 VM, 2 vCPUs, Linux 6.18, 2026-12-01, load 1.4: a read and the end of its guard 34 instructions,
//! 1.9 ns, on 1, 2 and 8 threads; slow, 18 to 20 ns; a write pair in a burst 28 ns (`docs/comparison.md`).
//!
//! What the fast pair costs is its memory accesses, not its instructions: 9 loads, and 4 stores (twice the
//! descriptor and the count). A model of the pair in C, with the same accesses, in one run, ns: with the number
//! of slots and the forks in words of their own 2.80; as it is 1.86; with the counters' address loaded again at
//! the end 1.94; with the least that this design can load 1.42; the two increments alone 0.68.
//!
//! # Modules
//! - `protocol`: counting, and waiting for it (modelled). `seat`: one writer at a time (modelled).
//! - `place`: the counters' memory. `queue`: who waits.
//! - `raw`: the lock without data; `read`, `write`, `hand`: its parts. `guard`, `mapped`, `arc`: what one
//!   holds. `future`: waiting without blocking a thread. `several`: several writers at once.

#[cfg(not(loom))]
mod arc;
#[cfg(not(loom))]
mod future;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod hand;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod mapped;
#[cfg(not(loom))]
mod place;
#[doc(hidden)]
pub mod protocol;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod raw;
#[cfg(not(loom))]
mod read;
#[doc(hidden)]
pub mod seat;
#[cfg(all(feature = "serde", not(loom)))]
mod serde;
#[cfg(not(loom))]
mod several;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use arc::{ArcReadGuard, ArcWriteGuard};
#[cfg(not(loom))]
pub use future::{ReadFuture, WriteFuture};
#[cfg(not(loom))]
pub use guard::{HoldSlow, ReadGuard, UpgradableGuard, WriteGuard};
#[cfg(not(loom))]
pub use lock::{Options, PerCpuRwLock};
#[cfg(not(loom))]
pub use mapped::{MappedReadGuard, MappedWriteGuard};
#[cfg(not(loom))]
pub(crate) use place::forked;
#[cfg(not(loom))]
pub use raw::{LockStats, RawRwLock};
#[cfg(not(loom))]
pub use read::ReadHold;
#[cfg(not(loom))]
pub use several::{ManyGuard, SeveralWriters, SomeGuard};

/// Who is next, where readers and writers wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// First come, first served, and a writer that follows another at once finds readers still waiting:
    /// the source's, good for bursts of writers. Readers that come meanwhile wait for the burst's queue.
    #[default]
    WriterBurst,
    /// Phases of writers and of readers alternate: a writer that leaves lets in all readers that wait, and
    /// the next writer lets them have the lock, and others that come, for two microseconds at least.
    PhaseFair,
    /// A writer gets in when there are no readers, and no reader waits for one that has not got in. Writers
    /// starve if there is never a moment without readers.
    ReaderPreferring,
}
