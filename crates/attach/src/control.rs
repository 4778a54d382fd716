//! Changing programs: one lock, and every attach and detach under it.
//!
//! # Attaching a batch, in steps
//! | step | what | if it fails |
//! |---|---|---|
//! | 1 | patterns to functions; duplicates, limits, permissions | nothing was changed |
//! | 2 | memory for every new list | nothing was changed |
//! | 3 | publish every list | cannot |
//! | 4 | one pass over the sites, of which those that are on are left alone | undo 3 and 4 |
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
//! Each function knows its rank among those of its object, so that neither step looks for it. Measured (AMD Zen 4
//! VM, 2 vCPUs, 2026-12-01, load 2, `owlet-bench batch-attach`): 1,024 functions 0.24 ms in a window,
//! 1.8 ms through `/proc/self/mem`: a system call for each.
//!
//! The lock is never held across a grace period or a program's destructor. A thread that holds it (and
//! comes here again from inside an allocator, say) is refused instead of deadlocking. `fork` takes it.

use crate::error::{AttachError, DetachError};
use crate::function::{Function, NORMAL_ENTER, NORMAL_EXIT, SLEEPABLE_ENTER, SLEEPABLE_EXIT};
use crate::list::{Entry, List};
use crate::patch::{self, Outcome};
use crate::program::{Flavour, Kind, NORMAL, Program, SLEEPABLE};
use crate::run::in_program;
use crate::site::{self, Record};
use crate::slot::LINKS;
use core::cell::Cell;
use core::ptr;
use owlet_rcu::Domain;
use owlet_sys::lock::ForkMutex;
use std::collections::{BTreeMap, btree_map};
use std::sync::{MutexGuard, Once};

/// A function and its sites.
struct Known {
    function: &'static Function,
    sites: Sites,
    /// It is the tracer's own.
    runtime: bool,
}

