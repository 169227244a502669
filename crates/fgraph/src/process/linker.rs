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
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::unix::ffi::OsStrExt as _;

use libc::Dl_info;

use super::described::{Info, for_each_info};
use super::exports::{Tables, is_exported};
use super::gate::GATE;

/// True until the program has begun: no module is unloaded, and all modules are relocated.
static IS_AT_START: AtomicBool = AtomicBool::new(false);

/// Runs `work` before the program has begun. The linker then allocates nothing with the program's
/// allocator, which may not be ready, for any query in `work`.
///
/// # Safety
///
/// All modules are relocated, and none is loaded or unloaded meanwhile: the program's `main` was
/// not called yet, and there is no other thread.
pub unsafe fn before_main<R>(work: impl FnOnce() -> R) -> R {
    IS_AT_START.store(true, Ordering::Relaxed);
    let result = work();
    IS_AT_START.store(false, Ordering::Relaxed);
    result
}

/// A handle of a loaded module. While it is open, the module is not unloaded.
pub(crate) enum DlHandle {
    /// The linker's handle.
    Open(*mut c_void),
    /// A module that is there before the program has begun, by the address of its headers.
    AtStart(usize),
}

impl DlHandle {
    /// Returns the module with this path, or the program without one; `None` if it is not loaded.
    /// This loads nothing.
    pub(crate) fn loaded(path: Option<&CStr>) -> Option<Self> {
        if IS_AT_START.load(Ordering::Relaxed) {
            let mut found = None;
            for_each_info(|info| {
                let is_it = path.is_none_or(|path| is_named(info, path));
                found = is_it.then(|| Self::AtStart(info.headers.as_ptr().addr()));
                !is_it
            });
            return found;
        }
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a string, or null for the program.
        let handle = GATE.call_linker(|| unsafe { libc::dlopen(path, flags) });
        (!handle.is_null()).then(|| Self::Open(handle))
    }

    /// Returns the address that other modules get by a name: perhaps in another module. Null if
    /// there is none.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        match *self {
            Self::AtStart(headers) => export(headers, name, None),
            Self::Open(_) if !is_exported(name) => ptr::null_mut(),
            Self::Open(handle) => {
                // SAFETY: a string, and a handle that is open.
                GATE.call_linker(|| unsafe { libc::dlsym(handle, name.as_ptr()) })
            }
        }
    }

    /// Does the same as [`symbol`](Self::symbol), for a name with a version.
    #[cfg(target_env = "gnu")]
    pub(crate) fn symbol_of_version(&self, name: &CStr, version: &CStr) -> *mut c_void {
        match *self {
            Self::AtStart(headers) => export(headers, name, Some(version)),
            // SAFETY: two strings, and a handle that is open.
            Self::Open(handle) => GATE
                .call_linker(|| unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) }),
        }
    }
}

impl Drop for DlHandle {
    fn drop(&mut self) {
        if let Self::Open(handle) = *self {
            // SAFETY: the handle was opened once, and is not used any more.
            GATE.call_linker(|| unsafe { libc::dlclose(handle) });
        }
    }
}

/// Returns true if a module has this path, or without a directory this file name.
fn is_named(info: &Info<'_>, path: &CStr) -> bool {
    let (name, path) = (info.name().as_bytes(), path.to_bytes());
    let file_name = name.rsplit(|&byte| byte == b'/').next();
    name == path || !path.contains(&b'/') && file_name == Some(path)
}

/// Returns the address of a symbol of the module with these program headers, which is there before
/// the program has begun; null if it exports none.
fn export(headers: usize, name: &CStr, version: Option<&CStr>) -> *mut c_void {
    let mut found = None;
    for_each_info(|info| {
        let is_it = info.headers.as_ptr().addr() == headers;
        if is_it {
            found = Tables::of(info).and_then(|tables| tables.find(name, version));
        }
        !is_it
    });
    // SAFETY: by the contract of `before_main`.
    let address = found.map(|export| unsafe { export.resolved() });
    ptr::with_exposed_provenance_mut(address.unwrap_or(0))
}

/// Returns the address that the program gets by a name; null if there is none.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    if !is_exported(name) {
        return ptr::null_mut();
    }
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
    // Modules that are there before the program has begun stay.
    if !IS_AT_START.load(Ordering::Relaxed) {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // The program itself is not found by its path, and is never unloaded.
        // SAFETY: a string that stays valid.
        GATE.call_linker(|| unsafe { libc::dlopen(info.dli_fname, flags) });
    }
    true
}

#[cfg(test)]
mod tests {
    use fgraph_needs::skip;

    use super::*;

    #[test]
    fn a_library_that_is_not_loaded_is_not_closed() {
        assert!(DlHandle::loaded(Some(c"no-such-library.so")).is_none());
        assert!(DlHandle::loaded(None).is_some());
        assert!(symbol(c"no such function").is_null());
        assert!(!pin(ptr::null()));
    }

    #[test]
    fn symbols_before_main_are_those_of_the_linker() {
        let name = c"libc.so.6";
        let Some(open) = DlHandle::loaded(Some(name)) else {
            return skip!("the C library is not glibc's");
        };
        // SAFETY: no other test loads or unloads the C library, the only module that is used.
        let at_start = unsafe { before_main(|| DlHandle::loaded(Some(name))) }.unwrap();
        for symbol in [c"mmap", c"memcpy", c"strlen", c"_Exit", c"no such function"] {
            assert_eq!(at_start.symbol(symbol), open.symbol(symbol), "{symbol:?}");
        }
        #[cfg(target_env = "gnu")]
        for version in [c"GLIBC_2.2.5", c"GLIBC_2.14", c"GLIBC_9"] {
            let [own, linkers] =
                [&at_start, &open].map(|handle| handle.symbol_of_version(c"memcpy", version));
            assert_eq!(own, linkers, "{version:?}");
        }
        // SAFETY: as above.
        assert!(unsafe { before_main(|| DlHandle::loaded(Some(c"libno.so"))) }.is_none());
    }
}
