//! Sites: the places in the code where an event may happen, and switching them.
//!
//! # The one-byte toggle (x86-64 Linux)
//! A site is one five-byte instruction:
//!
//! | state | bytes | instruction |
//! |---|---|---|
//! | off | `a9 rel32` | `test eax, imm32`: changes flags only |
//! | on | `e9 rel32` | `jmp slow` |
//!
//! The immediate *is* the jump's displacement, so exactly one byte differs and a switch is one byte
//! written: no alignment, no breakpoint protocol, nothing to tear. The slow path is ordinary
//! compiled Rust, out of line, and arguments are evaluated there. Any other first byte belongs to
//! somebody else (a debugger, a kernel uprobe): it is left alone, reported, and tried again with the
//! next change.
//!
//! # The flag
//! Elsewhere, under Miri and with the feature `flag-sites`, a site loads a byte (relaxed) and
//! branches. It works wherever code may not be written at all.
//!
//! # The table
//! Every site leaves an entry of four relative words in the section `owlet_sites`: no relocation, no
//! start-up code, no memory that is touched before somebody asks. The linker bounds the section of
//! each executable and shared object by two symbols; a shared object that links this crate
//! statically has its own copy of the crate and therefore its own table.
//!
//! | word | relative to itself |
//! |---|---|
//! | 0 | the site, or 0 for a flag site |
//! | 1 | the slow path, or 0 |
//! | 2 | the tracepoint ([`Core`]) |
//! | 3 | kind: 0 none, 1 toggle, 2 flag, 3 toggle that only asks (absolute) |
//!
//! A change of many tracepoints is one walk over the table and one
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`; and the same once more for the sites of
//! [`enabled!`](crate::enabled), which come last: a program that waits until somebody listens would
//! otherwise emit its first events into sites that are still off.

#[cfg(all(test, owlet_site = "toggle"))]
pub(crate) use owlet_attach::patch::fake::refuse;
pub use owlet_attach::patch::{REFUSED_HINT, Refused, Switched};

use crate::tracepoint::Core;
#[cfg(owlet_site = "toggle")]
use owlet_attach::patch;

/// How this build's sites are switched: `toggle` or `flag`.
pub const KIND: &str = if cfg!(owlet_site = "toggle") { "toggle" } else { "flag" };

/// One entry of the table.
#[repr(C)]
struct Record {
    site: i32,
    slow: i32,
    key: i32,
    kind: u32,
}

const NONE: u32 = 0;
#[cfg(owlet_site = "toggle")]
const TOGGLE: u32 = 1;
#[cfg(owlet_site = "toggle")]
const ASKS: u32 = 3;

fn resolve(word: &i32) -> *const u8 {
    (&raw const *word).cast::<u8>().wrapping_offset(*word as isize)
}

impl Record {
    fn core(&self) -> Option<&'static Core> {
        if self.kind == NONE {
            return None;
        }
        // SAFETY: the macros put the address of a `static` tracepoint here, whose first field is its
        // `Core` and whose layout is `repr(C)`.
        Some(unsafe { &*resolve(&self.key).cast::<Core>() })
    }

    /// What the site is to be; of a toggle only.
    #[cfg(owlet_site = "toggle")]
    fn change(&self) -> Option<patch::Change> {
        let on = self.core()?.is_on();
        // SAFETY: the table lists sites in our own text only, which stays as long as this code does.
        Some(unsafe { patch::Change::new(resolve(&self.site).cast_mut(), on) })
    }
}

/// The sites of this executable or shared object.
#[cfg(owlet_table)]
fn table() -> &'static [Record] {
    let (start, stop): (*const Record, *const Record);
    // The entry of kind `NONE` makes sure that the section and therefore its two symbols exist.
    // SAFETY: the block computes two addresses and emits data; it touches no memory and no stack.
    unsafe {
        core::arch::asm!(
            ".pushsection owlet_sites,\"aR\",@progbits",
            ".p2align 4",
            ".long 0, 0, 0, 0",
            ".popsection",
            ".hidden __start_owlet_sites",
            ".hidden __stop_owlet_sites",
            "lea {start}, [rip + __start_owlet_sites]",
            "lea {stop}, [rip + __stop_owlet_sites]",
            start = out(reg) start,
            stop = out(reg) stop,
            options(nomem, nostack, preserves_flags)
        );
    }
    let len = (stop.addr() - start.addr()) / size_of::<Record>();
    // SAFETY: the linker put every `owlet_sites` section of this object between the two symbols, the
    // macros fill them with whole, 16-aligned records, and the section is read-only.
    unsafe { core::slice::from_raw_parts(start, len) }
}

#[cfg(not(owlet_table))]
fn table() -> &'static [Record] {
    &[]
}

/// Every tracepoint that has a site, each once, in no particular order.
pub(crate) fn tracepoints() -> Vec<&'static Core> {
    let mut cores: Vec<_> = table().iter().filter_map(Record::core).collect();
    cores.sort_by_key(|core| core::ptr::from_ref(*core).addr());
    cores.dedup_by_key(|core| core::ptr::from_ref(*core).addr());
    cores
}

/// Number of sites of this object.
#[must_use]
pub fn count() -> usize {
    table().iter().filter(|record| record.kind != NONE).count()
}

/// Makes every site agree with its tracepoint's flag. The caller holds the control lock.
///
/// All or nothing as far as the process allows: when the first write is refused, so is the change.
pub(crate) fn commit() -> Result<Switched, Refused> {
    #[cfg(owlet_site = "toggle")]
    {
        let mut done = Switched::default();
        patch::register();
        let mut writer = patch::Writer::new();
        for kind in [TOGGLE, ASKS] {
            let records = table().iter().filter(|record| record.kind == kind);
            let mut changes: Vec<_> = records.filter_map(Record::change).collect();
            let switched = writer.apply(&mut changes)?;
            if switched.written > 0 {
                patch::sync();
            }
            done.add(switched);
        }
        Ok(done)
    }
    #[cfg(not(owlet_site = "toggle"))]
    {
        Ok(Switched::default())
    }
}

/// Whether this process lets its sites be switched, without switching one.
pub(crate) fn probe() -> Result<(), Refused> {
    #[cfg(owlet_site = "toggle")]
    if let Some(record) = table().iter().find(|record| [TOGGLE, ASKS].contains(&record.kind)) {
        // SAFETY: as in `Record::change`.
        return unsafe { patch::Writer::new().try_rewrite(resolve(&record.site).cast_mut()) };
    }
    Ok(())
}

/// The first site of a tracepoint.
#[cfg(all(test, owlet_site = "toggle"))]
pub(crate) fn address_of(core: &Core) -> Option<u64> {
    let of = |record: &&Record| record.core().is_some_and(|found| core::ptr::eq(found, core));
    table().iter().find(of).map(|record| resolve(&record.site).addr() as u64)
}
