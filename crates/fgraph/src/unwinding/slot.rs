//! The words by which modules call a function of another one.
//!
//! # Safety
//!
//! The unsafe code changes such words, which the dynamic linker has filled or is to fill.

use core::cell::Cell;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::PAGE;
use crate::os::maps::{Protection, Protections};
use crate::process::modules::{self, LoadedModule};
use fgraph_symbols::elf::{ElfError, ElfFile};

/// A function that is called in place of another one.
#[derive(Debug)]
pub(super) struct Replaced<'a> {
    /// The name of the other one.
    pub(super) name: &'a CStr,
    /// The other one.
    pub(super) own: usize,
    /// What modules get who ask for a function of that name.
    pub(super) found: usize,
    /// The one that is called.
    pub(super) ours: usize,
}

impl Replaced<'_> {
    /// Has a module call ours; `image` has its file. Returns whether it calls no other any more by
    /// its symbols, if it is loaded. This may wait for libraries to be loaded.
    ///
    /// # Safety
    ///
    /// Both must be functions of the same type, and ours must never be unloaded.
    pub(super) unsafe fn redirect(
        &self,
        module: &LoadedModule,
        image: impl FnOnce() -> Option<&'static [u8]>,
    ) -> bool {
        // It may be unloaded at any time.
        let asks = modules::while_listed(module, || module.may_call(self.name, self.own));
        if asks != Some(true) {
            return true;
        }
        let Some(file) = image().and_then(|bytes| ElfFile::parse(bytes).ok()) else {
            return false;
        };
        let slots = file.slots_of(self.name.to_bytes());
        if slots.is_empty() {
            return !file.imports().any(|name| name == self.name.to_bytes());
        }
        let is_ours = Cell::new(true);
        let choose = |before| {
            // It leads into the module where the linker has not filled it yet.
            let is_own = before == self.own || self.found == self.own && module.is_text(before);
            is_ours.set(is_ours.get() && (is_own || before == self.ours));
            is_own.then_some(self.ours)
        };
        let changed = modules::when_relocated(module, &file, || {
            for &slot in &slots {
                let slot = module.load_bias().wrapping_add(slot as usize);
                // SAFETY: a slot for such a function; the caller vouches for ours.
                if unsafe { change(slot, choose) }.is_none() {
                    is_ours.set(false);
                }
            }
        });
        // What is gone by now asks nothing.
        is_ours.get() && !matches!(changed, Err(ElfError::NotTheLoadedFile))
    }
}

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
    let of_all = |_| Protections::now(core::iter::empty()).of(slot);
    let protection = Protection::at(slot).unwrap_or_else(of_all)?;
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
