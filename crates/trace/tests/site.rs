//! TP-07: what a site costs while off, as the disassembler sees it; and sites in a shared object.

mod common;

use common::{Client, Recorder, Wanted, matched};
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;

owlet::tracepoint! {
    /// Events of these tests.
    pub mod cost {
        /// With fields, one of which would have to be computed.
        some(n: u64, text: &str);
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn owlet_test_other(n: u64) -> u64 {
    std::hint::black_box(n)
}

/// A function as most are: it calls others.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn owlet_test_with_site(n: u64, table: &[u64; 8]) -> u64 {
    owlet_test_other(n);
    owlet::trace!(cost::some, table[(n % 8) as usize].wrapping_mul(n), "text");
    owlet_test_other(table[0]).wrapping_add(n).wrapping_add(table[1])
}

/// The same without the site.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn owlet_test_bare(n: u64, table: &[u64; 8]) -> u64 {
    owlet_test_other(n);
    owlet_test_other(table[0]).wrapping_add(n).wrapping_add(table[1])
}

/// A function that calls nobody: a register that the slow path saves is saved by all of it, since LLVM
/// does not move the saving into a block that is jumped to by assembly.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn owlet_test_leaf_with_site(n: u64, table: &[u64; 8]) -> u64 {
    owlet::trace!(cost::some, table[(n % 8) as usize].wrapping_mul(n), "text");
    n ^ 0x5bd1
}

/// The same without the site.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn owlet_test_leaf_bare(n: u64, _table: &[u64; 8]) -> u64 {
    n ^ 0x5bd1
}

/// The instructions on the way from the entry to the first `ret`, branches not taken.
fn straight_path(function: &str) -> Vec<String> {
    let output = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")])
        .arg(std::env::current_exe().unwrap())
        .output()
        .expect("objdump is missing: install the package binutils");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let body = text.lines().skip_while(|line| !line.contains(&format!("<{function}>:")));
    let instructions =
        body.skip(1).filter_map(|line| Some(line.split_once('\t')?.1.trim().to_owned()));
    let mut path = Vec::new();
    for instruction in instructions {
        let end = instruction.starts_with("ret");
        path.push(instruction);
        if end {
            return path;
        }
    }
    panic!("no ret in {function}:\n{text}");
}

/// What the site adds to the straight path.
fn added(with: &[String], bare: &[String]) -> Vec<String> {
    let name = |instruction: &str| instruction.split(' ').next().unwrap_or_default().to_owned();
    let mut extra = with.to_vec();
    for instruction in bare {
        if let Some(at) = extra.iter().position(|i| name(i) == name(instruction)) {
            extra.remove(at);
        }
    }
    extra
}

#[test]
fn tp_07_a_site_that_is_off_is_one_instruction_or_a_load_and_a_branch() {
    assert_eq!(owlet_test_with_site(1, &[0; 8]), owlet_test_bare(1, &[0; 8]));
    let (with, bare) = (straight_path("owlet_test_with_site"), straight_path("owlet_test_bare"));
    let extra = added(&with, &bare);
    if owlet::site::KIND == "toggle" {
        assert_eq!(extra.len(), 1, "{with:#?}\n{bare:#?}");
        assert!(extra[0].starts_with("test") && extra[0].contains("%eax"), "{extra:#?}");
        return;
    }
    // cmpb $0, flag(%rip); jne - or a movzbl and a test instead of the cmpb.
    let count = |what: &dyn Fn(&str) -> bool| extra.iter().filter(|i| what(i)).count();
    assert!((2..=3).contains(&extra.len()), "{with:#?}\n{bare:#?}");
    assert_eq!(count(&|i| i.starts_with('j')), 1, "{extra:#?}");
    assert_eq!(count(&|i| i.contains("(%rip)")), 1, "{extra:#?}");
    // Neither a store nor a call.
    let into_memory = |i: &str| i.starts_with("mov") && i.ends_with(')') && !i.contains("),");
    let others = |i: &str| ["call", "push", "xchg", "lock", "inc"].iter().any(|n| i.starts_with(n));
    assert_eq!(count(&|i| into_memory(i) && !i.contains("(%rip),")), 0, "{extra:#?}");
    assert_eq!(count(&others), 0, "{extra:#?}");
}

/// Of the toggle: a flag's branch comes on top where the compiler does not sink the saving either.
#[test]
fn a_site_in_a_leaf_adds_at_most_three_instructions() {
    assert_eq!(owlet_test_leaf_with_site(1, &[0; 8]), owlet_test_leaf_bare(1, &[0; 8]));
    if owlet::site::KIND != "toggle" {
        return;
    }
    let with = straight_path("owlet_test_leaf_with_site");
    let extra = added(&with, &straight_path("owlet_test_leaf_bare"));
    assert!(extra.len() <= 3, "{with:#?}");
    assert!(!extra.iter().any(|i| i.starts_with("call")), "{with:#?}");
}

/// The example `plugin`, built as this test was.
fn plugin() -> PathBuf {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(["build", "--quiet", "-p", "owlet", "--example", "plugin"]);
    // Beside this test, whatever the directory is called.
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap();
    command.env("CARGO_TARGET_DIR", target);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    if owlet::site::KIND == "flag" {
        command.args(["--features", "flag-sites"]);
    }
    assert!(command.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    target
        .join(if cfg!(debug_assertions) { "debug" } else { "release" })
        .join("examples/libplugin.so")
}

#[test]
fn a_shared_object_has_sites_and_an_agent_of_its_own_and_stays() {
    let path = std::ffi::CString::new(plugin().to_str().unwrap()).unwrap();
    owlet::init().unwrap();
    let agents = || {
        let all = owlet_sys::runtime_dir::list(&owlet_sys::runtime_dir::path()).unwrap();
        let own = all.into_iter().filter(|(name, _)| name.pid == std::process::id());
        own.map(|(_, path)| path).collect::<HashSet<_>>()
    };
    let before = agents();
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
    let init: extern "C" fn() -> bool = unsafe { std::mem::transmute(symbol(c"plugin_init")) };
    // SAFETY: as above.
    let emit: extern "C" fn(u64) = unsafe { std::mem::transmute(symbol(c"plugin_emit")) };
    emit(3);
    assert!(init());
    let mut found = agents();
    found.retain(|path| !before.contains(path));
    assert_eq!(found.len(), 1, "one more agent");
    let path = found.into_iter().next().unwrap();
    let client = Client::greet(std::os::unix::net::UnixStream::connect(path).unwrap());
    let points = client.list("*");
    assert_eq!(points.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["plug:tick"]);
    let mut recorder = Recorder::new(&Wanted::default());
    assert_eq!(matched(&client.attach(&recorder)), (1, 1, 1, 1));
    emit(1000);
    assert_eq!(recorder.drain(), 1000);
    // SAFETY: nothing of the object's is in use by this test; its agent keeps it loaded.
    unsafe { libc::dlclose(object) };
    emit(10);
    assert_eq!(recorder.drain(), 10);
    drop(client);
}
