//! The stack pointer of a frame, for who asks libgcc (`_Unwind_GetCFA`).
//!
//! A personality routine may find the data of its frame by the stack pointer, as LuaJIT's does.
//! libgcc answers with the CFA of the frame beneath, which is the same for all code but the
//! trampolines of tail calls: theirs must be higher (`trampoline.rs` of `fgraph-x86_64` says why),
//! and they tell of the stack pointer beside it. So the modules that ask are made to ask us:
//!
//! ```text
//!   personality -> call _Unwind_GetCFA@plt -> jmp [slot] -> stack_pointer -> _Unwind_GetCFA
//! ```
//!
//! The slots are theirs. libgcc calls the same function to tell frames apart, and goes on to.
//!
//! # Safety
//!
//! The unsafe code reads what libgcc keeps of a frame, after it has seen that it is laid out as is
//! expected, and changes slots to a function of the type that they are for.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::slot::Replaced;
use crate::process::linker;
use crate::process::modules::LoadedModule;

/// What is asked, by what libgcc calls it.
pub(super) const FUNCTION: &CStr = c"_Unwind_GetCFA";

/// libgcc's function; 0 if it is not known how it finds its answer.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// What modules get who ask for a function of that name.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// What libgcc keeps of a frame begins with the places, or the values, of all registers that
/// unwind information has numbers for, and the return address. The CFA is behind them.
const CFA: u32 = 18 * 8;
/// The number of rsp in unwind information.
const RSP: usize = 7;

/// libgcc's function, behind an `endbr64` if there is one: `mov rax, [rdi + CFA]; ret`.
const CODE: [u8; 8] = {
    let [a, b, c, d] = CFA.to_le_bytes();
    [0x48, 0x8b, 0x87, a, b, c, d, 0xc3]
};

/// Notes libgcc's function, which is at `own` in its text.
pub(super) fn find(own: *mut c_void) {
    let code = own.cast::<[u8; 12]>();
    // SAFETY: a function, which libgcc has many others behind.
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

/// Has a module that asks libgcc ask us; `image` has its file. This may wait for libraries to be
/// loaded.
pub(crate) fn answer(module: &LoadedModule, image: impl FnOnce() -> Option<&'static [u8]>) {
    let own = NEXT.load(Ordering::Acquire);
    if own == 0 {
        return;
    }
    let asked = Replaced {
        name: FUNCTION,
        own,
        found: FOUND.load(Ordering::Relaxed),
        ours: stack_pointer as *const () as usize,
    };
    // Who cannot be made to ask us asks libgcc, as before.
    // SAFETY: it is of the same type, and pinned.
    let _ = unsafe { asked.redirect(module, image) };
}

/// Called in place of libgcc's function.
///
/// # Safety
///
/// `frame` must be what libgcc keeps of a frame.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn stack_pointer(frame: *const c_void) -> usize {
    type Ask = unsafe extern "C" fn(*const c_void) -> usize;
    // SAFETY: set before this is called, to such a function.
    let (cfa, rsp) = unsafe {
        let next = ptr::with_exposed_provenance::<()>(NEXT.load(Ordering::Relaxed));
        let next = core::mem::transmute::<*const (), Ask>(next);
        (next(frame), frame.cast::<usize>().add(RSP).read())
    };
    // Above a trampoline it is the value. Above a signal handler it is a place, far from the CFA
    // as the registers are between, above all else null.
    if (1..=8).contains(&cfa.wrapping_sub(rsp)) {
        rsp
    } else {
        cfa
    }
}
