//! From hits to the records of a trace.
//!
//! | hit | records |
//! |---|---|
//! | entry | an event of the site's name, with `arg0` to `arg5`: what the argument registers held |
//! | return | an event `NAME%return`, with `ret`: what the result register held |
//! | both, for [`Moments::Latency`] | a span: created and entered, then left and closed with its duration |
//! | USDT | an event with its arguments, as wide and as signed as the probe says |
//!
//! What the registers hold is an argument only if the function has one there: the kernel knows no types.
//! A USDT argument in memory that could not be read (its page was not there) is `none`.
//!
//! # Which return belongs to which entry
//! The stack pointer tells: on x86-64 it is 8 above that of the entry when a call returns. Frames of one
//! thread lie on a stack. An entry or return above a frame means that the frame is gone without a return
//! (an exception, `longjmp`, or its return was lost): the kernel forgets it by the same rule
//! (`cleanup_return_instances` in `kernel/events/uprobes.c`). So neither losses nor unwinding ever pair an
//! entry with another call's return.

use crate::attach::Moments;
use crate::hit::Hit;
use crate::program::ARGS;
use crate::sites::{Of, Site};
use crate::usdt::{Argument, Place};
use owlet_wire::record::{RECORD_ALIGN, RECORD_HEADER_LEN, RecordHeader};
use owlet_wire::schema::{Field, Kind, Level, MAX_NAME, Scalar, Schema, Type};
use std::collections::HashMap;

/// Event ids of one site.
const IDS: u32 = 4;
/// A return finds the stack pointer this much above the entry's: the return address is gone.
const RETURN_ADDRESS: u64 = 8;
/// Frames of one thread that are kept; older ones are given up.
const DEPTH_MAX: usize = 1024;

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Frame {
    site: usize,
    stack: u64,
    span: u64,
    time: u64,
}

/// How calls were paired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paired {
    /// Returns of calls whose entry is not known: they began before, or their entry was lost.
    pub without_entry: u64,
    /// Calls that ended without a return, or whose return was lost.
    pub without_return: u64,
}

/// Makes records of hits.
#[derive(Debug)]
pub struct Events {
    moments: Moments,
    sites: Vec<Of>,
    /// Hits by site, returns not counted when entries are.
    counts: Vec<u64>,
    threads: HashMap<(u32, u32), Vec<Frame>>,
    spans: u64,
    paired: Paired,
    /// When all sites were on.
    since: u64,
}

impl Events {
    /// For these sites; `since` is when all of them were on, see [`Attachment::since`](crate::Attachment::since).
    #[must_use]
    pub fn new(sites: &[Site], moments: Moments, since: u64) -> Self {
        Self {
            moments,
            sites: sites.iter().map(|site| site.of.clone()).collect(),
            counts: vec![0; sites.len()],
            threads: HashMap::new(),
            spans: 0,
            paired: Paired::default(),
            since,
        }
    }

    /// What events look like, by id.
    #[must_use]
    pub fn schemas(sites: &[Site], moments: Moments) -> Vec<(u32, Schema)> {
        let of = |(number, site): (usize, &Site)| schemas_of(number, site, moments);
        sites.iter().enumerate().flat_map(of).collect()
    }

    /// Hits by site so far: calls, where entries are watched.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How calls were paired so far.
    #[must_use]
    pub fn paired(&self) -> Paired {
        self.paired
    }

    /// Calls that are still running.
    #[must_use]
    pub fn running(&self) -> usize {
        self.threads.values().map(Vec::len).sum()
    }

    /// Appends the records of a hit to `out`, each padded as in a ring.
    pub fn push(&mut self, hit: &Hit, out: &mut Vec<u8>) {
        let Some(of) = self.sites.get(hit.site) else { return };
        if hit.on_return && self.moments == Moments::Latency {
            return self.leave(hit, out);
        }
        if !hit.on_return || self.moments == Moments::Exit {
            count(&mut self.counts, hit.site);
        }
        match of {
            Of::Probe(arguments) => record(hit, 0, out, |out| push_probe(hit, arguments, out)),
            Of::Function if hit.on_return => record(hit, 1, out, |out| push(out, &hit.words[..1])),
            Of::Function if self.moments == Moments::Latency => self.enter(hit, out),
            Of::Function => record(hit, 0, out, |out| push(out, &hit.words)),
        }
    }

    fn enter(&mut self, hit: &Hit, out: &mut Vec<u8>) {
        self.spans += 1;
        let span = self.spans;
        let frames = self.threads.entry((hit.pid, hit.tid)).or_default();
        let gone = frames.iter().rev().take_while(|frame| frame.stack < hit.stack).count();
        frames.truncate(frames.len() - gone);
        self.paired.without_return += gone as u64;
        if frames.len() >= DEPTH_MAX {
            frames.remove(0);
            self.paired.without_return += 1;
        }
        let parent = frames.last().map_or(0, |frame| frame.span);
        frames.push(Frame { site: hit.site, stack: hit.stack, span, time: hit.time });
        record(hit, 0, out, |out| {
            push(out, &[span, parent]);
            push(out, &hit.words);
        });
        record(hit, 1, out, |out| push(out, &[span]));
    }