/// The sites of a function: mostly one.
enum Sites {
    One(&'static Record),
    Several(Vec<&'static Record>),
}

impl Sites {
    fn all(&self) -> &[&'static Record] {
        match self {
            Self::One(record) => core::slice::from_ref(record),
            Self::Several(records) => records,
        }
    }

    fn push(&mut self, record: &'static Record) {
        match self {
            Self::One(first) => *self = Self::Several(vec![*first, record]),
            Self::Several(records) => records.push(record),
        }
    }
}

/// What the lock protects.
struct Control {
    /// By name, once the table was read. Each function knows its rank here.
    functions: Vec<Known>,
    scanned: bool,
    links: u64,
}

static CONTROL: ForkMutex<Control> =
    ForkMutex::new(Control { functions: Vec::new(), scanned: false, links: 0 });

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
        for (place, known) in locked.functions.iter().enumerate() {
            known.function.set_rank(place);
        }
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
        match by_address.entry(core::ptr::from_ref(function).addr()) {
            btree_map::Entry::Occupied(mut known) => known.get_mut().sites.push(record),
            btree_map::Entry::Vacant(place) => {
                let (sites, runtime) = (Sites::One(record), is_runtime(function.name()));
                place.insert(Known { function, sites, runtime });
            }
        }
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
    let sites = control.known(function).into_iter().flat_map(|known| known.sites.all());
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

/// What is to be added to one function, which is told by its place.
#[derive(Clone, Copy)]
struct Addition<'w> {
    place: usize,
    want: &'w Want,
}

/// Additions that lie together by function, those of each in the order of the batch.
fn by_function<'a, 'w>(additions: &'a [Addition<'w>]) -> impl Iterator<Item = &'a [Addition<'w>]> {
    additions.chunk_by(|a, b| a.place == b.place)
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

    /// Writes what a function's lists are good for. The lists are published.
    fn note_phases(&self, function: &'static Function) {
        let bits = |flavour, enter: u8, exit: u8| match self.list(function, flavour).map(List::ends)
        {
            Some((enters, exits)) => u8::from(enters) * enter + u8::from(exits) * exit,
            None => 0,
        };
        let normal = bits(Flavour::Normal, NORMAL_ENTER, NORMAL_EXIT);
        function.set_phases(normal | bits(Flavour::Sleepable, SLEEPABLE_ENTER, SLEEPABLE_EXIT));
    }

    /// What is known of a function; nothing of one of another object.
    fn known(&self, function: &'static Function) -> Option<&Known> {
        self.functions.get(function.rank()?).filter(|known| ptr::eq(known.function, function))
    }

    /// Step 1.
    fn plan<'w>(&self, wants: &'w [Want]) -> Result<Vec<Addition<'w>>, AttachError> {
        let mut asked = Vec::with_capacity(wants.len());
        for want in wants {
            let before = asked.len();
            match &want.place {
                Place::Pattern(pattern) => {
                    let names = self.functions.iter().map(|known| known.function.name());
                    let fits = names.enumerate().filter(|(_, name)| crate::matches(pattern, name));
                    asked.extend(fits.map(|(place, _)| Addition { place, want }));
                }
                Place::Function(function) => {
                    let place = self.known(function).and_then(|known| known.function.rank());
                    asked.extend(place.map(|place| Addition { place, want }));
                }
            }
            if asked.len() == before {
                let pattern = match &want.place {
                    Place::Pattern(pattern) => pattern.clone(),
                    Place::Function(function) => function.name().to_owned(),
                };
                return Err(AttachError::NoMatch { pattern });
            }
        }
        asked.sort_by_key(|addition| addition.place);
        let mut planned = Vec::with_capacity(asked.len());
        for asked in by_function(&asked) {
            let first = planned.len();
            for addition in asked {
                let (_, own) = planned.split_at(first);
                if self.permit(addition, own)? {
                    planned.push(*addition);
                }
            }
        }
        Ok(planned)
    }

    /// Whether an addition is to be made, if it may, after those `planned` for the same function.
    fn permit(
        &self,
        addition: &Addition<'_>,
        planned: &[Addition<'_>],
    ) -> Result<bool, AttachError> {
        let Addition { place, want } = addition;
        let Some(&Known { function: target, runtime, .. }) = self.functions.get(*place) else {
            return Ok(false);
        };
        let function = target.name();
        if runtime {
            return Err(AttachError::Runtime { function });
        }
        if want.program.kind() == Kind::Modify && !target.modifiable() {
            return Err(AttachError::NotModifiable { function });
        }
        if let Some(same) = planned.iter().find(|other| other.want.program.same(&want.program)) {
            // Patterns of one program are united.
            let united = same.want.cookie == want.cookie;
            return if united { Ok(false) } else { Err(AttachError::Duplicate { function }) };
        }
        let list = self.list(target, want.program.flavour());
        if list.is_some_and(|list| list.has(&want.program)) {
            return Err(AttachError::Duplicate { function });
        }
        if self.attached(target) + planned.len() >= LINKS {
            return Err(AttachError::TooMany { function });
        }
        Ok(true)
    }

    /// Step 2: the new lists, and the links they will make.
    fn build(&mut self, additions: &[Addition<'_>]) -> Result<(Vec<Made>, Vec<Link>), AttachError> {
        let mut lists = Vec::with_capacity(additions.len());
        let mut links = Vec::with_capacity(additions.len());
        let mut new = Vec::new();
        for additions in by_function(additions) {
            let Some(known) = additions.first().and_then(|a| self.functions.get(a.place)) else {
                continue;
            };
            let function = known.function;
            for flavour in [Flavour::Normal, Flavour::Sleepable] {
                new.clear();
                for Addition { want, .. } in additions {
                    if want.program.flavour() != flavour {
                        continue;
                    }
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
        let known = functions.iter().filter_map(|function| self.known(function));
        let sites = known.flat_map(|known| known.sites.all());
        let mut changes = Vec::with_capacity(functions.len());
        changes.extend(sites.filter_map(|record| record.change(on)));
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
    const RUNTIME: [&str; 8] = [
        "owlet::",
        "owlet_attach::",
        "owlet_ebpf::",
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
    let (mut all, mut fresh) = (Vec::with_capacity(lists.len()), Vec::with_capacity(lists.len()));
    let mut published = Vec::with_capacity(lists.len());
    for Made { function, flavour, list } in lists {
        all.push(function);
        if !function.is_on() {
            fresh.push(function);
        }
        let before = function.slot(flavour).publish(Box::into_raw(list));
        published.push(Published { function, flavour, before });
        control.note_phases(function);
    }
    // Those that have programs as well: a kernel uprobe that came and went has switched its site off.
    let switched = control.switch(&all, true);
    let failed = switched.is_err();
    if failed {
        for Published { function, flavour, before } in published.iter_mut().rev() {
            *before = function.slot(*flavour).publish(*before);
            control.note_phases(function);
        }
        // What was written can be written again; what was refused is off.
        let _ = control.switch(&fresh, false);
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
            let was_on = function.is_on();
            self.note_phases(function);
            if was_on && !function.is_on() {
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
