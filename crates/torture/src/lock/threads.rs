//! Who is there.

use std::sync::mpsc::channel;
use std::thread::Scope;
use std::time::Duration;

use owlet_sys::topology;

use super::Options;
use super::shaker::{Here, shake_somebody};
use super::world::{World, note};
use crate::rng::Rng;

/// One writer and a reader on every other CPU.
pub(super) fn spawn_sprint<'s>(s: &'s Scope<'s, '_>, world: &'static World, seed: u64) {
    for cpu in 0..owlet_percpu::cpus().max(2) {
        let rng = Rng::new(seed, cpu as u64);
        s.spawn(move || {
            let _ = topology::set_affinity(Some(cpu), owlet_percpu::cpus());
            if cpu == 0 { world.sprint_writing(rng) } else { world.sprint_reading(rng) }
        });
    }
}

/// Readers, writers, threads that live for one hold, and one who shakes them all.
pub(super) fn spawn_all<'s>(s: &'s Scope<'s, '_>, world: &'static World, options: &Options) {
    let mut stream = 0;
    let mut rng = || {
        stream += 1;
        Rng::new(options.seed, stream)
    };
    let (send, ends) = channel();
    s.spawn(move || world.end_others(&ends));
    for _ in 0..options.readers {
        let (mut rng, send) = (rng(), send.clone());
        s.spawn(move || {
            let _here = Here::new();
            let mut last = 0;
            while !world.is_over() {
                world.read(&mut rng, &mut last, &send);
            }
        });
    }
    for _ in 0..options.writers {
        let mut rng = rng();
        s.spawn(move || {
            let _here = Here::new();
            while !world.is_over() {
                world.write(&mut rng);
            }
        });
    }
    let (mut churn, mut shake) = (rng(), rng());
    s.spawn(move || {
        while !world.is_over() {
            let mut rng = Rng::new(churn.next(), 1);
            let send = send.clone();
            let short = move || {
                let _here = Here::new();
                let mut last = 0;
                (0..3).for_each(|_| world.read(&mut rng, &mut last, &send));
                world.write(&mut rng);
            };
            let _ = std::thread::spawn(short).join();
            note(&world.threads);
        }
    });
    s.spawn(move || {
        while !world.is_over() {
            shake_somebody(&mut shake);
            std::thread::sleep(Duration::from_micros(100 + shake.below(400)));
        }
    });
}
