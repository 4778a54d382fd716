//! Calls into eBPF programs that a command has loaded and verified.
//!
//! The image comes over the agent's socket, which only this process's user and root may connect to, who can
//! do with the process as they like anyway. That is what `Module::compiled` asks for; the verifier's verdict
//! is the command's.
//!
//! A program sees the call as `owlet_attach::Context` tells it; `cookie` is the function's number among those
//! that the patterns match, by name. A session program is told which end of the call it is at, and has the
//! call's session word.
//!
//! Ring buffers are emptied into the answers to whoever asks for maps, which only the connection does that the
//! program belongs to.

use super::gate::Gate;
use super::record::nothing_passes;
use super::{Counts, Refusal};
use crate::context;
use owlet_attach::{AtExit, Call, Function, Program};
use owlet_ebpf::image::{Image, MapKind, PLATFORM, ProgramKind};
use owlet_ebpf::map::{Map as Live, MapStats};
use owlet_ebpf::{Context, Error, Limits, Module, Session};
use owlet_sys::clock::monotonic_ns;
use owlet_wire::filter::Filter;
use owlet_wire::functions::{MAX_MAP_ENTRIES, MAX_RECORDS, Map, Standing};
use std::sync::Arc;

/// Bytes of keys, values and records that one answer shows; one record may go over it.
const MAP_BYTES: usize = 1 << 20;

/// A program of an image on some functions.
pub(super) struct Machine {
    module: Module,
    program: Arc<owlet_ebpf::Program>,
    gates: Box<[Gate]>,
    counts: Counts,
}

