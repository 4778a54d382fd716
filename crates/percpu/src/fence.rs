//! Asymmetric fences: a light half for traffic, a heavy half for whoever has time.
//!
//! A light fence and a heavy fence together order what two `SeqCst` fences would. The light one is a
//! compiler barrier while `membarrier(2)` works, and a `SeqCst` fence in a process where it does
//! not; then the heavy one is a `SeqCst` fence too. Which of the two pairs is in use is part of the
//! backend decision and never changes.
//!
//! # When membarrier goes away
//! A program may install a seccomp filter long after the decision; the readers are then running
//! with compiler barriers and a heavy fence that cannot be had. The fall-back moves the caller to
//! every CPU in turn (`sched_setaffinity`): a thread of ours that was running there has been through
//! a context switch, which is a full barrier and restarts its sequence. If that is refused as well,
//! the caller sleeps 50 ms, longer than any scheduler tick; [`degraded`] says so, and the product
//! shows it. The last step is the only one without proof.
//!
//! | letter | where | what |
//! |---|---|---|
//! | `[A]` | [`light`] | this side's accesses before and after, in program order |
//! | `[B]` | [`heavy`] | the same for every running thread, at one instant of theirs |

use core::sync::atomic::AtomicU32;

use crate::atomic::{Ordering, fence};
#[cfg(not(loom))]
use crate::backend::has_membarrier;

/// The light half; pairs with [`heavy`]. A compiler barrier where membarrier works.
#[inline(always)]
pub fn light() {
    #[cfg(not(loom))]
    if has_membarrier() {
        // [A] pairs with [B] in heavy(): the processor may still reorder across this line, but the
        // barrier that [B] makes it execute falls before or after it as a whole.
        crate::atomic::compiler_fence(Ordering::SeqCst);
        return;
    }
    // [A] pairs with [B] in heavy(), which is a fence too where membarrier is missing (and in
    // models, where membarrier is a pair of fences).
    fence(Ordering::SeqCst);
}

/// The heavy half; pairs with [`light`]. Costs a system call (0.35 us alone, 10 us with threads
/// running on other CPUs of a virtual machine).
pub fn heavy() {
    // [B] pairs with [A] in light(): orders the caller's accesses around it as well.
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if has_membarrier() {
        if owlet_sys::membarrier::private_expedited().is_err() {
            heavy_slow();
        }
        fence(Ordering::SeqCst);
    }
}

/// [`heavy`], and every restartable sequence in flight in this process restarts: after it, a
/// sequence that read a word before the call has either committed or will read it again.
pub fn heavy_rseq() {
    // [B] as in heavy().
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if has_membarrier() {
        let answer = match crate::backend::rseq_offset() {
            Some(_) => owlet_sys::membarrier::private_expedited_rseq(),
            None => owlet_sys::membarrier::private_expedited(),
        };
        if answer.is_err() {
            heavy_slow();
        }
        fence(Ordering::SeqCst);
    }
}

/// Not modelled, so not from the facade. Set once a heavy fence had to be had without membarrier and without CPU migration.
static DEGRADED: AtomicU32 = AtomicU32::new(0);
/// 0 = not tried, 1 = registered, 2 = refused.
static GLOBAL: AtomicU32 = AtomicU32::new(0);

/// True if a heavy fence has had to rely on time (see the module's header).
#[must_use]
pub fn degraded() -> bool {
    DEGRADED.load(Ordering::Relaxed) != 0
}

/// Registers this process for [`heavy_global`] fences of others. False if the kernel or a filter
/// refuses; its light global fences are then real ones.
pub fn register_global() -> bool {
    match GLOBAL.load(Ordering::Relaxed) {
        0 => {
            let state =
                if owlet_sys::membarrier::register_global_expedited().is_ok() { 1 } else { 2 };
            // The first answer stays: a later one may come from behind a filter, and "registered"
            // is a fact about the kernel that does not go away.
            let first = GLOBAL.compare_exchange(0, state, Ordering::Relaxed, Ordering::Relaxed);
            first.map_or_else(|theirs| theirs, |_| state) == 1
        }
        state => state == 1,
    }
}

/// True if this process's light half towards other processes must be a real fence: it is not
/// registered. Count such processes in the shared memory if its other side wants to know.
#[inline]
#[must_use]
pub fn light_global_needs_fence() -> bool {
    GLOBAL.load(Ordering::Relaxed) != 1
}

/// The light half towards other processes; pairs with [`heavy_global`] of one of them.
#[inline(always)]
pub fn light_global() {
    #[cfg(not(loom))]
    if !light_global_needs_fence() {
        // [A] as in light(), towards [B] in heavy_global().
        crate::atomic::compiler_fence(Ordering::SeqCst);
        return;
    }
    // [A] this process is not reached by [B] of others: a fence of its own.
    fence(Ordering::SeqCst);
}

/// The heavy half towards every registered process. False if the kernel or a filter refuses: then
/// only processes that fence themselves are ordered, and the caller must re-check by time.
#[must_use]
pub fn heavy_global() -> bool {
    // [B] as in heavy(), for threads of all registered processes.
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    let done = owlet_sys::membarrier::global_expedited().is_ok();
    #[cfg(loom)]
    let done = true;
    fence(Ordering::SeqCst);
    done
}

#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn heavy_slow() {
    use owlet_sys::topology;
    let cpus = crate::cpus();
    let walked = topology::affinity().is_ok_and(|mask| {
        let mut visited = 0;
        for cpu in 0..cpus {
            // An error means the CPU is offline or not ours, so none of our threads is on it.
            visited += usize::from(topology::set_affinity(Some(cpu), cpus).is_ok());
        }
        let restored = topology::restore_affinity(&mask).is_ok();
        visited > 0 && restored
    });
    if !walked {
        DEGRADED.store(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
