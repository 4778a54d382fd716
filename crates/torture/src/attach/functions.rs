//! A thousand traced functions, and one whose site is somebody else's.

use std::time::Duration;

/// What a body does besides adding 1.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// Nothing.
    Plain,
    /// Sleeps: a detach must not wait for it.
    Sleeps(Duration),
    /// Calls another function.
    Calls(fn(u64, Body) -> u64),
    /// Unwinds.
    Panics,
}

/// What all bodies are.
#[inline(never)]
pub(super) fn body(n: u64, how: Body) -> u64 {
    match how {
        Body::Plain => {}
        Body::Sleeps(time) => std::thread::sleep(time),
        Body::Calls(other) => return other(n, Body::Plain),
        Body::Panics => std::panic::resume_unwind(Box::new(())),
    }
    n + 1
}

pub(super) type Traced = fn(u64, Body) -> u64;

macro_rules! functions {
    ($($name:ident)*) => {
        $(
            #[owlet_attach::traced]
            pub(in crate::attach) fn $name(n: u64, how: super::super::super::Body) -> u64 {
                super::super::super::body(n, how)
            }
        )*
        pub(in crate::attach) const ALL: &[super::super::super::Traced] = &[$($name),*];
    };
}

macro_rules! modules {
    ($($name:ident)*) => {
        $(pub(in crate::attach) mod $name {
            functions!(f0 f1 f2 f3 f4 f5 f6 f7 f8 f9);
        })*
        pub(in crate::attach) const ALL: &[&[super::super::Traced]] = &[$($name::ALL),*];
    };
}

macro_rules! groups {
    ($($name:ident)*) => {
        $(pub(in crate::attach) mod $name {
            modules!(m0 m1 m2 m3 m4 m5 m6 m7 m8 m9);
        })*
        pub(in crate::attach) const ALL: &[&[&[super::Traced]]] = &[$($name::ALL),*];
    };
}

/// `*::many::g?::m?::f?`.
pub(super) mod many {
    groups!(g0 g1 g2 g3 g4 g5 g6 g7 g8 g9);
}

/// How many there are in a module.
pub(super) const EACH: u64 = 10;
/// How many there are.
pub(super) const COUNT: u64 = 100 * EACH;

/// Never called: a byte of somebody else's stands at its site.
#[owlet_attach::traced]
#[inline(never)]
pub(super) fn held(n: u64) -> u64 {
    n
}

/// All of `many`.
pub(super) fn all() -> Vec<Traced> {
    many::ALL.iter().flat_map(|group| group.iter()).flat_map(|m| m.iter().copied()).collect()
}
