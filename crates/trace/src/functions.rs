//! Traced functions, driven from outside: what commands attach to them over the agent's socket.
//!
//! | module | owns |
//! |---|---|
//! | this one | who attached what, and for how long |
//! | `fields` | a call's values as fields of a trace |
//! | `gate` | whether a call is wanted: the filter |
//! | `record` | calls into the rings of a session |
//! | `histogram` | calls into histograms |
//! | `machine` | calls into eBPF programs (feature `ebpf`) |
//!
//! # One watch
//! A *watch* is what one request attached: one program, on every function that its patterns match, all or
//! nothing (`owlet_attach::Batch`). The program tells functions apart by their cookie, which is their number
//! in the watch.
//!
//! | a watch | belongs to | ends with |
//! |---|---|---|
//! | records | the session of its connection | the session: detach, the connection's end, a recorder that is killed |
//! | counts | its connection | the connection |
//!
//! A forked child goes on recording into its sessions, as with tracepoints; watches of connections, which it
//! has none of, end there when its agent starts.
//!
//! # Order at detach
//! The watch leaves the list under the control lock; its links go to `Control::parted`. `control::synchronize`
//! takes them from there, detaches them all, and waits once, outside of any lock.

mod fields;
mod gate;
mod histogram;
#[cfg(feature = "ebpf")]
mod machine;
mod record;

use crate::control::{self, Control};
use crate::session::SessionId;
use histogram::Histograms;
use owlet_attach::{Batch, Function, Program};
use owlet_percpu::{PerCpuCounters, WORDS};
use owlet_wire::config::glob;
use owlet_wire::filter::{Filter, Side};
use owlet_wire::functions::{Attach, FunctionCount, FunctionInfo, MAX_PATTERNS, Standing, Work};
use record::Recorder;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whose a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A session's.
    Session(SessionId),
    /// A connection's, by its cookie.
    Conn(u64),
}

/// What a request came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matched {
    pub(crate) matched: u32,
    pub(crate) links: u32,
}

/// Why a request was refused, and what to do. Nothing was changed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl Refusal {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// What was attached by one request.
pub(crate) struct Watch {
    owner: Owner,
    functions: Vec<&'static Function>,
    attached: owlet_attach::Attached,
    program: Program,
    work: Running,
}

enum Running {
    Record(Arc<Recorder>),
    Count(Arc<Histograms>),
    #[cfg(feature = "ebpf")]
    Machine(Arc<machine::Machine>),
}

impl Running {
    fn counts(&self) -> &Counts {
        match self {
            Self::Record(recorder) => recorder.counts(),
            Self::Count(histograms) => histograms.counts(),
            #[cfg(feature = "ebpf")]
            Self::Machine(machine) => machine.counts(),
        }
    }
}

/// Calls of each function of a watch.
pub(crate) struct Counts(Box<[PerCpuCounters]>);

impl Counts {
    fn new(functions: usize) -> Result<Self, Refusal> {
        let blocks = (0..functions.div_ceil(WORDS)).map(|_| PerCpuCounters::new());
        let blocks: Result<_, _> = blocks.collect();
        blocks
            .map(Self)
            .map_err(|error| Refusal::new(format!("no memory for counters: {error}"), ""))
    }

    /// Counts one call. Async-signal-safe.
    #[inline]
    fn add(&self, function: usize) {
        if let Some(block) = self.0.get(function / WORDS) {
            block.add(function % WORDS, 1);
        }
    }

    fn of(&self, function: usize) -> u64 {
        self.0.get(function / WORDS).map_or(0, |block| block.sum(function % WORDS))
    }
}

/// All those links as one, to be detached with one wait; `None` without any.
pub(crate) fn joined(parted: Vec<owlet_attach::Attached>) -> Option<owlet_attach::Attached> {
    parted.into_iter().filter(|links| !links.is_empty()).reduce(|mut all, links| {
        all.merge(links);
        all
    })
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// All traced functions of that pattern, by name.
pub(crate) fn list(pattern: &str) -> Vec<FunctionInfo> {
    let mut found = owlet_attach::functions();
    found.retain(|function| glob(pattern, function.name()));
    let info = |function: &'static Function| {
        let (file, line) = function.place();
        FunctionInfo {
            name: function.name().to_owned(),
            file: file.to_owned(),
            line,
            params: function.params().iter().map(|param| (*param).to_owned()).collect(),
            programs: count(owlet_attach::programs(function).len()),
        }
    };
    found.into_iter().map(info).collect()
}

/// What the patterns match, each function once, by name.
fn find(patterns: &[String]) -> Result<Vec<&'static Function>, Refusal> {
    if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
        let message = format!("between 1 and {MAX_PATTERNS} patterns, not {}", patterns.len());
        return Err(Refusal::new(message, ""));
    }
    let all = owlet_attach::functions();
    let hint = "`owlet list PID` shows the traced functions; a function is traced if it has the \
                attribute #[owlet::traced]";
    let unmatched = patterns.iter().find(|p| !all.iter().any(|f| glob(p, f.name())));
    if let Some(pattern) = unmatched {
        return Err(Refusal::new(format!("no traced function matches `{pattern}`"), hint));
    }
    let wanted = |function: &&'static Function| patterns.iter().any(|p| glob(p, function.name()));
    Ok(all.into_iter().filter(wanted).collect())
}

fn parse(filter: &str) -> Result<Option<Filter>, Refusal> {
    if filter.trim().is_empty() {
        return Ok(None);
    }
    let parsed = Filter::parse(filter).and_then(|parsed| {
        parsed.validate(Side::Target)?;
        Ok(parsed)
    });
    parsed.map(Some).map_err(|error| {
        Refusal::new(format!("the filter does not parse: {error}"), error.hint.clone())
    })
}

