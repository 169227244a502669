//! Processes in this memory that run on a piece of the stack of the thread that makes them.
//!
//! A process that `clone` makes with only `CLONE_VM` has the block of that thread, and so its
//! state. Trampolines distinguish the two by the change of stacks. If the process gets an array in
//! a frame of the thread as its stack, both are on the same one:
//!
//! ```text
//!   low                                                          high
//!   | calls of the thread | array: calls of the process | frames of the thread |
//! ```
//!
//! So modules that name `clone` are redirected to fgraph. A thread that makes such a process is no
//! longer traced, nor is the process.
//!
//! # Safety
//!
//! The unsafe code changes words of modules to a function of the right type, and calls the original
//! function.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::slot::Replaced;
use crate::os;
use crate::process::linker;
use crate::process::modules::LoadedModule;
use crate::threads::{self, stack_bounds};

/// A module that names it may make such processes.
const FUNCTION: &CStr = c"clone";

/// The C library's function; 0 while it is unknown, and then no module is redirected.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Redirects a module that may make processes; `image` returns its file. This may wait for
/// libraries to be loaded.
pub(crate) fn redirect(module: &LoadedModule, image: impl FnOnce() -> Option<&'static [u8]>) {
    let own = linker::symbol(FUNCTION).expose_provenance();
    if own == 0 || !linker::pin(clone as *const c_void) {
        return;
    }
    // Release: pairs with the Acquire in `clone`.
    let known = NEXT.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
    if known.is_err_and(|known| known != own) {
        return;
    }
    let called = Replaced {
        name: FUNCTION,
        own,
        found: own,
        ours: clone as *const () as usize,
    };
    // A module that cannot be redirected makes such processes unnoticed.
    // SAFETY: it takes all arguments that the other one may have, and is pinned.
    let _ = unsafe { called.redirect(module, image) };
}

/// The C library's function, with all arguments that it may have.
type Clone = unsafe extern "C" fn(
    function: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    block: *mut c_void,
    child: *mut c_void,
) -> c_int;

/// Replaces the C library's function.
///
/// # Safety
///
/// The contract of `clone` holds. Arguments that are not passed may be anything: they are not read.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn clone(
    function: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    block: *mut c_void,
    child: *mut c_void,
) -> c_int {
    if shares_state(flags) && is_on_own_stack(stack.addr()) {
        let errno = os::errno();
        if let Some(thread) = threads::current() {
            // SAFETY: the running thread's.
            unsafe { thread.stop_tracing() };
        }
        // SAFETY: `errno` is the calling thread's own.
        unsafe { *libc::__errno_location() = errno };
    }
    // Acquire: pairs with the Release in `redirect`.
    let next = ptr::with_exposed_provenance::<()>(NEXT.load(Ordering::Acquire));
    // SAFETY: the address was set before this is called, to the function that it replaces.
    unsafe {
        let next: Clone = mem::transmute(next);
        next(function, stack, flags, argument, parent, block, child)
    }
}

/// Returns true if the new process has the memory and the block of the thread that makes it, and
/// runs beside it.
const fn shares_state(flags: c_int) -> bool {
    const OTHERWISE: c_int = libc::CLONE_VFORK | libc::CLONE_THREAD | libc::CLONE_SETTLS;
    flags & (libc::CLONE_VM | OTHERWISE) == libc::CLONE_VM
}

/// Returns true if a stack that begins below `top` is a piece of the calling thread's current one.
fn is_on_own_stack(top: usize) -> bool {
    let here = (&raw const top).addr();
    let bounds = stack_bounds::around(here).bounds;
    bounds.contains(&top.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_shares_the_memory_and_the_block_shares_the_state() {
        let (memory, child) = (libc::CLONE_VM, libc::SIGCHLD);
        assert!(shares_state(memory | child));
        assert!(!shares_state(child));
        assert!(!shares_state(memory | libc::CLONE_VFORK | child));
        assert!(!shares_state(memory | libc::CLONE_SETTLS | child));
    }

    #[test]
    fn an_array_in_a_frame_is_on_the_own_stack() {
        let array = [0_u8; 64];
        assert!(is_on_own_stack((&raw const array).addr() + 64));
        let heap = Box::new([0_u8; 64]);
        assert!(!is_on_own_stack((&raw const *heap).addr() + 64));
    }
}
