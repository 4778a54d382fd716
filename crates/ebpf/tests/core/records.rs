//! Reserved records, both ends of a session, reads of foreign memory, atomics that are not aligned: in both
//! engines.

use crate::common::{compiled, compiled_with, context, image, interpreted};
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::{Image, MapDef};
use owlet_ebpf::map::MapStats;
use owlet_ebpf::{Context, Fault, Limits, Module, Program, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The image in each engine.
fn engines(image: &Image) -> [(Module, Arc<Program>); 2] {
    [interpreted(image), compiled(image)]
}

/// `r0 = reserve(map 0, arg[1] bytes)`, and out if that is 0; R6 keeps the context, R7 the record.
fn reserve() -> Vec<Slot> {
    let [a, b] = asm::load_map(Reg::R1, 0);
    vec![
        asm::alu(Alu::Mov, Reg::R6, Reg::R1),
        asm::load(8, Reg::R2, Reg::R1, 8),
        a,
        b,
        asm::alu_imm(Alu::Mov, Reg::R3, 0),
        asm::call(131),
        asm::jump_imm(Cond::Ne, Reg::R0, 0, 2),
        asm::alu_imm(Alu::Mov, Reg::R0, 1),
        asm::exit(),
        asm::alu(Alu::Mov, Reg::R7, Reg::R0),
    ]
}

/// Ends R7 with a helper, and the program with 0.
fn end(helper: i32) -> [Slot; 5] {
    [
        asm::alu(Alu::Mov, Reg::R1, Reg::R7),
        asm::alu_imm(Alu::Mov, Reg::R2, 0),
        asm::call(helper),
        asm::alu_imm(Alu::Mov, Reg::R0, 0),
        asm::exit(),
    ]
}

/// Reserves arg[1] bytes, writes arg[0] into the first eight, and submits, or discards if arg[2] is 1.
fn sending() -> Image {
    let mut slots = reserve();
    slots.extend([
        asm::load(8, Reg::R1, Reg::R6, 0),
        asm::store(8, Reg::R7, 0, Reg::R1),
        asm::load(8, Reg::R1, Reg::R6, 16),
        asm::jump_imm(Cond::Eq, Reg::R1, 1, 5),
    ]);
    slots.extend(end(132));
    slots.extend(end(133));
    image(vec![MapDef::ring("r", 4096)], &slots)
}

fn call(first: u64, second: u64, third: u64) -> Context {
    Context { arg: [first, second, third, 0], ..context() }
}

/// At every position of the buffer, over its end as well; in order, discarded ones left out.
#[test]
fn reservations_come_out_whole_and_in_order() {
    for (module, program) in engines(&sending()) {
        let map = module.map("r").unwrap();
        for round in 0..3000_u64 {
            let len = 8 + round % 300;
            assert_eq!(program.run(&call(round, len, round % 3)), 0, "{round}");
            if round % 3 != 1 {
                let record = map.pop().expect("a record");
                assert_eq!(record[..8], round.to_le_bytes());
                assert!(record.len() as u64 == len && record[8..].iter().all(|byte| *byte == 0));
            }
            assert_eq!(map.pop(), None);
        }
        assert_eq!((map.stats(), program.stats().faults), (MapStats::default(), 0));
        // A record has half the buffer at most, its header included, and that wherever the others are.
        for len in [2041, 4096, u64::MAX, u64::MAX - 7] {
            assert_eq!(program.run(&call(0, len, 0)), 1, "{len}");
        }
        assert_eq!(map.stats().dropped, 4);
        for round in 0..100 {
            assert_eq!(program.run(&call(round, 2040, 0)), 0);
            assert_eq!(map.pop().expect("a record").len(), 2040);
            assert_eq!(program.run(&call(round, 64, 0)), 0);
            assert_eq!(map.pop().expect("a record").len(), 64);
        }
        let sent = (0..).take_while(|n| program.run(&call(*n, 100, 0)) == 0).count() as u64;
        assert!((35..=36).contains(&sent), "records of 112 bytes in 4096: {sent}");
        for n in 0..sent {
            assert_eq!(map.pop().expect("a record")[..8], n.to_le_bytes());
        }
    }
}

/// Every word that a program writes into a record comes out, also where one would go over the buffer's end.
#[test]
fn reservations_lie_in_one_piece() {
    let mut slots = reserve();
    slots.push(asm::load(8, Reg::R1, Reg::R6, 0));
    slots.extend((0..40).step_by(8).map(|off| asm::store(8, Reg::R7, off, Reg::R1)));
    slots.extend(end(132));
    for (module, program) in engines(&image(vec![MapDef::ring("r", 4096)], &slots)) {
        for round in 0..1000_u64 {
            assert_eq!(program.run(&call(round, 40, 0)), 0, "{round}");
            let record = module.maps()[0].pop().expect("a record");
            assert_eq!(record, round.to_le_bytes().repeat(5));
        }
    }
}

/// As many producers as may be, reserving and giving up, and a consumer.
#[test]
fn reservations_under_fire() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 40_000;
    let (module, program) = compiled(&sending());
    let map = module.map("r").unwrap();
    let (sent, running) = (AtomicU64::new(0), AtomicU64::new(THREADS));
    let (mut last, mut received) = ([0; THREADS as usize], 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (program, sent, running) = (&program, &sent, &running);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let word = round * THREADS + thread;
                    let discard = u64::from(round % 5 == 0);
                    let done = program.run(&call(word, 8 + round % 200, discard)) == 0;
                    sent.fetch_add(u64::from(done && discard == 0), Relaxed);
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        loop {
            let over = running.load(Relaxed) == 0;
            while let Some(record) = map.pop() {
                let word = u64::from_le_bytes(record[..8].try_into().unwrap());
                let (thread, round) = ((word % THREADS) as usize, word / THREADS);
                assert!(last[thread] < round && round % 5 != 0, "in order, once, not discarded");
                last[thread] = round;
                assert_eq!(record.len() as u64, 8 + round % 200);
                assert!(record[8..].iter().all(|byte| *byte == 0));
                received += 1;
            }
            if over {
                break;
            }
        }
    });
    assert_eq!((received, map.stats().abandoned), (sent.load(Relaxed), 0));
    println!("{received} received, {} dropped", map.stats().dropped);
}

