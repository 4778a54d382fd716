//! GP-13: a signal handler that reads runs at every instruction of everything that readers do.
//!
//! The child is single-stepped by its parent, which has it run the handler at each step, while another
//! thread of the child waits for grace periods. Inside a restartable sequence stepping would restart it
//! for ever, so there the parent steps twice, each time with a signal, and then runs to the commit.
#![cfg(target_arch = "x86_64")]

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use owlet_rcu::{ClassicSrcu, Cookie, Head, Qsbr, Srcu, Tasks, TasksTrace};

static SRCU: Srcu = Srcu::new();
static FENCED: Srcu = Srcu::fenced("fenced");
static CLASSIC: ClassicSrcu = ClassicSrcu::new();
static TRACE: TasksTrace = TasksTrace::new();
static QSBR: Qsbr = Qsbr::new();
static TASKS: Tasks = Tasks::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// Tells the parent where we are.
#[inline(always)]
fn trap() {
    // SAFETY: only in a traced child: the parent sees the trap and goes on behind it.
    unsafe { std::arch::asm!("int3") };
}

/// What the handler posts, each of them once.
#[repr(C)]
struct Object {
    head: Head,
    calls: AtomicU64,
}

const OBJECTS: usize = 1 << 15;
static OBJECT: [Object; OBJECTS] =
    [const { Object { head: Head::new(), calls: AtomicU64::new(0) } }; OBJECTS];
static POSTED: AtomicUsize = AtomicUsize::new(0);

unsafe fn count(head: NonNull<Head>) {
    // SAFETY: heads here are of statics.
    let object = unsafe { head.cast::<Object>().as_ref() };
    object.calls.fetch_add(1, Ordering::Release);
}

fn post() {
    if let Some(object) = OBJECT.get(POSTED.load(Ordering::Relaxed)) {
        POSTED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a static, posted once.
        unsafe { SRCU.call_head_in_handler(NonNull::from(object).cast(), count) };
    }
}

/// Times that a grace period passed over a handler's own section.
static PASSED_OVER: AtomicU64 = AtomicU64::new(0);

/// A section for as long as a few grace periods take if nobody is in their way.
fn visit() {
    let section = TRACE.read();
    let cookie = TRACE.snapshot();
    let passed = (0..1500).any(|_| {
        std::hint::spin_loop();
        TRACE.poll(cookie)
    });
    PASSED_OVER.fetch_add(u64::from(passed), Ordering::Relaxed);
    drop(section);
}

extern "C" fn handler(_: i32) {
    visit();
    post();
    let sections = (SRCU.read_lock(), FENCED.read(), CLASSIC.read(), TRACE.read());
    let mut reader = QSBR.register();
    let online = reader.online();
    let _ = SRCU.poll(SRCU.snapshot());
    drop(online);
    drop(reader);
    // SAFETY: this thread's token, given back once.
    unsafe { SRCU.read_unlock(sections.0) };
    drop((sections.1, sections.2, sections.3));
    HANDLED.fetch_add(1, Ordering::Relaxed);
    trap();
}

/// What is stepped through. False if a cookie passed while its section was open.
fn everything() -> bool {
    let token = SRCU.read_lock();
    let cookie = SRCU.snapshot();
    let guards = (FENCED.read(), CLASSIC.read(), TRACE.read());
    let inner = TRACE.read();
    SRCU.call(|| {
        CALLED.fetch_add(1, Ordering::Relaxed);
    });
    drop(inner);
    drop(guards);
    let mut held = !SRCU.poll(cookie);
    // SAFETY: this thread's token, given back once.
    unsafe { SRCU.read_unlock(token) };

    let mut reader = QSBR.register();
    let mut online = reader.online();
    let seen: Cookie = QSBR.snapshot();
    held &= !QSBR.poll(seen);
    online.quiescent();
    drop(online);
    drop(reader);

    let mut task = TASKS.register();
    task.quiescent();
    task.offline(|| ());
    drop(task);

    SRCU.synchronize_expedited();
    QSBR.synchronize();
    held
}

