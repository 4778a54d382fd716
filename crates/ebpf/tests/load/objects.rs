//! Objects that clang made, from the file to the result.

use crate::{context, testdata};
use owlet_ebpf::image::{Image, MapKind, ProgramKind};
use owlet_ebpf::load::{self, Verified};
use owlet_ebpf::map::MapStats;
use owlet_ebpf::{Context, Engine, Limits, Module, Session};

fn load(name: &str) -> Verified {
    match load::object(&testdata(name)) {
        Ok(verified) => verified,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Compiled and interpreted, the latter by way of the binary form.
fn both(name: &str) -> [Module; 2] {
    let verified = load(name);
    let image = Image::from_bytes(&verified.to_bytes().unwrap()).unwrap();
    assert_eq!(&image, verified.image());
    let limits = Limits::default();
    [verified.module(limits).unwrap(), Module::interpreted(&image, limits).unwrap()]
}

fn word(module: &Module, map: &str, key: u32) -> u64 {
    let map = module.map(map).expect("a map");
    let mut value = vec![0; map.read_size()];
    map.read(&key.to_le_bytes(), &mut value).expect("a value");
    value.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).sum()
}

/// Maps by lookup, atomics, globals of all three kinds.
#[test]
fn maps_and_globals() {
    for module in both("count") {
        let program = module.program("count").unwrap();
        assert_eq!((program.kind(), program.pattern()), (ProgramKind::Entry, ""));
        for _ in 0..10 {
            assert_eq!(program.run(&context()), 0);
        }
        assert_eq!(program.run(&Context { arg: [4, 0, 0, 0], ..context() }), 1, "no such entry");
        assert_eq!(word(&module, "counts", 2), 30, "10 times `step`");
        assert_eq!(word(&module, "counts", 1), 0);
        assert_eq!(word(&module, ".bss", 0), 10);
        assert_eq!(word(&module, ".data", 0), 110, "it began with 100");
    }
}

/// Two programs that share a hash: entry and exit of a call.
#[test]
fn entry_and_exit_measure_a_call() {
    for module in both("latency") {
        let (begin, end) = (module.program("begin").unwrap(), module.program("end").unwrap());
        assert_eq!((begin.kind(), begin.pattern()), (ProgramKind::Entry, "mini_redis::*"));
        assert_eq!((end.kind(), end.pattern()), (ProgramKind::Exit, "mini_redis::*"));
        for _ in 0..100 {
            begin.run(&context());
            end.run(&context());
            // Without a beginning.
            end.run(&context());
        }
        let counted: u64 = (0..64).map(|bucket| word(&module, "hist", bucket)).sum();
        // Per CPU, and a thread that moves in mid-increment can lose one.
        assert!((90..=100).contains(&counted), "{counted}");
        assert_eq!(word(&module, "hist", 63), 0);
        assert!(module.map("begun").unwrap().keys().is_empty());
    }
}

#[test]
fn records_of_a_ring_buffer() {
    for module in both("events") {
        let program = module.program("both").unwrap();
        assert_eq!(program.kind(), ProgramKind::Session);
        assert_eq!(program.run(&context()), 0);
        let record = module.map("events").unwrap().pop().expect("a record");
        let words: Vec<u64> =
            record[..32].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [66, 77, 22, 55]);
        let comm = std::fs::read("/proc/thread-self/comm").unwrap();
        assert!(record[32..].starts_with(comm.trim_ascii_end()));
    }
}

