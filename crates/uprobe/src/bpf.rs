//! The system calls: `bpf`, `perf_event_open`, `mmap`, by hand, since no library at hand knows
//! `uprobe.multi`. Offsets in the attribute blocks are those of `union bpf_attr` in the kernel's
//! `include/uapi/linux/bpf.h` (6.6) and of `struct perf_event_attr` (version 5).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_RINGBUF: u32 = 27;
/// The map's memory can be mapped by us.
const F_MMAPABLE: u32 = 1 << 10;

const PROG_TYPE_KPROBE: u32 = 2;
const PERF_EVENT: u32 = 41;
const TRACE_UPROBE_MULTI: u32 = 48;
const F_UPROBE_MULTI_RETURN: u32 = 1;

/// Bytes of the attribute block that we pass; what we do not name is zero.
const ATTR: usize = 128;
/// Bytes of the verifier's log that we read.
const LOG: usize = 64 << 10;
/// `offsetof(struct bpf_prog_info, recursion_misses)`.
const MISSES_AT: usize = 208;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All sites of a file through one `uprobe.multi` link (Linux 6.6).
    Multi,
    /// One perf event a site: slow to detach, the kernel waits for each.
    Perf,
}

/// An attribute block: little-endian words at byte offsets.
struct Attr([u8; ATTR]);

impl Attr {
    fn new() -> Self {
        Self([0; ATTR])
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_ne_bytes());
        self
    }

    /// The address of something that outlives the call.
    fn pointer<T: ?Sized>(self, at: usize, to: *const T) -> Self {
        self.u64(at, to.cast::<u8>().addr() as u64)
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.u32(at, fd.as_raw_fd().cast_unsigned())
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }
}

/// The `bpf` call. Pointers in `attr` are valid for as long as the call takes (each caller holds what
/// they point to).
fn bpf(command: libc::c_int, attr: &mut Attr) -> io::Result<libc::c_long> {
    let address = attr.0.as_mut_ptr();
    // SAFETY: `attr` is ATTR readable and writable bytes; what it points to is the caller's, who
    // keeps it until this returns.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, address, ATTR) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(answer).map_err(|_| io::Error::other("no descriptor"))?;
    // SAFETY: a descriptor the kernel has just given us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn map_create(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    let attr = Attr::new().u32(0, kind).u32(4, key).u32(8, value).u32(12, entries).u32(16, flags);
    owned(bpf(MAP_CREATE, &mut { attr })?)
}

/// A BPF ring buffer of `bytes` (a power of two of at least a page).
pub(crate) fn ring(bytes: u32) -> io::Result<OwnedFd> {
    map_create(MAP_TYPE_RINGBUF, 0, 0, bytes, 0)
}

/// An array of `entries` values of `value` bytes; one that can be mapped if `mapped`.
pub(crate) fn array(value: u32, entries: u32, mapped: bool) -> io::Result<OwnedFd> {
    map_create(MAP_TYPE_ARRAY, 4, value, entries, if mapped { F_MMAPABLE } else { 0 })
}

/// Sets one value of an array.
pub(crate) fn update(map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    let attr = Attr::new().fd(0, map).pointer(8, &raw const key).pointer(16, value.as_ptr());
    bpf(MAP_UPDATE_ELEM, &mut { attr }).map(|_| ())
}

/// Loads a program; on refusal the error's text ends with what the verifier said last.
pub(crate) fn load(name: &CStr, code: &[u64], way: Way) -> io::Result<OwnedFd> {
    let expected = if way == Way::Multi { TRACE_UPROBE_MULTI } else { 0 };
    let license = c"Dual MIT/GPL";
    let count = u32::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let base = |attr: Attr| {
        let mut attr = attr
            .u32(0, PROG_TYPE_KPROBE)
            .u32(4, count)
            .pointer(8, code.as_ptr())
            .pointer(16, license.as_ptr())
            .u32(68, expected);
        attr.put(48, name.to_bytes().get(..15).unwrap_or(name.to_bytes()));
        attr
    };
    let refused = match bpf(PROG_LOAD, &mut base(Attr::new())) {
        Ok(fd) => return owned(fd),
        Err(error) => error,
    };
    // Again, to be told why.
    let mut log = vec![0u8; LOG];
    let attr = Attr::new().u32(24, 1).u32(28, LOG as u32).pointer(32, log.as_mut_ptr());
    if let Ok(fd) = bpf(PROG_LOAD, &mut base(attr)) {
        return owned(fd);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(log.get(..end).unwrap_or_default()).into_owned();
    let mut last = text.lines().rev().filter(|line| !line.starts_with("processed"));
    match last.find(|line| !line.trim().is_empty()) {
        Some(line) => Err(io::Error::new(refused.kind(), format!("{refused}; verifier: {line}"))),
        None => Err(refused),
    }
}

/// Sites of one file, for one link.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    /// Where in the file.
    pub(crate) offsets: Vec<u64>,
    /// Where in the file a counter is to be raised while the site is on; 0 for none.
    pub(crate) counters: Vec<u64>,
    /// What the program is told.
    pub(crate) cookies: Vec<u64>,
}

