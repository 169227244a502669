//! What the dynamic linker is asked.
//!
//! It answers when no `dlopen` is going on in another thread, its constructors included, so who
//! holds our lock says that it asks ([`Gate::ask`](super::gate::Gate::ask)). With the lock of its
//! list of modules held ([`while_locked`](crate::process::modules::while_locked)) it must not be
//! asked.
//!
//! # Safety
//!
//! The unsafe code calls the dynamic linker, with strings and with handles that are open.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use libc::Dl_info;

use super::gate::GATE;

/// An open handle of a module that is loaded. While it is open, the module is not unloaded.
pub(crate) struct DlHandle(*mut c_void);

impl DlHandle {
    /// The one of this path, or the program without one; `None` if it is not loaded. Nothing is
    /// loaded for this.
    pub(crate) fn loaded(path: Option<&CStr>) -> Option<Self> {
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a string, or null for the program.
        let handle = GATE.ask(|| unsafe { libc::dlopen(path, flags) });
        (!handle.is_null()).then(|| Self(handle))
    }

    /// What others get who link against a name: perhaps something in another module. Null if there
    /// is nothing.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a string, and a handle that is open.
        GATE.ask(|| unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }

    /// [`symbol`](Self::symbol) for a name of a version.
    #[cfg(target_env = "gnu")]
    pub(crate) fn symbol_of_version(&self, name: &CStr, version: &CStr) -> *mut c_void {
        // SAFETY: two strings, and a handle that is open.
        GATE.ask(|| unsafe { libc::dlvsym(self.0, name.as_ptr(), version.as_ptr()) })
    }
}

impl Drop for DlHandle {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and is not used any more.
        GATE.ask(|| unsafe { libc::dlclose(self.0) });
    }
}

/// What the program gets by a name; null if there is nothing.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name.
    GATE.ask(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// What the linker knows of the module that an address is in.
pub(crate) fn module_of(address: *const c_void) -> Option<Dl_info> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: any address may be asked for, and the answer is written to what can hold it.
    let found = GATE.ask(|| unsafe { libc::dladdr(address, info.as_mut_ptr()) });
    // SAFETY: it was written to.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Keeps the linker from unloading the module that an address is in; whether there is one.
pub(crate) fn pin(address: *const c_void) -> bool {
    let Some(info) = module_of(address) else {
        return false;
    };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // The program itself is not found by its path, and stays anyway.
    // SAFETY: a string that lasts.
    GATE.ask(|| unsafe { libc::dlopen(info.dli_fname, flags) });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_loaded_is_not_closed_either() {
        assert!(DlHandle::loaded(Some(c"no-such-library.so")).is_none());
        assert!(DlHandle::loaded(None).is_some());
        assert!(symbol(c"no such function").is_null());
        assert!(!pin(ptr::null()));
    }
}
