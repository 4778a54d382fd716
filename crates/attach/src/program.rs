//! Programs: what runs when a traced function is called.
//!
//! | kind | runs | its answer |
//! |---|---|---|
//! | entry | before the body | ignored |
//! | exit | after the body | ignored |
//! | session | both, with a word of their own for each call | of the entry: whether the exit is to run |
//! | modify | before the body, after all entries | instead of the body, if it says so |
//!
//! A *normal* program runs in a section of the SRCU domain [`NORMAL`] and should be short; a *sleepable*
//! one runs in a section of the Tasks-Trace domain [`SLEEPABLE`] and may block. Each flavour has lists and
//! grace periods of its own: a sleeping program delays the detach of sleepable programs only.

use crate::call::{Call, Context};
use core::fmt;
use core::ptr::NonNull;
use owlet_percpu::atomic::{AtomicBool, AtomicU64, Ordering};
use owlet_percpu::{SLOT_SIZE, Slots};
use owlet_rcu::{Srcu, TasksTrace};
use std::alloc::Layout;
use std::sync::Arc;

/// The domain that normal programs run under.
pub(crate) static NORMAL: Srcu = Srcu::named("programs");
/// The domain that sleepable programs run under.
pub(crate) static SLEEPABLE: TasksTrace = TasksTrace::named("sleepable programs");

/// When a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Before the body.
    Entry,
    /// After the body, also when it unwinds.
    Exit,
    /// Before and after the body, with a word that both share.
    Session,
    /// Before the body, and perhaps instead of it: functions with `#[traced(modify_return)]` only.
    Modify,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Entry => "entry",
            Self::Exit => "exit",
            Self::Session => "session",
            Self::Modify => "modify",
        })
    }
}

/// Which domain a program runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// Short.
    Normal,
    /// May block.
    Sleepable,
}

/// Whether a session's exit is to run for this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtExit {
    /// Run it.
    Run,
    /// Do not.
    Skip,
}

/// Something other than a closure that runs as a program: a virtual machine, say.
///
/// It gets 56 bytes of context, as eBPF programs do, and the call's session word. The answer is the
/// kernel's: a session's entry answers 0 to have its exit run; a modifying program answers 0 to have the
/// body run, else the word that stands for the function's result; other answers are ignored.
pub trait Machine: Send + Sync {
    /// Runs once. Must be async-signal-safe if the functions it is attached to are called in handlers.
    fn run(&self, context: &Context, session: &mut u64) -> u64;
}

impl<M: Machine + ?Sized> Machine for Arc<M> {
    fn run(&self, context: &Context, session: &mut u64) -> u64 {
        (**self).run(context, session)
    }
}

/// What a program has run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramStats {
    /// Runs that have ended; a session's entry and exit are two.
    pub runs: u64,
    /// Calls that its filter did not want.
    pub filtered: u64,
    /// Calls missed because the program was running already on that thread.
    pub missed: u64,
    /// Panics: at most a few, since the first one switches the program off.
    pub panics: u64,
    /// It panicked and is switched off.
    pub stopped: bool,
}

/// A program; clones are the same program.
///
/// What it may assume: it runs on the calling thread, perhaps inside a signal handler, before or after the
/// body. It may call traced functions (itself it misses), attach and detach, allocate and block if the
/// traced code may (and, if it blocks for long, is sleepable). While it runs no detach of it returns. A
/// program that panics is switched off and the panic goes no further.
///
/// ```
/// use owlet_attach::{AtExit, Program, Value};
///
/// let big = Program::entry(|call| println!("{} {:?}", call.name(), call.arg(0)))
///     .filter(|call| matches!(call.arg(0), Some(Value::Unsigned(4096..))))
///     .build();
/// assert_eq!(big.stats().runs, 0);
/// ```
#[derive(Clone)]
pub struct Program(pub(crate) Arc<Inner>);

