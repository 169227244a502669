//! Users that come and go: slots, published registrations, and the wait for the last callback.
//!
//! # Safety
//!
//! The unsafe code frees registrations, each after the grace period of its slot.

use core::ops::Range;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use crate::arch::scalar::{self, NotScalar};
use crate::arch::trampoline;
use crate::arch::{clock, saved_call};
use fgraph_core::registration::{Catch, Header, Registration};
use fgraph_core::slot::FIRST_TAKEN;
use fgraph_core::{Counters, FgraphOps, MAX_USERS};
use fgraph_symbols::filter::Filter;

use super::options::Options;
use super::{CONTROL, Control, library_events, lock, stopped};
use crate::os::maps::{Protection, Protections};
use crate::os::{self, PAGE, membarrier, memory};
use crate::report::error::Error;
use crate::sites::Change;
use crate::threads::{self, FGRAPH, Inside, watched};

/// Number of further tries to put the sites of the last user back while a thread blocks
/// SIGTRAP.
const MORE_TRIES: usize = 3;

/// The memory of this process, with its code.
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

impl scalar::Memory for OwnMemory {
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
        let protection = Protection::at(address).unwrap_or_else(|_| {
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

/// What a callback has panicked with.
type Payload = Box<dyn Any + Send>;

/// Makes one pointer of what a callback has panicked with.
#[cold]
fn keep(payload: Payload) -> *mut () {
    Box::into_raw(Box::new(payload)).cast()
}

/// What the first panic of a callback said; `None` if none has panicked.
pub(crate) fn panic_message(user: &Header) -> Option<String> {
    // SAFETY: from `keep`; it is taken away by `forget_panic` only, which takes the user
    // exclusively.
    let payload = unsafe { user.panic().cast::<Payload>().as_ref() }?;
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    Some(text.unwrap_or_else(|| "a value that is no text".to_owned()))
}

/// Frees what a callback of `user` has panicked with.
///
/// # Safety
///
/// Nothing may be in [`panic_message`] of the user.
pub(crate) unsafe fn forget_panic(user: &Header) {
    let payload = user.take_panic().cast::<Payload>();
    if !payload.is_null() {
        // SAFETY: from `keep`, and nothing else has it.
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
    /// Freed with the right type.
    free: unsafe fn(*const Header),
    header: *const Header,
}

// SAFETY: the registration is `Send`, since every user is.
unsafe impl Send for Dropped {}

/// A user that was dropped, and whose last callback is over.
#[derive(Debug)]
pub(super) struct Over(Dropped);

impl Over {
    /// Frees the user. If that panics, it is not the caller's.
    pub(super) fn free(self) {
        let Dropped { free, header, .. } = self.0;
        // SAFETY: made from a box of that type, and out of use after the grace period.
        ignore_panic(|| unsafe { free(header) });
    }
}

/// Runs `work`, and drops what it panics with, which may panic for itself, with something that may
/// as well.
pub(super) fn ignore_panic(work: impl FnOnce()) {
    if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(work))
        && let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(panic)))
    {
        core::mem::forget(again);
    }
}

/// Waits until no callback of the user that was in slot `index` runs any more, and gives the slot
/// back. After an error the user must not be freed, nor its slot be used again.
fn wait_for_grace(index: usize) -> Result<(), Error> {
    membarrier::fence()?;
    let pause = |thread| {
        // Not by yielding, which gives way to no thread of a lower priority.
        os::nap();
        threads::is_alive(thread)
    };
    // SAFETY: `is_alive` looks at the owner only.
    unsafe { FGRAPH.wait_for_grace(index, pause) };
    // Marked, because a callback that runs with the lock held could want the lock.
    let inside = Inside::enter()?;
    CONTROL.acquire().free.give_back(index);
    library_events::join_and_tell(&inside, Vec::new());
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
        let slot = match self.free_slot(options.priority) {
            Ok(slot) => slot,
            Err(error) => return Err((ops, error)),
        };
        // What the former user of the slot has left.
        if !FGRAPH.watched.is_set(slot)
            && let Err(error) = watched::set(slot, None)
        {
            self.free.give_back(slot);
            return Err((ops, error));
        }
        self.breakpoints[slot] = options.breakpoints;
        self.require_match[slot] = options.require_match;
        self.lazy_sites[slot] = options.lazy_sites;
        self.planners[slot] = options.planners;
        // The slot is empty until all that can fail is done, so the user can be given back.
        self.forget_selected(slot);
        if let Err(error) = self.change_filter(slot, filter, Change::Set) {
            self.free.give_back(slot);
            return Err((ops, error));
        }
        self.priorities[slot] = options.priority;
        FGRAPH.epoch.set_enabled(slot, options.enabled);
        let before = counters(slot);
        // It hears of what comes from now on.
        self.note_libraries();
        // Before the number: what a thread reads of a slot holds for the user that it calls.
        let callbacks = match Registration::<T>::short::<StdCatch>(options.period) {
            None => Err(NotScalar::Sampled),
            Some(_) if options.count_redirected => Err(NotScalar::CountsRedirected),
            Some(callbacks) => Ok(callbacks),
        };
        let own = &mut OwnMemory::default();
        let vectors = callbacks.and_then(|[entry, ret]| {
            Ok([scalar::vectors(entry, own)?, scalar::vectors(ret, own)?])
        });
        self.not_scalar[slot] = vectors.err();
        FGRAPH.scalar.set(slot, vectors.is_ok());
        let epoch = FGRAPH.epoch.advance();
        let mut registration = Registration::new::<StdCatch>(ops, slot, epoch, options.period);
        if let Ok(vectors) = vectors {
            registration = registration.through(trampoline::shims(vectors));
        }
        if options.count_redirected {
            registration = registration.counting_redirected();
        }
        let registration = Box::new(registration);
        // A raw pointer before it is published: a box that is moved may not be pointed to.
        let registration: *const Registration<T> = Box::into_raw(registration);
        // SAFETY: made for this slot; it begins with its header, and is freed after the grace
        // period only.
        unsafe { FGRAPH.slots.publish(slot, registration.cast()) };
        self.tell_selected_to_new(slot);
        // A stop takes all slots away without the lock; this one may have come after that.
        if stopped().is_some() {
            FGRAPH.slots.retire(slot);
        }
        Ok(Registered {
            registration,
            slot,
            before,
        })
    }

