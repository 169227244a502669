//! Registers and unregisters users: slots, published registrations, and the wait for the last
//! callback.
//!
//! # Safety
//!
//! The unsafe code frees registrations, each after the grace period of its slot.

use core::any::type_name;
use core::ops::Range;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crate::arch::fast_path;
use crate::arch::trampoline;
use crate::arch::{clock, saved_call};
use fgraph_core::order::Ranks;
use fgraph_core::registration::{Catch, Header, Registration};
use fgraph_core::slot::FIRST_TAKEN;
use fgraph_core::{Counters, FgraphOps, MAX_USERS};
use fgraph_symbols::filter::Filter;

use super::options::Options;
use super::{CONTROL, Control, library_events, lock, stopped};
use crate::os::maps::{self, Protections};
use crate::os::{self, PAGE, membarrier, memory};
use crate::report::analysis::IneligibleReason;
use crate::report::error::{Error, SlotUser};
use crate::sites::Change;
use crate::threads::{self, FGRAPH, Inside, watched};

/// Number of further tries to put the sites of the last user back while a thread blocks
/// SIGTRAP.
const MORE_TRIES: usize = 3;

/// Access to the memory of this process, for the analysis of code.
#[derive(Default)]
struct OwnMemory {
    /// The pages that were read, each once; `None` if it cannot be read.
    pages: BTreeMap<usize, Option<Box<[u8; PAGE]>>>,
    protections: Option<Protections>,
}

impl OwnMemory {
    fn page(&mut self, start: usize) -> Option<&[u8; PAGE]> {
        let read = || {
            let mut page = Box::new([0; PAGE]);
            memory::read(start, &mut *page).is_ok().then_some(page)
        };
        self.pages.entry(start).or_insert_with(read).as_deref()
    }
}

impl fast_path::Memory for OwnMemory {
    fn read(&mut self, mut address: usize, mut bytes: &mut [u8]) -> bool {
        while !bytes.is_empty() {
            let within = address % PAGE;
            let (part, rest) = bytes.split_at_mut(bytes.len().min(PAGE - within));
            let Some(page) = self.page(address - within) else {
                return false;
            };
            part.copy_from_slice(&page[within..][..part.len()]);
            address = address.wrapping_add(part.len());
            bytes = rest;
        }
        true
    }

    fn is_constant(&mut self, address: usize) -> bool {
        let protection = maps::protection_at(address).unwrap_or_else(|_| {
            let now = || Protections::now(core::iter::empty());
            self.protections.get_or_insert_with(now).of(address)
        });
        protection.is_some_and(|protection| !protection.writable)
    }

    fn errno_offset(&self) -> i64 {
        os::errno_offset()
    }

    fn is_known(&self, address: usize) -> bool {
        clock::begins(address) || saved_call::begins(address)
    }
}

/// The owner of a slot, as errors name it.
#[derive(Debug)]
pub(super) struct Owner {
    /// The name of the user's type.
    name: &'static str,
    since: Instant,
}

/// The payload of a callback's panic.
type Payload = Box<dyn Any + Send>;

/// Converts the payload of a panic to one pointer.
#[cold]
fn keep(payload: Payload) -> *mut () {
    Box::into_raw(Box::new(payload)).cast()
}

/// Returns the message of the first panic of a callback; `None` if none has panicked.
pub(crate) fn panic_message(user: &Header) -> Option<String> {
    // SAFETY: the pointer came from `keep`; only `forget_panic` removes it, which has exclusive
    // access to the user.
    let payload = unsafe { user.panic().cast::<Payload>().as_ref() }?;
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    Some(text.unwrap_or_else(|| "a value that is no text".to_owned()))
}

/// Frees the payload of a panic of a callback of `user`.
///
/// # Safety
///
/// No thread may be in [`panic_message`] for the user.
pub(crate) unsafe fn forget_panic(user: &Header) {
    let payload = user.take_panic().cast::<Payload>();
    if !payload.is_null() {
        // SAFETY: the pointer came from `keep`, and nothing else has it.
        let payload = unsafe { Box::from_raw(payload) };
        ignore_panic(|| drop(payload));
    }
}

