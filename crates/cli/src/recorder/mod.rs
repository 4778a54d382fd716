//! Recording: one session, its processes, and the directory their events go to.
//!
//! One thread does everything: it sleeps in `poll` until a ring has filled to a quarter, a process
//! came or went, a signal arrived or a tenth of a second has passed; then it drains. Nothing a traced
//! process does or omits can hold it up: answers are waited for at the beginning and the end only,
//! each for a second, all at once.
//!
//! | module | owns |
//! |---|---|
//! | [`session`] | the segment and the processes in it |
//! | [`sink`] | rings to directory |
//! | [`kernel`] | probes of the kernel instead of a session: its ring to directory |
//! | [`losses`] | what was lost, by cause |
//! | [`clock`] | which clock, and how its ticks become time |
//! | [`rendezvous`] | processes that inherit the session |
//! | [`departed`] | processes that go on without being recorded |
//! | [`newcomers`] | processes that were to inherit it and cannot open it |
//! | [`stop`] | signals |
//! | [`progress`] | the line shown meanwhile |

pub(crate) mod clock;
pub(crate) mod departed;
pub(crate) mod kernel;
pub(crate) mod losses;
pub(crate) mod newcomers;
pub(crate) mod progress;
pub(crate) mod rendezvous;
pub(crate) mod session;
pub(crate) mod sink;
pub(crate) mod stop;

use crate::agents;
use crate::client::ClientError;
use crate::error::{Failure, Result, reason, show};
use crate::text::plural;
use clock::SessionClock;
use departed::Departed;
use newcomers::Newcomers;
use owlet_ring::{Notifier, NotifierOptions, RingSet, Waiter, WakeFd, Watermark};
use owlet_store::TraceMeta;
use owlet_wire::control::TracepointInfo;
use progress::{Progress, Standing};
use rendezvous::Rendezvous;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use session::Session;
use sink::{Sink, Tally, store_failure};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::Stop;

/// Rings wake the recorder at this filling; the rest is room for what comes until it runs.
const WATERMARK: Watermark = Watermark::percent(25);
/// Events of a slow trickle reach the disk this soon; what a killed recorder loses, too.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// A process that forks and exits is gone a moment before its child announces itself.
const LINGER: Duration = Duration::from_millis(300);
/// A command that takes longer to end after a Ctrl-C is said to be waited for.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A command of which nothing has joined by then is said so.
const LONELY: Duration = Duration::from_millis(700);
/// A child of a command may announce itself this long after the command has ended.
const GRACE: Duration = Duration::from_millis(200);
const REFINE_EVERY: Duration = Duration::from_secs(10);
/// How often the trace is told what was lost and why: what a killed recorder can leave untold.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Why nothing of a command may have joined.
pub(crate) const NOT_JOINED: &str = "it joins when it calls `owlet::init()`; a program without it, one \
     that is set-user-id, one that lost OWLET_SESSION from its environment or runs where this user's \
     socket directory is not to be seen never does";

/// Why a recording ended.
#[derive(Debug)]
pub(crate) enum End {
    /// SIGINT, SIGTERM or SIGHUP.
    Signal,
    /// A second one of those, while the command that got the first went on.
    Abandoned(i32),
    /// The time asked for has passed.
    Duration,
    /// No process is left.
    TargetsEnded,
    /// The command that was started ended, and so did all it started, unless the end was asked for.
    Command(ExitStatus),
    /// It cannot go on; for example because the directory takes no more.
    Failed(Failure),
}

/// A recording under way.
pub(crate) struct Recording {
    pub(crate) session: Session,
    pub(crate) sink: Sink,
    /// Gone once the session has ended: nobody is to come any more.
    rendezvous: Option<Rendezvous>,
    newcomers: Option<Newcomers>,
    /// Of processes that ran before; those of a command see to themselves.
    pub(crate) departed: Departed,
    /// When the command began, until somebody has joined or it was said that nobody has.
    lonely: Option<Instant>,
    /// It was said, and why that may be.
    pub(crate) told_lonely: bool,
    child: Option<Child>,
    /// Readable when the child has ended; absent on kernels without pidfd, where the next round sees it.
    child_fd: Option<OwnedFd>,
    /// What the command is called.
    name: String,
    /// The command when it has ended; what it started may go on.
    gone: Option<Gone>,
    clock: SessionClock,
    stop: Stop,
    wake: WakeFd,
    // Stops with the recording.
    _notifier: Notifier,
    progress: Progress,
    refined: Instant,
    told: Instant,
    /// All trace points of the processes that were left at the end; asked only when nothing was
    /// recorded.
    pub(crate) points: Option<Vec<TracepointInfo>>,
    /// Trace points that processes had when they joined, by name; known when they were asked and no
    /// event had come yet.
    pub(crate) joined: BTreeMap<String, TracepointInfo>,
    /// Since when no process is left.
    alone: Option<Instant>,
    /// A signal wants the end.
    stopping: Option<Stopping>,
}

