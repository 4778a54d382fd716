//! Maps by themselves, from the host and from programs, alone and under fire.

use crate::common::{compiled, context, image, interpreted};
use owlet_ebpf::asm::{self, Alu, Atomic, Cond, Reg, Slot};
use owlet_ebpf::image::{Image, MapDef};
use owlet_ebpf::map::{MapError, Update};
use owlet_ebpf::{Context, Limits, Module};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

fn module(def: MapDef) -> Module {
    Module::interpreted(&image(vec![def], &[asm::exit()]), Limits::default()).unwrap()
}

fn get(module: &Module, key: &[u8]) -> Result<Vec<u8>, MapError> {
    let map = &module.maps()[0];
    let mut value = vec![0; map.read_size()];
    map.read(key, &mut value).map(|()| value)
}

#[test]
fn arrays() {
    let m = module(MapDef::array("a", 5, 3));
    let map = m.map("a").unwrap();
    assert_eq!(get(&m, &2_u32.to_le_bytes()), Ok(vec![0; 5]));
    assert_eq!(map.update(&2_u32.to_le_bytes(), b"owlet", Update::Any), Ok(()));
    assert_eq!(map.update(&1_u32.to_le_bytes(), b"other", Update::Exist), Ok(()));
    assert_eq!(get(&m, &2_u32.to_le_bytes()), Ok(b"owlet".to_vec()));
    assert_eq!(get(&m, &3_u32.to_le_bytes()), Err(MapError::Missing));
    assert_eq!(map.update(&3_u32.to_le_bytes(), b"owlet", Update::Any), Err(MapError::Full));
    assert_eq!(map.update(&0_u32.to_le_bytes(), b"owlet", Update::NoExist), Err(MapError::Exists));
    assert_eq!(map.update(&0_u32.to_le_bytes(), b"long one", Update::Any), Err(MapError::Invalid));
    assert_eq!(map.delete(&0_u32.to_le_bytes()), Err(MapError::Invalid));
    assert_eq!(map.keys().len(), 3);
    assert!(map.pop().is_none());
}

#[test]
fn per_cpu_arrays() {
    let m = module(MapDef::per_cpu_array("a", 8, 2));
    let map = m.map("a").unwrap();
    let cpus = map.read_size() / 8;
    assert_eq!(cpus, owlet_sys::topology::possible_cpus().unwrap());
    map.update(&1_u32.to_le_bytes(), &7_u64.to_le_bytes(), Update::Any).unwrap();
    assert_eq!(get(&m, &1_u32.to_le_bytes()), Ok(7_u64.to_le_bytes().repeat(cpus)));
    assert_eq!(get(&m, &0_u32.to_le_bytes()), Ok(vec![0; 8 * cpus]));
    assert_eq!(get(&m, &2_u32.to_le_bytes()), Err(MapError::Missing));
    assert_eq!(map.update(&2_u32.to_le_bytes(), &[0; 8], Update::Any), Err(MapError::Full));
}

#[test]
fn hashes() {
    for key_size in [1_u32, 3, 4, 8, 13, 64, 256] {
        let m = module(MapDef::hash("h", key_size, 12, 3));
        let map = m.map("h").unwrap();
        let key = |n: u8| (0..key_size).map(|i| if i + 1 == key_size { n } else { 7 }).collect();
        let keys: [Vec<u8>; 4] = [1, 2, 3, 4].map(key);
        let value = |n: u8| vec![n; 12];
        assert_eq!(get(&m, &keys[0]), Err(MapError::Missing));
        assert_eq!(map.update(&keys[0], &value(1), Update::Exist), Err(MapError::Missing));
        for (n, key) in keys.iter().take(3).enumerate() {
            assert_eq!(map.update(key, &value(n as u8), Update::NoExist), Ok(()));
            assert_eq!(map.update(key, &value(9), Update::NoExist), Err(MapError::Exists));
        }
        assert_eq!(map.update(&keys[3], &value(4), Update::Any), Err(MapError::Full));
        assert_eq!(map.stats().full, 1);
        assert_eq!(map.update(&keys[1], &value(8), Update::Any), Ok(()));
        assert_eq!(map.delete(&keys[0]), Ok(()));
        assert_eq!(map.delete(&keys[0]), Err(MapError::Missing));
        assert_eq!(map.update(&keys[3], &value(4), Update::Any), Ok(()));
        let mut found = map.keys();
        found.sort();
        assert_eq!(found, keys[1..]);
        assert_eq!(get(&m, &keys[1]), Ok(value(8)));
        assert_eq!(get(&m, &keys[3]), Ok(value(4)));
        assert_eq!(map.read(&keys[3], &mut [0; 4]), Err(MapError::Invalid));
    }
}

