//! Users: registration, filters and the grace period.

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use fgraph_core::registration::{Catch, Header, Registration};
use fgraph_core::slot::FreeIndices;
use fgraph_core::{Counters, FgraphOps, stop};

use crate::barrier;
use crate::cpu::Lock;
use crate::tasks;

use super::contexts;
use super::filter;
use super::functions;
use super::state::FGRAPH;
use super::text;

/// The slots that are free.
static FREE: Lock<FreeIndices> = Lock::new(FreeIndices::new());

/// The reason that a user is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// All slots are in use.
    NoFreeSlot,
    /// fgraph has stopped, for this reason.
    Stopped(u32),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFreeSlot => write!(f, "16 users are registered; unregister one"),
            Self::Stopped(reason) => write!(f, "fgraph has stopped, for reason {reason}"),
        }
    }
}

/// The task that changes users or text: others wait, and let tasks run meanwhile.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to change users and text, until it is dropped.
struct Turn;

impl Turn {
    fn take() -> Self {
        // Acquire pairs with the Release of `drop`: text is as the last owner left it.
        while TAKEN.swap(true, Ordering::Acquire) {
            tasks::give_way();
        }
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Release pairs with the Acquire of `take`.
        TAKEN.store(false, Ordering::Release);
    }
}

/// There is no unwinding in this kernel: a panic in a callback ends the kernel like any other.
struct NoCatch;

impl Catch for NoCatch {
    #[inline(always)]
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> {
        Ok(call())
    }
}

/// A registered user.
#[derive(Debug)]
pub(crate) struct User<T> {
    registration: *const Registration<T>,
    slot: usize,
    before: Counters,
}

// SAFETY: a user is `Send` and `Sync`, and so its registration.
unsafe impl<T: FgraphOps> Send for User<T> {}

/// Registers a user for the functions that a filter selects. `is_fast` lets calls that only such
/// users want take the fast path.
///
/// All code for this target leaves vector registers alone, so every user may take it.
///
/// # Errors
///
/// Fails if there is no free slot, or fgraph has stopped.
pub(crate) fn register<T: FgraphOps>(
    ops: T,
    filter: &str,
    is_fast: bool,
) -> Result<User<T>, (T, Error)> {
    let _turn = Turn::take();
    if stop::reason() != 0 {
        return Err((ops, Error::Stopped(stop::reason())));
    }
    let Some(slot) = FREE.lock().take() else {
        return Err((ops, Error::NoFreeSlot));
    };
    set_filter(slot, Some(filter));
    let before = FGRAPH.user_counters(slot);
    // Before the epoch: what a call reads of a slot is then right for the user that it calls.
    FGRAPH.eligible.set(slot, is_fast);
    let epoch = FGRAPH.epoch.advance();
    let registration = Registration::new::<NoCatch>(ops, slot, epoch, 1);
    let registration: *const Registration<T> = Box::into_raw(Box::new(registration));
    // SAFETY: made for this slot, and freed after the grace period.
    unsafe { FGRAPH.slots.publish(slot, registration.cast::<Header>()) };
    // A stop clears all slots; this one may have been published after that.
    if stop::reason() != 0 {
        FGRAPH.slots.retire(slot);
    }
    Ok(User {
        registration,
        slot,
        before,
    })
}

/// Sets or clears a user's bit at all sites, and writes the text that changes by it.
fn set_filter(slot: usize, filter: Option<&str>) {
    let bit = 1 << slot;
    let sites = functions::sites();
    for site in sites {
        let is_selected = filter.is_some_and(|filter| filter::selects(filter, site.name.as_str()));
        // Relaxed: a call that begins at this moment may or may not find the change.
        match is_selected {
            true => site.interest.fetch_or(bit, Ordering::Relaxed),
            false => site.interest.fetch_and(!bit, Ordering::Relaxed),
        };
    }
    text::apply(sites);
}

impl<T: FgraphOps> User<T> {
    /// Returns the user's value.
    pub(crate) fn ops(&self) -> &T {
        // SAFETY: freed by `unregister` only, which takes the user.
        unsafe { (*self.registration).ops() }
    }

    /// Replaces the filter.
    pub(crate) fn filter(&self, filter: &str) {
        let _turn = Turn::take();
        set_filter(self.slot, Some(filter));
    }

    /// Returns the counts of calls that the user has missed.
    pub(crate) fn counters(&self) -> Counters {
        FGRAPH.user_counters(self.slot) - self.before
    }

    /// Unregisters the user, and returns its value: none of its callbacks runs any more.
    pub(crate) fn unregister(self) -> T {
        let _turn = Turn::take();
        set_filter(self.slot, None);
        FGRAPH.slots.retire(self.slot);
        // Pairs with the light barrier of `Slots::acquire`: a call sees the stub, or the wait below
        // sees the call.
        barrier::run();
        let pause = |state: &'static fgraph_core::thread::Thread| {
            tasks::give_way();
            contexts::has(state.id()) || tasks::is_alive(state.id())
        };
        // SAFETY: `pause` reads the owner only, which is atomic.
        unsafe { FGRAPH.wait_for_grace(self.slot, pause) };
        FREE.lock().give_back(self.slot);
        // SAFETY: it came from a box, and nothing else has it after the grace period.
        unsafe { Box::from_raw(self.registration.cast_mut()) }.into_ops()
    }
}

/// Calls `visit` with the name of each function that a filter selects.
pub(crate) fn selected(filter: &str, mut visit: impl FnMut(&'static str)) {
    for site in functions::sites() {
        let name = site.name.as_str();
        if filter::selects(filter, name) {
            visit(name);
        }
    }
}

/// Returns the number of functions whose text is not as the compiler made it.
pub(crate) fn patched() -> usize {
    let _turn = Turn::take();
    let sites = functions::sites().iter();
    sites
        .filter(|site| functions::bytes_at(site.entry) != text::original(site))
        .count()
}
