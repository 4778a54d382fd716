//! Threads and processes as they come: many, short-lived, stopped, on one CPU, with code that goes.

#[path = "../../rcu/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use common::{SOON, watched};
use owlet_rcu::{Domain, Qsbr, Srcu, Tasks, TasksTrace, wait_all};

/// LV-01: 10,000 threads that have read, are registered, offline, and blocked in the kernel.
#[test]
fn lv_01_ten_thousand_threads() {
    static SRCU: Srcu = Srcu::new();
    static QSBR: Qsbr = Qsbr::new();
    static TASKS: Tasks = Tasks::new();
    static TRACE: TasksTrace = TasksTrace::new();
    let (arrived, leave) = (AtomicU64::new(0), (Mutex::new(false), Condvar::new()));
    thread::scope(|s| {
        let mut started = 0;
        while started < 10_000 {
            let body = || {
                drop((SRCU.read(), TRACE.read()));
                let mut reader = QSBR.register();
                drop(reader.online());
                let mut task = TASKS.register();
                task.offline(|| {
                    arrived.fetch_add(1, Ordering::Relaxed);
                    let mut told = leave.0.lock().unwrap();
                    while !*told {
                        told = leave.1.wait(told).unwrap();
                    }
                });
            };
            if thread::Builder::new().stack_size(64 << 10).spawn_scoped(s, body).is_err() {
                // A limit of this machine, not of ours.
                println!("only {started} threads can be made here");
                break;
            }
            started += 1;
        }
        assert!(started >= 500);
        while arrived.load(Ordering::Relaxed) < started {
            thread::sleep(Duration::from_millis(5));
        }
        watched("a grace period of each domain beside 10,000 threads", || {
            let domains: [&dyn Domain; 4] = [&SRCU, &QSBR, &TASKS, &TRACE];
            domains.iter().for_each(|domain| domain.synchronize());
            wait_all(&domains);
        });
        *leave.0.lock().unwrap() = true;
        leave.1.notify_all();
    });
    watched("after they have all gone", || wait_all(&[&SRCU, &QSBR, &TASKS, &TRACE]));
    assert_eq!(QSBR.abandoned() + TASKS.abandoned(), 0);
}

/// LV-01, GP-12: threads that read and exit at once, 16 at a time, well over a thousand a second.
#[test]
fn lv_01_gp_12_short_lived_threads() {
    static SRCU: Srcu = Srcu::new();
    static QSBR: Qsbr = Qsbr::new();
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        let waiter = s.spawn(|| {
            let mut periods = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                watched("a grace period", || wait_all(&[&SRCU, &QSBR]));
                periods += 1;
            }
            periods
        });
        let mut threads = 0;
        while threads < 3000 {
            let batch: Vec<_> = (0..16)
                .map(|_| {
                    thread::spawn(|| {
                        drop(SRCU.read());
                        drop(QSBR.register().online());
                    })
                })
                .collect();
            threads += batch.into_iter().map(|thread| thread.join().is_ok() as u32).sum::<u32>();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(waiter.join().expect("no panic") > 0);
    });
    // Nothing lost, nothing counted twice: a section is still waited for, and only it.
    let section = SRCU.read();
    let cookie = SRCU.start_poll();
    thread::sleep(SOON);
    assert!(!SRCU.poll(cookie));
    drop(section);
    watched("the last", || SRCU.wait(cookie));
    assert_eq!(QSBR.abandoned(), 0);
}

/// LV-01: threads stopped from outside, wherever they are; those outside of sections delay nothing.
#[test]
fn lv_01_stopped_threads() {
    let output = Command::new(env!("CARGO_BIN_EXE_owlet-torture"))
        .args(["run", "--seconds", "1", "--flavours", "srcu,qsbr,tasks", "--json"])
        .output()
        .expect("runs");
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(verdict["held"], true, "{verdict}");
    for flavour in verdict["flavours"].as_array().expect("a list") {
        println!("{} stops", flavour["stops"]);
        assert_ne!(flavour["stops"], 0, "ptrace is refused here? {verdict}");
    }
}

