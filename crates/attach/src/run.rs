//! What runs around a traced body: entries, and exits also when it unwinds.
//!
//! # Steps
//! 1. The site jumps to the function's slow path, which captures the arguments and calls [`call`].
//! 2. Entry: for each flavour that has programs, a read section, the list, each program of the entry.
//! 3. The body, in no section. It may sleep, unwind, or never return.
//! 4. Exit, if the list of step 2 had programs for it: for each flavour a section, the list of *now*, each
//!    exit program and each session that this call began (`slot`).
//!
//! # Recursion
//! A thread has a chain of [`Node`]s on its stack, one for each walk over a list that it is in the middle of,
//! which says what runs there. A program that is in the chain is not run again, whether the call comes from
//! the program itself or from a signal handler that interrupted it: the call is counted as missed and its
//! body runs all the same. Nothing is in the chain while a body runs.
//!
//! | instant | chain says | a handler's call of the same program |
//! |---|---|---|
//! | before the program is noted | another or none | runs |
//! | from then until it has returned | it | is missed |
//!
//! # Panics
//! One `catch_unwind` a walk: the program that the walk's node names is switched off, and the walk goes on
//! behind it. Cost of the walk without programs' own work: see the crate's header.

use crate::call::{Call, Captured, Phase};
use crate::function::Function;
use crate::list::{Entry, List};
use crate::program::{Inner, Kind, NORMAL, SLEEPABLE};
use crate::slot::{LINKS, Open};
use crate::value::{RawValue, Value};
use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use core::ptr;

/// One walk over a list, on the stack of the thread that makes it.
struct Node {
    program: Cell<*const Inner>,
    outer: *const Node,
}

thread_local! {
    static RUNNING: Cell<*const Node> = const { Cell::new(ptr::null()) };
}

/// Whether the calling thread is inside a program.
pub(crate) fn in_program() -> bool {
    !RUNNING.get().is_null()
}

impl Node {
    /// Whether a program runs in a walk around this one.
    #[inline(always)]
    fn is_inside(&self, program: &Inner) -> bool {
        let mut at = self.outer;
        // SAFETY: nodes of the chain lie in frames of this thread that are still active: each walk takes
        // its own out before it returns.
        while let Some(node) = unsafe { at.as_ref() } {
            if ptr::eq(node.program.get(), program) {
                return true;
            }
            at = node.outer;
        }
        false
    }

    /// Runs one program, unless it is not to run or runs already.
    #[inline(always)]
    fn run(&self, entry: &Entry, call: &Call<'_>) -> Ran {
        let program = &*entry.program.0;
        if !entry.live() || program.stopped() {
            return Ran::Not;
        }
        if self.is_inside(program) {
            program.missed();
            return Ran::Not;
        }
        call.cookie.set(entry.cookie);
        self.program.set(program);
        let answer = program.run(call);
        self.program.set(ptr::null());
        Ran::Answered(answer)
    }
}

/// What came of a program.
enum Ran {
    /// It was not called.
    Not,
    /// It was.
    Answered(Option<u64>),
}

/// Calls `step` with 0 to `len - 1`; what panics is switched off.
#[inline(always)]
fn walk(len: usize, mut step: impl FnMut(usize, &Node)) {
    // Outside of `LocalKey::with`, which the compiler would not inline around it.
    let running = RUNNING.with(ptr::from_ref);
    // SAFETY: a constant thread-local without a destructor lives as long as its thread, this one.
    let running = unsafe { &*running };
    let node = Node { program: Cell::new(ptr::null()), outer: running.get() };
    let next = Cell::new(0);
    loop {
        running.set(&raw const node);
        let steps = AssertUnwindSafe(|| {
            while next.get() < len {
                let now = next.get();
                next.set(now + 1);
                step(now, &node);
            }
        });
        match std::panic::catch_unwind(steps) {
            Ok(()) => break,
            Err(payload) => {
                // Its destructor might panic as well.
                core::mem::forget(payload);
                // SAFETY: null, or the program that was running: the list that keeps it is protected by
                // the section around the walk.
                if let Some(program) = unsafe { node.program.get().as_ref() } {
                    program.panicked();
                }
                node.program.set(ptr::null());
            }
        }
    }
    running.set(node.outer);
}

/// What a call remembers across its body.
pub(crate) struct Frame {
    function: &'static Function,
    exits: bool,
    open: Open<LINKS>,
    /// Mutant M15: the lists of the entry.
    #[cfg(owlet_mutants)]
    stale: [*const List; 2],
}

// SAFETY: numbers and a static function; the mutant's pointers are its fault.
#[cfg(owlet_mutants)]
unsafe impl Send for Frame {}

impl Frame {
    #[inline(always)]
    pub(crate) const fn new(function: &'static Function) -> Self {
        Self {
            function,
            exits: false,
            open: Open::new(),
            #[cfg(owlet_mutants)]
            stale: [ptr::null(); 2],
        }
    }

    /// Whether there is something to do at exit.
    #[inline(always)]
    pub(crate) const fn exits(&self) -> bool {
        self.exits
    }

