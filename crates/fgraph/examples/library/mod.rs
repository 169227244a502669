//! A library that a job loads.

use std::ffi::{CStr, c_void};
use std::mem;

/// A library, loaded for the rest of the program.
pub(crate) struct Library(*mut c_void);

impl Library {
    /// Loads it. `package` is what to install where there is none.
    ///
    /// # Errors
    ///
    /// If there is none.
    ///
    /// # Safety
    ///
    /// The library's constructors must do no harm here.
    pub(crate) unsafe fn load(name: &CStr, package: &str) -> Result<Self, String> {
        // SAFETY: a name, and the caller vouches for the constructors.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            let name = name.to_string_lossy();
            return Err(format!("no {name} (apt-get install {package})"));
        }
        Ok(Self(library))
    }

    /// A function of it.
    ///
    /// # Errors
    ///
    /// If it has none of this name.
    ///
    /// # Safety
    ///
    /// `F` must be the type of a pointer to the function.
    pub(crate) unsafe fn get<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
        // SAFETY: a library that is loaded, and a name.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if function.is_null() {
            return Err(format!("no function {}", name.to_string_lossy()));
        }
        // SAFETY: of the same size, and the caller vouches for the type.
        Ok(unsafe { mem::transmute_copy(&function) })
    }
}
