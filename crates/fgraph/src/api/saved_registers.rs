//! Runs rare work of callbacks without losing the fast path.

use core::ffi::c_void;
use core::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::arch::saved_call;
use crate::os;

/// Runs some work of a callback with all registers and `errno` saved, and returns its result;
/// `None` if it panics.
///
/// A callback runs on the fast path if the analysis of its code shows that it does not change the
/// state that is saved for others: see [`Handle::fast_path`](crate::Handle::fast_path). Put rare
/// work here that needs vector registers, the C library or a system call: its code is not analyzed.
/// It takes much more time than a call, and 3 KiB more of stack.
///
/// # Safety
///
/// On the fast path [`Entry`](crate::Entry) and [`Return`](crate::Return) do not have the program's
/// vector registers. So the work must neither read nor change arguments or results that are
/// floating-point numbers or vectors (`float_arg`, `vector_result`, ...).
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
    // SAFETY: the function belongs to the call's type, and is called once.
    unsafe { saved_call::call(run, (&raw mut call).cast()) };
    call.result
}

/// Work, and its result.
struct Call<W, R> {
    work: ManuallyDrop<W>,
    result: Option<R>,
}

/// Returns the function that does the work of a call.
#[inline(always)]
fn run_of<W: FnOnce() -> R, R>(_: &Call<W, R>) -> unsafe extern "C" fn(*mut c_void) {
    run::<W, R>
}

/// Does the work, and catches its panic.
///
/// # Safety
///
/// `call` must point to a [`Call`] of these types whose work was not done yet.
unsafe extern "C" fn run<W: FnOnce() -> R, R>(call: *mut c_void) {
    let errno = os::errno();
    // SAFETY: the caller guarantees the type; the work is taken once.
    let (work, result) = unsafe {
        let call = &mut *call.cast::<Call<W, R>>();
        (ManuallyDrop::take(&mut call.work), &mut call.result)
    };
    // The caller learns about the panic, and may have left something half done.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => *result = Some(done),
        // Dropping the payload may panic.
        Err(payload) => core::mem::forget(payload),
    }
    // SAFETY: `errno` is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}
