//! Changing programs: one lock, and every attach and detach under it.
//!
//! # Attaching a batch, in steps
//! | step | what | if it fails |
//! |---|---|---|
//! | 1 | patterns to functions; duplicates, limits, permissions | nothing was changed |
//! | 2 | memory for every new list | nothing was changed |
//! | 3 | publish every list | cannot |
//! | 4 | one pass over the sites of functions that had no program | undo 3 and 4 |
//! | 5 | one core-serialising barrier, if a byte was written | cannot |
//! | 6 | unlock; retire the old lists | cannot |
//!
//! Nobody is waited for. Undoing publishes the old lists again, which nobody has freed; the new ones may
//! have been found by calls meanwhile, and are retired like any list that was replaced.
//!
//! # Detaching
//! 1. Publish lists without the links; where there is no memory for one, mark the entries dead.
//! 2. One pass over the sites of functions that have no program left, and one barrier.
//! 3. Unlock. Wait for one grace period of the domains concerned, both at once, and free the old lists; or
//!    retire them.
//!
//! The lock is never held across a grace period or a program's destructor. A thread that holds it (and
//! comes here again from inside an allocator, say) is refused instead of deadlocking. `fork` takes it.

use crate::error::{AttachError, DetachError};
use crate::function::Function;
use crate::list::{Entry, List};
use crate::patch::{self, Outcome};
use crate::program::{Flavour, Kind, NORMAL, Program, SLEEPABLE};
use crate::run::in_program;
use crate::site::{self, Record};
use crate::slot::LINKS;
use core::cell::Cell;
use owlet_rcu::Domain;
use owlet_sys::lock::ForkMutex;
use std::collections::BTreeMap;
use std::sync::{MutexGuard, Once};

/// A function and its sites.
struct Known {
    function: &'static Function,
    sites: Vec<&'static Record>,
}

/// What the lock protects.
struct Control {
    /// By name, once the table was read.
    functions: Vec<Known>,
    /// Their places in `functions`, by address.
    places: BTreeMap<usize, usize>,
    scanned: bool,
    links: u64,
}

static CONTROL: ForkMutex<Control> = ForkMutex::new(Control {
    functions: Vec::new(),
    places: BTreeMap::new(),
    scanned: false,
    links: 0,
});

thread_local! { static CHANGING: Cell<bool> = const { Cell::new(false) } }

/// The lock, held.
struct Locked(MutexGuard<'static, Control>);

impl Drop for Locked {
    fn drop(&mut self) {
        CHANGING.set(false);
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

/// Takes the lock; `None` when this thread holds it.
fn lock() -> Option<Locked> {
    prepare();
    if CHANGING.replace(true) {
        return None;
    }
    let mut locked = Locked(CONTROL.lock());
    if !locked.scanned {
        locked.scanned = true;
        locked.functions = scan();
        let place = |(n, known): (usize, &Known)| (core::ptr::from_ref(known.function).addr(), n);
        locked.places = locked.functions.iter().enumerate().map(place).collect();
    }
    Some(locked)
}

/// Registers what a fork needs, once. A library that holds locks of its own while it calls this crate calls
/// this before it registers handlers for them: they are to be taken first.
pub fn prepare() {
    extern "C" fn hold() {
        CONTROL.hold();
    }
    extern "C" fn release() {
        CONTROL.release();
    }
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: the functions are of the right type and live as long as this object, which `pin` keeps.
        // Failure (no memory) costs children that were forked in the middle of a change.
        unsafe { libc::pthread_atfork(Some(hold), Some(release), Some(release)) };
        site::pin();
    });
}

fn scan() -> Vec<Known> {
    let mut by_address = BTreeMap::<usize, Known>::new();
    for record in site::table() {
        let Some(function) = record.function() else { continue };
        by_address
            .entry(core::ptr::from_ref(function).addr())
            .or_insert_with(|| Known { function, sites: Vec::new() })
            .sites
            .push(record);
    }
    let mut functions: Vec<_> = by_address.into_values().collect();
    functions.sort_by_key(|known| (known.function.name(), known.function.place()));
    functions
}

/// Every traced function of this object, by name.
#[must_use]
pub fn functions() -> Vec<&'static Function> {
    lock().map_or_else(Vec::new, |c| c.functions.iter().map(|known| known.function).collect())
}

