//! What programs see and when they run: TR-01, TR-03, TR-06, TR-09, TR-10, TR-11.

use owlet_attach::{
    AtExit, AttachError, Batch, Call, Context, DetachError, Kind, LINKS, Machine, Phase, Program,
    Value, traced,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

type Log = Arc<Mutex<Vec<String>>>;

fn log() -> Log {
    Arc::default()
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

fn says(log: &Log, text: &'static str) -> impl Fn(&Call<'_>) + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |_| log.lock().unwrap().push(text.to_owned())
}

mod order {
    #[owlet_attach::traced]
    pub(super) fn f(log: &super::Log) {
        log.lock().unwrap().push("body".to_owned());
    }
}

#[test]
fn tr_01_programs_run_once_each_in_the_documented_order() {
    let log = log();
    let session = |enter, leave| {
        let enter = says(&log, enter);
        Program::session(
            move |call| {
                enter(call);
                AtExit::Run
            },
            says(&log, leave),
        )
    };
    let attached = Batch::new()
        .add(&Program::exit(says(&log, "slow exit")).sleepable().build(), "*::order::f")
        .add(&Program::entry(says(&log, "slow entry")).sleepable().build(), "*::order::f")
        .add(&Program::entry(says(&log, "entry 1")).build(), "*::order::f")
        .add(&session("session 1 begins", "session 1 ends").build(), "*::order::f")
        .add(&Program::exit(says(&log, "exit 1")).build(), "*::order::f")
        .add(&session("session 2 begins", "session 2 ends").build(), "*::order::f")
        .add(&Program::entry(says(&log, "entry 2")).build(), "*::order::f")
        .attach()
        .unwrap();
    order::f(&log);
    let expected = [
        "entry 1",
        "session 1 begins",
        "session 2 begins",
        "entry 2",
        "slow entry",
        "body",
        "slow exit",
        "session 2 ends",
        "exit 1",
        "session 1 ends",
    ];
    assert_eq!(taken(&log), expected);
    attached.detach().unwrap();
    order::f(&log);
    assert_eq!(taken(&log), ["body"]);
}

mod modified {
    #[owlet_attach::traced(modify_return)]
    pub(super) fn number(n: i32, ran: &mut bool) -> i32 {
        *ran = true;
        n
    }

    #[owlet_attach::traced(modify_return = |errno| Err(std::io::Error::from_raw_os_error(errno as i32)))]
    pub(super) fn io(text: String) -> std::io::Result<String> {
        Ok(text)
    }

    #[owlet_attach::traced]
    pub(super) fn fixed() {}
}

#[test]
fn tr_01_a_modifying_program_answers_for_the_body_where_that_is_allowed() {
    let answer = Arc::new(Mutex::new(None));
    let asked = Arc::clone(&answer);
    let modify = Program::modify(move |_| *asked.lock().unwrap()).build();
    let seen = Arc::new(Mutex::new(String::new()));
    let see = Arc::clone(&seen);
    let exit =
        Program::exit(move |call| *see.lock().unwrap() = format!("{:?}", call.ret())).build();
    let attached = Batch::new()
        .add(&modify, "*::modified::number")
        .add(&exit, "*::modified::number")
        .add(&modify, "*::modified::io")
        .attach()
        .unwrap();
    let mut ran = false;
    assert_eq!((modified::number(3, &mut ran), ran), (3, true));
    *answer.lock().unwrap() = Some(-7_i64 as u64);
    ran = false;
    assert_eq!((modified::number(3, &mut ran), ran), (-7, false));
    assert_eq!(*seen.lock().unwrap(), "Some(Signed(-7))");
    *answer.lock().unwrap() = Some(libc::ENOSPC as u64);
    assert_eq!(modified::io("x".into()).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let error = modify.attach("*::modified::fixed").unwrap_err();
    assert!(matches!(error, AttachError::NotModifiable { .. }) && error.errno() == libc::EPERM);
    modified::fixed();
    attached.detach().unwrap();
}

mod running {
    #[owlet_attach::traced]
    pub(super) fn f() {}
    #[owlet_attach::traced]
    pub(super) fn g() {}
}

/// A program that stays inside until it is let out.
fn stays(at: (mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>)) -> owlet_attach::Builder {
    Program::entry(move |_| {
        at.0.send(()).unwrap();
        at.1.lock().unwrap().recv().unwrap();
    })
}

#[test]
fn tr_03_detach_waits_for_running_programs_of_both_flavours_and_async_does_not() {
    for sleepable in [false, true] {
        let (inside, is_inside) = mpsc::channel();
        let (out, let_out) = mpsc::channel();
        let program = stays((inside, Mutex::new(let_out)));
        let program = if sleepable { program.sleepable() } else { program }.build();
        let attached = program.attach("*::running::f").unwrap();
        let detached = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(running::f);
            is_inside.recv().unwrap();
            let waiter = scope.spawn(|| {
                attached.detach().unwrap();
                detached.store(true, Ordering::Release);
            });
            // It has unlinked the program, and then waits: as long as the program runs.
            while !owlet_attach::programs(owlet_attach::find("*::running::f")[0]).is_empty() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert!(!detached.load(Ordering::Acquire));
            running::f(); // off: nobody stays inside
            out.send(()).unwrap();
            waiter.join().unwrap();
        });
        assert_eq!(program.stats().runs, 1);
    }
    let (inside, is_inside) = mpsc::channel();
    let (out, let_out) = mpsc::channel();
    let attached = stays((inside, Mutex::new(let_out))).build().attach("*::running::g").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(running::g);
        is_inside.recv().unwrap();
        attached.detach_async().unwrap();
        out.send(()).unwrap();
    });
    owlet_attach::quiesce();
}