/// A long walk beside the standard library's map.
#[test]
fn a_hash_is_a_map() {
    let m = module(MapDef::hash("h", 4, 8, 50));
    let map = m.map("h").unwrap();
    let mut model = BTreeMap::new();
    let mut seed = 7_u64;
    for step in 0..200_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = ((seed >> 40) as u32 % 80).to_le_bytes();
        if seed >> 62 == 0 {
            assert_eq!(map.delete(&key).is_ok(), model.remove(&key).is_some());
        } else {
            let done = map.update(&key, &step.to_le_bytes(), Update::Any);
            if model.len() < 50 || model.contains_key(&key) {
                assert_eq!(done, Ok(()));
                model.insert(key, step);
            } else {
                assert_eq!(done, Err(MapError::Full));
            }
        }
    }
    let mut keys = map.keys();
    keys.sort();
    assert!(
        keys.iter()
            .eq(model.keys().map(|key| key.as_slice()).collect::<std::collections::BTreeSet<_>>())
    );
    for (key, value) in model {
        assert_eq!(get(&m, &key), Ok(value.to_le_bytes().to_vec()));
    }
    assert_eq!(map.stats().busy, 0);
}

#[test]
fn memory_is_bounded() {
    let limit = |def: MapDef, map_bytes| {
        let image = image(vec![def], &[asm::exit()]);
        Module::interpreted(&image, Limits { map_bytes, ..Limits::default() }).map(drop)
    };
    assert!(limit(MapDef::array("a", 1000, 1000), 1_000_000).is_ok());
    let error = limit(MapDef::array("a", 1000, 1001), 1_000_000).unwrap_err().to_string();
    assert_eq!(error, "map a: more memory than the 1000000 bytes that are left");
    assert!(limit(MapDef::hash("h", 200, 800, 1000), 1_000_000).is_err());
    assert!(limit(MapDef::per_cpu_array("p", 1000, 900), 1_000_000).is_err());
    assert!(limit(MapDef::array("a", 1 << 20, 1 << 24), usize::MAX).is_err(), "no such memory");
    let two = vec![MapDef::array("a", 600, 1000), MapDef::array("b", 600, 1000)];
    let two =
        Module::interpreted(&image(two, &[asm::exit()]), Limits { map_bytes: 1_000_000, fuel: 1 });
    assert!(two.unwrap_err().to_string().starts_with("map b:"));
}

#[test]
fn ring_buffers() {
    let def = MapDef::ring("r", 4096);
    let [a, b] = asm::load_map(Reg::R1, 0);
    // Sends arg[1] bytes of the stack that hold arg[0] first.
    let slots = [
        asm::load(8, Reg::R3, Reg::R1, 8),
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::store(8, Reg::R10, -512, Reg::R2),
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -512),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(130),
        asm::exit(),
    ];
    let (module, program) = interpreted(&image(vec![def], &slots));
    let map = module.map("r").unwrap();
    let send = |first: u64, len: u64| {
        program.run(&Context { arg: [first, len, 0, 0], ..context() }).cast_signed()
    };
    assert_eq!(map.pop(), None);
    for round in 0..1000_u64 {
        let len = round % 500;
        assert_eq!(send(round, len), 0, "{round}");
        let record = map.pop().expect("a record");
        assert_eq!(record.len() as u64, len);
        let first = record.len().min(8);
        assert_eq!(record[..first], round.to_le_bytes()[..first]);
        assert_eq!(map.pop(), None);
    }
    let sent = (0..).take_while(|n| send(*n, 100) == 0).count() as u64;
    assert_eq!(sent, 36, "records of 112 bytes in 4096");
    assert_eq!(send(0, 100), -11);
    assert_eq!(map.stats().dropped, 2);
    for n in 0..sent {
        assert_eq!(map.pop().expect("a record")[..8], n.to_le_bytes());
    }
    assert_eq!(map.pop(), None);
    assert_eq!(map.read(&[0; 4], &mut []), Err(MapError::Invalid));
    assert_eq!(map.update(&[], &[], Update::Any), Err(MapError::Invalid));
    assert_eq!(map.keys().len(), 0);
}