/// Addresses of a function's toggle sites: one for each instance and inlined copy of it. Empty where sites are
/// flags.
#[must_use]
pub fn sites(function: &'static Function) -> Vec<usize> {
    let Some(control) = lock() else { return Vec::new() };
    let known = control.functions.iter().filter(|known| core::ptr::eq(known.function, function));
    let sites = known.flat_map(|known| &known.sites);
    sites.filter_map(|record| record.change(true)).map(|change| change.address()).collect()
}

/// Programs attached to a function, normal ones first, each with its cookie, in the order of their
/// entries.
#[must_use]
pub fn programs(function: &'static Function) -> Vec<(Program, u64)> {
    let Some(control) = lock() else { return Vec::new() };
    let both = [Flavour::Normal, Flavour::Sleepable];
    let lists = both.into_iter().filter_map(|flavour| control.list(function, flavour));
    // SAFETY: live entries, under the lock.
    let pair = |entry: &Entry| (unsafe { entry.handle() }, entry.cookie);
    lists.flat_map(List::entries).map(pair).collect()
}

/// What a batch asks for.
pub(crate) struct Want {
    pub(crate) program: Program,
    pub(crate) place: Place,
    pub(crate) cookie: u64,
}

/// Where.
pub(crate) enum Place {
    Pattern(String),
    Function(&'static Function),
}

/// One program on one function. Keeps the program.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) function: &'static Function,
    number: u64,
    program: Program,
}

impl Link {
    fn flavour(&self) -> Flavour {
        self.program.flavour()
    }
}

/// A list that was replaced, which calls may be in.
struct Old {
    list: *mut List,
    flavour: Flavour,
}

/// A list that is to be published.
struct Made {
    function: &'static Function,
    flavour: Flavour,
    list: Box<List>,
}

/// A list that was published and the one it replaced.
struct Published {
    function: &'static Function,
    flavour: Flavour,
    before: *mut List,
}

/// What is to be added to one function.
struct Addition<'w> {
    known: usize,
    wants: Vec<&'w Want>,
}

impl Control {
    /// The list of a function. The lock is held, as `self` shows.
    fn list(&self, function: &'static Function, flavour: Flavour) -> Option<&List> {
        // SAFETY: published lists are replaced under the lock only, and freed after that.
        unsafe { function.slot(flavour).read().as_ref() }
    }

    fn attached(&self, function: &'static Function) -> usize {
        [Flavour::Normal, Flavour::Sleepable]
            .into_iter()
            .filter_map(|flavour| self.list(function, flavour))
            .map(|list| list.entries().count())
            .sum()
    }

