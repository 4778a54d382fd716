//! Forks, jumps, threads that end, and processes that may not write their code: TR-14, and what a byte of
//! somebody else's means.

use owlet_attach::{AtExit, AttachError, Phase, Program, Value, find, programs, traced};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// A fork copies what other tests have attached: one at a time.
fn one() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `child` in a forked child, which ends with 0 if that is true.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `child` and ends without running the parent's destructors.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(120) };
            // A panic would leave by the last thread's end, which is a success.
            let child = std::panic::AssertUnwindSafe(child);
            let code = i32::from(!std::panic::catch_unwind(child).unwrap_or(false));
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            status == 0
        }
    }
}

mod forking {
    #[owlet_attach::traced]
    #[inline(never)]
    pub(super) fn f(n: u64) -> u64 {
        std::hint::black_box(n)
    }

    #[owlet_attach::traced]
    #[inline(never)]
    pub(super) fn forks() -> i32 {
        // SAFETY: both go on in this function, and the child ends soon.
        unsafe { libc::fork() }
    }
}

#[test]
fn tr_14_a_forked_child_has_the_programs_and_its_own_code() {
    let _one = one();
    let program = Program::entry(|_| ()).build();
    let late = Program::entry(|_| ()).build();
    let attached = program.attach("*::forking::f").unwrap();
    forking::f(1);
    let held = std::cell::Cell::new(Some(attached));
    let good = in_child(|| {
        forking::f(2);
        let inherited = program.stats().runs == 2;
        // The child's own code and lists: the parent's programs stay.
        held.take().unwrap().detach().unwrap();
        forking::f(3);
        let mine = late.attach("*::forking::*").unwrap();
        forking::f(4);
        let changed = program.stats().runs == 2 && late.stats().runs == 1;
        mine.detach().unwrap();
        forking::f(5);
        inherited && changed && late.stats().runs == 1
    });
    assert!(good);
    forking::f(6);
    assert_eq!((program.stats().runs, late.stats().runs), (2, 0));
    let after = held.take().unwrap();
    after.detach().unwrap();
    forking::f(7);
    assert_eq!(program.stats().runs, 2);
}

/// A session around a call that returns in two processes ends once in each, also while another thread
/// changes programs all the time.
#[test]
fn tr_14_a_call_that_forks_ends_in_both_processes() {
    let _one = one();
    let ended = Arc::new(AtomicU32::new(0));
    let end = Arc::clone(&ended);
    let session = Program::session(
        |call| {
            call.set_session(77);
            AtExit::Run
        },
        move |call| {
            assert_eq!(call.session(), 77);
            end.fetch_add(1, Ordering::Relaxed);
        },
    )
    .build();
    let attached = session.attach("*::forking::forks").unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let other = Program::entry(|_| ()).build();
                other.attach("*::forking::f").unwrap().detach().unwrap();
            }
        });
        for round in 1..=20 {
            match forking::forks() {
                0 => {
                    let mut good = ended.load(Ordering::Relaxed) == round;
                    // The lock of changes is free here, whatever the other thread did.
                    let mine = Program::entry(|_| ()).build();
                    let attached = mine.attach("*::forking::f").unwrap();
                    forking::f(1);
                    good &= mine.stats().runs == 1 && attached.detach().is_ok();
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!good)) }
                }
                pid => {
                    let mut status = 0;
                    // SAFETY: waits for the child.
                    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                    assert_eq!(status, 0);
                    assert_eq!(ended.load(Ordering::Relaxed), round);
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    attached.detach().unwrap();
}

mod threads {
    #[owlet_attach::traced]
    pub(super) fn ends(why: &str) {
        if why == "unwinds" {
            std::panic::resume_unwind(Box::new(()));
        }
    }
    #[owlet_attach::traced]
    pub(super) fn of_destructors(n: u64) -> u64 {
        n
    }
}

#[test]
fn tr_14_threads_that_end_in_and_after_traced_functions() {
    struct AtEnd;
    impl Drop for AtEnd {
        fn drop(&mut self) {
            threads::of_destructors(1);
        }
    }
    thread_local! { static AT_END: AtEnd = const { AtEnd } }
    let _one = one();
    let phases = Arc::new(Mutex::new(Vec::new()));
    let see = Arc::clone(&phases);
    let exit = Program::exit(move |call| see.lock().unwrap().push(call.phase())).build();
    let attached = exit.attach("*::threads::*").unwrap();
    let ended = std::thread::spawn(|| {
        AT_END.with(|_| ());
        threads::ends("unwinds");
    })
    .join();
    assert!(ended.is_err());
    assert_eq!(*phases.lock().unwrap(), [Phase::Unwound, Phase::Return]);
    attached.detach().unwrap();
}