/// What came of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// It ran.
    Done,
    /// It ran and says: no exit (sessions), this result (modifying programs).
    Word(u64),
    /// Its filter did not want the call.
    Filtered,
    /// It, or its filter, panicked.
    Panicked,
    /// It was not called.
    Missed,
}

/// A program's closure, with a shim around it that lets no panic out: where the closure cannot panic, the
/// shim is nothing.
type Run = Box<dyn Fn(&Call<'_>) -> Answer + Send + Sync>;
type Filter = Box<dyn Fn(&Call<'_>) -> Option<bool> + Send + Sync>;

/// Runs `f`; `None` if it panicked.
#[inline(always)]
fn contained<R>(f: impl FnOnce() -> R) -> Option<R> {
    match std::panic::catch_unwind(core::panic::AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Its destructor might panic as well.
            core::mem::forget(payload);
            None
        }
    }
}

/// The shared part.
pub(crate) struct Inner {
    run: Run,
    pub(crate) kind: Kind,
    pub(crate) flavour: Flavour,
    pub(crate) reentrant: bool,
    stopped: AtomicBool,
    counters: Counters,
    panics: AtomicU64,
    name: String,
}

const RUNS: usize = 0;
const FILTERED: usize = 1;
const MISSED: usize = 2;

impl Inner {
    /// Runs the program.
    #[inline(always)]
    pub(crate) fn run(&self, call: &Call<'_>) -> Answer {
        let answer = (self.run)(call);
        if matches!(answer, Answer::Done | Answer::Word(_)) {
            self.counters.ran();
        } else {
            self.others(answer);
        }
        answer
    }

    /// Counts what did not come to its end.
    #[cold]
    #[inline(never)]
    fn others(&self, answer: Answer) {
        match answer {
            Answer::Filtered => self.counters.0.add(FILTERED, 1),
            Answer::Panicked => self.panicked(),
            Answer::Done | Answer::Word(_) | Answer::Missed => {}
        }
    }

    /// Switched off, because it panicked.
    #[inline(always)]
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn missed(&self) {
        self.counters.0.add(MISSED, 1);
    }

    #[cold]
    fn panicked(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.counters.0.add(RUNS, 1);
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, flavour, name, .. } = &*self.0;
        f.debug_struct("Program")
            .field("name", name)
            .field("kind", kind)
            .field("flavour", flavour)
            .field("stats", &self.stats())
            .finish()
    }
}