/// What a run leaves reserved is given back at its end, however it ends, and counted; four may be open.
#[test]
fn what_is_left_reserved_is_given_back() {
    let mut left = reserve();
    left.extend([asm::alu_imm(Alu::Mov, Reg::R0, 0), asm::exit()]);
    let mut fuel = reserve();
    fuel.push(asm::ja(-1));
    let map = || vec![MapDef::ring("r", 4096)];
    for (slots, exhausted) in [(left, 0), (fuel, 3)] {
        let image = image(map(), &slots);
        let limits = Limits { fuel: 1000, ..Limits::default() };
        for (module, program) in [interpreted(&image), compiled_with(&image, limits)] {
            for _ in 0..3 {
                assert_eq!(program.run(&call(0, 2000, 0)), 0);
                assert_eq!(module.maps()[0].pop(), None);
            }
            let stats = module.maps()[0].stats();
            assert_eq!((stats.abandoned, stats.dropped), (3, 0));
            assert_eq!(program.stats().exhausted, exhausted);
        }
    }
    let [a, b] = asm::load_map(Reg::R1, 0);
    let mut slots = Vec::new();
    for _ in 0..5 {
        let again = [a, b, asm::alu_imm(Alu::Mov, Reg::R2, 8), asm::alu_imm(Alu::Mov, Reg::R3, 0)];
        slots.extend(again);
        slots.push(asm::call(131));
    }
    slots.push(asm::exit());
    for (module, program) in engines(&image(map(), &slots)) {
        assert_eq!(program.run(&context()), 0, "the fifth");
        assert_eq!((module.maps()[0].stats().abandoned, module.maps()[0].stats().dropped), (4, 1));
        assert_eq!(module.maps()[0].pop(), None);
    }
}

/// The interpreter takes no verifier's word for it: outside of the record, after its end, something else.
#[test]
fn the_interpreter_checks_records() {
    let fault = |then: &[Slot]| {
        let mut slots = reserve();
        slots.extend(then);
        slots.extend(end(132));
        let (_module, program) = interpreted(&image(vec![MapDef::ring("r", 4096)], &slots));
        program.run_checked(&call(1, 12, 0))
    };
    let touch = |off| fault(&[asm::store_imm(4, Reg::R7, off, 1)]);
    assert_eq!(touch(8), Ok(0));
    assert!(matches!(touch(9), Err(Fault::Write { .. })));
    assert!(matches!(touch(-8), Err(Fault::Write { .. })), "the header");
    assert!(matches!(touch(16), Err(Fault::Write { .. })));
    let submit = end(132);
    let mut after = submit[..3].to_vec();
    after.push(asm::load(8, Reg::R0, Reg::R7, 0));
    assert!(matches!(fault(&after), Err(Fault::Read { .. })), "after its end");
    assert!(matches!(fault(&submit[..3]), Err(Fault::Argument { argument: 1, .. })), "twice");
    let inside = [asm::alu_imm(Alu::Add, Reg::R7, 8)];
    assert!(matches!(fault(&inside), Err(Fault::Argument { argument: 1, .. })), "inside it");
    let stack = [asm::alu(Alu::Mov, Reg::R7, Reg::R10)];
    assert!(matches!(fault(&stack), Err(Fault::Argument { argument: 1, .. })), "the stack");
}