/// Catches panics of callbacks.
#[derive(Debug)]
struct StdCatch;

impl Catch for StdCatch {
    #[inline(always)]
    fn catch<R>(call: impl FnOnce() -> R) -> Result<R, *mut ()> {
        // Unwind safe, because after a panic the user gets no calls any more.
        panic::catch_unwind(AssertUnwindSafe(call)).map_err(keep)
    }
}

/// A user that is in no slot any more, but whose callbacks may still be running: its handle was
/// dropped inside a callback, or its sites could not be patched.
#[derive(Debug)]
pub(super) struct Dropped {
    slot: usize,
    /// Frees the registration with the right type.
    free: unsafe fn(*const Header),
    header: *const Header,
}

// SAFETY: every user is `Send`, and so is its registration.
unsafe impl Send for Dropped {}

/// A user that was dropped, and whose last callback has returned.
#[derive(Debug)]
pub(super) struct Over(Dropped);

impl Over {
    /// Frees the user, and ignores a panic.
    pub(super) fn free(self) {
        let Dropped { free, header, .. } = self.0;
        // SAFETY: the pointer came from a box of that type, and is unused after the grace period.
        ignore_panic(|| unsafe { free(header) });
    }
}

/// Runs `work`, and drops the payload of its panic. That drop may panic, with a payload whose drop
/// may panic, too.
pub(super) fn ignore_panic(work: impl FnOnce()) {
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(work))
        && let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(panic)))
    {
        core::mem::forget(again);
    }
}

/// Waits until no callback of the user that was in slot `index` runs, and frees the slot. After an
/// error the user must not be freed, nor its slot be used again.
fn wait_for_grace(index: usize) -> Result<(), Error> {
    membarrier::fence()?;
    let pause = |thread| {
        // Not by yielding, which does not let threads of lower priority run.
        os::nap();
        threads::is_alive(thread)
    };
    // SAFETY: `is_alive` reads only the owner.
    unsafe { FGRAPH.wait_for_grace(index, pause) };
    // Marked, because a callback that ran with the lock held could need the lock.
    let inside = Inside::enter()?;
    CONTROL.acquire().free.give_back(index);
    library_events::join_and_dispatch(&inside, Vec::new());
    Ok(())
}

