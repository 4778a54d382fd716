//! What runs around a traced body: entries, and exits also when it unwinds.
//!
//! # Steps
//! 1. The site jumps to the function's slow path, which captures the arguments and calls [`call`].
//! 2. Entry: for each flavour that has programs for it (`Function::phases`, a hint), a read section, the
//!    list, each program of the entry.
//! 3. The body, in no section. It may sleep, unwind, or never return.
//! 4. Exit, if step 2 found that there are programs for it: for each flavour a section, the list of *now*,
//!    each exit program and each session that this call began (`slot`).
//!
//! # The short way
//! Where an end of a call has one program, a normal one, and the thread is in none, the list says all that is
//! needed in its first words (`list::Lone`), and no [`Node`] is made. One section covers the list, its only
//! entry, the program, its count. There are two sections when both ends have programs: none may be held over
//! the body, and only one that began after it tells whether the program is still there.
//!
//! # Recursion
//! A thread knows what runs on it ([`Running`]): the program of the short way, or a chain of [`Node`]s on its
//! stack, one for each walk over a list that it is in the middle of, with what ran before at its end.
//! A program that is in the chain is not run again, whether the call comes from the program itself or from a
//! signal handler that interrupted it: the call is counted as missed and its body runs all the same, unless
//! the program is reentrant. Nothing that a call ran is in the chain while its body runs.
//!
//! | instant | chain says | a handler's call of the same program |
//! |---|---|---|
//! | before the program is noted | another or none | runs |
//! | from then until it has returned | it | is missed |
//!
//! # Invariants
//! 1. Where an entry answers with a link ([`Begun`]), it has written the session's word to its frame, and the
//!    exit is given that frame and that answer.
//!
//! # Panics
//! A program's own shim contains them (`program`); what panicked is switched off and the walk goes on.

use crate::call::{Call, Captured, HeadRef, Phase};
use crate::function::{NORMAL_ENTER, NORMAL_EXIT, SLEEPABLE_ENTER, SLEEPABLE_EXIT};
use crate::list::{Entry, List};
use crate::program::{Answer, Inner, Kind, NORMAL, SLEEPABLE};
use crate::slot::{LINKS, Open};
use crate::value::RawValue;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr;

/// What runs on a thread: nothing (null); the program of a walk over a list of one, around which there is no
/// other (its address); or the innermost [`Node`] (its address and [`Running::NODE`]).
#[derive(Clone, Copy)]
struct Running(*const ());

/// One walk over a list, on the stack of the thread that makes it.
struct Node {
    program: Cell<*const Inner>,
    outer: Running,
}

thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(Running::NOTHING) };
}

/// Whether the calling thread is inside a program.
pub(crate) fn in_program() -> bool {
    !RUNNING.get().is_nothing()
}

impl Running {
    const NOTHING: Self = Self(ptr::null());
    /// Nodes and programs are aligned to words.
    const NODE: usize = 1;

    #[inline(always)]
    fn is_nothing(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    fn program(program: &Inner) -> Self {
        Self(ptr::from_ref(program).cast())
    }

    #[inline(always)]
    fn node(node: &Node) -> Self {
        Self(ptr::from_ref(node).cast::<()>().wrapping_byte_add(Self::NODE))
    }

    /// The innermost program, and what runs around it.
    fn split(self) -> Option<(*const Inner, Self)> {
        if self.0.addr() & Self::NODE == 0 {
            return (!self.is_nothing()).then_some((self.0.cast(), Self::NOTHING));
        }
        let node = self.0.wrapping_byte_sub(Self::NODE).cast::<Node>();
        // SAFETY: nodes of the chain lie in frames of this thread that are still active: each walk takes
        // its own out before it returns.
        let node = unsafe { &*node };
        Some((node.program.get(), node.outer))
    }
}

impl Node {
    /// Whether a program runs in a walk around this one.
    #[cold]
    #[inline(never)]
    fn is_inside_slow(&self, program: &Inner) -> bool {
        let mut at = self.outer;
        while let Some((running, outer)) = at.split() {
            if ptr::eq(running, program) {
                program.missed();
                return true;
            }
            at = outer;
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
        if !self.outer.is_nothing() && !program.reentrant && self.is_inside_slow(program) {
            return Answer::Missed;
        }
        call.cookie.set(entry.cookie);
        self.program.set(program);
        program.run(call)
    }
}

/// Runs a program around which none runs.
#[inline(always)]
fn run_alone(running: &Cell<Running>, program: &Inner, call: &Call<'_>) -> Answer {
    if program.stopped() {
        return Answer::Missed;
    }
    running.set(Running::program(program));
    let answer = program.run(call);
    // Programs do not unwind.
    running.set(Running::NOTHING);
    answer
}

/// The calling thread's chain.
#[inline(always)]
fn running() -> &'static Cell<Running> {
    // Outside of `LocalKey::with`, which the compiler would not inline around it.
    let running = RUNNING.with(ptr::from_ref);
    // SAFETY: a constant thread-local without a destructor lives as long as its thread, and the reference
    // does not leave the functions of this module, nor the thread.
    unsafe { &*running }
}

const ENTER: u8 = NORMAL_ENTER | SLEEPABLE_ENTER;
const BOTH_ENDS: u8 = NORMAL_ENTER | NORMAL_EXIT;

/// What a call remembers of its entry in a register: 0, there is nothing to do at exit; a link, the session of
/// that alone has begun, and its word is in the [`Frame`]; [`Begun::EXITS`], there is something to do, and what
/// sessions have begun is in the frame.
#[derive(Clone, Copy)]
pub(crate) struct Begun(u64);

impl Begun {
    /// There is nothing to do at exit. (Links begin at 1.)
    const NOTHING: Self = Self(0);
    const EXITS: Self = Self(u64::MAX);

