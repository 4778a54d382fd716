//! What a section and a grace period cost, against floors, interleaved in one run.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Args;
use owlet_rcu::Srcu;
use owlet_sys::clock::thread_cpu_ns;

#[derive(Args)]
pub(crate) struct Options {
    /// Rounds; the median of each figure is printed.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Sections per round.
    #[arg(long, default_value_t = 5_000_000)]
    loops: u64,
    /// Backend to measure.
    #[arg(long, value_enum, default_value = "auto")]
    backend: crate::Backend,
}

static DOMAIN: Srcu = Srcu::new();
static WORD: AtomicU64 = AtomicU64::new(0);

/// Measures and prints one line per case.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    options.backend.apply();
    let loops = options.loops;
    let gps = (loops / 100).max(100);
    let mut table: [(&str, Vec<f64>); 6] = [
        ("empty loop", vec![]),
        ("lock-prefixed increment", vec![]),
        ("read_lock + read_unlock", vec![]),
        ("guard", vec![]),
        ("synchronize, no sibling", vec![]),
        ("synchronize, running sibling", vec![]),
    ];
    for _ in 0..options.rounds.max(1) {
        let per = [
            time(loops, || {
                black_box(0);
            }),
            time(loops, || {
                WORD.fetch_add(1, Ordering::Relaxed);
            }),
            time(loops, || {
                let token = DOMAIN.read_lock();
                // SAFETY: this thread's own token, given back once.
                unsafe { DOMAIN.read_unlock(token) };
            }),
            time(loops, || drop(black_box(DOMAIN.read()))),
            time(gps, || DOMAIN.synchronize_expedited()),
            with_sibling(gps),
        ];
        for ((_, column), ns) in table.iter_mut().zip(per) {
            column.push(ns);
        }
    }
    say!(
        "cost: backend={:?} rounds={} loops={loops} (CPU ns, median [min..max])",
        owlet_percpu::backend(),
        options.rounds
    );
    for (name, column) in &mut table {
        column.sort_by(f64::total_cmp);
        let (min, max) = (column.first().copied(), column.last().copied());
        say!(
            "{name:32} {:9.2} [{:.2}..{:.2}]",
            column[column.len() / 2],
            min.unwrap_or_default(),
            max.unwrap_or_default()
        );
    }
    say!("{:?}", DOMAIN.stats());
    Ok(true)
}

fn with_sibling(gps: u64) -> f64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                black_box(0);
            }
        });
        let ns = time(gps / 10, || DOMAIN.synchronize_expedited());
        stop.store(true, Ordering::Relaxed);
        ns
    })
}

fn time(n: u64, mut f: impl FnMut()) -> f64 {
    let before = thread_cpu_ns();
    for _ in 0..n {
        f();
    }
    (thread_cpu_ns() - before) as f64 / n as f64
}
