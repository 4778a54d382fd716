//! Safety under fire: forks, forbidden memory, programs that change programs, objects that are closed, other
//! people's probes.
//! TR-07, TR-09, TR-14.
//!
//! Where sites are flags there is no code to be written, and most of this has nothing to test.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use owlet_attach::{Attached, Batch, DetachError, Program, find, patch, sites};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const ON: u8 = 0xe9;
const OFF: u8 = 0xa9;

/// The first byte of a function's only site.
fn byte(name: &str) -> u8 {
    let at = site(name);
    let at = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: a site of this program's text.
    unsafe { at.read_volatile() }
}

fn site(name: &str) -> usize {
    let functions = find(name);
    assert_eq!(functions.len(), 1, "{name}");
    let sites = sites(functions[0]);
    assert_eq!(sites.len(), 1, "{name}: {sites:x?}");
    sites[0]
}

/// Runs `f` in a child; it ends with 0 if `f` returns true, and by a signal if it crashes.
fn in_child(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs `f` and leaves by _exit. The library's locks are free in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(120) };
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: a valid int.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Many functions, so that a batch of them opens a window.
macro_rules! many {
    ($($name:ident)*) => {
        $(
            #[owlet_attach::traced]
            #[inline(never)]
            pub(super) fn $name(n: u64) -> u64 { std::hint::black_box(n) + 1 }
        )*
        pub(super) const ALL: &[fn(u64) -> u64] = &[$($name),*];
    };
}

macro_rules! forty {
    ($($module:ident)*) => {$(
        mod $module {
            many! {
                f00 f01 f02 f03 f04 f05 f06 f07 f08 f09 f10 f11 f12 f13 f14 f15 f16 f17 f18 f19
                f20 f21 f22 f23 f24 f25 f26 f27 f28 f29 f30 f31 f32 f33 f34 f35 f36 f37 f38 f39
            }
        }
    )*};
}

forty! { own forbidden written }

fn call_all(all: &[fn(u64) -> u64]) -> u64 {
    all.iter().map(|f| u64::from(f(1) == 2)).sum()
}

/// A child has its parent's programs, its own changes are its own, in both ways of writing. A descriptor of
/// `/proc/self/mem` that was kept over the fork, or shared text, would change the parent.
#[test]
fn tr_14_fork_a_childs_changes_are_its_own_and_work() {
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    let count = Program::entry(|_| ()).build();
    // The parent has written code before, both ways.
    count.attach("*::own::f*").unwrap().detach().unwrap();
    let parents = count.attach("*::own::f00").unwrap();
    assert_eq!((byte("*::own::f00"), byte("*::own::f01")), (ON, OFF));
    let windows = patch::counts().windows;
    let before = count.stats().runs;
    let parents = Cell::new(Some(parents));
    let status = in_child(|| {
        own::f00(1);
        let inherited = count.stats().runs - before == 1;
        let new = Program::entry(|_| ()).build();
        let one = new.attach("*::own::f01").unwrap();
        own::f01(1);
        let through_mem = new.stats().runs == 1;
        one.detach().unwrap();
        let all = new.attach("*::own::f*").unwrap();
        let right = call_all(own::ALL) == 40 && new.stats().runs == 41;
        let in_a_window = patch::counts().windows > windows;
        all.detach().unwrap();
        drop(parents.take());
        let off = byte("*::own::f00") == OFF;
        // Ends with all but one on.
        new.attach("*::own::f*1").unwrap().keep();
        inherited && through_mem && right && in_a_window && off
    });
    assert_eq!(status, 0);
    // The child's `drop` was the child's.
    let programs = owlet_attach::programs(find("*::own::f00")[0]);
    assert_eq!(programs.len(), 1);
    let bytes: Vec<u8> = find("*::own::f*").iter().map(|f| byte(f.name())).collect();
    assert_eq!((bytes[0], &bytes[1..]), (ON, &[OFF; 39][..]));
    let before = count.stats().runs;
    assert_eq!(call_all(own::ALL), 40);
    assert_eq!(count.stats().runs - before, 1);
}

/// Text that was written, in either way, is private memory still: a flip in one process is none in another.
#[test]
fn tr_14_fork_written_text_is_not_shared() {
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    let at = site("*::written::f20");
    let private = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let number = |hex| usize::from_str_radix(hex, 16).unwrap();
            (number(start)..number(end)).contains(&at)
        });
        let permissions = line.unwrap().split_ascii_whitespace().nth(1).unwrap().to_owned();
        // `w` while another test's window is open.
        assert!(permissions.ends_with("xp"), "{permissions}");
    };
    private();
    let program = Program::entry(|_| ()).build();
    for (pattern, sites) in [("*::written::f20", 1), ("*::written::f*", 40)] {
        let attached = program.attach(pattern).unwrap();
        let before = program.stats().runs;
        assert_eq!(call_all(written::ALL), 40);
        assert_eq!((byte("*::written::f20"), program.stats().runs - before), (ON, sites));
        private();
        attached.detach().unwrap();
        private();
    }
}

