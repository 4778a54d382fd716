//! A recorder in a few lines: segment, socket client, draining and decoding.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test uses a part of it"
)]

use owlet_ring::{Clock, LogCursor, Reader, RingReader, Segment, SegmentOptions};
use owlet_wire::config::{Rule, SessionConfig};
use owlet_wire::control::{Hello, MAGIC, Reply, Request, TracepointInfo};
use owlet_wire::entry::{self, Entry, Process, Thread};
use owlet_wire::record::{RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{Level, Schema};
use owlet_wire::value::{self, Value};
use owlet_wire::{WIRE_VERSION, frame};
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One decoded event.
#[derive(Clone, Debug)]
pub struct Event {
    pub header: RecordHeader,
    pub name: String,
    /// Fields, rendered with `Debug`.
    pub values: Vec<(String, String)>,
}

impl Event {
    pub fn value(&self, field: &str) -> &str {
        &self.values.iter().find(|(name, _)| name == field).expect("no such field").1
    }

    pub fn number(&self, field: &str) -> u64 {
        let text = self.value(field);
        text.trim_start_matches("U64(").trim_end_matches(')').parse().expect("no number")
    }
}

/// What a session holds, as far as it was drained.
pub struct Recorder {
    pub segment: Arc<Segment>,
    rings: Vec<RingReader>,
    cursor: LogCursor,
    pub schemas: HashMap<u32, Schema>,
    pub threads: Vec<Thread>,
    pub processes: Vec<Process>,
    pub events: Vec<Event>,
    pub lost: Vec<u64>,
    pub corrupt: u64,
}

/// How a session is to be.
pub struct Wanted {
    pub rules: Vec<(&'static str, bool)>,
    pub level: Level,
    pub filter: &'static str,
    pub rendezvous: String,
    pub ring_bytes: usize,
    /// What the configuration says it is written in.
    pub wire_version: u32,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            rules: vec![("*", true)],
            level: Level::Trace,
            filter: "",
            rendezvous: String::new(),
            ring_bytes: 1 << 20,
            wire_version: WIRE_VERSION,
        }
    }
}

pub fn rules(rules: &[(&str, bool)]) -> Vec<Rule> {
    rules.iter().map(|(p, enable)| Rule { pattern: (*p).to_owned(), enable: *enable }).collect()
}

fn clock() -> Clock {
    if owlet_sys::clock::tsc_usable().usable { Clock::Tsc } else { Clock::Monotonic }
}

impl Recorder {
    pub fn new(wanted: &Wanted) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let config = SessionConfig {
            session: std::hash::RandomState::new().build_hasher().finish(),
            rules: rules(&wanted.rules),
            level: wanted.level,
            filter: wanted.filter.to_owned(),
            rendezvous: wanted.rendezvous.clone(),
            recorder_pid: std::process::id(),
        };
        let mut config = config.encode();
        config[..4].copy_from_slice(&wanted.wire_version.to_le_bytes());
        let options = SegmentOptions {
            ring_bytes: wanted.ring_bytes,
            cpus: owlet_percpu::cpus(),
            clock: clock(),
            log_bytes: 1 << 20,
            config,
            deferral_us: 2000,
        };
        let segment = Arc::new(Segment::create(&options).expect("no segment"));
        let reader = Reader::new(Arc::clone(&segment));
        Self {
            rings: (0..reader.rings()).filter_map(|i| reader.ring(i)).collect(),
            cursor: LogCursor::default(),
            segment,
            schemas: HashMap::new(),
            threads: Vec::new(),
            processes: Vec::new(),
            events: Vec::new(),
            lost: Vec::new(),
            corrupt: 0,
        }
    }

    pub fn fd(&self) -> OwnedFd {
        self.segment.fd().try_clone_to_owned().expect("dup")
    }

    /// Reads everything there is; returns how many events that were.
    pub fn drain(&mut self) -> usize {
        let mut raw = Vec::new();
        let mut lost: Vec<u64> = Vec::new();
        let mut corrupt = 0;
        for ring in &mut self.rings {
            let drained = ring.drain(&mut raw);
            lost.resize(drained.lost.len(), 0);
            for (sum, n) in lost.iter_mut().zip(drained.lost) {
                *sum += n;
            }
            corrupt += drained.corrupt;
        }
        self.lost = lost;
        self.corrupt = corrupt;
        // After the rings: the schema of an event is in the log before the event is in a ring.
        while let Some(bytes) = self.segment.log_read(&mut self.cursor) {
            match entry::decode(&bytes).expect("log entry does not decode") {
                Entry::Schema(id, schema) => drop(self.schemas.insert(id, schema)),
                Entry::Thread(thread) => self.threads.push(thread),
                Entry::Process(process) => self.processes.push(process),
            }
        }
        let before = self.events.len();
        let mut rest = raw.as_slice();
        while let Some(header) = RecordHeader::read(rest) {
            let payload = &rest[RECORD_HEADER_LEN..header.len as usize];
            self.events.push(decode(&self.schemas, header, payload));
            rest = &rest[header.advance().min(rest.len())..];
        }
        assert!(rest.is_empty());
        self.events.len() - before
    }

    pub fn total_lost(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Drains until `done` or the time is over; whether it was done.
    pub fn drain_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + limit;
        loop {
            self.drain();
            if done(self) {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn named(&self, name: &str) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.name == name)
    }
}

