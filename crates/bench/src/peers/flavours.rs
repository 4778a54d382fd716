//! Owlet's flavours (and one imitation) behind one trait, so that every benchmark runs the same loop
//! around each. All of it is the public API.

use owlet_rcu::{ClassicSrcu, Cookie, Domain, Online, Qsbr, Reader, Srcu, Tasks, TasksTrace};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

/// How a thread protects what it reads.
pub(crate) trait Protect: 'static {
    /// What a thread keeps.
    type Thread;

    /// A thread begins; it protects nothing yet.
    fn thread() -> Self::Thread;

    /// Runs `f` in a section.
    fn section<R>(thread: &mut Self::Thread, f: impl FnOnce() -> R) -> R;

    /// Sections one after the other, each of one `f`, until told to stop.
    fn sections(thread: &mut Self::Thread, stop: &AtomicBool, f: impl Fn()) {
        while !stop.load(Ordering::Relaxed) {
            Self::section(thread, &f);
        }
    }
}

/// One can wait until the sections have ended.
pub(crate) trait Wait: Protect {
    /// Waits.
    fn synchronize();
}

/// A flavour with grace periods.
pub(crate) trait Flavour: Wait {
    /// Its domain.
    fn domain() -> &'static dyn Domain;

    /// Takes a cookie.
    fn snapshot() -> Cookie;

    /// Takes one whose moment comes about.
    fn start_poll() -> Cookie;

    /// Asks one.
    fn poll(cookie: Cookie) -> bool;
}

/// The methods of [`Flavour`] as those of a static: inherent ones, as a user has them.
macro_rules! flavour {
    ($name:ident, $static:ident, $synchronize:ident) => {
        impl Wait for $name {
            #[inline(always)]
            fn synchronize() {
                $static.$synchronize();
            }
        }

        impl Flavour for $name {
            fn domain() -> &'static dyn Domain {
                &$static
            }

            #[inline(always)]
            fn snapshot() -> Cookie {
                $static.snapshot()
            }

            #[inline(always)]
            fn start_poll() -> Cookie {
                $static.start_poll()
            }

            #[inline(always)]
            fn poll(cookie: Cookie) -> bool {
                $static.poll(cookie)
            }
        }
    };
}

