//! The trait that users implement.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;

use crate::call::{Dropped, Entry, Return};
use crate::site::Function;

/// The largest [`FgraphOps::Data`], in bytes.
pub const MAX_DATA_SIZE: usize = 1024;
/// The strictest alignment of [`FgraphOps::Data`], in bytes.
pub const MAX_DATA_ALIGN: usize = 16;

/// Panics if the data of `T` is too large or aligned too strictly: to be called at compile time.
pub const fn check_data<T: FgraphOps>() {
    assert!(
        size_of::<T::Data>() <= MAX_DATA_SIZE,
        "FgraphOps::Data is larger than 1024 bytes"
    );
    assert!(
        align_of::<T::Data>() <= MAX_DATA_ALIGN,
        "FgraphOps::Data is aligned to more than 16 bytes"
    );
}

/// A user of fgraph: it watches the entry and the return of functions.
///
/// All threads of the program share one value of the type. `entry` runs before the body of a
/// function that the user's filter selects, and `ret` after it. The value that `entry` returns is
/// kept for exactly that call and passed to `ret`. `ret` runs on the same thread, once for each
/// accepted entry, in the reverse order of the entries. A call that `longjmp` leaves has no `ret`,
/// but [`dropped`](Self::dropped).
///
/// The model is the kernel's `struct fgraph_ops` with its `entryfunc` and `retfunc`.
///
/// # What a callback may do
///
/// A callback runs directly before or after the function, on its caller's thread. So it may do only
/// what is allowed **there**, and the filter decides where that is: `malloc` is called while the
/// allocator is about to change its lists, and a signal handler between any two instructions of the
/// program. Safe Rust does not know of such places. So registering a user, or giving it another
/// filter, is `unsafe`, with this promise: wherever a selected function is called, the callbacks do
/// only what is allowed there.
///
/// **Everywhere** a callback may use its arguments (`self`, the call, the data), atomics, memory
/// that it already owns, the clock, and system calls that are safe in a signal handler; `errno` is
/// saved around it. It may call traced functions: these calls are not traced, but counted as
/// [missed](crate::Counters::missed). A callback that does only this, and cannot panic, is correct
/// with every filter.
///
/// **In ordinary calls**, of functions that run between other code of the program in the order of
/// its source, it may also allocate, lock, print and panic. It must not wait for a lock that the
/// caller may hold: a callback that prints deadlocks if it watches a function that printing calls.
/// While a callback blocks, only its thread and the unregistering of its user wait. A panic is
/// caught, disables the user and appears in its status; the traced program does not see it.
///
/// Keep data per thread in [`PerThread`](crate::PerThread), which is correct everywhere.
///
/// These places allow less. A callback cannot find out if it is in one: a signal handler, for
/// example, runs on the stack of the code that it interrupts, like any function that this code
/// calls.
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
/// A user of `":mod:libc.so.6"`, or of everything, meets all of these. A callback must also keep
/// these rules:
///
/// - It never ends its thread: `pthread_exit` there aborts the process. A cancellation of the
///   thread waits until the callback returns.
/// - It never leaves its stack to come back later: it must not suspend the coroutine that made the
///   call. fgraph would treat the callback as left by a jump, continue with other calls of the
///   thread, and might free the user.
/// - The code that it runs does not change while the user is registered: fgraph reads the code's
///   use of registers once, at registration.
///
/// # Example
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// # use fgraph_core as fgraph;
/// use fgraph::{Entry, FgraphOps, Return};
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
    /// The type of the value that `entry` passes to `ret`: at most [`MAX_DATA_SIZE`] bytes, aligned
    /// to at most [`MAX_DATA_ALIGN`]; a larger one does not compile.
    ///
    /// The compiler finds that where the user is registered, which is generic code: it is compiled
    /// by `cargo build`, and not looked at by `cargo check`. Rust has no bound on the size of a
    /// type that `cargo check` could test in the trait. Write
    /// [`fgraph::check_data!`](https://docs.rs/fgraph/latest/fgraph/macro.check_data.html) behind
    /// the type to hear of it there.
    ///
    /// ```compile_fail,E0080
    /// # use fgraph_core as fgraph;
    /// use fgraph::{Entry, FgraphOps};
    ///
    /// struct TooMuch;
    ///
    /// impl FgraphOps for TooMuch {
    ///     type Data = [u8; 1025]; // One too many.
    ///
    ///     fn entry(&self, _: &mut Entry<'_, Self::Data>) -> Option<Self::Data> { None }
    /// }
    /// # const _: () = fgraph_core::ops::check_data::<TooMuch>();
    /// ```
    type Data: Copy + Send + 'static;

    /// Called at the entry of a function. `Some` requests its return, `None` does not.
    ///
    /// No user gets the return of functions that return twice or look at their return address,
    /// whatever it requests: `fgraph::sites()` lists them.
    fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data>;

    /// Called when a function whose entry was accepted returns, or is [unwound](Return::unwinding).
    fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
        let _ = (call, data);
    }

    /// Called in place of [`ret`](Self::ret) when a call whose entry was accepted is found to have
    /// been left without either a return or an unwinder: by `longjmp`, a switch of stacks that
    /// never comes back, or an exception of a runtime that skips frames.
    ///
    /// fgraph finds that at the next traced entry or return of the thread that shows it, so the
    /// call ended at some time since the previous one. Calls are dropped in the reverse order of
    /// their entries, and before that entry or return is passed to any user. Not every such call is
    /// found: the call is only counted as [lost](crate::Counters::lost), at any later time, if its
    /// thread ends, or if it was on another stack, of a coroutine or a signal handler, that the
    /// thread has left.
    fn dropped(&self, call: &Dropped<'_, Self::Data>, data: Self::Data) {
        let _ = (call, data);
    }

    /// The user's filter has come to select `function`, which is traced now: to prepare what the
    /// callbacks keep for each function, by its [index](Function::index).
    ///
    /// This is called once for each function, and again when its library has been loaded anew. It
    /// is called by the thread that registers the user or changes its filter, before that returns,
    /// or by the thread that loads the library of the function, before [`library`](Self::library).
    /// For a function that the program has
    /// [generated](https://docs.rs/fgraph/latest/fgraph/fn.add_functions.html) it is the thread
    /// that adds it.
    ///
    /// Other threads may call the function before this is called. To prepare all before the first
    /// call, register the user with `Options::enabled(false)`, and enable it afterwards.
    ///
    /// The rules for [`library`](Self::library) hold here, too.
    fn selected(&self, function: Function) {
        let _ = function;
    }

    /// Called when a library, or a set of functions that the program has
    /// [generated](https://docs.rs/fgraph/latest/fgraph/fn.add_functions.html), was added or
    /// removed since the user was registered.
    ///
    /// The call comes in the thread that loads the library, when it is mapped and this user's
    /// functions in it are traced, before its constructors run; or when it is unmapped. If another
    /// thread is changing filters at that moment, that thread makes the call when it is finished,
    /// at any later time. There may be no call for a library that is loaded and unloaded meanwhile.
    ///
    /// The calling thread may have the dynamic linker's locks. So the rules for a callback while
    /// the dynamic linker works apply: do not request anything of it (`dlopen`, `dlsym`, the first
    /// use of a thread-local of a library), and do not drop a handle of a user. The functions
    /// called here are not traced, but counted as [missed](crate::Counters::missed). The call comes
    /// even while the user is disabled.
    fn library(&self, event: &LibraryEvent<'_>) {
        let _ = event;
    }
}

