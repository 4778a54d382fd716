//! Two thousand traced functions.

macro_rules! functions {
    ($($name:ident)*) => {
        $(
            #[owlet_attach::traced]
            #[inline(never)]
            pub(crate) fn $name(n: u64) -> u64 {
                std::hint::black_box(n) + 1
            }
        )*
        pub(crate) const ALL: &[fn(u64) -> u64] = &[$($name),*];
    };
}

macro_rules! modules {
    ($($name:ident)*) => {
        $(pub(crate) mod $name {
            functions!(f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 f10 f11 f12 f13 f14 f15 f16 f17 f18 f19);
        })*
        pub(crate) const ALL: &[&[fn(u64) -> u64]] = &[$($name::ALL),*];
    };
}

macro_rules! groups {
    ($($name:ident)*) => {
        $(pub(crate) mod $name {
            modules!(m0 m1 m2 m3 m4 m5 m6 m7 m8 m9);
        })*
        pub(crate) const ALL: &[&[&[fn(u64) -> u64]]] = &[$($name::ALL),*];
    };
}

pub(crate) mod many {
    groups!(g0 g1 g2 g3 g4 g5 g6 g7 g8 g9);
}

/// All of them: `*::many::g?::m?::f*`.
pub(crate) fn all() -> Vec<fn(u64) -> u64> {
    many::ALL.iter().flat_map(|group| group.iter()).flat_map(|m| m.iter().copied()).collect()
}