/// The end that a signal asked for.
#[derive(Clone, Copy, Debug)]
struct Stopping {
    since: Instant,
    /// It was said that the command is waited for.
    told: bool,
}

/// A command that has ended.
#[derive(Clone, Copy, Debug)]
struct Gone {
    pid: u32,
    status: ExitStatus,
    since: Instant,
    /// Whether it was said that other processes go on.
    told: bool,
}

/// What a [`Recording`] is made of.
pub(crate) struct Parts<'a> {
    pub(crate) session: Session,
    pub(crate) clock: SessionClock,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) dir: &'a Path,
    pub(crate) description: String,
    pub(crate) stop: Stop,
    pub(crate) progress: bool,
}

impl Recording {
    /// Begins the trace directory and everything that wakes the recorder.
    pub(crate) fn begin(parts: Parts<'_>) -> Result<Self> {
        let Parts { session, clock, rendezvous, dir, description, stop, progress } = parts;
        let segment = &session.segment;
        let failed = |what: &str, error: std::io::Error| {
            Failure::new(format!("cannot {what}: {}", reason(&error)))
        };
        let notifier = Notifier::start(segment, &NotifierOptions::default())
            .map_err(|error| failed("start the notifier thread", error))?;
        let wake = Waiter::new(Arc::clone(segment))
            .wake_fd(RingSet::All, WATERMARK)
            .map_err(|error| failed("wait for the rings", error))?;
        let meta = TraceMeta { description, ..TraceMeta::new(clock.info()) };
        let sink = Sink::create(segment, dir, &meta)?;
        let progress = Progress::new(progress);
        let refined = Instant::now();
        Ok(Self {
            session,
            sink,
            rendezvous: Some(rendezvous),
            newcomers: None,
            departed: Departed::default(),
            lonely: None,
            told_lonely: false,
            child: None,
            child_fd: None,
            name: String::new(),
            gone: None,
            clock,
            stop,
            wake,
            _notifier: notifier,
            progress,
            refined,
            told: refined,
            points: None,
            joined: BTreeMap::new(),
            alone: None,
            stopping: None,
        })
    }

    /// The command whose end, with that of every process it started, ends the recording.
    pub(crate) fn follow(&mut self, child: Child, name: String, newcomers: Newcomers) {
        self.name = name;
        self.newcomers = Some(newcomers);
        self.lonely = Some(Instant::now());
        self.child_fd = owlet_sys::process::pidfd_open(child.id()).ok();
        self.child = Some(child);
    }

    /// Records until something ends it.
    pub(crate) fn run(&mut self, deadline: Option<Instant>) -> End {
        let end = loop {
            match self.round(deadline) {
                Ok(None) => {}
                Ok(Some(end)) => break end,
                Err(failure) => break End::Failed(failure),
            }
        };
        self.progress.clear();
        end
    }

