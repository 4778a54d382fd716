//! User-space RCU on per-CPU counters.
