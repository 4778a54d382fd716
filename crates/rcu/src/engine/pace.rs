//! How long a leader waits between two looks, and on what.
//!
//! The leader looks, spins for about a microsecond, and then sleeps 50 us, 100 us, ... 10 ms between
//! looks. While somebody is in a hurry it spins and yields for about 100 us instead and sleeps at
//! most 500 us. Unlocking readers wake nobody: that would cost each of them a load and a branch.
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

/// The pace of the module's header, as a function.
pub(crate) fn pace(attempt: u32, hurry: bool) -> Pace {
    const SPINS: u32 = 3;
    const HURRIED_SPINS: u32 = 50;
    const HURRIED_YIELDS: u32 = 100;
    if hurry {
        return match attempt {
            0..HURRIED_SPINS => Pace::Spin,
            HURRIED_SPINS..HURRIED_YIELDS => Pace::Yield,
            _ => {
                let doubled = 20_u64 << (attempt - HURRIED_YIELDS).min(10);
                Pace::Sleep(Duration::from_micros(doubled.min(500)))
            }
        };
    }
    match attempt {
        0..SPINS => Pace::Spin,
        _ => {
            let doubled = 50_u64 << (attempt - SPINS).min(10);
            Pace::Sleep(Duration::from_micros(doubled.min(10_000)))
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
