use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::fake::{self, Extent, Scope};
use crate::memory::{self, Mapping, memfd_create, page_size};
use crate::runtime_dir::{self, SocketName};
use crate::{Family, SysError, clock, fork, futex, membarrier, process, rseq, topology};

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn failed_calls_leave_errno_alone() {
    // SAFETY: fails with EBADF and sets errno.
    unsafe { libc::close(-1) };
    assert_eq!(errno(), libc::EBADF);
    assert!(process::pidfd_open(u32::MAX / 2).is_err());
    assert!(topology::set_affinity(Some(8191), 0).is_err());
    let _ = futex::wait(&AtomicU32::new(1), 2, None, futex::Reach::Private);
    assert_eq!(errno(), libc::EBADF);
}

#[test]
fn error_names_the_call() {
    let error = SysError { call: "memfd_create", errno: libc::EMFILE };
    let text = std::io::Error::from_raw_os_error(libc::EMFILE).to_string();
    assert_eq!(error.to_string(), format!("memfd_create: {text}"));
    let io = std::io::Error::from(error);
    assert!(io.to_string().contains("memfd_create"));
    assert!(!error.is_unavailable());
    assert!(SysError { call: "membarrier", errno: libc::ENOSYS }.is_unavailable());
}

#[test]
fn fake_fails_exactly_the_nth_call() {
    let plan = fake::fail_nth(Family::Membarrier, 2, libc::EPERM);
    let first = membarrier::query();
    assert_eq!(membarrier::query().map_err(|e| e.errno), Err(libc::EPERM));
    assert_eq!(membarrier::query(), first);
    drop(plan);
    let plan = fake::fail(Family::Membarrier, 1, libc::ENOSYS, Scope::Thread, Extent::Forever);
    for _ in 0..3 {
        assert!(membarrier::query().is_err());
    }
    drop(plan);
    assert_eq!(membarrier::query(), first);
}

/// In the one family no other test here uses, because they share the process.
#[test]
fn fake_of_process_scope_reaches_other_threads() {
    let intact = rseq::area();
    let plan = fake::fail(Family::Rseq, 1, libc::EPERM, Scope::Process, Extent::Forever);
    let other = std::thread::spawn(rseq::area).join().expect("no panic");
    assert_eq!(other, Err(rseq::Absent::NotRegistered));
    drop(plan);
    assert_eq!(rseq::area(), intact);
}

fn segment(len: usize) -> crate::Result<(std::os::fd::OwnedFd, Mapping)> {
    let fd = memfd_create(c"owlet-test")?;
    memory::allocate(&fd, len)?;
    memory::seal_size(&fd)?;
    let map = Mapping::mirrored(&fd, 0, len)?;
    Ok((fd, map))
}

#[test]
fn mirrored_mapping_is_one_memory_twice() {
    let len = 4 * page_size();
    let (fd, map) = segment(len).expect("memory");
    assert_eq!((map.len(), memory::len(&fd)), (2 * len, Ok(len)));
    for i in [0, 1, page_size(), len - 1] {
        let (here, there) = (map.as_ptr().wrapping_add(i), map.as_ptr().wrapping_add(len + i));
        // SAFETY: inside the mapping, nobody else writes there.
        unsafe { there.write_volatile(i as u8 ^ 0x5a) };
        // SAFETY: as above.
        assert_eq!(unsafe { here.read_volatile() }, i as u8 ^ 0x5a);
    }
}

#[test]
fn sealed_segment_cannot_change_size() {
    let (fd, _map) = segment(page_size()).expect("memory");
    assert_eq!(memory::is_size_sealed(&fd), Ok(true));
    assert_eq!(memory::allocate(&fd, 1).map_err(|e| e.errno), Err(libc::EPERM));
    assert_eq!(memory::allocate(&fd, 2 * page_size()).map_err(|e| e.errno), Err(libc::EPERM));
    let open = memfd_create(c"owlet-test").expect("memory");
    assert_eq!(memory::is_size_sealed(&open), Ok(false));
}

