//! Applying filters to libraries that came, and leaving those alone that went.
//!
//! A thread that loads a library applies the filters to it, unless the lock is held: the holder may
//! be waiting for the dynamic linker, whose locks the loading thread has. Then the holder applies
//! them when it is done. While others load libraries all the time it is never done, so in its last
//! round the holder asks the linker for nothing, and threads that load libraries wait for it.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use super::{CONTROL, Control};
use crate::process::loader_event;
use crate::threads::Inside;

/// How often a holder of the lock applies the filters to libraries that others have loaded.
const ROUNDS: usize = 8;

/// How long a thread that loads a library waits for the last round of the lock's holder.
const PATIENCE: Duration = Duration::from_millis(100);

/// The holder of the lock is in its last round.
static LAST_ROUND: AtomicBool = AtomicBool::new(false);

/// Applies the filters to libraries that came, unless the lock is held: then its holder does it
/// when it is done. Called by a thread that may be in the dynamic linker.
pub(super) fn on_change() {
    // Inside a callback it has to wait for the next change.
    if let Ok(_inside) = Inside::enter() {
        join_all();
    }
}

/// [`on_change`] in a thread that is marked as inside.
pub(super) fn join_all() {
    for round in 1..=ROUNDS {
        if !loader_event::is_pending() {
            return;
        }
        let held = CONTROL.try_acquire().or_else(|| {
            // SeqCst, as for what is pending: a holder in its last round sees that, or this thread
            // sees that it is the last.
            let is_last = LAST_ROUND.load(Ordering::SeqCst);
            CONTROL.acquire_within(if is_last { PATIENCE } else { Duration::ZERO })
        });
        let Some(mut control) = held else {
            return;
        };
        if round < ROUNDS {
            control.join_pending();
            continue;
        }
        LAST_ROUND.store(true, Ordering::SeqCst);
        loader_event::as_loading(|| control.join_pending());
        drop(control);
        LAST_ROUND.store(false, Ordering::SeqCst);
    }
}

/// [`join_all`] in a thread that may be in a callback or at a fork: it does not wait for the
/// dynamic linker.
pub(super) fn join_without_waiting() {
    loader_event::as_loading(join_all);
}

impl Control {
    /// Applies the filters to libraries that came since the last time.
    fn join_pending(&mut self) {
        if !loader_event::take_pending() || self.filters.iter().all(Option::is_none) {
            return;
        }
        // No filter is new, so no error can be that of one.
        if let Ok(changed) = self.refresh(None) {
            // What cannot be patched now is looked at again the next time.
            let _ = self.patch(changed);
        }
    }
}
