//! Feature `load`: objects of clang, what the verifier refuses, damaged objects.
#![cfg(not(loom))]

mod hostile;
mod objects;
mod refused;
mod reservations;
mod sound;

use owlet_ebpf::Context;

/// The bytes of an object of `testdata`.
fn testdata(name: &str) -> Vec<u8> {
    let path = format!("{}/testdata/{name}.o", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A context with something everywhere.
fn context() -> Context {
    Context { arg: [2, 22, 33, 44], ret: 55, ip: 66, cookie: 77 }
}
