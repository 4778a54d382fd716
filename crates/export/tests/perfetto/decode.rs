//! Reads a Perfetto trace back, from the wire up, without the exporter's code or numbers.
//!
//! Checks on the way what a reader relies on: the first packet clears the incremental state, every
//! number of an interned name has been sent before its use, every track before its events.

use std::collections::{BTreeMap, HashMap};

/// One field of a message.
#[derive(Clone, Debug)]
enum Wire<'a> {
    Int(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

type Message<'a> = Vec<(u64, Wire<'a>)>;

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first().expect("a varint");
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift).expect("at most ten bytes");
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than ten bytes");
}

fn message(mut bytes: &[u8]) -> Message<'_> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Wire::Int(varint(&mut bytes)),
            1 => {
                let (word, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                bytes = rest;
                Wire::Fixed(u64::from_le_bytes(*word))
            }
            2 => {
                let len = usize::try_from(varint(&mut bytes)).expect("a length");
                let (value, rest) = bytes.split_at_checked(len).expect("as many bytes as said");
                bytes = rest;
                Wire::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn int(message: &Message<'_>, field: u64) -> Option<u64> {
    message.iter().find_map(|(number, value)| match value {
        Wire::Int(n) | Wire::Fixed(n) if *number == field => Some(*n),
        _ => None,
    })
}

fn all<'a>(message: &Message<'a>, field: u64) -> Vec<&'a [u8]> {
    let bytes = |(number, value): &(u64, Wire<'a>)| match value {
        Wire::Bytes(bytes) if *number == field => Some(*bytes),
        _ => None,
    };
    message.iter().filter_map(bytes).collect()
}

fn one<'a>(message: &Message<'a>, field: u64) -> Option<&'a [u8]> {
    all(message, field).first().copied()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("a string field holds UTF-8")
}

/// A described track.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Track {
    pub(crate) name: String,
    pub(crate) parent: u64,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) cmdline: Vec<String>,
}

/// One track event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrackEvent {
    pub(crate) time: u64,
    /// 1 begin, 2 end, 3 instant.
    pub(crate) kind: u64,
    pub(crate) track: u64,
    pub(crate) name: String,
    pub(crate) category: String,
    pub(crate) args: BTreeMap<String, String>,
    pub(crate) flows: Vec<u64>,
}

/// A slice put together from its begin and end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) track: u64,
    pub(crate) args: BTreeMap<String, String>,
    pub(crate) flows: Vec<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) tracks: HashMap<u64, Track>,
    pub(crate) events: Vec<TrackEvent>,
}

#[derive(Default)]
struct State {
    cleared: bool,
    clock: u64,
    /// By field of `InternedData`: 1 categories, 2 event names, 3 annotation names.
    interned: HashMap<(u64, u64), String>,
}

pub(crate) fn decode(bytes: &[u8]) -> Decoded {
    let mut decoded = Decoded::default();
    let mut state = State::default();
    for (field, packet) in message(bytes) {
        let (1, Wire::Bytes(packet)) = (field, packet) else { panic!("a trace is packets") };
        decoded.packet(&mut state, &message(packet));
    }
    // As the reader does: by time, packets of one time in the order of the file.
    decoded.events.sort_by_key(|event| event.time);
    decoded
}

impl Decoded {
    fn packet(&mut self, state: &mut State, packet: &Message<'_>) {
        assert_eq!(int(packet, 10), Some(1), "all packets are on one sequence");
        let flags = int(packet, 13).unwrap_or(0);
        if flags & 1 != 0 {
            assert!(!state.cleared, "cleared once");
            state.cleared = true;
            let defaults = message(one(packet, 59).expect("defaults"));
            assert_eq!(int(&defaults, 58), Some(64), "the default clock");
        }
        assert!(state.cleared, "the first packet clears");
        if let Some(snapshot) = one(packet, 6) {
            for clock in all(&message(snapshot), 1).into_iter().map(message) {
                if int(&clock, 1) == Some(64) {
                    assert_eq!(int(&clock, 3), Some(1), "clock 64 is incremental");
                    state.clock = int(&clock, 2).expect("a time");
                }
            }
        }
        if let Some(data) = one(packet, 12) {
            for (table, entry) in message(data) {
                let Wire::Bytes(entry) = entry else { panic!("an entry is a message") };
                let entry = message(entry);
                let iid = int(&entry, 1).expect("iid");
                let known =
                    state.interned.insert((table, iid), text(one(&entry, 2).expect("name")));
                assert_eq!(known, None, "a number is given once");
            }
        }
        if let Some(track) = one(packet, 60) {
            self.track(&message(track));
        }
        if let Some(event) = one(packet, 11) {
            assert_eq!(flags & 2, 2, "an event needs the incremental state");
            let stamp = int(packet, 8).expect("a time stamp");
            let time = match int(packet, 58) {
                None => {
                    state.clock += stamp;
                    state.clock
                }
                Some(clock) => {
                    assert_eq!(clock, 1, "an absolute time is unix time");
                    stamp
                }
            };
            self.event(state, time, &message(event));
        }
    }