    /// The dropped users whose callbacks are all over. Their slots are free again.
    pub(super) fn take_dropped(&mut self) -> Vec<Over> {
        // After an error all of them are left for the next time.
        if self.dropped.is_empty() || membarrier::fence().is_err() {
            return Vec::new();
        }
        let is_over = |user: &mut Dropped| {
            // SAFETY: `is_alive` looks at the owner only.
            unsafe { FGRAPH.is_grace_over(user.slot, threads::is_alive) }
        };
        let over: Vec<_> = self.dropped.extract_if(.., is_over).map(Over).collect();
        for Over(user) in &over {
            self.free.give_back(user.slot);
        }
        over
    }

    /// Users that are registered, and how many of them are scalar.
    pub(crate) fn users(&self) -> (usize, usize) {
        let slots = (0..MAX_USERS).filter(|&slot| self.filters[slot].is_some());
        slots.fold((0, 0), |(users, scalar), slot| {
            (users + 1, scalar + usize::from(FGRAPH.scalar.is_set(slot)))
        })
    }

    /// Why the user in a slot is not scalar; `None` if it is.
    pub(crate) fn not_scalar(&self, slot: usize) -> Option<NotScalar> {
        self.not_scalar[slot]
    }

    /// Returns true if a slot is free for a user of `priority`.
    pub(super) fn has_slot(&self, priority: i8) -> bool {
        self.free.has_one_in(&self.slots_for(priority))
    }

    /// The slots between those of the users with lower and with higher priorities.
    fn slots_for(&self, priority: i8) -> Range<usize> {
        let users = self.filters.iter().zip(&self.priorities).enumerate();
        let users =
            users.filter_map(|(slot, (filter, &known))| filter.as_ref().map(|_| (slot, known)));
        let mut range = 0..MAX_USERS;
        for (slot, known) in users {
            if known < priority {
                range.start = range.start.max(slot + 1);
            } else if known > priority {
                range.end = range.end.min(slot);
            }
        }
        range
    }