/// Both ends of a session, with a word of the call's between them; records that are reserved, filled in by
/// helpers, submitted or discarded; a string read out of the caller's memory.
#[test]
fn a_session_with_reserved_records() {
    let text = c"the caller's";
    for module in both("records") {
        let program = module.program("both").unwrap();
        let map = module.map("records").unwrap();
        for id in 0..200_u64 {
            let arg = [text.as_ptr().expose_provenance() as u64, 0, 0, 0];
            let at = Context { arg, ret: 100 + id, ..context() };
            let mut session = Session::default();
            assert_eq!(program.run_session(&at, &mut session), 0);
            assert_eq!(session.word, id);
            session.is_return = true;
            assert_eq!(program.run_session(&at, &mut session), 0);
            let words = |record: &[u8]| -> Vec<u64> {
                record.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
            };
            if id % 2 == 0 {
                let begin = map.pop().expect("a record");
                assert_eq!((begin.len(), words(&begin)[0]), (56, id));
                assert_eq!(&begin[24..48], b"the caller's\0\0\0\0\0\0\0\0\0\0\0\0");
                assert_eq!(words(&begin)[6], 13);
            }
            assert_eq!(words(&map.pop().expect("a record")), [id, 100 + id]);
            assert_eq!(map.pop(), None);
        }
        assert_eq!(map.stats(), MapStats::default());
    }
}

#[test]
fn functions_and_loops() {
    for module in both("calls") {
        assert_eq!(module.program("calls").unwrap().run(&context()), 2 * 2 + 22 * 22);
        let expected = (0..50).map(|i| 2 ^ i).sum::<u64>() & 0xffff;
        assert_eq!(module.program("loops").unwrap().run(&context()), expected);
        assert_eq!(module.programs().len(), 2);
    }
}

#[test]
fn what_an_image_says() {
    let verified = load("latency");
    let image = verified.image();
    let maps: Vec<_> = image.maps.iter().map(|map| (map.name.as_str(), map.kind)).collect();
    assert_eq!(maps, [("begun", MapKind::Hash), ("hist", MapKind::PerCpuArray)]);
    assert_eq!((image.maps[0].key_size, image.maps[0].value_size), (8, 8));
    assert_eq!((image.maps[0].max_entries, image.maps[1].max_entries), (1024, 64));
    let module = verified.module(Limits::default()).unwrap();
    let expected = if cfg!(target_arch = "x86_64") { Engine::Jit } else { Engine::Interpreter };
    assert_eq!(module.programs()[0].engine(), expected);
}

/// Refused, with the instruction, the line of source, and what to do.
#[test]
fn refusals_name_the_line() {
    let refused = |name: &str| load::object(&testdata(name)).expect_err("a refusal").to_string();
    let null = refused("bad_null");
    assert!(null.starts_with("program unchecked is refused: "), "{null}");
    assert!(null.contains("null access"), "{null}");
    assert!(null.contains("\n  at instruction 7: r1 = *(u64 *)(r0"), "{null}");
    assert!(null.contains("bad_null.bpf.c:16: *value += 1;"), "{null}");
    assert!(null.contains("\nhint: check the result of bpf_map_lookup_elem"), "{null}");
    let endless = refused("bad_loop");
    assert!(
        endless.contains("program endless is refused: the loop is not proved to end"),
        "{endless}"
    );
    assert!(endless.contains("bad_loop.bpf.c:"), "{endless}");
    assert!(endless.contains("hint: give the loop a constant bound"), "{endless}");
    let pointer = refused("bad_pointer");
    assert!(pointer.contains("bad_pointer.bpf.c:7: return *(__u32 *)ctx->arg[0];"), "{pointer}");
    assert!(pointer.contains("hint: an argument is a number"), "{pointer}");
    let leak = refused("bad_leak");
    assert!(
        leak.contains("reserved at instruction 6 is neither submitted nor discarded"),
        "{leak}"
    );
    assert!(leak.contains("bad_leak.bpf.c:"), "{leak}");
    assert!(leak.contains("hint: end every record"), "{leak}");
    let helper = refused("bad_helper");
    assert!(helper.contains("helper 58 does not exist here"), "{helper}");
    assert!(helper.contains("bad_helper.bpf.c:9: return override_return(ctx, 0);"), "{helper}");
    let read = refused("bad_read");
    assert!(read.contains("Stack content is not numeric"), "{read}");
    let bounds = refused("bad_bounds");
    assert!(bounds.contains("bad_bounds.bpf.c:11: table[index] += 1;"), "{bounds}");
    assert!(bounds.contains("hint: compare the index"), "{bounds}");
    let section = refused("bad_section");
    assert!(section.starts_with("object file: section xdp: programs are in"), "{section}");
}