/// Where memory may never become executable, sites are written through `/proc/self/mem`, however many.
#[test]
fn mdwe_sites_are_switched_where_memory_may_not_become_executable() {
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    const SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: u64 = 1;
    let status = in_child(|| {
        // SAFETY: takes numbers.
        let set = unsafe { libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0_u64, 0_u64, 0_u64) };
        if set != 0 {
            eprintln!("skipped: PR_SET_MDWE: {}", std::io::Error::last_os_error());
            return true;
        }
        let before = patch::counts();
        let count = Program::entry(|_| ()).build();
        let attached = count.attach("*::forbidden::f*").unwrap();
        let right = call_all(forbidden::ALL) == 40 && count.stats().runs == 40;
        attached.detach().unwrap();
        let off = call_all(forbidden::ALL) == 40 && count.stats().runs == 40;
        let now = patch::counts();
        let written = now.mem_writes - before.mem_writes == 80 && now.windows == before.windows;
        right && off && written
    });
    assert_eq!(status, 0);
}

mod changing {
    #[owlet_attach::traced]
    pub(super) fn outer(n: u64) -> u64 {
        n + 1
    }
    #[owlet_attach::traced]
    pub(super) fn other(n: u64) -> u64 {
        n + 2
    }
}

/// Programs attach and detach others and themselves, on their own function and on another.
#[test]
fn programs_change_programs_from_inside() {
    let count = Arc::new(AtomicUsize::new(0));
    let inner = {
        let count = Arc::clone(&count);
        Program::entry(move |_| _ = count.fetch_add(1, Ordering::Relaxed)).build()
    };
    let place = Arc::new(Mutex::new(None::<Attached>));
    let says = Arc::new(Mutex::new(Vec::new()));
    let changes = {
        let (inner, place, says) = (inner.clone(), Arc::clone(&place), Arc::clone(&says));
        Program::entry(move |_| {
            let mut place = place.lock().unwrap();
            match place.take() {
                // The function that is being called, and another, which it calls.
                None => {
                    let batch = Batch::new()
                        .add(&inner, "*::changing::outer")
                        .add(&inner, "*::changing::other");
                    *place = Some(batch.attach().unwrap());
                    assert_eq!(changing::other(1), 3);
                }
                Some(attached) => says.lock().unwrap().push(attached.detach()),
            }
        })
        .build()
    };
    let attached = changes.attach("*::changing::outer").unwrap();
    // The list of a call is that of its entry: `inner` runs on `other` only.
    assert_eq!(changing::outer(1), 2);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(owlet_attach::programs(find("*::changing::outer")[0]).len(), 2);
    // Detached by a program that is ahead of it in the list of this call: it runs once more.
    assert_eq!(changing::outer(1), 2);
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(*says.lock().unwrap(), [Err(DetachError::InsideProgram)]);
    assert!(owlet_attach::programs(find("*::changing::other")[0]).is_empty());
    attached.detach().unwrap();
    owlet_attach::quiesce();
    assert_eq!((changing::outer(1), changing::other(1)), (2, 3));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

/// The example `traced_plugin`, built as this test was.
fn plugin() -> std::path::PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = std::process::Command::new(cargo);
    command.args(["build", "--quiet", "-p", "owlet-attach", "--example", "traced_plugin"]);
    // Beside this test, whatever the directory is called.
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap();
    command.env("CARGO_TARGET_DIR", target);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    assert!(command.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    target.join(profile).join("examples/libtraced_plugin.so")
}

/// An object whose sites were switched once stays when it is closed, and what it has goes on.
#[test]
fn tr_13_a_closed_object_stays_while_its_sites_may_be_on() {
    let path = std::ffi::CString::new(plugin().to_str().unwrap()).unwrap();
    let loaded = || {
        // SAFETY: asks only.
        let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if !object.is_null() {
            // SAFETY: gives the reference back.
            unsafe { libc::dlclose(object) };
        }
        !object.is_null()
    };
    // SAFETY: the path is a string; the object's constructors are Rust's.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!object.is_null());
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the object is loaded, the name a string.
        let found = unsafe { libc::dlsym(object, name.as_ptr()) };
        assert!(!found.is_null());
        found
    };
    // SAFETY: the example declares it so.
    let call: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(symbol(c"plugin_call")) };
    // SAFETY: as above.
    let count: extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol(c"plugin_count")) };
    assert_eq!(call(1), 2);
    assert_eq!(count(), 0, "attaches, at its first call");
    assert_eq!((call(2), count()), (3, 1));
    // SAFETY: nothing of the object's runs; it keeps itself.
    unsafe { libc::dlclose(object) };
    assert!(loaded());
    assert_eq!((call(3), count()), (4, 2));
}

mod probed {
    macro_rules! functions {
        ($($name:ident)*) => {$(
            #[owlet_attach::traced]
            #[inline(never)]
            pub(super) fn $name(n: u64) -> u64 {
                std::hint::black_box(n) + 1
            }
        )*
        pub(super) const ALL: &[(&str, fn(u64) -> u64)] = &[$((stringify!($name), $name)),*];
        };
    }
    functions! { c00 c01 c02 c03 c04 c05 c06 c07 c08 c09 c10 c11 c12 c13 c14 c15 }
}

