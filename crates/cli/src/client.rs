//! One connection to an agent: handshake, requests, replies, each answered within [`PATIENCE`] or
//! given up. Whatever the other side sends is checked; nothing it does can hang the command.

use owlet_wire::control::{FRAME_MAX, Hello, Reply, Request};
use owlet_wire::frame::{self, FrameError};
use owlet_wire::functions::{Attach, FunctionInfo, Standing};
use owlet_wire::{WIRE_VERSION, config::Rule, control::TracepointInfo};
use rustix::net;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an agent may take to answer. A stopped process never answers.
pub(crate) const PATIENCE: Duration = Duration::from_millis(800);

/// Why a conversation failed.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// Nobody listens on the socket any more.
    Gone,
    /// Somebody listens, and hung up without a word.
    TurnedAway,
    /// No answer in time: the process is stopped, or its agent thread is.
    Silent,
    /// The agent speaks another version of the protocol.
    Version {
        /// What it says, if it said so.
        theirs: Option<u32>,
    },
    /// The agent refused the request.
    Refused { message: String, hint: String },
    /// The peer sent something that is no reply.
    Garbage(String),
    /// The socket failed.
    Io(io::Error),
}

/// What a `Matched` reply says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matched {
    pub(crate) matched: u32,
    pub(crate) enabled: u32,
    pub(crate) known: u32,
    pub(crate) sessions: u32,
}

/// A connection that has shaken hands.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    /// An answer did not come in time: what comes later belongs to another question.
    given_up: AtomicBool,
    /// The process as seen from here, whatever it thinks its own pid is.
    pub(crate) pid: u32,
    /// What the agent says of itself.
    pub(crate) hello: Hello,
}

