//! Registering, changing filters, unregistering.
//!
//! Everything that changes what is traced goes through one lock. A thread that holds it is marked as
//! inside fgraph, so no callback runs in it, and it never waits for a callback of another thread:
//! the wait for the grace period comes after the lock is released. So a callback may block for as
//! long as it likes, and only the unregistering of its own user waits for it.
//!
//! ```text
//!   register      take a slot -> epoch -> publish -> set bits on sites -> patch
//!   set_filter    set and clear bits -> patch and unpatch
//!   unregister    clear bits -> unpatch -> stub -> (unlock) grace period (lock) -> give slot back
//! ```

mod fork;
mod lock;

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};

use fgraph_core::registration::{Header, Registration};
use fgraph_core::site::Site;
use fgraph_core::slot::FreeIndices;
use fgraph_core::thread::Thread;
use fgraph_core::{Counters, FGRAPH, FgraphOps, MAX_USERS, stop};
use fgraph_x86_64::nop::SITE_LEN;
use fgraph_x86_64::poke::{self, Content, INT3, Poke, PokeError, Skip};
use fgraph_x86_64::{pun, stub, trampoline};

use crate::abort;
use crate::error::{Error, Refusal, Refused, Report, Stop};
use crate::filter::Filter;
use crate::handle::StdCatch;
use crate::inventory::SiteList;
use crate::libraries;
use crate::membarrier;
use crate::os;
use crate::signals;
use crate::sites::{self, OFF, ON, Sites};
use crate::stacks;
use crate::text::Text;
use crate::threads::{self, Inside};
use crate::unwinder;
use lock::{Guard, Lock};

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Control {
    started: bool,
    free: FreeIndices,
    filters: [Option<Filter>; MAX_USERS],
    sites: Sites,
    /// Patching has failed: any site may differ from what its mask asks for.
    unfinished: bool,
    /// Users to be freed by whoever takes the lock next.
    dropped: Vec<Dropped>,
    leave_out: Skip,
}

static CONTROL: Lock<Control> = Lock::new(Control {
    started: false,
    free: FreeIndices::new(),
    filters: [const { None }; MAX_USERS],
    sites: Sites::new(),
    unfinished: false,
    dropped: Vec::new(),
    leave_out: Skip::empty(),
});

/// How often a site was patched or put back.
pub(crate) static SITE_PATCHES: AtomicU64 = AtomicU64::new(0);

/// A user that is in no slot any more, but whose callbacks may still be running: its handle was
/// dropped inside a callback, or its sites could not be patched.
#[derive(Debug)]
struct Dropped {
    slot: usize,
    /// Freed with the right type.
    free: unsafe fn(*const Header),
    header: *const Header,
}

// SAFETY: the registration is `Send`, since every user is.
unsafe impl Send for Dropped {}

/// Takes the lock, as a thread that is not in a callback.
pub(crate) fn lock() -> Result<Locked, Error> {
    fork::handle();
    let inside = Inside::enter()?;
    let mut locked = Locked {
        control: ManuallyDrop::new(CONTROL.acquire()),
        _inside: inside,
    };
    locked.control.start()?;
    if !locked.control.dropped.is_empty() {
        let dropped = core::mem::take(&mut locked.control.dropped);
        drop(locked);
        for user in dropped {
            wait_for_grace(user.slot)?;
            // SAFETY: made from a box of that type, and out of use after the grace period.
            unsafe { (user.free)(user.header) };
        }
        return lock();
    }
    Ok(locked)
}

/// Runs `question`, which asks the dynamic linker what it may answer only when a `dlopen` of another thread and its
/// constructors are done.
pub(crate) fn ask<R>(question: impl FnOnce() -> R) -> R {
    CONTROL.ask(question)
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) control: ManuallyDrop<Guard<'static, Control>>,
    // Dropped last: nothing is traced until the lock is free.
    _inside: Inside,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.control) };
        join_all();
    }
}

/// Applies the filters to libraries that came, unless somebody has the lock, who will do it then.
/// Called by a thread that may be in the dynamic linker.
pub(crate) fn settle() {
    // Inside a callback it has to wait for the next change.
    if let Ok(_inside) = Inside::enter() {
        join_all();
    }
}

/// [`settle`] in a thread that is marked as inside.
fn join_all() {
    while libraries::is_pending() {
        let Some(mut control) = CONTROL.try_acquire() else {
            return;
        };
        if libraries::take_pending() {
            control.join();
        }
    }
}