mod futures {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    pub(super) struct Turns(pub(super) u32);

    impl Future for Turns {
        type Output = ();
        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            assert_ne!(self.0, 13, "a poll panics");
            self.0 = self.0.saturating_sub(1);
            if self.0 == 0 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    #[owlet_attach::traced]
    pub(super) async fn f(turns: u32, text: &str) -> usize {
        Turns(turns).await;
        text.len()
    }
}

#[test]
fn tr_14_an_async_call_begins_at_its_first_poll_and_ends_done_dropped_or_unwound() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};
    let _one = one();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (enter, leave) = (Arc::clone(&log), Arc::clone(&log));
    let session = Program::session(
        move |call| {
            let seen = format!("{:?}", call.arg(1));
            enter.lock().unwrap().push(seen);
            AtExit::Run
        },
        move |call| {
            let seen = format!("{:?} {:?} {:?}", call.phase(), call.ret(), call.arg(1));
            leave.lock().unwrap().push(seen);
        },
    )
    .build();
    let attached = session.attach("*::futures::f").unwrap();
    let taken = || std::mem::take(&mut *log.lock().unwrap());
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut future = pin!(futures::f(2, "four"));
        assert_eq!(taken(), [""; 0], "not before it is polled");
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!(taken(), ["Some(Text(\"four\"))"]);
        assert!(future.as_mut().poll(&mut context).is_ready());
        assert_eq!(taken(), ["Return Some(Unsigned(4)) Some(Gone)"]);
    }
    {
        let mut future = Box::pin(futures::f(9, ""));
        assert!(future.as_mut().poll(&mut context).is_pending());
        taken();
        drop(future);
        assert_eq!(taken(), ["Dropped None Some(Gone)"]);
        drop(futures::f(9, ""));
        assert_eq!(taken(), [""; 0]);
    }
    {
        let mut future = Box::pin(futures::f(14, ""));
        assert!(future.as_mut().poll(&mut context).is_pending());
        taken();
        let poll = std::panic::AssertUnwindSafe(|| future.as_mut().poll(&mut context).is_ready());
        assert!(std::panic::catch_unwind(poll).is_err());
        assert_eq!(taken(), ["Unwound None Some(Gone)"]);
        drop(future);
        assert_eq!(taken(), [""; 0], "once");
    }
    // Detached while it waits: no exit. Begun before: none either.
    let mut begun = Box::pin(futures::f(3, ""));
    assert!(begun.as_mut().poll(&mut context).is_pending());
    taken();
    attached.detach().unwrap();
    assert!(begun.as_mut().poll(&mut context).is_pending());
    let attached = session.attach("*::futures::f").unwrap();
    assert!(begun.as_mut().poll(&mut context).is_ready());
    assert_eq!(taken(), [""; 0]);
    attached.detach().unwrap();
}

