//! Finds out what a running function does: who calls it with what, how long it takes, when it fails.
//!
//! `cargo run -p owlet-attach --example watch`

use owlet_attach::{AtExit, Batch, Program, Value, find, traced};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

mod store {
    use super::traced;

    /// Keys that are even are there.
    #[traced]
    pub(super) fn lookup(key: u64, tenant: &str) -> Result<u64, String> {
        if key.is_multiple_of(2) {
            Ok(std::hint::black_box(tenant.len() as u64 * key))
        } else {
            Err(format!("{tenant} has no key {key}"))
        }
    }

    #[traced]
    pub(super) fn flush() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for function in find("*::store::*") {
        println!("traced: {}({})", function.name(), function.params().join(", "));
    }
    let failures = Program::exit(|call| println!("{} failed", call.name()))
        .filter(|call| call.ret() == Some(Value::Err))
        .build();
    let start = Instant::now();
    let longest = Arc::new(AtomicU64::new(0));
    let slowest = Arc::clone(&longest);
    let latency = Program::session(
        move |call| {
            call.set_session(start.elapsed().as_nanos() as u64);
            AtExit::Run
        },
        move |call| {
            let took = start.elapsed().as_nanos() as u64 - call.session();
            slowest.fetch_max(took, Ordering::Relaxed);
        },
    )
    .build();
    let attached =
        Batch::new().add(&failures, "*::store::lookup").add(&latency, "*::store::*").attach()?;
    println!("attached: {} programs", attached.len());
    for key in 0..4 {
        let _ = store::lookup(key, "acme");
    }
    store::flush();
    attached.detach()?;
    store::flush();
    println!("calls that failed: {}", failures.stats().runs);
    println!("ends of calls seen: {}", latency.stats().runs / 2);
    println!("the longest took at least 2 ms: {}", longest.load(Ordering::Relaxed) >= 2_000_000);
    Ok(())
}
