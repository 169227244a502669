//! The words through which modules call a function of another module (GOT entries).
//!
//! # Safety
//!
//! The unsafe code changes such words, which the dynamic linker fills.

use core::cell::Cell;
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::PAGE;
use crate::os::maps::{self, Protections};
use crate::process::modules::{self, LoadedModule};
use fgraph_symbols::elf::{ElfError, ElfFile};

/// A function that replaces another one.
#[derive(Debug)]
pub(super) struct Replaced<'a> {
    /// The name of the replaced function.
    pub(super) name: &'a CStr,
    /// The replaced function.
    pub(super) own: usize,
    /// The address that modules get for that name.
    pub(super) found: usize,
    /// The replacement.
    pub(super) ours: usize,
}

impl Replaced<'_> {
    /// Redirects a module to the replacement; `image` returns its file. Returns true if its symbols
    /// no longer lead to another function, if it is loaded. This may wait for libraries to be
    /// loaded.
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
        let calls = modules::while_listed(module, || module.may_call(self.name, self.own));
        if calls != Some(true) {
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
            // It leads into the module if the linker has not filled it yet.
            let is_own = before == self.own || self.found == self.own && module.is_text(before);
            is_ours.set(is_ours.get() && (is_own || before == self.ours));
            is_own.then_some(self.ours)
        };
        let changed = modules::when_relocated(module, &file, || {
            for &slot in &slots {
                let slot = module.load_bias().wrapping_add(slot as usize);
                // SAFETY: a slot for such a function; the caller guarantees ours.
                if unsafe { change(slot, choose) }.is_none() {
                    is_ours.set(false);
                }
            }
        });
        // A module that is gone by now calls nothing.
        is_ours.get() && !matches!(changed, Err(ElfError::NotTheLoadedFile))
    }
}

/// Stores the result of `choose` for a slot's current value in the slot, unless the result is
/// `None`. Returns `None` if the word is not like a slot.
///
/// # Safety
///
/// The linker must keep such an address in it
/// ([`slots_of`](fgraph_symbols::elf::ElfFile::slots_of)), its module must stay loaded meanwhile,
/// and the result of `choose` must be a function of the same type.
pub(super) unsafe fn change(
    slot: usize,
    choose: impl FnOnce(usize) -> Option<usize>,
) -> Option<()> {
    let page = slot / PAGE * PAGE;
    let of_all = |_| Protections::now(core::iter::empty()).of(slot);
    let protection = maps::protection_at(slot).unwrap_or_else(of_all)?;
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
    // SAFETY: the caller guarantees the word of the module, which stays, and is aligned and
    // writable.
    let word = unsafe { AtomicUsize::from_ptr(ptr::with_exposed_provenance_mut(slot)) };
    if let Some(function) = choose(word.load(Ordering::Relaxed)) {
        word.store(function, Ordering::Release);
    }
    if !protection.writable {
        protect(libc::PROT_READ);
    }
    Some(())
}
