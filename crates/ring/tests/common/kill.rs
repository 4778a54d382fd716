//! L8: writer processes on shared rings, killed at random instants while they write flat out.
//!
//! One consumer checks every record: length, body, order per writer, time order per ring. At the
//! end nobody may be wedged: each ring takes an event again.

use super::{Numbers, segment};
use owlet_ring::{Clock, Drained, Reader, RingReader, Writer};
use owlet_sys::process;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) writers: usize,
    pub(crate) time: Duration,
    /// Between kills.
    pub(crate) every: Duration,
    pub(crate) clock: Clock,
    pub(crate) seed: u64,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) started: u64,
    pub(crate) killed: u64,
    pub(crate) records: u64,
    pub(crate) lost: u64,
    pub(crate) bad: u64,
    pub(crate) corrupt: u64,
    /// Rings that took no event at the end.
    pub(crate) wedged: usize,
}

impl Report {
    pub(crate) fn verdict(&self) -> Result<(), String> {
        if self.bad > 0 || self.corrupt > 0 {
            return Err(format!("{} bad records, {} corrupt bytes", self.bad, self.corrupt));
        }
        if self.wedged > 0 {
            return Err(format!("{} rings wedged", self.wedged));
        }
        if self.records == 0 || self.killed == 0 {
            return Err("nothing happened".into());
        }
        Ok(())
    }
}

/// Payload: writer u64, number u64, then `number % 90` bytes that follow from both.
fn body(writer: u64, number: u64, buffer: &mut [u8; 128]) -> usize {
    buffer[..8].copy_from_slice(&writer.to_le_bytes());
    buffer[8..16].copy_from_slice(&number.to_le_bytes());
    let len = 16 + (number % 90) as usize;
    for (at, byte) in buffer[16..len].iter_mut().enumerate() {
        *byte = (writer.wrapping_mul(31) ^ number.wrapping_mul(7)) as u8 ^ at as u8;
    }
    len
}

pub(crate) fn run(options: &Options) -> Report {
    let segment = segment(1 << 18, options.clock, 2000);
    let writer = Writer::new(Arc::clone(&segment)).expect("a writer");
    let mut report = Report::default();
    let mut numbers = Numbers::new(options.seed);
    let mut consumer = Consumer::new(&Reader::new(Arc::clone(&segment)));
    let mut children: Vec<libc::pid_t> = Vec::new();
    let (start, mut next) = (Instant::now(), Instant::now());
    while start.elapsed() < options.time {
        while children.len() < options.writers {
            report.started += 1;
            children.push(start_writer(&writer, report.started));
        }
        consumer.drain(&mut report);
        if next.elapsed() > options.every {
            let victim = numbers.below(children.len() as u64) as usize;
            kill(children.swap_remove(victim));
            report.killed += 1;
            next = Instant::now();
        }
    }
    children.into_iter().for_each(kill);
    let ended = Instant::now();
    report.wedged = usize::MAX;
    while report.wedged > 0 && ended.elapsed() < Duration::from_secs(120) {
        consumer.drain(&mut report);
        report.wedged = wedged(&writer, segment.cpus());
    }
    consumer.drain(&mut report);
    report
}

fn start_writer(writer: &Writer, name: u64) -> libc::pid_t {
    // SAFETY: the child makes system calls, pushes and does nothing else: no lock, no allocation.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork works");
    if child > 0 {
        return child;
    }
    let (pid, tid) = (process::getpid(), process::gettid());
    let mut buffer = [0; 128];
    let mut number = 0;
    loop {
        let len = body(name, number, &mut buffer);
        let (front, rest) = buffer[..len].split_at(8);
        let pushed = if number % 3 == 0 {
            writer.push(7, pid, tid, &[front, rest])
        } else {
            writer.push(7, pid, tid, &[&buffer[..len]])
        };
        number += u64::from(pushed.is_ok());
    }
}

fn kill(child: libc::pid_t) {
    // SAFETY: a child of ours that has not been waited for, so the number is still its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: as above; the status is not asked for.
    unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
}

/// How many CPUs cannot push: tries on each.
fn wedged(writer: &Writer, cpus: usize) -> usize {
    let (pid, tid) = (process::getpid(), process::gettid());
    let free = std::thread::scope(|scope| {
        let tries = (0..cpus).map(|cpu| {
            scope.spawn(move || {
                let _ = process::set_affinity(&[cpu]);
                let mut buffer = [0; 128];
                let len = body(0, 0, &mut buffer);
                writer.push(7, pid, tid, &[&buffer[..len]]).is_ok()
            })
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().filter_map(|one| one.join().ok()).filter(|&pushed| pushed).count()
    });
    cpus - free
}

struct Consumer {
    rings: Vec<Ring>,
}

struct Ring {
    reader: RingReader,
    /// Next number expected at least, by writer.
    next: HashMap<u64, u64>,
    time: u64,
    last: Drained,
}

impl Consumer {
    fn new(reader: &Reader) -> Self {
        let rings = (0..reader.rings()).filter_map(|index| reader.ring(index));
        let rings = rings.map(|reader| Ring {
            reader,
            next: HashMap::new(),
            time: 0,
            last: Drained::default(),
        });
        Self { rings: rings.collect() }
    }

    fn drain(&mut self, report: &mut Report) {
        let mut out = Vec::new();
        for ring in &mut self.rings {
            out.clear();
            ring.last = ring.reader.drain(&mut out);
            report.records += ring.last.events;
            report.bad += ring.check(&out);
        }
        let lost = self.rings.iter().map(|ring| ring.last.lost.iter().sum::<u64>());
        report.lost = lost.sum();
        report.corrupt = self.rings.iter().map(|ring| ring.last.corrupt).sum();
    }
}

impl Ring {
    /// Number of bad records among `bytes`.
    fn check(&mut self, mut bytes: &[u8]) -> u64 {
        let mut bad = 0;
        let mut buffer = [0; 128];
        while let Some(header) = bytes.first_chunk::<24>() {
            let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8"));
            let (time, len) = (word(0), (word(8) >> 32) as usize);
            let record = &bytes[24..len];
            let field = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8"));
            let good = record.len() >= 16 && {
                let (writer, number) = (field(0), field(8));
                let want = body(writer, number, &mut buffer);
                let next = self.next.entry(writer).or_insert(0);
                let in_order = number >= *next || writer == 0;
                *next = number + 1;
                in_order && record == &buffer[..want] && word(8) as u32 == 7
            };
            bad += u64::from(!good || time < self.time);
            self.time = time;
            bytes = &bytes[len.next_multiple_of(8)..];
        }
        bad
    }
}
