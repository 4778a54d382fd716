//! Tracepoints that are switched on from outside, in a running program.
