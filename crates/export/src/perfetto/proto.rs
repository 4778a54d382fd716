//! Writing protobuf by hand: varints, fixed words, length-delimited fields.
//!
//! The whole of the encoding that the exporter needs; the numbers of the messages' fields are in
//! [`field`]. A nested message is written in place behind one byte for its length, which is widened
//! when the message turns out to be 128 bytes or longer.

/// Field numbers, from `protos/perfetto/trace/` of Perfetto v52.
pub(super) mod field {
    /// `Trace`.
    pub(crate) mod trace {
        pub(crate) const PACKET: u32 = 1;
    }
    /// `TracePacket`.
    pub(crate) mod packet {
        pub(crate) const CLOCK_SNAPSHOT: u32 = 6;
        pub(crate) const TIMESTAMP: u32 = 8;
        pub(crate) const SEQUENCE_ID: u32 = 10;
        pub(crate) const TRACK_EVENT: u32 = 11;
        pub(crate) const INTERNED_DATA: u32 = 12;
        pub(crate) const SEQUENCE_FLAGS: u32 = 13;
        pub(crate) const TIMESTAMP_CLOCK_ID: u32 = 58;
        pub(crate) const DEFAULTS: u32 = 59;
        pub(crate) const TRACK_DESCRIPTOR: u32 = 60;
        pub(crate) const FIRST_ON_SEQUENCE: u32 = 87;
    }
    /// `TracePacketDefaults`.
    pub(crate) mod defaults {
        pub(crate) const TIMESTAMP_CLOCK_ID: u32 = 58;
    }
    /// `ClockSnapshot` and `ClockSnapshot.Clock`.
    pub(crate) mod clocks {
        pub(crate) const CLOCK: u32 = 1;
        pub(crate) const PRIMARY: u32 = 2;
        pub(crate) const ID: u32 = 1;
        pub(crate) const TIMESTAMP: u32 = 2;
        pub(crate) const IS_INCREMENTAL: u32 = 3;
    }
    /// `TrackDescriptor`, `ProcessDescriptor`, `ThreadDescriptor`.
    pub(crate) mod track {
        pub(crate) const UUID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
        pub(crate) const PROCESS: u32 = 3;
        pub(crate) const THREAD: u32 = 4;
        pub(crate) const PARENT_UUID: u32 = 5;
        pub(crate) const PROCESS_PID: u32 = 1;
        pub(crate) const PROCESS_CMDLINE: u32 = 2;
        pub(crate) const PROCESS_NAME: u32 = 6;
        pub(crate) const THREAD_PID: u32 = 1;
        pub(crate) const THREAD_TID: u32 = 2;
        pub(crate) const THREAD_NAME: u32 = 5;
    }
    /// `TrackEvent`.
    pub(crate) mod event {
        pub(crate) const CATEGORY_IIDS: u32 = 3;
        pub(crate) const DEBUG_ANNOTATIONS: u32 = 4;
        pub(crate) const TYPE: u32 = 9;
        pub(crate) const NAME_IID: u32 = 10;
        pub(crate) const TRACK_UUID: u32 = 11;
        pub(crate) const FLOW_IDS: u32 = 47;
    }
    /// `DebugAnnotation`.
    pub(crate) mod annotation {
        pub(crate) const NAME_IID: u32 = 1;
        pub(crate) const BOOL: u32 = 2;
        pub(crate) const UINT: u32 = 3;
        pub(crate) const INT: u32 = 4;
        pub(crate) const DOUBLE: u32 = 5;
        pub(crate) const STRING: u32 = 6;
        pub(crate) const ARRAY: u32 = 12;
    }
    /// `InternedData`; its entries have `iid = 1` and `name = 2`.
    pub(crate) mod interned {
        pub(crate) const CATEGORIES: u32 = 1;
        pub(crate) const EVENT_NAMES: u32 = 2;
        pub(crate) const ANNOTATION_NAMES: u32 = 3;
        pub(crate) const IID: u32 = 1;
        pub(crate) const NAME: u32 = 2;
    }
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LEN: u32 = 2;

/// Appends a varint.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field of an integer type, `bool` or an enum.
pub(super) fn uint(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, (field << 3 | VARINT).into());
    varint(out, value);
}

/// Appends an `int32` or `int64` field: negative numbers take ten bytes.
pub(super) fn int(out: &mut Vec<u8>, field: u32, value: i64) {
    uint(out, field, value.cast_unsigned());
}

/// Appends a `fixed64` field.
pub(super) fn fixed64(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, (field << 3 | FIXED64).into());
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a `double` field.
pub(super) fn double(out: &mut Vec<u8>, field: u32, value: f64) {
    fixed64(out, field, value.to_bits());
}

/// Appends a `string` or `bytes` field, or a message already encoded.
pub(super) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, (field << 3 | LEN).into());
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a nested message that `body` writes.
pub(super) fn message(out: &mut Vec<u8>, field: u32, body: impl FnOnce(&mut Vec<u8>)) {
    varint(out, (field << 3 | LEN).into());
    let at = out.len();
    out.push(0);
    body(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(10);
    varint(&mut prefix, len as u64);
    out.splice(at..=at, prefix);
}
