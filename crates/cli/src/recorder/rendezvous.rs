//! Where processes that inherited the session announce themselves. They record from their first
//! instruction without waiting for us; the connection only lets us reach them.

use crate::client::{self, Client, ClientError};
use crate::error::{Failure, Result, reason};
use crate::procfs::Process;
use crate::sockets;
use owlet_wire::control::TracepointInfo;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// A process, or the pid of one that would not shake hands.
pub(crate) type Greeted = std::result::Result<Joined, (u32, ClientError)>;

/// A process that has shaken hands.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) client: Client,
    /// Its trace points, if they were asked for and it answered.
    pub(crate) points: Vec<TracepointInfo>,
}

/// A listening socket, removed when dropped.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    listener: UnixListener,
    pub(crate) path: PathBuf,
    greeted: (Sender<Greeted>, Receiver<Greeted>),
    /// Whether newcomers are asked for their trace points.
    pub(crate) ask: bool,
    /// Somebody could not be taken.
    refused: bool,
}

impl Rendezvous {
    /// Listens in the socket directory, under a name that is no agent's.
    pub(crate) fn new(ask: bool) -> Result<Self> {
        let dir = sockets::make_own_dir()?;
        sweep(&dir);
        let path = dir.join(format!("recorder-{}.sock", std::process::id()));
        // A dead recorder with our pid may have left it.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| Failure::at("cannot listen at", &path, reason(&error)))?;
        Ok(Self { listener, path, greeted: channel(), ask, refused: false })
    }

    /// What to poll for.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.listener, PollFlags::IN)
    }

    /// Takes what has come; shakes hands aside, so that a slow process delays no draining. True the
    /// first time that somebody cannot be taken, for want of descriptors.
    pub(crate) fn accept(&mut self) -> bool {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    // No descriptor left, most likely. The caller must not spin on it.
                    thread::sleep(Duration::from_millis(10));
                    return !std::mem::replace(&mut self.refused, true);
                }
            };
            let done = self.greeted.0.clone();
            let ask = self.ask;
            let greet = move || {
                let pid = client::peer(&stream).unwrap_or(0);
                let joined = Client::greet(stream).map(|client| Joined {
                    points: if ask { client.list("*").unwrap_or_default() } else { Vec::new() },
                    client,
                });
                // Nobody receives any more once the recording is over.
                let _ = done.send(joined.map_err(|error| (pid, error)));
            };
            // Without a thread the process stays recorded, only out of reach.
            let _ = thread::Builder::new().name("owlet-greet".into()).spawn(greet);
        }
    }

    /// Processes that have shaken hands since the last call.
    pub(crate) fn joined(&self) -> impl Iterator<Item = Greeted> + '_ {
        self.greeted.1.try_iter()
    }
}

/// Removes the sockets of recorders that were killed. Whether one listens decides, not the pid alone:
/// it may be of another PID namespace, or somebody else's by now.
fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix("recorder-")?.strip_suffix(".sock")?.parse::<u32>().ok()
        });
        // One that lives is not disturbed; it may be about to listen.
        if pid.is_some_and(|pid| !recorder_lives(pid))
            && matches!(UnixStream::connect(entry.path()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether `pid` runs the same program as we do.
fn recorder_lives(pid: u32) -> bool {
    let comm = |pid| Process::read(pid).map(|process| process.comm);
    comm(pid).is_some_and(|theirs| Some(theirs) == comm(std::process::id()))
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
