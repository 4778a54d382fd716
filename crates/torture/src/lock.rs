//! The reader-writer lock under fire.
//!
//! Readers and writers take one lock in every way it has, hold it for a moment, across a yield or a sleep,
//! give up after random times, give it back on other threads, and make it more and less than it was.
//! Meanwhile threads are moved between CPUs, live for one hold, and handlers of signals try to read. What
//! is judged: two words that writers keep equal, without any order of their own, on lines of their own; that
//! writers meet nobody; that both words are never older than they were; and that everybody gets on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use owlet_rcu::rwlock::{self, RawRwLock, ReadHold};
use owlet_sys::{process, topology};
use serde::Serialize;

use crate::rng::Rng;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How long to go on with each policy.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Policies, separated by commas; all, if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    policies: Vec<Policy>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Backend to torture.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
    /// Reader threads.
    #[arg(long, default_value_t = 3)]
    readers: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 2)]
    writers: u64,
    /// How long there must be no writer for readers to go back to the fast way.
    #[arg(long, default_value_t = 30, value_name = "MICROSECONDS")]
    reopen: u64,
    /// Nothing but short holds, one thread to a CPU, with the readers' store buffers kept full, and readers
    /// that are fast between any two writers: the run for the membarrier.
    #[arg(long)]
    sprint: bool,
    /// One JSON value on standard output instead of lines of text.
    #[arg(long)]
    json: bool,
}

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// First come, first served.
    Burst,
    /// Phases alternate.
    Fair,
    /// Writers find gaps.
    Readers,
}

/// A word on a line pair of its own.
#[repr(align(128))]
struct Word(AtomicU64);

impl Word {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }
}

/// What came out.
#[derive(Serialize)]
struct Outcome {
    policy: String,
    held: bool,
    backend: String,
    seconds: u64,
    seed: u64,
    reads: u64,
    fast: u64,
    writes: u64,
    gave_up: u64,
    moved: u64,
    signals: u64,
    threads: u64,
    membarriers: u64,
    torn: u64,
    stale: u64,
    met: u64,
    stalled: bool,
}

/// A lock, what it protects, and counts.
struct World {
    lock: RawRwLock,
    first: Word,
    second: Word,
    writers: Word,
    stop: AtomicBool,
    ended: AtomicBool,
    reads: AtomicU64,
    fast: AtomicU64,
    writes: AtomicU64,
    gave_up: AtomicU64,
    moved: AtomicU64,
    threads: AtomicU64,
    torn: AtomicU64,
    stale: AtomicU64,
    met: AtomicU64,
}

/// The world that handlers read in.
static HANDLERS: std::sync::atomic::AtomicPtr<World> =
    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static TIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn note(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Runs the torture and prints the verdict.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.backend.apply();
    let _ = owlet_percpu::backend();
    let all = [Policy::Burst, Policy::Fair, Policy::Readers];
    let policies = if options.policies.is_empty() { &all[..] } else { &options.policies };
    let outcomes: Vec<_> = policies.iter().map(|policy| torture(options, *policy)).collect();
    let held = outcomes.iter().all(|outcome| outcome.held);
    if options.json {
        say!("{}", serde_json::to_string(&outcomes)?);
        return Ok(held);
    }
    for o in &outcomes {
        say!(
            "rwlock {}: {} reads={} fast={} writes={} gave-up={} moved={} signals={} threads={} \
             membarriers={} torn={} stale={} met={}{}",
            o.policy,
            if o.held { "PASS" } else { "FAIL" },
            o.reads,
            o.fast,
            o.writes,
            o.gave_up,
            o.moved,
            o.signals,
            o.threads,
            o.membarriers,
            o.torn,
            o.stale,
            o.met,
            if o.stalled { " STALLED" } else { "" }
        );
    }
    say!("rwlock: {} seed={}", if held { "PASS" } else { "FAIL" }, options.seed);
    Ok(held)
}

fn torture(options: &Options, policy: Policy) -> Outcome {
    let rules = match policy {
        Policy::Burst => rwlock::Policy::WriterBurst,
        Policy::Fair => rwlock::Policy::PhaseFair,
        Policy::Readers => rwlock::Policy::ReaderPreferring,
    };
    let reopen = if options.sprint { 0 } else { options.reopen };
    let lock = rwlock::Options::new().policy(rules).reopen_after(Duration::from_micros(reopen));
    // Handlers may come late: it stays for ever.
    let world: &'static World = Box::leak(Box::new(World::new(lock.build_raw())));
    HANDLERS.store(std::ptr::from_ref(world).cast_mut(), Ordering::Release);
    install_handler();
    std::thread::scope(|s| {
        if options.sprint {
            spawn_sprint(s, world, options.seed);
        } else {
            spawn_all(s, world, options);
        }
        if world.watch(options) {
            say!(
                "{}",
                serde_json::to_string(&world.outcome(options, policy, true)).unwrap_or_default()
            );
            // SAFETY: ends the process at once; stalled threads cannot be joined.
            unsafe { libc::_exit(1) };
        }
        world.stop.store(true, Ordering::Relaxed);
        world.expect_end(options, policy);
    });
    world.ended.store(true, Ordering::Relaxed);
    world.outcome(options, policy, false)
}