    /// Step 1.
    fn plan<'w>(&self, wants: &'w [Want]) -> Result<Vec<Addition<'w>>, AttachError> {
        let mut additions = BTreeMap::<usize, Vec<&'w Want>>::new();
        for want in wants {
            let mut found = false;
            let range = match &want.place {
                Place::Pattern(_) => 0..self.functions.len(),
                Place::Function(function) => {
                    let at = core::ptr::from_ref(*function).addr();
                    self.places.get(&at).map_or(0..0, |n| *n..n + 1)
                }
            };
            for (at, known) in self.functions.iter().enumerate().take(range.end).skip(range.start) {
                let fits = match &want.place {
                    Place::Pattern(pattern) => crate::matches(pattern, known.function.name()),
                    Place::Function(_) => true,
                };
                if fits {
                    found = true;
                    self.permit(known.function, want, additions.entry(at).or_default())?;
                }
            }
            if !found {
                let pattern = match &want.place {
                    Place::Pattern(pattern) => pattern.clone(),
                    Place::Function(function) => function.name().to_owned(),
                };
                return Err(AttachError::NoMatch { pattern });
            }
        }
        Ok(additions.into_iter().map(|(known, wants)| Addition { known, wants }).collect())
    }

    /// Adds `want` to what is planned for a function, if it may be.
    fn permit<'w>(
        &self,
        target: &'static Function,
        want: &'w Want,
        planned: &mut Vec<&'w Want>,
    ) -> Result<(), AttachError> {
        let function = target.name();
        if is_runtime(function) {
            return Err(AttachError::Runtime { function });
        }
        if want.program.kind() == Kind::Modify && !target.modifiable() {
            return Err(AttachError::NotModifiable { function });
        }
        if let Some(same) = planned.iter().find(|other| other.program.same(&want.program)) {
            // Patterns of one program are united.
            let united = same.cookie == want.cookie;
            return if united { Ok(()) } else { Err(AttachError::Duplicate { function }) };
        }
        let list = self.list(target, want.program.flavour());
        if list.is_some_and(|list| list.has(&want.program)) {
            return Err(AttachError::Duplicate { function });
        }
        if self.attached(target) + planned.len() >= LINKS {
            return Err(AttachError::TooMany { function });
        }
        planned.push(want);
        Ok(())
    }

    /// Step 2: the new lists, and the links they will make.
    fn build(&mut self, additions: &[Addition<'_>]) -> Result<(Vec<Made>, Vec<Link>), AttachError> {
        let mut lists = Vec::new();
        let mut links = Vec::new();
        for addition in additions {
            let Some(known) = self.functions.get(addition.known) else { continue };
            let function = known.function;
            for flavour in [Flavour::Normal, Flavour::Sleepable] {
                let mut new = Vec::new();
                for want in addition.wants.iter().filter(|w| w.program.flavour() == flavour) {
                    self.links += 1;
                    let program = want.program.clone();
                    new.push(Entry::new(&program, self.links, want.cookie));
                    links.push(Link { function, number: self.links, program });
                }
                if new.is_empty() {
                    continue;
                }
                let old = self.list(function, flavour);
                let made =
                    List::make(old, |_| false, &new).map_err(|_| AttachError::OutOfMemory)?;
                if let Some(list) = made {
                    lists.push(Made { function, flavour, list });
                }
            }
        }
        Ok((lists, links))
    }

    /// Steps 4 and 5: sites of `functions` are brought to what their flags say.
    fn switch(&self, functions: &[&'static Function], on: bool) -> Result<(), AttachError> {
        let place = |f: &&'static Function| self.places.get(&core::ptr::from_ref(*f).addr());
        let known = functions.iter().filter_map(place).filter_map(|n| self.functions.get(*n));
        let sites = known.flat_map(|known| &known.sites);
        let mut changes: Vec<_> = sites.filter_map(|record| record.change(on)).collect();
        if changes.is_empty() {
            return Ok(());
        }
        patch::register();
        let applied = patch::Writer::new().apply(&mut changes);
        let written = changes.iter().any(|change| change.outcome == Outcome::Written);
        if written {
            patch::sync();
        }
        applied.map_err(AttachError::Sites)?;
        match changes.iter().find(|change| change.outcome == Outcome::Busy) {
            Some(busy) if on => Err(AttachError::SiteBusy { address: busy.address() }),
            _ => Ok(()),
        }
    }
}

/// Functions of the tracer itself: a program on them would be called by what calls programs.
fn is_runtime(name: &str) -> bool {
    const RUNTIME: [&str; 7] = [
        "owlet::",
        "owlet_attach::",
        "owlet_percpu::",
        "owlet_rcu::",
        "owlet_ring::",
        "owlet_sys::",
        "owlet_wire::",
    ];
    RUNTIME.iter().any(|prefix| name.starts_with(prefix))
}

/// Attaches all or nothing.
pub(crate) fn attach(wants: &[Want]) -> Result<Vec<Link>, AttachError> {
    if owlet_percpu::planted!("M14") {
        // Mutant M14: one leading wait, and what is replaced is freed at once.
        owlet_rcu::wait_all(&[&NORMAL, &SLEEPABLE]);
    }
    let mut control = lock().ok_or(AttachError::InsideChange)?;
    let additions = control.plan(wants)?;
    let (lists, links) = control.build(&additions)?;
    let mut published = Vec::with_capacity(lists.len());
    for Made { function, flavour, list } in lists {
        let before = function.slot(flavour).publish(Box::into_raw(list));
        published.push(Published { function, flavour, before });
    }
    let known = additions.iter().filter_map(|addition| control.functions.get(addition.known));
    let fresh: Vec<_> = known.map(|k| k.function).filter(|function| !function.is_on()).collect();
    fresh.iter().for_each(|function| function.set_on(true));
    let switched = control.switch(&fresh, true);
    let failed = switched.is_err();
    if failed {
        // What was written can be written again; what was refused is off.
        fresh.iter().for_each(|function| function.set_on(false));
        let _ = control.switch(&fresh, false);
        for Published { function, flavour, before } in published.iter_mut().rev() {
            *before = function.slot(*flavour).publish(*before);
        }
    }
    drop(control);
    let mut old = Vec::with_capacity(published.len());
    old.extend(published.iter().map(|p| Old { list: p.before, flavour: p.flavour }));
    if owlet_percpu::planted!("M14") || (owlet_percpu::planted!("M16") && failed) {
        // Mutants M14, M16: while it is still active.
        old.into_iter().for_each(Old::free);
        return switched.map(|()| links);
    }
    match switched {
        Ok(()) => {
            old.into_iter().for_each(Old::retire);
            Ok(links)
        }
        Err(error) => {
            // Its programs may be running.
            retire(old, links);
            Err(error)
        }
    }
}

/// How a detach ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Wait until no program is running any more.
    Wait,
    /// Leave that to the deferred free.
    Defer,
}