impl Control {
    /// Registers a user. After an error it is given back.
    pub(crate) fn register<T: FgraphOps>(
        &mut self,
        ops: T,
        filter: Filter,
        options: &Options,
    ) -> Result<Registered<T>, (T, Error)> {
        if let Some(stop) = stopped() {
            return Err((ops, Error::Stopped(stop)));
        }
        let Some((slot, is_out_of_order)) = self.free_slot(options.priority) else {
            let users = self.slot_users();
            return Err((ops, Error::NoFreeSlot { users }));
        };
        // The state that the former user of the slot has left.
        if !FGRAPH.watched.is_set(slot)
            && let Err(error) = watched::set(slot, None)
        {
            self.free.give_back(slot);
            return Err((ops, error));
        }
        self.options[slot] = options.clone();
        self.forget_selected(slot);
        // The slot is empty until all steps that can fail are done, so the user can be given back.
        if let Err(error) = self.change_filter(slot, filter, Change::Set) {
            self.free.give_back(slot);
            return Err((ops, error));
        }
        FGRAPH.epoch.set_enabled(slot, options.enabled);
        let before = counters(slot);
        // It gets the events of libraries from now on.
        self.note_libraries();
        // Before the epoch: the data that a thread reads of a slot is valid for the user that it
        // calls.
        let callbacks = match Registration::<T>::fast_path::<StdCatch>(options.period) {
            None => Err(IneligibleReason::Sampled),
            Some(_) if options.count_redirected => Err(IneligibleReason::CountsRedirected),
            Some(callbacks) => Ok(callbacks),
        };
        let own = &mut OwnMemory::default();
        let mut vectors =
            |callback| fast_path::vectors(callback, own).map_err(IneligibleReason::new);
        let vectors = callbacks.and_then(|[entry, ret]| Ok([vectors(entry)?, vectors(ret)?]));
        self.ineligible[slot] = vectors.err();
        FGRAPH.eligible.set(slot, vectors.is_ok());
        FGRAPH.order.set(slot, is_out_of_order, self.ranks());
        let epoch = FGRAPH.epoch.advance();
        let mut registration = Registration::new::<StdCatch>(ops, slot, epoch, options.period);
        if let Ok(vectors) = vectors {
            registration = registration.through(trampoline::shims(vectors));
        }
        if options.count_redirected {
            registration = registration.counting_redirected();
        }
        let registration = Box::new(registration);
        // Converted to a raw pointer before it is published: pointers to a box that is moved are
        // invalid.
        let registration: *const Registration<T> = Box::into_raw(registration);
        self.owners[slot] = Some(Owner {
            name: type_name::<T>(),
            since: Instant::now(),
        });
        // SAFETY: the registration was made for this slot, begins with its header, and is freed
        // only after the grace period.
        unsafe { FGRAPH.slots.publish(slot, registration.cast()) };
        self.dispatch_selected_to_new(slot);
        // A stop clears all slots without the lock; this one may have been published after that.
        if stopped().is_some() {
            FGRAPH.slots.retire(slot);
        }
        Ok(Registered {
            registration,
            slot,
            before,
        })
    }

    /// Takes the dropped users whose callbacks have all returned. Their slots are free again.
    pub(super) fn take_dropped(&mut self) -> Vec<Over> {
        // After an error all of them are left for the next time.
        if self.dropped.is_empty() || membarrier::fence().is_err() {
            return Vec::new();
        }
        let is_over = |user: &mut Dropped| {
            // SAFETY: `is_alive` reads only the owner.
            unsafe { FGRAPH.is_grace_over(user.slot, threads::is_alive) }
        };
        let over: Vec<_> = self.dropped.extract_if(.., is_over).map(Over).collect();
        for Over(user) in &over {
            self.free.give_back(user.slot);
        }
        over
    }

    /// Returns the number of registered users, and the number of those on the fast path.
    pub(crate) fn users(&self) -> (usize, usize) {
        let slots = (0..MAX_USERS).filter(|&slot| self.filters[slot].is_some());
        slots.fold((0, 0), |(users, eligible), slot| {
            (
                users + 1,
                eligible + usize::from(FGRAPH.eligible.is_set(slot)),
            )
        })
    }

    /// Returns the reason that the user in a slot is not on the fast path; `None` if it is.
    pub(crate) fn ineligible(&self, slot: usize) -> Option<IneligibleReason> {
        self.ineligible[slot]
    }

    /// Returns true if a slot is free.
    pub(super) fn has_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns the users, in the order in which they are asked.
    fn slot_users(&self) -> Vec<SlotUser> {
        let mut users: Vec<_> = (0..MAX_USERS)
            .filter(|&slot| self.filters[slot].is_some())
            .filter_map(|slot| {
                let Owner { name, since } = self.owners[slot].as_ref()?;
                Some(SlotUser {
                    priority: self.options[slot].priority,
                    name,
                    registered_for: since.elapsed(),
                })
            })
            .collect();
        users.sort_by_key(|user| user.priority);
        users
    }

    /// Returns the slots in the order in which their users are to be asked; free ones come last.
    fn ranks(&self) -> Ranks {
        let mut slots: [u8; MAX_USERS] = core::array::from_fn(|slot| slot as u8);
        slots.sort_by_key(|&slot| {
            let slot = usize::from(slot);
            (self.filters[slot].is_none(), self.options[slot].priority)
        });
        Ranks::new(slots)
    }

