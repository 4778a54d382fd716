//! A cell tied to a domain: readers get references, writers replace the value.
//!
//! [`Rcu<T, D>`] holds a pointer to a `T`. [`Rcu::read`] wants a guard of `D` and returns a reference
//! that lives as long as the guard. [`Rcu::replace`] publishes another value and returns the old one as
//! [`Retired`]: still read by some, to be had back after a grace period ([`Retired::wait`],
//! [`Retired::poll`]), or freed after one, together with all else that is retired in the domain
//! ([`Retired::retire`], and when it is dropped; see [`crate::free`]).
//!
//! # Which domain
//! | `D` | guard | wrong guard |
//! |---|---|---|
//! | a tag made by [`domain!`](crate::domain!) | [`Section<D>`] | does not compile |
//! | `&Srcu`, `Arc<Srcu>` | [`SrcuGuard`] | panics in `read` (one comparison, in every build) |
//! | `&ClassicSrcu`, `&TasksTrace`, `Arc`s of them | theirs | likewise |
//! | `&Qsbr`, `Arc<Qsbr>` | [`QsbrGuard`], of an online thread | likewise |
//!
//! # Publishing
//! | letter | where | what |
//! |---|---|---|
//! | `[P0]` | the pointer: [`Rcu::replace`], [`Rcu::read`] | release and acquire: a reader that sees the pointer sees the value as it was published |
//!
//! One `read` is one load: two uses of the reference see one value, two `read`s may see two. The cookie
//! of a [`Retired`] is taken, with a full fence, after the pointer was exchanged; so a section that can
//! still hold the old reference began before it.
//!
//! # Invariants
//! 1. The pointer is never null and points to a node made by `Node::new`; whoever takes it out of the
//!    cell owns the node.
//! 2. A node that was taken out is freed, or its value moved out, only after a grace period of the
//!    cell's domain that began after that.

use core::any::Any;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

use crate::callback::Head;
use crate::domain::Domain;
use crate::free;
use crate::qsbr::{Qsbr, QsbrGuard, Visit};
use crate::seq::Cookie;
use crate::srcu::{ClassicGuard, ClassicSrcu, Srcu, SrcuGuard};
use crate::tasks::{TasksTrace, TraceGuard};

/// A domain that is a type: see [`domain!`](crate::domain!).
///
/// # Safety
/// `srcu` returns the same domain every time, and no other tag's.
pub unsafe trait StaticDomain: Copy + Default + Send + Sync + 'static {
    /// The domain.
    fn srcu() -> &'static Srcu;

    /// Enters a section of the domain, as [`Srcu::read`].
    #[inline]
    fn read() -> Section<Self> {
        Section { guard: Self::srcu().read(), tag: PhantomData }
    }
}

/// Declares a static domain as a type of its own, so that guards of other domains are refused at
/// compile time.
///
/// ```
/// use owlet_rcu::{Rcu, StaticDomain, domain};
///
/// domain!(
///     /// What the configuration is read under.
///     pub Config
/// );
///
/// static LIMIT: std::sync::LazyLock<Rcu<u32, Config>> = std::sync::LazyLock::new(|| Rcu::new(7));
///
/// let section = Config::read();
/// assert_eq!(*LIMIT.read(&section), 7);
/// drop(section);
/// let old = LIMIT.replace(8);
/// assert_eq!(old.wait(), 7);
/// ```
#[macro_export]
macro_rules! domain {
    ($(#[$meta:meta])* $vis:vis $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name;

        // SAFETY: one static, named nowhere else.
        unsafe impl $crate::StaticDomain for $name {
            fn srcu() -> &'static $crate::Srcu {
                static DOMAIN: $crate::Srcu = $crate::Srcu::named(stringify!($name));
                &DOMAIN
            }
        }
    };
}

/// A section of the static domain `D`, ended when dropped, on whatever thread.
#[must_use = "the section ends when this is dropped"]
pub struct Section<D> {
    guard: SrcuGuard<'static>,
    tag: PhantomData<D>,
}

impl<D> fmt::Debug for Section<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

