//! Shared-memory per-CPU rings: both ends.