/// The child's exit status: 0 if all held.
fn child() -> i32 {
    // Everything once, so that memory is there and the worker runs.
    owlet_rcu::callback::start_worker();
    everything();
    SRCU.barrier();
    CALLED.store(0, Ordering::Relaxed);
    let updater = std::thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            owlet_rcu::wait_all(&[&SRCU, &FENCED, &CLASSIC, &TRACE, &QSBR]);
        }
    });
    // And one that waits for nobody but the sections that count in a word of their thread's.
    let second = std::thread::spawn(|| {
        while !STOP.load(Ordering::Relaxed) {
            TRACE.synchronize_expedited();
        }
    });
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // SAFETY: a valid action.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()) };
    // SAFETY: takes no pointers that are looked at.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
    trap();
    let held = everything();
    trap();
    STOP.store(true, Ordering::Relaxed);
    let joined = updater.join().is_ok() && second.join().is_ok();
    // Balanced: grace periods end, and sections are still sections.
    owlet_rcu::wait_all(&[&SRCU, &FENCED, &CLASSIC, &TRACE, &QSBR, &TASKS]);
    SRCU.barrier();
    let section = SRCU.read();
    let cookie = SRCU.start_poll();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let open = !SRCU.poll(cookie);
    drop(section);
    SRCU.wait(cookie);
    let called = CALLED.load(Ordering::Relaxed) == 1;
    let handled = HANDLED.load(Ordering::Relaxed) > 500;
    let posted = POSTED.load(Ordering::Relaxed);
    let calls = OBJECT.iter().map(|object| object.calls.load(Ordering::Acquire));
    let right = calls.enumerate().all(|(at, calls)| calls == u64::from(at < posted));
    let all_called = right && posted > 500;
    let protected = PASSED_OVER.load(Ordering::Relaxed) == 0;
    let all = [held, joined, open, called, handled, all_called, protected];
    let right = all == [true; 7];
    if !right {
        eprintln!("held, joined, open, called, handled, all called, protected: {all:?}");
    }
    i32::from(!right)
}

/// The parent's hold on the child.
struct Tracee(i32);

/// Where the child is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Trapped,
    Exited(i32),
}

impl Tracee {
    fn ptrace(&self, request: libc::c_uint, at: u64, data: u64) -> i64 {
        // SAFETY: requests that take addresses in the child, or a buffer of ours that is valid.
        unsafe { libc::ptrace(request, self.0, at as *mut u8, data as *mut u8) }
    }

    fn wait(&self) -> Stop {
        let mut status = 0;
        // SAFETY: `status` is a valid int.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        if libc::WIFSTOPPED(status) {
            assert_eq!(libc::WSTOPSIG(status), libc::SIGTRAP, "status {status:#x}");
            return Stop::Trapped;
        }
        Stop::Exited(status)
    }

    fn go(&self, request: libc::c_uint, signal: i32) -> Stop {
        assert_eq!(self.ptrace(request, 0, signal as u64), 0);
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

    fn is_trap(&self, at: u64) -> bool {
        self.peek(at) & 0xff == 0xcc
    }

    /// Runs the handler here, up to the return from it.
    fn interrupt(&self) {
        assert_eq!(self.go(libc::PTRACE_CONT, libc::SIGUSR1), Stop::Trapped);
        loop {
            let registers = self.registers();
            let at_return = registers.rax == 15 && self.peek(registers.rip) & 0xffff == 0x050f;
            assert_eq!(self.go(libc::PTRACE_SINGLESTEP, 0), Stop::Trapped);
            if at_return {
                return;
            }
        }
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
        assert_eq!(self.go(libc::PTRACE_CONT, 0), Stop::Trapped);
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

/// What came of a child.
struct Walk {
    steps: u64,
    sequences: u64,
    last: Stop,
}

/// A child from its beginning to its end. `None` if it could not be stepped through: a sequence found that
/// the index had moved, and was left elsewhere than at its commit.
fn step_through(offset: i64) -> Option<Walk> {
    // SAFETY: the child leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: takes no pointers; ends a child that hangs.
        unsafe { libc::alarm(300) };
        let code = child();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(code) };
    }
    let tracee = Tracee(pid);
    assert_eq!(tracee.wait(), Stop::Trapped, "no ptrace here?");
    let (mut steps, mut sequences, mut inside, mut complete) = (0_u64, 0_u64, 0, true);
    loop {
        let registers = tracee.registers();
        match tracee.commit_of_sequence(registers.rip, registers.fs_base, offset) {
            Some(commit) if inside == 2 => {
                inside = 0;
                sequences += 1;
                complete = tracee.run_to(commit);
                if !complete {
                    break;
                }
            }
            Some(_) => inside += 1,
            None => {}
        }
        tracee.interrupt();
        if tracee.is_trap(tracee.registers().rip) {
            break;
        }
        if let exited @ Stop::Exited(_) = tracee.go(libc::PTRACE_SINGLESTEP, 0) {
            panic!("{exited:?} after {steps} steps");
        }
        steps += 1;
        assert!(steps < 200_000, "no end");
    }
    // The trap at the end, and on.
    let mut last = tracee.go(libc::PTRACE_CONT, 0);
    while last == Stop::Trapped {
        last = tracee.go(libc::PTRACE_CONT, 0);
    }
    complete.then_some(Walk { steps, sequences, last })
}

#[test]
fn gp_13_a_handler_reads_at_every_instruction() {
    let offset = owlet_percpu::rseq::area_offset() as i64;
    let walk = (0..50).find_map(|_| step_through(offset)).expect("one that can be stepped through");
    let Walk { steps, sequences, last } = walk;
    println!("{steps} instructions, {sequences} restartable sequences");
    assert_eq!(last, Stop::Exited(0), "after {steps} steps");
    assert!(steps > 500);
    assert!(offset == 0 || sequences >= 4, "{sequences}");
}