/// The word goes from the entry to the return, and the program knows where it is.
#[test]
fn a_session_program_knows_its_end_of_the_call() {
    let slots = [
        asm::alu(Alu::Mov, Reg::R6, Reg::R1),
        asm::call(10_001),
        asm::jump_imm(Cond::Eq, Reg::R0, 0, 5),
        // At the return: the word, and 1000.
        asm::alu(Alu::Mov, Reg::R1, Reg::R6),
        asm::call(10_002),
        asm::load(8, Reg::R1, Reg::R6, 32),
        asm::alu(Alu::Add, Reg::R0, Reg::R1),
        asm::exit(),
        // At the entry: it was 0; puts the first argument.
        asm::alu(Alu::Mov, Reg::R1, Reg::R6),
        asm::call(10_002),
        asm::alu(Alu::Mov, Reg::R7, Reg::R0),
        asm::alu(Alu::Mov, Reg::R1, Reg::R6),
        asm::load(8, Reg::R2, Reg::R6, 0),
        asm::call(10_003),
        asm::alu(Alu::Mov, Reg::R0, Reg::R7),
        asm::exit(),
    ];
    for (_module, program) in engines(&image(Vec::new(), &slots)) {
        for first in [7, u64::MAX] {
            let mut session = Session::default();
            let at = Context { arg: [first, 0, 0, 0], ret: 1000, ..context() };
            assert_eq!(program.run_session(&at, &mut session), 0);
            assert_eq!(session, Session { is_return: false, word: first });
            session.is_return = true;
            assert_eq!(program.run_session(&at, &mut session), first.wrapping_add(1000));
            assert_eq!(session.word, first);
        }
        assert_eq!(program.run(&context()), 0, "without more, it is the entry");
    }
}

/// Two pages, of which the second one cannot be read.
struct Pages(*mut u8, usize);

impl Pages {
    fn new() -> Self {
        let page = owlet_sys::memory::page_size();
        // SAFETY: a mapping of our own.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>();
        let second = at.wrapping_add(page).cast();
        // SAFETY: the second of the two pages.
        assert_eq!(unsafe { libc::mprotect(second, page, libc::PROT_NONE) }, 0);
        Self(at, page)
    }

    /// Puts bytes before the end of what can be read; their address.
    fn put(&self, bytes: &[u8]) -> u64 {
        // SAFETY: the first page is ours and longer than this.
        let at = unsafe { self.0.add(self.1 - bytes.len()) };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        at.expose_provenance() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0.cast(), 2 * self.1) };
    }
}

/// Reads arg[1] bytes at arg[0] into a value of 64 bytes.
fn probing(helper: i32) -> [(Module, Arc<Program>); 2] {
    let [a, b] = asm::load_map_value(Reg::R1, 0, 0);
    let slots = [
        asm::load(8, Reg::R3, Reg::R1, 0),
        asm::load(8, Reg::R2, Reg::R1, 8),
        a,
        b,
        asm::call(helper),
        asm::exit(),
    ];
    engines(&image(vec![MapDef::array("to", 64, 1)], &slots))
}

/// Fills the place with 0xff, and reads: what is returned, and what is there.
fn probe(module: &Module, program: &Program, from: u64, len: u64) -> (i64, [u8; 64]) {
    let map = module.map("to").unwrap();
    map.update(&[0; 4], &[0xff; 64], owlet_ebpf::map::Update::Any).unwrap();
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno = 12345 };
    let returned = program.run(&call(from, len, 0)).cast_signed();
    // SAFETY: as above.
    assert_eq!(unsafe { *errno }, 12345);
    let mut found = [0; 64];
    map.read(&[0; 4], &mut found).unwrap();
    (returned, found)
}

