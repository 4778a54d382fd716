//! Processes that were given the session and could not open it: where the recorder's `/proc` is not
//! to be seen, as in a PID namespace of its own. They have an agent none the less, whose socket
//! appears in the usual directories. Whoever appears there, has our session in its environment and is
//! in none, is attached like a process that was running before.
//!
//! Their first events, until we have seen them, are not recorded: a few milliseconds.

use super::rendezvous::{Greeted, Joined};
use crate::client::{Client, ClientError};
use crate::procfs;
use crate::sockets;
use owlet_ring::Segment;
use owlet_sys::runtime_dir;
use rustix::fs::inotify;
use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Directories are listed at most this often.
const EVERY: Duration = Duration::from_millis(5);
/// A socket is bound a moment before it listens.
const ATTEMPTS: u32 = 5;

/// Watches for them.
#[derive(Debug)]
pub(crate) struct Newcomers {
    segment: Arc<Segment>,
    /// What `OWLET_SESSION` says.
    session: String,
    known: HashSet<PathBuf>,
    listed: Instant,
    /// Readable when something has appeared; without it the next round sees it.
    appeared: Option<OwnedFd>,
    done: (Sender<Greeted>, Receiver<Greeted>),
}

impl Newcomers {
    /// From now on; whoever is there already is none.
    pub(crate) fn new(segment: &Arc<Segment>, session: String) -> Self {
        let appeared =
            inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC);
        let appeared = appeared.ok();
        for dir in sockets::own_dirs() {
            // One that is not there has nobody in it yet, and is listed all the same.
            let _ = appeared
                .as_ref()
                .map(|fd| inotify::add_watch(fd, &dir, inotify::WatchFlags::CREATE));
        }
        let known = there().collect();
        let listed = Instant::now();
        Self { segment: Arc::clone(segment), session, known, listed, appeared, done: channel() }
    }

    /// What to poll for.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        self.appeared.as_ref()
    }

    /// Looks for new sockets, and attaches aside whoever belongs to us.
    pub(crate) fn look(&mut self) {
        if self.listed.elapsed() < EVERY {
            return;
        }
        self.listed = Instant::now();
        if let Some(fd) = &self.appeared {
            // What exactly appeared is seen below.
            let mut buf = [MaybeUninit::uninit(); 4096];
            while rustix::io::read(fd, &mut buf).is_ok_and(|(read, _)| !read.is_empty()) {}
        }
        let before = std::mem::replace(&mut self.known, there().collect());
        for path in self.known.difference(&before) {
            let path = path.clone();
            let (segment, session) = (Arc::clone(&self.segment), self.session.clone());
            let done = self.done.0.clone();
            let greet = move || {
                if let Some(greeted) = greet(&path, &session, &segment) {
                    // Nobody receives any more once the recording is over.
                    let _ = done.send(greeted);
                }
            };
            // Without a thread it is not recorded, and at the end said to be missing.
            let _ = thread::Builder::new().name("owlet-attach".into()).spawn(greet);
        }
    }

    /// Processes that were attached since the last call, or would not be.
    pub(crate) fn attached(&self) -> impl Iterator<Item = Greeted> + '_ {
        self.done.1.try_iter()
    }
}

fn there() -> impl Iterator<Item = PathBuf> {
    let list = |dir: PathBuf| runtime_dir::list(&dir).unwrap_or_default();
    sockets::own_dirs().into_iter().flat_map(list).map(|(_, path)| path)
}

/// Attaches the process behind a socket; `None` when it does not belong to us, or has joined by
/// itself.
fn greet(path: &std::path::Path, session: &str, segment: &Segment) -> Option<Greeted> {
    let mut attempt = 0;
    let client = loop {
        attempt += 1;
        match Client::connect(path) {
            Ok(client) => break client,
            Err(ClientError::Gone) if attempt < ATTEMPTS => thread::sleep(EVERY),
            Err(_) => return None,
        }
    };
    let ours = procfs::variable(client.pid, super::session::VARIABLE);
    if client.hello.sessions > 0 || ours.as_deref() != Some(session.as_ref()) {
        return None;
    }
    match client.attach(segment.fd()) {
        Ok(_) => Some(Ok(Joined { client, points: Vec::new() })),
        Err(error) => Some(Err((client.pid, error))),
    }
}
