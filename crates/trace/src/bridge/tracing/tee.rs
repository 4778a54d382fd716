//! A subscriber around another one: both get what they want.
//!
//! # What the inner subscriber sees
//! Exactly what it would see without us: events and spans that it wants, with its own ids, its own
//! rules of interest, its own notion of the current span. Its ids are the ids that the program sees,
//! so that extensions which find their own data by id (`OpenTelemetry`, `ErrorLayer`) work through
//! us. A downcast that does not ask for the tee asks it.
//!
//! # A span that only we want
//! It has an id of ours: [`MARK`] above, a number that is never used again below. Such an id is never
//! shown to the inner subscriber: entering is ours alone, a child of it is a root there, which is
//! what a disabled parent makes of it without us. The one exception is an event whose *explicit*
//! parent it is: the inner subscriber finds no span of that id. The inner subscriber's id of the day
//! could be the same word with a probability of 2^-48 for each such span alive: then ours is missing
//! in the trace.
//!
//! # Counting handles
//! A span of the inner subscriber's ends in the trace when the program drops its last handle, or when
//! the inner subscriber says that it has closed it, whichever comes first. The program's handles are
//! counted here, since a subscriber need not answer. But `tracing-subscriber`'s registry keeps
//! references of its own (a span that is entered, a parent), takes them directly and gives them back
//! through the dispatcher, that is, through us. What comes while the thread is in the inner subscriber
//! is therefore handed on and not counted.
//!
//! # Asking the inner subscriber
//! | it said of the call site | we are off | we are on |
//! |---|---|---|
//! | never | never | always; it is not told |
//! | always | always | always; it is told |
//! | sometimes | sometimes: it is asked by [`enabled`](tracing_core::Subscriber::enabled) | always: it is asked just before it is told |
//!
//! It is asked once for each event. `enabled` leaves its answer in a thread-local note, which the event
//! that follows takes; an event without a note (interest changed in between, or other events
//! happened while its arguments were evaluated) asks again.
//!
//! # Barriers
//! | letter | where | pairs with | orders |
//! |---|---|---|---|
//! | [A] | a number is taken | [B] | the answers kept under it are forgotten before new ones are kept |
//! | [B] | a number is given back | [A] | the same |

use super::recorder::{Recorder, next_span};
use super::site::{self, Site, TEES, Want};
use super::spans::OURS;
use super::{Discover, live};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::cell::Cell;
use core::ptr;
use std::any::TypeId;
use tracing_core::metadata::LevelFilter;
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, Level, Metadata};

/// Upper 16 bits of the id of a span that only we want.
const MARK: u64 = 0xa6e1 << 48;
const NUMBER: u64 = (1 << 48) - 1;
/// Id of spans of ours that no table holds.
const UNKNOWN: u64 = MARK | NUMBER;