fn filled(start: &[u8], len: usize) -> [u8; 64] {
    let mut all = [0xff; 64];
    all[..len].fill(0);
    all[..start.len()].copy_from_slice(start);
    all
}

/// Whatever the address: the bytes, or zeros and an error.
#[test]
fn memory_is_read_at_any_address() {
    const EFAULT: i64 = -14;
    let pages = Pages::new();
    let good = pages.put(b"0123456789abcdef");
    for helper in [4, 112, 113] {
        for (module, program) in probing(helper) {
            let probe = |from, len| probe(&module, &program, from, len);
            assert_eq!(probe(good, 16), (0, filled(b"0123456789abcdef", 16)));
            assert_eq!(probe(good + 3, 5), (0, filled(b"34567", 5)));
            assert_eq!(probe(good, 0), (0, [0xff; 64]));
            let bad = [0, 8, good + 16, good + 1, u64::MAX, u64::MAX - 3, 1 << 47, 1 << 63];
            for from in bad {
                assert_eq!(probe(from, 16), (EFAULT, filled(b"", 16)), "{from:#x}");
            }
            assert_eq!(program.stats(), owlet_ebpf::ProgramStats::default());
        }
    }
}

/// Up to the 0, or to the end of the place; nothing behind the string is looked at.
#[test]
fn strings_are_read_up_to_their_end() {
    const EFAULT: i64 = -14;
    let pages = Pages::new();
    for helper in [45, 114, 115] {
        for (module, program) in probing(helper) {
            let probe = |from, len| probe(&module, &program, from, len);
            let last = pages.put(b"at the edge\0");
            assert_eq!(probe(last, 64), (12, filled(b"at the edge", 64)));
            assert_eq!(probe(last, 12), (12, filled(b"at the edge", 12)));
            assert_eq!(probe(last, 7), (7, filled(b"at the", 7)), "cut, with a 0");
            assert_eq!(probe(last, 1), (1, filled(b"", 1)));
            assert_eq!(probe(last, 0), (0, [0xff; 64]));
            let endless = pages.put(b"no end");
            assert_eq!(probe(endless, 64), (EFAULT, filled(b"", 64)));
            assert_eq!(probe(endless, 6), (6, filled(b"no en", 6)));
            let before = [&[b'x'; 40][..], b"\0tail"].concat();
            // Over the border of two pieces that are copied.
            let over = pages.put(&[&before[..], &[b'y'; 236]].concat());
            assert_eq!(probe(over, 64), (41, filled(&[b'x'; 40], 64)));
            for from in [0, u64::MAX, 1 << 63] {
                assert_eq!(probe(from, 64), (EFAULT, filled(b"", 64)));
            }
        }
    }
}

/// Where a filter forbids the system call, it is as with a bad address.
#[test]
fn without_the_system_call_nothing_is_read() {
    const ENOSYS: i32 = 38;
    for (module, program) in probing(4) {
        let plan = owlet_sys::fake::fail_nth(owlet_sys::Family::Memory, 1, ENOSYS);
        let here = 7_u64;
        let address = (&raw const here).expose_provenance() as u64;
        assert_eq!(probe(&module, &program, address, 8), (-14, filled(b"", 8)));
        drop(plan);
        assert_eq!(probe(&module, &program, address, 8).0, 0);
    }
}