/// A program that runs the one called `name` of the image.
pub(super) fn program(
    functions: &[&'static Function],
    image: &[u8],
    name: &str,
    filter: Option<&Filter>,
) -> Result<(Program, Arc<Machine>), Refusal> {
    let refused = |error: Error| match error {
        Error::Version { found, expected } => Refusal::new(
            format!("the eBPF image is for version {found}, this program runs version {expected}"),
            format!(
                "build command and program from the same version of owlet (platform {PLATFORM})"
            ),
        ),
        error => Refusal::new(format!("the eBPF image: {error}"), ""),
    };
    let image = Image::from_bytes(image).map_err(refused)?;
    // SAFETY: the peer is this user or root (`socket::is_allowed`), and sends what its verifier has passed.
    let module = unsafe { Module::compiled(&image, Limits::default()) }.map_err(refused)?;
    let Some(program) = module.program(name).cloned() else {
        return Err(Refusal::new(format!("the eBPF image has no program `{name}`"), ""));
    };
    let gates: Box<[_]> = functions.iter().map(|f| Gate::new(f, filter)).collect();
    if gates.iter().all(|gate| matches!(gate, Gate::Shut)) {
        return Err(nothing_passes(functions));
    }
    let kind = program.kind();
    if kind != ProgramKind::Exit && gates.iter().any(Gate::is_late) {
        let message = "the filter asks for what is known at the end of a call, and the program runs at its entry";
        return Err(Refusal::new(message, "use a program of the kind `exit` with it"));
    }
    let machine =
        Arc::new(Machine { module, program, gates, counts: Counts::new(functions.len())? });
    let (at_entry, at_exit) = (Arc::clone(&machine), Arc::clone(&machine));
    let builder = match kind {
        ProgramKind::Entry => Program::entry(move |call| {
            if at_entry.lets_in(call) {
                at_entry.run(call);
            }
        }),
        ProgramKind::Exit => Program::session(
            move |call| {
                call.set_session(monotonic_ns());
                if at_entry.lets_in(call) { AtExit::Run } else { AtExit::Skip }
            },
            move |call| at_exit.exit(call),
        ),
        ProgramKind::Session => Program::session(
            move |call| {
                let runs = at_entry.lets_in(call) && at_entry.session(call) == 0;
                if runs { AtExit::Run } else { AtExit::Skip }
            },
            move |call| {
                let mut session = Session { is_return: true, word: call.session() };
                at_exit.program.run_session(&context_of(call), &mut session);
            },
        ),
    };
    Ok((builder.named(name).build(), machine))
}

fn context_of(call: &Call<'_>) -> Context {
    let owlet_attach::Context { arg, ret, ip, cookie } = owlet_attach::Context::of(call);
    Context { arg, ret, ip, cookie }
}

impl Machine {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    fn gate(&self, call: &Call<'_>) -> Option<&Gate> {
        self.gates.get(call.cookie() as usize)
    }

    fn lets_in(&self, call: &Call<'_>) -> bool {
        self.gate(call).is_some_and(|gate| context::with(|context| gate.enter(context, call)))
    }

    fn exit(&self, call: &Call<'_>) {
        let duration = monotonic_ns().saturating_sub(call.session());
        let Some(gate) = self.gate(call) else { return };
        if context::with(|context| gate.exit(context, call, duration)) {
            self.run(call);
        }
    }

    fn run(&self, call: &Call<'_>) -> u64 {
        self.counts.add(call.cookie() as usize);
        self.program.run(&context_of(call))
    }

    /// The entry of a session.
    fn session(&self, call: &Call<'_>) -> u64 {
        self.counts.add(call.cookie() as usize);
        let mut session = Session::default();
        let answer = self.program.run_session(&context_of(call), &mut session);
        call.set_session(session.word);
        answer
    }

    /// Adds what is known of the program, and its maps if they are asked for.
    pub(super) fn tell(&self, standing: &mut Standing, maps: bool) {
        let stats = self.program.stats();
        standing.faults = stats.exhausted.saturating_add(stats.faults);
        standing.engine = self.program.engine().to_string();
        if maps {
            let mut room = MAP_BYTES;
            standing.maps = self.module.maps().iter().map(|map| shown(map, &mut room)).collect();
        }
    }
}

/// A map as it is now, as much of it as there is room for.
fn shown(map: &Live, room: &mut usize) -> Map {
    let def = map.def();
    let kind = match def.kind {
        MapKind::Hash => "hash",
        MapKind::Array => "array",
        MapKind::PerCpuArray => "percpu_array",
        MapKind::RingBuf => "ringbuf",
    };
    let most = MAX_MAP_ENTRIES as u32 + 1;
    let keys = match def.kind {
        // Not all the numbers of a large array.
        MapKind::Array | MapKind::PerCpuArray => {
            (0..def.max_entries.min(most)).map(|index| index.to_le_bytes().to_vec()).collect()
        }
        MapKind::Hash | MapKind::RingBuf => {
            let mut keys = map.keys();
            keys.sort_unstable();
            keys.dedup();
            keys
        }
    };
    let (mut entries, mut records) = (Vec::new(), Vec::new());
    let mut cut = false;
    if def.kind == MapKind::RingBuf {
        // It may be filled as fast as it is emptied.
        while let Some(record) = if cut { None } else { map.pop() } {
            *room = room.saturating_sub(record.len());
            records.push(record);
            cut = records.len() >= MAX_RECORDS || *room == 0;
        }
    }
    for key in keys {
        let size = key.len().saturating_add(map.read_size());
        if entries.len() >= MAX_MAP_ENTRIES || size > *room {
            cut = true;
            break;
        }
        let mut value = vec![0; map.read_size()];
        // One that was taken out meanwhile is not shown.
        if map.read(&key, &mut value).is_ok() {
            *room -= size;
            entries.push((key, value));
        }
    }
    let MapStats { busy, full, dropped, abandoned, .. } = map.stats();
    Map {
        name: def.name.clone(),
        kind: kind.to_owned(),
        entries,
        value_size: def.value_size,
        records,
        lost: busy.saturating_add(full).saturating_add(dropped).saturating_add(abandoned),
        cut,
    }
}