/// All threads on one CPU, and on another from one moment to the next.
#[test]
fn lv_01_one_cpu_and_a_change_of_cpus() {
    static SRCU: Srcu = Srcu::new();
    let cpus = owlet_percpu::cpus();
    let _ = owlet_sys::topology::set_affinity(Some(0), cpus);
    let (stop, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    let section = SRCU.read();
                    let now = moves.load(Ordering::Relaxed);
                    if now != seen {
                        // In the middle of a section.
                        seen = now;
                        let cpu = Some(now as usize % cpus);
                        let _ = owlet_sys::topology::set_affinity(cpu, cpus);
                    }
                    drop(section);
                }
            });
        }
        for round in 0..300 {
            watched("a grace period on one CPU", || {
                if round % 2 == 0 { SRCU.synchronize() } else { SRCU.synchronize_expedited() }
            });
            if round % 10 == 9 {
                moves.fetch_add(1, Ordering::Relaxed);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    watched("afterwards", || SRCU.synchronize());
}

/// A group of processes with CPUs of its own, removed when dropped.
struct Cpuset(PathBuf);

impl Cpuset {
    /// `None` where there are none to be had.
    fn new(cpus: &str) -> Option<Self> {
        let name = format!("owlet-torture-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].map(Path::new);
        roots.iter().filter(|root| root.join("cgroup.procs").exists()).find_map(|root| {
            let at = root.join(&name);
            std::fs::create_dir(&at).ok()?;
            let set = Self(at);
            let memory = ["cpuset.mems", "cpuset.mems.effective"];
            let memory =
                memory.iter().find_map(|file| std::fs::read_to_string(root.join(file)).ok());
            set.write("cpuset.mems", memory?.trim()).then_some(())?;
            set.write("cpuset.cpus", cpus).then_some(set)
        })
    }

    fn write(&self, file: &str, text: &str) -> bool {
        std::fs::write(self.0.join(file), text).is_ok()
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// The process and those it has started.
fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(pid).chain(children.flat_map(family)).collect()
}

/// A process that is confined to other CPUs from one moment to the next.
#[test]
fn lv_01_a_change_of_the_cpuset() {
    let last = owlet_percpu::cpus() - 1;
    let sets = ["0".to_owned(), last.to_string(), format!("0-{last}")];
    let Some(set) = Cpuset::new(&sets[2]) else {
        println!("skipped: no cpuset can be made here");
        return;
    };
    let mut run = Command::new(env!("CARGO_BIN_EXE_owlet-torture"));
    run.args(["run", "--seconds", "2", "--flavours", "srcu,qsbr", "--fork-limit", "60", "--json"]);
    let mut run = run.stdout(Stdio::piped()).spawn().expect("runs");
    let mut changes = 0;
    while run.try_wait().expect("ours").is_none() {
        for pid in family(run.id()) {
            set.write("cgroup.procs", &pid.to_string());
        }
        changes += usize::from(set.write("cpuset.cpus", &sets[changes % sets.len()]));
        thread::sleep(Duration::from_millis(30));
    }
    let output = run.wait_with_output().expect("ours");
    let verdict: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(verdict["held"], true, "{verdict}");
    println!("{changes} changes");
    assert!(changes > 10, "the CPUs were changed {changes} times");
}

/// BA-02: callbacks whose code is in a library that is closed right after `quiesce`.
#[test]
fn ba_02_a_library_with_callbacks_is_closed() {
    static SRCU: Srcu = Srcu::new();
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let dir = std::env::temp_dir().join(format!("owlet-torture-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let (source, library) = (dir.join("late.c"), dir.join("late.so"));
    let code = "void late(unsigned long *count) { __atomic_fetch_add(count, 1, 5); }\n";
    std::fs::write(&source, code).expect("the source");
    let mut cc = Command::new("cc");
    let built = cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("cc runs").success());
    let path = std::ffi::CString::new(library.to_str().expect("UTF-8")).expect("no NUL");
    for round in 1..=20 {
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        // SAFETY: a valid handle and name.
        let symbol = unsafe { libc::dlsym(handle, c"late".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: what the source says.
        let late: extern "C" fn(*const AtomicU64) = unsafe { std::mem::transmute(symbol) };
        for _ in 0..500 {
            SRCU.call(move || late(&raw const CALLED));
        }
        SRCU.quiesce();
        // SAFETY: the handle is ours, and by `quiesce` nobody will call into the library.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        assert_eq!(CALLED.load(Ordering::Relaxed), 500 * round);
    }
    let _ = std::fs::remove_dir_all(dir);
}
