//! The stack pointer of a frame, for callers of libgcc's `_Unwind_GetCFA`.
//!
//! A personality routine may find the data of its frame through the stack pointer, as LuaJIT's
//! does. libgcc returns the CFA of the frame below, which is the same for all code except the
//! trampolines of tail calls: theirs must be higher (`trampoline.rs` of `fgraph-x86_64` says why),
//! and they have the stack pointer as a separate value. So modules that call it are redirected to
//! us:
//!
//! ```text
//!   personality -> call _Unwind_GetCFA@plt -> jmp [slot] -> stack_pointer -> _Unwind_GetCFA
//! ```
//!
//! The slots are the modules' own. libgcc itself calls the same function to distinguish frames, and
//! still does.
//!
//! # Safety
//!
//! The unsafe code reads libgcc's data of a frame, after it has checked the layout, and changes
//! slots to a function of the right type.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::slot::Replaced;
use crate::process::linker;
use crate::process::modules::LoadedModule;

/// The symbol of the function, as libgcc calls it.
pub(super) const FUNCTION: &CStr = c"_Unwind_GetCFA";

/// libgcc's function; 0 if the layout of its data is unknown.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// The address that modules get for a function of that name.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// libgcc's data of a frame begins with the places, or the values, of all registers that have
/// numbers in unwind information, and the return address. The CFA follows.
const CFA: u32 = 18 * 8;
/// The number of rsp in unwind information.
const RSP: usize = 7;

/// libgcc's function, after an `endbr64` if there is one: `mov rax, [rdi + CFA]; ret`.
const CODE: [u8; 8] = {
    let [a, b, c, d] = CFA.to_le_bytes();
    [0x48, 0x8b, 0x87, a, b, c, d, 0xc3]
};

/// Notes libgcc's function, which is at `own` in its text.
pub(super) fn find(own: *mut c_void) {
    let code = own.cast::<[u8; 12]>();
    // SAFETY: a function, which is followed by many others of libgcc.
    let code = unsafe { code.read_unaligned() };
    let code = code
        .strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa])
        .unwrap_or(&code);
    if code.starts_with(&CODE) && linker::pin(stack_pointer as *const c_void) {
        FOUND.store(
            linker::symbol(FUNCTION).expose_provenance(),
            Ordering::Relaxed,
        );
        NEXT.store(own.expose_provenance(), Ordering::Release);
    }
}

/// Redirects a module that calls libgcc's function; `image` returns its file. This may wait for
/// libraries to be loaded.
pub(crate) fn redirect(module: &LoadedModule, image: impl FnOnce() -> Option<&'static [u8]>) {
    let own = NEXT.load(Ordering::Acquire);
    if own == 0 {
        return;
    }
    let called = Replaced {
        name: FUNCTION,
        own,
        found: FOUND.load(Ordering::Relaxed),
        ours: stack_pointer as *const () as usize,
    };
    // A module that cannot be redirected calls libgcc, as before.
    // SAFETY: it is of the same type, and pinned.
    let _ = unsafe { called.redirect(module, image) };
}

/// Replaces libgcc's function.
///
/// # Safety
///
/// `frame` must be libgcc's data of a frame.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn stack_pointer(frame: *const c_void) -> usize {
    type StackPointer = unsafe extern "C" fn(*const c_void) -> usize;
    // SAFETY: the address was set before this is called, to such a function.
    let (cfa, rsp) = unsafe {
        let next = ptr::with_exposed_provenance::<()>(NEXT.load(Ordering::Relaxed));
        let next = core::mem::transmute::<*const (), StackPointer>(next);
        (next(frame), frame.cast::<usize>().add(RSP).read())
    };
    // Above a trampoline it is the value. Above a signal handler it is a place, far from the CFA
    // because the registers are in between; above all other frames it is null.
    if (1..=8).contains(&cfa.wrapping_sub(rsp)) {
        rsp
    } else {
        cfa
    }
}
