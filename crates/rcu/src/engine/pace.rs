//! How long a leader waits between two looks, and on what.
//!
//! Unlocking readers wake nobody: that would cost each of them a load and a branch. So the leader
//! looks again and again, at intervals that are a small part of how long it has waited already: it
//! is late by that part at most, and costs that part's share of a processor at most.
//!
//! | eagerness | first | then sleeps |
//! |---|---|---|
//! | hurried | spins and yields for some 100 us | age / 2048, from 4 us to 500 us |
//! | normal, younger than 20 ms | three short spins | age / 2048, from 4 us |
//! | normal, older | | age / 64, to 10 ms |
//! | lazy (nobody waits) | three short spins | age / 8, from 50 us to 10 ms |
//!
//! How late a wait returns after the last reader has left is in `docs/comparison.md` (some 12 us, median);
//! the scheduler's part of that is most of it.
//!
//! Such sleeps mean nothing with the kernel's usual timer slack of 50 us, so the leader has its slack
//! reduced while it sleeps like that ([`Slack`]).
//!
//! A leader may lead several domains and sleeps on the bell of its own thread; who is in a hurry
//! finds the bell by the leader's name. Threads may share a bell: they then look too often.

use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;

use owlet_sys::futex::{self, Reach};

use crate::gate::{Gate, Kernel};
use crate::held;

/// What to do between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// Some pauses of the processor.
    Spin,
    /// To the end of the run queue.
    Yield,
    /// Off the processor, at most that long.
    Sleep(Duration),
}

/// How much the end of a grace period matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eagerness {
    Lazy,
    Normal,
    Hurried,
}

/// The table of the module's header, as a function of the looks so far and of the age in ns.
pub(crate) fn pace(attempt: u32, age: u64, eagerness: Eagerness) -> Pace {
    const SPINS: u32 = 3;
    const HURRIED_SPINS: u32 = 50;
    const HURRIED_YIELDS: u32 = 100;
    let sleep = |part: u64, least: u64, most: u64| {
        Pace::Sleep(Duration::from_nanos((age / part).clamp(least, most)))
    };
    match eagerness {
        Eagerness::Hurried => match attempt {
            0..HURRIED_SPINS => Pace::Spin,
            HURRIED_SPINS..HURRIED_YIELDS => Pace::Yield,
            _ => sleep(2048, 4_000, 500_000),
        },
        _ if attempt < SPINS => Pace::Spin,
        // A look costs some microseconds: so many are worth it only while the wait is short.
        Eagerness::Normal if age < 20_000_000 => sleep(2048, 4_000, 10_000_000),
        Eagerness::Normal => sleep(64, 10_000, 10_000_000),
        Eagerness::Lazy => sleep(8, 50_000, 10_000_000),
    }
}

/// The calling thread's timer slack, reduced when [`Slack::reduce`] is first called, restored when
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct Slack(Option<Duration>);

impl Slack {
    /// Makes short sleeps short. Nothing for sleeps that are long anyway.
    pub(crate) fn reduce(&mut self, pace: Pace) {
        const FINE: Duration = Duration::from_micros(1);
        let short = matches!(pace, Pace::Sleep(time) if time < Duration::from_millis(1));
        if short && self.0.is_none() {
            // Whatever a filter forbids is not done; sleeps are a little longer then.
            self.0 = owlet_sys::process::timer_slack().ok().filter(|slack| *slack > FINE);
            if self.0.is_some() {
                let _ = owlet_sys::process::set_timer_slack(FINE);
            }
        }
    }
}

impl Drop for Slack {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = owlet_sys::process::set_timer_slack(before);
        }
    }
}

/// Waits as `pace` says. A sleep ends early if the caller's bell is rung, and is not begun if
/// `changed`.
pub(crate) fn pause(pace: Pace, changed: impl Fn() -> bool) {
    match pace {
        Pace::Spin => (0..32).for_each(|_| core::hint::spin_loop()),
        Pace::Yield => std::thread::yield_now(),
        Pace::Sleep(time) => bell(held::identity()).sleep_unless(&Futex(time), changed),
    }
}

const BELLS: usize = 64;
static BELL: [Gate; BELLS] = [const { Gate::new() }; BELLS];
static SPARE: Gate = Gate::new();

/// The bell of the thread `identity`.
pub(crate) fn bell(identity: usize) -> &'static Gate {
    // Thread-local areas are far apart and aligned: mix the high bits in.
    let mixed = (identity >> 6) ^ (identity >> 12) ^ (identity >> 20);
    BELL.get(mixed % BELLS).unwrap_or(&SPARE)
}

/// The kernel's part of gates; sleeps at most as long as it says.
pub(crate) struct Futex(pub(crate) Duration);

impl Default for Futex {
    fn default() -> Self {
        // Belt and braces: where futexes are filtered, waiting degrades to polling.
        Self(Duration::from_secs(1))
    }
}

impl Kernel for Futex {
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn wait(&self, word: &AtomicU32, expected: u32) {
        let how = futex::wait(word, expected, Some(self.0), Reach::Private);
        if how == futex::Woken::Unavailable {
            std::thread::sleep(self.0.min(Duration::from_millis(1)));
        }
    }

    fn wake_all(&self, word: &AtomicU32) {
        futex::wake_all(word, Reach::Private);
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
