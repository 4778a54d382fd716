use super::*;

const AREA: Area = Area { offset: -160, size: 20 };
const REFUSED: SysError = SysError { call: "membarrier", errno: libc::EPERM };
const GOOD: Probe = Probe {
    wanted: Wanted::Best,
    area: Ok(AREA),
    cpus: Ok(4),
    membarrier: Ok(()),
    membarrier_rseq: Ok(()),
};

fn check(probe: Probe, backend: Backend, reason: Reason, membarrier: bool) {
    let d = decide(&probe);
    assert_eq!((d.backend, d.reason, d.membarrier), (backend, reason, membarrier), "{probe:?}");
    let state = pack(d);
    assert_eq!(unpack_cpus(state), d.cpus);
    assert_eq!(unpack_offset(state), d.offset as isize);
    assert_eq!(state & RSEQ != 0, backend == Backend::Rseq);
    assert_eq!(REASONS.len(), Reason::TooManyCpus as usize + 1);
}

#[cfg(all(target_arch = "x86_64", not(owlet_portable)))]
#[test]
fn decision_table() {
    use Backend::{Portable, Rseq};
    check(GOOD, Rseq, Reason::Works, true);
    check(Probe { wanted: Wanted::Portable, ..GOOD }, Portable, Reason::Forced, true);
    let absent = |a| Probe { area: Err(a), ..GOOD };
    check(absent(Absent::NoSymbols), Portable, Reason::NoSymbols, true);
    check(absent(Absent::NotRegistered), Portable, Reason::NotRegistered, true);
    check(absent(Absent::BadSize(7)), Portable, Reason::BadSize, true);
    check(absent(Absent::ThreadNotRegistered), Portable, Reason::ThreadNotRegistered, true);
    let none = Probe { membarrier: Err(REFUSED), membarrier_rseq: Err(REFUSED), ..GOOD };
    check(none, Portable, Reason::NoMembarrier, false);
    // Linux 4.14 to 5.9: private expedited, but not the rseq command.
    check(Probe { membarrier_rseq: Err(REFUSED), ..GOOD }, Portable, Reason::NoMembarrier, true);
    check(Probe { cpus: Err(REFUSED), ..GOOD }, Portable, Reason::NoCpuList, true);
    check(Probe { cpus: Ok(0x7fff), ..GOOD }, Rseq, Reason::Works, true);
    check(Probe { cpus: Ok(0x8000), ..GOOD }, Portable, Reason::TooManyCpus, true);
}

/// A backend that does not exist changes nothing but what is said.
#[test]
fn an_unknown_backend_is_told() {
    for probe in [GOOD, Probe { membarrier_rseq: Err(REFUSED), ..GOOD }] {
        let known = pack(decide(&probe));
        let unknown = pack(decide(&Probe { wanted: Wanted::Unknown, ..probe }));
        assert_eq!(unknown & !UNKNOWN, known);
        let told = why(unknown);
        assert!(told.starts_with("OWLET_BACKEND names no backend and is ignored"), "{told}");
        assert!(told.ends_with(why(known)), "{told}");
    }
}

#[test]
fn slots_are_at_least_one() {
    assert_eq!(decide(&Probe { cpus: Ok(0), ..GOOD }).cpus, 1);
    assert!(cpus() >= 1);
    for _ in 0..1000 {
        assert!(current_cpu() < cpus());
    }
}

/// Generations go round by themselves, and nothing else of the word moves.
#[test]
fn a_generation_is_16_bits_of_the_hot_word() {
    let _ = backend();
    let first = hot();
    for n in 1..=u32::from(u16::MAX) {
        next_generation();
        assert_eq!(hot().generation(), first.generation().wrapping_add(n as u16));
        let rest = !(0xffff << GENERATION);
        assert_eq!(hot().0 & rest, first.0 & rest);
    }
    next_generation();
    assert_eq!(hot(), first);
}

#[test]
fn n_th_failure_gives_a_working_backend() {
    use owlet_sys::{Family, fake};
    for family in [Family::Membarrier, Family::Rseq, Family::Topology] {
        for n in 1..=4 {
            let plan = fake::fail_nth(family, n, libc::EPERM);
            let d = decide(&probe());
            drop(plan);
            assert!(d.cpus >= 1, "{family:?} {n}");
            let intact = decide(&probe());
            // Whatever failed, the outcome is the intact one or the portable backend.
            assert!(d == intact || d.backend == Backend::Portable, "{family:?} {n}: {d:?}");
        }
    }
}
