//! Copying to and from memory that other processes may be changing.
//!
//! A plain copy would be a data race in Rust's terms as soon as a stranger misbehaves. One
//! instruction of assembly is outside the model: it moves whatever bytes it finds, and what it
//! found is judged afterwards, in private memory.

/// Copies `len` bytes. Async-signal-safe.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap. Other processes
/// may change the shared side meanwhile; the copy then holds a mixture.
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..len {
        let from = from.wrapping_add(at);
        // SAFETY: in the range the caller vouches for; bytes have no alignment.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as above.
        unsafe { to.wrapping_add(at).write_volatile(byte) };
    }
}

/// Appends `len` bytes found at `from` to `out`.
///
/// # Safety
/// `from` is readable for `len` bytes and not part of `out`.
pub(crate) unsafe fn append(from: *const u8, len: usize, out: &mut Vec<u8>) {
    out.reserve(len);
    let old = out.len();
    let to = out.as_mut_ptr().wrapping_add(old);
    // SAFETY: the caller vouches for `from`; `reserve` made room behind the old end.
    unsafe { copy(from, to, len) };
    // SAFETY: the bytes up to there have just been written.
    unsafe { out.set_len(old + len) };
}