    /// Returns the slots between those of the users with lower and with higher priorities. Users
    /// that are out of order do not count.
    fn slots_for(&self, priority: i8) -> Range<usize> {
        let is_in_order =
            |&slot: &usize| self.filters[slot].is_some() && !FGRAPH.order.is_out_of_order(slot);
        let mut range = 0..MAX_USERS;
        for slot in (0..MAX_USERS).filter(is_in_order) {
            let known = self.options[slot].priority;
            if known < priority {
                range.start = range.start.max(slot + 1);
            } else if known > priority {
                range.end = range.end.min(slot);
            }
        }
        range
    }

    /// Takes one of the slots for `priority`, or any where none of those is free: then the user is
    /// out of order. `None` if all slots are taken.
    fn free_slot(&mut self, priority: i8) -> Option<(usize, bool)> {
        let range = self.slots_for(priority);
        // Users of the default priority stay in the middle while there is room, others towards the
        // ends, in proportion: that leaves slots between them.
        const LAST: usize = MAX_USERS - 1;
        let slot = if priority == 0 {
            let middle = FIRST_TAKEN..MAX_USERS - FIRST_TAKEN;
            let (start, end) = (range.start.max(middle.start), range.end.min(middle.end));
            self.free.take_from(start..end)
        } else {
            let outward = usize::from(priority.unsigned_abs()) * (FIRST_TAKEN - 1) / 127;
            let target = match priority {
                ..0 => (FIRST_TAKEN - 1).saturating_sub(outward),
                _ => (MAX_USERS - FIRST_TAKEN + outward).min(LAST),
            };
            let mut slots: Vec<_> = range.clone().collect();
            slots.sort_by_key(|slot| slot.abs_diff(target));
            let mut slots = slots.into_iter();
            slots.find_map(|slot| self.free.take_from(slot..slot + 1))
        };
        let slot = slot.or_else(|| self.free.take_from(range));
        let in_order = slot.map(|slot| (slot, false));
        in_order.or_else(|| self.free.take().map(|slot| (slot, true)))
    }

    /// Publishes a user again whose callback has panicked.
    ///
    /// # Safety
    ///
    /// `user` must be the registered user in the slot.
    pub(crate) unsafe fn resume(&mut self, slot: usize, user: *const Header) -> Result<(), Error> {
        if let Some(stop) = stopped() {
            return Err(Error::Stopped(stop));
        }
        // SAFETY: the caller guarantees that it is the slot's user, which is freed only after the
        // grace period.
        unsafe { FGRAPH.slots.publish(slot, user) };
        // A stop clears all slots without the lock.
        match stopped() {
            None => Ok(()),
            Some(stop) => {
                FGRAPH.slots.retire(slot);
                Err(Error::Stopped(stop))
            }
        }
    }

    /// Removes the user in `slot`. The next thread that takes the lock after its callbacks have
    /// returned frees it.
    fn drop_later<T: FgraphOps>(&mut self, slot: usize, registration: *const Registration<T>) {
        /// # Safety
        ///
        /// `header` must belong to a boxed `Registration<T>` that is not used any more.
        unsafe fn free<T>(header: *const Header) {
            // SAFETY: the header is the registration's first field.
            drop(unsafe { Box::from_raw(header.cast_mut().cast::<Registration<T>>()) });
        }
        self.take_away(slot);
        self.dropped.push(Dropped {
            slot,
            free: free::<T>,
            header: registration.cast(),
        });
    }

    /// Prevents further callbacks of the user in `slot`; those that are running continue.
    pub(crate) fn take_away(&mut self, slot: usize) {
        let filter = self.filters[slot].take();
        let changed = self.sites.clear(slot);
        // A site that cannot be restored now costs a check of its empty mask until the next time,
        // which may never come after the last user.
        let mut patched = self.patch(changed);
        for _ in 0..MORE_TRIES {
            let is_last = self.filters.iter().all(Option::is_none);
            if !is_last || !matches!(patched, Err(Error::SignalBlocked { .. })) {
                break;
            }
            patched = self.patch(Vec::new());
        }
        FGRAPH.slots.retire(slot);
        self.restore_text();
        // Dropping data of a predicate may panic.
        ignore_panic(|| drop(filter));
    }
}