fn spawn_sprint<'s>(s: &'s Scope<'s, '_>, world: &'static World, seed: u64) {
    for cpu in 0..owlet_percpu::cpus().max(2) {
        let rng = Rng::new(seed, cpu as u64);
        s.spawn(move || {
            let _ = topology::set_affinity(Some(cpu), owlet_percpu::cpus());
            if cpu == 0 { world.sprint_writing(rng) } else { world.sprint_reading(rng) }
        });
    }
}

fn spawn_all<'s>(s: &'s Scope<'s, '_>, world: &'static World, options: &Options) {
    let mut stream = 0;
    let mut rng = || {
        stream += 1;
        Rng::new(options.seed, stream)
    };
    let (send, ends) = channel();
    s.spawn(move || world.end_others(&ends));
    for _ in 0..options.readers {
        let (mut rng, send) = (rng(), send.clone());
        s.spawn(move || {
            let _here = Here::new();
            let mut last = 0;
            while !world.is_over() {
                world.read(&mut rng, &mut last, &send);
            }
        });
    }
    for _ in 0..options.writers {
        let mut rng = rng();
        s.spawn(move || {
            let _here = Here::new();
            while !world.is_over() {
                world.write(&mut rng);
            }
        });
    }
    let (mut churn, mut shake) = (rng(), rng());
    s.spawn(move || {
        while !world.is_over() {
            let mut rng = Rng::new(churn.next(), 1);
            let send = send.clone();
            let short = move || {
                let _here = Here::new();
                let mut last = 0;
                (0..3).for_each(|_| world.read(&mut rng, &mut last, &send));
                world.write(&mut rng);
            };
            let _ = std::thread::spawn(short).join();
            note(&world.threads);
        }
    });
    s.spawn(move || {
        while !world.is_over() {
            shake_somebody(&mut shake);
            std::thread::sleep(Duration::from_micros(100 + shake.below(400)));
        }
    });
}

impl World {
    fn new(lock: RawRwLock) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            lock,
            first: Word::new(),
            second: Word::new(),
            writers: Word::new(),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            reads: zero(),
            fast: zero(),
            writes: zero(),
            gave_up: zero(),
            moved: zero(),
            threads: zero(),
            torn: zero(),
            stale: zero(),
            met: zero(),
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_faulty(&self) -> bool {
        [&self.torn, &self.stale, &self.met].iter().any(|n| n.load(Ordering::Relaxed) != 0)
    }