thread_local! {
    /// Call site and answer of the last question, if an event or a span follows.
    static NOTE: Cell<(*const Site, bool)> = const { Cell::new((ptr::null(), false)) };
    /// How many inner subscribers this thread is in.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// The thread is in an inner subscriber. See "Counting handles" in the module.
struct Inside(());

impl Inside {
    #[inline]
    fn enter() -> Self {
        INSIDE.with(|depth| depth.set(depth.get().wrapping_add(1)));
        Self(())
    }

    #[inline]
    fn is() -> bool {
        INSIDE.with(|depth| depth.get() != 0)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.with(|depth| depth.set(depth.get().wrapping_sub(1)));
    }
}

/// Numbers of tees in use, a bit each.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A tee's number, below [`TEES`] while there are enough.
struct Number(u32);

impl Number {
    fn take() -> Self {
        let mut used = NUMBERS.load(Ordering::Relaxed);
        loop {
            let free = used.trailing_ones();
            if free >= TEES {
                return Self(TEES);
            }
            // [A] Acquire: pairs with [B]; without it: the last one's answers are taken for ours.
            match NUMBERS.compare_exchange(
                used,
                used | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Self(free),
                Err(now) => used = now,
            }
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if self.0 < TEES {
            site::forget(self.0);
            // [B] Release: pairs with [A].
            NUMBERS.fetch_and(!(1 << self.0), Ordering::Release);
        }
    }
}

/// A subscriber around another one. Made by [`tee`](super::tee).
pub struct Tee<S> {
    inner: S,
    pub(crate) recorder: Recorder,
    discover: Discover,
    number: Number,
    /// The inner subscriber's hint as of the last rebuild, as in [`rank`].
    hint: AtomicU64,
}

impl<S: core::fmt::Debug> core::fmt::Debug for Tee<S> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Tee").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Levels as numbers, the talkative ones greater; 0 is off.
fn rank(level: Option<Level>) -> u64 {
    match level {
        None => 0,
        Some(Level::ERROR) => 1,
        Some(Level::WARN) => 2,
        Some(Level::INFO) => 3,
        Some(Level::DEBUG) => 4,
        Some(Level::TRACE) => 5,
    }
}

impl<S: tracing_core::Subscriber> Tee<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            inner,
            recorder: Recorder::new(),
            discover: Discover::new(true),
            number: Number::take(),
            hint: AtomicU64::new(u64::MAX),
        }
    }

    /// As [`Subscriber::discover`](super::Subscriber::discover).
    #[must_use]
    pub fn discover(mut self, discover: bool) -> Self {
        self.discover.set(discover);
        self
    }

    /// The subscriber inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Whether the inner subscriber's hint lets it want this level at all.
    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        rank(Some(*metadata.level())) <= self.hint.load(Ordering::Relaxed)
    }

    /// Asks the inner subscriber.
    fn ask(&self, metadata: &Metadata<'_>) -> bool {
        self.allows(metadata) && {
            let _inside = Inside::enter();
            self.inner.enabled(metadata)
        }
    }

    /// Whether the inner subscriber is to be told of what happens now at this call site.
    #[inline]
    fn wanted_inside(&self, site: &'static Site) -> bool {
        match site.want(self.number.0) {
            Want::Never => false,
            Want::Always => true,
            Want::Sometimes | Want::Unknown => {
                let (noted, answer) = NOTE.replace((ptr::null(), false));
                if ptr::eq(noted, site) { answer } else { self.ask(site.metadata) }
            }
        }
    }

    /// A span of ours alone.
    fn open_ours(&self, attrs: &Attributes<'_>) -> Id {
        let number = next_span();
        let id = Id::from_u64(MARK | (number & NUMBER));
        if id.into_u64() != UNKNOWN && self.recorder.open(&id, number, attrs, OURS) {
            id
        } else {
            Id::from_u64(UNKNOWN)
        }
    }

    /// A span of the inner subscriber's.
    fn open_inside(&self, attrs: &Attributes<'_>) -> Id {
        let inside = Inside::enter();
        let id = match attrs.parent() {
            Some(parent) if self.is_ours(parent) => {
                self.inner.new_span(&Attributes::new_root(attrs.metadata(), attrs.values()))
            }
            _ => self.inner.new_span(attrs),
        };
        drop(inside);
        if site::of(attrs.metadata()).is_some_and(Site::is_on) {
            self.recorder.open(&id, next_span(), attrs, 0);
        }
        id
    }

    fn is_ours(&self, id: &Id) -> bool {
        let id = id.into_u64();
        id == UNKNOWN
            || id & !NUMBER == MARK
                && self.recorder.spans.find(id).is_some_and(|known| known.flags & OURS != 0)
    }
}

