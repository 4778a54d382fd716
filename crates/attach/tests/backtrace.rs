//! TR-17: a backtrace that a program takes has the traced function and its callers, up to `main`, at entry, at
//! exit, and when the body unwinds. A test without a harness, whose `main` it is.

use owlet_attach::{Batch, Program};
use std::backtrace::Backtrace;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

const NAME: &str = "tr_17_a_backtrace_in_a_program_reaches_main";

#[owlet_attach::traced]
#[inline(never)]
fn watched(n: u64) -> u64 {
    assert!(n < 10, "the body panics");
    std::hint::black_box(n) + 1
}

#[inline(never)]
fn between(n: u64) -> u64 {
    std::hint::black_box(watched(std::hint::black_box(n))) + 1
}

fn main() {
    // What a runner of tests asks.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        if !args.iter().any(|arg| arg == "--ignored") {
            println!("{NAME}: test");
        }
        return;
    }
    let asked = args.iter().find(|arg| !arg.starts_with('-'));
    if asked.is_some_and(|asked| !NAME.contains(asked.as_str())) {
        return;
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let take = || {
        let seen = Arc::clone(&seen);
        move |_: &owlet_attach::Call<'_>| {
            seen.lock().expect("not poisoned").push(Backtrace::force_capture().to_string());
        }
    };
    let attached = Batch::new()
        .add(&Program::entry(take()).build(), "*::watched")
        .add(&Program::exit(take()).sleepable().build(), "*::watched")
        .attach()
        .expect("attach");
    assert_eq!(between(1), 3);
    std::panic::set_hook(Box::new(|_| ()));
    catch_unwind(AssertUnwindSafe(|| between(11))).expect_err("the body panics");
    drop(std::panic::take_hook());
    attached.detach().expect("detach");
    let seen = seen.lock().expect("not poisoned");
    assert_eq!(seen.len(), 4);
    for backtrace in &*seen {
        // "  17: path::of::name", with or without the path.
        let names = backtrace.lines().filter_map(|line| line.trim_start().split_once(": "));
        let mut names = names.filter(|(n, _)| n.parse::<u32>().is_ok()).map(|(_, name)| name);
        for name in ["watched", "between", "main"] {
            let found = names.any(|found| found.rsplit("::").next() == Some(name));
            assert!(found, "no {name} in order:\n{backtrace}");
        }
    }
    println!("{NAME}: ok");
}
