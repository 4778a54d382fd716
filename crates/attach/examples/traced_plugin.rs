//! A shared object with a traced function, loaded at run time by a program that knows nothing of it.

use owlet_attach::Program;
use std::sync::OnceLock;

#[owlet_attach::traced]
#[inline(never)]
fn work(n: u64) -> u64 {
    std::hint::black_box(n) + 1
}

/// Calls the traced function.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_call(n: u64) -> u64 {
    work(n)
}

/// Attaches a program to it at the first call; how often it has run.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_count() -> u64 {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = Program::entry(|_| ()).build();
        if let Ok(attached) = program.attach("*::work") {
            attached.keep();
        }
        program
    });
    program.stats().runs
}
