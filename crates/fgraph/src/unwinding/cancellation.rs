//! Cancellations, of which fgraph learns before they are sent.
//!
//! While a user's callback runs, its thread must not be cancelled. To hold that off at each call
//! costs more than the rest of the call, and many programs that name `pthread_cancel` never call
//! it. So the modules that name it are made to call us, and cancellation is held off from the first
//! call on:
//!
//! ```text
//!   cancelling thread                       any other thread
//!     say that threads are cancelled          mark itself as inside
//!     (heavy barrier)                         (light barrier)
//!     wait until all have been outside        cancelled? then hold it off
//!     pthread_cancel                          call users
//! ```
//!
//! Either a thread's mark is stored before the heavy barrier, then the cancelling thread waits for
//! it; or it is stored afterwards, then the thread finds what was said. Where a module cannot be
//! made to call us, cancellation is held off from the start.
//!
//! # Safety
//!
//! The unsafe code changes words of modules to a function of the type that they are for, and calls
//! the function that they were for.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::slot::Replaced;
use crate::arch::trampoline;
use crate::os::{self, membarrier};
use crate::process::linker;
use crate::process::modules::LoadedModule;
use crate::threads::{self, FGRAPH};

/// A module that names it may cancel threads.
pub(crate) const FUNCTION: &CStr = c"pthread_cancel";

/// How long the first cancellation waits for callbacks that run: one of them may wait for the
/// thread that cancels.
const PATIENCE: Duration = Duration::from_secs(1);

/// The C library's function; 0 while it is not known, and then nothing calls us.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Whether cancellation is held off from all callbacks.
static IS_HELD_OFF: AtomicBool = AtomicBool::new(false);

/// Has a module that may cancel threads say so first; `image` has its file. Returns whether it
/// does. This may wait for libraries to be loaded.
pub(crate) fn announce(
    module: &LoadedModule,
    image: impl FnOnce() -> Option<&'static [u8]>,
) -> bool {
    let own = linker::symbol(FUNCTION).expose_provenance();
    if own == 0 || !linker::pin(cancel as *const c_void) {
        return false;
    }
    // Release: pairs with the Acquire in `cancel`.
    let known = NEXT.compare_exchange(0, own, Ordering::Release, Ordering::Relaxed);
    if known.is_err_and(|known| known != own) {
        return false;
    }
    let called = Replaced {
        name: FUNCTION,
        own,
        found: own,
        ours: cancel as *const () as usize,
    };
    // SAFETY: it is of the same type, and pinned.
    unsafe { called.redirect(module, image) }
}

/// Called in place of the C library's function.
///
/// # Safety
///
/// As for `pthread_cancel`.
#[unsafe(link_section = "fgraph_text")]
unsafe extern "C" fn cancel(thread: libc::pthread_t) -> c_int {
    // Acquire: who does not wait comes after who has waited.
    if !IS_HELD_OFF.load(Ordering::Acquire) {
        let errno = os::errno();
        hold_off();
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = errno };
    }
    // Acquire: pairs with the Release in `announce`.
    let next = ptr::with_exposed_provenance::<()>(NEXT.load(Ordering::Acquire));
    // SAFETY: set before this is called, to the function that this is called for.
    unsafe {
        let next: unsafe extern "C" fn(libc::pthread_t) -> c_int = mem::transmute(next);
        next(thread)
    }
}

/// Has cancellation held off, and waits until it is from all callbacks that run.
fn hold_off() {
    trampoline::announce_cancellation();
    // Without it a thread may be about to call a user. It was to be had when fgraph started.
    let _ = membarrier::fence();
    let until = os::now() + PATIENCE;
    let pause = |thread| {
        os::nap();
        threads::is_alive(thread) && os::now() < until
    };
    // SAFETY: `is_alive` looks at the owner only.
    unsafe { FGRAPH.wait_for_callbacks(trampoline::current(), pause) };
    IS_HELD_OFF.store(true, Ordering::Release);
}
