//! A traced function: what the macro leaves in the program, and its programs.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `name` .. `modifiable` | nobody | everybody |
//! | `on` | holder of the control lock | flag sites, relaxed |
//! | `normal`, `sleepable` | holder of the control lock | calls, see `slot` |

use crate::list::List;
use crate::program::Flavour;
use crate::slot::Slot;
use core::fmt;
use owlet_percpu::atomic::{AtomicBool, Ordering};

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

/// A function with `#[traced]`. Instances of a generic function are one.
pub struct Function {
    on: AtomicBool,
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
            on: AtomicBool::new(false),
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
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
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
