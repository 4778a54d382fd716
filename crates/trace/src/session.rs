//! Sessions: who records this process, which tracepoints, and into which segment.
//!
//! A session has a slot (an index below `SESSIONS`, reused) and a serial
//! (never reused): a thread remembers per slot which serial has its record.
//!
//! # Order at attach
//! process record -> for each tracepoint wanted: id, schema into the log, probe list -> one walk over
//! the sites. An event can only be written by a listed sink, so its schema is in the log before it.
//!
//! # A process's record
//! It must be in the log before the first event of the process, also when two threads of a forked
//! child begin at once: whoever finds the mark may emit, so the mark comes after the record. Both may
//! write the record, which is harmless.
//!
//! | letter | where | what |
//! |---|---|---|
//! | `[P]` | `announce_process` | Release of the mark, after the record was appended |
//! | `[Q]` | `announce_process` | Acquire of the mark, before the thread emits |
//!
//! # Order at detach
//! all sinks out of their lists -> one walk over the sites -> lock released -> programs off traced functions
//! -> one grace period -> lists freed, and with the last of them the session and its mapping.

use crate::context::SESSIONS;
use crate::control::{self, Control};
use crate::error::RegisterError;
use crate::functions::{self, Owner};
use crate::probe::{Entry, Target};
use crate::registry::Change;
use crate::sink::SinkPoint;
use crate::site;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::tracepoint::Core;
use owlet_ring::{Segment, SegmentError, Writer};
use owlet_sys::process;
use owlet_wire::config::{Rule, SessionConfig, glob};
use owlet_wire::entry::{EntryRef, ProcessRef, encode};
use owlet_wire::filter::{Filter, FilterError, Side, Verdict};
use owlet_wire::schema::SchemaRef;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Sinks run after every probe of a program's own priority.
const SINK_PRIORITY: i32 = i32::MIN;
/// Executable and arguments are cut here in a process record.
const PATH_MAX: usize = 512;
const ARGS_MAX: usize = 1024;

/// Names a session of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    slot: usize,
    serial: u32,
}

/// What a request to a session came to. Tracepoints are counted as a list shows them: those of one call
/// site are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Tracepoints that one of the rules matched.
    pub matched: u32,
    /// Tracepoints on in this session (without one: in any) afterwards.
    pub enabled: u32,
    /// Tracepoints known.
    pub known: u32,
    /// Sessions the request applied to.
    pub sessions: u32,
}

/// Why a session was not attached. Nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The descriptor is no segment of ours.
    Segment(SegmentError),
    /// The segment's configuration does not decode, or is of another version of the format.
    Config,
    /// The segment has been stopped.
    Stopped,
    /// The filter does not parse.
    Filter(FilterError),
    /// The process is in as many sessions as it can be.
    TooMany,
    /// The process is in this session already.
    Twice,
    /// The ring's writer could not be made.
    Writer(std::io::Error),
    /// Trace points cannot be switched in this process.
    Sites(site::Refused),
    /// The log of the segment is full, or its ids are used up.
    Full,
    /// Called from inside a registration hook.
    InsideHook,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segment(error) => write!(f, "cannot open the session's memory: {error}"),
            Self::Config => {
                f.write_str("the session's configuration is of another version, or broken")
            }
            Self::Stopped => f.write_str("the session has ended"),
            Self::Filter(error) => write!(f, "the filter does not parse: {error}"),
            Self::TooMany => write!(f, "the process is in {SESSIONS} sessions already"),
            Self::Twice => f.write_str("the process is in this session already"),
            Self::Writer(error) => write!(f, "cannot write to the session's memory: {error}"),
            Self::Sites(refused) => write!(f, "{refused}"),
            Self::Full => f.write_str("the session has no room for the descriptions of the events"),
            Self::InsideHook => f.write_str("a registration hook may not attach a session"),
        }
    }
}

impl std::error::Error for AttachError {}

