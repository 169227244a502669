//! Handles the lock when the process forks.
//!
//! The forking thread keeps the lock from before to after the fork. So the child does not inherit
//! it locked by a thread that it does not have, and no text is half-written.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use std::sync::Once;

use super::library_events;
use crate::process::call_gate;
use crate::process::gate::{Frozen, GATE};
use crate::threads::{self, Inside, spare_stacks};

/// The gate, from before the fork to after it, and the marking of a thread that is not in a
/// callback.
type AroundFork = Option<(Frozen<'static>, Option<Inside>)>;

thread_local! {
    // Not dropped with the thread, which may fork until its very end.
    static AROUND_FORK: Cell<ManuallyDrop<AroundFork>> =
        const { Cell::new(ManuallyDrop::new(None)) };
    /// The number of nested forks of the thread: a signal handler during a fork may fork, too.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

/// Registers handlers that the C library calls around forks.
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
    // In a signal handler that has interrupted fgraph's own code, which may hold the lock, it must
    // not wait.
    if outer == 0 && !threads::in_own_code() {
        // Not marked if the fork is in a callback, which marks the thread itself.
        let inside = Inside::enter().ok();
        AROUND_FORK.set(ManuallyDrop::new(Some((GATE.freeze(), inside))));
    }
}

extern "C" fn in_parent() {
    after(|_| ());
    if FORKS.get() == 0 && !threads::in_own_code() {
        // Threads that have loaded libraries meanwhile have not waited.
        threads::as_own_code(library_events::join_without_waiting);
    }
}

extern "C" fn in_child() {
    spare_stacks::after_fork();
    call_gate::after_fork();
    threads::after_fork();
    after(Frozen::set_free);
}

/// Ends the work that [`before`] has begun.
fn after(change: impl FnOnce(&mut Frozen<'static>)) {
    let outer = FORKS.get().saturating_sub(1);
    FORKS.set(outer);
    if outer == 0
        && let Some((mut frozen, _inside)) = ManuallyDrop::into_inner(AROUND_FORK.take())
    {
        change(&mut frozen);
    }
}
