//! The recorder's end of a session: the segment, and the processes that record into it.

use crate::agents;
use crate::client::{Client, ClientError, Matched};
use crate::error::{Failure, Result, reason};
use crate::procfs;
use owlet_ring::{Clock, Segment, SegmentOptions};
use owlet_wire::config::{Rule, SessionConfig};
use owlet_wire::control::TracepointInfo;
use owlet_wire::schema::Level;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Room for schemas, threads and processes. Reserved, not used: pages appear as they are written.
const LOG_BYTES: usize = 8 << 20;
/// How long a writer's wakeup may be put off.
const DEFERRAL_US: u32 = 2000;

/// Name of the variable a process finds its session by.
pub(crate) const VARIABLE: &str = "OWLET_SESSION";

/// What is to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Applied in order; the last match wins.
    pub(crate) rules: Vec<Rule>,
    /// Only events this severe or more so.
    pub(crate) level: Level,
    /// Source text, or empty.
    pub(crate) filter: String,
    /// Bytes of each ring.
    pub(crate) ring_bytes: u64,
    /// Where processes that inherit the session, from a command or from a parent, announce themselves.
    pub(crate) rendezvous: PathBuf,
}

/// A process of the session.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) client: Client,
    /// What its agent said when it was attached; zeros for a process that joined by itself.
    pub(crate) matched: Matched,
    /// What [`procfs::image`] was then.
    pub(crate) image: Option<[u64; 3]>,
}

impl Target {
    fn new(client: Client, matched: Matched) -> Self {
        Self { image: procfs::image(client.pid), client, matched }
    }

    fn points(&self) -> Option<Vec<TracepointInfo>> {
        self.client.list("*").ok()
    }
}

/// A session with its processes.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) segment: Arc<Segment>,
    pub(crate) targets: Vec<Target>,
    /// Processes ever in the session.
    pub(crate) joined: usize,
}

impl Session {
    /// Makes the segment.
    pub(crate) fn create(plan: &Plan, clock: Clock) -> Result<Self> {
        let config = SessionConfig {
            session: random_number(),
            rules: plan.rules.clone(),
            level: plan.level,
            filter: plan.filter.clone(),
            rendezvous: rendezvous_text(&plan.rendezvous)?,
            recorder_pid: std::process::id(),
        };
        let cpus = owlet_percpu::cpus();
        let options = SegmentOptions {
            ring_bytes: usize::try_from(plan.ring_bytes).unwrap_or(usize::MAX),
            cpus,
            clock,
            log_bytes: LOG_BYTES,
            config: config.encode(),
            deferral_us: DEFERRAL_US,
        };
        let segment = Segment::create(&options).map_err(|error| {
            let rings = 2 * cpus;
            Failure::new(format!(
                "cannot make the shared memory of {rings} rings of {} each: {}",
                crate::units::size(plan.ring_bytes),
                reason(&error)
            ))
            .hint("choose smaller rings with --size, as in --size 256K")
        })?;
        Ok(Self { segment: Arc::new(segment), targets: Vec::new(), joined: 0 })
    }

    /// Where a process that inherits the session finds the segment. Valid while this process lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.segment.fd().as_raw_fd())
    }

    /// Attaches processes, all at once. On failure none of them stays attached.
    pub(crate) fn attach(&mut self, clients: Vec<Client>) -> Result<()> {
        let segment = &self.segment;
        let answers: Vec<_> = thread::scope(|scope| {
            let ask = |client: Client| {
                scope.spawn(move || {
                    let answer = client.attach(segment.fd());
                    (client, answer)
                })
            };
            let asked: Vec<_> = clients.into_iter().map(ask).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        for (client, answer) in answers {
            match answer {
                Ok(matched) => self.targets.push(Target::new(client, matched)),
                // The connections end with the values, and so does what was attached.
                Err(error) => return Err(agents::explain(client.pid, &error)),
            }
        }
        self.joined = self.targets.len();
        Ok(())
    }

    /// Takes in a process that announced itself.
    pub(crate) fn join(&mut self, client: Client) {
        self.joined += 1;
        self.targets.push(Target::new(client, Matched::default()));
    }

    /// Takes away processes that have ended, or whose agent has.
    pub(crate) fn reap(&mut self) -> Vec<Target> {
        self.targets.extract_if(.., |target| target.client.closed()).collect()
    }

    /// The trace points of all processes that answer; `None` when none does.
    pub(crate) fn points(&self) -> Option<Vec<TracepointInfo>> {
        let lists: Vec<_> = thread::scope(|scope| {
            let ask = |target| scope.spawn(move || Target::points(target));
            let asked: Vec<_> = self.targets.iter().map(ask).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()?).collect()
        });
        (!lists.is_empty()).then(|| lists.into_iter().flatten().collect())
    }

    /// Ends the session in every process and waits until nothing of it runs there. The processes
    /// that did not answer, and why.
    pub(crate) fn end(&mut self) -> Vec<(u32, ClientError)> {
        self.segment.stop();
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .targets
                .iter()
                .map(|target| (target.client.pid, scope.spawn(|| target.client.detach())))
                .collect();
            asked
                .into_iter()
                .filter_map(|(pid, thread)| match thread.join() {
                    Ok(Err(ClientError::Gone)) | Ok(Ok(())) | Err(_) => None,
                    Ok(Err(error)) => Some((pid, error)),
                })
                .collect()
        })
    }
}

fn rendezvous_text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.into()),
        None => Err(Failure::at("cannot listen at", path, "the path is not UTF-8")),
    }
}

fn random_number() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => u64::from_le_bytes(bytes),
        // An old kernel: the pid and the time are unique enough, nobody guesses against it.
        Err(_) => {
            let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |d| d.subsec_nanos());
            u64::from(std::process::id()) << 32 | u64::from(now)
        }
    }
}
