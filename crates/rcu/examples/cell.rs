//! Cells: shared values without `unsafe`, tied to a domain.
//!
//! `cargo run -p owlet-rcu --example cell`

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use owlet_rcu::{Rcu, Srcu, StaticDomain, domain};

domain!(
    /// What the configuration is read under.
    Config
);

struct Settings {
    name: String,
    limit: u32,
}

static SETTINGS: LazyLock<Rcu<Settings, Config>> =
    LazyLock::new(|| Rcu::new(Settings { name: "first".into(), limit: 1 }));

fn main() {
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Guards of other domains do not compile here.
                let section = Config::read();
                let settings = SETTINGS.read(&section);
                assert!(settings.limit >= 1 && !settings.name.is_empty());
            }
        });
        // The old value is to be had back after a grace period, ..
        let old = SETTINGS.replace(Settings { name: "second".into(), limit: 2 }).wait();
        println!("replaced {} ({})", old.name, old.limit);
        // .. or left to the library.
        SETTINGS.replace(Settings { name: "third".into(), limit: 3 }).retire();
        SETTINGS.update(|now| Settings { name: now.name.clone(), limit: now.limit + 1 }).retire();
        stop.store(true, Ordering::Relaxed);
    });
    // Waits for what was left to it.
    Config::srcu().retire_barrier();

    // A domain that is a value: guards are compared when they are used.
    let domain = Srcu::new();
    let cell = Rcu::with_domain(5, &domain);
    let section = domain.read();
    println!("{} and {}", cell.read(&section), SETTINGS.read(&Config::read()).limit);
    drop(section);
    drop(cell);
    domain.retire_barrier();
}
