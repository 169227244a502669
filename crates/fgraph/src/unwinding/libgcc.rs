//! The unwinders of the process.
//!
//! There may be several. We are linked to one like any module, but the C library ends threads with
//! libgcc, which it loads itself, even in a program that is linked to LLVM's libunwind. Each calls
//! our personality routine with a context that only its own functions understand. So unwinders are
//! searched for by name at the start. libgcc is also redirected to fgraph for frames (`frames`).
//!
//! # Safety
//!
//! The unsafe code converts addresses in a library that is never closed to functions.

use core::ffi::{CStr, c_void};
use core::mem::{ManuallyDrop, transmute};

use super::{registry, stack_pointer};
use crate::arch::trampoline::{self, Unwinder};
use crate::process::linker;
use crate::process::modules::{self, LoadedModule};

/// The name with which the C library loads libgcc.
const LIBGCC: &CStr = c"libgcc_s.so.1";

/// Libraries that unwind: libgcc, LLVM's libunwind, and the other one of that name.
const LIBRARIES: [&CStr; trampoline::MAX_UNWINDERS] =
    [LIBGCC, c"libunwind.so.1", c"libunwind.so.8"];

/// Passes the unwinders to the personality routine, and our frames to libgcc.
pub(crate) fn find() {
    let (modules, _) = modules::loaded();
    for name in LIBRARIES {
        let Some(library) = UnwinderLibrary::open(name, &modules) else {
            continue;
        };
        if let Some(unwinder) = library.unwinder() {
            // SAFETY: they are the functions of that library, by their names.
            unsafe { trampoline::add_unwinder(Box::leak(Box::new(unwinder))) };
        }
        if name == LIBGCC
            && let Some(own) = library.function(registry::FUNCTION)
        {
            let _ = registry::redirect_libgcc(library.module, own.addr());
        }
        if name == LIBGCC
            && let Some(own) = library.function(stack_pointer::FUNCTION)
        {
            stack_pointer::find(own);
        }
    }
}

/// A loaded library with an unwinder, which stays loaded.
struct UnwinderLibrary<'a> {
    library: ManuallyDrop<linker::DlHandle>,
    module: &'a LoadedModule,
}

impl<'a> UnwinderLibrary<'a> {
    /// Opens it, if it is loaded.
    fn open(name: &CStr, modules: &'a [LoadedModule]) -> Option<Self> {
        let library = ManuallyDrop::new(linker::DlHandle::loaded(Some(name))?);
        let start = library.symbol(c"_Unwind_GetIP");
        let module = modules.iter().find(|module| module.is_text(start.addr()))?;
        Some(Self { library, module })
    }

    /// Returns a function of the library.
    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let function = self.library.symbol(name);
        // A missing function may come from a library that it needs.
        self.module.is_text(function.addr()).then_some(function)
    }

    fn unwinder(&self) -> Option<Unwinder> {
        let get_ip = self.function(c"_Unwind_GetIP")?;
        let mut text = self.module.text();
        let text = text.find(|text| text.contains(&get_ip.addr()))?;
        let get_gr = self.function(c"_Unwind_GetGR")?;
        let set_gr = self.function(c"_Unwind_SetGR")?;
        let set_ip = self.function(c"_Unwind_SetIP")?;
        // SAFETY: the ABI defines the arguments and results of functions with these names.
        Some(unsafe {
            Unwinder {
                text,
                get_gr: transmute::<*mut c_void, trampoline::GetGr>(get_gr),
                get_ip: transmute::<*mut c_void, trampoline::GetIp>(get_ip),
                set_gr: transmute::<*mut c_void, trampoline::SetGr>(set_gr),
                set_ip: transmute::<*mut c_void, trampoline::SetIp>(set_ip),
            }
        })
    }
}