    /// Waits for the command after the recording has ended, if it still runs; signals go on to it as
    /// before. How it ended, or why it is waited for no longer; `None` without one.
    pub(crate) fn wait_for_command(&mut self, deadline: Option<Instant>) -> Result<Option<End>> {
        if self.child.is_none() {
            return Ok(self.gone.map(|gone| End::Command(gone.status)));
        }
        loop {
            if let Some(end) = self.ended(deadline)? {
                return Ok(Some(end));
            }
            let mut fds = vec![self.stop.poll_fd()];
            fds.extend(self.child_fd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            nap(&mut fds, deadline)?;
        }
    }

    /// The command, unless it has ended.
    pub(crate) fn command(&self) -> Option<&Child> {
        self.child.as_ref()
    }

    fn round(&mut self, deadline: Option<Instant>) -> Result<Option<End>> {
        self.sleep(deadline)?;
        self.wake.rearm();
        self.sink.drain(false).map_err(store_failure)?;
        self.meet();
        if self.refined.elapsed() >= REFINE_EVERY {
            self.refined = Instant::now();
            self.sink.set_clock(self.clock.refine()).map_err(store_failure)?;
        }
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let dir = self.sink.dir().to_owned();
            self.sink.check(false).map_err(store_failure)?;
            if self.sink.dir() != dir {
                let (from, to) = (show(&dir), show(self.sink.dir()));
                self.progress.note(&format!("{from} was moved: recording on into {to}"));
            }
            self.sink.tell_losses().map_err(store_failure)?;
        }
        self.look_around();
        let standing = self.standing();
        let tally = self.sink.tally.as_ref();
        self.progress.show_with(&standing, || tally.map(Tally::top).unwrap_or_default());
        self.ended(deadline)
    }

    /// Ends the session everywhere, drains what is left and ends the directory. A failure of that
    /// becomes the end, unless there was one before.
    pub(crate) fn end(&mut self, end: End) -> End {
        // What is in the rings now may be the only events there are.
        let drained = self.sink.drain(false).err();
        if self.sink.events == 0 {
            self.points = self.session.points();
        }
        for (pid, error) in self.session.end() {
            let failure = agents::explain(pid, &error);
            self.progress.note(&format!("warning: {}", failure.message));
        }
        self.tell_departed(true);
        let mut end = end;
        let mut failed = drained.or(self.sink.drain(true).err()).or(self.sink.check(true).err());
        failed = failed.or(self.sink.set_clock(self.clock.refine()).err());
        failed = failed.or(self.sink.finish().err());
        if let Some(error) = failed
            && !matches!(end, End::Failed(_))
        {
            end = End::Failed(store_failure(error));
        }
        self.session.targets.clear();
        (self.rendezvous, self.newcomers) = (None, None);
        end
    }

    /// Takes the directory away again: nothing ran.
    pub(crate) fn discard(self) {
        self.sink.discard();
    }

    fn standing(&self) -> Standing {
        Standing {
            events: self.sink.events,
            lost: self.sink.losses.total(),
            bytes: self.sink.bytes,
            processes: self.session.targets.len(),
        }
    }

