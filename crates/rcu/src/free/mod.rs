//! Batched deferred free: objects that are unpublished are freed together, after a grace period.
//!
//! `retire` puts an object's address into this CPU's block, a page. A full block gets a cookie and waits
//! in this CPU's queue; whoever closes a block frees the oldest ones whose grace period is over. So
//! memory comes back to the threads that use it up, no callback is queued for each object, and if grace
//! periods have come about anyway none is asked for. The kernel's `kvfree_rcu` (mm/slab_common.c) with
//! polled cookies, where each page has its own.
//!
//! # The protocol
//! *Putting in* (`put`): in one restartable sequence, load this CPU's open block, check for
//! room, write the object's words, note the domain's sequence number in the block's stamp, and as the
//! last store count the object and its bytes. No locked instruction, no fence. Threads without rseq, and
//! domains whose grace periods have no heavy fence, use blocks behind a lock that nobody waits for.
//!
//! *Closing*: when there is no room, in one more sequence, a fresh block takes the full one's place. Then
//! the full one is its thread's alone; it takes a snapshot, books the bytes, and puts it into a queue.
//! Then it frees up to two ready blocks of its CPU's queue, and asks for a grace period if sixteen wait
//! there: leads it on the spot if nobody is inside, or else has the worker bring it about. (Of its own
//! queue: objects of other CPUs came from other threads' arenas. Freeing whatever is ready wherever it is
//! doubled the cost of an object on two CPUs.)
//!
//! *The worker*: frees what producers left, brings about the grace periods that the rest waits for, and
//! closes blocks that have been open for long ([`Limits::linger`]), so that a lone object is freed in
//! time.
//!
//! *Memory of a pool's objects* is used again without the allocator, if it is asked for: `reuse`.
//!
//! *A barrier* turns the generation over (`tally`), closes all open blocks and waits until no block of the
//! old generation is left.
//!
//! # Batches
//! A batch is what waits in one queue for one cookie. As at most two cookies of a domain have not passed,
//! there are two batches at most on a CPU, and no more grace periods are asked for than can begin. A
//! block never joins a batch whose cookie is older than its own (the bug of the first polled
//! `kvfree_rcu`, 2022, mutant M6, in which a batch in flight gained a channel's objects and freed them
//! with the others).
//!
//! # Which cookie
//! | block | cookie |
//! |---|---|
//! | full | a snapshot taken after the last object was put in |
//! | open, taken by a flush | the earlier of a snapshot taken now and what the stamp says |
//!
//! So objects in a half-empty block need no grace period of their own if others have come about.
//!
//! # Who may write what
//! `lanes` (open blocks, ready ones), `queue` (closed ones), `block` (a block's words), `store` (where all that is).
//!
//! # Barriers
//! `[F1]` in `tally`, `[F2]` in `queue`, `[F3]` to `[F5]` in `lanes`; `[L]` in `turns` is a snapshot's.
//!
//! # Invariants
//! 1. An object is in one block, and a block in one place: a bank, a queue, the overflow list, or one
//!    thread's hands. (One owner at a time, so each object is freed once.)
//! 2. A block's cookie is that of a snapshot which came after each of its objects was unpublished.
//! 3. What a stamp without a fence lacks, one more grace period makes up for, in domains of which every
//!    grace period has a heavy fence after it began: whoever looked at the sequence number before that
//!    grace period began has, by its fence, unpublished for everybody before the next one begins.
//! 4. Nothing is locked while an object is freed, memory is asked for or given back, or a thread woken:
//!    so allocators, destructors and callbacks may retire.
//!
//! # Where it may be called
//! | where | what |
//! |---|---|
//! | inside a section, holding locks, while a thread ends | everything but barriers; see [`Backpressure`] for waits |
//! | in a callback, in a destructor of a retired object | the same; nothing waits there, and nothing is freed inside a destructor: the loop around it goes on, so chains of any length need no stack |
//! | in an allocator's hooks | `retire_with`, `retire_head`; blocks are mapped, not allocated |
//! | in a signal handler | only `call_head_in_handler` |
//!
//! Without memory for a block an object with a head goes to the domain's callbacks, which need none; for
//! others the caller waits for a grace period and frees it at once, or, where it must not wait, for
//! memory. A destructor that panics is contained and counted.
//!
//! # Fork
//! A forked child has a copy of what waited and frees it after grace periods of its own, once it retires,
//! flushes or waits at a barrier. What other threads had in their hands at the instant of the fork (a
//! block each at most) stays with them: the child leaks it. After a raw `clone` the same happens at the
//! child's first wait or full block.
//!
//! # What is proved where
//! `tests/loom.rs` (`free_..`): a flush against sequences, cookies against grace periods and readers,
//! queues, barriers, each with a twin that fails. `tests/free.rs`, `tests/free_memory.rs`, `tests/free_fork.rs`: KF-01 to KF-15.
//! Torture (`owlet-torture run`): poison, migrating producers, threads that come and go, forks; mutants M6
//! and M7.
//!
//! # Measured
//! AMD Zen 4 VM, 2 vCPUs, Linux 6.18, glibc 2.36, 2026-12-01, `owlet-bench defer-free`, two producers, load 3.5:
//! - Nobody reads, 64-byte objects: 50 M frees/s by `retire`, 60 M/s by a pool, 146 M/s with memory that a pool uses
//!   again, in 1.7 to 2.4 MB; 38, 33 and 13 ns of CPU an object, allocation included, of which the allocator
//!   alone, freeing as late, takes 25.
//! - Somebody always inside (three readers, 10 ms, cap of 44 MB): 22, 24 and 31 M/s in 47 to 52 MB, for 75, 62 and
//!   45 ns. The allocator alone takes 52 then, as most of it is memory that has left the cache. What waits is
//!   what was retired during up to two grace periods, so 44 MB allow for 25 M/s where producers are steady, and
//!   for more as far as they retire in a burst, when there is room again, before the next grace period begins.
//! - 24-byte objects wait for 2 grace periods of 5 ms on average, at most for 4 to 6; with sixteen producers, at 2 M
//!   objects a second, for 1.8 to 2, at most 3; with sixteen that never pause for 1.8 to 2.4, at most 5 to 8, because
//!   one that has a block in hand may not get a CPU for as long.
//! - The kernel's rcuscale, 16 M objects: 22 to 37 MB by its formula where a callback for each object, offloaded,
//!   takes 313, in two thirds of the time or less.
//! - With a cap of 64 MB, `Backpressure::Wait` and a reader stuck for a second: 64.5 to 64.9 MB, open blocks and the process's own included.

