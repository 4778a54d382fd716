//! Models of how lists of programs are replaced, and of what a call remembers, on the product's own code:
//! `slot.rs` is compiled into this test with loom's atomics. Each model has twins that must fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p owlet-attach --release --test loom`
//!
//! A domain is modelled by a count of sections with the two fences that a real one has; its grace period is
//! one look that finds nobody (models of how that comes about are `owlet-rcu`'s). Whoever finds somebody
//! gives up and frees nothing: loom tries the orders in which he finds nobody.
#![cfg(loom)]

#[path = "../src/letter.rs"]
mod letter;
#[path = "../src/slot.rs"]
#[expect(dead_code, reason = "a model uses a part of it")]
mod slot;

use loom::cell::UnsafeCell;
use loom::thread;
use owlet_percpu::atomic::{AtomicU32, Ordering, fence};
use slot::{Open, Slot};
use std::sync::Arc;

/// A program's state: loom tells when it is used while it is freed, or before it is made.
struct Program(UnsafeCell<u64>);

/// An entry of a list of one.
struct List {
    link: u64,
    program: *const Program,
    made: UnsafeCell<bool>,
}

/// One function, its lists and programs, which stay where they are: what is "freed" is written to.
struct World {
    slot: Slot<List>,
    sections: AtomicU32,
    programs: [Program; 2],
    lists: [List; 2],
}

// SAFETY: loom checks every access to the cells; that is what the models are for.
unsafe impl Sync for World {}
// SAFETY: as for Sync.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        let program = || Program(UnsafeCell::new(1));
        let list = |link| List { link, program: std::ptr::null(), made: UnsafeCell::new(false) };
        let mut world = Arc::new(Self {
            slot: Slot::new(),
            sections: AtomicU32::new(0),
            programs: [program(), program()],
            lists: [list(1), list(2)],
        });
        let at: [*const Program; 2] = world.programs.each_ref().map(|p| p as *const _);
        let inner = Arc::get_mut(&mut world).expect("nobody else has it");
        for (list, program) in inner.lists.iter_mut().zip(at) {
            list.program = program;
        }
        world
    }

    /// Fills a list in and publishes it.
    fn attach(&self, n: usize) {
        let list = &self.lists[n];
        // SAFETY: not published yet.
        list.made.with_mut(|made| unsafe { *made = true });
        self.slot.publish(std::ptr::from_ref(list).cast_mut());
    }

    /// A section of the domain.
    fn section<R>(&self, inside: impl FnOnce() -> R) -> R {
        self.sections.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `nobody`.
        fence(Ordering::SeqCst);
        let result = inside();
        self.sections.fetch_sub(1, Ordering::Release);
        result
    }

    /// Whether a grace period that begins now is over at once.
    fn nobody(&self) -> bool {
        fence(Ordering::SeqCst);
        let nobody = self.sections.load(Ordering::Acquire) == 0;
        fence(Ordering::SeqCst);
        nobody
    }

    /// Frees a program.
    fn free(&self, n: usize) {
        // SAFETY: loom looks whether anybody reads it.
        self.programs[n].0.with_mut(|state| unsafe { *state = 0 });
    }

    /// Runs the program of a list; its link.
    fn run(&self, list: *const List) -> Option<u64> {
        // SAFETY: lists of this model stay where they are.
        let list = unsafe { list.as_ref() }?;
        // SAFETY: loom looks whether it is written meanwhile.
        assert!(list.made.with(|made| unsafe { *made }), "half a list");
        // SAFETY: programs stay where they are.
        let program = unsafe { &*list.program };
        // SAFETY: as above.
        assert_eq!(program.0.with(|state| unsafe { *state }), 1, "a program that was freed");
        Some(list.link)
    }
}

fn model(without: Option<char>, f: impl Fn() + Send + Sync + 'static) {
    loom::model(move || {
        if let Some(letter) = without {
            letter::without(letter);
        }
        f();
    });
}

/// A call, while a list is attached, replaced by another, and its program freed.
fn list(without: Option<char>, waits: bool) {
    model(without, move || {
        let world = World::new();
        let caller = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.section(|| world.run(world.slot.read()));
            })
        };
        world.attach(0);
        world.attach(1);
        if !waits || world.nobody() {
            world.free(0);
        }
        caller.join().expect("no panic");
    });
}

#[test]
fn list_is_whole_when_found_and_freed_when_left() {
    list(None, true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn list_is_published_without_release_must_fail() {
    list(Some('B'), true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn list_is_found_without_acquire_must_fail() {
    list(Some('A'), true);
}

/// Mutants M14 and M16: no wait between replacing and freeing.
#[test]
#[should_panic]
fn list_is_freed_at_once_must_fail() {
    list(None, false);
}

/// How a call finds its sessions again after the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// By the numbers of links, in the list of now.
    Numbers,
    /// By the list that the entry found: mutant M15.
    Pointer,
    /// By the list of now, whatever the call began.
    Nothing,
}

/// A call with a session, whose program is detached during the body and another attached in its place.
fn session(memory: Memory) {
    model(None, move || {
        let world = World::new();
        world.attach(0);
        let caller = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let mut open = Open::<2>::new();
                let found = world.section(|| {
                    let found = world.slot.read();
                    if let Some(link) = world.run(found) {
                        open.push(link, link * 10);
                    }
                    found
                });
                // The body, in no section.
                thread::yield_now();
                world.section(|| {
                    let now = world.slot.read();
                    let list = if memory == Memory::Pointer { found } else { now };
                    // SAFETY: lists of this model stay where they are.
                    let Some(link) = (unsafe { list.as_ref() }).map(|list| list.link) else {
                        return;
                    };
                    let word = open.find(link);
                    if word.is_some() || memory == Memory::Nothing {
                        let ended = world.run(list).expect("a list");
                        assert_eq!(word, Some(ended * 10), "the end of what did not begin");
                    }
                });
            })
        };
        world.slot.publish(std::ptr::null_mut());
        if world.nobody() {
            world.free(0);
        }
        world.attach(1);
        caller.join().expect("no panic");
    });
}

#[test]
fn session_ends_where_it_began_and_never_after_a_detach() {
    session(Memory::Numbers);
}

#[test]
#[should_panic]
fn session_ends_by_a_pointer_beyond_its_section_must_fail() {
    session(Memory::Pointer);
}

#[test]
#[should_panic(expected = "the end of what did not begin")]
fn session_ends_though_it_remembers_nothing_must_fail() {
    session(Memory::Nothing);
}