    /// Runs the programs of the entry; what a modifying one answers.
    ///
    /// # Safety
    /// The arguments are alive.
    #[inline(never)]
    pub(crate) unsafe fn enter(&mut self, ip: usize, args: &[RawValue]) -> Option<u64> {
        // SAFETY: the caller's.
        let call = unsafe { Call::new(self.function, ip, args, None, Phase::Entry) };
        let mut answer = None;
        let Function { normal, sleepable, .. } = self.function;
        if !normal.is_empty() {
            let token = NORMAL.read_lock();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { normal.read().as_ref() } {
                #[cfg(owlet_mutants)]
                (self.stale[0] = list);
                self.enter_list(list, &call, &mut answer);
            }
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            unsafe { NORMAL.read_unlock(token) };
        }
        if !sleepable.is_empty() {
            let _section = SLEEPABLE.read();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { sleepable.read().as_ref() } {
                #[cfg(owlet_mutants)]
                (self.stale[1] = list);
                self.enter_list(list, &call, &mut answer);
            }
        }
        answer
    }

    #[inline(always)]
    fn enter_list(&mut self, list: &List, call: &Call<'_>, answer: &mut Option<u64>) {
        self.exits |= list.exits;
        walk(list.entries.len(), |n, node| {
            let Some(entry) = list.entries.get(n) else { return };
            match entry.program.0.kind {
                Kind::Entry => _ = node.run(entry, call),
                Kind::Exit => {}
                Kind::Session => {
                    call.set_session(0);
                    if let Ran::Answered(None) = node.run(entry, call) {
                        self.open.push(entry.link, call.session());
                    }
                }
                Kind::Modify => {
                    if answer.is_none()
                        && let Ran::Answered(Some(word)) = node.run(entry, call)
                    {
                        *answer = Some(word);
                    }
                }
            }
        });
    }

    /// Runs the programs of the exit.
    #[inline(never)]
    pub(crate) fn exit(
        &mut self,
        ip: usize,
        args: &[RawValue],
        phase: Phase,
        ret: Option<Value<'_>>,
    ) {
        debug_assert!(!phase.is_entry());
        // SAFETY: not the entry.
        let call = unsafe { Call::new(self.function, ip, args, ret, phase) };
        let Function { normal, sleepable, .. } = self.function;
        if !sleepable.is_empty() {
            let _section = SLEEPABLE.read();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { self.list_at_exit(sleepable.read(), 1).as_ref() } {
                self.exit_list(list, &call);
            }
        }
        if !normal.is_empty() {
            let token = NORMAL.read_lock();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { self.list_at_exit(normal.read(), 0).as_ref() } {
                self.exit_list(list, &call);
            }
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            unsafe { NORMAL.read_unlock(token) };
        }
    }

    #[cfg(not(owlet_mutants))]
    #[inline(always)]
    fn list_at_exit(&self, now: *const List, _which: usize) -> *const List {
        now
    }

    /// Mutant M15: what the entry found is used beyond its section.
    #[cfg(owlet_mutants)]
    fn list_at_exit(&self, now: *const List, which: usize) -> *const List {
        let stale = self.stale.get(which).copied().unwrap_or(now);
        if owlet_percpu::planted!("M15") && !stale.is_null() { stale } else { now }
    }

    #[inline(always)]
    fn exit_list(&self, list: &List, call: &Call<'_>) {
        walk(list.modify, |n, node| {
            // The last one first.
            let Some(entry) = list.entries.get(list.modify - 1 - n) else { return };
            match entry.program.0.kind {
                Kind::Exit => _ = node.run(entry, call),
                Kind::Session => {
                    if let Some(word) = self.open.find(entry.link) {
                        call.set_session(word);
                        _ = node.run(entry, call);
                    }
                }
                Kind::Entry | Kind::Modify => {}
            }
        });
    }
}

/// Runs the exit's programs when the body unwinds.
struct Unwinding<'f> {
    frame: &'f mut Frame,
    ip: usize,
    args: &'f [RawValue],
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        if self.frame.exits {
            self.frame.exit(self.ip, self.args, Phase::Unwound, None);
        }
    }
}

/// Around the body of a function that is on. For the macro, which promises that the arguments in
/// `captured` are those of `body` (they move into it), and that `value` borrows what it is given.
#[doc(hidden)]
#[inline(never)]
pub fn call<R, const N: usize>(
    function: &'static Function,
    captured: Captured<N>,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
) -> R {
    around(function, &captured, |_| body(), value)
}

/// As [`call`], of a function whose result a program may decide: `convert` turns its word into it.
#[doc(hidden)]
#[inline(never)]
pub fn call_modifiable<R, const N: usize>(
    function: &'static Function,
    captured: Captured<N>,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
    convert: impl FnOnce(u64) -> R,
) -> R {
    around(function, &captured, |answer| answer.map_or_else(body, convert), value)
}

#[inline(always)]
fn around<R, const N: usize>(
    function: &'static Function,
    captured: &Captured<N>,
    body: impl FnOnce(Option<u64>) -> R,
    value: impl FnOnce(&R) -> RawValue,
) -> R {
    let (ip, args) = (captured.ip, captured.values.as_slice());
    let mut frame = Frame::new(function);
    // SAFETY: `body` owns the arguments and has not run.
    let answer = unsafe { frame.enter(ip, args) };
    let unwinding = Unwinding { frame: &mut frame, ip, args };
    let ret = body(answer);
    core::mem::forget(unwinding);
    if frame.exits {
        // SAFETY: what was captured borrows `ret`, which lives until after the exit.
        let seen = unsafe { value(&ret).get(true) };
        frame.exit(ip, args, Phase::Return, Some(seen));
    }
    ret
}