/// What a cell's `D` can be: a way to name a domain, and the guards of that domain.
///
/// # Safety
/// `covers` is true only for guards of the domain that `domain` returns, for as long as they live; and
/// what `enter` returns is a section of it while it lives. A clone names the same domain.
pub unsafe trait Home: Clone + Send + Sync {
    /// A section of the domain, as readers have it.
    type Guard<'g>
    where
        Self: 'g;
    /// A section of the domain, as the cell has it when it looks at its own value.
    type Own<'g>
    where
        Self: 'g;
    /// The domain.
    fn domain(&self) -> &dyn Domain;
    /// Enters a section.
    fn enter(&self) -> Self::Own<'_>;
    /// True if the guard is one of this domain.
    fn covers(&self, guard: &Self::Guard<'_>) -> bool;
    /// A share in the domain, if this has one: keeps it until a retired value has been freed.
    fn share(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

// SAFETY: a `Section<D>` is only made by `D::read`, from D's own domain.
unsafe impl<D: StaticDomain> Home for D {
    type Guard<'g> = Section<D>;
    type Own<'g> = Section<D>;

    fn domain(&self) -> &dyn Domain {
        D::srcu()
    }

    fn enter(&self) -> Section<D> {
        D::read()
    }

    #[inline(always)]
    fn covers(&self, _: &Section<D>) -> bool {
        true
    }
}

/// `Home` for references to a kind of domain; and, for the last argument, whatever else points to one.
macro_rules! home {
    ($domain:ty, $guard:ident, $own:ident, $enter:ident, $($pointer:ty $(, $share:ident)?);*) => {
        $(
            // SAFETY: guards know their domain, which outlives them; the comparison is with ours.
            unsafe impl Home for $pointer {
                type Guard<'g> = $guard<'g> where Self: 'g;
                type Own<'g> = $own<'g> where Self: 'g;

                fn domain(&self) -> &dyn Domain {
                    let domain: &$domain = self;
                    domain
                }

                fn enter(&self) -> $own<'_> {
                    self.$enter()
                }

                #[inline(always)]
                fn covers(&self, guard: &$guard<'_>) -> bool {
                    let domain: &$domain = self;
                    guard.is_of(domain)
                }

                $(fn $share(&self) -> Option<Arc<dyn Any + Send + Sync>> {
                    Some(self.clone())
                })?
            }
        )*
    };
}

home!(Srcu, SrcuGuard, SrcuGuard, read, &Srcu; Arc<Srcu>, share);
home!(ClassicSrcu, ClassicGuard, ClassicGuard, read, &ClassicSrcu; Arc<ClassicSrcu>, share);
home!(TasksTrace, TraceGuard, TraceGuard, read, &TasksTrace; Arc<TasksTrace>, share);
home!(Qsbr, QsbrGuard, Visit, visit, &Qsbr; Arc<Qsbr>, share);

/// What has to outlive a node that is queued.
type Keep = Option<Arc<dyn Any + Send + Sync>>;

/// A value with a head, so that freeing it after a grace period needs no allocation.
#[repr(C)]
struct Node<T> {
    head: Head,
    /// Keeps the domain while the node waits for it. Whoever owns the node writes it.
    keep: UnsafeCell<Keep>,
    value: T,
}

impl<T> Node<T> {
    fn new(value: T) -> NonNull<Self> {
        let head = Head::sized(size_of::<Self>());
        NonNull::from(Box::leak(Box::new(Self { head, keep: UnsafeCell::new(None), value })))
    }

    /// # Safety
    /// The caller owns the node (invariant 1), and nobody reads it any more (invariant 2).
    unsafe fn into_value(node: NonNull<Self>) -> T {
        // SAFETY: nodes come from boxes; the rest is the caller's.
        unsafe { Box::from_raw(node.as_ptr()) }.value
    }
}

/// Frees a node.
///
/// # Safety
/// `head` is the first field of a `Node<T>` that whoever calls this owns, after a grace period.
unsafe fn free_node<T>(head: NonNull<Head>) {
    // SAFETY: the caller's; a grace period has passed (invariant 2).
    drop(unsafe { Node::<T>::into_value(head.cast()) });
}

/// A value that is read under a domain and replaced as a whole.
///
/// ```
/// use owlet_rcu::{Rcu, Srcu};
///
/// static DOMAIN: Srcu = Srcu::new();
/// let cell = Rcu::with_domain(vec![1, 2], &DOMAIN);
///
/// let section = DOMAIN.read();
/// let seen = cell.read(&section);
/// // Replaced while we read: what we see stays what it was.
/// let old = cell.update(|v| v.iter().map(|n| n * 10).collect());
/// assert_eq!((seen.as_slice(), cell.read(&section).as_slice()), (&[1, 2][..], &[10, 20][..]));
/// let old = old.poll().expect_err("we still read it");
/// drop(section);
/// assert_eq!(old.wait(), [1, 2]);
/// ```
pub struct Rcu<T: Send + Sync + 'static, D: Home> {
    node: AtomicPtr<Node<T>>,
    home: D,
    _shared: PhantomData<Arc<T>>,
}

impl<T: Send + Sync + 'static, D: StaticDomain> Rcu<T, D> {
    /// A cell of the static domain `D`. Allocates.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self::with_domain(value, D::default())
    }
}

