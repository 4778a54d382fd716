//! The control plane: one lock, and every change of probes under it.
//!
//! A change is: publish lists, set flags, one walk over the sites, release the lock, tell the
//! listener. The lock is never held across a grace period, a listener, or a probe's destructor; hooks
//! are the only foreign code that runs under it, and a thread that holds it is refused a second time
//! instead of deadlocking.
//!
//! Lock order: the agent's gate (see `agent`), then this. `fork` takes both, in that order.

use crate::context;
use crate::error::{RegisterError, SynchronizeError, UnregisterError};
use crate::functions;
use crate::functions::Watch;
use crate::probe::{Entry, HitWord, PROBES, Retired, Target};
use crate::registry::Change;
use crate::session::Sessions;
use crate::site;
use crate::sync::ForkMutex;
use crate::sync::atomic::Ordering;
use crate::tracepoint::Core;
use owlet_percpu::{PerCpuCounters, WORDS};
use std::collections::BTreeSet;
use std::sync::MutexGuard;

/// Retired lists are waited for on the way when nobody else does and this many have gathered.
const RETIRED_MAX: usize = 256;

/// Everything the control lock protects.
pub(crate) struct Control {
    pub(crate) points: Vec<&'static Core>,
    /// Their addresses.
    known: BTreeSet<usize>,
    scanned: bool,
    pub(crate) sessions: Sessions,
    pub(crate) retired: Retired,
    /// What commands attached to traced functions.
    pub(crate) watches: Vec<Watch>,
    /// Links of watches that have ended, to be detached with the next wait.
    pub(crate) parted: Vec<owlet_attach::Attached>,
    hit_block: Option<&'static PerCpuCounters>,
    hit_next: usize,
    listener: Option<fn(Change)>,
    /// Sites that somebody else's byte keeps as they were, at the last change.
    pub(crate) busy_sites: usize,
}

static CONTROL: ForkMutex<Control> = ForkMutex::new(Control {
    points: Vec::new(),
    known: BTreeSet::new(),
    scanned: false,
    sessions: Sessions::new(),
    retired: Retired::new(),
    watches: Vec::new(),
    parted: Vec::new(),
    hit_block: None,
    hit_next: 0,
    listener: None,
    busy_sites: 0,
});

/// The lock, held. Releasing it lets the thread take it again.
pub(crate) struct Locked(MutexGuard<'static, Control>);

impl Drop for Locked {
    fn drop(&mut self) {
        context::with(context::Context::end_control);
    }
}

impl core::ops::Deref for Locked {
    type Target = Control;
    fn deref(&self) -> &Control {
        &self.0
    }
}

impl core::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.0
    }
}

/// Takes the control lock; `None` when this thread holds it, which only a hook can see.
pub(crate) fn lock() -> Option<Locked> {
    if !context::with(context::Context::begin_control) {
        return None;
    }
    let mut locked = Locked(CONTROL.lock());
    if !locked.scanned {
        locked.scanned = true;
        for core in site::tracepoints() {
            locked.learn(core);
        }
    }
    Some(locked)
}

/// Before `fork`.
pub(crate) fn hold() {
    CONTROL.hold();
}

/// After `fork`, in parent and child.
pub(crate) fn release() {
    CONTROL.release();
}

impl Control {
    /// Adds a tracepoint to those known; whether it is new.
    fn learn(&mut self, core: &'static Core) -> bool {
        let new = self.known.insert(core::ptr::from_ref(core).addr());
        if new {
            self.points.push(core);
        }
        new
    }

    /// Where the events of `core` are counted; `None` without memory. Maps one block of counters for
    /// every eight tracepoints that are ever switched on.
    fn hit_word(&mut self, core: &Core) -> Option<HitWord> {
        // SAFETY: the pointer is null or a leaked `HitWord`.
        if let Some(word) = unsafe { core.hits.load(Ordering::Relaxed).as_ref() } {
            return Some(*word);
        }
        let block = match self.hit_block {
            Some(block) if self.hit_next < WORDS => block,
            _ => {
                self.hit_next = 0;
                let block: &'static _ = Box::leak(Box::new(PerCpuCounters::new().ok()?));
                self.hit_block = Some(block);
                block
            }
        };
        let word = HitWord { counters: block, word: self.hit_next };
        self.hit_next += 1;
        core.hits.store(Box::leak(Box::new(word)), Ordering::Relaxed);
        Some(word)
    }

    /// Attaches an entry; sites are not touched. The caller commits.
    pub(crate) fn attach(&mut self, core: &Core, entry: Entry) -> Result<(), RegisterError> {
        if core.list.contains(&entry.target, &self.retired) {
            return Err(RegisterError::Exists);
        }
        let first = core.list.len(&self.retired) == 0;
        if first && let Some(hooks) = core.hooks {
            (hooks.register)().map_err(RegisterError::Hook)?;
        }
        let hits = self.hit_word(core);
        if core.list.insert(entry, hits, &mut self.retired).is_err() {
            if first && let Some(hooks) = core.hooks {
                (hooks.unregister)();
            }
            return Err(RegisterError::OutOfMemory);
        }
        core.set_on(true);
        Ok(())
    }

