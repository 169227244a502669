//! Registers users, changes filters, and unregisters users.
//!
//! Everything that changes the traced functions goes through one lock. A thread that holds it is
//! marked as inside fgraph, so no callback runs in it, and it never waits for a callback of another
//! thread: the wait for the grace period comes after the lock is released. So a callback may block
//! for any time, and only the unregistering of its own user waits for it.
//!
//! ```text
//!   register      take a slot -> epoch -> publish -> set bits on sites -> patch
//!   set_filter    set and clear bits -> patch and unpatch
//!   unregister    clear bits -> unpatch -> stub -> (unlock) grace period (lock) -> give slot back
//! ```

pub(crate) mod filters;
mod fork;
pub(crate) mod generated;
pub(crate) mod library_events;
mod lock;
pub(crate) mod options;
pub(crate) mod users;

use core::mem::ManuallyDrop;
use core::time::Duration;

use crate::arch::text_write::Skip;
use crate::arch::trampoline;
use fgraph_core::per_thread;
use fgraph_core::site::Site;
use fgraph_core::slot::FreeIndices;
use fgraph_core::stack_provider::StackProvider;
use fgraph_core::{MAX_USERS, stop};
use fgraph_symbols::filter::{Filter, LiveFilter, Matcher};

use crate::os::{self, membarrier, memory};
use crate::patching::batch::{FailedSite, is_on, is_ours};
use crate::process::call_gate;
use crate::process::gate::GATE;
use crate::process::loader_event;
use crate::report::analysis::IneligibleReason;
use crate::report::error::{Error, StopReason};
use crate::report::functions::SiteList;
use crate::sites::{self, Sites};
use crate::threads::spare_stacks;
use crate::threads::{self, FGRAPH, Inside};
use crate::threads::{abort, copies, shadow_memory};
use crate::unwinding::{arenas, libgcc, rows};
use lock::{Guard, Lock};
use options::Options;
use users::{Dropped, Owner};

/// The state that the lock protects.
#[derive(Debug)]
pub(crate) struct Control {
    started: bool,
    free: FreeIndices,
    filters: [Option<LiveFilter>; MAX_USERS],
    /// For each user, the number of sites that were patched at the last change of its filter.
    patched: [usize; MAX_USERS],
    /// The options of users, by slot.
    options: [Options; MAX_USERS],
    /// The owners of the slots: those of free slots are former ones.
    owners: [Option<Owner>; MAX_USERS],
    /// The reasons that users are not on the fast path, by slot.
    ineligible: [Option<IneligibleReason>; MAX_USERS],
    sites: Sites,
    /// True after patching has failed: any site may differ from its interest mask.
    unfinished: bool,
    /// Sites that a user wants and that could not be changed the last time.
    failed: Vec<FailedSite>,
    /// Users to be freed by the next thread that takes the lock after their last callback.
    dropped: Vec<Dropped>,
    /// Sites that users have come to select as libraries were loaded, and were not called for.
    undispatched: Vec<&'static Site>,
    /// Library events that were not dispatched to the users yet.
    events: Vec<library_events::Event>,
    leave_out: Skip,
}

/// The functions for machine stacks that fgraph-core uses.
static STACKS: StackProvider = StackProvider {
    caller: rows::caller,
    ..spare_stacks::STACKS
};

// SAFETY: this is the only lock with this gate; a fork freezes the gate but does not take it.
static CONTROL: Lock<Control> = unsafe {
    Lock::new(
        &GATE,
        Control {
            started: false,
            free: FreeIndices::new(),
            filters: [const { None }; MAX_USERS],
            patched: [0; MAX_USERS],
            options: [const { Options::new() }; MAX_USERS],
            owners: [const { None }; MAX_USERS],
            ineligible: [None; MAX_USERS],
            sites: Sites::new(),
            unfinished: false,
            failed: Vec::new(),
            dropped: Vec::new(),
            undispatched: Vec::new(),
            events: Vec::new(),
            leave_out: Skip::empty(),
        },
    )
};

/// Takes the lock, in a thread that is not in a callback.
pub(crate) fn lock() -> Result<Locked, Error> {
    copies::check()?;
    fork::handle();
    threads::own_process();
    let inside = Inside::enter()?;
    let mut locked = Locked {
        control: ManuallyDrop::new(CONTROL.acquire()),
        inside,
    };
    locked.control.start()?;
    let over = locked.control.take_dropped();
    if over.is_empty() {
        return Ok(locked);
    }
    drop(locked);
    over.into_iter().for_each(users::Over::free);
    lock()
}

