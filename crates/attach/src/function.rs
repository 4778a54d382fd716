//! A traced function: what the macro leaves in the program, and its programs.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `name` .. `modifiable` | nobody | everybody |
//! | `phases` | holder of the control lock | calls and flag sites, relaxed: a hint |
//! | `rank` | holder of the control lock | the same; one more than it says |
//! | `normal`, `sleepable` | holder of the control lock | calls, see `slot` |

use crate::list::List;
use crate::program::Flavour;
use crate::slot::Slot;
use core::fmt;
use owlet_percpu::atomic::{AtomicU8, AtomicU32, Ordering};

/// What the macro says about a function.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Full name.
    pub name: &'static str,
    /// Source file.
    pub file: &'static str,
    /// Line.
    pub line: u32,
    /// Parameter names, `self` included; "_" for patterns.
    pub params: &'static [&'static str],
    /// Whether a program may answer for the body.
    pub modifiable: bool,
}

/// Bits of [`Function::phases`]: which flavour has programs for which end of a call. A session is in both.
pub(crate) const NORMAL_ENTER: u8 = 1;
pub(crate) const NORMAL_EXIT: u8 = 2;
pub(crate) const SLEEPABLE_ENTER: u8 = 4;
pub(crate) const SLEEPABLE_EXIT: u8 = 8;

/// A function with `#[traced]`. Instances of a generic function are one.
pub struct Function {
    phases: AtomicU8,
    rank: AtomicU32,
    pub(crate) normal: Slot<List>,
    pub(crate) sleepable: Slot<List>,
    description: Description,
}

impl Function {
    /// For the macro.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(description: Description) -> Self {
        Self {
            phases: AtomicU8::new(0),
            rank: AtomicU32::new(0),
            normal: Slot::new(),
            sleepable: Slot::new(),
            description,
        }
    }

    /// Full name: the module's path and the function's name, or what `#[traced(name = "..")]` says.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.description.name
    }

    /// Where it stands: file and line.
    #[must_use]
    pub fn place(&self) -> (&'static str, u32) {
        (self.description.file, self.description.line)
    }

    /// Names of the parameters, `self` included; "_" for one that is a pattern.
    #[must_use]
    pub fn params(&self) -> &'static [&'static str] {
        self.description.params
    }

    /// Whether programs of kind [`Modify`](crate::Kind::Modify) may be attached.
    #[must_use]
    pub fn modifiable(&self) -> bool {
        self.description.modifiable
    }

    /// Whether a program is attached. Relaxed.
    #[inline(always)]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.phases() != 0
    }

    /// What its lists are good for. A hint, written after the lists are published: which programs run is
    /// for a list to say, found in a section.
    #[inline(always)]
    pub(crate) fn phases(&self) -> u8 {
        self.phases.load(Ordering::Relaxed)
    }

    pub(crate) fn set_phases(&self, phases: u8) {
        self.phases.store(phases, Ordering::Relaxed);
    }

    /// Its rank among the functions of its object, by name, once they are known.
    pub(crate) fn rank(&self) -> Option<usize> {
        self.rank.load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as usize)
    }

    pub(crate) fn set_rank(&self, rank: usize) {
        let rank = u32::try_from(rank + 1).unwrap_or(0);
        self.rank.store(rank, Ordering::Relaxed);
    }

    pub(crate) fn slot(&self, flavour: Flavour) -> &Slot<List> {
        match flavour {
            Flavour::Normal => &self.normal,
            Flavour::Sleepable => &self.sleepable,
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name()).field("on", &self.is_on()).finish()
    }
}
