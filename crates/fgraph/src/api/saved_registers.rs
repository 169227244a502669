//! Work of callbacks that must not keep them off the fast path.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::arch::saved_call;
use crate::os;

/// Does some work of a callback with all registers and `errno` saved, and returns its result;
/// `None` if it panics.
///
/// A callback is called on the fast path if its code is seen to leave alone what is saved for
/// others: see [`Handle::not_scalar`](crate::Handle::not_scalar). Work that it does seldom, and
/// that needs vector registers, the C library or a system call, goes here: its code is not looked
/// at. It takes some 100 ns and 3 KiB of stack more than a call.
///
/// # Safety
///
/// On the fast path the program's vector registers are not where [`Entry`](crate::Entry) and
/// [`Return`](crate::Return) have them: the work neither looks at arguments or results that are
/// floating-point numbers or vectors (`float_arg`, `vector_result`, ...) nor changes them.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use fgraph::{Entry, FgraphOps};
///
/// /// Counts calls, and prints each millionth count.
/// #[derive(Default)]
/// struct Progress(AtomicU64);
///
/// impl FgraphOps for Progress {
///     type Data = ();
///
///     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
///         let calls = self.0.fetch_add(1, Ordering::Relaxed);
///         if calls % 1_000_000 == 0 {
///             // SAFETY: this has nothing to do with the call.
///             unsafe { fgraph::with_registers_saved(|| eprintln!("{calls} calls")) };
///         }
///         None
///     }
/// }
/// # // SAFETY: there is no call.
/// # unsafe { fgraph::with_registers_saved(|| eprintln!("0 calls")) };
/// ```
#[inline(always)]
pub unsafe fn with_registers_saved<R>(work: impl FnOnce() -> R) -> Option<R> {
    let mut call = Call {
        work: ManuallyDrop::new(work),
        result: None,
    };
    let run = run_of(&call);
    // SAFETY: the function is that of the call's type, and is called once.
    unsafe { saved_call::call(run, (&raw mut call).cast()) };
    call.result
}

/// Work, and what comes of it.
struct Call<W, R> {
    work: ManuallyDrop<W>,
    result: Option<R>,
}

/// The function that does the work of a call.
#[inline(always)]
fn run_of<W: FnOnce() -> R, R>(_: &Call<W, R>) -> unsafe extern "C" fn(*mut c_void) {
    run::<W, R>
}

/// Does the work, whatever becomes of it.
///
/// # Safety
///
/// `call` must point to a [`Call`] of these types whose work was not done.
unsafe extern "C" fn run<W: FnOnce() -> R, R>(call: *mut c_void) {
    let errno = os::errno();
    // SAFETY: as the caller says; the work is taken once.
    let (work, result) = unsafe {
        let call = &mut *call.cast::<Call<W, R>>();
        (ManuallyDrop::take(&mut call.work), &mut call.result)
    };
    // The caller learns that it has panicked, and may have left something half done.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => *result = Some(done),
        // Dropping what it has panicked with may panic.
        Err(payload) => core::mem::forget(payload),
    }
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}
