//! Signals and migrations.

use std::sync::Mutex;
use std::time::Duration;

use owlet_sys::{process, topology};

use super::world::{Count, go_on, judge, look_up};
use crate::flavour::Flavour;
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

extern "C" fn on_signal<F: Flavour>(_: i32) {
    Count::Signals.note();
    let n = Count::Signals.get();
    let read = || {
        let element = look_up(n);
        for _ in 0..n % 50 {
            std::hint::spin_loop();
        }
        judge(element);
    };
    if n.is_multiple_of(4) {
        F::section_anywhere(|| F::section_anywhere(read));
    } else {
        F::section_anywhere(read);
    }
}

/// Sent by another thread, sent by another thread, and by the clock.
const SIGNALS: [i32; 3] = [libc::SIGUSR1, libc::SIGUSR2, libc::SIGPROF];

/// Readers in signal handlers, nested ones too; and a clock that interrupts whoever runs, the library's
/// own thread included.
pub(super) fn install_handler<F: Flavour>() {
    for signal in SIGNALS {
        // SAFETY: all zeroes is a valid sigaction.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal::<F> as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a valid action whose handler is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
    let interval = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: a valid timer; the old one is not wanted.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
}

/// Sends signals to random threads; two kinds, so that handlers interrupt handlers.
pub(super) fn signal_until_stop(mut rng: Rng) {
    // SAFETY: takes no arguments.
    let pid = unsafe { libc::getpid() };
    while go_on() {
        if let Some(tid) = random_tid(&mut rng) {
            for signal in &SIGNALS[..2] {
                // SAFETY: takes no pointers; a thread that has gone means ESRCH.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, *signal) };
            }
        }
        std::thread::sleep(Duration::from_micros(100 + rng.below(400)));
    }
}

/// Moves random threads to random CPUs, and now and then all of them to one.
pub(super) fn migrate_until_stop(mut rng: Rng) {
    let cpus = topology::possible_cpus().unwrap_or(1).min(1024) as u64;
    while go_on() {
        if rng.below(500) == 0 {
            let cpu = Some(rng.below(cpus));
            tids().iter().for_each(|tid| move_to(*tid, cpu));
            std::thread::sleep(Duration::from_millis(20));
            tids().iter().for_each(|tid| move_to(*tid, None));
        }
        if let Some(tid) = random_tid(&mut rng) {
            move_to(tid, (rng.below(4) != 0).then(|| rng.below(cpus)));
        }
        std::thread::sleep(Duration::from_micros(200 + rng.below(800)));
    }
}

fn move_to(tid: u32, cpu: Option<u64>) {
    let mut set = [u64::MAX; 16];
    if let Some(cpu) = cpu {
        set = [0; 16];
        set[(cpu / 64) as usize] = 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads the given number of bytes.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(&set), set.as_ptr()) };
}