/// Both engines end a run that does an atomic operation on something not aligned to its width.
#[test]
fn atomics_that_are_not_aligned_end_the_run() {
    let ops = [
        Atomic::Add,
        Atomic::Or,
        Atomic::And,
        Atomic::Xor,
        Atomic::FetchAdd,
        Atomic::FetchOr,
        Atomic::FetchAnd,
        Atomic::FetchXor,
        Atomic::Xchg,
        Atomic::CmpXchg,
    ];
    for op in ops {
        for (wide, width) in [(true, 8_i16), (false, 4)] {
            for off in 0..8 {
                // At the stack by R10; by another register, in the depth of calls, with fuel and saved registers.
                let plain = [
                    asm::store_imm(8, Reg::R10, -16, 0),
                    asm::store_imm(8, Reg::R10, -8, 0),
                    asm::alu_imm(Alu::Mov, Reg::R0, 0),
                    asm::alu_imm(Alu::Mov, Reg::R2, 1),
                    asm::atomic(op, wide, Reg::R10, off - 16, Reg::R2),
                    asm::alu_imm(Alu::Mov, Reg::R0, 5),
                    asm::exit(),
                ];
                let deep = [
                    asm::store_imm(8, Reg::R10, -16, 0),
                    asm::store_imm(8, Reg::R10, -8, 0),
                    asm::alu_imm(Alu::Mov, Reg::R7, 3),
                    asm::alu(Alu::Mov, Reg::R1, Reg::R10),
                    asm::call_local(3),
                    asm::alu_imm(Alu::Sub, Reg::R7, 1),
                    asm::jump_imm(Cond::Ne, Reg::R7, 0, -4),
                    asm::exit(),
                    asm::alu_imm(Alu::Mov, Reg::R8, 1),
                    asm::alu_imm(Alu::Mov, Reg::R0, 0),
                    asm::atomic(op, wide, Reg::R1, off - 16, Reg::R8),
                    asm::alu_imm(Alu::Mov, Reg::R0, 5),
                    asm::exit(),
                ];
                for slots in [&plain[..], &deep] {
                    let aligned = off % width == 0;
                    for (_module, program) in engines(&image(Vec::new(), slots)) {
                        // The sum lives in a register that the program uses, too.
                        let sum = (0..10).fold(0, |sum, n| sum + n + program.run(&context()));
                        let expected = if aligned { (45 + 50, 0) } else { (45, 10) };
                        assert_eq!((sum, program.stats().faults), expected, "{op:?} {wide} {off}");
                        assert_eq!(program.stats().exhausted, 0);
                    }
                }
            }
        }
    }
}

/// Signals come in the middle of compiled code; their handler runs compiled code of its own. Registers and
/// stack of what was interrupted stay as they were.
#[test]
fn a_signal_in_compiled_code() {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;
    static PROGRAM: OnceLock<Arc<Program>> = OnceLock::new();
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    static WRONG: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: libc::c_int) {
        if let Some(program) = PROGRAM.get() {
            let right = program.run(&call(20, 3, 0)) == expected(20, 3);
            WRONG.fetch_add(u64::from(!right), Relaxed);
            HANDLED.fetch_add(1, Relaxed);
        }
    }
    /// What the program below computes.
    fn expected(rounds: u64, first: u64) -> u64 {
        let (mut a, mut b) = (first, first);
        for _ in 0..rounds {
            a = a.wrapping_mul(31).wrapping_add(b);
            b ^= a;
        }
        a.wrapping_add(b)
    }
    // One number lives in a register, the other one at the far end of the stack.
    let slots = [
        asm::load(8, Reg::R6, Reg::R1, 0),
        asm::load(8, Reg::R7, Reg::R1, 8),
        asm::store(8, Reg::R10, -512, Reg::R7),
        asm::alu_imm(Alu::Mul, Reg::R7, 31),
        asm::load(8, Reg::R8, Reg::R10, -512),
        asm::alu(Alu::Add, Reg::R7, Reg::R8),
        asm::atomic(Atomic::FetchXor, true, Reg::R10, -512, Reg::R7),
        asm::alu(Alu::Mov, Reg::R9, Reg::R7),
        asm::load(8, Reg::R0, Reg::R10, -512),
        asm::alu(Alu::Mov, Reg::R7, Reg::R0),
        asm::alu(Alu::Xor, Reg::R7, Reg::R9),
        asm::alu_imm(Alu::Sub, Reg::R6, 1),
        asm::jump_imm(Cond::Ne, Reg::R6, 0, -10),
        asm::alu(Alu::Add, Reg::R0, Reg::R7),
        asm::exit(),
    ];
    let (_module, program) = compiled(&image(Vec::new(), &slots));
    assert_eq!(program.run(&call(1, 5, 0)), expected(1, 5));
    PROGRAM.set(Arc::clone(&program)).expect("once");
    // SAFETY: the handler runs a program, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGWINCH, handler as *const () as libc::sighandler_t) };
    // SAFETY: takes nothing.
    let target = unsafe { libc::pthread_self() } as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // SAFETY: the thread waits for this one at the end of the scope.
                unsafe { libc::pthread_kill(target as libc::pthread_t, libc::SIGWINCH) };
                std::thread::yield_now();
            }
        });
        let mut rounds = 0_u64;
        while rounds < 2000 || HANDLED.load(Relaxed) < 500 {
            assert_eq!(program.run(&call(1000, rounds, 0)), expected(1000, rounds));
            rounds += 1;
        }
        done.store(true, Relaxed);
    });
    assert_eq!((WRONG.load(Relaxed), program.stats().exhausted), (0, 0));
}
