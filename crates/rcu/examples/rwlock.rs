//! A table that is read all the time and written now and then.
//!
//! `cargo run -p owlet-rcu --example rwlock`

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use owlet_rcu::rwlock::{Options, Policy};

fn main() {
    let options = Options::new().policy(Policy::PhaseFair).name("routes");
    let table = options.reopen_after(Duration::from_millis(1)).build(HashMap::from([("a", 1)]));
    let (stop, reads, fast) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fast.fetch_add(u64::from(table.is_fast()), Ordering::Relaxed);
                    let routes = table.read();
                    assert!(routes.contains_key("a"));
                    drop(routes);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A burst: one grace period, and readers in between.
        for n in 0..100 {
            table.write().insert("b", n);
        }
        // Readers go back to the fast way by themselves.
        while !table.is_fast() {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = table.stats();
    println!(
        "{} reads, {} of them on the fast way; 100 writes waited for {} grace periods, {} membarriers in all",
        reads.into_inner(),
        fast.into_inner(),
        stats.blocking,
        stats.membarriers
    );
    assert_eq!(table.into_inner()["b"], 99);
}
