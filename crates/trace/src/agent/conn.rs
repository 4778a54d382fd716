//! One connection: bytes in, bytes out, never blocking, bounded memory.
//!
//! | state | reads | meaning |
//! |---|---|---|
//! | `Magic` | yes | nothing believed yet |
//! | `Hello` | yes | the first frame must be a hello of our version |
//! | `Open` | while no reply is waiting to be taken | requests are answered one by one |
//! | `Closing` | no | the last reply is being taken, then the end |

use super::socket;
use crate::functions::Owner;
use crate::session::SessionId;
use owlet_wire::control::{MAGIC, Reply, Request};
use owlet_wire::frame;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Longest request; a thousand patterns fit.
const REQUEST_MAX: usize = 256 << 10;
/// Descriptors waiting for the request they came with.
const FDS_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Magic,
    Hello,
    Open,
    Closing,
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Perhaps there is a request.
    Alive,
    /// The peer is gone, or must be.
    Dead,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: UnixStream,
    pub(super) state: State,
    /// The session it attached: lives as long as the connection.
    pub(super) session: Option<SessionId>,
    pub(super) fds: Vec<OwnedFd>,
    /// Descriptors came that this process could not take.
    pub(super) cut: bool,
    /// There may be a request in what was read already.
    pub(super) more: bool,
    cookie: u64,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

/// The next request, as far as it is there.
#[derive(Debug)]
pub(super) enum Next {
    /// Not whole yet.
    Wait,
    Request(Request),
    /// Not ours, too long, or not decodable.
    Broken(String),
}

impl Conn {
    pub(super) fn new(stream: UnixStream, session: Option<SessionId>) -> Self {
        Self {
            cookie: socket::cookie(&stream),
            stream,
            state: State::Magic,
            session,
            fds: Vec::new(),
            cut: false,
            more: false,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// What no other connection has.
    pub(super) fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Whether the descriptor is still this connection.
    pub(super) fn is_ours(&self) -> bool {
        socket::cookie(&self.stream) == self.cookie
    }

    /// Who owns what is attached to functions over this connection: the session, once there is one.
    pub(super) fn owner(&self) -> Owner {
        self.session.map_or(Owner::Conn(self.cookie), Owner::Session)
    }

    /// Gives up the connection. A descriptor that is somebody else's by now is not closed.
    pub(super) fn end(self) {
        if !self.is_ours() {
            core::mem::forget(self.stream);
        }
    }

    /// Whether the peer has to take a reply first.
    pub(super) fn is_sending(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Reads what is there.
    pub(super) fn read(&mut self) -> Progress {
        let mut buf = [0; 4096];
        while self.input.len() < REQUEST_MAX + 8 {
            match socket::receive(&self.stream, &mut buf, &mut self.fds, &mut self.cut) {
                Ok(0) => return Progress::Dead,
                Ok(n) => self.input.extend_from_slice(buf.get(..n).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Progress::Dead,
            }
            self.fds.truncate(FDS_MAX);
        }
        Progress::Alive
    }

    /// Takes the next request from what was read.
    pub(super) fn next(&mut self) -> Next {
        if self.state == State::Magic {
            let Some(found) = self.input.first_chunk::<4>() else { return Next::Wait };
            if *found != MAGIC {
                return Next::Broken("not an owlet client".to_owned());
            }
            self.input.drain(..4);
            self.state = State::Hello;
        }
        let Some(len) = self.input.first_chunk::<4>() else { return Next::Wait };
        let len = u32::from_le_bytes(*len) as usize;
        if len > REQUEST_MAX {
            return Next::Broken(format!(
                "request of {len} bytes is over the limit of {REQUEST_MAX}"
            ));
        }
        let Some(whole) = self.input.get(..4 + len) else { return Next::Wait };
        let decoded = frame::read::<Request>(&mut &*whole, REQUEST_MAX as u32);
        self.input.drain(..4 + len);
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        match decoded {
            Ok(request) => Next::Request(request),
            Err(error) => Next::Broken(error.to_string()),
        }
    }

    /// Queues a reply and sends what can be sent now.
    pub(super) fn reply(&mut self, reply: &Reply) -> Progress {
        let too_long = || Reply::Error {
            message: "the answer is too long for one message".to_owned(),
            hint: "ask with a narrower pattern".to_owned(),
        };
        let bytes = frame::to_vec(reply).or_else(|| frame::to_vec(&too_long()));
        self.output.extend(bytes.unwrap_or_default());
        self.write()
    }

    /// Sends what can be sent now.
    pub(super) fn write(&mut self) -> Progress {
        while let Some(rest) = self.output.get(self.sent..)
            && !rest.is_empty()
        {
            // std sends with MSG_NOSIGNAL: a peer that is gone is an error, not a signal.
            match (&self.stream).write(rest) {
                Ok(0) => return Progress::Dead,
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Alive,
                Err(_) => return Progress::Dead,
            }
        }
        self.output = Vec::new();
        self.sent = 0;
        if self.state == State::Closing { Progress::Dead } else { Progress::Alive }
    }
}