/// What a test of jumps needs of the C library; on x86-64 a `jmp_buf` has 200 bytes.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod jumps {
    use super::*;

    #[repr(C, align(16))]
    struct Buffer([u8; 256]);

    unsafe extern "C" {
        fn longjmp(buffer: *mut Buffer, value: i32) -> !;
    }

    /// Jumps out of the call, over its exit programs.
    #[owlet_attach::traced]
    #[inline(never)]
    fn jumps(at: *mut Buffer) {
        // SAFETY: `at` was filled by a `setjmp` whose caller is still active; nothing in between has a
        // destructor that matters.
        unsafe { longjmp(at, 5) };
    }

    extern "C" fn leave(at: *mut Buffer) {
        jumps(at);
    }

    /// `setjmp`, and a call of `leave` if it was the first return, in assembly: the compiler does not know
    /// functions that return twice.
    #[unsafe(naked)]
    unsafe extern "C" fn tries(at: *mut Buffer, leave: extern "C" fn(*mut Buffer)) -> i32 {
        core::arch::naked_asm!(
            "push rbx",
            "push r12",
            "sub rsp, 8",
            "mov rbx, rdi",
            "mov r12, rsi",
            "xor esi, esi",
            "call {setjmp}@PLT",
            "test eax, eax",
            "jnz 2f",
            "mov rdi, rbx",
            "call r12",
            "xor eax, eax",
            "2:",
            "add rsp, 8",
            "pop r12",
            "pop rbx",
            "ret",
            setjmp = sym __sigsetjmp,
        )
    }

    unsafe extern "C" {
        fn __sigsetjmp(buffer: *mut Buffer, mask: i32) -> i32;
    }

    #[test]
    fn tr_14_a_longjmp_out_of_a_body_leaves_nothing_behind() {
        let _one = one();
        let exits = Arc::new(AtomicU32::new(0));
        let exit = Arc::clone(&exits);
        let session = Program::session(
            |_| AtExit::Run,
            move |_| {
                exit.fetch_add(1, Ordering::Relaxed);
            },
        )
        .build();
        let slow = Program::entry(|_| ()).sleepable().build();
        let jump = || {
            let mut buffer = Buffer([0; 256]);
            // SAFETY: the buffer lives until `tries` has returned, for the second time.
            assert_eq!(unsafe { tries(&raw mut buffer, leave) }, 5);
        };
        // Alone, it takes the short way.
        let attached = session.attach("*::jumps").unwrap();
        (0..100).for_each(|_| jump());
        assert_eq!((exits.load(Ordering::Relaxed), session.stats().runs), (0, 100));
        attached.detach().unwrap();
        let mut attached = session.attach("*::jumps").unwrap();
        attached.merge(slow.attach("*::jumps").unwrap());
        (0..100).for_each(|_| jump());
        // No exit ran, no section is left open (the wait returns), and nobody is thought to run.
        assert_eq!((exits.load(Ordering::Relaxed), session.stats().runs), (0, 200));
        assert_eq!((session.stats().missed, slow.stats().runs), (0, 100));
        attached.detach().unwrap();
    }
}

/// The site of a function: its first byte is one of the two.
fn site(function: fn()) -> Option<u64> {
    let start = function as *const () as usize;
    // SAFETY: the first bytes of a function.
    let code = unsafe { std::slice::from_raw_parts(start as *const u8, 64) };
    code.iter().position(|byte| *byte == 0xa9).map(|at| (start + at) as u64)
}

#[test]
fn a_site_with_a_breakpoint_refuses_the_batch_and_says_why() {
    #[traced(name = "process::broken")]
    #[inline(never)]
    fn broken() {}
    #[traced(name = "process::whole")]
    #[inline(never)]
    fn whole() {}
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    let _one = one();
    let at = site(broken).unwrap();
    let mem = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    mem.write_all_at(&[0xcc], at).unwrap();
    let program = Program::entry(|_| ()).build();
    let batch = || {
        let batch = owlet_attach::Batch::new();
        batch.add(&program, "process::whole").add(&program, "process::broken").attach()
    };
    let error = batch().unwrap_err();
    assert_eq!(error, AttachError::SiteBusy { address: at as usize });
    assert!(error.to_string().contains("breakpoint") && error.errno() == libc::EBUSY);
    assert!(find("process::*").iter().all(|f| programs(f).is_empty() && !f.is_on()));
    whole();
    assert_eq!(program.stats().runs, 0);
    // It goes away.
    mem.write_all_at(&[0xa9], at).unwrap();
    let attached = batch().unwrap();
    broken();
    whole();
    assert_eq!(program.stats().runs, 2);
    attached.detach().unwrap();
}

