//! Errors of the control plane. Emission has none: what it drops, it counts.

use crate::site::Refused;
use std::fmt;

/// Why a probe was not registered. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterError {
    /// The same probe is registered there already (`EEXIST`).
    Exists,
    /// There is no memory for the new probe list (`ENOMEM`).
    OutOfMemory,
    /// The tracepoint's registration hook refused, with its own number.
    Hook(i32),
    /// The tracepoint's sites cannot be switched in this process.
    Sites(Refused),
    /// Called from inside a registration hook.
    InsideHook,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("the probe is registered on this tracepoint already"),
            Self::OutOfMemory => f.write_str("no memory for the new probe list"),
            Self::Hook(code) => write!(f, "the tracepoint's registration hook failed with {code}"),
            Self::Sites(refused) => write!(f, "{refused}"),
            Self::InsideHook => f.write_str("a registration hook may not change probes itself"),
        }
    }
}

impl std::error::Error for RegisterError {}

/// Why a probe was not unregistered. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnregisterError {
    /// The probe is not registered there (`ENOENT`).
    NotFound,
    /// Called from inside a registration hook.
    InsideHook,
}

impl fmt::Display for UnregisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("the probe is not registered on this tracepoint"),
            Self::InsideHook => f.write_str("a registration hook may not change probes itself"),
        }
    }
}

impl std::error::Error for UnregisterError {}

/// A wait for unregistered probes would never end where it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SynchronizeError {
    /// Called from inside a probe: it would wait for itself.
    InsideProbe,
    /// Called from inside a registration hook.
    InsideHook,
}

impl fmt::Display for SynchronizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InsideProbe => f.write_str("a probe cannot wait for probes to end: it is one"),
            Self::InsideHook => f.write_str("a registration hook cannot wait for probes to end"),
        }
    }
}

impl std::error::Error for SynchronizeError {}
