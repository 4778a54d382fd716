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
//! body runs all the same, unless the program is reentrant. Nothing is in the chain while a body runs.
//!
//! | instant | chain says | a handler's call of the same program |
//! |---|---|---|
//! | before the program is noted | another or none | runs |
//! | from then until it has returned | it | is missed |
//!
//! # Panics
//! A program's own shim contains them (`program`); what panicked is switched off and the walk goes on.

use crate::call::{Call, Captured, Phase};
use crate::function::Function;
use crate::list::{Entry, List};
use crate::program::{Answer, Inner, Kind, NORMAL, SLEEPABLE};
use crate::slot::{LINKS, Open};
use crate::value::{RawValue, Value};
use core::cell::Cell;
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
    #[cold]
    #[inline(never)]
    fn is_inside_slow(&self, program: &Inner) -> bool {
        let mut at = self.outer;
        // SAFETY: nodes of the chain lie in frames of this thread that are still active: each walk takes
        // its own out before it returns.
        while let Some(node) = unsafe { at.as_ref() } {
            if ptr::eq(node.program.get(), program) {
                program.missed();
                return true;
            }
            at = node.outer;
        }
        false
    }

    /// Runs one program, unless it is not to run or runs already.
    #[inline(always)]
    fn run(&self, entry: &Entry, call: &Call<'_>) -> Answer {
        if !entry.live() {
            return Answer::Missed;
        }
        // SAFETY: a live entry of a list; the walk is in a section of the list's domain.
        let program = unsafe { entry.program() };
        if program.stopped() {
            return Answer::Missed;
        }
        if !self.outer.is_null() && !program.reentrant && self.is_inside_slow(program) {
            return Answer::Missed;
        }
        call.cookie.set(entry.cookie);
        self.program.set(program);
        program.run(call)
    }
}

/// The calling thread's chain.
#[inline(always)]
fn running() -> &'static Cell<*const Node> {
    // Outside of `LocalKey::with`, which the compiler would not inline around it.
    let running = RUNNING.with(ptr::from_ref);
    // SAFETY: a constant thread-local without a destructor lives as long as its thread, and the reference
    // does not leave the functions of this module, nor the thread.
    unsafe { &*running }
}

/// What a call remembers across its body.
pub(crate) struct Frame {
    exits: bool,
    open: Open<LINKS>,
    /// Mutant M15: the lists of the entry.
    #[cfg(owlet_mutants)]
    stale: [*const List; 2],
}

// SAFETY: numbers; the mutant's pointers are its fault.
#[cfg(owlet_mutants)]
unsafe impl Send for Frame {}

impl Frame {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self {
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
    pub(crate) unsafe fn enter(&mut self, captured: &Captured) -> Option<u64> {
        let Function { normal, sleepable, .. } = captured.function;
        let mut answer = None;
        if !normal.is_empty() {
            let token = NORMAL.read_lock();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { normal.read().as_ref() } {
                #[cfg(owlet_mutants)]
                (self.stale[0] = list);
                // SAFETY: the caller's.
                answer = unsafe { self.enter_list(list, captured) };
            }
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            unsafe { NORMAL.read_unlock(token) };
        }
        if !sleepable.is_empty() {
            // SAFETY: the caller's.
            answer = answer.or(unsafe { self.enter_sleepable(captured) });
        }
        answer
    }

    /// # Safety
    /// As [`Frame::enter`].
    #[inline(never)]
    unsafe fn enter_sleepable(&mut self, captured: &Captured) -> Option<u64> {
        let _section = SLEEPABLE.read();
        // SAFETY: in a section of the list's domain.
        let list = unsafe { captured.function.sleepable.read().as_ref() }?;
        #[cfg(owlet_mutants)]
        (self.stale[1] = list);
        // SAFETY: the caller's.
        unsafe { self.enter_list(list, captured) }
    }

    /// # Safety
    /// As [`Frame::enter`].
    #[inline(always)]
    unsafe fn enter_list(&mut self, list: &List, captured: &Captured) -> Option<u64> {
        self.exits |= !list.exit.is_empty();
        // SAFETY: the caller's.
        let call = unsafe { Call::new(captured, None, Phase::Entry) };
        let mut decided = None;
        let running = running();
        let node = Node { program: Cell::new(ptr::null()), outer: running.get() };
        running.set(&raw const node);
        for entry in &list.enter {
            if entry.kind == Kind::Entry {
                let _ = node.run(entry, &call);
            } else {
                self.enter_other(entry, &node, &call, &mut decided);
            }
        }
        // Programs do not unwind.
        running.set(node.outer);
        decided
    }

