//! Values as `tracing` hands them over, into a payload.

use crate::bridge::payload::Payload;
use core::fmt;
use std::error::Error;
use tracing_core::field::{Field, Visit};

/// Runs code of the user's: the `Debug` implementations of his fields.
impl Visit for Payload {
    fn record_f64(&mut self, field: &Field, value: f64) {
        Self::f64(self, field.index(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        Self::i64(self, field.index(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        Self::u64(self, field.index(), value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        Self::format(self, field.index(), format_args!("{value}"));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        Self::format(self, field.index(), format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        Self::bool(self, field.index(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        Self::str(self, field.index(), value);
    }

    fn record_bytes(&mut self, field: &Field, value: &[u8]) {
        Self::bytes(self, field.index(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        Self::format(self, field.index(), format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        Self::debug(self, field.index(), value);
    }
}
