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
use crate::sites::ModuleChange;
use crate::threads::FGRAPH;
use crate::threads::Inside;
use fgraph_core::thread::Thread;
use fgraph_core::{LibraryEvent, dispatch};

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
    if let Ok(inside) = Inside::enter() {
        join_and_tell(&inside, Vec::new());
    }
}

/// Applies the filters to libraries that came, and tells the users of them after `events`.
pub(super) fn join_and_tell(inside: &Inside, mut events: Vec<Event>) {
    join_all(|control| events.append(&mut control.events));
    if !events.is_empty() {
        inside.as_callback(|thread| events.iter().for_each(|event| event.tell(thread)));
    }
}

/// A library that has come or gone.
#[derive(Debug)]
pub(crate) struct Event {
    change: ModuleChange,
    /// The newest registration then.
    epoch: u64,
}

impl Event {
    /// Tells all users that were there then. `thread` must be the running thread's state, marked as
    /// in a callback.
    fn tell(&self, thread: &Thread) {
        let change = &self.change;
        for (slot, &functions) in change.functions.iter().enumerate() {
            let range = change.range.clone();
            let event = LibraryEvent::new(change.is_loaded, &change.path, range, functions);
            // SAFETY: as is asked for.
            unsafe { dispatch::tell_of_library(thread, slot, self.epoch, &event) };
        }
    }
}

/// Applies the filters to libraries that came, in a thread that is marked as inside. `then` is
/// called each time, with the lock.
fn join_all(mut then: impl FnMut(&mut Control)) {
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
            then(&mut control);
            continue;
        }
        LAST_ROUND.store(true, Ordering::SeqCst);
        loader_event::as_loading(|| control.join_pending());
        then(&mut control);
        drop(control);
        LAST_ROUND.store(false, Ordering::SeqCst);
    }
}

/// Applies the filters to libraries that came, in a thread that may be in a callback or at a fork:
/// it does not wait for the dynamic linker. The users are told by the next holder of the lock.
pub(super) fn join_without_waiting() {
    loader_event::as_loading(|| join_all(|_| ()));
}

impl Control {
    /// Notes which libraries have come and gone, for the users that there are now.
    pub(super) fn note_libraries(&mut self) {
        let epoch = FGRAPH.epoch.now();
        let changes = self.sites.take_changes().into_iter();
        let events = changes.map(|change| Event { change, epoch });
        self.events.extend(events);
    }

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
        self.note_libraries();
    }
}
