//! What a program is told about the call it runs for.

use crate::function::Function;
use crate::value::{RawValue, Value};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;

/// Where in a call a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Before the body.
    Entry,
    /// The body has returned.
    Return,
    /// The body unwinds: there is no return value.
    Unwound,
    /// The future was dropped before it was done: there is no return value.
    Dropped,
}

impl Phase {
    /// Before the body?
    #[inline(always)]
    #[must_use]
    pub const fn is_entry(self) -> bool {
        matches!(self, Self::Entry)
    }
}

/// What is known of every call at its entry.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) function: &'static Function,
    ip: usize,
    /// Values behind it (invariant 1).
    len: usize,
}

/// What is known of a call at its entry: filled in where the function is, and known to all others by the
/// address of its head alone.
///
/// # Invariants
/// 1. Behind a head of a captured call lie as many values as it says.
#[doc(hidden)]
#[derive(Debug)]
#[repr(C)]
pub struct Captured<const N: usize> {
    head: Head,
    values: [RawValue; N],
}

const _: () = assert!(core::mem::offset_of!(Captured<1>, values) == size_of::<Head>());

impl<const N: usize> Captured<N> {
    /// The function, an address in it, its arguments.
    #[inline(always)]
    #[must_use]
    pub const fn new(function: &'static Function, ip: usize, values: [RawValue; N]) -> Self {
        Self { head: Head { function, ip, len: N }, values }
    }

    /// The address, good for the values as well.
    #[inline(always)]
    pub(crate) fn head(&self) -> HeadRef<'_> {
        HeadRef(NonNull::from(self).cast(), PhantomData)
    }

    /// Keeps of text and bytes only that they were there.
    pub(crate) fn forget(&mut self) {
        self.values.iter_mut().for_each(RawValue::forget);
    }
}

/// A head and the values behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadRef<'a>(NonNull<Head>, PhantomData<&'a Head>);

impl<'a> HeadRef<'a> {
    #[inline(always)]
    pub(crate) fn head(self) -> &'a Head {
        // SAFETY: made of a captured call that is borrowed for 'a.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    fn values(self) -> &'a [RawValue] {
        let len = self.head().len;
        // SAFETY: the pointer is good for the whole captured call, in which values follow the head.
        let first = unsafe { self.0.add(1) }.cast::<RawValue>();
        // SAFETY: as many as that (invariant 1), borrowed for 'a.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), len) }
    }
}

/// One call, as a program sees it.
#[derive(Debug)]
pub struct Call<'a> {
    captured: HeadRef<'a>,
    ret: Option<&'a RawValue>,
    phase: Phase,
    pub(crate) cookie: Cell<u64>,
    session: Cell<u64>,
}

impl<'a> Call<'a> {
    /// # Safety
    /// The arguments are alive, or it is not the entry; what `ret` borrows is (invariant 1 of `value`).
    #[inline(always)]
    pub(crate) unsafe fn new(
        captured: HeadRef<'a>,
        ret: Option<&'a RawValue>,
        phase: Phase,
        cookie: u64,
    ) -> Self {
        Self { captured, ret, phase, cookie: Cell::new(cookie), session: Cell::new(0) }
    }

    /// The function.
    #[must_use]
    pub fn function(&self) -> &'static Function {
        self.captured.head().function
    }

    /// The function's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.function().name()
    }

    /// An address inside the code of the function, of the instance or inlined copy that was called. (On
    /// platforms without toggle sites, an address that stands for the function.)
    #[inline]
    #[must_use]
    pub fn ip(&self) -> usize {
        self.captured.head().ip
    }

    /// Where in the call we are.
    #[inline(always)]
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The n-th parameter's value, `self` included; `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn arg(&self, n: usize) -> Option<Value<'_>> {
        // SAFETY: `new`'s caller promised what `get` asks for.
        self.captured.values().get(n).map(|raw| unsafe { raw.get(self.phase.is_entry()) })
    }

    /// The value of the parameter of that name.
    #[must_use]
    pub fn arg_named(&self, name: &str) -> Option<Value<'_>> {
        self.arg(self.function().params().iter().position(|param| *param == name)?)
    }

    /// Names and values of all parameters, in their order.
    pub fn args(&self) -> impl Iterator<Item = (&'static str, Value<'_>)> {
        let names = self.function().params().iter();
        names.enumerate().filter_map(|(n, name)| Some((*name, self.arg(n)?)))
    }

    /// The return value: after a body that returned, unless it is skipped.
    #[inline]
    #[must_use]
    pub fn ret(&self) -> Option<Value<'_>> {
        // SAFETY: as in `arg`.
        self.ret.map(|raw| unsafe { raw.get(true) })
    }

    /// What the program was attached with.
    #[inline]
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie.get()
    }

    /// The word that this call's entry and exit of a session share.
    #[inline]
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session.get()
    }

    /// Sets [`Call::session`].
    #[inline]
    pub fn set_session(&self, word: u64) {
        self.session.set(word);
    }
}

/// The context of programs that are no closures: 56 bytes, all words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The first four arguments, as [`Value::word`]s; 0 beyond the last.
    pub arg: [u64; 4],
    /// The return value's word at exit, else 0.
    pub ret: u64,
    /// [`Call::ip`].
    pub ip: u64,
    /// [`Call::cookie`].
    pub cookie: u64,
}

const _: () = assert!(size_of::<Context>() == 56);

impl Context {
    /// The context of a call.
    #[inline]
    #[must_use]
    pub fn of(call: &Call<'_>) -> Self {
        let values = call.captured.values();
        let entry = call.phase.is_entry();
        let word = |n| values.get(n).map_or(0, |raw: &RawValue| raw.word(entry));
        Self {
            arg: [word(0), word(1), word(2), word(3)],
            ret: call.ret.map_or(0, |raw| raw.word(true)),
            ip: call.ip() as u64,
            cookie: call.cookie(),
        }
    }
}