    fn leave(&mut self, hit: &Hit, out: &mut Vec<u8>) {
        let key = (hit.pid, hit.tid);
        let entry = hit.stack.wrapping_sub(RETURN_ADDRESS);
        let frames = self.threads.entry(key).or_default();
        let gone = frames.iter().rev().take_while(|frame| frame.stack < entry).count();
        frames.truncate(frames.len() - gone);
        self.paired.without_return += gone as u64;
        let ours = |frame: &Frame| frame.stack == entry && frame.site == hit.site;
        let found = frames.iter().rposition(ours).map(|at| frames.remove(at));
        if frames.is_empty() {
            // Threads come and go.
            self.threads.remove(&key);
        }
        let Some(frame) = found else {
            // Returns are on before entries.
            self.paired.without_entry += u64::from(hit.time >= self.since);
            return;
        };
        let duration = hit.time.saturating_sub(frame.time);
        record(hit, 2, out, |out| push(out, &[frame.span]));
        record(hit, 3, out, |out| push(out, &[frame.span, duration, hit.words[0]]));
    }
}

fn count(counts: &mut [u64], site: usize) {
    if let Some(count) = counts.get_mut(site) {
        *count += 1;
    }
}

fn record(hit: &Hit, which: u32, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.resize(begin + RECORD_HEADER_LEN, 0);
    payload(out);
    let id = id(hit.site, which);
    let len = u32::try_from(out.len() - begin).unwrap_or(0);
    let header = RecordHeader { time: hit.time, id, len, pid: hit.pid, tid: hit.tid };
    if let Some(to) = out.get_mut(begin..begin + RECORD_HEADER_LEN) {
        to.copy_from_slice(&header.to_bytes());
    }
    out.resize(out.len().next_multiple_of(RECORD_ALIGN), 0);
}

/// Sites are 2^20 at most.
fn id(site: usize, which: u32) -> u32 {
    site as u32 * IDS + 1 + which
}

/// The site that events of an id are of.
#[must_use]
pub fn site_of(id: u32) -> usize {
    (id.saturating_sub(1) / IDS) as usize
}

fn push(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}

fn push_probe(hit: &Hit, arguments: &[Argument], out: &mut Vec<u8>) {
    for (argument, value) in hit.values(arguments) {
        let bytes = usize::from(argument.size);
        let word = value.unwrap_or(0).to_le_bytes();
        let word = word.get(..bytes).unwrap_or(&word);
        match argument.place {
            Place::Unknown => {}
            Place::Memory(_) => {
                out.push(u8::from(value.is_some()));
                out.extend(value.map(|_| word).unwrap_or_default());
            }
            Place::Constant(_) | Place::Register(..) => out.extend(word),
        }
    }
}

fn schemas_of(number: usize, site: &Site, moments: Moments) -> Vec<(u32, Schema)> {
    let word = |name: &str| Field { name: name.into(), ty: Type::Scalar(Scalar::U64) };
    let arguments = || (0..ARGS).map(|n| word(&format!("arg{n}")));
    let schema = |which: u32, kind: Kind, suffix: &str, fields: Vec<Field>| {
        let name = cut(&site.name, suffix);
        let doc = format!("kernel probe at offset {:#x} of the file", site.offset);
        let (level, file, line) = (Level::Info, String::new(), 0);
        (id(number, which), Schema { name, kind, level, file, line, doc, fields })
    };
    match (&site.of, moments) {
        (Of::Probe(arguments), _) => {
            let known = arguments.iter().enumerate().filter(|(_, argument)| argument.is_known());
            let fields = known.map(|(n, argument)| field(&format!("arg{n}"), argument));
            vec![schema(0, Kind::Event, "", fields.collect())]
        }
        (Of::Function, Moments::Latency) => {
            let (new, close) = (Kind::SpanNew.leading(), Kind::SpanClose.leading());
            let new = new.iter().map(|name| word(name)).chain(arguments()).collect();
            let close = close.iter().map(|name| word(name)).chain([word("ret")]).collect();
            vec![
                schema(0, Kind::SpanNew, "", new),
                schema(1, Kind::SpanEnter, "", vec![word("span")]),
                schema(2, Kind::SpanExit, "", vec![word("span")]),
                schema(3, Kind::SpanClose, "", close),
            ]
        }
        (Of::Function, moments) => {
            let mut all = Vec::new();
            if moments != Moments::Exit {
                all.push(schema(0, Kind::Event, "", arguments().collect()));
            }
            if moments != Moments::Entry {
                all.push(schema(1, Kind::Event, "%return", vec![word("ret")]));
            }
            all
        }
    }
}

fn field(name: &str, argument: &Argument) -> Field {
    let scalar = match (argument.size, argument.signed) {
        (1, true) => Scalar::I8,
        (1, false) => Scalar::U8,
        (2, true) => Scalar::I16,
        (2, false) => Scalar::U16,
        (4, true) => Scalar::I32,
        (4, false) => Scalar::U32,
        (_, true) => Scalar::I64,
        (_, false) => Scalar::U64,
    };
    let ty = match argument.place {
        Place::Memory(_) => Type::Option(Box::new(Type::Scalar(scalar))),
        _ => Type::Scalar(scalar),
    };
    Field { name: name.into(), ty }
}

/// Names of generic code may be longer than a trace takes: the middle goes.
fn cut(name: &str, suffix: &str) -> String {
    let room = MAX_NAME - suffix.len();
    if name.len() <= room {
        return format!("{name}{suffix}");
    }
    let half = (room - 2) / 2;
    let (head, tail) = (name.floor_char_boundary(half), name.ceil_char_boundary(name.len() - half));
    format!("{}..{}{suffix}", &name[..head], &name[tail..])
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