/// A user that was just registered.
#[derive(Debug)]
pub(crate) struct Registered<T> {
    /// The user; the pointer came from a box.
    pub(crate) registration: *const Registration<T>,
    pub(crate) slot: usize,
    /// The slot's counters when the user took it.
    pub(crate) before: Counters,
}

/// Returns the counts of untraced calls since the start for all users that were in `slot`.
pub(crate) fn counters(slot: usize) -> Counters {
    threads::count_lost();
    let mut counters = FGRAPH.user_counters(slot);
    // SAFETY: this uses only the counters.
    counters += unsafe { trampoline::attaching() }.users[slot].read();
    counters
}

/// A user that cannot be freed.
#[derive(Debug)]
pub(crate) enum NotOver {
    /// It gets its calls.
    Registered(Error),
    /// It gets no calls any more, but one of its callbacks may still run.
    Ended(Error),
}

/// Unregisters the user in `slot` and waits until none of its callbacks runs. After an error this
/// may be called again.
pub(crate) fn unregister(slot: usize) -> Result<(), NotOver> {
    lock().map_err(NotOver::Registered)?.control.take_away(slot);
    wait_for_grace(slot).map_err(NotOver::Ended)
}

/// Stops `user` from redirecting calls, and waits until its redirected calls have returned, for at
/// most `timeout`. After an error it may redirect calls again.
pub(crate) fn end_redirected(user: &Header, timeout: Duration) -> Result<(), Error> {
    // Fails in a callback, whose own call may be one of those that are waited for.
    drop(lock()?);
    let redirects = user.redirects();
    redirects.close(true);
    let started = Instant::now();
    loop {
        let (in_flight, unknown) = redirects.in_flight();
        if (in_flight, unknown) == (0, 0) {
            return Ok(());
        }
        if unknown != 0 || started.elapsed() >= timeout {
            redirects.close(false);
            return Err(Error::RedirectedCalls { in_flight, unknown });
        }
        os::nap();
    }
}

/// Unregisters a user from inside a callback. The next thread that takes the lock frees it.
///
/// In a signal handler that has interrupted fgraph's own code, which may hold the lock, only the
/// slot is cleared: the user is never freed, and its slot is not used again.
pub(crate) fn unregister_later<T: FgraphOps>(slot: usize, registration: *const Registration<T>) {
    if threads::in_own_code() {
        FGRAPH.slots.retire_if(slot, registration.cast());
        return;
    }
    threads::as_own_code(|| {
        CONTROL.acquire().drop_later(slot, registration);
        library_events::join_without_waiting();
    });
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::fast_path::Memory as _;
    use super::*;

    #[test]
    fn memory_is_read_across_pages_up_to_where_none_is() {
        let base = memory::map(3 * PAGE).unwrap();
        // SAFETY: the memory was mapped above, and the last page is not used again.
        unsafe {
            ptr::write_bytes(base, 1, PAGE);
            ptr::write_bytes(base.add(PAGE), 2, PAGE);
            libc::munmap(base.add(2 * PAGE).cast(), PAGE);
        }
        let (mut own, mut bytes) = (OwnMemory::default(), [0; 4]);
        assert!(own.read(base.addr() + PAGE - 1, &mut bytes));
        assert_eq!(bytes, [1, 2, 2, 2]);
        assert!(own.read(base.addr() + 2 * PAGE - 4, &mut bytes));
        assert!(!own.read(base.addr() + 2 * PAGE - 3, &mut bytes));
        assert!(!own.read(usize::MAX - 1, &mut bytes));
    }
}
