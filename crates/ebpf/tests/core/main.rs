//! The crate without features: images, shapes, maps, both engines.

mod common;
mod differential;
mod engines;
mod images;
mod maps;
mod quiet;
mod shapes;
