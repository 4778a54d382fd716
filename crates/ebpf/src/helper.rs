//! Helpers: the functions that programs may call, under the kernel's numbers, so that its headers work.
//!
//! One table says for each helper its number, its name, what its arguments must be and what does it. The
//! verifier checks programs against it, the interpreter checks every call against it, the compiler calls
//! what it names.
//!
//! All helpers are async-signal-safe and cost a few nanoseconds, `ktime_get_ns` some 20; `probe_read` and its
//! like make a system call.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::map::{Map, Update, errno};
use crate::memory;
use crate::program::{Context, Shared};
use crate::reserved::Reserved;

/// What an argument must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    /// Any number.
    Any,
    /// The context.
    Ctx,
    /// A map.
    Map,
    /// A ring buffer.
    Ring,
    /// Memory of the map's key size, initialised.
    Key,
    /// Memory of the map's value size, initialised.
    Value,
    /// Memory, initialised; the next argument is its length.
    Readable,
    /// Memory that is filled; the next argument is its length.
    Writable,
    /// Length of the argument before; may be 0.
    LenOrZero,
    /// Length of the argument before; at least 1.
    Len,
    /// Eight bytes that are filled.
    Long,
    /// A record that this run has reserved and not ended.
    Record,
}

/// What a helper returns.
#[cfg(feature = "load")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ret {
    Number,
    /// Address of a value, or of a record that is reserved; or 0.
    ValueOrNull,
}

/// What runs a helper.
pub(crate) type Body = unsafe extern "C" fn(u64, u64, u64, u64, u64, &Env) -> u64;

/// What a helper knows of the run. Lives on the stack of the run; compiled code knows its layout.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Env {
    /// Stack pointer of the outermost frame of compiled code.
    pub(crate) frame: Cell<u64>,
    /// Compiled code writes here why it ends before its time: [`NO_FUEL`], [`UNALIGNED`].
    pub(crate) ended: Cell<u64>,
    pub(crate) shared: *const Shared,
    /// Of a session, the word that both ends of a call share.
    pub(crate) session: Cell<u64>,
    /// 1 at the return of the function, otherwise 0.
    pub(crate) is_return: u64,
    pub(crate) reserved: Reserved,
}

/// No fuel left.
#[cfg(target_arch = "x86_64")]
pub(crate) const NO_FUEL: u64 = 1;
/// An atomic operation on something not aligned to its width.
#[cfg(target_arch = "x86_64")]
pub(crate) const UNALIGNED: u64 = 2;

macro_rules! helpers {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, ($($arg:ident),*) -> $ret:ident, $body:path;)*) => {
        /// A helper; see the table in this module.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Helper { $($variant = $number,)* }

        impl Helper {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name, without `bpf_`.
            #[cfg(feature = "load")]
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) const fn args(self) -> &'static [Arg] {
                match self { $(Self::$variant => &[$(Arg::$arg,)*],)* }
            }

            #[cfg(feature = "load")]
            pub(crate) const fn ret(self) -> Ret {
                match self { $(Self::$variant => Ret::$ret,)* }
            }

            pub(crate) fn body(self) -> Body {
                match self { $(Self::$variant => $body,)* }
            }
        }
    };
}