impl AttachError {
    /// What to do about it, or empty.
    #[must_use]
    pub fn hint(&self) -> &str {
        match self {
            Self::Segment(SegmentError::Io(error))
                if error.kind() == std::io::ErrorKind::OutOfMemory =>
            {
                "the program's limit on address space (`ulimit -v`) or the machine's memory is too \
                 small for the rings: choose smaller ones, as in --size 256K"
            }
            Self::Segment(SegmentError::Io(_)) => "",
            Self::Segment(_) | Self::Config => {
                "program and recorder must be built from the same version of owlet"
            }
            Self::Filter(error) => &error.hint,
            Self::TooMany => "end another recording of this process first",
            Self::Sites(_) => site::REFUSED_HINT,
            Self::Full => "record fewer events, or give the session a larger log",
            Self::Stopped | Self::Twice | Self::Writer(_) | Self::InsideHook => "",
        }
    }
}

/// What the sinks of one session share.
pub(crate) struct Session {
    pub(crate) slot: usize,
    pub(crate) serial: u32,
    pub(crate) writer: Writer,
    pub(crate) config: SessionConfig,
    filter: Option<Filter>,
    /// The process whose record is in the log.
    announced: AtomicU32,
    exe: Vec<u8>,
    args: Vec<u8>,
    pid_namespace: u64,
    /// What the segment's descriptor stands for.
    file: Option<(u64, u64)>,
}

impl Drop for Session {
    /// The program may have closed the segment's descriptor, as programs that daemonize do, and the
    /// number may be a file of its own by now. Then the mapping is leaked rather than that file closed.
    fn drop(&mut self) {
        let segment = self.writer.segment();
        if file_of(segment.fd()) != self.file {
            core::mem::forget(Arc::clone(segment));
        }
    }
}

/// Device and inode of a descriptor; `None` when it is closed.
fn file_of(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is room for the answer.
    if unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded and filled it.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

impl Session {
    /// Writes the process's record unless it is there. Async-signal-safe.
    pub(crate) fn announce_process(&self, pid: u32) {
        // [Q] Acquire: pairs with [P] below, in another thread; orders this thread's events after that
        // thread's record. Without it: an event whose process is not in the log yet.
        if self.announced.load(Ordering::Acquire) == pid {
            return;
        }
        let mut buf = [0; PATH_MAX + ARGS_MAX + 64];
        let entry = EntryRef::Process(ProcessRef {
            pid,
            // SAFETY: getppid takes no argument and cannot fail.
            ppid: unsafe { libc::getppid() }.cast_unsigned(),
            pid_namespace: self.pid_namespace,
            exe: &self.exe,
            args: &self.args,
            backend: self.writer.backend(),
        });
        if let Some(bytes) = encode(&entry, &mut buf) {
            let _ = self.writer.segment().log_append(bytes);
        }
        // [P] Release: pairs with [Q] above; orders the record before the mark. Without it: as there.
        self.announced.store(pid, Ordering::Release);
    }
}

/// One session and its sinks.
struct Attached {
    session: Arc<Session>,
    rules: Vec<Rule>,
    /// By the tracepoint's address.
    sinks: BTreeMap<usize, Sink>,
}

struct Sink {
    core: &'static Core,
    point: Arc<SinkPoint>,
    on: bool,
}

/// The sessions of this process.
pub(crate) struct Sessions {
    slots: [Option<Attached>; SESSIONS],
    serial: u32,
}

impl Sessions {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { None }; SESSIONS], serial: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// What the sinks of a session share, if it is still there.
    pub(crate) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        let attached = self.slots.get(id.slot)?.as_ref()?;
        (attached.session.serial == id.serial).then(|| Arc::clone(&attached.session))
    }

    fn get(&mut self, id: SessionId) -> Option<&mut Option<Attached>> {
        let slot = self.slots.get_mut(id.slot)?;
        slot.as_ref().is_some_and(|a| a.session.serial == id.serial).then_some(slot)
    }
}

/// What the last matching rule says; off when none does.
fn wanted(rules: &[Rule], session: &SessionConfig, core: &Core) -> bool {
    core.desc.level <= session.level
        && rules
            .iter()
            .rev()
            .find(|rule| glob(&rule.pattern, core.desc.name))
            .is_some_and(|rule| rule.enable)
}