impl<T: Send + Sync + 'static, D: Home> Rcu<T, D> {
    /// A cell of `domain`. Allocates.
    #[must_use]
    pub fn with_domain(value: T, domain: D) -> Self {
        let node = AtomicPtr::new(Node::new(value).as_ptr());
        Self { node, home: domain, _shared: PhantomData }
    }

    /// The value, for as long as the guard lives, whatever becomes of the cell meanwhile. One acquire
    /// load and, unless the domain is a type, one comparison. Async-signal-safe.
    ///
    /// # Panics
    /// If the guard is one of another domain.
    #[inline]
    pub fn read<'g>(&self, guard: &'g D::Guard<'_>) -> &'g T {
        assert!(self.home.covers(guard), "a cell is read under a guard of another domain");
        // [P0] Acquire: pairs with the release in replace(). Without it: a reader sees the pointer and
        // not yet the value.
        let node = self.node.load(Ordering::Acquire);
        // SAFETY: a node (invariant 1), and not freed before the guard's section has ended: it was in
        // the cell when that section had begun (invariant 2).
        &unsafe { &*node }.value
    }

    /// Publishes another value and returns the old one, which may still be read. Allocates.
    ///
    /// Allowed inside sections.
    pub fn replace(&self, value: T) -> Retired<T, D> {
        // [P0] Release: pairs with the acquire in read(), for the new value; and acquire, for the old
        // one.
        let old = self.node.swap(Node::new(value).as_ptr(), Ordering::AcqRel);
        self.retired(old)
    }

    /// Replaces the value by what `f` makes of it, and returns the old one. If somebody else was faster,
    /// `f` is asked again, with theirs. In a [`Qsbr`] domain it registers the calling thread once more for
    /// that time, whether that is online or not.
    pub fn update(&self, mut f: impl FnMut(&T) -> T) -> Retired<T, D> {
        let _guard = self.home.enter();
        loop {
            let old = self.node.load(Ordering::Acquire);
            // SAFETY: as in read(); `_guard` is of the cell's domain.
            let new = Node::new(f(&unsafe { &*old }.value));
            // [P0] as in replace(). The old node cannot come back meanwhile: it is not freed while
            // `_guard` lives.
            let swapped =
                self.node.compare_exchange(old, new.as_ptr(), Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                return self.retired(old);
            }
            // SAFETY: ours, and never published.
            drop(unsafe { Node::into_value(new) });
        }
    }

    /// The domain.
    pub fn domain(&self) -> &D {
        &self.home
    }

    /// Takes note of a node that has just been taken out of the cell.
    fn retired(&self, node: *mut Node<T>) -> Retired<T, D> {
        let home = self.home.clone();
        let cookie = home.domain().snapshot();
        // SAFETY: never null (invariant 1).
        let node = unsafe { NonNull::new_unchecked(node) };
        Retired { node, cookie, home, _shared: PhantomData }
    }
}

impl<T: Send + Sync + 'static, D: Home> Drop for Rcu<T, D> {
    fn drop(&mut self) {
        let node = *self.node.get_mut();
        drop(self.retired(node));
    }
}