/// Attaches what a request wants: all or nothing.
pub(crate) fn attach(owner: Owner, wanted: &Attach) -> Result<Matched, Refusal> {
    let functions = find(&wanted.patterns)?;
    let filter = parse(&wanted.filter)?;
    let inside = || Refusal::new("a registration hook may not attach to functions", "");
    let mut control = control::lock().ok_or_else(inside)?;
    if control.watches.iter().any(|watch| watch.owner == owner) {
        return Err(Refusal::new("this connection has attached to functions already", ""));
    }
    let (program, work) = match (&wanted.work, owner) {
        (Work::Record(moments), Owner::Session(id)) => {
            let session = control.sessions.session(id);
            let session = session.ok_or_else(|| Refusal::new("the session has ended", ""))?;
            let (program, recorder) =
                record::program(session, &functions, *moments, filter.as_ref())?;
            (program, Running::Record(recorder))
        }
        (Work::Record(_), Owner::Conn(_)) => {
            return Err(Refusal::new("this connection has no session to record into", ""));
        }
        (Work::Histogram { field, by }, _) => {
            let wanted = histogram::Wanted { field: field.as_deref(), by: by.as_deref() };
            let (program, histograms) = histogram::program(&functions, wanted, filter.as_ref())?;
            (program, Running::Count(histograms))
        }
        #[cfg(feature = "ebpf")]
        (Work::Program { image, program }, _) => {
            let (program, machine) = machine::program(&functions, image, program, filter.as_ref())?;
            (program, Running::Machine(machine))
        }
        #[cfg(not(feature = "ebpf"))]
        (Work::Program { .. }, _) => {
            let hint = "build it with owlet's feature `ebpf`";
            return Err(Refusal::new("this program cannot run eBPF programs", hint));
        }
    };
    let mut batch = Batch::new();
    for (number, function) in functions.iter().enumerate() {
        batch = batch.add_to(&program, function, number as u64);
    }
    let attached = batch.attach().map_err(|error| Refusal::new(error.to_string(), error.hint()))?;
    let (matched, links) = (count(functions.len()), count(attached.len()));
    control.watches.push(Watch { owner, functions, attached, program, work });
    Ok(Matched { matched, links })
}

/// Takes functions of that pattern out of an owner's watch, or out of everybody's. The caller synchronizes.
pub(crate) fn detach(pattern: &str, owner: Option<Owner>) -> Matched {
    let matches = |function: &'static Function| glob(pattern, function.name());
    let known = owlet_attach::functions().into_iter().filter(|function| matches(function));
    let mut matched = Matched { matched: count(known.count()), links: 0 };
    let Some(mut control) = control::lock() else { return matched };
    let Control { watches, parted, .. } = &mut *control;
    for watch in watches.iter_mut().filter(|watch| owner.is_none_or(|o| o == watch.owner)) {
        let gone = watch.attached.split_off(matches);
        matched.links += count(gone.len());
        parted.push(gone);
    }
    matched
}

/// Ends the watches of an owner; whether there were any. The caller synchronizes.
pub(crate) fn end(control: &mut Control, owner: Owner) -> bool {
    end_those(control, |of| of == owner)
}

/// Ends what a connection attached; whether there was anything. The caller synchronizes.
pub(crate) fn end_conn(cookie: u64) -> bool {
    control::lock().is_some_and(|mut control| end(&mut control, Owner::Conn(cookie)))
}

/// As [`end_of_connections`], whoever has the lock; whether there were any.
pub(crate) fn end_inherited() -> bool {
    control::lock().is_some_and(|mut control| end_of_connections(&mut control))
}

/// Ends the watches of all connections, as in a forked child, which has none of its parent's. The caller
/// synchronizes.
pub(crate) fn end_of_connections(control: &mut Control) -> bool {
    end_those(control, |of| matches!(of, Owner::Conn(_)))
}

fn end_those(control: &mut Control, which: impl Fn(Owner) -> bool) -> bool {
    let Control { watches, parted, .. } = control;
    let gone: Vec<_> = watches.extract_if(.., |watch| which(watch.owner)).collect();
    let any = !gone.is_empty();
    parted.extend(gone.into_iter().map(|watch| watch.attached));
    any
}

/// How the watch of an owner stands; `None` without one.
pub(crate) fn standing(owner: Owner, maps: bool) -> Option<Standing> {
    let control = control::lock()?;
    let watch = control.watches.iter().find(|watch| watch.owner == owner)?;
    let address = |function: &'static Function| core::ptr::from_ref(function).addr();
    let attached: BTreeSet<_> = watch.attached.functions().map(address).collect();
    let counts = watch.work.counts();
    let functions = watch.functions.iter().enumerate().map(|(number, function)| FunctionCount {
        name: function.name().to_owned(),
        calls: counts.of(number),
        attached: attached.contains(&address(function)),
    });
    let mut standing = Standing {
        functions: functions.collect(),
        missed: watch.program.stats().missed,
        engine: "native".to_owned(),
        ..Standing::default()
    };
    match &watch.work {
        Running::Record(_) => {}
        Running::Count(histograms) => {
            standing.histograms = histograms.snapshot(&watch.functions);
        }
        #[cfg(feature = "ebpf")]
        Running::Machine(machine) => machine.tell(&mut standing, maps),
    }
    // Only programs have maps.
    #[cfg(not(feature = "ebpf"))]
    let _ = maps;
    Some(standing)
}
