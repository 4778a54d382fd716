//! The tests. `set` is a plain store of 1, `get` a plain load; what a role returns is what it has read
//! (two values as two bits: 2 * first + second).

use super::{Cell, Delay};
use crate::flavour::{Flavour, Gp};

/// One side of a test.
pub(super) type Role<F> = fn(&mut <F as Flavour>::Seat, &Cell, &mut Delay) -> u32;

/// A test.
pub(super) struct Test<F: Flavour> {
    pub(super) name: &'static str,
    pub(super) roles: Vec<Role<F>>,
    /// The outcome the test is about.
    pub(super) wanted: fn(&[u32]) -> bool,
    /// It must not occur.
    pub(super) forbidden: bool,
    /// Rounds are divided by this.
    pub(super) cost: usize,
}

fn wait<F: Flavour>(delay: &mut Delay) {
    let kinds = F::waits().kinds();
    let quick = if kinds.contains(&Gp::Exp) { Gp::Exp } else { Gp::Sync };
    let how = if delay.0.below(4) == 0 { Gp::Sync } else { quick };
    F::waits().pass(how, &mut || std::time::Duration::ZERO);
}

/// Waits by a cookie: what the grace period orders, the answer orders.
fn wait_polled<F: Flavour>() {
    if F::ABILITIES.cookies {
        let cookie = F::waits().snapshot();
        F::waits().wait(cookie);
        while !F::waits().poll(cookie) {
            std::hint::spin_loop();
        }
    } else {
        F::waits().pass(Gp::Sync, &mut || std::time::Duration::ZERO);
    }
}

/// All tests.
pub(super) fn all<F: Flavour>() -> Vec<Test<F>> {
    vec![
        Test {
            name: "gp-03-message-late-read",
            roles: vec![
                |seat, c, d| {
                    F::section(seat, || {
                        let y = c.y.get();
                        d.pass();
                        2 * y + c.x.get()
                    })
                },
                |_, c, d| {
                    c.x.set();
                    wait::<F>(d);
                    c.y.set();
                    0
                },
            ],
            wanted: |r| r[0] == 2,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-03-message-early-read",
            roles: vec![
                |seat, c, d| {
                    F::section(seat, || {
                        let x = c.x.get();
                        d.pass();
                        2 * c.y.get() + x
                    })
                },
                |_, c, d| {
                    c.x.set();
                    wait::<F>(d);
                    c.y.set();
                    0
                },
            ],
            wanted: |r| r[0] == 2,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-03-message-polled",
            roles: vec![
                |seat, c, d| {
                    F::section(seat, || {
                        let x = c.x.get();
                        d.pass();
                        2 * c.y.get() + x
                    })
                },
                |_, c, _| {
                    c.x.set();
                    wait_polled::<F>();
                    c.y.set();
                    0
                },
            ],
            wanted: |r| r[0] == 2,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-04-store-buffer",
            roles: vec![
                |seat, c, d| {
                    F::section(seat, || {
                        c.x.set();
                        if d.0.below(4) == 0 {
                            d.pass();
                        }
                        c.y.get()
                    })
                },
                |_, c, d| {
                    c.y.set();
                    wait::<F>(d);
                    c.x.get()
                },
            ],
            wanted: |r| r[0] == 0 && r[1] == 0,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-04-store-buffer-swapped",
            roles: vec![
                |seat, c, d| {
                    F::section(seat, || {
                        let y = c.y.get();
                        d.pass();
                        c.x.set();
                        y
                    })
                },
                |_, c, d| {
                    c.y.set();
                    wait::<F>(d);
                    c.x.get()
                },
            ],
            wanted: |r| r[0] == 0 && r[1] == 0,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-05-two-updaters",
            roles: vec![
                |_, c, d| {
                    c.x.set();
                    wait::<F>(d);
                    c.y.get()
                },
                |_, c, d| {
                    c.y.set();
                    wait::<F>(d);
                    c.x.get()
                },
            ],
            wanted: |r| r[0] == 0 && r[1] == 0,
            forbidden: true,
            cost: 1,
        },
        Test {
            name: "gp-06-one-period-two-sections",
            roles: vec![first_section::<F>, second_section::<F>, |_, c, d| {
                c.z.set();
                wait::<F>(d);
                c.x.get()
            }],
            wanted: |r| r.iter().all(|read| *read == 0),
            forbidden: false,
            cost: 8,
        },
        Test {
            name: "gp-06-two-periods-two-sections",
            roles: vec![first_section::<F>, second_section::<F>, |_, c, d| {
                c.z.set();
                wait::<F>(d);
                wait::<F>(d);
                c.x.get()
            }],
            wanted: |r| r.iter().all(|read| *read == 0),
            forbidden: true,
            cost: 8,
        },
        Test {
            name: "gp-06-two-chained-updaters-two-sections",
            roles: vec![
                first_section::<F>,
                second_section::<F>,
                |_, c, d| {
                    c.z.set();
                    wait::<F>(d);
                    c.w.get()
                },
                |_, c, d| {
                    c.w.set();
                    wait::<F>(d);
                    c.x.get()
                },
            ],
            wanted: |r| r.iter().all(|read| *read == 0),
            forbidden: true,
            cost: 8,
        },
    ]
}

fn first_section<F: Flavour>(seat: &mut F::Seat, c: &Cell, d: &mut Delay) -> u32 {
    d.pass_long();
    F::section(seat, || {
        let y = c.y.get();
        d.pass_long();
        c.x.set();
        y
    })
}

fn second_section<F: Flavour>(seat: &mut F::Seat, c: &Cell, d: &mut Delay) -> u32 {
    F::section(seat, || {
        let z = c.z.get();
        d.pass_long();
        c.y.set();
        z
    })
}
