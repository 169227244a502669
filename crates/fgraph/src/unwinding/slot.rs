//! A word by which a module calls a function of another one.
//!
//! # Safety
//!
//! The unsafe code changes such a word, which the dynamic linker has filled or is to fill.

use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::PAGE;
use crate::os::maps::Protections;

/// Puts into a slot what `choose` makes of what is there, unless that is nothing. `None` if the
/// slot is not as slots are.
///
/// # Safety
///
/// It must be one that the linker keeps such an address in
/// ([`slots_of`](fgraph_symbols::elf::ElfFile::slots_of)), of a module that stays loaded meanwhile,
/// and what `choose` gives must be a function of the same type.
pub(super) unsafe fn change(
    slot: usize,
    choose: impl FnOnce(usize) -> Option<usize>,
) -> Option<()> {
    let page = slot / PAGE * PAGE;
    let protection = Protections::now(core::iter::empty()).of(slot)?;
    if !slot.is_multiple_of(align_of::<usize>()) {
        return None;
    }
    // The linker may have made it read-only after it filled it.
    let protect = |protection| {
        // SAFETY: a page of a module's data, to which nothing else writes.
        unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(page), PAGE, protection) == 0 }
    };
    if !protection.writable && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return None;
    }
    // SAFETY: a word of the module's, which stays, as the caller says; aligned and writable.
    let word = unsafe { AtomicUsize::from_ptr(ptr::with_exposed_provenance_mut(slot)) };
    if let Some(function) = choose(word.load(Ordering::Relaxed)) {
        word.store(function, Ordering::Release);
    }
    if !protection.writable {
        protect(libc::PROT_READ);
    }
    Some(())
}
