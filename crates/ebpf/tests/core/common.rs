//! Programs for tests.

use owlet_ebpf::asm::{self, Slot};
use owlet_ebpf::image::{Image, MapDef, ProgramDef, ProgramKind};
use owlet_ebpf::{Context, Limits, Module, Program};
use std::sync::Arc;

/// An image of one program.
pub(crate) fn image(maps: Vec<MapDef>, slots: &[Slot]) -> Image {
    let program = ProgramDef {
        name: "main".to_owned(),
        kind: ProgramKind::Entry,
        pattern: String::new(),
        code: asm::bytes(slots),
    };
    Image { maps, programs: vec![program] }
}

/// The module and its program, interpreted.
pub(crate) fn interpreted(image: &Image) -> (Module, Arc<Program>) {
    let module = Module::interpreted(image, Limits::default()).expect("a good image");
    let program = Arc::clone(module.program("main").expect("its program"));
    (module, program)
}

/// The module and its program, compiled where that is possible.
pub(crate) fn compiled(image: &Image) -> (Module, Arc<Program>) {
    compiled_with(image, Limits::default())
}

/// As [`compiled`], with limits.
pub(crate) fn compiled_with(image: &Image, limits: Limits) -> (Module, Arc<Program>) {
    // SAFETY: the programs of these tests touch only what is theirs: the interpreter runs them, too.
    let module = unsafe { Module::compiled(image, limits) }.expect("a good image");
    let program = Arc::clone(module.program("main").expect("its program"));
    (module, program)
}

/// A context with something everywhere.
pub(crate) fn context() -> Context {
    Context { arg: [11, 22, 33, u64::MAX], ret: 55, ip: 66, cookie: 77 }
}

/// What both engines return.
pub(crate) fn both(maps: Vec<MapDef>, slots: &[Slot]) -> u64 {
    let image = image(maps, slots);
    let (_, one) = interpreted(&image);
    let (_, other) = compiled(&image);
    let expected = one.run_checked(&context()).expect("no fault");
    assert_eq!(other.run(&context()), expected, "{slots:?}");
    expected
}