/// Why one tracepoint was not switched.
enum SwitchError {
    Full,
    Probe,
}

/// Joins the session of the segment `fd`.
///
/// # Errors
/// [`AttachError`]; nothing is changed then.
pub fn attach(fd: OwnedFd) -> Result<(SessionId, Matched), AttachError> {
    let segment = Segment::open(fd).map_err(AttachError::Segment)?;
    let config = SessionConfig::decode(segment.config()).ok_or(AttachError::Config)?;
    if segment.is_stopped() {
        return Err(AttachError::Stopped);
    }
    let filter = parse_filter(&config.filter)?;
    let file = file_of(segment.fd());
    let writer = Writer::new(Arc::new(segment)).map_err(AttachError::Writer)?;
    let mut control = control::lock().ok_or(AttachError::InsideHook)?;
    let number = config.session;
    if control.sessions.slots.iter().flatten().any(|a| a.session.config.session == number) {
        return Err(AttachError::Twice);
    }
    let slot = control.sessions.slots.iter().position(Option::is_none);
    let slot = slot.ok_or(AttachError::TooMany)?;
    control.sessions.serial = control.sessions.serial.wrapping_add(1).max(1);
    let id = SessionId { slot, serial: control.sessions.serial };
    let rules = config.rules.clone();
    let session = Arc::new(Session {
        slot,
        serial: id.serial,
        writer,
        filter,
        announced: AtomicU32::new(0),
        exe: cut(exe(), PATH_MAX),
        args: cut(args(), ARGS_MAX),
        pid_namespace: process::pid_namespace().unwrap_or(0),
        file,
        config,
    });
    session.announce_process(process::getpid());
    let mut attached = Attached { session, rules: rules.clone(), sinks: BTreeMap::new() };
    let applied = apply(&mut control, &mut attached);
    let change = match applied
        .and_then(|change| control.commit().map(|()| change).map_err(AttachError::Sites))
    {
        Ok(change) => change,
        Err(error) => {
            let change = withdraw(&mut control, &attached);
            Control::finish(control, change);
            let _ = control::synchronize();
            return Err(error);
        }
    };
    let matched = outcome(&control, &rules, Some(&attached), 1);
    if let Some(slot) = control.sessions.slots.get_mut(slot) {
        *slot = Some(attached);
    }
    Control::finish(control, change);
    Ok((id, matched))
}

fn parse_filter(text: &str) -> Result<Option<Filter>, AttachError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let filter = Filter::parse(text).map_err(AttachError::Filter)?;
    filter.validate(Side::Target).map_err(AttachError::Filter)?;
    Ok(Some(filter))
}

/// Applies rules to one session, or to all of them, after those it has.
///
/// # Errors
/// When the sites cannot be switched, or a segment is full.
pub fn control(id: Option<SessionId>, rules: &[Rule]) -> Result<Matched, AttachError> {
    let mut control = control::lock().ok_or(AttachError::InsideHook)?;
    let mut change = Change::default();
    let (mut touched, mut failed) = (0, None);
    for slot in 0..SESSIONS {
        let Some(mut attached) = control.sessions.slots.get_mut(slot).and_then(Option::take) else {
            continue;
        };
        if id.is_none_or(|id| id.slot == slot && id.serial == attached.session.serial) {
            touched += 1;
            for rule in rules {
                // The same pattern again replaces itself: rules do not grow with time.
                attached.rules.retain(|old| old.pattern != rule.pattern);
                attached.rules.push(rule.clone());
            }
            match apply(&mut control, &mut attached) {
                Ok(part) => change.dynamic += part.dynamic,
                Err(error) => failed = Some(error),
            }
        }
        if let Some(slot) = control.sessions.slots.get_mut(slot) {
            *slot = Some(attached);
        }
    }
    if let Err(refused) = control.commit() {
        failed = Some(AttachError::Sites(refused));
    }
    let own = id.and_then(|id| control.sessions.slots.get(id.slot)).and_then(Option::as_ref);
    let matched = outcome(&control, rules, own, touched);
    Control::finish(control, change);
    match failed {
        Some(error) => Err(error),
        None => Ok(matched),
    }
}

