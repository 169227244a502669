//! What a user implements.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

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
/// The model is the kernel's `struct fgraph_ops` with its `entryfunc` and `retfunc`.
///
/// # What a callback may do
///
/// A callback runs right before or right after the function, on its caller's thread. So it may do
/// what is allowed **there**, and where that is depends on the filter: `malloc` is called while the
/// allocator is about to change its lists, a handler of signals between any two instructions of the
/// program. Safe Rust does not know of such places, so what registers a user or gives it another
/// filter is `unsafe`, with this promise: wherever a selected function is called, the callbacks do
/// only what is allowed there.
///
/// **Everywhere** a callback may use its arguments (`self`, the call, the data), atomics, memory
/// that it owns already, the clock, and system calls that are safe in a signal handler; `errno` is
/// saved around it. It may call traced functions: these calls are not traced, but counted as
/// [missed](crate::Counters::missed). A callback that does no more than this, and cannot panic, is
/// right with every filter.
///
/// **In ordinary calls**, of functions that run between other code of the program as its source
/// says, it may also allocate, lock, print and panic. It must not wait for a lock that the caller
/// may hold: a callback that prints hangs if it watches what is called to print. While a callback
/// blocks, only its thread waits, and the unregistering of its user. A panic is caught, turns the
/// user off and is shown in its status; the traced program does not see it.
///
/// Data per thread belongs in [`PerThread`](crate::PerThread), which is right everywhere.
///
/// These places allow less. A callback cannot ask whether it is in one: a handler of signals, for
/// one, runs on the stack of the code that it interrupts like any function that this code calls.
///
/// | the function is called | a callback there |
/// |---|---|
/// | by a **signal handler**, or is one | may do what is async-signal-safe (`signal-safety(7)`): no allocation, no lock that the interrupted code may hold, no `format!`, no `println!`, no panic (it allocates its message), no first use of a `thread_local!` |
/// | inside the **allocator**, or by it (in glibc `malloc`, `free`, `unlink_chunk`, `sysmalloc`, `madvise`) | must neither allocate nor free, nor wait for a lock that another thread holds while it allocates |
/// | inside the **C library**, with its locks held (`stdio`, `exit`, `getaddrinfo`, `setlocale`) | must not call what takes the same lock |
/// | while the **dynamic linker** works (constructors and destructors of libraries, resolvers of IFUNCs, `dl_iterate_phdr`'s callbacks, `_dl_*`) | must not wait for a thread that may be in the linker; in a library that was loaded later the first use of a `thread_local!` asks the linker and allocates |
/// | **before `main`**, or after it in `exit` | finds the library's and the program's own initialisers not yet run, or their destructors done; the standard library promises little there |
/// | in the child of **`fork`** | must be async-signal-safe if the parent has other threads: locks that they held are never released. The user and its values are the child's copies |
/// | in the child of **`vfork`** | as in `fork`'s child, and what it writes is the parent's memory |
/// | by a **thread-local destructor**, or later as the thread ends | finds thread-locals with destructors gone: `LocalKey::with` panics, `try_with` tells |
///
/// A user of `":mod:libc.so.6"`, or of everything, meets all of these. A callback must never end
/// its thread: `pthread_exit` there aborts the process. If the thread is cancelled meanwhile, that
/// waits until the callback is done. Nor must a callback leave the stack that it runs on, to come
/// back later: it must not suspend the coroutine that made the call. fgraph takes it for one that
/// was left by a jump, goes on with other calls of the thread, and may free the user. Nor must the
/// code that a callback runs change while the user is registered: what it does to registers is read
/// from it once, at the registration.
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
    ///     fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> { Ok(call()) }
    /// }
    /// struct TooMuch;
    /// impl FgraphOps for TooMuch {
    ///     type Data = [u8; 1025];
    ///     fn entry(&self, _: &mut Entry<'_, Self::Data>) -> Option<Self::Data> { None }
    /// }
    /// let _ = Registration::new::<NoCatch>(TooMuch, 0, 1, 1);
    /// ```
    type Data: Copy + Send + 'static;

    /// A function is entered. `Some` asks for its return, `None` lets the call go by.
    ///
    /// Of functions that return twice, or look at their return address, no user is told of the
    /// return, whatever it asks for: `fgraph::sites()` says which.
    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data>;

    /// A function whose entry was accepted returns, or is [unwound](Return::unwinding).
    fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
        let _ = (call, data);
    }

    /// A library has come or gone since the user was registered, or functions that the program has
    /// [generated](https://docs.rs/fgraph/latest/fgraph/fn.add_functions.html).
    ///
    /// This is called in the thread that loads the library, when it is mapped and this user's
    /// functions in it are traced, before its constructors run; or when it is unmapped. If another
    /// thread is just changing what is traced, that one calls this when it is done, at any time
    /// after. Of a library that comes and goes meanwhile nothing may be heard.
    ///
    /// The calling thread may have the dynamic linker's locks: what holds in a callback while it
    /// works holds here, nothing must be asked of it (`dlopen`, `dlsym`, the first use of a
    /// thread-local of a library), and no handle of a user be dropped. What is called here is not
    /// traced, but counted as [missed](crate::Counters::missed). This is called also while the user
    /// is disabled.
    fn library(&self, event: &LibraryEvent<'_>) {
        let _ = event;
    }
}

/// A library that has come or gone: what [`FgraphOps::library`] hears.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryEvent<'a> {
    /// Whether it was loaded; else it was unloaded.
    pub is_loaded: bool,
    /// Its path, as functions have it for their module.
    pub path: &'a str,
    /// Where it is, or was, from its first segment to the end of its last.
    pub range: Range<usize>,
    /// How many of its functions this user watches, or did.
    pub functions: usize,
}

impl<'a> LibraryEvent<'a> {
    /// A library whose functions are at `range`.
    pub fn new(is_loaded: bool, path: &'a str, range: Range<usize>, functions: usize) -> Self {
        Self {
            is_loaded,
            path,
            range,
            functions,
        }
    }
}

/// A user that the program keeps as well: what it gathers is read without the handle.
impl<T: FgraphOps> FgraphOps for Arc<T> {
    type Data = T::Data;

    #[inline]
    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        T::entry(self, call)
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
        T::ret(self, call, data);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        T::library(self, event);
    }
}

impl<T: FgraphOps> FgraphOps for Box<T> {
    type Data = T::Data;

    #[inline]
    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        T::entry(self, call)
    }

    #[inline]
    fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
        T::ret(self, call, data);
    }

    fn library(&self, event: &LibraryEvent<'_>) {
        T::library(self, event);
    }
}
