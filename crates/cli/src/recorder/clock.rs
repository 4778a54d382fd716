//! The session's clock and how its ticks become time.

use owlet_ring::Clock;
use owlet_store::{ClockInfo, ClockKind};
use owlet_sys::clock::{self, Anchor};
use std::time::Duration;

/// Long enough for 5 ppm, which the end of the recording refines.
const FIRST_CALIBRATION: Duration = Duration::from_millis(10);

/// A clock chosen once for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionClock {
    pub(crate) kind: Clock,
    begin: Anchor,
    info: ClockInfo,
}

impl SessionClock {
    /// Takes the TSC when the kernel trusts it and a first measurement makes sense, else
    /// `CLOCK_MONOTONIC`. Sleeps 10 ms.
    pub(crate) fn choose() -> Self {
        let begin = Anchor::now();
        let measured =
            if clock::tsc_usable().usable { clock::calibrate(FIRST_CALIBRATION) } else { None };
        let (kind, info) = match measured {
            Some((hz, _)) => (Clock::Tsc, tsc_info(&begin, hz)),
            None => (Clock::Monotonic, monotonic_info(&begin)),
        };
        Self { kind, begin, info }
    }

    /// `CLOCK_MONOTONIC`, whatever else there is: the kernel's clock.
    pub(crate) fn monotonic() -> Self {
        let begin = Anchor::now();
        Self { kind: Clock::Monotonic, begin, info: monotonic_info(&begin) }
    }

    /// What is known so far.
    pub(crate) fn info(&self) -> ClockInfo {
        self.info
    }

    /// Measures again, over all the time since the beginning.
    pub(crate) fn refine(&mut self) -> ClockInfo {
        if self.kind == Clock::Tsc
            && let Some(hz) = clock::frequency(&self.begin, &Anchor::now())
        {
            self.info = tsc_info(&self.begin, hz);
        }
        self.info
    }
}

fn tsc_info(at: &Anchor, freq_hz: u64) -> ClockInfo {
    let base_unix_ns = at.realtime_ns.cast_signed();
    ClockInfo { kind: ClockKind::Tsc, freq_hz, base_ticks: at.tsc, base_unix_ns }
}

fn monotonic_info(at: &Anchor) -> ClockInfo {
    let offset = at.realtime_ns.cast_signed().saturating_sub_unsigned(at.monotonic_ns);
    ClockInfo::nanoseconds(ClockKind::Monotonic, offset)
}