    fn sleep(&self, deadline: Option<Instant>) -> Result<()> {
        let mut fds = vec![self.stop.poll_fd(), PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.rendezvous.as_ref().map(Rendezvous::poll_fd));
        let appeared = self.newcomers.as_ref().and_then(Newcomers::fd);
        fds.extend(appeared.map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(
            self.session.targets.iter().map(|target| PollFd::new(&target.client, PollFlags::IN)),
        );
        fds.extend(self.child_fd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        nap(&mut fds, deadline)
    }

    /// Lets processes come and go.
    fn meet(&mut self) {
        let Some(rendezvous) = &mut self.rendezvous else { return };
        // What left nothing is explained only when there is nothing.
        rendezvous.ask &= self.sink.events == 0;
        if rendezvous.accept() {
            self.progress.note("warning: no descriptor is left for another process: it is recorded, but out of reach");
            self.progress.note(&format!("hint: {}", crate::error::MORE_FILES));
        }
        if let Some(newcomers) = &mut self.newcomers {
            newcomers.look();
        }
        let attached = self.newcomers.iter().flat_map(Newcomers::attached);
        for greeted in rendezvous.joined().chain(attached) {
            match greeted {
                Ok(joined) => {
                    self.session.join(joined.client);
                    let named = |point: TracepointInfo| (point.name.clone(), point);
                    self.joined.extend(joined.points.into_iter().map(named));
                }
                // Ended or stopped already: it recorded without us.
                Err((_, ClientError::Gone | ClientError::Silent)) => {}
                Err((pid, error)) => {
                    let failure = agents::explain(pid, &error);
                    self.progress.note(&format!("warning: {}", failure.message));
                }
            }
        }
        let gone = self.session.reap();
        if self.newcomers.is_none() {
            self.departed.add(gone);
        }
        self.tell_departed(false);
    }

    fn tell_departed(&mut self, end: bool) {
        for line in self.departed.look(end, &self.session.targets) {
            self.progress.note(&line);
        }
    }

    /// Says in time that nothing of the command has joined: it may never.
    fn look_around(&mut self) {
        let Some(since) = self.lonely else { return };
        if self.session.joined > 0 || self.sink.processes > 0 {
            self.lonely = None;
        } else if since.elapsed() >= LONELY && self.child.is_some() {
            (self.lonely, self.told_lonely) = (None, true);
            let name = &self.name;
            self.progress.note(&format!("warning: nothing of {name} has joined the recording yet"));
            self.progress.note(&format!("hint: {NOT_JOINED}"));
        }
    }

    fn ended(&mut self, deadline: Option<Instant>) -> Result<Option<End>> {
        self.signals();
        if let Some(child) = &mut self.child {
            let status = child.try_wait().map_err(|error| {
                Failure::new(format!("cannot wait for the command: {}", reason(&error)))
            })?;
            if let Some(status) = status {
                self.gone =
                    Some(Gone { pid: child.id(), status, since: Instant::now(), told: false });
                // It would stay readable.
                (self.child, self.child_fd) = (None, None);
                if self.stopping.is_some() {
                    return Ok(Some(End::Command(status)));
                }
            } else if let Some(stopping) = &mut self.stopping {
                if let Some(signal) = self.stop.insisted() {
                    return Ok(Some(End::Abandoned(signal)));
                }
                if !stopping.told && stopping.since.elapsed() >= LAST_WORDS {
                    stopping.told = true;
                    self.progress.note(&format!(
                        "waiting for {} to end; Ctrl-C again leaves it running",
                        self.name
                    ));
                }
            }
        } else if let Some(gone) = self.gone {
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if over || self.stopping.is_some() || !self.descendants(gone) {
                return Ok(Some(End::Command(gone.status)));
            }
        } else if self.stopping.is_some() {
            return Ok(Some(End::Signal));
        } else if self.session.targets.is_empty() {
            if self.alone.get_or_insert_with(Instant::now).elapsed() >= LINGER {
                return Ok(Some(End::TargetsEnded));
            }
        } else {
            self.alone = None;
        }
        Ok(deadline.filter(|deadline| Instant::now() >= *deadline).map(|_| End::Duration))
    }

    /// Takes signals. The first goes on to the command, unless it has it from the terminal: it may
    /// end in its own way, and its last events are recorded.
    fn signals(&mut self) {
        for received in self.stop.received() {
            if self.stopping.is_some() {
                continue;
            }
            self.stopping = Some(Stopping { since: Instant::now(), told: false });
            if let Some(child) = self.child.as_ref().filter(|_| !received.typed)
                && let Some(signal) = Signal::from_named_raw(received.signal)
            {
                // Not waited for yet, so the pid is still its own; if it has ended, that is seen next.
                let _ = kill_process(Pid::from_child(child), signal);
            }
        }
    }

    /// Whether processes that the ended command started go on, or may be about to announce
    /// themselves.
    fn descendants(&mut self, gone: Gone) -> bool {
        if gone.since.elapsed() < GRACE {
            return true;
        }
        let mut pids: Vec<_> =
            self.session.targets.iter().map(|target| target.client.pid).collect();
        if pids.is_empty() {
            // One that forked and ended is gone a moment before its child announces itself.
            return self.alone.get_or_insert_with(Instant::now).elapsed() < GRACE && gone.told;
        }
        self.alone = None;
        if !gone.told {
            pids.retain(|pid| *pid != gone.pid);
            pids.sort_unstable();
            pids.dedup();
            let n = pids.len().max(1) as u64;
            let go = if n == 1 { "goes" } else { "go" };
            self.progress.note(&format!(
                "{} has ended; {} it started {go} on: recording them, Ctrl-C ends it",
                self.name,
                plural(n, "process")
            ));
            self.gone = Some(Gone { told: true, ..gone });
        }
        true
    }
}

/// Sleeps until something happens, the deadline has come, or it is time to drain.
pub(crate) fn nap(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<()> {
    let mut timeout = DRAIN_EVERY;
    if let Some(deadline) = deadline {
        timeout = timeout.min(deadline.saturating_duration_since(Instant::now()));
    }
    let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::new(format!("cannot poll: {}", reason(&error.into())))),
    }
}
