//! The crate without features: images, shapes, maps, both engines.
#![cfg(not(loom))]

mod common;
mod differential;
mod engines;
mod images;
mod maps;
mod quiet;
mod records;
mod shapes;