impl<T: Send + Sync + fmt::Debug + 'static, D: Home> fmt::Debug for Rcu<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _own = self.home.enter();
        // [P0] as in read().
        let node = self.node.load(Ordering::Acquire);
        // SAFETY: as in read(); `_own` is of the cell's domain.
        f.debug_tuple("Rcu").field(&unsafe { &*node }.value).finish()
    }
}

/// A value that was replaced: readers may still have it.
///
/// Wait for it, or let it be freed; when dropped, it is freed after a grace period.
#[must_use = "readers may still have the value: wait for it, or retire it"]
pub struct Retired<T: Send + Sync + 'static, D: Home> {
    node: NonNull<Node<T>>,
    cookie: Cookie,
    home: D,
    _shared: PhantomData<Arc<T>>,
}

// SAFETY: owns a `T` that others may have references to, like an `Arc<T>`, with `T: Send + Sync`; and a
// `D`, which every `Home` is `Send`.
unsafe impl<T: Send + Sync + 'static, D: Home> Send for Retired<T, D> {}
// SAFETY: as for Send; `Home` is `Sync`.
unsafe impl<T: Send + Sync + 'static, D: Home> Sync for Retired<T, D> {}

impl<T: Send + Sync + 'static, D: Home> Retired<T, D> {
    /// Waits until nobody reads the value any more and returns it. Not inside a section of the domain:
    /// it would wait for itself; what comes of it is told at [`Domain`].
    #[must_use]
    pub fn wait(self) -> T {
        self.home.domain().wait(self.cookie);
        // SAFETY: that grace period began after the node was taken out of the cell (invariant 2).
        unsafe { self.take() }
    }

    /// The value, if nobody reads it any more. Starts no grace period.
    ///
    /// # Errors
    /// Itself, if somebody may still read the value.
    pub fn poll(self) -> Result<T, Self> {
        if self.home.domain().poll(self.cookie) {
            // SAFETY: as in wait().
            Ok(unsafe { self.take() })
        } else {
            Err(self)
        }
    }

    /// The grace period after which nobody reads the value any more.
    #[must_use]
    pub fn cookie(&self) -> Cookie {
        self.cookie
    }

    /// Has the value dropped after a grace period, as a box that is retired ([`Srcu::retire`]): by this
    /// thread, another that retires in the domain, or the library's worker. Dropping a `Retired` does the
    /// same.
    ///
    /// [`Domain::retire_barrier`] and [`Domain::quiesce`] wait until it has been dropped;
    /// [`Domain::barrier`], which waits for callbacks, does not.
    ///
    /// Needs no memory. Allowed inside sections, in callbacks and destructors. It may drop values that were
    /// retired before: not while holding a lock that their destructors take. At the domain's cap it may be
    /// held up ([`free::Backpressure`]); a value counts with its own size, without what it owns elsewhere.
    pub fn retire(self) {}

    /// # Safety
    /// A grace period has passed.
    unsafe fn take(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: ours, and not dropped by `this`; nobody reads it (caller).
        let value = unsafe { Node::into_value(this.node) };
        // SAFETY: once, and `this` is not used any more.
        unsafe { core::ptr::drop_in_place(&raw mut this.home) };
        value
    }
}

impl<T: Send + Sync + 'static, D: Home> Drop for Retired<T, D> {
    fn drop(&mut self) {
        let engine = self.home.domain().engine();
        // SAFETY: the node is ours (invariant 1).
        let keep = unsafe { self.node.as_ref() }.keep.get();
        // SAFETY: others read the node's value, but never this.
        unsafe { *keep = self.home.share() };
        // SAFETY: the node is ours, stays where it is, and is what `free_node::<T>` frees; `T` is `Send`
        // and lives long enough for any thread.
        unsafe { free::retire_head(engine, self.node.cast(), free_node::<T>) };
    }
}

impl<T: Send + Sync + 'static, D: Home> Deref for Retired<T, D> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: not freed before it is given up.
        &unsafe { self.node.as_ref() }.value
    }
}

impl<T: Send + Sync + fmt::Debug + 'static, D: Home> fmt::Debug for Retired<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Retired").field(&**self).finish()
    }
}
