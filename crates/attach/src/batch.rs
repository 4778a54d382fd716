//! Batches: programs x functions, attached and detached together.

use crate::control::{self, Ending, Link, Place, Want};
use crate::error::{AttachError, DetachError};
use crate::function::Function;
use crate::program::Program;
use core::fmt;

/// What is to be attached together.
///
/// ```
/// use owlet_attach::{Batch, Program};
///
/// #[owlet_attach::traced]
/// fn work(n: u64) -> u64 { n + 1 }
/// #[owlet_attach::traced]
/// fn rest() {}
///
/// let calls = Program::entry(|_| {}).build();
/// let attached = Batch::new().add(&calls, "*::work").add(&calls, "*::rest").attach()?;
/// assert_eq!(attached.len(), 2);
/// work(1);
/// rest();
/// assert_eq!(calls.stats().runs, 2);
/// attached.detach()?; // one wait, however many they were
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Duplicates and overlaps
/// Patterns of one program with the same cookie are united: a function that several match gets it once. A
/// program that the function has already, from another batch or twice with different cookies, is refused
/// ([`AttachError::Duplicate`]), and with it the whole batch. Batches of several threads come one after
/// the other.
#[derive(Default)]
#[must_use = "nothing is attached before `attach`"]
pub struct Batch {
    wants: Vec<Want>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("additions", &self.wants.len()).finish()
    }
}

impl Batch {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { wants: Vec::new() }
    }

    /// The program on every function whose name matches: `*` any run of characters, `?` one.
    pub fn add(self, program: &Program, pattern: &str) -> Self {
        self.add_with_cookie(program, pattern, 0)
    }

    /// As [`Batch::add`], with a word that the program finds in [`Call::cookie`](crate::Call::cookie).
    pub fn add_with_cookie(mut self, program: &Program, pattern: &str, cookie: u64) -> Self {
        let place = Place::Pattern(pattern.to_owned());
        self.wants.push(Want { program: program.clone(), place, cookie });
        self
    }

    /// The program on one function.
    pub fn add_to(mut self, program: &Program, function: &'static Function, cookie: u64) -> Self {
        let place = Place::Function(function);
        self.wants.push(Want { program: program.clone(), place, cookie });
        self
    }

    /// Attaches all or nothing. Calls that begin after the return run the programs; nobody is waited for.
    ///
    /// Cost: a list for each function, one byte for each site of a function that had no program, one
    /// `membarrier`. Not for signal handlers; inside programs it is fine.
    ///
    /// # Errors
    /// [`AttachError`]: every function has the programs that it had.
    pub fn attach(self) -> Result<Attached, AttachError> {
        control::attach(&self.wants).map(|links| Attached { links })
    }
}

/// What was attached together. Dropping it detaches it without waiting.
#[derive(Debug, Default)]
#[must_use = "dropping it detaches the programs"]
pub struct Attached {
    links: Vec<Link>,
}

impl Attached {
    /// Links: programs times functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Nothing is attached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The functions, one for each link.
    pub fn functions(&self) -> impl Iterator<Item = &'static Function> {
        self.links.iter().map(|link| link.function)
    }

    /// Takes the links of another batch over, to be detached with these.
    pub fn merge(&mut self, mut other: Self) {
        self.links.append(&mut other.links);
    }

    /// The links of those functions by themselves; the others stay here.
    pub fn split_off(&mut self, of: impl Fn(&'static Function) -> bool) -> Self {
        Self { links: self.links.extract_if(.., |link| of(link.function)).collect() }
    }

    /// Detaches, and waits until none of the programs is running any more: their state is dropped then,
    /// here, unless somebody keeps the [`Program`]. One overlapped wait for both flavours, whatever the
    /// number of links; threads inside traced bodies are not waited for.
    ///
    /// # Errors
    /// [`DetachError`].
    pub fn detach(mut self) -> Result<(), DetachError> {
        control::detach(core::mem::take(&mut self.links), Ending::Wait)
    }

    /// Detaches without waiting: calls that are in a program now finish it, and what programs own is
    /// dropped by `owlet_rcu`'s deferred free. [`quiesce`](crate::quiesce) waits for that.
    ///
    /// # Errors
    /// [`DetachError::InsideChange`].
    pub fn detach_async(mut self) -> Result<(), DetachError> {
        control::detach(core::mem::take(&mut self.links), Ending::Defer)
    }

    /// Leaves the programs attached for the life of the process.
    pub fn keep(mut self) {
        core::mem::forget(core::mem::take(&mut self.links));
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.links.is_empty() {
            let _ = control::detach(core::mem::take(&mut self.links), Ending::Defer);
        }
    }
}