/// Takes the lock like [`lock()`] to register a user. If no slot is free, it waits for the running
/// callbacks of users that were dropped.
pub(crate) fn lock_to_register() -> Result<Locked, Error> {
    const PAUSE: Duration = Duration::from_millis(1);
    loop {
        let locked = lock()?;
        if locked.control.dropped.is_empty() || locked.control.has_slot() {
            return Ok(locked);
        }
        drop(locked);
        os::pause(PAUSE);
    }
}

/// The held lock.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) control: ManuallyDrop<Guard<'static, Control>>,
    // Dropped last: nothing is traced until the lock is released.
    inside: Inside,
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.control.note_libraries();
        let events = core::mem::take(&mut self.control.events);
        // SAFETY: `control` is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.control) };
        library_events::join_and_dispatch(&self.inside, events);
    }
}

impl Control {
    /// Does the process's initialization, once.
    fn start(&mut self) -> Result<(), Error> {
        if self.started {
            return Ok(());
        }
        membarrier::fence()?;
        membarrier::sync_core()?;
        // SAFETY: `attach` returns the calling thread's own state.
        let trampolines = unsafe { trampoline::install(threads::attach, abort::on_stray_return) };
        threads::set_vector_bytes(trampolines.vector_bytes);
        // SAFETY: these functions do what `StackProvider` says.
        unsafe { FGRAPH.set_stacks(&STACKS) };
        // SAFETY: these functions do what `Memory` says.
        unsafe { per_thread::set_memory(&memory::MAPPINGS) };
        self.sites.start(trampolines);
        libgcc::find();
        shadow_memory::prepare();
        arenas::announce();
        loader_event::find_event(library_events::on_change);
        call_gate::find();
        self.started = true;
        Ok(())
    }

    /// Leaves out steps of the patching protocol.
    #[cfg(fgraph_testing)]
    pub(crate) fn leave_out(&mut self, steps: Skip) {
        self.leave_out = steps;
        self.sites.ignore_inner(steps.contains(Skip::INNER));
    }

    /// Returns the number of instructions that the jump at `address` displaces; `None` without a
    /// site there.
    #[cfg(fgraph_testing)]
    pub(crate) fn displaced(&self, address: usize) -> Option<u32> {
        let site = self.sites.iter().find(|site| site.address() == address)?;
        Some(sites::original(site).starts.count_ones())
    }

    /// Takes everything back: every site is a NOP again, and stays so.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        stop::stop(StopReason::Requested.code());
        for slot in 0..MAX_USERS {
            self.sites.clear(slot);
        }
        let filters = core::mem::replace(&mut self.filters, [const { None }; MAX_USERS]);
        let all: Vec<&Site> = self.sites.iter().collect();
        let patched = self.patch(all);
        for filter in filters {
            // Dropping data of a predicate may panic.
            users::ignore_panic(|| drop(filter));
        }
        patched.map(drop)
    }

    /// Lists every function that `filter` selects, for a user that may have breakpoints or not.
    pub(crate) fn inventory(
        &mut self,
        filter: &Filter,
        breakpoints: bool,
    ) -> Result<SiteList, Error> {
        let matcher = Matcher::new(filter);
        let joined = self.refresh(None)?;
        self.patch_later(joined);
        self.sites.check_addresses(filter)?;
        Ok(self.sites.inventory(&matcher, breakpoints)?)
    }

    /// Reads the functions of all modules, or of the one with code at `address`.
    pub(crate) fn load_symbols(&mut self, address: Option<usize>) -> Result<(), Error> {
        let joined = self.refresh(None)?;
        self.patch_later(joined);
        self.sites.load_symbols(address);
        Ok(())
    }

    /// Returns the number of sites, and the number of patched ones.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let is_counted = |site: &&Site| sites::patched_len(site) != 1 || is_on(site);
        let sites = self.sites.iter().filter(|site| sites::is_function(site));
        let sites = sites.filter(is_counted);
        sites.fold((0, 0), |(sites, patched), site| {
            (
                sites + 1,
                patched + usize::from(is_on(site) && !is_ours(site)),
            )
        })
    }
}

/// Returns the reason for a permanent stop, if there was one.
pub(crate) fn stopped() -> Option<StopReason> {
    StopReason::from_code(stop::reason())
}