    #[inline(always)]
    fn exits_if(exits: bool) -> Self {
        if exits { Self::EXITS } else { Self::NOTHING }
    }

    /// Whether there is something to do at exit.
    #[inline(always)]
    pub(crate) fn exits(self) -> bool {
        self.0 != 0
    }
}

/// What a call remembers across its body, other than in [`Begun`].
pub(crate) struct Frame {
    open: Open<LINKS>,
    /// Of the session that [`Begun`] names (invariant 1).
    word: MaybeUninit<u64>,
    /// What a modifying program answered.
    answer: Option<u64>,
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
            open: Open::new(),
            word: MaybeUninit::uninit(),
            answer: None,
            #[cfg(owlet_mutants)]
            stale: [ptr::null(); 2],
        }
    }

    /// Runs the programs of the entry.
    ///
    /// Only a switch, so that each way saves the registers that it needs itself.
    ///
    /// # Safety
    /// The arguments are alive.
    #[inline(never)]
    pub(crate) unsafe fn enter(&mut self, captured: HeadRef<'_>) -> Begun {
        match captured.head().function.phases() {
            // SAFETY: the caller's.
            NORMAL_ENTER => unsafe { self.enter_lone(captured) },
            // SAFETY: the caller's.
            BOTH_ENDS => unsafe { self.enter_both(captured) },
            // The mutant wants to have seen the list.
            phases if phases & ENTER == 0 && !cfg!(owlet_mutants) => Begun::exits_if(phases != 0),
            // SAFETY: the caller's.
            _ => unsafe { self.enter_several(captured) },
        }
    }

    /// The short way of an entry without an exit: that of one normal program on a thread that is in none.
    ///
    /// # Safety
    /// As [`Frame::enter`].
    #[inline(never)]
    unsafe fn enter_lone(&mut self, captured: HeadRef<'_>) -> Begun {
        let token = NORMAL.read_lock();
        let running = running();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { captured.head().function.normal.read().as_ref() }
            // SAFETY: in that section.
            && let Some(program) = unsafe { list.plain.program() }
            && running.get().is_nothing()
        {
            // SAFETY: the caller's.
            let call = unsafe { Call::new(captured, None, Phase::Entry, list.plain.cookie) };
            let _ = run_alone(running, program, &call);
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            unsafe { NORMAL.read_unlock(token) };
            return Begun::NOTHING;
        }
        // SAFETY: the caller's; the token was taken above.
        unsafe { self.enter_locked(captured, token) }
    }

    /// As [`Frame::enter_lone`], where there is something to do at exit, too.
    ///
    /// # Safety
    /// As [`Frame::enter`].
    #[inline(never)]
    unsafe fn enter_both(&mut self, captured: HeadRef<'_>) -> Begun {
        let token = NORMAL.read_lock();
        let running = running();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { captured.head().function.normal.read().as_ref() }
            && running.get().is_nothing()
            && list.exits()
        {
            #[cfg(owlet_mutants)]
            (self.stale[0] = list);
            // SAFETY: in the section.
            if let Some(program) = unsafe { list.first.program() } {
                // SAFETY: the caller's.
                let call = unsafe { Call::new(captured, None, Phase::Entry, list.first.cookie) };
                let link = if program.kind == Kind::Session { list.first.link } else { 0 };
                let done = matches!(run_alone(running, program, &call), Answer::Done);
                // SAFETY: taken above, on this thread; nothing in between unwinds.
                unsafe { NORMAL.read_unlock(token) };
                self.word.write(call.session());
                return if done && link != 0 { Begun(link) } else { Begun::EXITS };
            }
        }
        // SAFETY: the caller's; the token was taken above.
        unsafe { self.enter_locked(captured, token) }
    }

    /// Both flavours, or a call that needs no section before its exit.
    ///
    /// # Safety
    /// As [`Frame::enter`].
    #[inline(never)]
    unsafe fn enter_several(&mut self, captured: HeadRef<'_>) -> Begun {
        let phases = captured.head().function.phases();
        let mut exits = phases & (NORMAL_EXIT | SLEEPABLE_EXIT) != 0;
        // The mutant wants to have seen the list.
        if phases & NORMAL_ENTER != 0 || (cfg!(owlet_mutants) && phases & NORMAL_EXIT != 0) {
            // SAFETY: the caller's; the token is new.
            exits |= unsafe { self.enter_locked(captured, NORMAL.read_lock()) }.exits();
        }
        if phases & SLEEPABLE_ENTER != 0 || (cfg!(owlet_mutants) && phases & SLEEPABLE_EXIT != 0) {
            // SAFETY: the caller's.
            exits |= unsafe { self.enter_sleepable(captured) };
        }
        Begun::exits_if(exits)
    }

    /// Any list of normal programs.
    ///
    /// # Safety
    /// As [`Frame::enter`]; this ends the section that `token` stands for.
    #[inline(never)]
    unsafe fn enter_locked(&mut self, captured: HeadRef<'_>, token: u32) -> Begun {
        let mut exits = false;
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { captured.head().function.normal.read().as_ref() } {
            #[cfg(owlet_mutants)]
            (self.stale[0] = list);
            exits = list.exits();
            // SAFETY: the caller's.
            unsafe { self.enter_list(list, captured) };
        }
        // SAFETY: the caller's; nothing in between unwinds.
        unsafe { NORMAL.read_unlock(token) };
        Begun::exits_if(exits)
    }

    /// # Safety
    /// As [`Frame::enter`].
    #[inline(never)]
    unsafe fn enter_sleepable(&mut self, captured: HeadRef<'_>) -> bool {
        let _section = SLEEPABLE.read();
        // SAFETY: in a section of the list's domain.
        let list = unsafe { captured.head().function.sleepable.read().as_ref() };
        let Some(list) = list else { return false };
        #[cfg(owlet_mutants)]
        (self.stale[1] = list);
        // SAFETY: the caller's.
        unsafe { self.enter_list(list, captured) };
        list.exits()
    }

    /// # Safety
    /// As [`Frame::enter`].
    #[inline(always)]
    unsafe fn enter_list(&mut self, list: &List, captured: HeadRef<'_>) {
        // SAFETY: the caller's.
        let call = unsafe { Call::new(captured, None, Phase::Entry, 0) };
        // A flavour's modifying programs have a say among themselves, the other's do not hear of it.
        let mut decided = None;
        let running = running();
        let node = Node { program: Cell::new(ptr::null()), outer: running.get() };
        running.set(Running::node(&node));
        for entry in list.enter() {
            if entry.kind() == Kind::Entry {
                let _ = node.run(entry, &call);
            } else {
                self.enter_other(entry, &node, &call, &mut decided);
            }
        }
        // Programs do not unwind.
        running.set(node.outer);
        self.answer = self.answer.or(decided);
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
        let modify = entry.kind() == Kind::Modify;
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

    /// Runs the programs of the exit; `begun` is what the entry returned.
    ///
    /// # Safety
    /// What `ret` borrows is alive; the phase is not the entry.
    #[inline(never)]
    pub(crate) unsafe fn exit(
        &mut self,
        captured: HeadRef<'_>,
        begun: Begun,
        phase: Phase,
        ret: Option<&RawValue>,
    ) {
        debug_assert!(!phase.is_entry());
        let function = captured.head().function;
        // SAFETY: not the entry; of `ret`, the caller's.
        let call = unsafe { Call::new(captured, ret, phase, 0) };
        if function.phases() & !NORMAL_ENTER != NORMAL_EXIT {
            return self.exit_several(&call, begun);
        }
        let token = NORMAL.read_lock();
        let running = running();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { self.list_at_exit(function.normal.read(), 0).as_ref() }
            // SAFETY: in that section.
            && let Some(program) = unsafe { list.last.program() }
            && running.get().is_nothing()
            && (begun.0 == list.last.link || program.kind == Kind::Exit)
        {
            if begun.0 == list.last.link {
                // SAFETY: `begun` is a link (invariant 1).
                call.set_session(unsafe { self.word.assume_init() });
            }
            call.cookie.set(list.last.cookie);
            let _ = run_alone(running, program, &call);
            // SAFETY: taken above, on this thread; nothing in between unwinds.
            return unsafe { NORMAL.read_unlock(token) };
        }
        self.exit_locked(&call, begun, token);
    }

    /// Whether this call began a link's session; if so, `call` has its word.
    #[inline(always)]
    fn is_begun(&self, begun: Begun, link: u64, call: &Call<'_>) -> bool {
        let word = if begun.0 == link {
            // SAFETY: `begun` is a link (invariant 1).
            Some(unsafe { self.word.assume_init() })
        } else {
            self.open.find(link)
        };
        word.map(|word| call.set_session(word)).is_some()
    }

    #[inline(never)]
    fn exit_several(&self, call: &Call<'_>, begun: Begun) {
        let phases = call.function().phases();
        if phases & SLEEPABLE_EXIT != 0 {
            self.exit_sleepable(call, begun);
        }
        if phases & NORMAL_EXIT != 0 {
            self.exit_locked(call, begun, NORMAL.read_lock());
        }
    }

    /// Any list of normal programs. Ends the section that `token` stands for.
    #[inline(never)]
    fn exit_locked(&self, call: &Call<'_>, begun: Begun, token: u32) {
        let now = call.function().normal.read();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { self.list_at_exit(now, 0).as_ref() } {
            self.exit_list(list, call, begun);
        }
        // SAFETY: taken by the caller, on this thread, for this; nothing in between unwinds.
        unsafe { NORMAL.read_unlock(token) };
    }

    #[inline(never)]
    fn exit_sleepable(&self, call: &Call<'_>, begun: Begun) {
        let _section = SLEEPABLE.read();
        let now = call.function().sleepable.read();
        // SAFETY: in a section of the list's domain.
        if let Some(list) = unsafe { self.list_at_exit(now, 1).as_ref() } {
            self.exit_list(list, call, begun);
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
    fn exit_list(&self, list: &List, call: &Call<'_>, begun: Begun) {
        let running = running();
        let node = Node { program: Cell::new(ptr::null()), outer: running.get() };
        running.set(Running::node(&node));
        for entry in list.exit() {
            // A session that this call has not begun has no end.
            if entry.kind() != Kind::Session || self.is_begun(begun, entry.link, call) {
                let _ = node.run(entry, call);
            }
        }
        // Programs do not unwind.
        running.set(node.outer);
    }
}

/// Runs the exit's programs when the body unwinds.
struct Unwinding<'f> {
    frame: &'f mut Frame,
    captured: HeadRef<'f>,
    begun: Begun,
}

impl Drop for Unwinding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.begun.exits() {
            // SAFETY: no value.
            unsafe { self.frame.exit(self.captured, self.begun, Phase::Unwound, None) };
        }
    }
}