/// Anomaly: whichever call fails, the error is reported and nothing is left mapped.
#[test]
fn segment_survives_the_failure_of_any_call() {
    let maps = || {
        let text = std::fs::read_to_string("/proc/self/maps").expect("proc");
        text.lines().filter(|l| l.contains("memfd:owlet-anomaly")).count()
    };
    let make = || {
        let fd = memfd_create(c"owlet-anomaly")?;
        memory::allocate(&fd, page_size())?;
        memory::seal_size(&fd)?;
        Mapping::mirrored(&fd, 0, page_size()).map(drop)
    };
    for n in 1..=7 {
        let plan = fake::fail_nth(Family::Memory, n, libc::ENOMEM);
        let got = make();
        drop(plan);
        assert_eq!(got.map_err(|e| e.errno), Err(libc::ENOMEM), "call {n}");
        assert_eq!(maps(), 0, "call {n}");
    }
    make().expect("seven calls in all");
}

#[test]
fn futex_wakes_times_out_and_compares() {
    let word = AtomicU32::new(1);
    let short = Some(Duration::from_millis(5));
    assert_eq!(futex::wait(&word, 2, None, futex::Reach::Shared), futex::Woken::Changed);
    assert_eq!(futex::wait(&word, 1, short, futex::Reach::Private), futex::Woken::TimedOut);
    std::thread::scope(|s| {
        s.spawn(|| {
            while word.load(Ordering::Acquire) == 1 {
                let _ = futex::wait(&word, 1, None, futex::Reach::Private);
            }
        });
        std::thread::sleep(Duration::from_millis(10));
        word.store(2, Ordering::Release);
        futex::wake_all(&word, futex::Reach::Private);
    });
    let _plan = fake::fail_nth(Family::Futex, 1, libc::ENOSYS);
    assert_eq!(futex::wait(&word, 2, short, futex::Reach::Private), futex::Woken::Unavailable);
}

