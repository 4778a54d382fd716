//! The verifier: `prevail`, which computes for every instruction what registers and stack may hold, checks
//! of ours on what it found, and what it cannot follow, in [`super::reservations`].
//!
//! It proves that a program reads nothing uninitialised, touches only context, stack and values of maps
//! inside their bounds, gives helpers what they want, lets no address out, and ends. What it lets pass that
//! we do not:
//!
//! - a write into the context, which is the caller's;
//! - a compare-exchange with an address in R0: the verifier goes on taking R0 for that address, when it is
//!   a number from memory;
//! - a comparison of an address with a number other than 0, which lets the address out bit by bit;
//! - an atomic operation at an address that is known and not aligned to the width. (Where the verifier does
//!   not know the address, the engines look at it.)

use prevail::crab::ebpf_domain::DomainContext;
use prevail::crab::string_constraints::StringInvariant;
use prevail::crab::var_registry::VariableRegistry;
use prevail::fwd_analyzer;
use prevail::ir::program::Program;
use prevail::ir::syntax::{AtomicOp, Condition, ConditionOp, Instruction, Reg, Value};
use prevail::ir::unmarshal::{self, UnmarshalError};
use prevail::result::InvariantMapPair;
use prevail::spec::config::{EbpfRuntimeConfig, EbpfVerifierOptions, VerbosityOptions};
use prevail::spec::type_descriptors::ProgramInfo;
use prevail::spec::vm_isa::EbpfInst;

use super::platform::{GROUPS, Platform, descriptor, misplaced};
use super::reservations;
use crate::asm::Slot;
use crate::decode::{Code, FRAME_SIZE, FRAMES, Insn};
use crate::image::{MapDef, ProgramDef};

/// Why not, and where.
pub(super) struct Finding {
    pub(super) at: Option<usize>,
    pub(super) instruction: Option<String>,
    pub(super) why: String,
}

fn options() -> EbpfVerifierOptions {
    EbpfVerifierOptions {
        runtime: EbpfRuntimeConfig {
            // Division by zero has a meaning; see `asm::Alu`.
            allow_division_by_zero: true,
            check_for_termination: true,
            subprogram_stack_size: i32::try_from(FRAME_SIZE).unwrap_or(0),
            max_call_stack_frames: i32::try_from(FRAMES).unwrap_or(0),
            ..EbpfRuntimeConfig::default()
        },
        verbosity_opts: VerbosityOptions::default(),
        must_have_exit: true,
        mock_map_fds: true,
    }
}

/// Verifies a program whose shape is right.
pub(super) fn verify(program: &ProgramDef, code: &Code, maps: &[MapDef]) -> Result<(), Finding> {
    misplaced_helpers(program, code)?;
    let sizes = reservations::follow(code).map_err(|(at, why)| Finding {
        at: Some(at),
        instruction: None,
        why,
    })?;
    let loads = sizes.keys().copied().collect::<Vec<_>>();
    let sizes = sizes.into_iter().filter_map(|(load, size)| match code.insns.get(load) {
        Some(Insn::Map { map, .. }) => Some((*map, size)),
        _ => None,
    });
    let platform = Platform::new(program.kind, maps, &sizes.collect::<Vec<_>>());
    let options = options();
    let insts = instructions(&program.code, maps.len(), &loads);
    let mut info = ProgramInfo {
        map_descriptors: platform.maps().to_vec(),
        program_type: platform.program_type(),
        supported_conformance_groups: GROUPS,
        ..ProgramInfo::default()
    };
    let unmarshalled = unmarshal::unmarshal(&insts, &mut Vec::new(), &info, &platform, &options);
    let sequence = unmarshalled.map_err(|error| match error {
        UnmarshalError::InvalidInstruction { pc, message } => {
            Finding { at: Some(pc), instruction: None, why: message }
        }
        other => Finding { at: None, instruction: None, why: other.to_string() },
    })?;
    let graph = Program::from_sequence(&sequence, &mut info, &platform, &options);
    let graph = graph.map_err(|error| control_flow(&error.message))?;
    let context = DomainContext {
        program_info: &info,
        program: &graph,
        runtime: &options.runtime,
        options: &options,
        platform: &platform,
    };
    let mut registry = VariableRegistry::new();
    let result = fwd_analyzer::analyze(&graph, &context, &mut registry);
    for (label, found) in &result.invariants {
        let Some(instruction) = graph.instructions().get(label) else { continue };
        let error = found.error.as_ref().filter(|_| !found.pre.is_bottom());
        let why = match error {
            Some(error) => in_words(&error.message),
            None => match ours(instruction, found, &registry) {
                Some(why) => why.to_owned(),
                None => continue,
            },
        };
        let at = usize::try_from(label.from).ok();
        // What the verifier inserts is no instruction of the program's.
        let instruction = label.special_label.is_empty().then(|| instruction.to_string());
        return Err(Finding { at, instruction, why });
    }
    if result.failed {
        let why = "the verifier gives no reason".to_owned();
        return Err(Finding { at: None, instruction: None, why });
    }
    Ok(())
}