/// Detaches links; those that are not there any more are none.
pub(crate) fn detach(links: Vec<Link>, ending: Ending) -> Result<(), DetachError> {
    let Some(control) = lock() else {
        // Its programs stay attached, so they stay.
        core::mem::forget(links);
        return Err(DetachError::InsideChange);
    };
    let old = control.unlink(&links);
    drop(control);
    if ending == Ending::Defer {
        retire(old, links);
        return Ok(());
    }
    if in_program() {
        retire(old, links);
        return Err(DetachError::InsideProgram);
    }
    let concerned = |flavour| links.iter().any(|link| link.flavour() == flavour);
    let mut domains: Vec<&dyn Domain> = Vec::with_capacity(2);
    if concerned(Flavour::Normal) {
        domains.push(&NORMAL);
    }
    if concerned(Flavour::Sleepable) {
        domains.push(&SLEEPABLE);
    }
    if !owlet_percpu::planted!("M14") {
        owlet_rcu::wait_all(&domains);
    }
    old.into_iter().for_each(Old::free);
    drop(links);
    Ok(())
}

/// Has lists, and what kept programs of theirs, freed after a grace period.
fn retire(old: Vec<Old>, links: Vec<Link>) {
    old.into_iter().for_each(Old::retire);
    let (normal, sleepable): (Vec<_>, Vec<_>) =
        links.into_iter().partition(|link| link.flavour() == Flavour::Normal);
    if !normal.is_empty() {
        NORMAL.retire(Box::new(normal));
    }
    if !sleepable.is_empty() {
        SLEEPABLE.retire(Box::new(sleepable));
    }
}

impl Control {
    /// Steps 1 and 2 of a detach.
    fn unlink(&self, links: &[Link]) -> Vec<Old> {
        let mut by_list = BTreeMap::<(usize, bool), (&Link, Vec<u64>)>::new();
        for link in links {
            let at = core::ptr::from_ref(link.function).addr();
            let key = (at, link.flavour() == Flavour::Sleepable);
            by_list.entry(key).or_insert_with(|| (link, Vec::new())).1.push(link.number);
        }
        let mut old = Vec::with_capacity(by_list.len());
        let mut idle = Vec::new();
        for (link, numbers) in by_list.into_values() {
            let (function, flavour) = (link.function, link.flavour());
            let Some(list) = self.list(function, flavour) else { continue };
            let gone = |number| numbers.contains(&number);
            match List::make(Some(list), gone, &[]) {
                Ok(new) => {
                    let new = new.map_or(core::ptr::null_mut(), Box::into_raw);
                    old.push(Old { list: function.slot(flavour).publish(new), flavour });
                }
                Err(_) => list.kill(gone),
            }
            if function.is_on() && self.attached(function) == 0 {
                function.set_on(false);
                idle.push(function);
            }
        }
        // Refused although it worked before: the sites stay on and find no list.
        let _ = self.switch(&idle, false);
        old
    }
}

impl Old {
    fn boxed(self) -> Option<Box<List>> {
        // SAFETY: it came from `Box::into_raw` and was replaced, which hands it to one owner.
        (!self.list.is_null()).then(|| unsafe { Box::from_raw(self.list) })
    }

    /// Frees the list after a grace period, with others.
    fn retire(self) {
        let flavour = self.flavour;
        let Some(list) = self.boxed() else { return };
        match flavour {
            Flavour::Normal => NORMAL.retire(list),
            Flavour::Sleepable => SLEEPABLE.retire(list),
        }
    }

    /// Frees it now: a grace period has begun and ended since it was replaced.
    fn free(self) {
        drop(self.boxed());
    }
}
