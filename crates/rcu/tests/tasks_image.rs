//! TK-08: code that is called through a pointer is taken away while a thread is held up at one instruction
//! of it after the other, those before the first and after the last included.
//!
//! The visitor steps by the processor's trap flag; at the instruction whose turn it is, the handler holds
//! it there, as a preempted thread would be, until the detacher has put other code in place and has had
//! somebody look in vain for the end of a grace period. Only when that has come is the code unmapped.
#![cfg(target_arch = "x86_64")]

mod common;

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use owlet_rcu::Tasks;
use owlet_rcu::tasks::Tuning;

static CODE: Tasks = Tasks::with("code", Tuning { window: Duration::ZERO, ..Tuning::DEFAULT });
static IMAGE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// The instruction whose turn it is, counted from where stepping begins.
static TURN: AtomicU64 = AtomicU64::new(0);
/// Instructions stepped over in this visit.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// The last turn at which the visitor was held up, was let go on, and saw its old code gone.
static HELD: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);
static GONE: AtomicU64 = AtomicU64::new(0);
/// Times it was held up inside of the code; grace periods that ended while it was held up at all.
static INSIDE: AtomicU64 = AtomicU64::new(0);
static EARLY: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);

const PAGE: usize = 4096;
/// Instructions of an image.
const INSTRUCTIONS: u64 = 9;

/// A page with a function that returns a number.
struct Image(NonNull<u8>);

// SAFETY: owns its page, which any thread may unmap.
unsafe impl Send for Image {}

impl Image {
    fn new(answer: u32) -> Self {
        // push rbp; mov rbp, rsp; mov eax, imm32; four times nop; pop rbp; ret
        let mut code = vec![0x55, 0x48, 0x89, 0xe5, 0xb8];
        code.extend(answer.to_le_bytes());
        code.extend([0x90, 0x90, 0x90, 0x90, 0x5d, 0xc3]);
        let (all, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(null_mut(), PAGE, all, flags, -1, 0) }.cast::<u8>();
        assert_ne!(at.cast(), libc::MAP_FAILED);
        // SAFETY: a fresh page, longer than the code.
        unsafe { at.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
        // SAFETY: our page; nobody runs it yet.
        let answer = unsafe { libc::mprotect(at.cast(), PAGE, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(answer, 0);
        Self(NonNull::new(at).expect("not null"))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: our page; who drops it knows that nobody is in it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// What is stepped through.
#[inline(never)]
fn visit() -> u32 {
    let at = IMAGE.load(Ordering::Acquire);
    // SAFETY: an image, which is not unmapped before this thread has passed a voluntary point.
    let image = unsafe { std::mem::transmute::<*mut u8, extern "C" fn() -> u32>(at) };
    image()
}

/// Sets or clears the processor's trap flag: a SIGTRAP after each instruction.
#[inline(always)]
fn step(on: bool) {
    if on {
        // SAFETY: changes the flags register only; the stack is as before.
        unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    } else {
        // SAFETY: as above.
        unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    }
}

fn nap() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    // SAFETY: a valid time; the rest is not wanted.
    unsafe { libc::nanosleep(&raw const time, null_mut()) };
}

extern "C" fn handler(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let turn = TURN.load(Ordering::Relaxed);
    if STEPS.fetch_add(1, Ordering::Relaxed) + 1 != turn {
        return;
    }
    // SAFETY: the kernel's, for a handler with SA_SIGINFO.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let rip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let image = IMAGE.load(Ordering::Relaxed).addr();
    INSIDE.fetch_add(u64::from((image..image + PAGE).contains(&rip)), Ordering::Relaxed);
    HELD.store(turn, Ordering::Release);
    while RELEASED.load(Ordering::Acquire) < turn {
        nap();
    }
}

/// Replaces the code at each turn and unmaps what was there.
fn detach(mut image: Image) {
    for turn in 1.. {
        while HELD.load(Ordering::Acquire) < turn {
            if DONE.load(Ordering::Acquire) {
                return;
            }
            nap();
        }
        let fresh = Image::new(turn as u32);
        IMAGE.store(fresh.0.as_ptr(), Ordering::Release);
        let sleeps = CODE.stats().sleeps;
        let cookie = CODE.start_poll_expedited();
        // Somebody looks, in vain, and looks again.
        while CODE.stats().sleeps < sleeps + 2 && !CODE.poll(cookie) {
            nap();
        }
        EARLY.fetch_add(u64::from(CODE.poll(cookie)), Ordering::Relaxed);
        RELEASED.store(turn, Ordering::Release);
        while !CODE.poll(cookie) {
            nap();
        }
        drop(std::mem::replace(&mut image, fresh));
        GONE.store(turn, Ordering::Release);
    }
}

#[test]
fn tk_08_code_taken_away_at_every_instruction() {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a valid action, whose handler uses atomics and sleeps.
    unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, null_mut()) };
    let first = Image::new(0);
    IMAGE.store(first.0.as_ptr(), Ordering::Release);
    let detacher = thread::spawn(move || detach(first));
    let mut task = CODE.register();
    let turns = common::watched("a visit held up at each of its instructions", || {
        for turn in 1_u64.. {
            task.quiescent();
            STEPS.store(0, Ordering::Relaxed);
            TURN.store(turn, Ordering::Relaxed);
            step(true);
            let answer = visit();
            step(false);
            if STEPS.load(Ordering::Relaxed) < turn {
                return turn - 1;
            }
            assert!([turn - 1, turn].contains(&u64::from(answer)), "{answer} at turn {turn}");
            while GONE.load(Ordering::Acquire) < turn {
                task.quiescent();
                nap();
            }
        }
        unreachable!("a visit has an end")
    });
    DONE.store(true, Ordering::Release);
    detacher.join().expect("no panic");
    let inside = INSIDE.load(Ordering::Relaxed);
    println!("{turns} instructions, {inside} of them inside");
    assert_eq!(EARLY.load(Ordering::Relaxed), 0, "the thread was still there");
    assert!(inside >= INSTRUCTIONS && turns > inside + 4, "{inside} of {turns}");
}