/// Around the body of a function that is on. For the macro, which promises that the arguments in
/// `captured` are those of `body` (they move into it), and that `value` borrows what it is given.
///
/// There is one of these for each function, so what does not depend on the function is elsewhere.
#[doc(hidden)]
#[inline(never)]
pub fn call<R, const N: usize>(
    captured: &Captured<N>,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
) -> R {
    let (mut frame, captured) = (Frame::new(), captured.head());
    // SAFETY: `body` owns the arguments and has not run.
    let begun = unsafe { frame.enter(captured) };
    let unwinding = Unwinding { frame: &mut frame, captured, begun };
    let ret = body();
    core::mem::forget(unwinding);
    if begun.exits() {
        // SAFETY: what was captured borrows `ret`, which lives until after the exit.
        unsafe { frame.exit(captured, begun, Phase::Return, Some(&value(&ret))) };
    }
    ret
}

/// As [`call`], of a function whose result a program may decide: `convert` turns its word into it.
#[doc(hidden)]
#[inline(never)]
pub fn call_modifiable<R, const N: usize>(
    captured: &Captured<N>,
    body: impl FnOnce() -> R,
    value: impl FnOnce(&R) -> RawValue,
    convert: impl FnOnce(u64) -> R,
) -> R {
    let (mut frame, captured) = (Frame::new(), captured.head());
    // SAFETY: `body` owns the arguments and has not run.
    let begun = unsafe { frame.enter(captured) };
    let answer = frame.answer;
    let unwinding = Unwinding { frame: &mut frame, captured, begun };
    let ret = answer.map_or_else(body, convert);
    core::mem::forget(unwinding);
    if begun.exits() {
        // SAFETY: as in `call`.
        unsafe { frame.exit(captured, begun, Phase::Return, Some(&value(&ret))) };
    }
    ret
}