mod sleeping {
    use super::*;

    #[traced]
    pub(super) fn body(inside: &mpsc::Sender<()>, out: &mpsc::Receiver<()>) {
        inside.send(()).unwrap();
        out.recv().unwrap();
    }
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

/// The kernel's fexit_sleep: detach does not wait for the body, what the programs own is freed while the
/// thread sleeps in it, and their exits do not run for that call.
#[test]
fn tr_06_a_thread_asleep_in_the_body_delays_nothing_and_gets_no_exit() {
    let (inside, is_inside) = mpsc::channel();
    let (out, let_out) = mpsc::channel();
    let alive = Arc::new(AtomicUsize::new(0));
    let exits = Arc::new(AtomicUsize::new(0));
    let build = |sleepable: bool| {
        let (owned, exits) = (Counted::new(&alive), Arc::clone(&exits));
        let exit = move |_: &Call<'_>| {
            let _ = &owned;
            exits.fetch_add(1, Ordering::Relaxed);
        };
        let session = Program::session(|_| AtExit::Run, exit);
        if sleepable { session.sleepable().build() } else { session.build() }
    };
    let exit = {
        let exits = Arc::clone(&exits);
        Program::exit(move |_| {
            exits.fetch_add(1, Ordering::Relaxed);
        })
        .build()
    };
    let attached = Batch::new()
        .add(&build(false), "*::sleeping::body")
        .add(&build(true), "*::sleeping::body")
        .add(&exit, "*::sleeping::body")
        .attach()
        .unwrap();
    assert_eq!(alive.load(Ordering::Relaxed), 2);
    std::thread::scope(|scope| {
        scope.spawn(move || sleeping::body(&inside, &let_out));
        is_inside.recv().unwrap();
        attached.detach().unwrap();
        assert_eq!(alive.load(Ordering::Relaxed), 0, "freed while the thread is in the body");
        // A program that comes meanwhile is not run for the call that began without it.
        let late = build(false);
        let late = late.attach("*::sleeping::body").unwrap();
        out.send(()).unwrap();
        drop(late);
    });
    assert_eq!(exits.load(Ordering::Relaxed), 0);
    owlet_attach::quiesce();
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

mod recursive {
    #[owlet_attach::traced]
    pub(super) fn f(depth: u32) -> u32 {
        if depth == 0 { 0 } else { f(depth - 1) + 1 }
    }
    #[owlet_attach::traced]
    pub(super) fn from_handler() {}
}

#[test]
fn tr_09_a_program_that_calls_its_function_misses_that_call() {
    let other = Program::entry(|_| ()).build();
    let program = Program::entry(|call| {
        if call.arg(0) == Some(Value::Unsigned(3)) {
            assert_eq!(recursive::f(5), 5);
        }
    })
    .build();
    let attached = Batch::new()
        .add(&program, "*::recursive::f")
        .add(&other, "*::recursive::f")
        .attach()
        .unwrap();
    assert_eq!(recursive::f(3), 3);
    // Depth 3 to 0, and the six calls from inside.
    assert_eq!((program.stats().runs, program.stats().missed), (4, 6));
    assert_eq!((other.stats().runs, other.stats().missed), (10, 0));
    attached.detach().unwrap();
}

#[test]
fn tr_09_a_signal_handler_that_interrupts_a_program_misses_its_call() {
    extern "C" fn handler(_: i32) {
        recursive::from_handler();
    }
    // SAFETY: the handler calls a traced function with async-signal-safe programs.
    unsafe { libc::signal(libc::SIGUSR2, handler as extern "C" fn(i32) as libc::sighandler_t) };
    let raise = || {
        // SAFETY: the handler is installed.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    };
    let program = Program::entry(move |_| raise()).build();
    let attached = program.attach("*::recursive::from_handler").unwrap();
    recursive::from_handler();
    assert_eq!((program.stats().runs, program.stats().missed), (1, 1));
    attached.detach().unwrap();
}

#[test]
fn tr_09_functions_of_the_tracer_are_refused() {
    macro_rules! pretend {
        ($($name:literal)*) => {[$({
            #[traced(name = $name)]
            fn pretends() {}
            pretends();
            $name
        }),*]};
    }
    let program = Program::entry(|_| ()).build();
    for name in pretend! {
        "owlet::site::on"
        "owlet_attach::run::call"
        "owlet_ebpf::vm::run"
        "owlet_percpu::slots::add"
        "owlet_rcu::srcu::Srcu::read"
        "owlet_ring::writer::reserve"
        "owlet_sys::futex::wait"
        "owlet_wire::value::put"
    } {
        let error = program.attach(name).unwrap_err();
        assert!(matches!(error, AttachError::Runtime { .. }), "{name}: {error}");
        assert_eq!(error.errno(), libc::EPERM);
    }
    // Nor as one of many; and by the crate's whole name.
    assert!(matches!(program.attach("owlet*").unwrap_err(), AttachError::Runtime { .. }));
    #[traced(name = "owlet_ringing::bell")]
    fn rings() {}
    rings();
    let attached = program.attach("owlet_ringing::*").unwrap();
    rings();
    assert_eq!(program.stats().runs, 1);
    attached.detach().unwrap();
}

mod told {
    #[owlet_attach::traced]
    #[inline(never)]
    pub(super) fn f(a: u64, b: i8, text: String, at: *const u8, more: u32) -> Option<u64> {
        (text.len() as u64 == a + u64::from(more))
            .then_some((a + at.addr() as u64).wrapping_add_signed(i64::from(b)))
    }
    #[owlet_attach::traced]
    pub(super) fn vetoed(n: u64) -> u64 {
        n
    }
}

struct Vm(Mutex<Vec<(Context, u64)>>);

impl Machine for Vm {
    fn run(&self, context: &Context, session: &mut u64) -> u64 {
        self.0.lock().unwrap().push((*context, *session));
        *session += 11;
        0
    }
}

#[test]
fn tr_10_cookies_arguments_and_results_are_told_to_closures_and_machines() {
    let log = log();
    let tell = {
        let log = Arc::clone(&log);
        move |call: &Call<'_>| {
            let args: Vec<_> = call.args().collect();
            let line = format!(
                "{} {:?} cookie {} {args:?} {:?} {:?}",
                call.name().rsplit("::").next().unwrap(),
                call.phase(),
                call.cookie(),
                call.ret(),
                call.arg_named("more"),
            );
            log.lock().unwrap().push(line);
            let start = told::f as *const () as usize;
            assert!(call.ip().abs_diff(start) < 4096 || cfg!(not(target_arch = "x86_64")));
        }
    };
    let (entry, exit) = (Program::entry(tell.clone()).build(), Program::exit(tell).build());
    let vm = Arc::new(Vm(Mutex::default()));
    let machine = Program::machine(Kind::Session, Arc::clone(&vm)).named("vm").build();
    let attached = Batch::new()
        .add_with_cookie(&entry, "*::told::f", 5)
        .add_with_cookie(&exit, "*::told::f", 6)
        .add_with_cookie(&machine, "*::told::f", 7)
        .attach()
        .unwrap();
    let at = std::ptr::without_provenance(16);
    assert_eq!(told::f(2, -1, "four".to_owned(), at, 2), Some(17));
    attached.detach().unwrap();
    assert_eq!(
        taken(&log),
        [
            "f Entry cookie 5 [(\"a\", Unsigned(2)), (\"b\", Signed(-1)), (\"text\", Text(\"four\")), \
             (\"at\", Pointer(16)), (\"more\", Unsigned(2))] None Some(Unsigned(2))",
            "f Return cookie 6 [(\"a\", Unsigned(2)), (\"b\", Signed(-1)), (\"text\", Gone), \
             (\"at\", Pointer(16)), (\"more\", Unsigned(2))] Some(Unsigned(17)) Some(Unsigned(2))",
        ]
    );
    let contexts = std::mem::take(&mut *vm.0.lock().unwrap());
    let [(at_entry, 0), (at_exit, 11)] = contexts[..] else { panic!("{contexts:?}") };
    assert_eq!((at_entry.arg[0], at_entry.arg[1], at_entry.arg[3]), (2, u64::MAX, 16));
    assert_eq!((at_entry.ret, at_exit.ret, at_exit.arg[2]), (0, 17, 0));
    assert_eq!((at_entry.cookie, at_exit.cookie), (7, 7));
    assert_eq!((size_of::<Context>(), machine.name()), (56, "vm"));
}

#[test]
fn tr_10_a_session_shares_a_word_and_its_entry_may_veto_the_exit() {
    let ended = Arc::new(AtomicU64::new(0));
    let end = Arc::clone(&ended);
    let session = Program::session(
        |call| {
            let Some(Value::Unsigned(n)) = call.arg(0) else { return AtExit::Skip };
            assert_eq!(call.session(), 0);
            call.set_session(n * 10);
            if n % 2 == 0 { AtExit::Run } else { AtExit::Skip }
        },
        move |call| {
            assert_eq!(call.ret().map(|ret| ret.word() * 10), Some(call.session()));
            end.fetch_add(1, Ordering::Relaxed);
        },
    )
    .build();
    // Alone, it takes the short way.
    let alone = session.attach("*::told::vetoed").unwrap();
    for n in 0..10 {
        assert_eq!(told::vetoed(n), n);
    }
    alone.detach().unwrap();
    assert_eq!((session.stats().runs, ended.swap(0, Ordering::Relaxed)), (15, 5));
    let other = Program::session(|_| AtExit::Run, |call| assert_eq!(call.session(), 0)).build();
    let attached = Batch::new()
        .add(&session, "*::told::vetoed")
        .add(&other, "*::told::vetoed")
        .attach()
        .unwrap();
    for n in 0..10 {
        assert_eq!(told::vetoed(n), n);
    }
    attached.detach().unwrap();
    assert_eq!((session.stats().runs, ended.load(Ordering::Relaxed)), (30, 5));
    assert_eq!((other.stats().runs, other.stats().panics), (20, 0));
}

mod filtered {
    #[owlet_attach::traced]
    pub(super) fn f(n: u64) -> u64 {
        n * 2
    }
}

#[test]
fn tr_10_filters_choose_calls_at_entry_and_at_exit() {
    let entry =
        Program::entry(|_| ()).filter(|call| call.arg(0) == Some(Value::Unsigned(3))).build();
    let exit = Program::exit(|_| ()).filter(|call| call.ret() == Some(Value::Unsigned(8))).build();
    let session = Program::session(|_| AtExit::Run, |_| ())
        .filter(|call| call.phase() == Phase::Return || call.arg(0) == Some(Value::Unsigned(1)))
        .build();
    let attached = Batch::new()
        .add(&entry, "*::filtered::f")
        .add(&exit, "*::filtered::f")
        .add(&session, "*::filtered::f")
        .attach()
        .unwrap();
    for n in 0..5 {
        filtered::f(n);
    }
    attached.detach().unwrap();
    assert_eq!((entry.stats().runs, entry.stats().filtered), (1, 4));
    assert_eq!((exit.stats().runs, exit.stats().filtered), (1, 4));
    assert_eq!((session.stats().runs, session.stats().filtered), (2, 4));
}

mod limited {
    #[owlet_attach::traced]
    pub(super) fn f() {}
    #[owlet_attach::traced]
    pub(super) fn g() {}
}

#[test]
fn tr_11_more_programs_than_a_function_takes_and_duplicates_are_refused() {
    let programs: Vec<_> = (0..LINKS)
        .map(|n| {
            let program = Program::entry(|_| ());
            if n % 2 == 0 { program.build() } else { program.sleepable().build() }
        })
        .collect();
    let mut batch = Batch::new();
    for program in &programs {
        batch = batch.add(program, "*::limited::f");
    }
    let mut attached = batch.attach().unwrap();
    assert_eq!(attached.len(), 38);
    let more = Program::entry(|_| ()).build();
    let error = more.attach("*::limited::*").unwrap_err();
    assert!(matches!(error, AttachError::TooMany { .. }));
    assert_eq!(error.errno(), libc::E2BIG);
    limited::f();
    limited::g();
    assert_eq!(more.stats().runs, 0, "all or nothing");
    let error = programs[3].attach("*::limited::f").unwrap_err();
    assert!(matches!(error, AttachError::Duplicate { .. }) && error.errno() == libc::EBUSY);
    assert!(programs.iter().all(|program| program.stats().runs == 1));
    attached.merge(more.attach("*::limited::g").unwrap());
    attached.detach().unwrap();
    // United, unless they say different things.
    let both =
        Batch::new().add(&more, "*::limited::f").add(&more, "*::limited::*").attach().unwrap();
    assert_eq!(both.len(), 2);
    drop(both);
    let differ = Batch::new()
        .add_with_cookie(&more, "*::limited::f", 1)
        .add_with_cookie(&more, "*::limited::*", 2)
        .attach();
    assert!(matches!(differ, Err(AttachError::Duplicate { .. })));
    assert!(matches!(more.attach("no::such"), Err(AttachError::NoMatch { .. })));
    limited::f();
    limited::g();
    assert_eq!(more.stats().runs, 0);
}

mod panicking {
    #[owlet_attach::traced]
    pub(super) fn f(why: &str) -> usize {
        assert!(why.is_empty(), "{why}");
        7
    }
    #[owlet_attach::traced]
    pub(super) fn detaches() {}
}

#[test]
fn tr_14_a_panic_in_the_body_unwinds_and_runs_exits_one_in_a_program_switches_it_off() {
    let phases = Arc::new(Mutex::new(Vec::new()));
    let see = Arc::clone(&phases);
    let exit = Program::exit(move |call| {
        see.lock().unwrap().push((call.phase(), call.ret().is_some()));
    })
    .build();
    let bad = Program::entry(|_| panic!("a program panics")).build();
    let bad_exit = Program::exit(|_| panic!("a program panics")).build();
    let good = Program::entry(|_| ()).build();
    let attached = Batch::new()
        .add(&bad, "*::panicking::f")
        .add(&exit, "*::panicking::f")
        .add(&bad_exit, "*::panicking::f")
        .add(&good, "*::panicking::f")
        .attach()
        .unwrap();
    assert_eq!(panicking::f(""), 7);
    let caught = catch_unwind(AssertUnwindSafe(|| panicking::f("the body panics"))).unwrap_err();
    assert_eq!(*caught.downcast::<String>().unwrap(), "the body panics");
    assert_eq!(panicking::f(""), 7);
    assert_eq!(
        *phases.lock().unwrap(),
        [(Phase::Return, true), (Phase::Unwound, false), (Phase::Return, true)]
    );
    for bad in [&bad, &bad_exit] {
        let stats = bad.stats();
        assert_eq!((stats.runs, stats.panics, stats.stopped), (1, 1, true));
    }
    assert_eq!((good.stats().runs, exit.stats().runs), (3, 3));
    attached.detach().unwrap();
}

#[test]
fn a_program_that_detaches_itself_is_told_that_it_cannot_wait() {
    let slot = Arc::new(Mutex::new(None::<owlet_attach::Attached>));
    let answer = Arc::new(Mutex::new(None));
    let (own, tell) = (Arc::clone(&slot), Arc::clone(&answer));
    let program = Program::entry(move |_| {
        if let Some(attached) = own.lock().unwrap().take() {
            *tell.lock().unwrap() = Some(attached.detach());
        }
    })
    .build();
    *slot.lock().unwrap() = Some(program.attach("*::panicking::detaches").unwrap());
    panicking::detaches();
    panicking::detaches();
    assert_eq!(*answer.lock().unwrap(), Some(Err(DetachError::InsideProgram)));
    assert_eq!(program.stats().runs, 1);
}