impl<S: tracing_core::Subscriber> tracing_core::Subscriber for Tee<S> {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        live::add(dispatch);
        self.inner.on_register_dispatch(dispatch);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let inner = self.inner.register_callsite(metadata);
        let inner = if self.allows(metadata) { inner } else { Interest::never() };
        let Some(site) = site::of(metadata) else { return inner };
        site.set_want(self.number.0, Want::of(&inner));
        site.ensure();
        if site.is_on() { Interest::always() } else { inner }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(site) = site::asked(metadata) else { return self.ask(metadata) };
        let inside = match site.want(self.number.0) {
            Want::Never => false,
            Want::Always => true,
            Want::Sometimes | Want::Unknown => {
                let answer = self.ask(metadata);
                let follows = answer || site.is_on();
                NOTE.set((if follows { site } else { ptr::null() }, answer));
                return follows;
            }
        };
        inside || site.is_on()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let inner = self.inner.max_level_hint();
        let hint = inner.map_or(u64::MAX, |inner| rank(inner.into_level()));
        self.hint.store(hint, Ordering::Relaxed);
        inner.map(|inner| inner.max(self.discover.level()))
    }

    fn new_span(&self, attrs: &Attributes<'_>) -> Id {
        match site::of(attrs.metadata()) {
            Some(site) if !self.wanted_inside(site) => self.open_ours(attrs),
            _ => self.open_inside(attrs),
        }
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let known = self.recorder.spans.find(span.into_u64());
        if !self.is_ours(span) {
            let _inside = Inside::enter();
            self.inner.record(span, values);
        }
        if let Some(known) = known {
            self.recorder.record(&known, values);
        }
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        if !self.is_ours(span) && !self.is_ours(follows) {
            let _inside = Inside::enter();
            self.inner.record_follows_from(span, follows);
        }
        let spans = &self.recorder.spans;
        if let (Some(known), Some(cause)) =
            (spans.find(span.into_u64()), spans.find(follows.into_u64()))
        {
            self.recorder.follows(&known, &cause);
        }
    }

    fn event(&self, event: &Event<'_>) {
        let Some(site) = site::of(event.metadata()) else { return self.inner.event(event) };
        let want = site.want(self.number.0);
        // Ours first, for its time. But between a question and what it was about, nothing of the
        // user's may run: it could ask the inner subscriber something else.
        let first = matches!(want, Want::Never | Want::Always);
        if first {
            self.recorder.event(site, event);
        }
        if self.wanted_inside(site) {
            let _inside = Inside::enter();
            if self.inner.event_enabled(event) {
                self.inner.event(event);
            }
        }
        if !first {
            self.recorder.event(site, event);
        }
    }

    fn enter(&self, span: &Id) {
        match self.recorder.spans.find(span.into_u64()) {
            Some(known) => {
                self.recorder.enter(span, &known);
                if known.flags & OURS != 0 {
                    return;
                }
            }
            None if span.into_u64() == UNKNOWN => return,
            None => {}
        }
        let _inside = Inside::enter();
        self.inner.enter(span);
    }

    fn exit(&self, span: &Id) {
        match self.recorder.spans.find(span.into_u64()) {
            Some(known) => {
                self.recorder.exit(span, &known);
                if known.flags & OURS != 0 {
                    return;
                }
            }
            None if span.into_u64() == UNKNOWN => return,
            None => {}
        }
        let _inside = Inside::enter();
        self.inner.exit(span);
    }

    fn clone_span(&self, id: &Id) -> Id {
        if id.into_u64() == UNKNOWN {
            return id.clone();
        }
        let known = self.recorder.spans.find(id.into_u64());
        if let Some(known) = known
            && known.flags & OURS != 0
        {
            known.retain();
            return id.clone();
        }
        let new = {
            let _inside = Inside::enter();
            self.inner.clone_span(id)
        };
        // An inner subscriber that gives a clone an id of its own counts it by itself; that clone is
        // not recorded.
        if let Some(known) = known
            && new == *id
            && !Inside::is()
        {
            known.retain();
        }
        new
    }

    fn drop_span(&self, id: Id) {
        self.try_close(id);
    }

    fn try_close(&self, id: Id) -> bool {
        if id.into_u64() == UNKNOWN {
            return false;
        }
        let known = self.recorder.spans.find(id.into_u64());
        if let Some(known) = known {
            if known.flags & OURS != 0 {
                return self.recorder.release(&known);
            }
            // Before the inner subscriber closes it: it may use the id again at once.
            if !Inside::is() && self.recorder.release(&known) {
                let _inside = Inside::enter();
                return self.inner.try_close(id);
            }
        }
        let _inside = Inside::enter();
        let closed = self.inner.try_close(id);
        if closed
            && let Some(known) = known
            && known.is_still()
        {
            self.recorder.end(&known);
        }
        closed
    }

    fn current_span(&self) -> Current {
        let inner = self.inner.current_span();
        if inner.id().is_some() { inner } else { self.recorder.current_or(inner) }
    }

    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Self>() {
            return Some(ptr::from_ref(self).cast());
        }
        // SAFETY: what we must promise for the returned pointer, the inner subscriber promises.
        unsafe { self.inner.downcast_raw(id) }
    }
}
