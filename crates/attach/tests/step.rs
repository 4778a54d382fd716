//! TR-05: programs come and go at every instruction of a traced call.
//!
//! A child makes traced calls and is single-stepped by its parent. Before each step another thread of the child
//! replaces lists: it attaches programs to the function or detaches some, twice, so that the list that a call is
//! in the middle of has been replaced and retired, and its site is off or on. Inside a restartable sequence
//! stepping would restart it for ever: there the parent steps twice and then runs to the commit.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use owlet_attach::{AtExit, Attached, Batch, Program};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What parent and child share.
#[derive(Default)]
struct Shared {
    /// Changes asked for, and made.
    asked: AtomicU64,
    made: AtomicU64,
    stop: AtomicU64,
    /// Runs of programs while it was stepped.
    runs: AtomicU64,
}

fn trap() {
    // SAFETY: only in a traced child: the parent sees the trap and goes on behind it.
    unsafe { std::arch::asm!("int3") };
}

#[owlet_attach::traced]
#[inline(never)]
fn stepped(n: u64, text: &str) -> u64 {
    std::hint::black_box(n) + text.len() as u64
}

/// Counts how many of it there are.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Programs of every kind and flavour: fresh ones each time, so that they are freed.
fn fresh(alive: &Arc<AtomicUsize>, runs: &Arc<AtomicU64>) -> Batch {
    let counted = || {
        let (owned, runs) = (Counted::new(alive), Arc::clone(runs));
        move || {
            let _ = &owned;
            runs.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (a, b, c, d) = (counted(), counted(), counted(), counted());
    let session = Program::session(
        move |call| {
            call.set_session(call.arg(0).map_or(0, |n| n.word()) + 7);
            c();
            AtExit::Run
        },
        |call| assert_eq!(call.session(), call.arg(0).map_or(0, |n| n.word()) + 7),
    );
    Batch::new()
        .add(&Program::entry(move |_| a()).build(), "*::stepped")
        .add(&Program::exit(move |_| b()).build(), "*::stepped")
        .add(&session.build(), "*::stepped")
        .add(&Program::entry(move |_| d()).sleepable().build(), "*::stepped")
}

/// Replaces lists when asked to: between none and two batches are attached, at random.
fn changes(shared: &Shared, alive: &Arc<AtomicUsize>, runs: &Arc<AtomicU64>) {
    let mut attached: Vec<Attached> = Vec::new();
    let (mut made, mut random) = (0, 1_u64);
    while shared.stop.load(Ordering::Acquire) == 0 {
        if shared.asked.load(Ordering::Acquire) == made {
            std::thread::yield_now();
            continue;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match attached.len() {
            0 => attached.push(fresh(alive, runs).attach().unwrap()),
            1 if random >> 63 == 0 => attached.push(fresh(alive, runs).attach().unwrap()),
            _ => attached.remove(0).detach_async().unwrap(),
        }
        made += 1;
        shared.made.store(made, Ordering::Release);
    }
    attached.into_iter().for_each(|attached| attached.detach().unwrap());
}

const CALLS: u64 = 12;

/// The child's exit status: 0 if all held.
fn child(shared: &'static Shared) -> i32 {
    let (alive, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    // Everything once, so that memory is there.
    let warm = fresh(&alive, &runs).attach().unwrap();
    stepped(1, "");
    warm.detach().unwrap();
    let before = runs.swap(0, Ordering::Relaxed);
    let changer = {
        let (alive, runs) = (Arc::clone(&alive), Arc::clone(&runs));
        std::thread::spawn(move || changes(shared, &alive, &runs))
    };
    // SAFETY: takes no pointers that are looked at.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
    trap();
    let right = (0..CALLS).all(|n| stepped(n, "abc") == n + 3);
    trap();
    shared.stop.store(1, Ordering::Release);
    let joined = changer.join().is_ok();
    owlet_attach::quiesce();
    let runs = runs.load(Ordering::Relaxed);
    shared.runs.store(runs, Ordering::Release);
    // At most two batches of four.
    let plausible = before == 4 && runs <= CALLS * 8;
    let freed = alive.load(Ordering::Relaxed) == 0;
    let off = owlet_attach::programs(owlet_attach::find("*::stepped")[0]).is_empty();
    let all = [right, joined, plausible, freed, off && stepped(1, "") == 1];
    if all != [true; 5] {
        eprintln!("right, joined, plausible ({runs} runs), freed, off: {all:?}");
    }
    i32::from(all != [true; 5])
}

/// The parent's hold on the child.
struct Tracee(i32);

impl Tracee {
    fn ptrace(&self, request: libc::c_uint, at: u64, data: u64) -> i64 {
        // SAFETY: requests that take addresses in the child, or a buffer of ours that is valid.
        unsafe { libc::ptrace(request, self.0, at as *mut u8, data as *mut u8) }
    }

    /// Whether it has stopped at a trap; else it has ended, with this status.
    fn wait(&self) -> Result<(), i32> {
        let mut status = 0;
        // SAFETY: `status` is a valid int.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        if !libc::WIFSTOPPED(status) {
            return Err(status);
        }
        assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP, "status {status:#x}");
        Ok(())
    }

    fn go(&self, request: libc::c_uint) -> Result<(), i32> {
        assert_eq!(self.ptrace(request, 0, 0), 0);
        self.wait()
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: all zeroes is a valid value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETREGS, 0, (&raw mut registers) as u64);
        registers
    }

    fn peek(&self, at: u64) -> u64 {
        self.ptrace(libc::PTRACE_PEEKDATA, at, 0).cast_unsigned()
    }

    /// The end of the restartable sequence that `rip` is in.
    fn commit_of_sequence(&self, rip: u64, fs: u64, offset: i64) -> Option<u64> {
        let descriptor = self.peek(fs.wrapping_add_signed(offset + 8));
        if offset == 0 || descriptor == 0 {
            return None;
        }
        let (start, length) = (self.peek(descriptor + 8), self.peek(descriptor + 16));
        (start..start + length).contains(&rip).then_some(start + length)
    }

    /// Runs to `at`. False if the child got to a trap of its own first.
    fn run_to(&self, at: u64) -> bool {
        let text = self.peek(at);
        self.ptrace(libc::PTRACE_POKEDATA, at, text & !0xff | 0xcc);
        self.go(libc::PTRACE_CONT).expect("not the end");
        self.ptrace(libc::PTRACE_POKEDATA, at, text);
        let mut registers = self.registers();
        if registers.rip != at + 1 {
            return false;
        }
        registers.rip = at;
        self.ptrace(libc::PTRACE_SETREGS, 0, (&raw mut registers) as u64);
        true
    }
}

/// Has two changes made.
fn change(shared: &Shared, tracee: &Tracee) {
    let asked = shared.asked.load(Ordering::Relaxed) + 2;
    shared.asked.store(asked, Ordering::Release);
    while shared.made.load(Ordering::Acquire) != asked {
        // SAFETY: signal 0 asks whether it is there.
        assert_eq!(unsafe { libc::kill(tracee.0, 0) }, 0);
        std::thread::yield_now();
    }
}

/// Steps of a child from its beginning to its end. `None` if it could not be stepped through: a sequence found
/// that the index had moved, and was left elsewhere than at its commit.
fn step_through(offset: i64) -> Option<u64> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, anywhere.
    let page = unsafe { libc::mmap(null_mut(), 4096, protection, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: a fresh page of zeroes, which are valid, aligned, and stay for good.
    let shared: &'static Shared = unsafe { &*page.cast::<Shared>() };
    // SAFETY: the child leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers; ends a child that hangs.
        unsafe { libc::alarm(300) };
        let code = child(shared);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code) };
    }
    let tracee = Tracee(pid);
    tracee.wait().expect("no ptrace here?");
    let (mut steps, mut inside, mut complete) = (0_u64, 0, true);
    loop {
        let registers = tracee.registers();
        match tracee.commit_of_sequence(registers.rip, registers.fs_base, offset) {
            Some(commit) if inside == 2 => {
                inside = 0;
                complete = tracee.run_to(commit);
                if !complete {
                    break;
                }
            }
            Some(_) => inside += 1,
            None => {}
        }
        change(shared, &tracee);
        if tracee.peek(tracee.registers().rip) & 0xff == 0xcc {
            break;
        }
        if let Err(status) = tracee.go(libc::PTRACE_SINGLESTEP) {
            panic!("status {status:#x} after {steps} steps");
        }
        steps += 1;
        assert!(steps < 200_000, "no end");
    }
    // The trap at the end, and on.
    let status = loop {
        if let Err(status) = tracee.go(libc::PTRACE_CONT) {
            break status;
        }
    };
    assert_eq!(status, 0, "after {steps} steps");
    // If it was not stepped to its end, it may have been left without programs.
    assert!(!complete || shared.runs.load(Ordering::Acquire) > 0, "after {steps} steps");
    complete.then_some(steps)
}

#[test]
fn tr_05_programs_come_and_go_at_every_instruction() {
    let offset = owlet_percpu::rseq::area_offset() as i64;
    let walk = (0..50).find_map(|_| step_through(offset));
    let steps = walk.expect("one that can be stepped through");
    println!("{steps} instructions");
    // Each call is some hundreds, if it is on.
    assert!(steps > 500, "{steps}");
}
