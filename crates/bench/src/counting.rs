//! `counting`: checks the counting itself, on loops whose counts are known.

use crate::Options;
use crate::harness::report::{Report, round2};
use crate::harness::step::{self, Counts};
use crate::harness::syscalls;
use crate::harness::worker::Worker;
use anyhow::{Result, anyhow};

/// Case and what one iteration has, less the loop around it.
const KNOWN: [(&str, Counts); 4] = [
    ("ten-nops", Counts { instructions: 10.0, locked: 0.0, syscalls: 0.0 }),
    ("two-locked", Counts { instructions: 3.0, locked: 2.0, syscalls: 0.0 }),
    // The C library's wrapper is its own affair: only the call is counted.
    ("one-syscall", Counts { instructions: f64::NAN, locked: 0.0, syscalls: 1.0 }),
    // Set-up of three registers and the instruction, however often it repeats itself.
    ("one-string", Counts { instructions: 4.0, locked: 0.0, syscalls: 0.0 }),
];

/// Runs it.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    let start = || Worker::start("known", &[])?.map_err(|why| anyhow!(why));
    let n = options.size(500, 50);
    let mut worker = start()?;
    // A loop is a counter, a comparison and a jump: two or three instructions.
    let within = |name: &str, value: f64, known: f64, slack: f64, report: &mut Report| {
        if !known.is_nan() {
            report.gate(
                &format!("{name}: off from {known} by"),
                round2((value - known).abs()),
                slack,
            );
        }
    };
    for (case, known) in KNOWN {
        let counts = step::count(&mut worker, case, n)?;
        within(
            &format!("{case}: instructions"),
            counts.instructions,
            known.instructions,
            4.0,
            report,
        );
        within(&format!("{case}: locked"), counts.locked, known.locked, 0.0, report);
        within(&format!("{case}: system calls"), counts.syscalls, known.syscalls, 0.0, report);
    }
    let calls = 10 * n;
    let seen = syscalls::count(start()?, "one-syscall", calls)?;
    within("one-syscall under the filter", seen as f64, calls as f64, 0.0, report);
    let seen = syscalls::count(start()?, "only-getuid", calls)?;
    within("only-getuid under the filter", seen as f64, 0.0, 0.0, report);
    Ok(())
}
