//! Signals, migrations, and the hook at the library's dangerous instants.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use owlet_percpu::testpoint::{self, Point};
use owlet_sys::{process, topology};

use super::{DOMAIN, SIGNALS, judge, look_up, stopped};
use crate::rng::Rng;

/// Threads that may be signalled and moved.
static TIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Membership of the calling thread in `TIDS`.
pub(super) struct Registered(u32);

impl Registered {
    pub(super) fn new() -> Self {
        let tid = process::gettid();
        tids().push(tid);
        Self(tid)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        tids().retain(|tid| *tid != self.0);
    }
}

fn tids() -> std::sync::MutexGuard<'static, Vec<u32>> {
    TIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn random_tid(rng: &mut Rng) -> Option<u32> {
    let tids = tids();
    let at = rng.below(tids.len() as u64) as usize;
    tids.get(at).copied()
}

extern "C" fn on_signal(_: i32) {
    let n = SIGNALS.fetch_add(1, Ordering::Relaxed);
    let token = DOMAIN.read_lock();
    let element = look_up(n);
    for _ in 0..n % 50 {
        std::hint::spin_loop();
    }
    judge(element);
    // SAFETY: this thread's own token, given back once.
    unsafe { DOMAIN.read_unlock(token) };
}

/// Readers in signal handlers, nested ones too.
pub(super) fn install_handler() {
    for signal in [libc::SIGUSR1, libc::SIGUSR2] {
        // SAFETY: all zeroes is a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a valid action whose handler is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Sends signals to random threads; two kinds, so that handlers interrupt handlers.
pub(super) fn signal_until_stop(mut rng: Rng) {
    // SAFETY: takes no arguments.
    let pid = unsafe { libc::getpid() };
    while !stopped() {
        if let Some(tid) = random_tid(&mut rng) {
            for signal in [libc::SIGUSR1, libc::SIGUSR2] {
                // SAFETY: takes no pointers; a thread that has gone means ESRCH.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
            }
        }
        std::thread::sleep(Duration::from_micros(100 + rng.below(400)));
    }
}

/// Moves random threads to random CPUs.
pub(super) fn migrate_until_stop(mut rng: Rng) {
    let cpus = topology::possible_cpus().unwrap_or(1);
    while !stopped() {
        if let Some(tid) = random_tid(&mut rng) {
            let mut set = [0_u64; 16];
            let cpu = rng.below(cpus.min(1024) as u64);
            set[(cpu / 64) as usize] = 1 << (cpu % 64);
            if rng.below(4) == 0 {
                set = [u64::MAX; 16];
            }
            // SAFETY: the kernel reads the given number of bytes.
            unsafe {
                libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(&set), set.as_ptr())
            };
        }
        std::thread::sleep(Duration::from_micros(200 + rng.below(800)));
    }
}

static HOOK_STATE: AtomicU64 = AtomicU64::new(1);

/// Installs the hook; `seed` starts its choices.
pub(super) fn install_hook(seed: u64) {
    HOOK_STATE.store(seed | 1, Ordering::Relaxed);
    testpoint::install(hold_up);
}

thread_local! {
    static STRAGGLER: Cell<bool> = const { Cell::new(false) };
}

/// True if this thread has been held up for long on its way into a section since the last call: it
/// may be in the old rank, and had better stay there for a while.
pub(super) fn is_straggler() -> bool {
    STRAGGLER.with(|s| s.replace(false))
}

/// Holds a thread up at a dangerous instant: mostly not, sometimes by a yield, rarely for longer or
/// by a move to another CPU. Async-signal-safe.
fn hold_up(point: Point) {
    let draw = HOOK_STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let draw = (draw ^ (draw >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    let (yields, naps, nap) = match point {
        Point::BeforeAtomicEntry => (20, 1, 300_000),
        Point::BeforeAtomicAdd => (100, 1, 20_000),
        Point::BetweenSums => (100, 50, 50_000),
        Point::AfterFlip => (100, 10, 20_000),
    };
    match draw % 1000 {
        n if n < naps => {
            STRAGGLER.with(|s| s.set(point == Point::BeforeAtomicEntry));
            let time = libc::timespec { tv_sec: 0, tv_nsec: nap };
            // SAFETY: a valid time; the rest is not wanted.
            unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
        }
        n if n < naps + yields && point == Point::BeforeAtomicAdd => {
            // From now on the slot is another CPU's.
            let cpus = owlet_percpu::cpus();
            let _ = topology::set_affinity(Some(n as usize % cpus), cpus);
        }
        n if n < naps + yields => {
            // SAFETY: takes no arguments.
            unsafe { libc::sched_yield() };
        }
        _ => {}
    }
}
