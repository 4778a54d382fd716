//! What the verifier is told about us: context, helpers, maps. All of it is read off the tables that the
//! engines use.

use prevail::elf_loader::UnmarshalError;
use prevail::linux::spec_prototypes::{HelperPrototype, map_type_bit};
use prevail::platform::EbpfPlatform;
use prevail::spec::config::EbpfVerifierOptions;
use prevail::spec::ebpf_base::{EbpfArgumentType, EbpfCtxDescriptor, EbpfReturnType};
use prevail::spec::type_descriptors::{
    EbpfMapDescriptor, EbpfMapType, EbpfMapValueType, EbpfProgramType,
};

use crate::helper::{Arg, Helper, Ret};
use crate::image::{MapDef, MapKind, ProgramKind};
use crate::program::Context;

/// 56 bytes of numbers, no packet.
static CONTEXT: EbpfCtxDescriptor =
    EbpfCtxDescriptor { size: size_of::<Context>() as i32, data: -1, end: -1, meta: -1 };

/// Instruction groups of `bpf_conformance`: 32- and 64-bit base, atomics, division and multiplication.
pub(super) const GROUPS: u32 = 0x3f;

/// The platform, for one program.
pub(super) struct Platform {
    kind: ProgramKind,
    maps: Vec<EbpfMapDescriptor>,
    helpers: Vec<(i32, HelperPrototype)>,
}

/// Maps have descriptors from 1 on: 0 is no map.
pub(super) fn descriptor(map: usize) -> i32 {
    i32::try_from(map + 1).unwrap_or(i32::MAX)
}

impl Platform {
    /// `sizes`: ring buffers by their number, and the size of the records that are reserved there; they have
    /// descriptors of their own, behind the others, in which records are values.
    pub(super) fn new(kind: ProgramKind, maps: &[MapDef], sizes: &[(usize, u32)]) -> Self {
        let plain = maps.iter().map(|map| (map, map.value_size));
        let sized = sizes.iter().filter_map(|(map, size)| Some((maps.get(*map)?, *size)));
        let all = plain.chain(sized);
        let maps = all.enumerate().map(|(index, (map, value_size))| EbpfMapDescriptor {
            original_fd: descriptor(index),
            map_type: map.kind as u32,
            key_size: map.key_size,
            value_size,
            max_entries: map.max_entries,
            inner_map_fd: 0,
            name: map.name.clone(),
            is_inner_map_template: false,
        });
        let helpers = Helper::ALL.iter().map(|helper| (*helper as i32, prototype(*helper)));
        Self { kind, maps: maps.collect(), helpers: helpers.collect() }
    }

    pub(super) fn maps(&self) -> &[EbpfMapDescriptor] {
        &self.maps
    }

    pub(super) fn program_type(&self) -> EbpfProgramType {
        EbpfProgramType {
            name: "owlet".to_owned(),
            ctx_descriptor: Some(&CONTEXT),
            platform_specific_data: self.kind as u64,
            section_prefixes: Vec::new(),
            // Addresses may not leave the program.
            is_privileged: false,
            is_sleepable: false,
        }
    }
}

/// Why a helper is not for programs of this kind.
pub(super) fn misplaced(helper: Helper, kind: ProgramKind) -> Option<&'static str> {
    match helper {
        Helper::FuncRet if kind == ProgramKind::Entry => Some("there is no return value at entry"),
        helper if helper.is_for_sessions() && kind != ProgramKind::Session => {
            Some("only a session has two ends")
        }
        _ => None,
    }
}

