//! The agent's thread and its poll loop.
//!
//! The loop never blocks but in `poll` and, with the gate open, in a grace period. Sessions end with
//! the connection that attached them; sessions that were inherited (by `OWLET_SESSION` or by fork) are
//! reported to their recorder, and end with that connection. Where the recorder cannot be reached, the
//! session's own stop word is looked at once a second.
//!
//! Every [`LOOK`] the loop looks whether the socket's file is still there, and makes it anew if not:
//! one system call of this thread, none of the traced ones.

use super::conn::{Conn, Next, Progress, State};
use super::serve::{self, After};
use super::socket::{self, Listener};
use super::{InitError, exit};
use crate::control;
use crate::functions;
use crate::session::{self, SessionId};
use crate::sync::ForkMutex;
use owlet_wire::control::Reply;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections at once; more are turned away.
const CONNS: usize = 64;
/// Of the thread; lists of tracepoints are built on the heap.
const STACK: usize = 256 << 10;
/// Between two looks at stop words.
const TICK: Duration = Duration::from_secs(1);
/// Between two attempts to reach a recorder that is busy, or to accept without descriptors.
const RETRY: Duration = Duration::from_millis(50);
/// Between two looks whether the socket's file is still there. Who cleans up /tmp removes it, and
/// nobody could reach the process any more.
const LOOK: Duration = Duration::from_secs(5);

/// What the gate protects: the descriptors that a forked child has to close.
pub(super) struct Shared {
    /// With their cookies, see `socket::cookie`.
    fds: Vec<(RawFd, u64)>,
    running: bool,
    dir: PathBuf,
}

/// Held while the agent works; see `agent`.
pub(super) static GATE: ForkMutex<Shared> =
    ForkMutex::new(Shared { fds: Vec::new(), running: false, dir: PathBuf::new() });

impl Shared {
    fn opened(&mut self, fd: &impl AsRawFd) {
        self.fds.push((fd.as_raw_fd(), socket::cookie(fd)));
    }

    fn closing(&mut self, fd: &impl AsRawFd) {
        self.fds.retain(|(known, _)| *known != fd.as_raw_fd());
    }
}

/// Makes the socket and starts the thread.
pub(super) fn start() -> Result<(), InitError> {
    let dir = owlet_sys::runtime_dir::path();
    let mut shared = GATE.lock();
    shared.dir.clone_from(&dir);
    let listener = socket::listen(&dir)?;
    // Here and not in the thread: the program may exit before the thread runs.
    exit::set(&listener.path);
    shared.opened(&listener.socket);
    let path = listener.path.clone();
    shared.running = true;
    drop(shared);
    spawn(Some(listener)).map_err(|errno| {
        GATE.lock().running = false;
        let _ = std::fs::remove_file(path);
        InitError::Thread(errno)
    })
}

/// In a forked child: gives up what belongs to the parent's agent; whether there was one.
pub(super) fn abandon() -> bool {
    let mut shared = GATE.lock();
    for (fd, cookie) in shared.fds.drain(..) {
        // SAFETY: a number is looked at, and what it stands for is left alone unless it is ours.
        if socket::cookie(&unsafe { BorrowedFd::borrow_raw(fd) }) == cookie {
            // SAFETY: the descriptor is the child's copy of one of the parent's agent. The values
            // that own it are on the stack of a thread that does not exist here.
            unsafe { libc::close(fd) };
        }
    }
    shared.running
}

/// Starts the thread; without a listener it makes one itself.
pub(super) fn spawn(listener: Option<Listener>) -> Result<(), i32> {
    let argument = Box::into_raw(Box::new(listener));
    // SAFETY: the argument is a leaked box that the thread takes over.
    let started = unsafe { spawn_raw(argument.cast()) };
    started.inspect_err(|_| {
        // SAFETY: no thread was started, so the box is still ours.
        drop(unsafe { Box::from_raw(argument) });
    })
}