/// The generation a child sees, made by `fork` or by a raw clone.
fn generation_in_child(raw: bool) -> u64 {
    let shared = Mapping::shared(
        {
            let fd = memfd_create(c"owlet-test").expect("memory");
            memory::allocate(&fd, page_size()).expect("memory");
            fd
        },
        0,
        page_size(),
    )
    .expect("memory");
    let at = shared.as_ptr().cast::<u64>();
    let pid = if raw {
        // SAFETY: the child only stores and exits.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    } else {
        // SAFETY: the child only stores and exits.
        unsafe { libc::fork() }
    };
    if pid == 0 {
        let seen = fork::generation();
        let again = if fork::generation() == seen { seen } else { 0 };
        // SAFETY: the first word of a shared page.
        unsafe { at.write_volatile(again) };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: our own child; its status is not wanted.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    // SAFETY: the first word of a shared page.
    unsafe { at.read_volatile() }
}

#[test]
fn generation_changes_in_a_child_however_it_is_made() {
    let here = fork::generation();
    assert_ne!(here, 0);
    for raw in [false, true] {
        let there = generation_in_child(raw);
        assert!(there != 0 && there != here, "raw {raw}: {here} {there}");
    }
    assert_eq!(fork::generation(), here);
}

#[test]
fn tsc_verdicts() {
    for (invariant, source, allowed, usable) in [
        (true, Some("tsc"), true, true),
        (false, Some("tsc"), true, false),
        (true, Some("kvm-clock"), true, false),
        (true, None, true, false),
        (true, Some("tsc"), false, false),
    ] {
        let verdict = clock::judge_tsc(invariant, source, allowed);
        assert_eq!(verdict.usable, usable, "{invariant} {source:?} {allowed}: {}", verdict.why);
    }
}

/// Case K1: samples that make no sense give no frequency, and never a panic.
#[test]
fn k1_calibration_never_wraps() {
    let at = |tsc, ns| clock::Anchor { tsc, monotonic_ns: ns, realtime_ns: ns };
    let good = clock::frequency(&at(1000, 0), &at(3_000_001_000, 1_000_000_000));
    assert_eq!(good, Some(3_000_000_000));
    assert_eq!(clock::frequency(&at(5, 0), &at(4, 1_000_000_000)), None, "counter went back");
    assert_eq!(clock::frequency(&at(0, 9), &at(4, 8)), None, "clock went back");
    assert_eq!(clock::frequency(&at(7, 7), &at(7, 7)), None, "no distance");
    assert_eq!(clock::frequency(&at(0, 0), &at(u64::MAX, 1_000_000)), None, "absurd rate");
    assert_eq!(clock::frequency(&at(0, 0), &at(1, 2_000_000_000)), None, "stopped counter");
    if clock::tsc_usable().usable {
        let (hz, _) = clock::calibrate(Duration::from_millis(20)).expect("a usable TSC");
        let (again, _) = clock::calibrate(Duration::from_millis(20)).expect("a usable TSC");
        assert!(hz.abs_diff(again) < hz / 1000, "{hz} {again}");
    }
}

#[test]
fn cpu_lists() {
    for (text, slots) in [
        ("0", Some(1)),
        ("0-3\n", Some(4)),
        ("0-3,8-11", Some(12)),
        ("0,2", Some(3)),
        ("", None),
        ("0-x", None),
        ("18446744073709551615", None),
    ] {
        assert_eq!(topology::parse_cpu_list(text.as_bytes()), slots, "{text:?}");
    }
    assert!(topology::possible_cpus().expect("sysfs") >= 1);
    let _plan = fake::fail_nth(Family::Topology, 1, libc::ENOENT);
    assert!(topology::possible_cpus().is_err());
    assert!(topology::configured_cpus() >= 1);
}

#[test]
fn rseq_size_rules() {
    use rseq::Absent;
    assert_eq!(rseq::check_size(0), Err(Absent::NotRegistered));
    assert_eq!(rseq::check_size(7), Err(Absent::BadSize(7)));
    for (size, mm_cid) in [(20, false), (28, true), (32, false), (33, true)] {
        assert_eq!((rseq::check_size(size), rseq::has_mm_cid(size)), (Ok(()), mm_cid), "{size}");
    }
    assert!(!Absent::NoSymbols.why().is_empty());
}

#[test]
fn start_times() {
    let fields = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 11 12";
    for name in ["(sh)", "(a b)", "(evil) R 1 2)", "())"] {
        let stat = format!("42 {name} {fields}");
        assert_eq!(process::parse_start_time(stat.as_bytes()), Some(987_654), "{name}");
    }
    for bad in ["", "42 (sh", "42 (sh) S 1", "42 (sh)"] {
        assert_eq!(process::parse_start_time(bad.as_bytes()), None, "{bad}");
    }
    assert!(process::start_time(process::getpid()).expect("proc") > 0);
}

#[test]
fn thread_names_are_cut() {
    let named = std::thread::spawn(|| {
        process::set_thread_name("owlet-0123456789abcdef").expect("allowed");
        process::thread_name().expect("allowed")
    });
    assert_eq!(named.join().expect("no panic").as_bytes(), b"owlet-012345678");
}

#[test]
fn pidfd_tells_when_a_process_ends_and_does_not_reap() {
    let mut child = std::process::Command::new("sleep").arg("0.05").spawn().expect("sleep");
    let fd = process::pidfd_open(child.id()).expect("pidfd");
    assert_eq!(process::pidfd_wait(&fd, Duration::ZERO), Ok(false));
    assert_eq!(process::pidfd_wait(&fd, Duration::from_secs(20)), Ok(true));
    assert!(child.wait().expect("still there to be reaped").success());
}

#[test]
fn runtime_dir_is_ours_closed_and_no_link() {
    let base = tempfile::tempdir().expect("tmp");
    let uid = process::geteuid();
    let xdg = Some(base.path().as_os_str());
    assert_eq!(runtime_dir::choose(xdg, uid), base.path().join("owlet"));
    let fallback = std::path::PathBuf::from(format!("/tmp/owlet-{uid}"));
    assert_eq!(runtime_dir::choose(None, uid), fallback);
    assert_eq!(runtime_dir::choose(Some("relative".as_ref()), uid), fallback);
    assert_eq!(runtime_dir::choose(Some(base.path().join("absent").as_os_str()), uid), fallback);
    let other = runtime_dir::choose(xdg, uid + 1);
    assert_eq!(other, std::path::PathBuf::from(format!("/tmp/owlet-{}", uid + 1)), "not ours");

    let dir = base.path().join("owlet");
    runtime_dir::prepare(&dir).expect("made");
    runtime_dir::prepare(&dir).expect("there already");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&dir, open).expect("chmod");
    assert_eq!(runtime_dir::prepare(&dir).map_err(|e| e.errno), Err(libc::EACCES));

    let link = base.path().join("link");
    symlink(&dir, &link).expect("symlink");
    assert_eq!(runtime_dir::prepare(&link).map_err(|e| e.errno), Err(libc::ENOTDIR));
}

