//! Threads that register, change filters and unregister, at random.

use std::marker::PhantomData;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use fgraph::{Counters, Error, Handle};

use crate::failures::{Failure, note};
use crate::figures::Figures;
use crate::filters::Range;
use crate::ledger::Lanes;
use crate::rng::Rng;
use crate::threads;
use crate::users::{Aligned, Books, Identity, Payload, Taste, Watcher};

/// Users that are registered now.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// Most users that were registered at a time.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Most users that were registered at a time.
pub(crate) fn most_at_once() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Most users that each controller registers, at this moment.
static CROWD: AtomicUsize = AtomicUsize::new(usize::MAX);

/// A registered user, whatever its data.
trait Registered: Send {
    fn set_filter(&self, filter: &str) -> Result<usize, Error>;
    fn traced(&self) -> Result<usize, Error>;
    fn counters(&self) -> Counters;
    fn is_eligible(&self) -> bool;
    fn is_active(&self) -> bool;
    /// Unregisters it, and returns true if that gave the value back that was registered.
    fn end(self: Box<Self>, identity: Identity) -> bool;
}

impl<D, B, const ALL: bool> Registered for Handle<Watcher<D, B, ALL>>
where
    D: Payload + PartialEq,
    B: Books,
{
    fn set_filter(&self, filter: &str) -> Result<usize, Error> {
        // SAFETY: a watcher's callbacks use atomics and memory that is there, which is allowed
        // everywhere.
        Ok(unsafe { self.set_filter(filter) }?.traced)
    }

    fn traced(&self) -> Result<usize, Error> {
        Ok(self.report()?.traced)
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn is_eligible(&self) -> bool {
        self.fast_path().is_ok_and(|it| it.is_eligible())
    }

    fn is_active(&self) -> bool {
        self.status() == fgraph::UserStatus::Active
    }

    fn end(self: Box<Self>, identity: Identity) -> bool {
        self.unregister().is_ok_and(|watcher| watcher.is(identity))
    }
}

/// Registers a user; each has its own kind of data and taste.
fn register<B: Books>(identity: Identity, filter: &str) -> Result<Box<dyn Registered>, Error> {
    fn boxed<D: Payload + PartialEq, B: Books>(
        identity: Identity,
        taste: Taste,
        filter: &str,
    ) -> Result<Box<dyn Registered>, Error> {
        // Half of the users have the default priority, others one near it, the rest any.
        let priority = match identity.registration % 4 {
            0 => (identity.registration / 4 * 37 % 256) as u8 as i8,
            1 => (identity.registration / 4 % 5) as i8 - 2,
            _ => 0,
        };
        let options = fgraph::Options::new().priority(priority).allow_no_match();
        // SAFETY: as in `set_filter`.
        unsafe {
            if identity.registration.is_multiple_of(2) {
                let watcher = Watcher::<D, B, true>::new(identity, taste);
                Ok(Box::new(fgraph::register_with(watcher, filter, &options)?))
            } else {
                let watcher = Watcher::<D, B, false>::new(identity, taste);
                Ok(Box::new(fgraph::register_with(watcher, filter, &options)?))
            }
        }
    }
    match identity.user % 8 {
        0 => boxed::<u64, B>(identity, Taste::Everything, filter),
        1 => boxed::<(), B>(identity, Taste::Everything, filter),
        2 => boxed::<Aligned, B>(identity, Taste::Everything, filter),
        3 => boxed::<[u8; 100], B>(identity, Taste::Everything, filter),
        4 => boxed::<[u8; 1024], B>(identity, Taste::Half, filter),
        5 => boxed::<u64, B>(identity, Taste::Nothing, filter),
        6 => boxed::<[u8; 8], B>(identity, Taste::Half, filter),
        _ => boxed::<[u8; 16], B>(identity, Taste::Everything, filter),
    }
}

/// Registrations so far, of all users.
static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

/// A user, as its controller has it.
pub(crate) struct User<B> {
    number: usize,
    handle: Option<(u64, Box<dyn Registered>)>,
    _books: PhantomData<fn(B)>,
}

/// A filter, and the number of functions that it selects, if that is known.
pub(crate) type Selection = (String, Option<usize>);

impl<B: Books> User<B> {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            number,
            handle: None,
            _books: PhantomData,
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.handle.is_some()
    }

    /// Returns the counters of the user, if it is registered.
    pub(crate) fn counters(&self) -> Option<Counters> {
        Some(self.handle.as_ref()?.1.counters())
    }

    pub(crate) fn register(&mut self, (filter, selects): Selection, figures: &mut Figures) {
        let identity = Identity {
            user: self.number,
            registration: REGISTRATIONS.fetch_add(1, Ordering::Relaxed) + 1,
        };
        B::open(self.number, identity.registration);
        match register::<B>(identity, &filter) {
            Ok(handle) => {
                match handle.traced() {
                    Ok(traced) => check_selected(traced, selects),
                    Err(error) => self.refused("report", &error),
                }
                figures.registrations += 1;
                figures.fast_path += u64::from(handle.is_eligible());
                self.handle = Some((identity.registration, handle));
                let registered = REGISTERED.fetch_add(1, Ordering::Relaxed) + 1;
                MOST.fetch_max(registered, Ordering::Relaxed);
            }
            Err(error) => {
                // A user that was not registered is not told of returns.
                B::ending(self.number);
                self.refused("register", &error);
            }
        }
    }

    pub(crate) fn set_filter(&self, (filter, selects): Selection, figures: &mut Figures) {
        let Some((_, handle)) = &self.handle else {
            return;
        };
        match handle.set_filter(&filter) {
            Ok(traced) => check_selected(traced, selects),
            Err(error) => self.refused("set_filter", &error),
        }
        figures.filter_changes += 1;
    }

    /// Unregisters the user, by dropping its handle if `is_dropped`.
    pub(crate) fn unregister(&mut self, is_dropped: bool, figures: &mut Figures) {
        let Some((registration, handle)) = self.handle.take() else {
            return;
        };
        let user = self.number;
        B::ending(user);
        if !handle.is_active() {
            note(Failure::Refused, user as u64, 0);
        }
        let counters = handle.counters();
        if is_dropped {
            drop(handle);
        } else if !handle.end(Identity { user, registration }) {
            note(Failure::Refused, user as u64, 3);
        }
        *figures += B::close(user, counters);
        figures.unregistrations += 1;
        REGISTERED.fetch_sub(1, Ordering::Relaxed);
    }

    fn refused(&self, operation: &str, error: &Error) {
        eprintln!("{operation} of user {}: {error}", self.number);
        note(Failure::Refused, self.number as u64, 1);
    }
}