/// A detached thread with a small stack and every signal blocked from its first instruction.
///
/// # Safety
/// `argument` is what [`entry`] asks for.
unsafe fn spawn_raw(argument: *mut libc::c_void) -> Result<(), i32> {
    // SAFETY: zero is a valid value of all three; each is initialised by its own call below.
    let (mut attr, mut all, mut old): (libc::pthread_attr_t, libc::sigset_t, libc::sigset_t) =
        unsafe { core::mem::zeroed() };
    // SAFETY: `attr` is ours.
    unsafe { libc::pthread_attr_init(&raw mut attr) };
    // SAFETY: `attr` is initialised. A refused size leaves the default.
    unsafe { libc::pthread_attr_setstacksize(&raw mut attr, STACK) };
    // SAFETY: `attr` is initialised.
    unsafe { libc::pthread_attr_setdetachstate(&raw mut attr, libc::PTHREAD_CREATE_DETACHED) };
    // SAFETY: `all` is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: both sets are ours; a thread inherits the mask of its creator.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old) };
    let mut thread = core::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: `entry` takes over `argument`, as the caller promises it can; `thread` is room for an
    // answer that nobody reads.
    let errno =
        unsafe { libc::pthread_create(thread.as_mut_ptr(), &raw const attr, entry, argument) };
    // SAFETY: `old` was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut()) };
    // SAFETY: `attr` is initialised and not used after this.
    unsafe { libc::pthread_attr_destroy(&raw mut attr) };
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// The thread. `argument` is a leaked `Box<Option<Listener>>`.
extern "C" fn entry(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: `spawn` leaked it for us.
    let listener = *unsafe { Box::from_raw(argument.cast::<Option<Listener>>()) };
    // A fault of ours ends the agent and its sessions, not the program.
    let ended = std::panic::catch_unwind(|| {
        let _ = owlet_sys::process::set_thread_name("owlet-agent");
        if let Some(mut agent) = Agent::new(listener) {
            agent.run();
        }
    });
    if ended.is_err() {
        let _ = std::panic::catch_unwind(|| {
            session::remove_all();
            exit::unlink();
        });
    }
    core::ptr::null_mut()
}

/// An inherited session that is to be reported to its recorder.
struct Report {
    id: SessionId,
    path: PathBuf,
    at: Instant,
}

struct Agent {
    listener: Listener,
    conns: Vec<Conn>,
    reports: Vec<Report>,
    /// Sessions without a connection.
    orphans: Vec<SessionId>,
    accept_at: Option<Instant>,
    /// When the socket's file is looked for.
    look_at: Instant,
    /// A grace period is due before the replies in it are sent.
    synchronize: bool,
    replies: Vec<(RawFd, Reply)>,
}

impl Agent {
    fn new(listener: Option<Listener>) -> Option<Self> {
        let mut shared = GATE.lock();
        let listener = match listener {
            Some(listener) => listener,
            None => {
                let listener = socket::listen(&shared.dir).ok()?;
                exit::set(&listener.path);
                shared.opened(&listener.socket);
                listener
            }
        };
        socket::clean(&shared.dir);
        drop(shared);
        let mut agent = Self {
            listener,
            conns: Vec::new(),
            reports: Vec::new(),
            orphans: Vec::new(),
            accept_at: None,
            look_at: Instant::now() + LOOK,
            synchronize: false,
            replies: Vec::new(),
        };
        // In a forked child: those of its parent's connections.
        agent.synchronize = functions::end_inherited();
        for (id, path) in session::rendezvous() {
            if path.is_empty() {
                agent.orphans.push(id);
            } else {
                agent.reports.push(Report { id, path: path.into(), at: Instant::now() });
            }
        }
        Some(agent)
    }

    fn run(&mut self) {
        if core::mem::take(&mut self.synchronize) {
            let _ = control::synchronize();
        }
        loop {
            let ready = self.poll();
            let mut shared = GATE.lock();
            self.work(&mut shared, &ready);
            drop(shared);
            if core::mem::take(&mut self.synchronize) {
                // The gate is open: a probe that is being waited for may fork.
                let _ = control::synchronize();
                let mut shared = GATE.lock();
                self.send_replies(&mut shared);
            }
        }
    }

    /// Waits; what happened, the listener first, then the connections.
    fn poll(&self) -> Vec<libc::pollfd> {
        let entry = |fd: RawFd, events| libc::pollfd { fd, events, revents: 0 };
        // A negative descriptor is ignored.
        let listener = if self.accept_at.is_some() { -1 } else { self.listener.socket.as_raw_fd() };
        let mut fds = vec![entry(listener, libc::POLLIN)];
        fds.extend(self.conns.iter().map(|conn| {
            let events = if conn.is_sending() { libc::POLLOUT } else { libc::POLLIN };
            entry(conn.stream.as_raw_fd(), events)
        }));
        let timeout = match self.timeout() {
            Duration::ZERO => 0,
            // Rounded up: not to wake before it is time.
            wait => i32::try_from(wait.as_millis() + 1).unwrap_or(i32::MAX),
        };
        // SAFETY: `fds` is as long as said.
        let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        if n < 0 {
            fds.iter_mut().for_each(|fd| fd.revents = 0);
        }
        fds
    }

    fn timeout(&self) -> Duration {
        if self.conns.iter().any(|conn| conn.more && !conn.is_sending()) {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let mut wait = self.look_at.saturating_duration_since(now);
        if !self.orphans.is_empty() {
            wait = wait.min(TICK);
        }
        for at in self.reports.iter().map(|report| report.at).chain(self.accept_at) {
            wait = wait.min(at.saturating_duration_since(now));
        }
        wait
    }

    fn work(&mut self, shared: &mut Shared, ready: &[libc::pollfd]) {
        let (listener, conns) = match ready.split_first() {
            Some((listener, conns)) => (listener.revents, conns),
            None => (0, ready),
        };
        // Downwards, so that removing one does not move those still to come.
        for (at, poll) in conns.iter().enumerate().rev() {
            let Some(conn) = self.conns.get_mut(at) else { continue };
            let more = !conn.is_sending() && core::mem::take(&mut conn.more);
            let mut progress = Progress::Alive;
            if poll.revents != 0 && !conn.is_ours() {
                progress = Progress::Dead;
            } else if poll.revents & (libc::POLLOUT | libc::POLLERR) != 0 && conn.is_sending() {
                progress = conn.write();
            } else if poll.revents != 0 {
                progress = if conn.is_sending() { Progress::Dead } else { conn.read() };
            }
            if poll.revents != 0 || more {
                self.request(shared, at, progress);
            }
        }
        self.accept_at = self.accept_at.filter(|at| *at > Instant::now());
        if listener != 0 {
            if self.listener.is_ours() {
                self.accept(shared);
            } else {
                self.listen_again(shared);
            }
        }
        if Instant::now() >= self.look_at {
            self.look_at = Instant::now() + LOOK;
            self.look_at_file(shared);
        }
        self.report(shared);
        self.look_at_orphans();
    }

    /// Answers one request of connection `at`, and closes it if it is over. One, so that a client that
    /// sends thousands does not keep the others waiting.
    fn request(&mut self, shared: &mut Shared, at: usize, mut progress: Progress) {
        let Some(conn) = self.conns.get_mut(at) else { return };
        if progress == Progress::Alive && !conn.is_sending() && conn.state != State::Closing {
            match conn.next() {
                Next::Wait => return,
                Next::Broken(why) => {
                    conn.state = State::Closing;
                    progress = conn.reply(&serve::error(why, ""));
                }
                Next::Request(request) => {
                    conn.more = true;
                    match serve::serve(conn, request) {
                        After::Reply(reply) => progress = conn.reply(&reply),
                        After::Synchronize(reply) => {
                            self.replies.push((conn.stream.as_raw_fd(), reply));
                            self.synchronize = true;
                        }
                    }
                }
            }
        }
        if progress == Progress::Dead {
            self.close(shared, at);
        }
    }

    fn send_replies(&mut self, shared: &mut Shared) {
        for (fd, reply) in core::mem::take(&mut self.replies) {
            let Some(at) = self.conns.iter().position(|c| c.stream.as_raw_fd() == fd) else {
                continue;
            };
            if self.conns.get_mut(at).is_some_and(|c| c.reply(&reply) == Progress::Dead) {
                self.close(shared, at);
            }
        }
    }

    fn close(&mut self, shared: &mut Shared, at: usize) {
        let conn = self.conns.swap_remove(at);
        shared.closing(&conn.stream);
        if let Some(id) = conn.session
            && session::remove(id)
        {
            self.synchronize = true;
        }
        self.synchronize |= functions::end_conn(conn.cookie());
        conn.end();
    }

    /// The program has closed the listening socket's descriptor: makes another one.
    fn listen_again(&mut self, shared: &mut Shared) {
        shared.closing(&self.listener.socket);
        let _ = std::fs::remove_file(&self.listener.path);
        let Ok(listener) = socket::listen(&shared.dir) else {
            self.accept_at = Some(Instant::now() + TICK);
            return;
        };
        shared.opened(&listener.socket);
        exit::set(&listener.path);
        // What the old number stands for now is not ours to close.
        core::mem::forget(core::mem::replace(&mut self.listener, listener));
    }

    /// Makes the socket anew, under the same name, when its file is gone. Connections stay.
    fn look_at_file(&mut self, shared: &mut Shared) {
        let listener = exit::if_gone(|| socket::listen_anew(&self.listener));
        let Some(listener) = listener else { return };
        if self.listener.is_ours() {
            // Who came before the file went.
            self.accept(shared);
        }
        shared.closing(&self.listener.socket);
        shared.opened(&listener.socket);
        let old = core::mem::replace(&mut self.listener, listener);
        if !old.is_ours() {
            // The program has closed it; what the number stands for now is not ours to close.
            core::mem::forget(old);
        }
    }

    fn accept(&mut self, shared: &mut Shared) {
        loop {
            match self.listener.socket.accept() {
                Ok((stream, _)) => {
                    let full = self.conns.len() >= CONNS;
                    if full || !socket::is_allowed(&stream) || stream.set_nonblocking(true).is_err()
                    {
                        continue;
                    }
                    shared.opened(&stream);
                    self.conns.push(Conn::new(stream, None));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptor left: not to spin, the listener is not looked at for a while.
                Err(_) => {
                    self.accept_at = Some(Instant::now() + RETRY);
                    return;
                }
            }
        }
    }

    /// Tries to reach the recorders of inherited sessions.
    fn report(&mut self, shared: &mut Shared) {
        let now = Instant::now();
        for mut report in core::mem::take(&mut self.reports) {
            if report.at > now {
                self.reports.push(report);
                continue;
            }
            match reach(&report.path) {
                Reached::Yes(stream) => {
                    shared.opened(&stream);
                    self.conns.push(Conn::new(stream, Some(report.id)));
                }
                Reached::Busy => {
                    report.at = now + RETRY;
                    self.reports.push(report);
                }
                Reached::Gone => self.synchronize |= session::remove(report.id),
                Reached::Hidden => self.orphans.push(report.id),
            }
        }
    }

    fn look_at_orphans(&mut self) {
        if self.orphans.is_empty() {
            return;
        }
        for id in session::stopped() {
            if let Some(at) = self.orphans.iter().position(|orphan| *orphan == id) {
                self.orphans.swap_remove(at);
                self.synchronize |= session::remove(id);
            }
        }
    }
}

enum Reached {
    Yes(std::os::unix::net::UnixStream),
    /// Somebody is there, and has no room at the moment.
    Busy,
    /// Nobody listens any more.
    Gone,
    /// There may be a recorder, in another mount namespace or under another user.
    Hidden,
}

fn reach(path: &Path) -> Reached {
    match socket::connect(path) {
        Ok(stream) if socket::is_allowed(&stream) => Reached::Yes(stream),
        Ok(_) => Reached::Hidden,
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Reached::Busy,
            io::ErrorKind::ConnectionRefused => Reached::Gone,
            _ => Reached::Hidden,
        },
    }
}