/// Waits until no callback of the user that was in slot `index` runs any more, and gives the slot
/// back. After an error the user must not be freed, nor its slot be used again.
fn wait_for_grace(index: usize) -> Result<(), Error> {
    membarrier::fence()?;
    FGRAPH.wait_for_grace(index, |thread: &Thread| {
        std::thread::yield_now();
        threads::is_alive(thread)
    });
    // Marked, because a callback that runs with the lock held could want the lock.
    let _inside = Inside::enter()?;
    CONTROL.acquire().free.give_back(index);
    join_all();
    Ok(())
}

impl Control {
    /// Sets up what the process needs once.
    fn start(&mut self) -> Result<(), Error> {
        if self.started {
            return Ok(());
        }
        membarrier::fence()?;
        membarrier::sync_core()?;
        let trampolines = trampoline::install(threads::attach, abort::on_stray_return);
        threads::set_vector_bytes(trampolines.vector_bytes);
        FGRAPH.set_stacks(&stacks::STACKS);
        self.sites.start(trampolines);
        unwinder::find();
        libraries::find();
        self.started = true;
        Ok(())
    }

    /// Registers a user.
    pub(crate) fn register<T: FgraphOps>(
        &mut self,
        ops: T,
        filter: Filter,
    ) -> Result<Registered<T>, Error> {
        if let Some(stop) = stopped() {
            return Err(Error::Stopped(stop));
        }
        let slot = self.free.take().ok_or(Error::NoFreeSlot)?;
        let registration = Box::new(Registration::new::<StdCatch>(
            ops,
            slot,
            FGRAPH.epoch.advance(),
        ));
        let before = counters(slot);
        FGRAPH.slots.publish(slot, registration.header());
        // A stop takes all slots away without the lock; this one may have come after that.
        if let Some(stop) = stopped() {
            self.drop_later(slot, Box::into_raw(registration));
            return Err(Error::Stopped(stop));
        }
        match self.set_filter(slot, filter) {
            Ok(report) => Ok(Registered {
                registration,
                slot,
                before,
                report,
            }),
            Err(error) => {
                self.drop_later(slot, Box::into_raw(registration));
                Err(error)
            }
        }
    }

    /// Takes the user in `slot` away, and leaves it to whoever takes the lock next to free it.
    fn drop_later<T: FgraphOps>(&mut self, slot: usize, registration: *const Registration<T>) {
        /// # Safety
        ///
        /// `header` must be that of a boxed `Registration<T>`, which nobody uses any more.
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

    /// Makes `filter` the filter of the user in `slot`. After an error it has the one it had.
    pub(crate) fn set_filter(&mut self, slot: usize, filter: Filter) -> Result<Report, Error> {
        let before = self.filters[slot].replace(filter);
        let changed = if self.refresh(Some(slot)) {
            self.set_all_bits()
        } else {
            self.set_bits(slot)
        };
        match self.patch(changed) {
            Ok((patched, refused)) => Ok(self.report(slot, patched, refused)),
            Err(error) => {
                self.filters[slot] = before;
                self.set_bits(slot);
                Err(error)
            }
        }
    }

    /// Sees to it that there are sites for all that the users want, of whom the one in slot `new` has a
    /// filter that is new; whether modules came or went.
    fn refresh(&mut self, new: Option<usize>) -> bool {
        let mut changed = false;
        loop {
            changed |= self.sites.refresh();
            let filters = self.filters.iter().enumerate();
            let mut all = filters.filter_map(|(slot, filter)| Some((slot, filter.as_ref()?)));
            let prepared =
                all.try_for_each(|(slot, filter)| self.sites.prepare(filter, new == Some(slot)));
            if prepared.is_some() {
                self.sites.settle();
                return changed;
            }
        }
    }

    /// [`set_bits`](Self::set_bits) for all users: their filters hold for libraries that are new, too.
    fn set_all_bits(&self) -> Vec<&'static Site> {
        let slots = 0..MAX_USERS;
        slots.flat_map(|slot| self.set_bits(slot)).collect()
    }

    /// Applies the filters to libraries that are new.
    fn join(&mut self) {
        if self.filters.iter().any(Option::is_some) && self.refresh(None) {
            let changed = self.set_all_bits();
            // What cannot be patched now is looked at again the next time.
            let _ = self.patch(changed);
        }
    }

    /// Whether a site is to be patched.
    fn is_wanted(&self, site: &Site) -> bool {
        if sites::is_relay(site) {
            return self.is_wanted(sites::relayed(site));
        }
        site.interest.load(Ordering::Relaxed) != 0
            || libraries::is_event(site.address()) && self.filters.iter().any(Option::is_some)
    }

