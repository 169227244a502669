//! What a user implements.

use crate::call::{Entry, Return};

/// The largest [`FgraphOps::Data`], in bytes.
pub const MAX_DATA_SIZE: usize = 1024;
/// The strictest alignment of [`FgraphOps::Data`], in bytes.
pub const MAX_DATA_ALIGN: usize = 16;

/// A user of fgraph: it watches the entry and the return of functions.
///
/// One value of the type is shared by all threads of the program; `entry` runs before the body of a
/// function that the user's filter selects, `ret` after it. What `entry` returns is kept for
/// exactly that call and given to `ret`, which runs on the same thread, once for each entry that
/// was accepted, in the reverse order of the entries.
///
/// The callbacks may do what any code may do: allocate, lock, print, call traced functions (which
/// are then not traced, but counted as [missed](crate::Counters::missed)). They run right before and
/// right after the function, on its caller's thread. So a callback must not wait for a lock that a caller
/// may hold, as the caller itself may not: who prints should not watch what is called to print. While a
/// callback blocks, only its thread waits, and who unregisters this user. A panic in a callback is
/// caught, turns this user off and is visible in its status; the traced program does not see it. What
/// they may not do is end their thread: `pthread_exit` inside a callback aborts the process. If the thread
/// is cancelled meanwhile, that waits until they are done.
///
/// The model is the kernel's `struct fgraph_ops` with its `entryfunc` and `retfunc`.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fgraph_core::{Entry, FgraphOps, Return};
///
/// #[derive(Default)]
/// struct SumOfFirstArguments(AtomicU64);
///
/// impl FgraphOps for SumOfFirstArguments {
///     type Data = u64;
///
///     fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
///         Some(call.arg(0)?)
///     }
///
///     fn ret(&self, _call: &mut Return<'_, u64>, first_argument: u64) {
///         self.0.fetch_add(first_argument, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait FgraphOps: Send + Sync + 'static {
    /// What `entry` hands to `ret`: at most [`MAX_DATA_SIZE`] bytes, aligned to at most
    /// [`MAX_DATA_ALIGN`]; more does not compile.
    ///
    /// ```compile_fail
    /// use fgraph_core::{Entry, FgraphOps, registration::{Catch, Registration}};
    /// struct NoCatch;
    /// impl Catch for NoCatch {
    ///     fn catch<R>(call: impl FnOnce() -> R) -> Option<R> { Some(call()) }
    /// }
    /// struct TooMuch;
    /// impl FgraphOps for TooMuch {
    ///     type Data = [u8; 1025];
    ///     fn entry(&self, _: &mut Entry<'_, Self::Data>) -> Option<Self::Data> { None }
    /// }
    /// let _ = Registration::new::<NoCatch>(TooMuch, 0, 1);
    /// ```
    type Data: Copy + Send + 'static;

    /// A function is entered. `Some` asks for its return, `None` lets the call go by.
    ///
    /// Of functions that return twice, or look at their return address, nobody is told of the return
    /// whatever is asked for: `fgraph::sites()` says which.
    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data>;

    /// A function whose entry was accepted returns, or is [unwound](Return::unwinding).
    fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
        let _ = (call, data);
    }
}