/// Leaves a session and waits until nothing of it can run any more. `false` when it is gone already.
pub fn detach(id: SessionId) -> bool {
    let found = remove(id);
    if found {
        let _ = control::synchronize();
    }
    found
}

/// The first half of [`detach`]: nothing of the session starts any more.
pub(crate) fn remove(id: SessionId) -> bool {
    let Some(mut control) = control::lock() else { return false };
    let Some(attached) = control.sessions.get(id).and_then(Option::take) else { return false };
    let change = withdraw(&mut control, &attached);
    functions::end(&mut control, Owner::Session(id));
    Control::finish(control, change);
    true
}

/// Ends every session, and what commands attached to functions.
pub(crate) fn remove_all() {
    let ids: Vec<_> = rendezvous().into_iter().map(|(id, _)| id).collect();
    for id in ids {
        remove(id);
    }
    if let Some(mut control) = control::lock() {
        functions::end_of_connections(&mut control);
    }
    let _ = control::synchronize();
}

/// Number of sessions.
#[must_use]
pub fn count() -> usize {
    control::lock().map_or(0, |control| control.sessions.count())
}

/// What the agent of a forked child needs to report for itself: each session and where its recorder
/// listens.
pub(crate) fn rendezvous() -> Vec<(SessionId, String)> {
    let Some(control) = control::lock() else { return Vec::new() };
    let attached = control.sessions.slots.iter().flatten();
    attached
        .map(|a| {
            let id = SessionId { slot: a.session.slot, serial: a.session.serial };
            (id, a.session.config.rendezvous.clone())
        })
        .collect()
}

/// Sessions whose recorder has said that it is over.
pub(crate) fn stopped() -> Vec<SessionId> {
    let Some(control) = control::lock() else { return Vec::new() };
    let attached = control.sessions.slots.iter().flatten();
    attached
        .filter(|a| a.session.writer.segment().is_stopped())
        .map(|a| SessionId { slot: a.session.slot, serial: a.session.serial })
        .collect()
}

/// Applies every session's rules to a tracepoint that is new.
pub(crate) fn apply_new(control: &mut Control, core: &'static Core) {
    for slot in 0..SESSIONS {
        let Some(mut attached) = control.sessions.slots.get_mut(slot).and_then(Option::take) else {
            continue;
        };
        if wanted(&attached.rules, &attached.session.config, core) {
            // No room: the point stays off in this session, as the list shows.
            let _ = switch(control, &mut attached, core, true);
        }
        if let Some(slot) = control.sessions.slots.get_mut(slot) {
            *slot = Some(attached);
        }
    }
}

/// Makes every tracepoint agree with the session's rules. The caller commits.
fn apply(control: &mut Control, attached: &mut Attached) -> Result<Change, AttachError> {
    let mut change = Change::default();
    let mut full = false;
    for core in control.points.clone() {
        let want = wanted(&attached.rules, &attached.session.config, core);
        match switch(control, attached, core, want) {
            Ok(true) => change.dynamic += usize::from(core.dynamic),
            Ok(false) | Err(SwitchError::Probe) => {}
            Err(SwitchError::Full) => full = true,
        }
    }
    if full { Err(AttachError::Full) } else { Ok(change) }
}

/// Switches one tracepoint in one session; whether it was switched.
fn switch(
    control: &mut Control,
    attached: &mut Attached,
    core: &'static Core,
    want: bool,
) -> Result<bool, SwitchError> {
    let sink = match attached.sinks.entry(core::ptr::from_ref(core).addr()) {
        btree_map::Entry::Occupied(known) => known.into_mut(),
        btree_map::Entry::Vacant(_) if !want => return Ok(false),
        btree_map::Entry::Vacant(place) => {
            let Some(point) = describe(&attached.session, core)? else { return Ok(false) };
            place.insert(Sink { core, point: Arc::new(point), on: false })
        }
    };
    if sink.on == want {
        return Ok(false);
    }
    let target = Target::Sink(Arc::clone(&sink.point));
    if want {
        match control.attach(core, Entry::new(target, SINK_PRIORITY)) {
            Ok(()) | Err(RegisterError::Exists) => {}
            Err(_) => return Err(SwitchError::Probe),
        }
    } else {
        control.detach(core, &target);
    }
    sink.on = want;
    Ok(true)
}