#[cfg(not(loom))]
mod arch;
#[cfg(not(loom))]
mod barrier;
#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod lanes;
#[cfg(not(loom))]
mod ledger;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod pressure;
#[cfg(not(loom))]
mod put;
#[doc(hidden)]
pub mod queue;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
mod retire;
#[cfg(not(loom))]
mod reuse;
#[cfg(not(loom))]
mod serve;
#[cfg(not(loom))]
mod store;
#[doc(hidden)]
pub mod tally;
#[cfg(not(loom))]
mod twice;

#[cfg(not(loom))]
pub use domain::{barrier_all, flush};
#[cfg(not(loom))]
pub use ledger::{Backpressure, Limits, RetireStats};
#[cfg(not(loom))]
pub use pool::Pool;
#[cfg(not(loom))]
pub use pressure::{trim, watch_pressure};
#[cfg(not(loom))]
pub use retire::Full;

#[cfg(not(loom))]
pub(crate) use barrier::{barrier, flush as flush_domain, trim as trim_domain};
#[cfg(not(loom))]
pub(crate) use domain::{dropped, inherent_retire, inherit, is_idle, stats};
#[cfg(not(loom))]
pub(crate) use ledger::Ledger;
#[cfg(not(loom))]
pub(crate) use retire::{
    retire, retire_box, retire_call, retire_dealloc, retire_head, retire_with, try_retire,
};
#[cfg(not(loom))]
pub(crate) use serve::serve;
