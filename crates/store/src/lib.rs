//! The trace directory: CTF 1.8, append and read.