/// A kernel uprobe on one of our sites.
mod uprobe {
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// A perf event: counts hits while it is open.
    pub(super) struct Uprobe(OwnedFd);

    fn file_offset(address: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for line in maps.lines() {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            let number = |hex| usize::from_str_radix(hex, 16).unwrap();
            if (number(start)..number(end)).contains(&address) {
                return (number(words[2]) + address - number(start)) as u64;
            }
        }
        panic!("no mapping has {address:#x}")
    }

    impl Uprobe {
        /// Error: not permitted here, or no uprobes.
        pub(super) fn on(address: usize) -> io::Result<Self> {
            const KIND: &str = "/sys/bus/event_source/devices/uprobe/type";
            let kind: u32 = std::fs::read_to_string(KIND)?.trim().parse().unwrap();
            let path = c"/proc/self/exe";
            // `struct perf_event_attr` up to version 5 (112 bytes), in words.
            let mut attr = [0_u64; 14];
            attr[0] = u64::from(kind) | 112 << 32;
            attr[7] = path.as_ptr().addr() as u64;
            attr[8] = file_offset(address);
            // SAFETY: the block and the path live until the call is done.
            let fd =
                unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), 0, -1, -1, 8) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: a fresh descriptor.
            Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
        }

        pub(super) fn hits(&self) -> u64 {
            let mut count = 0_u64;
            // SAFETY: room for one word.
            let got = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
            assert_eq!(got, 8);
            count
        }
    }
}

/// Every order of attaching ours (`a`, away `d`) and the kernel's (`u`, away `x`), each with calls between all
/// steps and with none. No order makes invalid code or a wrong result; what may be lost is told below.
#[test]
fn uprobes_on_our_sites_in_every_order() {
    if owlet_attach::site::KIND != "toggle" {
        return;
    }
    if let Err(error) = uprobe::Uprobe::on(site("*::probed::c00")) {
        eprintln!("skipped: uprobes: {error}");
        return;
    }
    let orders = ["audx", "auxd", "uaxd", "uadx", "auxdad", "uxad", "aduxa", "uxaud"];
    let cases = orders.iter().flat_map(|order| [(*order, true), (*order, false)]);
    for ((order, hit), (name, f)) in cases.zip(probed::ALL) {
        let status = in_child(|| one_order(order, hit, &format!("*::probed::{name}"), *f));
        assert_eq!(status, 0, "{order}, hit {hit}");
    }
}

fn one_order(order: &str, hit: bool, name: &str, f: fn(u64) -> u64) -> bool {
    let program = Program::entry(|_| ()).build();
    let (mut ours, mut theirs) = (None, None);
    let calls = |n: u64| (0..n).all(|i| f(i) == i + 1);
    for step in order.chars() {
        match step {
            'a' => match program.attach(name) {
                Ok(attached) if theirs.is_none() => ours = Some(attached),
                // All or nothing: the breakpoint is somebody else's.
                Err(owlet_attach::AttachError::SiteBusy { .. }) if theirs.is_some() => {}
                other => panic!("{other:?}"),
            },
            'd' => drop(ours.take().map(|attached| attached.detach().unwrap())),
            'u' => theirs = Some(uprobe::Uprobe::on(site(name)).unwrap()),
            _ => {
                drop(theirs.take());
                // The kernel restores the byte of the file, whatever was there.
                assert_eq!(byte(name), OFF);
            }
        }
        if hit {
            assert!(calls(100));
            if step == 'u' {
                assert!(theirs.as_ref().unwrap().hits() >= 100);
            }
        }
    }
    drop((ours, theirs));
    // Back to normal: one attach, every call.
    let runs = program.stats().runs;
    let right = calls(100) && program.stats().runs == runs;
    let again = program.attach(name).unwrap();
    let runs_again = calls(100) && program.stats().runs == runs + 100;
    again.detach().unwrap();
    right && runs_again && calls(100) && program.stats().runs == runs + 100
}

/// A uprobe that came and went has switched the site off under its programs; whoever attaches next puts it on.
#[test]
fn a_site_that_a_uprobe_left_off_is_on_with_the_next_program() {
    if owlet_attach::site::KIND != "toggle" || uprobe::Uprobe::on(site("*::probed::c00")).is_err() {
        return;
    }
    let (name, f) = probed::ALL[0];
    let name = format!("*::probed::{name}");
    let status = in_child(|| {
        let (first, second) = (Program::entry(|_| ()).build(), Program::entry(|_| ()).build());
        let _first = first.attach(&name).unwrap();
        drop(uprobe::Uprobe::on(site(&name)).unwrap());
        assert_eq!((f(1), first.stats().runs), (2, 0));
        let _second = second.attach(&name).unwrap();
        assert_eq!(f(1), 2);
        (first.stats().runs, second.stats().runs) == (1, 1)
    });
    assert_eq!(status, 0);
}
