//! Applies filters to libraries that were loaded, and handles unloaded ones.
//!
//! A thread that loads a library applies the filters to it, unless the lock is held: the holder may
//! be waiting for the dynamic linker, whose locks the loading thread has. Then the holder applies
//! them at the end. If other threads load libraries all the time, it would never end. So in its
//! last round the holder does not call the linker, and threads that load libraries wait for it.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use super::{CONTROL, Control};
use crate::patching::batch::is_on;
use crate::process::loader_event;
use crate::report::error::Error;
use crate::sites::{self, ModuleChange};
use crate::threads::FGRAPH;
use crate::threads::Inside;
use fgraph_core::site::{Site, function_of};
use fgraph_core::thread::Thread;
use fgraph_core::{Function, LibraryEvent, MAX_USERS, dispatch};

/// The number of times that a holder of the lock applies the filters to libraries that others have
/// loaded.
const ROUNDS: usize = 8;

/// The longest time that a thread that loads a library waits for the last round of the lock's
/// holder.
const PATIENCE: Duration = Duration::from_millis(100);

/// True while the holder of the lock is in its last round.
static LAST_ROUND: AtomicBool = AtomicBool::new(false);

/// Applies the filters to libraries that were loaded, unless the lock is held: then its holder does
/// so at the end. Called by a thread that may be in the dynamic linker.
pub(super) fn on_change() {
    // Inside a callback it has to wait for the next change.
    if let Ok(inside) = Inside::enter() {
        join_and_dispatch(&inside, Vec::new());
    }
}

/// Applies the filters to libraries that were loaded, and dispatches these events after `events`.
pub(super) fn join_and_dispatch(inside: &Inside, mut events: Vec<Event>) {
    join_all(|control| events.append(&mut control.events));
    if !events.is_empty() {
        inside.as_callback(|thread| events.iter().for_each(|event| event.dispatch(thread)));
    }
}

/// An event for the callbacks of users.
#[derive(Debug)]
pub(crate) struct Event {
    news: News,
    /// The newest registration at that time.
    epoch: u64,
}

#[derive(Debug)]
enum News {
    /// A library has come or gone.
    Library(ModuleChange),
    /// The filter of the user in a slot has come to select functions.
    Selected(usize, Vec<Function>),
}

impl Event {
    /// True if it is for the user in `slot` only.
    fn is_of(&self, slot: usize) -> bool {
        matches!(self.news, News::Selected(of, _) if of == slot)
    }

    /// Dispatches the event to all users registered at that time. `thread` must be the running
    /// thread's state, marked as in a callback.
    fn dispatch(&self, thread: &Thread) {
        let change = match &self.news {
            News::Library(change) => change,
            News::Selected(slot, functions) => {
                // SAFETY: as is asked for.
                unsafe { dispatch::dispatch_selected(thread, *slot, self.epoch, functions) };
                return;
            }
        };
        for (slot, &functions) in change.functions.iter().enumerate() {
            let range = change.range.clone();
            let event = LibraryEvent::new(change.is_loaded, &change.path, range, functions);
            // SAFETY: the caller guarantees the thread's state and its marking.
            unsafe { dispatch::dispatch_library(thread, slot, self.epoch, &event) };
        }
    }
}

/// Applies the filters to libraries that were loaded, in a thread that is marked as inside. `then`
/// is called each time, with the lock.
fn join_all(mut then: impl FnMut(&mut Control)) {
    for round in 1..=ROUNDS {
        if !loader_event::is_pending() {
            return;
        }
        let held = CONTROL.try_acquire().or_else(|| {
            // SeqCst, like the pending count: a holder in its last round sees that, or this thread
            // sees that it is the last round.
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

/// Applies the filters to libraries that were loaded, in a thread that may be in a callback or at a
/// fork: it does not wait for the dynamic linker. The next holder of the lock dispatches the
/// events.
pub(super) fn join_without_waiting() {
    loader_event::as_loading(|| join_all(|_| ()));
}

impl Control {
    /// Notes which libraries were loaded and unloaded, for the current users.
    pub(super) fn note_libraries(&mut self) {
        let epoch = FGRAPH.epoch.now();
        let changes = self.sites.take_changes().into_iter();
        let news = changes.map(News::Library);
        let events = news.map(|news| Event { news, epoch });
        self.events.extend(events);
    }

    /// Notes what users have come to select, which is patched now: in libraries that were loaded,
    /// and by a changed filter, the sites of one user.
    pub(super) fn note_selected(&mut self, changed: Option<(usize, Vec<&'static Site>)>) {
        let joined = core::mem::take(&mut self.undispatched);
        let (changed, own) = changed.unzip();
        let mut own = own.unwrap_or_default();
        for slot in 0..MAX_USERS {
            let own = if changed == Some(slot) {
                core::mem::take(&mut own)
            } else {
                Vec::new()
            };
            // Relaxed: whoever changes it has the lock.
            let is_new = |site: &&Site| {
                site.interest.load(Ordering::Relaxed) & 1 << slot != 0
                    && is_on(site)
                    && !sites::is_padding_jump(site)
            };
            let mut new: Vec<_> = joined.iter().copied().chain(own).filter(is_new).collect();
            // A site is there once for each user that has come to select it.
            new.sort_unstable_by_key(|site| ptr::from_ref(*site));
            new.dedup_by_key(|site| ptr::from_ref(*site));
            if !new.is_empty() {
                let functions = new.into_iter().map(function_of).collect();
                self.events.push(Event {
                    news: News::Selected(slot, functions),
                    epoch: FGRAPH.epoch.now(),
                });
            }
        }
    }

    /// Forgets the functions that a former user of `slot` was to be called for.
    pub(super) fn forget_selected(&mut self, slot: usize) {
        self.events.retain(|event| !event.is_of(slot));
    }

    /// Notes that the user in `slot`, which has just been published, is to be called for the
    /// functions that its filter came to select before.
    pub(super) fn dispatch_selected_to_new(&mut self, slot: usize) {
        let epoch = FGRAPH.epoch.now();
        let events = self.events.iter_mut();
        events
            .filter(|event| event.is_of(slot))
            .for_each(|event| event.epoch = epoch);
    }

    /// Patches `sites`, which users have come to select in libraries that were loaded.
    pub(super) fn patch_joined(&mut self, sites: Vec<&'static Site>) -> Result<(), Error> {
        self.undispatched.extend(&sites);
        self.patch(sites)?;
        self.note_selected(None);
        Ok(())
    }

    /// Leaves it to the next change to patch `sites`, which users have come to select in libraries
    /// that were loaded.
    pub(super) fn patch_later(&mut self, sites: Vec<&'static Site>) {
        self.unfinished |= !sites.is_empty();
        self.undispatched.extend(sites);
    }

    /// Applies the filters to libraries that were loaded since the last time.
    fn join_pending(&mut self) {
        if !loader_event::take_pending() || self.filters.iter().all(Option::is_none) {
            return;
        }
        // No filter is new, so the error cannot come from one.
        if let Ok(changed) = self.refresh(None) {
            // A site that cannot be patched now is processed again the next time.
            let _ = self.patch_joined(changed);
        }
        self.note_libraries();
    }
}
