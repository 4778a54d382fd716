//! Unit tests of the bridge.