    /// Sets the bits of the user in `slot` on the sites that its filter selects, and clears them
    /// on the others. Returns the sites that may have to be patched or put back.
    fn set_bits(&self, slot: usize) -> Vec<&'static Site> {
        let bit = 1u16 << slot;
        let mut changed = Vec::new();
        self.sites
            .select(self.filters[slot].as_ref(), |site, selected| {
                // Relaxed: the bits only choose whom to ask; the slots say who may be asked.
                let differs = (site.interest.load(Ordering::Relaxed) & bit != 0) != selected;
                if differs {
                    site.interest.fetch_xor(bit, Ordering::Relaxed);
                }
                // What could not be patched the last time is tried again.
                if differs || selected && !is_on(site) {
                    changed.push(site);
                }
            });
        changed
    }

    fn report(&self, slot: usize, patched: usize, refused: Vec<Refused>) -> Report {
        let bit = 1u16 << slot;
        let wants = |site: &&Site| site.interest.load(Ordering::Relaxed) & bit != 0;
        let filter = self.filters[slot].as_ref();
        let mut report = Report {
            traced: self
                .sites
                .iter()
                .filter(wants)
                .filter(|site| is_on(site))
                .count(),
            patched,
            refused: filter.map_or(Vec::new(), |filter| self.sites.refused(filter)),
        };
        let selected = |refused: &Refused| {
            filter.is_some_and(|filter| filter.matches(&refused.name, &refused.module))
        };
        report.refused.extend(refused.into_iter().filter(selected));
        report
    }

    /// Ends the callbacks of the user in `slot`, but for those that are running.
    pub(crate) fn take_away(&mut self, slot: usize) {
        self.filters[slot] = None;
        let changed = self.set_bits(slot);
        // A site that cannot be put back now costs a look at its empty mask until the next time.
        let _ = self.patch(changed);
        FGRAPH.slots.retire(slot);
    }

    /// Brings the text of `sites` in line with who wants them. Returns how many jump to their stub
    /// that did not before, and which sites that somebody wants could not be changed.
    fn patch(&mut self, mut sites: Vec<&'static Site>) -> Result<(usize, Vec<Refused>), Error> {
        if self.unfinished {
            sites = self.sites.iter().collect();
        } else {
            // Nobody asks for these by name: who wants them follows from the users of others.
            sites.extend(self.sites.event());
            sites.extend(self.sites.relays());
        }
        sites.retain(|site| self.is_wanted(site) != is_on(site));
        if sites.is_empty() {
            return Ok((0, Vec::new()));
        }
        sites.sort_unstable_by_key(|site| site.entry);
        sites.dedup_by_key(|site| site.entry);
        self.unfinished = true;
        let pokes: Vec<Poke> = sites.iter().map(|site| poke_of(site)).collect();
        let invalid = |poke: &Poke| {
            let ends = [poke.old, poke.new].map(|content| content.bytes[SITE_LEN - 1]);
            (poke.old.starts | poke.new.starts) != 1 && ends.into_iter().any(pun::is_invalid)
        };
        signals::ensure(pokes.iter().any(invalid))?;
        if let Some(thread) = signals::blocked_somewhere() {
            return Err(Error::SignalBlocked { thread });
        }
        // This thread is safe while it patches, and from then on as any other.
        let stays = |(poke, site): (&Poke, &&Site)| poke.len == 1 && !is_on(site);
        if pokes.iter().zip(&sites).any(stays) && signals::blocked_here() {
            let thread = os::thread_id();
            return Err(Error::SignalBlocked { thread });
        }
        let mut changed = vec![None; sites.len()];
        let skip = self.leave_out;
        let result = self.sites.while_loaded(|| {
            os::with_traps(|| {
                let refused = |index: usize, found| changed[index] = Some(found);
                poke::apply_with(&mut Text::open(), &pokes, refused, skip)
            })
        });
        let Some(result) = result else {
            // A library came or went meanwhile: look anew at all sites there are now.
            self.refresh(None);
            self.set_all_bits();
            return self.patch(Vec::new());
        };
        match result {
            // Relaxed: a plain count.
            Ok(done) => drop(SITE_PATCHES.fetch_add(done as u64, Ordering::Relaxed)),
            Err(PokeError::Stuck { address, error }) => {
                stop::stop(Stop::Text.code());
                return Err(Error::Text {
                    address,
                    errno: error,
                });
            }
            Err(PokeError::Read { address, error } | PokeError::Write { address, error }) => {
                return Err(Error::Text {
                    address,
                    errno: error,
                });
            }
            Err(PokeError::Sync { error }) => {
                return Err(crate::Unsupported::Membarrier(error).into());
            }
            Err(error) => unreachable!("{error:?}"),
        }
        self.unfinished = false;
        let mut patched = 0;
        let mut refused = Vec::new();
        for (site, found) in sites.iter().zip(changed) {
            match found {
                None if is_on(site) => site.state.store(OFF, Ordering::Relaxed),
                None => {
                    site.state.store(ON, Ordering::Relaxed);
                    patched += usize::from(!is_ours(site));
                }
                // Under a debugger's breakpoint our jump may still be; the stub finds that nobody wants the call.
                Some([INT3, ..]) if is_on(site) => {}
                // Somebody else has replaced it.
                Some(_) if is_on(site) => site.state.store(OFF, Ordering::Relaxed),
                Some(found) => refused.push(Refused {
                    name: fgraph_core::Function::of(site).name().to_string(),
                    module: site.module.path.to_owned(),
                    address: site.entry,
                    reason: Refusal::Changed { found },
                }),
            }
        }
        Ok((patched, refused))
    }

    /// Leaves steps of the patching protocol out.
    pub(crate) fn leave_out(&mut self, steps: Skip) {
        self.leave_out = steps;
        self.sites.ignore_inner(steps.contains(Skip::INNER));
    }

    /// Whether functions may get breakpoints in modules whose sites are made from now on.
    pub(crate) fn allow_breakpoints(&mut self, allow: bool) {
        self.sites.allow_breakpoints(allow);
    }

    /// Takes everything back: every site is a NOP again, and stays so.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        stop::stop(Stop::Asked.code());
        let all: Vec<&Site> = self.sites.iter().collect();
        for site in &all {
            site.interest.store(0, Ordering::Relaxed);
        }
        self.filters = [const { None }; MAX_USERS];
        self.patch(all).map(drop)
    }

    /// Every function there is.
    pub(crate) fn inventory(&mut self) -> SiteList {
        loop {
            if self.refresh(None) {
                // The next patching is of all that changed.
                self.set_all_bits();
                self.unfinished = true;
            }
            if let Some(all) = self.sites.inventory() {
                return all;
            }
        }
    }

    /// Sites, and how many of them are patched.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let sites = self.sites.iter().filter(|site| !sites::is_relay(site));
        sites.fold((0, 0), |(sites, patched), site| {
            (
                sites + 1,
                patched + usize::from(is_on(site) && !is_ours(site)),
            )
        })
    }
}