fn check_selected(traced: usize, selects: Option<usize>) {
    if let Some(selects) = selects
        && traced != selects
    {
        note(Failure::Selected, traced as u64, selects as u64);
    }
}

/// Registers, changes and unregisters `users` until `end`. It begins when all controllers have
/// registered all of theirs.
pub(crate) fn control(
    number: usize,
    users: impl Iterator<Item = usize>,
    seed: u64,
    range: &Range,
    all_registered: &Barrier,
    end: Instant,
) -> Figures {
    threads::enter(number);
    let mut rng = Rng::new(seed, number as u64);
    let mut figures = Figures::default();
    let mut users: Vec<User<Lanes>> = users.map(User::new).collect();
    for user in &mut users {
        user.register(range.filter(&mut rng), &mut figures);
    }
    all_registered.wait();
    while !users.is_empty() && Instant::now() < end {
        if rng.once_in(128) {
            // Few users at a time switch more sites, many meet in more functions.
            let crowd = match rng.below(4) {
                0 => users.len(),
                1 => 1 + rng.below(users.len()),
                _ => 1,
            };
            CROWD.store(crowd, Ordering::Relaxed);
        }
        let crowd = CROWD.load(Ordering::Relaxed).min(users.len());
        let registered = users.iter().filter(|user| user.is_registered()).count();
        let mut candidates: Vec<&mut User<Lanes>> = users
            .iter_mut()
            .filter(|user| registered < crowd || user.is_registered())
            .collect();
        let chosen = rng.below(candidates.len());
        let user = &mut candidates[chosen];
        if !user.is_registered() {
            user.register(range.filter(&mut rng), &mut figures);
        } else if registered > crowd || rng.once_in(2) {
            user.unregister(rng.once_in(8), &mut figures);
        } else {
            user.set_filter(range.filter(&mut rng), &mut figures);
        }
    }
    for user in &mut users {
        user.unregister(rng.once_in(8), &mut figures);
    }
    figures
}