    /// A session or a modifying program.
    #[inline(never)]
    fn enter_other(
        &mut self,
        entry: &Entry,
        node: &Node,
        call: &Call<'_>,
        decided: &mut Option<u64>,
    ) {
        let modify = entry.kind == Kind::Modify;
        if modify && decided.is_some() {
            return;
        }
        call.set_session(0);
        match node.run(entry, call) {
            Answer::Word(word) if modify => *decided = Some(word),
            Answer::Done if !modify => self.open.push(entry.link, call.session()),
            _ => {}
        }
    }

    /// Runs the programs of the exit.
    ///
    /// # Safety
    /// What `ret` borrows is alive.
    #[inline(never)]
    pub(crate) unsafe fn exit(&mut self, captured: &Captured, phase: Phase, ret: Option<RawValue>) {
        // SAFETY: the caller's.
        let ret = ret.map(|raw| unsafe { raw.get(true) });
        let ret = ret.as_ref();
        let Function { normal, sleepable, .. } = captured.function;
        if !sleepable.is_empty() {
            self.exit_sleepable(captured, phase, ret);
        }
        if !normal.is_empty() {
            let token = NORMAL.read_lock();
            // SAFETY: in a section of the list's domain.
            if let Some(list) = unsafe { self.list_at_exit(normal.read(), 0).as_ref() } {
                self.exit_list(list, captured, phase, ret);
            }
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            unsafe { NORMAL.read_unlock(token) };
        }
    }

    #[inline(never)]
    fn exit_sleepable(&mut self, captured: &Captured, phase: Phase, ret: Option<&Value<'_>>) {
        let _section = SLEEPABLE.read();
        let now = captured.function.sleepable.read();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { self.list_at_exit(now, 1).as_ref() } {
            self.exit_list(list, captured, phase, ret);
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
    fn exit_list(&self, list: &List, captured: &Captured, phase: Phase, ret: Option<&Value<'_>>) {
        debug_assert!(!phase.is_entry());
        // SAFETY: not the entry.
        let call = unsafe { Call::new(captured, ret, phase) };
        let running = running();
        let node = Node { program: Cell::new(ptr::null()), outer: running.get() };
        running.set(&raw const node);
        for entry in &list.exit {
            if entry.kind == Kind::Session {
                // Not begun by this call: no end.
                let Some(word) = self.open.find(entry.link) else { continue };
                call.set_session(word);
            }
            let _ = node.run(entry, &call);
        }
        // Programs do not unwind.
        running.set(node.outer);
    }
}

/// Runs the exit's programs when the body unwinds.
struct Unwinding<'f> {
    frame: &'f mut Frame,
    captured: &'f Captured,
}

impl Drop for Unwinding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.frame.exits {
            // SAFETY: no value.
            unsafe { self.frame.exit(self.captured, Phase::Unwound, None) };
        }
    }
}

/// Around the body of a function that is on. For the macro, which promises that the arguments in
/// `captured` are those of `body` (they move into it), and that `value` borrows what it is given.
///
/// There is one of these for each function, so what does not depend on the function is elsewhere.
#[doc(hidden)]
#[inline(never)]
pub fn call<R>(
    captured: &Captured,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
) -> R {
    let mut frame = Frame::new();
    // SAFETY: `body` owns the arguments and has not run.
    unsafe { frame.enter(captured) };
    let unwinding = Unwinding { frame: &mut frame, captured };
    let ret = body();
    core::mem::forget(unwinding);
    if frame.exits {
        // SAFETY: what was captured borrows `ret`, which lives until after the exit.
        unsafe { frame.exit(captured, Phase::Return, Some(value(&ret))) };
    }
    ret
}

/// As [`call`], of a function whose result a program may decide: `convert` turns its word into it.
#[doc(hidden)]
#[inline(never)]
pub fn call_modifiable<R>(
    captured: &Captured,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
    convert: impl FnOnce(u64) -> R,
) -> R {
    let mut frame = Frame::new();
    // SAFETY: `body` owns the arguments and has not run.
    let answer = unsafe { frame.enter(captured) };
    let unwinding = Unwinding { frame: &mut frame, captured };
    let ret = answer.map_or_else(body, convert);
    core::mem::forget(unwinding);
    if frame.exits {
        // SAFETY: as in `call`.
        unsafe { frame.exit(captured, Phase::Return, Some(value(&ret))) };
    }
    ret
}