/// Gives a tracepoint its id and puts its schema into the log; `None` when the filter can never
/// match it.
fn describe(session: &Arc<Session>, core: &Core) -> Result<Option<SinkPoint>, SwitchError> {
    let filter = session.filter.as_ref().map(|filter| filter.bind_ref(&core.desc));
    let filter = match filter.as_ref().map(owlet_wire::filter::Bound::verdict) {
        Some(Verdict::Never) => return Ok(None),
        Some(Verdict::Depends) => filter,
        Some(Verdict::Always) | None => None,
    };
    let segment = session.writer.segment();
    let id = segment.claim_ids(1).ok_or(SwitchError::Full)?;
    let entry = EntryRef::Schema(id, core.desc);
    append(segment, &entry)?;
    Ok(Some(SinkPoint { session: Arc::clone(session), id, filter }))
}

/// As [`describe`], for an event of a traced function; `None` when the segment is full.
pub(crate) fn describe_function(
    session: &Arc<Session>,
    schema: SchemaRef<'_>,
) -> Option<SinkPoint> {
    let segment = session.writer.segment();
    let id = segment.claim_ids(1)?;
    append(segment, &EntryRef::Schema(id, schema)).ok()?;
    Some(SinkPoint { session: Arc::clone(session), id, filter: None })
}

/// Puts an entry of any size into the log.
fn append(segment: &Segment, entry: &EntryRef<'_>) -> Result<(), SwitchError> {
    let mut size = 1024;
    while size <= 1 << 20 {
        if let Some(bytes) = encode(entry, &mut vec![0; size]) {
            return segment.log_append(bytes).map_err(|_| SwitchError::Full);
        }
        size *= 2;
    }
    Err(SwitchError::Full)
}

/// Takes every sink of a session out, and switches the sites that nobody else wants.
fn withdraw(control: &mut Control, attached: &Attached) -> Change {
    let mut change = Change::default();
    for sink in attached.sinks.values().filter(|sink| sink.on) {
        if control.detach(sink.core, &Target::Sink(Arc::clone(&sink.point))) {
            change.dynamic += usize::from(sink.core.dynamic);
        }
    }
    // Refused now although it worked before: the sites stay on and find an empty list.
    let _ = control.commit();
    change
}

fn outcome(control: &Control, rules: &[Rule], own: Option<&Attached>, sessions: u32) -> Matched {
    let points = || control.points.iter().copied();
    let named = |core: &&Core| rules.iter().any(|rule| glob(&rule.pattern, core.desc.name));
    let enabled = match own {
        Some(attached) => {
            control::lines(attached.sinks.values().filter(|sink| sink.on).map(|sink| sink.core))
        }
        None => control::lines(points().filter(|core| core.is_on())),
    };
    Matched {
        matched: control::lines(points().filter(named)),
        enabled,
        known: control::lines(points()),
        sessions,
    }
}

/// The executable's path; empty without /proc.
pub(crate) fn exe() -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    std::fs::read_link("/proc/self/exe").map(|p| p.into_os_string().into_vec()).unwrap_or_default()
}

/// The arguments, each ended by a NUL; empty without /proc.
pub(crate) fn args() -> Vec<u8> {
    std::fs::read("/proc/self/cmdline").unwrap_or_default()
}

fn cut(mut bytes: Vec<u8>, max: usize) -> Vec<u8> {
    bytes.truncate(max);
    bytes
}

#[cfg(all(test, not(loom)))]
#[path = "session_tests.rs"]
mod tests;
