//! The victim's threads, each under a number of its own.

use std::cell::Cell;
use std::thread::{self, Scope, ScopedJoinHandle};

/// Identity of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id {
    /// Its place in the books. A thread that comes after the end of another may have the same.
    pub(crate) number: usize,
    /// Its number in the kernel.
    pub(crate) kernel: u32,
    /// Its number in the kernel before any `fork`.
    pub(crate) original: u32,
}

thread_local! {
    static CURRENT: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Returns this thread; `None` before [`enter`].
#[inline(always)]
pub(crate) fn current() -> Option<Id> {
    // `get` can panic, as far as the compiler knows, and eligible code cannot.
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// Gives this thread a number.
pub(crate) fn enter(number: usize) -> Id {
    // SAFETY: no arguments.
    let kernel = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let id = Id {
        number,
        kernel,
        original: kernel,
    };
    CURRENT.set(Some(id));
    id
}

/// This thread is about to fork: until [`forked`] the kernel may call it one thing or another, 0.
pub(crate) fn fork() {
    if let Some(mut id) = CURRENT.get() {
        id.kernel = 0;
        CURRENT.set(Some(id));
    }
}

/// This thread has forked, or is that of the child.
pub(crate) fn forked() {
    if let Some(mut id) = CURRENT.get() {
        // SAFETY: no arguments.
        id.kernel = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        CURRENT.set(Some(id));
    }
}

/// Starts a thread under a name that debuggers and profilers show.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
        .expect("the system has room for a few threads")
}
