//! What the kernel's probes cost: attaching to and detaching from many sites, and each hit.
//!
//! `cargo run --release -p owlet-uprobe --example uprobe_cost [SITES]`, as root. The program probes itself:
//! functions that are one instruction and a return, in three kinds of first instruction.

use owlet_uprobe::{Attachment, Hit, Moments, Options, Pattern, Scope, Way, find};
use std::time::{Duration, Instant};

/// Functions of each kind, and bytes from one to the next.
const FUNCTIONS: usize = 1024;
const STRIDE: usize = 16;
/// Calls of one measurement, and how often it is repeated.
const CALLS: u64 = 50_000;
const ROUNDS: usize = 5;
/// Room for one measurement of hits; and the command's own default.
const LARGE: u64 = 64 << 20;
const SMALL: u64 = 4 << 20;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".macro owlet_cost kind, code:vararg",
    ".balign 16",
    ".globl owlet_cost_\\kind\\()_\\@",
    ".type owlet_cost_\\kind\\()_\\@,@function",
    "owlet_cost_\\kind\\()_\\@: .byte \\code",
    ".size owlet_cost_\\kind\\()_\\@, .-owlet_cost_\\kind\\()_\\@",
    ".endm",
    ".text",
    ".balign 16",
    ".globl owlet_first_nop5",
    "owlet_first_nop5:",
    ".rept 1024",
    "owlet_cost nop5, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3",
    ".endr",
    ".balign 16",
    ".globl owlet_first_push",
    "owlet_first_push:",
    ".rept 1024",
    "owlet_cost push, 0x55, 0x5d, 0xc3",
    ".endr",
    ".balign 16",
    ".globl owlet_first_xor",
    "owlet_first_xor:",
    ".rept 1024",
    "owlet_cost xor, 0x31, 0xc0, 0xc3",
    ".endr",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    safe fn owlet_first_nop5();
    safe fn owlet_first_push();
    safe fn owlet_first_xor();
}

/// The least of several measurements: what others do on the machine only adds.
fn least(all: Vec<Duration>) -> Duration {
    all.into_iter().min().unwrap_or_default()
}

/// One of the functions.
fn function(first: extern "C" fn(), number: usize) -> extern "C" fn() {
    assert!(number < FUNCTIONS);
    let address = (first as *const ()).wrapping_byte_add(number * STRIDE);
    // SAFETY: there is such a function: FUNCTIONS of them, STRIDE bytes apart.
    unsafe { std::mem::transmute::<*const (), extern "C" fn()>(address) }
}

/// CPU time of the calls: others on the machine do not add to it.
fn calls(function: extern "C" fn()) -> Duration {
    let begin = owlet_sys::clock::thread_cpu_ns();
    (0..CALLS).for_each(|_| function());
    Duration::from_nanos(owlet_sys::clock::thread_cpu_ns() - begin)
}

fn attach(
    pattern: &str,
    sites: usize,
    moments: Moments,
    ring_bytes: u64,
    way: Way,
) -> (Attachment, Duration) {
    let pattern = Pattern::parse(pattern).expect("a pattern");
    let scope = Scope::Process(std::process::id());
    let mut found = find(scope, &[pattern]).map_err(|nothing| nothing.error).expect("sites");
    found.sites.truncate(sites);
    assert_eq!(found.sites.len(), sites);
    let way = Some(way);
    let options = Options { scope, moments, ring_bytes, way, allow_abort: true };
    let begin = Instant::now();
    let attachment = Attachment::new(&found, &options).expect("attach");
    (attachment, begin.elapsed())
}

fn batch(sites: usize, way: Way, hit: bool, first: extern "C" fn()) {
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut attachment, took) = attach("*owlet_cost_nop5*", sites, Moments::Entry, SMALL, way);
        on.push(took);
        if hit {
            (0..sites).for_each(|number| function(first, number)());
        }
        let begin = Instant::now();
        attachment.detach();
        off.push(begin.elapsed());
        if hit {
            let mut hits: Vec<Hit> = Vec::new();
            attachment.finish(&mut hits);
            assert_eq!(hits.len(), sites, "every site was on");
        }
    }
    let (on, off) = (least(on), least(off));
    println!("{way:?} sites={sites} hit={hit} attach_ms={:.1} detach_ms={:.1}", ms(on), ms(off));
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn hits(kind: &str, first: extern "C" fn(), moments: Moments, way: Way) {
    let bare = least((0..ROUNDS).map(|_| calls(first)).collect());
    let pattern = format!("*owlet_cost_{kind}*");
    let (mut attachment, _) = attach(&pattern, 1, moments, LARGE, way);
    let mut out: Vec<Hit> = Vec::new();
    let took = (0..ROUNDS)
        .map(|_| {
            let took = calls(first);
            attachment.read(&mut out);
            took
        })
        .collect();
    attachment.finish(&mut out);
    let each = if moments == Moments::Entry { 1 } else { 2 };
    assert_eq!(out.len() as u64, each * CALLS * ROUNDS as u64, "every hit was recorded");
    let ns = (least(took).saturating_sub(bare)).as_nanos() as f64 / CALLS as f64;
    println!("{way:?} first={kind} moments={moments:?} ns_per_call={ns:.0}");
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    {
        let sites = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1000);
        for n in [1, 100, sites] {
            batch(n, Way::Multi, false, owlet_first_nop5);
            batch(n, Way::Multi, true, owlet_first_nop5);
        }
        batch(10, Way::Perf, true, owlet_first_nop5);
        for (kind, first) in [
            ("nop5", owlet_first_nop5 as extern "C" fn()),
            ("push", owlet_first_push),
            ("xor", owlet_first_xor),
        ] {
            hits(kind, first, Moments::Entry, Way::Multi);
            hits(kind, first, Moments::Latency, Way::Multi);
        }
        hits("nop5", owlet_first_nop5, Moments::Entry, Way::Perf);
    }
}