helpers! {
    MapLookup = 1, "map_lookup_elem", (Map, Key) -> ValueOrNull, map_lookup;
    MapUpdate = 2, "map_update_elem", (Map, Key, Value, Any) -> Number, map_update;
    MapDelete = 3, "map_delete_elem", (Map, Key) -> Number, map_delete;
    ProbeRead = 4, "probe_read", (Writable, LenOrZero, Any) -> Number, probe_read;
    KtimeGetNs = 5, "ktime_get_ns", () -> Number, ktime;
    TracePrintk = 6, "trace_printk", (Readable, Len) -> Number, trace_printk;
    PrandomU32 = 7, "get_prandom_u32", () -> Number, prandom;
    ProcessorId = 8, "get_smp_processor_id", () -> Number, processor;
    PidTgid = 14, "get_current_pid_tgid", () -> Number, pid_tgid;
    Comm = 16, "get_current_comm", (Writable, Len) -> Number, comm;
    ProbeReadStr = 45, "probe_read_str", (Writable, LenOrZero, Any) -> Number, probe_read_str;
    ProbeReadUser = 112, "probe_read_user", (Writable, LenOrZero, Any) -> Number, probe_read;
    ProbeReadKernel = 113, "probe_read_kernel", (Writable, LenOrZero, Any) -> Number, probe_read;
    ProbeReadUserStr = 114, "probe_read_user_str", (Writable, LenOrZero, Any) -> Number, probe_read_str;
    ProbeReadKernelStr = 115, "probe_read_kernel_str", (Writable, LenOrZero, Any) -> Number, probe_read_str;
    RingOutput = 130, "ringbuf_output", (Ring, Readable, LenOrZero, Any) -> Number, ring_output;
    RingReserve = 131, "ringbuf_reserve", (Ring, Any, Any) -> ValueOrNull, ring_reserve;
    RingSubmit = 132, "ringbuf_submit", (Record, Any) -> Number, ring_submit;
    RingDiscard = 133, "ringbuf_discard", (Record, Any) -> Number, ring_discard;
    RingQuery = 134, "ringbuf_query", (Ring, Any) -> Number, ring_query;
    FuncIp = 173, "get_func_ip", (Ctx) -> Number, func_ip;
    AttachCookie = 174, "get_attach_cookie", (Ctx) -> Number, attach_cookie;
    FuncArg = 183, "get_func_arg", (Ctx, Any, Long) -> Number, func_arg;
    FuncRet = 184, "get_func_ret", (Ctx, Long) -> Number, func_ret;
    FuncArgCnt = 185, "get_func_arg_cnt", (Ctx) -> Number, func_arg_cnt;
    // The kernel has functions of its own for these, not helpers; no number of its helpers is near.
    SessionIsReturn = 10_001, "session_is_return", (Ctx) -> Number, session_is_return;
    SessionGet = 10_002, "session_get", (Ctx) -> Number, session_get;
    SessionSet = 10_003, "session_set", (Ctx, Any) -> Number, session_set;
}

impl Helper {
    /// Only where a program runs at both ends of a call.
    #[cfg(feature = "load")]
    pub(crate) fn is_for_sessions(self) -> bool {
        matches!(self, Self::SessionIsReturn | Self::SessionGet | Self::SessionSet)
    }

    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.iter().copied().find(|helper| *helper as i32 == number)
    }
}

/// A pointer that a program holds.
fn at(address: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// # Safety
/// `address` is what an instruction that names a map has loaded.
unsafe fn map<'a>(address: u64) -> &'a Map {
    // SAFETY: the caller's; maps live as long as the programs that use them.
    unsafe { &*at(address).cast::<Map>() }
}

/// # Safety
/// `address` is the context that the run was given.
unsafe fn context<'a>(address: u64) -> &'a Context {
    // SAFETY: the caller's; the context is borrowed for the run.
    unsafe { &*at(address).cast::<Context>() }
}

fn error(errno: i64) -> u64 {
    errno.cast_unsigned()
}

fn status(done: Result<(), crate::map::MapError>) -> u64 {
    done.map_or_else(|why| error(why.errno()), |()| 0)
}

/// Shared by all bodies: what their arguments are is what the table says, by the verifier or by the
/// interpreter's check of the call.
unsafe extern "C" fn map_lookup(r1: u64, key: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: a map, by the table.
    let map = unsafe { map(r1) };
    // SAFETY: a key of that map, by the table.
    unsafe { map.lookup(at(key)) }.expose_provenance() as u64
}

unsafe extern "C" fn map_update(r1: u64, key: u64, value: u64, flags: u64, _: u64, _: &Env) -> u64 {
    let Some(flag) = Update::from_number(flags) else { return error(errno::EINVAL) };
    // SAFETY: a map, by the table.
    let map = unsafe { map(r1) };
    // SAFETY: a key and a value of that map, by the table.
    status(unsafe { map.update_raw(at(key), at(value), flag) })
}

unsafe extern "C" fn map_delete(r1: u64, key: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: a map, by the table.
    let map = unsafe { map(r1) };
    // SAFETY: a key of that map, by the table.
    status(unsafe { map.delete_raw(at(key)) })
}

unsafe extern "C" fn ktime(_: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    owlet_sys::clock::monotonic_ns()
}

/// Formats nothing: that is not for signal handlers. Counted.
unsafe extern "C" fn trace_printk(_: u64, _: u64, _: u64, _: u64, _: u64, env: &Env) -> u64 {
    // SAFETY: the run borrows what its program shares.
    unsafe { &*env.shared }.printk.fetch_add(1, Relaxed);
    0
}

unsafe extern "C" fn prandom(_: u64, _: u64, _: u64, _: u64, _: u64, env: &Env) -> u64 {
    // SAFETY: the run borrows what its program shares.
    let state = &unsafe { &*env.shared }.random;
    // A counter with a good last step (SplitMix64): each caller gets a number of its own.
    let mut word = state.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) & 0xffff_ffff
}

