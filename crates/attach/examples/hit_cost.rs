//! What a call of a traced function costs: off, and with programs of each kind.
//!
//! `cargo run --release -p owlet-attach --example hit_cost`
//!
//! Prints nanoseconds a call, the best of many rounds: of the bare function, and what each case costs above
//! it.

use owlet_attach::{AtExit, Attached, Program, traced};
use std::hint::black_box;
use std::time::Instant;

#[inline(never)]
fn bare(n: u64, table: &[u64; 8]) -> u64 {
    table[(n % 8) as usize].wrapping_mul(n) ^ n.rotate_left(7)
}

#[traced]
#[inline(never)]
fn traced_leaf(n: u64, table: &[u64; 8]) -> u64 {
    table[(n % 8) as usize].wrapping_mul(n) ^ n.rotate_left(7)
}

#[inline(never)]
fn bare_caller(n: u64, table: &[u64; 8]) -> u64 {
    let first = black_box(bare)(n, table);
    black_box(bare)(first, table).wrapping_add(n)
}

#[traced]
#[inline(never)]
fn traced_caller(n: u64, table: &[u64; 8]) -> u64 {
    let first = black_box(bare)(n, table);
    black_box(bare)(first, table).wrapping_add(n)
}

const CALLS: u32 = 4_000;
const ROUNDS: u32 = 3_000;

fn best(call: impl Fn(u64, &[u64; 8]) -> u64) -> f64 {
    let table = black_box([3, 5, 7, 11, 13, 17, 19, 23]);
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut n = 1;
        for _ in 0..CALLS {
            n = call(n, &table);
        }
        black_box(n);
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    best
}

fn with(programs: &[Program]) -> f64 {
    let mut attached = Attached::default();
    for program in programs {
        attached.merge(program.attach("*::traced_*").expect("attach"));
    }
    let cost = best(traced_leaf) - best(bare);
    attached.detach().expect("detach");
    cost
}

fn main() {
    let (leaf, caller) = (best(bare), best(bare_caller));
    println!("bare leaf {leaf:.2} ns, bare caller {caller:.2} ns");
    println!(
        "off: leaf +{:.2}, caller +{:.2}",
        best(traced_leaf) - leaf,
        best(traced_caller) - caller
    );
    let entry = || {
        Program::entry(|call| {
            black_box(call.ip());
        })
        .build()
    };
    let exit = || {
        Program::exit(|call| {
            black_box(call.ip());
        })
        .build()
    };
    let filtered = Program::entry(|_| ()).filter(|call| call.arg(0).is_none()).build();
    let session = Program::session(
        |call| {
            call.set_session(1);
            AtExit::Run
        },
        |call| {
            black_box(call.session());
        },
    )
    .build();
    println!("1 entry: +{:.2}", with(&[entry()]));
    println!("1 entry, filtered out: +{:.2}", with(&[filtered]));
    println!("2 entries: +{:.2}", with(&[entry(), entry()]));
    let eight: Vec<_> = (0..8).map(|_| entry()).collect();
    println!("8 entries: +{:.2}", with(&eight));
    println!("1 exit: +{:.2}", with(&[exit()]));
    println!("1 entry and 1 exit: +{:.2}", with(&[entry(), exit()]));
    println!("1 session: +{:.2}", with(&[session]));
    println!("1 sleepable entry: +{:.2}", with(&[Program::entry(|_| ()).sleepable().build()]));
}