impl Client {
    /// Connects to an agent's socket and shakes hands.
    pub(crate) fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::greet(connect_within(path, PATIENCE)?).map_err(|error| match error {
            ClientError::Gone => ClientError::TurnedAway,
            other => other,
        })
    }

    /// Shakes hands over a connection that the agent opened.
    pub(crate) fn greet(stream: UnixStream) -> Result<Self, ClientError> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let pid = peer(&stream)?;
        frame::write_magic(&mut &stream)?;
        frame::write(&mut &stream, &Request::Hello { wire_version: WIRE_VERSION })?;
        match receive(&stream)? {
            Reply::Hello(hello) if hello.wire_version == WIRE_VERSION => {
                Ok(Self { stream, given_up: AtomicBool::new(false), pid, hello })
            }
            Reply::Hello(hello) => Err(ClientError::Version { theirs: Some(hello.wire_version) }),
            Reply::Error { message, hint } => Err(ClientError::Refused { message, hint }),
            other => Err(unexpected(&other)),
        }
    }

    /// All trace points whose name matches.
    pub(crate) fn list(&self, pattern: &str) -> Result<Vec<TracepointInfo>, ClientError> {
        match self.ask(&Request::List { pattern: pattern.into() })? {
            Reply::Tracepoints(points) => Ok(points),
            other => Err(unexpected(&other)),
        }
    }

    /// Attaches a session by its segment; the session lasts as long as this connection.
    pub(crate) fn attach(&self, segment: BorrowedFd<'_>) -> Result<Matched, ClientError> {
        let bytes = frame::to_vec(&Request::Attach)
            .ok_or_else(|| ClientError::Garbage("request does not encode".into()))?;
        matched(self.exchange(|| {
            let sent = send_with_fd(&self.stream, &bytes, segment)?;
            io::Write::write_all(&mut &self.stream, &bytes[sent..])
        })?)
    }

    /// Switches patterns on or off.
    pub(crate) fn control(&self, rules: Vec<Rule>) -> Result<Matched, ClientError> {
        matched(self.ask(&Request::Control { rules })?)
    }

    /// Ends the session of this connection.
    pub(crate) fn detach(&self) -> Result<(), ClientError> {
        match self.ask(&Request::Detach)? {
            Reply::Detached => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// All traced functions whose name matches.
    pub(crate) fn functions(&self, pattern: &str) -> Result<Vec<FunctionInfo>, ClientError> {
        match self.ask(&Request::Functions { pattern: pattern.into() })? {
            Reply::Functions(functions) => Ok(functions),
            other => Err(unexpected(&other)),
        }
    }

    /// Attaches to functions; how many there are. Lasts as long as this connection.
    pub(crate) fn attach_functions(&self, wanted: Attach) -> Result<u32, ClientError> {
        match self.ask(&Request::AttachFunctions(wanted))? {
            Reply::FunctionsMatched { matched, .. } => Ok(matched),
            other => Err(unexpected(&other)),
        }
    }

    /// Detaches what this connection attached, and waits until nothing of it runs: the counts are final.
    pub(crate) fn detach_own_functions(&self) -> Result<(), ClientError> {
        match self.ask(&Request::DetachFunctions { pattern: "*".into(), own: true })? {
            Reply::FunctionsMatched { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes functions away from whoever attached to them: how many match, and how often one was
    /// attached to.
    pub(crate) fn detach_functions(&self, pattern: &str) -> Result<(u32, u32), ClientError> {
        match self.ask(&Request::DetachFunctions { pattern: pattern.into(), own: false })? {
            Reply::FunctionsMatched { matched, links } => Ok((matched, links)),
            other => Err(unexpected(&other)),
        }
    }

    /// How what this connection attached stands.
    pub(crate) fn standing(&self, maps: bool) -> Result<Standing, ClientError> {
        match self.ask(&Request::Standing { maps })? {
            Reply::Standing(standing) => Ok(standing),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the peer has hung up. Unsolicited bytes count as hanging up: an agent never sends any.
    pub(crate) fn closed(&self) -> bool {
        let mut byte = [0];
        match net::recv(&self.stream, &mut byte, net::RecvFlags::DONTWAIT | net::RecvFlags::PEEK) {
            Ok((_, _)) => true,
            Err(error) => error != rustix::io::Errno::AGAIN && error != rustix::io::Errno::INTR,
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, ClientError> {
        self.exchange(|| frame::write(&mut &self.stream, request))
    }

    /// Sends and receives; after a timeout the connection is good for nothing but being closed.
    fn exchange(&self, send: impl FnOnce() -> io::Result<()>) -> Result<Reply, ClientError> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(ClientError::Silent);
        }
        let answer = send().map_err(ClientError::from).and_then(|()| receive(&self.stream));
        self.given_up.store(matches!(answer, Err(ClientError::Silent)), Ordering::Relaxed);
        answer
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The process at the other end, as seen from here.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<u32> {
    let credentials = net::sockopt::socket_peercred(stream)?;
    Ok(credentials.pid.as_raw_nonzero().get().unsigned_abs())
}

fn matched(reply: Reply) -> Result<Matched, ClientError> {
    match reply {
        Reply::Matched { matched, enabled, known, sessions } => {
            Ok(Matched { matched, enabled, known, sessions })
        }
        other => Err(unexpected(&other)),
    }
}

fn unexpected(reply: &Reply) -> ClientError {
    match reply {
        Reply::Error { message, hint } => {
            ClientError::Refused { message: message.clone(), hint: hint.clone() }
        }
        _ => ClientError::Garbage("the agent answered another question".into()),
    }
}

fn receive(stream: &UnixStream) -> Result<Reply, ClientError> {
    let mut input = Within { stream, deadline: Instant::now() + PATIENCE };
    match frame::read(&mut input, FRAME_MAX) {
        Ok(reply) => Ok(reply),
        Err(FrameError::Io(error)) => Err(error.into()),
        Err(FrameError::Closed | FrameError::Truncated) => Err(ClientError::Gone),
        // Another version's reply is the likeliest thing that does not decode.
        Err(FrameError::Malformed) => Err(ClientError::Version { theirs: None }),
        Err(error) => Err(ClientError::Garbage(error.to_string())),
    }
}

/// Reads with one deadline for the whole message, however it trickles in.
struct Within<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl io::Read for Within<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        io::Read::read(&mut &*self.stream, buf)
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as K;
        match error.kind() {
            K::WouldBlock | K::TimedOut => Self::Silent,
            K::ConnectionRefused | K::NotFound | K::ConnectionReset | K::BrokenPipe => Self::Gone,
            _ => Self::Io(error),
        }
    }
}

/// `connect`, which otherwise blocks for ever when the listener's backlog is full and its process
/// stopped.
fn connect_within(path: &Path, patience: Duration) -> Result<UnixStream, ClientError> {
    use net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
    let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
    // For Unix sockets the send timeout bounds connect too (unix(7), net/unix/af_unix.c).
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))
        .map_err(io::Error::from)?;
    net::connect(&socket, &address).map_err(io::Error::from)?;
    Ok(UnixStream::from(socket))
}

fn send_with_fd(stream: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    if !control.push(net::SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let flags = net::SendFlags::NOSIGNAL;
    Ok(net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
