//! The atomics of this crate: one place to choose them.

pub(crate) use owlet_percpu::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
