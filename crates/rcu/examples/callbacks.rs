//! Callbacks: what is to happen after a grace period that nobody waits for.
//!
//! `cargo run -p owlet-rcu --example callbacks`

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use owlet_rcu::Srcu;

static DOMAIN: Srcu = Srcu::named("names");
static NAME: AtomicPtr<String> = AtomicPtr::new(std::ptr::null_mut());
static FREED: AtomicUsize = AtomicUsize::new(0);

fn rename(name: &str) {
    let old = NAME.swap(Box::into_raw(Box::new(name.to_owned())), Ordering::AcqRel);
    // SAFETY: null, or from a box; nobody finds it any more, and it is used only by the callback.
    let Some(old) = std::ptr::NonNull::new(old).map(|old| unsafe { Box::from_raw(old.as_ptr()) })
    else {
        return;
    };
    // Allowed in a section too; waiting would not be. Readers keep the string until the callback.
    DOMAIN.call(move || {
        drop(old);
        FREED.fetch_add(1, Ordering::Relaxed);
    });
}

fn main() {
    rename("first");
    {
        let _section = DOMAIN.read();
        // SAFETY: not null, and freed only after this section.
        let name = unsafe { &*NAME.load(Ordering::Acquire) };
        (0..1000).for_each(|n| rename(&format!("name {n}")));
        println!("still readable: {name}");
    }
    // All that was queued before has run after this.
    DOMAIN.barrier();
    println!("{} freed; {:?}", FREED.load(Ordering::Relaxed), DOMAIN.callback_stats());
    // Before code that callbacks run in is unloaded: a grace period and a barrier.
    DOMAIN.quiesce();
    // SAFETY: nobody else is left.
    drop(unsafe { Box::from_raw(NAME.load(Ordering::Acquire)) });
}