unsafe extern "C" fn processor(_: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    owlet_percpu::current_cpu() as u64
}

unsafe extern "C" fn pid_tgid(_: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    thread_local! {
        /// Generation of the process, and the answer under it.
        static KNOWN: (AtomicU64, AtomicU64) = const { (AtomicU64::new(0), AtomicU64::new(0)) };
    }
    let generation = owlet_sys::fork::generation();
    let known = KNOWN.try_with(|(under, answer)| {
        let answer = answer.load(Relaxed);
        (under.load(Relaxed) == generation).then_some(answer)
    });
    if let Ok(Some(answer)) = known {
        return answer;
    }
    let (pid, tid) = (owlet_sys::process::getpid(), owlet_sys::process::gettid());
    let answer = u64::from(pid) << 32 | u64::from(tid);
    let _ = KNOWN.try_with(|(under, known)| {
        // A signal handler in between finds no answer, or the same.
        under.store(0, Relaxed);
        known.store(answer, Relaxed);
        owlet_percpu::atomic::compiler_fence(owlet_percpu::atomic::Ordering::Release);
        under.store(generation, Relaxed);
    });
    answer
}

unsafe extern "C" fn comm(to: u64, len: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    let Ok(len) = usize::try_from(len) else { return error(errno::EINVAL) };
    let name = owlet_sys::process::thread_name();
    let name = name.as_ref().map_or(&b""[..], |name| name.as_bytes());
    for i in 0..len {
        // The last byte is 0, and so is what the name does not fill.
        let byte = if i + 1 < len { name.get(i).copied().unwrap_or(0) } else { 0 };
        // SAFETY: writable memory of this length, by the table.
        unsafe { memory::store(at(to).wrapping_add(i), 1, byte.into()) };
    }
    0
}

unsafe extern "C" fn ring_output(r1: u64, data: u64, len: u64, flags: u64, _: u64, _: &Env) -> u64 {
    // BPF_RB_NO_WAKEUP and BPF_RB_FORCE_WAKEUP: nobody is woken either way.
    if flags & !3 != 0 {
        return error(errno::EINVAL);
    }
    // SAFETY: a map, by the table.
    let map = unsafe { map(r1) };
    // SAFETY: readable memory of this length, by the table.
    error(unsafe { map.output(at(data), len) })
}

unsafe extern "C" fn ring_reserve(r1: u64, len: u64, flags: u64, _: u64, _: u64, env: &Env) -> u64 {
    // SAFETY: a map, by the table.
    let map = unsafe { map(r1) };
    if flags != 0 {
        map.lost();
        return 0;
    }
    // SAFETY: maps live as long as the programs that use them.
    unsafe { env.reserved.reserve(map, len) }.expose_provenance() as u64
}

unsafe extern "C" fn ring_submit(
    record: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    env: &Env,
) -> u64 {
    ring_end(record, flags, env, true)
}

unsafe extern "C" fn ring_discard(
    record: u64,
    flags: u64,
    _: u64,
    _: u64,
    _: u64,
    env: &Env,
) -> u64 {
    ring_end(record, flags, env, false)
}

/// Flags are about waking somebody up, which nobody does here.
fn ring_end(record: u64, _flags: u64, env: &Env, keep: bool) -> u64 {
    env.reserved.end(record, keep);
    0
}