/// Slots in the verifier's words; maps by descriptor. What the slots `loads` load has descriptors behind those
/// of the `maps`.
fn instructions(code: &[u8], maps: usize, loads: &[usize]) -> Vec<EbpfInst> {
    let (slots, _) = code.as_chunks::<8>();
    let mut second = false;
    let translate = |(at, bytes): (usize, &[u8; 8])| {
        let slot = Slot::from_bytes(*bytes);
        let wide = !second && slot.op == 0x18;
        second = wide;
        let names_map = wide && matches!(slot.src, 1 | 2);
        EbpfInst {
            opcode: slot.op,
            dst_src: slot.dst | slot.src << 4,
            offset: slot.off,
            imm: match (usize::try_from(slot.imm), loads.binary_search(&at)) {
                (Ok(_), Ok(sized)) if names_map => descriptor(maps + sized),
                (Ok(map), _) if names_map => descriptor(map),
                _ => slot.imm,
            },
        }
    };
    slots.iter().enumerate().map(translate).collect()
}

/// Helpers that are not for programs of this kind. (The platform says so, too, in fewer words.)
fn misplaced_helpers(program: &ProgramDef, code: &Code) -> Result<(), Finding> {
    for (at, insn) in code.insns.iter().enumerate() {
        if let Insn::Call { helper, .. } = insn
            && let Some(why) = misplaced(*helper, program.kind)
        {
            let why = format!("helper {}: {why}", helper.name());
            return Err(Finding { at: Some(at), instruction: None, why });
        }
    }
    Ok(())
}

/// A message about the shape of the program; most end with the instruction's number: `(at 2)`.
fn control_flow(message: &str) -> Finding {
    let place = message.rsplit_once(" (at ").and_then(|(why, at)| {
        let at = at.strip_suffix(')')?.split([':', '/']).next()?.parse().ok()?;
        Some((why, at))
    });
    let (why, at) = place.map_or((message, None), |(why, at)| (why, Some(at)));
    Finding { at, instruction: None, why: why.to_owned() }
}

/// The verifier's message, with more words where it has few.
fn in_words(message: &str) -> String {
    if message.starts_with("Loop counter is too large") {
        return format!("the loop is not proved to end ({message})");
    }
    message.to_owned()
}

/// The checks of ours.
fn ours(
    instruction: &Instruction,
    found: &InvariantMapPair,
    registry: &VariableRegistry,
) -> Option<&'static str> {
    let written = match instruction {
        Instruction::Jmp(jump) if !found.pre.is_bottom() => {
            let known = found.pre.to_set(registry);
            let fine = jump.cond.as_ref().is_none_or(|cond| compares_alike(cond, &known));
            return (!fine).then_some("an address may only be compared with 0, or with an address");
        }
        Instruction::Mem(access) if !access.is_load => access.access.basereg,
        Instruction::Atomic(atomic) => atomic.access.basereg,
        _ => return None,
    };
    if found.pre.is_bottom() {
        return None;
    }
    let known = found.pre.to_set(registry);
    // R10 is always the stack and has no fact of its own everywhere.
    if written.v != 10 && !is_known(&known, written.v, &["stack", "shared"]) {
        return Some("only the stack and values of maps may be written, not the context");
    }
    if let Instruction::Atomic(atomic) = instruction
        && let Some(at) = known_offset(&known, written.v)
        && (at + i64::from(atomic.access.offset)) % i64::from(atomic.access.width.bytes()) != 0
    {
        return Some("an atomic operation must be aligned to its width");
    }
    let compares = matches!(instruction, Instruction::Atomic(a) if a.op == AtomicOp::CMPXCHG);
    if compares && !is_known(&known, 0, &["number"]) {
        return Some("R0 of a compare-exchange must be a number");
    }
    None
}

/// Whether a comparison says nothing about where something is in memory.
fn compares_alike(cond: &Condition, known: &StringInvariant) -> bool {
    let number = |register: Reg| is_known(known, register.v, &["number"]);
    let address = |register: Reg| is_known(known, register.v, &["ctx", "stack", "shared"]);
    match cond.right {
        Value::Imm(imm) => {
            let with_null = imm.v == 0 && matches!(cond.op, ConditionOp::EQ | ConditionOp::NE);
            with_null || number(cond.left)
        }
        Value::Reg(right) => {
            number(cond.left) && number(right) || address(cond.left) && address(right)
        }
    }
}

/// Where a register points to in its frame or value, if that is known. Both begin at multiples of 8: frames
/// have 512 bytes and are counted from the outermost's end.
fn known_offset(facts: &StringInvariant, register: u8) -> Option<i64> {
    let kinds = ["stack_offset", "shared_offset"].map(|kind| format!("r{register}.{kind}="));
    let of = |fact: &String| kinds.iter().find_map(|kind| fact.strip_prefix(kind)?.parse().ok());
    facts.value().iter().find_map(of)
}

/// Whether a register's type is known and one of `types`, by the verifier's printed facts: `r1.type=stack`,
/// `r1.type in {shared, stack}`, or `r2.type=r1.type` beside a fact about `r1`.
fn is_known(facts: &StringInvariant, register: u8, types: &[&str]) -> bool {
    let mut subject = format!("r{register}.type");
    // An equality leads to the first of its class, which has the set.
    for _ in 0..2 {
        let of = |fact: &String| {
            let rest = fact.strip_prefix(subject.as_str())?;
            let rest = rest.strip_prefix('=').or_else(|| rest.strip_prefix(" in "));
            rest.map(ToOwned::to_owned)
        };
        let Some(value) = facts.value().iter().find_map(of) else { return false };
        if let Some(set) = value.strip_prefix('{').and_then(|set| set.strip_suffix('}')) {
            return set.split(", ").all(|kind| types.contains(&kind));
        }
        if !value.ends_with(".type") {
            return types.contains(&value.as_str());
        }
        subject = value;
    }
    false
}