    /// Detaches an entry; sites are not touched. `false` when it is not there.
    pub(crate) fn detach(&mut self, core: &Core, target: &Target) -> bool {
        if !core.list.remove(target, &mut self.retired) {
            return false;
        }
        if core.list.len(&self.retired) == 0 {
            core.set_on(false);
            if let Some(hooks) = core.hooks {
                (hooks.unregister)();
            }
        }
        true
    }

    /// Makes the sites agree with the flags.
    pub(crate) fn commit(&mut self) -> Result<(), site::Refused> {
        let switched = site::commit()?;
        self.busy_sites = switched.busy;
        Ok(())
    }

    /// Events of `core` so far.
    pub(crate) fn hits(core: &Core) -> u64 {
        // SAFETY: the pointer is null or a leaked `HitWord`.
        unsafe { core.hits.load(Ordering::Relaxed).as_ref() }
            .map_or(0, |hits| hits.counters.sum(hits.word))
    }

    /// Releases the lock, then tells the listener what changed.
    pub(crate) fn finish(locked: Locked, change: Change) {
        let listener = locked.listener;
        drop(locked);
        if let Some(listener) = listener {
            listener(change);
        }
    }
}

/// What a list shows as one: the tracepoints of one call site (the kinds of a span, the typed variants
/// of an event) have one name and place.
pub(crate) fn line(core: &Core) -> (&'static str, &'static str, u32) {
    (core.desc.name, core.desc.file, core.desc.line)
}

/// How many lines a list of these has.
pub(crate) fn lines<'c>(points: impl Iterator<Item = &'c Core>) -> u32 {
    let lines: BTreeSet<_> = points.map(line).collect();
    u32::try_from(lines.len()).unwrap_or(u32::MAX)
}

/// Attaches one entry and switches its sites on if it is the first.
pub(crate) fn register(core: &'static Core, entry: Entry) -> Result<(), RegisterError> {
    let mut control = lock().ok_or(RegisterError::InsideHook)?;
    let target = entry.target.clone();
    let was_on = core.is_on();
    control.attach(core, entry)?;
    if !was_on && let Err(refused) = control.commit() {
        control.detach(core, &target);
        // What the refused walk did before it failed is undone as far as it can be.
        let _ = control.commit();
        return Err(RegisterError::Sites(refused));
    }
    drop(control);
    relieve();
    Ok(())
}

/// Detaches one entry and switches its sites off if it was the last.
pub(crate) fn unregister(core: &'static Core, target: &Target) -> Result<(), UnregisterError> {
    let mut control = lock().ok_or(UnregisterError::InsideHook)?;
    if !control.detach(core, target) {
        return Err(UnregisterError::NotFound);
    }
    if !core.is_on() {
        // Refused now although it worked before: the sites stay on and find an empty list.
        let _ = control.commit();
    }
    drop(control);
    relieve();
    Ok(())
}

/// Waits for the retired lists if too many have gathered and this thread may wait.
fn relieve() {
    let many = lock().is_some_and(|control| control.retired.len() >= RETIRED_MAX);
    if many {
        let _ = synchronize();
    }
}

/// Waits until no probe unregistered before the call can run any more, and frees what they used;
/// likewise for what was attached to functions.
pub(crate) fn synchronize() -> Result<(), SynchronizeError> {
    if context::with(context::Context::in_event) {
        return Err(SynchronizeError::InsideProbe);
    }
    let (retired, parted) = {
        let mut control = lock().ok_or(SynchronizeError::InsideHook)?;
        (control.retired.take(), core::mem::take(&mut control.parted))
    };
    if let Some(parted) = functions::joined(parted) {
        // Inside a program it cannot wait for programs: they end by themselves then.
        let _ = parted.detach();
    }
    // Also without lists to free: a concurrent caller may have taken them, and its wait may not be
    // over when ours must be.
    PROBES.synchronize();
    // SAFETY: the chain was taken before the grace period began, so every list in it was replaced
    // before that.
    unsafe { retired.free() };
    Ok(())
}

/// Makes a tracepoint known and applies the sessions' rules to it.
/// `false`, with nothing done, inside a registration hook.
pub(crate) fn add(core: &'static Core) -> bool {
    let Some(mut control) = lock() else { return false };
    if control.learn(core) {
        crate::session::apply_new(&mut control, core);
    }
    true
}

/// Sets the listener.
pub(crate) fn set_listener(listener: fn(Change)) {
    if let Some(mut control) = lock() {
        control.listener = Some(listener);
    }
}