#[test]
fn socket_names_round_trip_and_go_stale() {
    let own = SocketName::own(3);
    assert_eq!(own.to_string().parse(), Ok(own));
    assert!(!own.is_stale());
    assert!(SocketName { start_time: own.start_time + 1, ..own }.is_stale(), "pid used again");
    assert!(SocketName { pid: 4_194_999, ..own }.is_stale(), "no such process");
    let elsewhere = SocketName { pid: 4_194_999, pid_ns: own.pid_ns + 1, ..own };
    assert!(!elsewhere.is_stale(), "another namespace's processes cannot be judged");
    for bad in ["", "1-2-3.sock", "1-2-3-4", "1-2-3-4-5.sock", "a-2-3-4.sock", "+1-2-3-4.sock"] {
        assert!(bad.parse::<SocketName>().is_err(), "{bad}");
    }
    let dir = tempfile::tempdir().expect("tmp");
    for name in [own.to_string().as_str(), "notes.txt", "1-2-3-4.sock.tmp"] {
        std::fs::write(dir.path().join(name), "").expect("write");
    }
    let listed = runtime_dir::list(dir.path()).expect("list");
    assert_eq!(listed, [(own, dir.path().join(own.to_string()))]);
    assert_eq!(runtime_dir::list(&dir.path().join("gone")), Ok(vec![]));
}

#[test]
fn detached_threads_run_with_signals_blocked() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static RAN: AtomicU32 = AtomicU32::new(0);
    let blocked = || {
        // SAFETY: a set of signals is plain integers.
        let mut mask: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: `mask` is ours; no new mask is given.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask) };
        // SAFETY: a valid set.
        unsafe { libc::sigismember(&raw const mask, libc::SIGTERM) == 1 }
    };
    let here = blocked();
    let body = || {
        // SAFETY: a set of signals is plain integers.
        let mut mask: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: `mask` is ours; no new mask is given.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask) };
        // SAFETY: a valid set.
        let blocked = unsafe { libc::sigismember(&raw const mask, libc::SIGTERM) == 1 };
        RAN.store(1 + u32::from(blocked), Ordering::Release);
    };
    crate::thread::spawn_detached(body).expect("a thread");
    assert_eq!(blocked(), here, "the caller's mask is as it was");
    while RAN.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(RAN.load(Ordering::Acquire), 2, "signals are blocked");
    let plan = crate::fake::fail_nth(Family::Process, 1, libc::EAGAIN);
    let refused = crate::thread::spawn_detached(body).expect_err("refused");
    drop(plan);
    assert_eq!((refused.call, refused.errno), ("pthread_create", libc::EAGAIN));
}
