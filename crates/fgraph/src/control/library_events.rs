//! Applying filters to libraries that came, and leaving those alone that went.

use super::{CONTROL, Control};
use crate::process::loader_event;
use crate::threads::Inside;

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
    while loader_event::is_pending() {
        let Some(mut control) = CONTROL.try_acquire() else {
            return;
        };
        if loader_event::take_pending() {
            control.join();
        }
    }
}

impl Control {
    /// Applies the filters to libraries that are new.
    fn join(&mut self) {
        if self.filters.iter().all(Option::is_none) {
            return;
        }
        // No filter is new, so no error can be that of one.
        if let Ok(changed) = self.refresh(None) {
            // What cannot be patched now is looked at again the next time.
            let _ = self.patch(changed);
        }
    }
}