/// Copies what is at an address of this process, whatever the address: by way of the kernel, which finds
/// out whether something is mapped there. What is not copied is filled with zeros.
unsafe extern "C" fn probe_read(to: u64, len: u64, from: u64, _: u64, _: u64, _: &Env) -> u64 {
    let Ok(len) = usize::try_from(len) else { return error(errno::EFAULT) };
    // SAFETY: writable memory of this length, by the table.
    let got = unsafe { owlet_sys::memory::read_own(from, at(to), len) }.unwrap_or(0);
    if got >= len {
        return 0;
    }
    // SAFETY: as above.
    unsafe { memory::clear(at(to), len) };
    error(errno::EFAULT)
}

/// As [`probe_read`], up to and with the first 0, which is there in any case; returns how many bytes that
/// are. Reads no page that the string does not reach.
unsafe extern "C" fn probe_read_str(to: u64, len: u64, from: u64, _: u64, _: u64, _: &Env) -> u64 {
    const PIECE: u64 = 256;
    let Ok(room) = usize::try_from(len) else { return error(errno::EFAULT) };
    let start = at(to);
    let (mut done, mut ended) = (0, false);
    while done < room && !ended {
        let from = from.wrapping_add(done as u64);
        // Pieces are aligned, so that none goes over the end of a page.
        let piece = usize::try_from(PIECE - from % PIECE).unwrap_or(1).min(room - done);
        let to = start.wrapping_add(done);
        // SAFETY: writable memory of this length, by the table.
        if unsafe { owlet_sys::memory::read_own(from, to, piece) } != Ok(piece) {
            // SAFETY: as above.
            unsafe { memory::clear(start, room) };
            return error(errno::EFAULT);
        }
        // SAFETY: as above.
        let zero = (0..piece).find(|i| unsafe { memory::load(to.wrapping_add(*i), 1) } == 0);
        done += zero.map_or(piece, |zero| zero + 1);
        ended = zero.is_some();
    }
    let last = done.saturating_sub(1);
    // SAFETY: as above; `last` is at most the length, and equal only if that is 0.
    unsafe { memory::clear(start.wrapping_add(last), room - last) };
    done as u64
}

unsafe extern "C" fn session_is_return(_: u64, _: u64, _: u64, _: u64, _: u64, env: &Env) -> u64 {
    env.is_return
}

unsafe extern "C" fn session_get(_: u64, _: u64, _: u64, _: u64, _: u64, env: &Env) -> u64 {
    env.session.get()
}

unsafe extern "C" fn session_set(_: u64, word: u64, _: u64, _: u64, _: u64, env: &Env) -> u64 {
    env.session.set(word);
    0
}

unsafe extern "C" fn ring_query(r1: u64, what: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: a map, by the table.
    unsafe { map(r1) }.query(what)
}

unsafe extern "C" fn func_ip(ctx: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: the context, by the table.
    unsafe { context(ctx) }.ip
}

unsafe extern "C" fn attach_cookie(ctx: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: the context, by the table.
    unsafe { context(ctx) }.cookie
}

unsafe extern "C" fn func_arg(ctx: u64, n: u64, to: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: the context, by the table.
    let args = unsafe { context(ctx) }.arg;
    // The number is 32 bits wide, as in the kernel's prototype.
    let value = usize::try_from(n & 0xffff_ffff).ok().and_then(|n| args.get(n)).copied();
    // The verifier takes the eight bytes for written, whatever is returned.
    // SAFETY: eight writable bytes, by the table.
    unsafe { memory::store(at(to), 8, value.unwrap_or(0)) };
    value.map_or(error(errno::EINVAL), |_| 0)
}

unsafe extern "C" fn func_ret(ctx: u64, to: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    // SAFETY: the context, by the table.
    let value = unsafe { context(ctx) }.ret;
    // SAFETY: eight writable bytes, by the table.
    unsafe { memory::store(at(to), 8, value) };
    0
}

unsafe extern "C" fn func_arg_cnt(_: u64, _: u64, _: u64, _: u64, _: u64, _: &Env) -> u64 {
    crate::program::ARGS as u64
}