    fn track(&mut self, track: &Message<'_>) {
        let mut described = Track {
            name: one(track, 2).map(text).unwrap_or_default(),
            parent: int(track, 5).unwrap_or(0),
            ..Track::default()
        };
        if let Some(process) = one(track, 3).map(message) {
            described.pid = int(&process, 1).expect("pid") as i32;
            described.name = one(&process, 6).map(text).unwrap_or_default();
            described.cmdline = all(&process, 2).into_iter().map(text).collect();
        }
        if let Some(thread) = one(track, 4).map(message) {
            described.pid = int(&thread, 1).expect("pid") as i32;
            described.tid = int(&thread, 2).expect("tid") as i32;
            described.name = one(&thread, 5).map(text).unwrap_or_default();
        }
        if described.parent != 0 {
            assert!(self.tracks.contains_key(&described.parent), "a parent is described first");
        }
        let known = self.tracks.insert(int(track, 1).expect("uuid"), described);
        assert_eq!(known, None, "a track is described once");
    }

    fn event(&mut self, state: &State, time: u64, event: &Message<'_>) {
        let name = |table: u64, iid: u64| {
            state.interned.get(&(table, iid)).cloned().expect("a name is sent before its use")
        };
        let mut args = BTreeMap::new();
        for arg in all(event, 4).into_iter().map(message) {
            let key = name(3, int(&arg, 1).expect("name_iid"));
            let known = args.insert(key, value(&arg));
            assert_eq!(known, None, "an annotation comes once");
        }
        let flow = |(field, value): &(u64, Wire<'_>)| match value {
            Wire::Fixed(flow) if *field == 47 => Some(*flow),
            _ => None,
        };
        let track = int(event, 11).expect("track_uuid");
        assert!(self.tracks.contains_key(&track), "a track is described before its events");
        self.events.push(TrackEvent {
            time,
            kind: int(event, 9).expect("type"),
            track,
            name: int(event, 10).map(|iid| name(2, iid)).unwrap_or_default(),
            category: int(event, 3).map(|iid| name(1, iid)).unwrap_or_default(),
            args,
            flows: event.iter().filter_map(flow).collect(),
        });
    }

    /// Puts slices together; panics unless they balance and nest on every track.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        let mut stacks: HashMap<u64, Vec<Slice>> = HashMap::new();
        let mut done = Vec::new();
        for event in self.events.iter().cloned() {
            let stack = stacks.entry(event.track).or_default();
            match event.kind {
                1 => stack.push(Slice {
                    name: event.name,
                    begin: event.time,
                    end: event.time,
                    track: event.track,
                    args: event.args,
                    flows: event.flows,
                }),
                2 => {
                    let mut slice = stack.pop().expect("an end has a begin");
                    slice.end = event.time;
                    slice.args.extend(event.args);
                    done.push(slice);
                }
                _ => {}
            }
        }
        assert!(stacks.values().all(Vec::is_empty), "every begin has an end");
        done.sort_by_key(|slice| slice.begin);
        done
    }

    pub(crate) fn instants(&self) -> impl Iterator<Item = &TrackEvent> {
        self.events.iter().filter(|event| event.kind == 3)
    }
}

fn value(arg: &Message<'_>) -> String {
    let Some((field, value)) = arg.iter().find(|(field, _)| *field != 1) else {
        // An element of an array has no name; a value must be there.
        panic!("an annotation without value: {arg:?}");
    };
    match (field, value) {
        (2, Wire::Int(n)) => (*n != 0).to_string(),
        (3, Wire::Int(n)) => n.to_string(),
        (4, Wire::Int(n)) => n.cast_signed().to_string(),
        (5, Wire::Fixed(bits)) => f64::from_bits(*bits).to_string(),
        (6, Wire::Bytes(bytes)) => text(bytes),
        (12, _) => {
            let items: Vec<_> = all(arg, 12).into_iter().map(value_of).collect();
            format!("[{}]", items.join(","))
        }
        other => panic!("an annotation of another kind: {other:?}"),
    }
}

fn value_of(item: &[u8]) -> String {
    value(&message(item))
}