impl Program {
    /// Runs before the body.
    pub fn entry(run: impl Fn(&Call<'_>) + Send + Sync + 'static) -> Builder {
        Builder::new(Kind::Entry, move |call| {
            run(call);
            None
        })
    }

    /// Runs after the body: once it has returned, begins to unwind, or (async functions) is dropped. See
    /// [`Call::phase`].
    pub fn exit(run: impl Fn(&Call<'_>) + Send + Sync + 'static) -> Builder {
        Builder::new(Kind::Exit, move |call| {
            run(call);
            None
        })
    }

    /// Runs both, each call with a word of its own ([`Call::session`]) that is 0 at entry.
    pub fn session(
        entry: impl Fn(&Call<'_>) -> AtExit + Send + Sync + 'static,
        exit: impl Fn(&Call<'_>) + Send + Sync + 'static,
    ) -> Builder {
        Builder::new(Kind::Session, move |call| {
            if call.phase().is_entry() {
                (entry(call) == AtExit::Skip).then_some(1)
            } else {
                exit(call);
                None
            }
        })
    }

    /// Runs before the body and may say what the function returns instead of running its body: a word that
    /// the function's `#[traced(modify_return)]` turns into its type.
    pub fn modify(run: impl Fn(&Call<'_>) -> Option<u64> + Send + Sync + 'static) -> Builder {
        Builder::new(Kind::Modify, run)
    }

    /// Something other than a closure.
    pub fn machine(kind: Kind, machine: impl Machine + 'static) -> Builder {
        Builder::new(kind, move |call| {
            let mut session = call.session();
            let answer = machine.run(&Context::of(call), &mut session);
            call.set_session(session);
            (answer != 0).then_some(answer)
        })
    }

    /// What it has run so far.
    #[must_use]
    pub fn stats(&self) -> ProgramStats {
        let Inner { counters, panics, stopped, .. } = &*self.0;
        ProgramStats {
            runs: counters.0.sum(RUNS),
            filtered: counters.0.sum(FILTERED),
            missed: counters.0.sum(MISSED),
            panics: panics.load(Ordering::Relaxed),
            stopped: stopped.load(Ordering::Relaxed),
        }
    }

    /// When it runs.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Which domain it runs under.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.0.flavour
    }

    /// The name it was given, or "".
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether both are the same program, not merely equal ones.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Makes a [`Program`].
#[must_use = "a program is made by `build`"]
pub struct Builder {
    run: Run,
    filter: Option<Filter>,
    kind: Kind,
    flavour: Flavour,
    reentrant: bool,
    name: String,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).field("kind", &self.kind).finish()
    }
}

impl Builder {
    fn new(kind: Kind, run: impl Fn(&Call<'_>) -> Option<u64> + Send + Sync + 'static) -> Self {
        let run = Box::new(move |call: &Call<'_>| match contained(|| run(call)) {
            Some(None) => Answer::Done,
            Some(Some(word)) => Answer::Word(word),
            None => Answer::Panicked,
        });
        let (flavour, reentrant, name) = (Flavour::Normal, false, String::new());
        Self { run, filter: None, kind, flavour, reentrant, name }
    }

    /// The program may block.
    pub fn sleepable(mut self) -> Self {
        self.flavour = Flavour::Sleepable;
        self
    }

    /// The program runs only for calls of which `filter` is true; asked at entry and, of exit programs, at
    /// exit. A session whose entry is filtered out has no exit.
    pub fn filter(mut self, filter: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Box::new(move |call| contained(|| filter(call))));
        self
    }

    /// The program runs also for calls that it makes itself, and for those of signal handlers that
    /// interrupt it: none is missed. It sees to it that this ends.
    pub fn reentrant(mut self) -> Self {
        self.reentrant = true;
        self
    }

    /// A name for lists and reports.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The program, attached to nothing yet. Allocates a slot of 128 bytes per possible CPU for its
    /// counters.
    #[must_use]
    pub fn build(self) -> Program {
        let Self { run, filter, kind, flavour, reentrant, name } = self;
        let run = match filter {
            None => run,
            Some(filter) => Box::new(move |call: &Call<'_>| match filter(call) {
                Some(true) => run(call),
                Some(false) => Answer::Filtered,
                None => Answer::Panicked,
            }),
        };
        Program(Arc::new(Inner {
            run,
            kind,
            flavour,
            reentrant,
            stopped: AtomicBool::new(false),
            counters: Counters::new(),
            panics: AtomicU64::new(0),
            name,
        }))
    }
}

/// Per-CPU words on the heap.
struct Counters(Slots);

impl Counters {
    fn layout() -> Layout {
        // The number of CPUs times 128 fits.
        Layout::from_size_align(Slots::bytes(), SLOT_SIZE).unwrap_or(Layout::new::<u128>())
    }

    fn new() -> Self {
        let layout = Self::layout();
        // SAFETY: there is at least one CPU, so the layout is not of size zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(memory.cast::<u64>()) else {
            std::alloc::handle_alloc_error(layout)
        };
        // SAFETY: fresh zeroed memory of the right size and alignment, freed with `self` only.
        Self(unsafe { Slots::from_raw(base) })
    }
}

impl Counters {
    /// Counts a run.
    #[inline(always)]
    fn ran(&self) {
        const { assert!(RUNS == 0) };
        // SAFETY: the first word of the first slot.
        unsafe { Slots::increment_at::<0>(self.0.base().cast()) };
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`; whoever adds borrows `self`.
        unsafe { std::alloc::dealloc(self.0.base().as_ptr().cast(), Self::layout()) };
    }
}
