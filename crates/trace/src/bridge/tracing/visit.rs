//! Values as `tracing` hands them over, into a payload.

use crate::bridge::payload::Payload;
use core::fmt;
use std::error::Error;
use tracing_core::field::{Field, Visit};

/// Runs code of the user's: the `Debug` implementations of his fields.
pub(crate) struct Visitor<'p>(pub(crate) &'p mut Payload);

impl Visit for Visitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.f64(field.index(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.i64(field.index(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.u64(field.index(), value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.0.format(field.index(), format_args!("{value}"));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.0.format(field.index(), format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.bool(field.index(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.str(field.index(), value);
    }

    fn record_bytes(&mut self, field: &Field, value: &[u8]) {
        self.0.bytes(field.index(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.format(field.index(), format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.debug(field.index(), value);
    }
}
