//! Delays, signals and migrations.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use owlet_sys::process;

use super::world::{World, note};
use crate::rng::Rng;

/// The world that handlers read in.
static HANDLERS: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());
/// Signals handled.
pub(super) static SIGNALS: AtomicU64 = AtomicU64::new(0);
/// Threads that may be signalled and moved.
static TIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A moment inside.
pub(super) fn dawdle(rng: &mut Rng) {
    match rng.below(64) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(300))),
        1..4 => std::thread::yield_now(),
        _ => (0..rng.below(60)).for_each(|_| std::hint::spin_loop()),
    }
}

/// A thread that may be signalled and moved.
pub(super) struct Here(u32);

impl Here {
    pub(super) fn new() -> Self {
        let tid = process::gettid();
        TIDS.lock().unwrap_or_else(PoisonError::into_inner).push(tid);
        Self(tid)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        TIDS.lock().unwrap_or_else(PoisonError::into_inner).retain(|tid| *tid != self.0);
    }
}

/// A signal to a random thread, or another CPU for it.
pub(super) fn shake_somebody(rng: &mut Rng) {
    // Held: a thread that is in the list lives.
    let tids = TIDS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(&tid) = tids.get(rng.below(tids.len() as u64) as usize) else { return };
    if rng.below(2) == 0 {
        // SAFETY: a signal of ours to a thread of ours; takes no pointers.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, libc::SIGUSR1) };
        return;
    }
    let cpu = rng.below(owlet_percpu::cpus() as u64) as usize;
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid set; numbers beyond it are ignored.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: a valid set of the size given; a CPU that is not there is refused.
    unsafe {
        libc::sched_setaffinity(tid.cast_signed(), size_of::<libc::cpu_set_t>(), &raw const set)
    };
}

/// Handlers of signals read in `world` from here on.
pub(super) fn install_handler(world: &'static World) {
    HANDLERS.store(std::ptr::from_ref(world).cast_mut(), Ordering::Release);
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // Without SA_RESTART: sleeps end early.
    action.sa_flags = 0;
    // SAFETY: a valid action whose handler is async-signal-safe.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn on_signal(_: i32) {
    note(&SIGNALS);
    // SAFETY: null, or a world, which is leaked.
    let Some(world) = (unsafe { HANDLERS.load(Ordering::Acquire).as_ref() }) else { return };
    if let Some(hold) = world.lock.try_read() {
        let mut last = 0;
        world.look(&mut last, || ());
        // SAFETY: taken above.
        unsafe { world.lock.unlock_read(hold) };
    }
}
