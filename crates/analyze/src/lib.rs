//! Merge, spans and statistics over a recorded trace.
