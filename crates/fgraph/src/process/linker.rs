//! Queries of the dynamic linker.
//!
//! They return when no `dlopen` is in progress in another thread, including its constructors. So
//! the holder of our lock announces a query
//! ([`Gate::call_linker`](super::gate::Gate::call_linker)). No query may be made with the lock of
//! the linker's list of modules held ([`while_locked`](crate::process::modules::while_locked)).
//!
//! # Safety
//!
//! The unsafe code calls the dynamic linker, with strings and with open handles.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use libc::Dl_info;

use super::gate::GATE;

/// An open handle of a loaded module. While it is open, the module is not unloaded.
pub(crate) struct DlHandle(*mut c_void);

impl DlHandle {
    /// Returns the module with this path, or the program without one; `None` if it is not loaded.
    /// This loads nothing.
    pub(crate) fn loaded(path: Option<&CStr>) -> Option<Self> {
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a string, or null for the program.
        let handle = GATE.call_linker(|| unsafe { libc::dlopen(path, flags) });
        (!handle.is_null()).then(|| Self(handle))
    }

    /// Returns the address that other modules get by a name: perhaps in another module. Null if
    /// there is none.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a string, and a handle that is open.
        GATE.call_linker(|| unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }

    /// Does the same as [`symbol`](Self::symbol), for a name with a version.
    #[cfg(target_env = "gnu")]
    pub(crate) fn symbol_of_version(&self, name: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: two strings, and a handle that is open.
        GATE.call_linker(|| unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) })
    }
}

impl Drop for DlHandle {
    fn drop(&mut self) {
        // SAFETY: the handle was opened once, and is not used any more.
        GATE.call_linker(|| unsafe { libc::dlclose(self.0) });
    }
}

/// Returns the address that the program gets by a name; null if there is none.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    GATE.call_linker(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// Returns the linker's data about the module that contains an address.
pub(crate) fn module_of(address: *const c_void) -> Option<Dl_info> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: any address may be queried, and the result is written to a large enough local.
    let found = GATE.call_linker(|| unsafe { libc::dladdr(address, info.as_mut_ptr()) });
    // SAFETY: the linker has written it.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Keeps the linker from unloading the module that contains an address; returns true if there is
/// one.
pub(crate) fn pin(address: *const c_void) -> bool {
    let Some(info) = module_of(address) else {
        return false;
    };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // The program itself is not found by its path, and is never unloaded.
    // SAFETY: a string that stays valid.
    GATE.call_linker(|| unsafe { libc::dlopen(info.dli_fname, flags) });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_loaded_is_not_closed() {
        assert!(DlHandle::loaded(Some(c"no-such-library.so")).is_none());
        assert!(DlHandle::loaded(None).is_some());
        assert!(symbol(c"no such function").is_null());
        assert!(!pin(ptr::null()));
    }
}
