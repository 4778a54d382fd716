//! Exporters of a recorded trace.