    /// Watches over the run; true if it stalled.
    fn watch(&self, options: &Options) -> bool {
        let begun = Instant::now();
        // Both, but where writers may starve.
        let progress = || [&self.reads, &self.writes].map(|n| n.load(Ordering::Relaxed));
        let may_starve = self.lock.policy() == rwlock::Policy::ReaderPreferring;
        let (mut last, mut since) = (progress(), Instant::now());
        while begun.elapsed() < Duration::from_secs(options.seconds) && !self.is_faulty() {
            std::thread::sleep(Duration::from_millis(20));
            let now = progress();
            if now[0] != last[0] && (may_starve || now[1] != last[1]) {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(60) {
                return true;
            }
        }
        false
    }

    /// Gives everybody half a minute to come to an end.
    fn expect_end(&'static self, options: &Options, policy: Policy) {
        let options = options.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(30));
            if !self.ended.load(Ordering::Relaxed) {
                let outcome = self.outcome(&options, policy, true);
                say!("{}", serde_json::to_string(&outcome).unwrap_or_default());
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(1) };
            }
        });
    }

    /// What a reader finds, given what it found before.
    fn look(&self, last: &mut u64, between: impl FnOnce()) {
        let first = self.first.get();
        between();
        let second = self.second.get();
        if first != second {
            note(&self.torn);
        }
        if second < *last {
            note(&self.stale);
        }
        *last = second;
        if self.writers.get() != 0 {
            note(&self.met);
        }
    }

    fn read(&self, rng: &mut Rng, last: &mut u64, others: &Sender<ReadHold>) {
        if self.lock.is_fast() {
            note(&self.fast);
        }
        let hold = match rng.below(8) {
            0 => self.lock.try_read(),
            1 => self.lock.read_until(Some(Instant::now() + Duration::from_micros(rng.below(300)))),
            _ => Some(self.lock.read()),
        };
        let Some(hold) = hold else {
            note(&self.gave_up);
            return;
        };
        self.look(last, || dawdle(rng));
        note(&self.reads);
        if rng.below(16) == 0 && others.send(hold).is_ok() {
            note(&self.moved);
            return;
        }
        // SAFETY: taken above.
        unsafe { self.lock.unlock_read(hold) };
        if rng.below(64) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(200)));
        }
    }

    /// Ends holds that others have taken.
    fn end_others(&self, ends: &Receiver<ReadHold>) {
        let _here = Here::new();
        for hold in ends {
            // SAFETY: taken by the thread that sent it, which has forgotten it.
            unsafe { self.lock.unlock_read(hold) };
        }
    }

    fn write(&self, rng: &mut Rng) {
        let deadline = Instant::now() + Duration::from_micros(rng.below(500));
        let (taken, upgraded) = match rng.below(8) {
            0 => (self.lock.try_write(), false),
            1..4 => (self.lock.write_until(deadline), false),
            4 => (self.lock.upgradable_until(deadline), true),
            _ => {
                self.lock.write();
                (true, false)
            }
        };
        if !taken {
            note(&self.gave_up);
        } else if upgraded {
            self.upgrade(rng);
        } else {
            self.write_both(rng);
            self.give_back(rng);
        }
        if rng.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(rng.below(400)));
        }
    }

    fn upgrade(&self, rng: &mut Rng) {
        let mut last = 0;
        self.look(&mut last, || dawdle(rng));
        if rng.below(2) == 0 {
            // SAFETY: held upgradable.
            unsafe { self.lock.upgrade() };
            self.write_both(rng);
            self.give_back(rng);
        } else {
            // SAFETY: held upgradable.
            unsafe { self.lock.unlock_upgradable() };
        }
    }

    fn give_back(&self, rng: &mut Rng) {
        if rng.below(4) != 0 {
            // SAFETY: held exclusively.
            unsafe { self.lock.unlock_write() };
            return;
        }
        // SAFETY: held exclusively.
        let hold = unsafe { self.lock.downgrade() };
        let mut last = 0;
        self.look(&mut last, || dawdle(rng));
        // SAFETY: taken above.
        unsafe { self.lock.unlock_read(hold) };
    }

    fn write_both(&self, rng: &mut Rng) {
        if self.writers.get() != 0 {
            note(&self.met);
        }
        self.writers.add();
        self.first.add();
        dawdle(rng);
        self.second.add();
        self.writers.0.store(0, Ordering::Relaxed);
        note(&self.writes);
    }

    fn sprint_writing(&self, mut rng: Rng) {
        while !self.is_over() {
            self.lock.write();
            self.writers.add();
            self.first.add();
            (0..rng.below(200)).for_each(|_| std::hint::spin_loop());
            self.second.add();
            self.writers.0.store(0, Ordering::Relaxed);
            note(&self.writes);
            // SAFETY: held exclusively.
            unsafe { self.lock.unlock_write() };
            // Until readers are fast again.
            while !self.lock.is_fast() && !self.is_over() {
                std::hint::spin_loop();
            }
            (0..rng.below(100)).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Each behind a run of stores that miss the cache: the entry's store then waits in the store buffer
    /// while the section's loads are done already, which is what the membarrier is for.
    fn sprint_reading(&self, mut rng: Rng) {
        const LINES: u64 = 1 << 19;
        let mut cold = vec![[0_u64; 8]; LINES as usize];
        let mut last = 0;
        while !self.is_over() {
            for _ in 0..rng.below(40) {
                let line = rng.below(LINES) as usize;
                // A store the compiler keeps, in order.
                std::hint::black_box(&mut cold[line])[0] = 1;
            }
            let spins = rng.below(60);
            if self.lock.is_fast() {
                self.fast.store(self.fast.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            let hold = self.lock.read();
            self.look(&mut last, || (0..spins).for_each(|_| std::hint::spin_loop()));
            // SAFETY: taken above.
            unsafe { self.lock.unlock_read(hold) };
            self.reads.store(self.reads.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn outcome(&self, options: &Options, policy: Policy, stalled: bool) -> Outcome {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let busy = of(&self.reads) != 0 && of(&self.writes) != 0 && of(&self.fast) != 0;
        Outcome {
            policy: format!("{policy:?}").to_lowercase(),
            held: !stalled && !self.is_faulty() && busy,
            backend: format!("{:?}", owlet_percpu::backend()),
            seconds: options.seconds,
            seed: options.seed,
            reads: of(&self.reads),
            fast: of(&self.fast),
            writes: of(&self.writes),
            gave_up: of(&self.gave_up),
            moved: of(&self.moved),
            signals: SIGNALS.load(Ordering::Relaxed),
            threads: of(&self.threads),
            membarriers: self.lock.stats().membarriers,
            torn: of(&self.torn),
            stale: of(&self.stale),
            met: of(&self.met),
            stalled,
        }
    }
}

/// A moment inside.
fn dawdle(rng: &mut Rng) {
    match rng.below(64) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(300))),
        1..4 => std::thread::yield_now(),
        _ => (0..rng.below(60)).for_each(|_| std::hint::spin_loop()),
    }
}

/// A thread that may be signalled and moved.
struct Here(u32);

impl Here {
    fn new() -> Self {
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
fn shake_somebody(rng: &mut Rng) {
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

fn install_handler() {
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