/// Counts key arg[0] of a hash: looks it up and adds, or puts 1 if it is not there; deletes it if arg[1]
/// is 1. Returns 0 for done, otherwise 1.
fn counting(entries: u32) -> Image {
    let [a, b] = asm::load_map(Reg::R1, 0);
    let key = [asm::alu(Alu::Mov, Reg::R2, Reg::R10), asm::alu_imm(Alu::Add, Reg::R2, -8)];
    let mut slots = vec![
        asm::load(8, Reg::R6, Reg::R1, 8),
        asm::load(8, Reg::R2, Reg::R1, 0),
        asm::store(8, Reg::R10, -8, Reg::R2),
        asm::store(8, Reg::R10, -24, Reg::R2),
        asm::store_imm(8, Reg::R10, -16, 1),
        a,
        b,
    ];
    slots.extend(key);
    slots.extend([
        asm::jump_imm(Cond::Eq, Reg::R6, 1, 14),
        asm::call(1),
        asm::jump_imm(Cond::Eq, Reg::R0, 0, 4),
        asm::alu_imm(Alu::Mov, Reg::R1, 1),
        asm::atomic(Atomic::Add, true, Reg::R0, 8, Reg::R1),
        asm::alu_imm(Alu::Mov, Reg::R0, 0),
        asm::exit(),
        a,
        b,
    ]);
    slots.extend(key);
    slots.extend([
        asm::alu(Alu::Mov, Reg::R3, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R3, -24),
        asm::alu_imm(Alu::Mov, Reg::R4, 1),
        asm::ja(2),
        asm::call(3),
        asm::ja(1),
        asm::call(2),
        asm::jump_imm(Cond::Eq, Reg::R0, 0, 1),
        asm::alu_imm(Alu::Mov, Reg::R0, 1),
        asm::exit(),
    ]);
    image(vec![MapDef::hash("h", 8, 16, entries)], &slots)
}

/// Threads that count: nothing is lost, no key is there twice.
#[test]
fn threads_count_in_a_hash() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50_000;
    let (module, program) = compiled(&counting(64));
    let missed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (program, missed) = (&program, &missed);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let context =
                        Context { arg: [(round * 7 + thread) % 64, 0, 0, 0], ..context() };
                    missed.fetch_add(program.run(&context), Relaxed);
                }
            });
        }
    });
    let map = module.map("h").unwrap();
    let mut keys = map.keys();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 64);
    let sum: u64 = keys.iter().map(|key| count(&get(&module, key).unwrap())).sum();
    // What did not get in is what the program was told: busy, or somebody was faster.
    assert_eq!(sum + missed.load(Relaxed), THREADS * ROUNDS);
}

fn count(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[8..].try_into().unwrap())
}

/// Elements go from key to key all the time: readers find what some program put there, nothing else, and
/// in the end no element is lost.
#[test]
fn elements_change_hands_under_readers() {
    let (module, program) = compiled(&counting(8));
    let map = module.map("h").unwrap();
    let done = AtomicBool::new(false);
    let mixed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let program = &program;
            let done = &done;
            scope.spawn(move || {
                for round in 0..200_000_u64 {
                    let key = (round * 31 + thread) % 16;
                    program.run(&Context { arg: [key, round % 2, 0, 0], ..context() });
                }
                done.store(true, Relaxed);
            });
        }
        scope.spawn(|| {
            while !done.load(Relaxed) {
                for key in 0..16_u64 {
                    let mut value = [0; 16];
                    // It may be another key's by the time of the copy, but never no key's.
                    if map.read(&key.to_le_bytes(), &mut value).is_ok()
                        && u64::from_le_bytes(value[..8].try_into().unwrap()) >= 16
                    {
                        mixed.fetch_add(1, Relaxed);
                    }
                }
                let keys = map.keys();
                assert!(keys.iter().all(|key| key[0] < 16 && key[1..] == [0; 7]), "{keys:?}");
            }
        });
    });
    assert_eq!(mixed.load(Relaxed), 0);
    // Nothing leaked: all eight elements can be had.
    for key in map.keys() {
        map.delete(&key).unwrap();
    }
    for key in 100..108_u64 {
        assert_eq!(map.update(&key.to_le_bytes(), &[0; 16], Update::NoExist), Ok(()));
    }
    assert_eq!(map.keys().len(), 8);
    assert_eq!(map.update(&9_u64.to_le_bytes(), &[0; 16], Update::Any), Err(MapError::Full));
}