/// One `uprobe.multi` link: all sites or none. `pid` 0 is every process.
pub(crate) fn link_multi(
    program: BorrowedFd<'_>,
    path: &CStr,
    sites: &Sites,
    on_return: bool,
    pid: u32,
) -> io::Result<OwnedFd> {
    let count = u32::try_from(sites.offsets.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut attr = Attr::new()
        .fd(0, program)
        .u32(8, TRACE_UPROBE_MULTI)
        .pointer(16, path.as_ptr())
        .pointer(24, sites.offsets.as_ptr())
        .pointer(40, sites.cookies.as_ptr())
        .u32(48, count)
        .u32(52, if on_return { F_UPROBE_MULTI_RETURN } else { 0 })
        .u32(56, pid);
    if sites.counters.iter().any(|&counter| counter != 0) {
        attr = attr.pointer(32, sites.counters.as_ptr());
    }
    owned(bpf(LINK_CREATE, &mut attr)?)
}

/// Puts a program on a perf event.
pub(crate) fn link_perf(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let attr = Attr::new().fd(0, program).fd(4, event).u32(8, PERF_EVENT).u64(16, cookie);
    owned(bpf(LINK_CREATE, &mut { attr })?)
}

/// What a perf event of the kind `uprobe` is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'p> {
    /// The number of that kind, see [`uprobe_kind`].
    pub(crate) kind: u32,
    pub(crate) path: &'p CStr,
    pub(crate) offset: u64,
    /// As in [`Sites`].
    pub(crate) counter: u64,
    pub(crate) on_return: bool,
    /// 0 is every process.
    pub(crate) pid: u32,
}

/// A perf event on one site. The kernel filters by address space, so that it is hit by every thread of
/// the process.
pub(crate) fn perf_event(event: &Event<'_>) -> io::Result<OwnedFd> {
    /// `PERF_ATTR_SIZE_VER5`.
    const SIZE: u32 = 112;
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOEXEC: libc::c_ulong = 8;
    let mut attr = Attr::new()
        .u32(0, event.kind)
        .u32(4, SIZE)
        .u64(8, u64::from(event.on_return) | event.counter << 32)
        .pointer(56, event.path.as_ptr())
        .u64(64, event.offset);
    let (pid, cpu) = match event.pid {
        0 => (-1, 0),
        pid => (pid.cast_signed(), -1),
    };
    let address = attr.0.as_mut_ptr();
    // SAFETY: `attr` is more than SIZE bytes; the path it points to outlives the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_perf_event_open, address, pid, cpu, -1, CLOEXEC) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { owned(answer) }
}

/// The number that this kernel gives perf events of the kind `uprobe`.
pub(crate) fn uprobe_kind() -> io::Result<u32> {
    let text = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// How often the kernel did not run a program since one of its kind ran on that CPU already.
pub(crate) fn misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0u8; 256];
    let length = u32::try_from(info.len()).unwrap_or(0);
    let attr = Attr::new().fd(0, program).u32(4, length).pointer(8, info.as_mut_ptr());
    bpf(OBJ_GET_INFO_BY_FD, &mut { attr })?;
    let word = info.get(MISSES_AT..).and_then(|rest| rest.first_chunk::<8>());
    Ok(word.map_or(0, |word| u64::from_ne_bytes(*word)))
}

/// Memory of a map. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes from `offset`; `write` for those that are ours to write.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: usize,
        len: usize,
        write: bool,
    ) -> io::Result<Self> {
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (shared, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, shared, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(|base| Self { base, len }).ok_or_else(|| {
            // The kernel never maps at 0 for somebody who did not ask for it.
            io::Error::other("mapped at 0")
        })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` has mapped; whoever holds a pointer into it holds this as well.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: memory that the kernel shares with everybody; all access is atomic or to bytes that the
// ring's protocol has given to the reader.
unsafe impl Send for Mapping {}