/// Flavours of one domain type whose sections are guards.
macro_rules! guarded {
    ($(#[$doc:meta])* $name:ident, $static:ident: $type:ty = $new:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        static $static: $type = $new;

        impl Protect for $name {
            type Thread = ();

            fn thread() {}

            #[inline(always)]
            fn section<R>((): &mut (), f: impl FnOnce() -> R) -> R {
                let _section = $static.read();
                f()
            }
        }

        flavour!($name, $static, synchronize);
    };
}

guarded!(
    /// SRCU, by guards.
    Fast, FAST: Srcu = Srcu::named("fast")
);
guarded!(
    /// SRCU, the second.
    Fast2, FAST_2: Srcu = Srcu::named("fast-2")
);
guarded!(
    /// Tasks-Trace.
    Trace, TRACE: TasksTrace = TasksTrace::named("tasks-trace")
);
guarded!(
    /// Tasks-Trace, the second.
    Trace2, TRACE_2: TasksTrace = TasksTrace::named("tasks-trace-2")
);

guarded!(
    /// SRCU with full barriers in the readers.
    Classic, CLASSIC: ClassicSrcu = ClassicSrcu::named("classic")
);
guarded!(
    /// SRCU whose readers count by atomics, so that no grace period has a membarrier.
    Fenced, FENCED: Srcu = Srcu::fenced("fenced")
);

/// SRCU, by the raw pair.
pub(crate) struct Raw;

static RAW: Srcu = Srcu::named("raw");

impl Protect for Raw {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn section<R>((): &mut (), f: impl FnOnce() -> R) -> R {
        let token = RAW.read_lock();
        let result = f();
        // SAFETY: taken above, on this thread, given back once.
        unsafe { RAW.read_unlock(token) };
        result
    }
}

/// [`Fast`], waited for in a hurry.
pub(crate) struct Expedited;

impl Protect for Expedited {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn section<R>(thread: &mut (), f: impl FnOnce() -> R) -> R {
        Fast::section(thread, f)
    }
}

flavour!(Expedited, FAST, synchronize_expedited);

/// The floor of what waits for readers without barriers: the membarrier alone, for nobody.
pub(crate) struct Membarrier;

impl Protect for Membarrier {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn section<R>((): &mut (), f: impl FnOnce() -> R) -> R {
        f()
    }
}

impl Wait for Membarrier {
    #[inline(always)]
    fn synchronize() {
        owlet_percpu::fence::heavy_rseq();
    }
}

/// QSBR: threads are registered.
macro_rules! registered {
    ($(#[$doc:meta])* $name:ident, $static:ident, $label:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        pub(super) static $static: Qsbr = Qsbr::named($label);

        impl Protect for $name {
            type Thread = Reader<'static>;

            fn thread() -> Self::Thread {
                $static.register()
            }

            #[inline(always)]
            fn section<R>(thread: &mut Self::Thread, f: impl FnOnce() -> R) -> R {
                let _online = thread.online();
                f()
            }

            /// Online all the while, as the flavour is meant.
            fn sections(thread: &mut Self::Thread, stop: &AtomicBool, f: impl Fn()) {
                let mut online = thread.online();
                while !stop.load(Ordering::Relaxed) {
                    f();
                    online.quiescent();
                }
            }
        }

        flavour!($name, $static, synchronize);
    };
}

registered!(
    /// A QSBR thread that is offline but for its sections: it *notifies* the domain around each.
    Notify, QSBR, "qsbr"
);
registered!(
    /// QSBR, the second.
    Notify2, QSBR_2, "qsbr-2"
);

/// A QSBR thread that is online for `n` sections, with a quiescent state after every `each`.
#[inline(always)]
pub(crate) fn quiescent_each(n: u64, each: u64, f: impl Fn()) {
    let mut reader = QSBR.register();
    let mut online: Online<'_> = reader.online();
    for _ in 0..n.div_ceil(each) {
        for _ in 0..each {
            f();
        }
        online.quiescent();
    }
}

/// Tasks: a thread registers for each section, or passes a point after each.
macro_rules! voluntary {
    ($(#[$doc:meta])* $name:ident, $static:ident, $label:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        pub(super) static $static: Tasks = Tasks::named($label);

        impl Protect for $name {
            type Thread = ();

            fn thread() {}

            #[inline]
            fn section<R>((): &mut (), f: impl FnOnce() -> R) -> R {
                let _task = $static.register();
                f()
            }

            fn sections((): &mut (), stop: &AtomicBool, f: impl Fn()) {
                let mut task = $static.register();
                while !stop.load(Ordering::Relaxed) {
                    f();
                    task.quiescent();
                }
            }
        }

        flavour!($name, $static, synchronize);
    };
}

voluntary!(
    /// Tasks.
    Voluntary, TASKS, "tasks"
);
voluntary!(
    /// Tasks, the second.
    Voluntary2, TASKS_2, "tasks-2"
);

/// What the kernel did around an event on an idle CPU (`rcu_irq_enter` and `rcu_irq_exit`,
/// kernel/rcu/tree.c of Linux 4.18): the CPU's `dynticks` is incremented by an atomic that is a full
/// barrier, on the way in and on the way out, and nesting is counted. Imitated; no grace period looks.
pub(crate) struct KernelNotify;

/// One thread's, in the place of a CPU's.
#[repr(align(128))]
pub(crate) struct Dynticks {
    count: AtomicU64,
    nesting: Cell<u64>,
}

impl Protect for KernelNotify {
    type Thread = Box<Dynticks>;

    fn thread() -> Self::Thread {
        Box::new(Dynticks { count: AtomicU64::new(0), nesting: Cell::new(0) })
    }

    #[inline(always)]
    fn section<R>(thread: &mut Self::Thread, f: impl FnOnce() -> R) -> R {
        let outer = thread.nesting.get();
        if outer == 0 {
            thread.count.fetch_add(1, Ordering::SeqCst);
        }
        thread.nesting.set(outer + 1);
        let result = f();
        let outer = thread.nesting.get() - 1;
        thread.nesting.set(outer);
        if outer == 0 {
            thread.count.fetch_add(1, Ordering::SeqCst);
        }
        result
    }
}

/// The reader of liburcu's default flavour, `memb`, as its header has it inlined: a nesting count in
/// thread-local memory, and the phase of the grace period in it. (Its grace periods are not here.)
pub(crate) struct Memb;

static PHASE: AtomicU64 = AtomicU64::new(1);
/// `urcu_memb_gp.futex`: a grace period that sleeps is woken by the reader that leaves.
static SLEEPER: AtomicU64 = AtomicU64::new(0);
/// Bits of the count below the phase.
const NESTING: u64 = (1 << 32) - 1;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

impl Protect for Memb {
    type Thread = ();

    fn thread() {}

    #[inline(always)]
    fn section<R>((): &mut (), f: impl FnOnce() -> R) -> R {
        COUNT.with(|count| {
            // Branches, as in C: a conditional move would make each section wait for the last one.
            match count.get() & NESTING {
                0 => count.set(PHASE.load(Ordering::Relaxed)),
                _ => nested(count),
            }
            compiler_fence(Ordering::SeqCst); // pairs with the updater's membarrier
            let result = f();
            compiler_fence(Ordering::SeqCst);
            let inner = count.get();
            count.set(inner - 1);
            if inner & NESTING == 1 {
                compiler_fence(Ordering::SeqCst);
                if SLEEPER.load(Ordering::Relaxed) != 0 {
                    wake();
                }
            }
            result
        })
    }
}

#[cold]
#[inline(never)]
fn nested(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

#[cold]
#[inline(never)]
fn wake() {
    SLEEPER.store(0, Ordering::Relaxed);
}