/// Bodies that are shorter than a jump, or begin with one: the site stands before them.
#[test]
fn a2_bodies_of_nothing_of_a_return_and_of_a_tail_call_are_traced() {
    mod short {
        #[owlet_attach::traced]
        #[inline(never)]
        pub(super) fn empty() {}

        #[owlet_attach::traced]
        #[inline(never)]
        pub(super) extern "C" fn same(n: u64) -> u64 {
            n
        }

        #[owlet_attach::traced]
        #[inline(never)]
        pub(super) extern "C" fn tail(n: u64) -> u64 {
            same(n)
        }

        #[owlet_attach::traced]
        #[inline(never)]
        pub(super) fn pointed(f: extern "C" fn(u64) -> u64, n: u64) -> u64 {
            f(n)
        }

        #[owlet_attach::traced]
        #[inline(never)]
        pub(super) fn never(n: u64) -> ! {
            std::panic::resume_unwind(Box::new(n))
        }
    }
    let _one = one();
    let call_all = |n: u64| {
        short::empty();
        assert_eq!(std::hint::black_box(short::same)(n), n);
        assert_eq!(short::tail(n), n);
        assert_eq!(short::pointed(short::tail, n), n);
        let thrown = std::panic::catch_unwind(|| short::never(n)).unwrap_err();
        assert_eq!(thrown.downcast_ref::<u64>(), Some(&n));
    };
    call_all(1);
    let ends = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ends);
    let entry = Program::entry(|_| ()).build();
    let session =
        Program::session(|_| AtExit::Run, move |_| _ = count.fetch_add(1, Ordering::Relaxed))
            .build();
    let functions = find("*::short::*");
    assert_eq!(functions.len(), 5);
    // Each alone, then all: calls of its own, and those that come from the others.
    for function in &functions {
        let before = (entry.stats().runs, ends.load(Ordering::Relaxed));
        let attached = owlet_attach::Batch::new()
            .add(&entry, function.name())
            .add(&session, function.name())
            .attach()
            .unwrap();
        call_all(2);
        attached.detach().unwrap();
        call_all(3);
        let name = function.name();
        let calls = if name.ends_with("same") { 3 } else { 1 + u64::from(name.ends_with("tail")) };
        assert_eq!(entry.stats().runs - before.0, calls, "{name}");
        assert_eq!(u64::from(ends.load(Ordering::Relaxed) - before.1), calls, "{name}");
    }
    let attached = entry.attach("*::short::*").unwrap();
    let before = entry.stats().runs;
    call_all(4);
    assert_eq!(entry.stats().runs - before, 8);
    attached.detach().unwrap();
}

/// Memory that may never be writable and executable (`PR_SET_MDWE`): the other way is taken.
#[test]
fn a_process_that_denies_writable_code_is_traced_all_the_same() {
    let _one = one();
    let program = Program::entry(|_| ()).build();
    assert!(in_child(|| {
        const PR_SET_MDWE: i32 = 65;
        // SAFETY: a flag of this process, a child that ends soon. Fails on kernels before 6.3.
        let denied = unsafe { libc::prctl(PR_SET_MDWE, 1, 0, 0, 0) } == 0;
        let attached = program.attach("*::forking::f").unwrap();
        forking::f(1);
        let _ = denied;
        attached.detach().is_ok() && program.stats().runs == 1
    }));
}

/// Threads asleep in bodies while everything is detached, attached anew and detached again.
#[test]
fn tr_06_many_sleepers_in_bodies_end_without_exits() {
    mod sleepers {
        use super::*;
        #[owlet_attach::traced]
        pub(super) fn body(
            n: u64,
            inside: &mpsc::Sender<()>,
            out: &Mutex<mpsc::Receiver<()>>,
        ) -> u64 {
            inside.send(()).unwrap();
            out.lock().unwrap().recv().unwrap();
            n
        }
    }
    let _one = one();
    let ended = Arc::new(AtomicU32::new(0));
    let session = || {
        let end = Arc::clone(&ended);
        Program::session(
            |_| AtExit::Run,
            move |call| {
                assert!(matches!(call.ret(), Some(Value::Unsigned(_))));
                end.fetch_add(1, Ordering::Relaxed);
            },
        )
        .build()
    };
    let (inside, is_inside) = mpsc::channel();
    let (let_out, out) = mpsc::channel();
    let out = Mutex::new(out);
    let keeps = session();
    let kept = keeps.attach("*::sleepers::body").unwrap();
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (inside, out) = (inside.clone(), &out);
            // Each sleeper begins a session of its own time, which is detached while it sleeps; and finds one
            // at its end that it has not begun.
            let others = session();
            let attached = others.attach("*::sleepers::body").unwrap();
            scope.spawn(move || sleepers::body(n, &inside, out));
            is_inside.recv().unwrap();
            attached.detach().unwrap();
            assert_eq!(others.stats().runs, 1);
            late.push(session().attach("*::sleepers::body").unwrap());
        }
        for _ in 0..8 {
            let_out.send(()).unwrap();
        }
    });
    assert_eq!(keeps.stats().runs, 16);
    // The later ones' entries saw the sleepers that came after them.
    assert_eq!(ended.load(Ordering::Relaxed), 8 + (0..8).sum::<u32>());
    drop(late);
    kept.detach().unwrap();
}
