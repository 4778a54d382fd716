//! The measured side of `tp-hackbench`.
//!
//! | case | numbers |
//! |---|---|
//! | VARIANT | `PROCESSES GROUPS FDS LOOPS EVENTS ROUNDS PINNED`, events in 100 messages -> CPU ns, wall ns, messages, events, violations |
//! | VARIANT-event | a loop: N events, nothing else |

mod checker;
mod crowd;
mod variants;

use super::flavours::{Classic, Fast, KernelNotify, Memb, Notify};
use super::urcu;
use crate::harness::serve::Case;
use anyhow::{Result, bail};
use checker::Data;
use crowd::Shape;
use std::sync::Mutex;
use variants::{By, Disabled, None, Product, Variant};

/// The rounds of the checker's hash in the loops.
const ROUNDS: u32 = 4;

/// The cases.
pub(crate) fn start() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    variant::<None>(&mut cases, "none", "none-event");
    variant::<Disabled>(&mut cases, "disabled", "disabled-event");
    variant::<By<KernelNotify>>(&mut cases, "rcu-notify", "rcu-notify-event");
    variant::<By<Notify>>(&mut cases, "qsbr-notify", "qsbr-notify-event");
    if urcu::Notify::is_installed() {
        variant::<By<urcu::Notify>>(&mut cases, "urcu-notify", "urcu-notify-event");
    }
    variant::<By<Classic>>(&mut cases, "srcu-classic", "srcu-classic-event");
    variant::<By<Fast>>(&mut cases, "srcu-fast", "srcu-fast-event");
    variant::<By<Memb>>(&mut cases, "memb", "memb-event");
    variant::<Product>(&mut cases, "owlet", "owlet-event");
    Ok(cases)
}

fn variant<V: Variant>(cases: &mut Vec<Case>, name: &'static str, event: &'static str) {
    cases.push(Case::call(name, |numbers| {
        let &[processes, groups, fds, loops, events, rounds, pinned] = numbers else {
            bail!("takes PROCESSES GROUPS FDS LOOPS EVENTS ROUNDS PINNED")
        };
        let shape = Shape {
            processes: processes != 0,
            groups: groups as usize,
            fds: fds as usize,
            loops,
            events,
            pinned: pinned != 0,
        };
        crowd::run::<V>(shape, data(rounds as u32))
    }));
    cases.push(Case::new(event, |n| {
        let mut variant = V::thread(data(ROUNDS));
        crowd::events(&mut variant, n / 2);
    }));
}

/// One for each number of rounds, for ever.
fn data(rounds: u32) -> &'static Data {
    static ALL: Mutex<Vec<&'static Data>> = Mutex::new(Vec::new());
    let make = || -> &'static Data { Box::leak(Box::new(Data { rounds })) };
    let Ok(mut all) = ALL.lock() else { return make() };
    if let Some(found) = all.iter().find(|data| data.rounds == rounds) {
        return found;
    }
    let new = make();
    all.push(new);
    new
}