/// The argument of a user's [`entry`](FgraphOps::entry).
///
/// ```
/// # use fgraph_core as fgraph;
/// use fgraph::{EntryOf, FgraphOps, ReturnOf};
///
/// struct Lengths;
///
/// impl FgraphOps for Lengths {
///     type Data = (u64, u32);
///
///     fn entry(&self, call: &mut EntryOf<'_, Self>) -> Option<Self::Data> {
///         Some((call.arg(0)?, call.arg_as(1)?))
///     }
///
///     fn ret(&self, _call: &mut ReturnOf<'_, Self>, _data: Self::Data) {}
/// }
/// ```
pub type EntryOf<'a, T> = Entry<'a, <T as FgraphOps>::Data>;

/// The argument of a user's [`ret`](FgraphOps::ret): see [`EntryOf`].
pub type ReturnOf<'a, T> = Return<'a, <T as FgraphOps>::Data>;

/// The argument of a user's [`dropped`](FgraphOps::dropped): see [`EntryOf`].
pub type DroppedOf<'a, T> = Dropped<'a, <T as FgraphOps>::Data>;

/// The event of a library that was added or removed: the argument of [`FgraphOps::library`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryEvent<'a> {
    /// True if it was loaded; false if it was unloaded.
    pub is_loaded: bool,
    /// Its path, as in its functions' module.
    pub path: &'a str,
    /// Its address range, from its first segment to the end of its last.
    pub range: Range<usize>,
    /// The number of its functions that this user watches, or watched.
    pub functions: usize,
}

impl<'a> LibraryEvent<'a> {
    /// Makes the event of a library with functions in `range`.
    pub fn new(is_loaded: bool, path: &'a str, range: Range<usize>, functions: usize) -> Self {
        Self {
            is_loaded,
            path,
            range,
            functions,
        }
    }
}

/// Implements a user's callbacks for a pointer to it.
macro_rules! pass_on {
    ($(#[$doc:meta] $pointer:ident)*) => {
        $(
            #[$doc]
            impl<T: FgraphOps> FgraphOps for $pointer<T> {
                type Data = T::Data;

                #[inline]
                fn entry(&self, call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
                    T::entry(self, call)
                }

                #[inline]
                fn ret(&self, call: &mut Return<'_, Self::Data>, data: Self::Data) {
                    T::ret(self, call, data);
                }

                fn dropped(&self, call: &Dropped<'_, Self::Data>, data: Self::Data) {
                    T::dropped(self, call, data);
                }

                #[inline]
                fn selected(&self, function: Function) {
                    T::selected(self, function);
                }

                fn library(&self, event: &LibraryEvent<'_>) {
                    T::library(self, event);
                }
            }
        )*
    };
}

pass_on! {
    /// A user that the program keeps, too: read its data without the handle.
    Arc
    /// A user whose type need not be named.
    Box
}
