//! What happens to the lock when the process forks.
//!
//! The forking thread keeps it as it is from before to after, so that the child does not inherit it locked by a
//! thread that it does not have, nor text that is half-written.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use std::sync::Once;

use super::CONTROL;
use super::lock::Kept;
use crate::threads::{self, Inside};

/// The lock, from before the fork to after it, and the mark of a thread that is not in a callback.
type Held = Option<(Kept<'static>, Option<Inside>)>;

thread_local! {
    // Not dropped with the thread, which may fork to its very end.
    static HELD: Cell<ManuallyDrop<Held>> = const { Cell::new(ManuallyDrop::new(None)) };
    /// How many forks the thread is in: the handler of a signal that comes meanwhile may fork, too.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

/// Makes the C library call us around forks.
pub(super) fn handle() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions may be called around a fork.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

extern "C" fn before() {
    let outer = FORKS.get();
    FORKS.set(outer + 1);
    // In a signal handler that has interrupted fgraph's own code, which may hold the lock, there is
    // nothing to wait for.
    if outer == 0 && !threads::in_own_code() {
        // Not marked if the fork is in a callback, which marks the thread as well.
        let inside = Inside::enter().ok();
        HELD.set(ManuallyDrop::new(Some((CONTROL.keep(), inside))));
    }
}

extern "C" fn in_parent() {
    after(|_| ());
}

extern "C" fn in_child() {
    threads::after_fork();
    after(Kept::set_free);
}

/// Ends what [`before`] has begun.
fn after(change: impl FnOnce(&mut Kept<'static>)) {
    let outer = FORKS.get().saturating_sub(1);
    FORKS.set(outer);
    if outer == 0
        && let Some((mut kept, _inside)) = ManuallyDrop::into_inner(HELD.take())
    {
        change(&mut kept);
    }
}