/// Many producers, one consumer: every record that got in comes out once, whole, in its producer's order.
#[test]
fn a_ring_buffer_under_fire() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 60_000;
    let [a, b] = asm::load_map(Reg::R1, 0);
    let mut slots: Vec<Slot> =
        vec![asm::load(8, Reg::R2, Reg::R1, 0), asm::load(8, Reg::R3, Reg::R1, 8)];
    for at in (-64..0).step_by(8) {
        slots.push(asm::store(8, Reg::R10, at, Reg::R2));
    }
    slots.extend([
        a,
        b,
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -64),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(130),
        asm::exit(),
    ]);
    let (module, program) = compiled(&image(vec![MapDef::ring("r", 4096)], &slots));
    let map = module.map("r").unwrap();
    let sent = AtomicU64::new(0);
    let running = AtomicU64::new(THREADS);
    let mut last = [0; THREADS as usize];
    let mut received = 0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (program, sent, running) = (&program, &sent, &running);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let context = Context {
                        arg: [round * THREADS + thread, 8 + round % 57, 0, 0],
                        ..context()
                    };
                    if program.run(&context) == 0 {
                        sent.fetch_add(1, Relaxed);
                    }
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        loop {
            let over = running.load(Relaxed) == 0;
            while let Some(record) = map.pop() {
                let word = u64::from_le_bytes(record[..8].try_into().unwrap());
                let (thread, round) = ((word % THREADS) as usize, word / THREADS);
                assert!(last[thread] < round, "in order, once");
                last[thread] = round;
                assert_eq!(record.len() as u64, 8 + round % 57);
                assert!(record.chunks(8).all(|piece| *piece == word.to_le_bytes()[..piece.len()]));
                received += 1;
            }
            if over {
                break;
            }
        }
    });
    assert_eq!(received, sent.load(Relaxed));
    assert_eq!(received + map.stats().dropped, THREADS * ROUNDS);
}

/// A signal handler runs the program that it has interrupted, in the middle of an update, too: it ends, and
/// what was busy is counted.
#[test]
fn a_signal_handler_uses_the_same_map() {
    static PROGRAM: std::sync::OnceLock<std::sync::Arc<owlet_ebpf::Program>> =
        std::sync::OnceLock::new();
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    static MISSED: AtomicU64 = AtomicU64::new(0);

    extern "C" fn handler(_: i32) {
        if let Some(program) = PROGRAM.get() {
            for key in 0..4 {
                MISSED.fetch_add(
                    program.run(&Context { arg: [key, 0, 0, 0], ..Context::default() }),
                    Relaxed,
                );
            }
            HANDLED.fetch_add(1, Relaxed);
        }
    }

    let (module, program) = compiled(&counting(4));
    PROGRAM.set(program.clone()).unwrap();
    let address: extern "C" fn(i32) = handler;
    // SAFETY: the handler is async-signal-safe; nobody else uses SIGURG here.
    unsafe { libc::signal(libc::SIGURG, address as libc::sighandler_t) };
    // A number or an address, by the C library.
    // SAFETY: takes no arguments.
    let me = unsafe { libc::pthread_self() } as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // SAFETY: the thread lives until the scope ends.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGURG) };
                std::thread::yield_now();
            }
        });
        let mut rounds = 0_u64;
        while rounds < 100_000 || HANDLED.load(Relaxed) < 200 {
            // Puts a key and takes it out again: the handler meets every state of the bucket.
            program.run(&Context { arg: [rounds % 4, rounds & 1, 0, 0], ..context() });
            rounds += 1;
        }
        done.store(true, Relaxed);
    });
    assert!(module.map("h").unwrap().keys().len() <= 4);
    println!("{} handled, {} missed", HANDLED.load(Relaxed), MISSED.load(Relaxed));
}

/// A forked child can use a bucket that was locked in its parent at that moment.
#[test]
fn a_child_inherits_no_lock() {
    let (module, program) = compiled(&counting(1));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u64;
            while !done.load(Relaxed) {
                program.run(&Context { arg: [0, round & 1, 0, 0], ..context() });
                round += 1;
            }
        });
        for _ in 0..200 {
            // SAFETY: the child only uses maps and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let map = &module.maps()[0];
                let mut busy = false;
                for _ in 0..2 {
                    busy |= map.update(&0_u64.to_le_bytes(), &[1; 16], Update::Any)
                        == Err(MapError::Busy);
                    busy |= map.delete(&0_u64.to_le_bytes()) == Err(MapError::Busy);
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(i32::from(busy)) };
            }
            let mut status = 0;
            // SAFETY: a child of ours.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
        }
        done.store(true, Relaxed);
    });
}