    /// Takes one of the slots for `priority`.
    fn free_slot(&mut self, priority: i8) -> Result<usize, Error> {
        let range = self.slots_for(priority);
        // Users of the usual priority stay in the middle while there is room, the others at the
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
        let slot = slot.or_else(|| self.free.take_from(range.clone()));
        slot.ok_or(if self.free.is_empty() {
            Error::NoFreeSlot
        } else {
            Error::PriorityClash { priority }
        })
    }

    /// Publishes a user again whose callback has panicked.
    ///
    /// # Safety
    ///
    /// `user` must be the registered user that has the slot.
    pub(crate) unsafe fn resume(&mut self, slot: usize, user: *const Header) -> Result<(), Error> {
        if let Some(stop) = stopped() {
            return Err(Error::Stopped(stop));
        }
        // SAFETY: as in `register`; the caller vouches that it is the slot's.
        unsafe { FGRAPH.slots.publish(slot, user) };
        // As in `register`.
        match stopped() {
            None => Ok(()),
            Some(stop) => {
                FGRAPH.slots.retire(slot);
                Err(Error::Stopped(stop))
            }
        }
    }

    /// Takes the user in `slot` away, and leaves it to the next thread that takes the lock to free
    /// it when its callbacks are over.
    fn drop_later<T: FgraphOps>(&mut self, slot: usize, registration: *const Registration<T>) {
        /// # Safety
        ///
        /// `header` must be that of a boxed `Registration<T>`, which is not used any more.
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

    /// Ends the callbacks of the user in `slot`, but for those that are running.
    pub(crate) fn take_away(&mut self, slot: usize) {
        let filter = self.filters[slot].take();
        let changed = self.sites.clear(slot);
        // A site that cannot be put back now costs a look at its empty mask until the next time,
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
        // What a predicate owns may panic.
        ignore_panic(|| drop(filter));
    }
}

/// A user that has just been registered.
#[derive(Debug)]
pub(crate) struct Registered<T> {
    /// The user, from a box.
    pub(crate) registration: *const Registration<T>,
    pub(crate) slot: usize,
    /// The slot's counters when the user took it.
    pub(crate) before: Counters,
}

/// What was not traced since the start for all users that were in `slot`.
pub(crate) fn counters(slot: usize) -> Counters {
    threads::count_lost();
    let mut counters = FGRAPH.user_counters(slot);
    // SAFETY: only the counters are used.
    counters += unsafe { trampoline::attaching() }.users[slot].read();
    counters
}

/// Unregisters the user in `slot` and waits until no callback of it runs.
pub(crate) fn unregister(slot: usize) -> Result<(), Error> {
    lock()?.control.take_away(slot);
    wait_for_grace(slot)
}

/// Has `user` redirect no more calls, and waits until those that it has redirected have returned,
/// for at most `patience`. After an error it may redirect calls again.
pub(crate) fn end_redirected(user: &Header, patience: Duration) -> Result<(), Error> {
    // Fails in a callback, whose own call may be one of those that are waited for.
    drop(lock()?);
    let redirects = user.redirects();
    redirects.close(true);
    let started = Instant::now();
    loop {
        let (going_on, unknown) = redirects.going_on();
        if (going_on, unknown) == (0, 0) {
            return Ok(());
        }
        if unknown != 0 || started.elapsed() >= patience {
            redirects.close(false);
            return Err(Error::RedirectedCalls { going_on, unknown });
        }
        os::nap();
    }
}

/// Unregisters a user from inside a callback. It is freed later, by the next thread that takes the
/// lock.
///
/// In a signal handler that has interrupted fgraph's own code, which may hold the lock, the user
/// only loses its slot's contents: it is never freed, and its slot is not used again.
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

    use super::scalar::Memory as _;
    use super::*;

    #[test]
    fn memory_is_read_across_pages_up_to_where_none_is() {
        let base = memory::map(3 * PAGE).unwrap();
        // SAFETY: mapped above, and the last page is not used again.
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