fn decode<'a>(
    schemas: &'a HashMap<u32, Schema>,
    header: RecordHeader,
    mut payload: &'a [u8],
) -> Event {
    let schema = schemas.get(&header.id).expect("event without a schema");
    let values = schema.fields.iter().map(|field| {
        let value: Value<'_> = value::take(&field.ty, &mut payload).expect("field does not decode");
        let text = match &value {
            Value::Str(text) => String::from_utf8_lossy(text).into_owned(),
            other => format!("{other:?}"),
        };
        (field.name.clone(), text)
    });
    let values = values.collect();
    assert!(payload.is_empty(), "bytes left over in {}", schema.name);
    Event { header, name: schema.name.clone(), values }
}

/// A connection to an agent that has shaken hands.
pub struct Client {
    pub stream: UnixStream,
    pub hello: Hello,
}

/// How long something is given to happen that must: a watchdog's patience, which says nothing about how
/// long it takes.
pub const LATE: Duration = Duration::from_secs(120);

/// The socket of the agent of `pid`, waited for.
pub fn socket_of(pid: u32, limit: Duration) -> Option<PathBuf> {
    let until = Instant::now() + limit;
    loop {
        let found =
            owlet_sys::runtime_dir::list(&owlet_sys::runtime_dir::path()).unwrap_or_default();
        let own = owlet_sys::process::pid_namespace().unwrap_or(0);
        let found = found.into_iter().find(|(name, path)| {
            name.pid == pid
                && name.pid_ns == own
                && !name.is_stale()
                && UnixStream::connect(path).is_ok()
        });
        if let Some((_, path)) = found {
            return Some(path);
        }
        if Instant::now() > until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Client {
    pub fn connect(pid: u32) -> Self {
        let path = socket_of(pid, LATE).expect("no agent");
        Self::greet(UnixStream::connect(path).expect("connect"))
    }

    pub fn greet(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(LATE)).expect("timeout");
        (&stream).write_all(&MAGIC).expect("magic");
        frame::write(&mut &stream, &Request::Hello { wire_version: WIRE_VERSION }).expect("hello");
        match frame::read(&mut &stream, u32::MAX).expect("no hello") {
            Reply::Hello(hello) => Self { stream, hello },
            other => panic!("{other:?}"),
        }
    }

    pub fn ask(&self, request: &Request) -> Reply {
        frame::write(&mut &self.stream, request).expect("write");
        frame::read(&mut &self.stream, u32::MAX).expect("no reply")
    }

    pub fn list(&self, pattern: &str) -> Vec<TracepointInfo> {
        match self.ask(&Request::List { pattern: pattern.to_owned() }) {
            Reply::Tracepoints(points) => points,
            other => panic!("{other:?}"),
        }
    }

    pub fn attach(&self, recorder: &Recorder) -> Reply {
        let bytes = frame::to_vec(&Request::Attach).expect("encode");
        send_with_fd(&self.stream, &bytes, recorder.segment.fd().as_raw_fd());
        frame::read(&mut &self.stream, u32::MAX).expect("no reply")
    }

    pub fn control(&self, wanted: &[(&str, bool)]) -> Reply {
        self.ask(&Request::Control { rules: rules(wanted) })
    }
}

pub fn send_with_fd(stream: &UnixStream, bytes: &[u8], fd: i32) {
    let mut space = [0u64; 4];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zero is a valid value of every field.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    // SAFETY: computes a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    // SAFETY: the control buffer has room for one header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: `header` lies in `space`.
    let header = unsafe { &mut *header };
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: computes a number.
    header.cmsg_len = unsafe { libc::CMSG_LEN(4) } as _;
    // SAFETY: the data lies behind the header, in `space`.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: as above.
    unsafe { data.cast::<i32>().write_unaligned(fd) };
    // SAFETY: `message` describes `bytes` and `space`.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    assert_eq!(sent, bytes.len() as isize);
}

/// Matched counts of a reply: (matched, enabled, known, sessions).
pub fn matched(reply: &Reply) -> (u32, u32, u32, u32) {
    match reply {
        Reply::Matched { matched, enabled, known, sessions } => {
            (*matched, *enabled, *known, *sessions)
        }
        other => panic!("{other:?}"),
    }
}

/// Open descriptors and mappings of this process.
pub fn resources() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").expect("fds").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    (fds, maps.lines().filter(|line| line.contains("memfd:")).count())
}