/// The verifier's words for a line of the helpers' table.
fn prototype(helper: Helper) -> HelperPrototype {
    let with_keys =
        [MapKind::Hash, MapKind::Array, MapKind::PerCpuArray].map(|kind| map_type_bit(kind as u32));
    let mut argument_type = [EbpfArgumentType::DontCare; 5];
    let mut allowed_map_types = 0;
    for (place, arg) in argument_type.iter_mut().zip(helper.args()) {
        *place = match arg {
            Arg::Any => EbpfArgumentType::Anything,
            Arg::Ctx => EbpfArgumentType::PtrToCtx,
            Arg::Map => {
                allowed_map_types = with_keys.iter().fold(0, |all, bit| all | bit);
                EbpfArgumentType::PtrToMap
            }
            Arg::Ring => {
                allowed_map_types = map_type_bit(MapKind::RingBuf as u32);
                EbpfArgumentType::PtrToMap
            }
            Arg::Key => EbpfArgumentType::PtrToMapKey,
            Arg::Value => EbpfArgumentType::PtrToMapValue,
            Arg::Readable => EbpfArgumentType::PtrToReadableMem,
            Arg::Writable => EbpfArgumentType::PtrToWritableMem,
            Arg::LenOrZero => EbpfArgumentType::ConstSizeOrZero,
            Arg::Len => EbpfArgumentType::ConstSize,
            Arg::Long => EbpfArgumentType::PtrToLong,
            // Of all that mean no more than "an address"; that it is a record, `reservations` sees to.
            Arg::Record => EbpfArgumentType::PtrToTimer,
        };
    }
    HelperPrototype {
        name: helper.name(),
        return_type: match helper.ret() {
            Ret::Number => EbpfReturnType::Integer,
            Ret::ValueOrNull => EbpfReturnType::PtrToMapValueOrNull,
        },
        argument_type,
        reallocate_packet: false,
        ctx_descriptor: None,
        unsupported: false,
        might_sleep: false,
        zero_args_mask: 0,
        allowed_map_types,
    }
}

impl EbpfPlatform for Platform {
    fn get_program_type(&self, _: &str, _: &str) -> EbpfProgramType {
        self.program_type()
    }

    fn get_helper_prototype(&self, n: i32) -> &HelperPrototype {
        static NONE: HelperPrototype = HelperPrototype {
            name: "unknown",
            return_type: EbpfReturnType::Unsupported,
            argument_type: [EbpfArgumentType::Unsupported; 5],
            reallocate_packet: false,
            ctx_descriptor: None,
            unsupported: true,
            might_sleep: false,
            zero_args_mask: 0,
            allowed_map_types: 0,
        };
        self.try_get_helper_prototype(n).unwrap_or(&NONE)
    }

    fn try_get_helper_prototype(&self, n: i32) -> Option<&HelperPrototype> {
        self.helpers.iter().find(|(number, _)| *number == n).map(|(_, prototype)| prototype)
    }

    fn is_helper_usable(&self, n: i32) -> bool {
        let helper = Helper::from_number(n);
        helper.is_some_and(|helper| misplaced(helper, self.kind).is_none())
    }

    fn map_record_size(&self) -> usize {
        // Only objects have such records, and the verifier never sees one.
        28
    }

    fn parse_maps_section(
        &mut self,
        _: &mut Vec<EbpfMapDescriptor>,
        _: &[u8],
        _: usize,
        _: usize,
        _: &EbpfVerifierOptions,
    ) {
    }

    fn resolve_inner_map_references(
        &self,
        _: &mut Vec<EbpfMapDescriptor>,
    ) -> Result<(), UnmarshalError> {
        Ok(())
    }

    fn get_map_descriptor(&self, map_fd: i32) -> Option<&EbpfMapDescriptor> {
        self.maps.iter().find(|map| map.original_fd == map_fd)
    }

    fn get_map_type(&self, number: u32) -> EbpfMapType {
        let kind = MapKind::from_number(number);
        EbpfMapType {
            platform_specific_type: number,
            name: kind.map_or_else(|| "unknown".to_owned(), |kind| format!("{kind:?}")),
            is_array: matches!(kind, Some(MapKind::Array | MapKind::PerCpuArray)),
            value_type: EbpfMapValueType::Any,
        }
    }

    fn supported_conformance_groups(&self) -> u32 {
        GROUPS
    }
}
