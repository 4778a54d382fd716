//! Running a program allocates nothing.

use crate::common::{compiled, context, image, interpreted};
use owlet_ebpf::asm::{self, Alu, Reg};
use owlet_ebpf::image::MapDef;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn runs_do_not_allocate() {
    let maps = vec![
        MapDef::array("a", 8, 4),
        MapDef::hash("h", 8, 8, 4),
        MapDef::per_cpu_array("p", 8, 4),
        MapDef::ring("r", 4096),
    ];
    let mut slots = vec![asm::store_imm(8, Reg::R10, -8, 3), asm::store_imm(8, Reg::R10, -16, 3)];
    for map in 0..3 {
        for helper in [2, 1, 3] {
            slots.extend(asm::load_map(Reg::R1, map));
            slots.extend([
                asm::alu(Alu::Mov, Reg::R2, Reg::R10),
                asm::alu_imm(Alu::Add, Reg::R2, -8),
                asm::alu(Alu::Mov, Reg::R3, Reg::R10),
                asm::alu_imm(Alu::Add, Reg::R3, -16),
                asm::alu_imm(Alu::Mov, Reg::R4, 0),
                asm::call(helper),
            ]);
        }
    }
    for helper in [5, 7, 8, 14] {
        slots.push(asm::call(helper));
    }
    slots.extend([
        asm::alu(Alu::Mov, Reg::R1, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R1, -16),
        asm::alu_imm(Alu::Mov, Reg::R2, 16),
        asm::call(16),
    ]);
    slots.extend(asm::load_map(Reg::R1, 3));
    slots.extend([
        asm::alu(Alu::Mov, Reg::R2, Reg::R10),
        asm::alu_imm(Alu::Add, Reg::R2, -16),
        asm::alu_imm(Alu::Mov, Reg::R3, 16),
        asm::alu_imm(Alu::Mov, Reg::R4, 0),
        asm::call(130),
        asm::exit(),
    ]);
    let image = image(maps, &slots);
    let (_one, interpreted) = interpreted(&image);
    let (_other, compiled) = compiled(&image);
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        assert!(interpreted.run_checked(&context()).is_ok());
        compiled.run(&context());
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