/// A user that has just been registered.
#[derive(Debug)]
pub(crate) struct Registered<T> {
    pub(crate) registration: Box<Registration<T>>,
    pub(crate) slot: usize,
    /// The slot's counters when the user took it.
    pub(crate) before: Counters,
    pub(crate) report: Report,
}

/// What was not traced since the start for whoever was in `slot`.
pub(crate) fn counters(slot: usize) -> Counters {
    threads::count_lost();
    let mut counters = FGRAPH.user_counters(slot);
    counters += trampoline::attaching().users[slot].read();
    counters
}

/// Unregisters the user in `slot` and waits until no callback of it runs.
pub(crate) fn unregister(slot: usize) -> Result<(), Error> {
    lock()?.control.take_away(slot);
    wait_for_grace(slot)
}

/// Unregisters a user from inside a callback. It is freed later, by whoever takes the lock next.
///
/// In a signal handler that has interrupted fgraph's own code, which may hold the lock, the user only
/// loses its slot's contents: it is never freed, and its slot is not used again.
pub(crate) fn unregister_later<T: FgraphOps>(slot: usize, registration: *const Registration<T>) {
    if threads::in_own_code() {
        FGRAPH.slots.retire_if(slot, registration.cast());
        return;
    }
    threads::as_own_code(|| CONTROL.acquire().drop_later(slot, registration));
}

/// Why nothing is traced any more, if so.
pub(crate) fn stopped() -> Option<Stop> {
    Stop::from_code(stop::reason())
}

/// Whether a site is patched for us alone: the linker's function that tells of libraries, or a relay.
fn is_ours(site: &Site) -> bool {
    let wanted = site.interest.load(Ordering::Relaxed) != 0;
    !wanted && (libraries::is_event(site.address()) || sites::is_relay(site))
}

fn is_on(site: &Site) -> bool {
    site.state.load(Ordering::Relaxed) == ON
}

/// The change that a site is due.
fn poke_of(site: &Site) -> Poke {
    let original = sites::original(site);
    let mut bytes = original.bytes;
    let len = sites::patched_len(site);
    match len {
        1 => bytes[0] = INT3,
        2 => bytes[..2].copy_from_slice(&sites::short_jump(site).expect("the relay is before it")),
        _ => {
            let jump = stub::jmp_rel32(site.entry, site.stub);
            bytes = jump.expect("the stub was placed within reach");
        }
    }
    let patched = Content::one(bytes);
    let (old, new) = if is_on(site) {
        (patched, original)
    } else {
        (original, patched)
    };
    Poke {
        address: site.entry,
        len,
        old,
        new,
    }
}
