//! Those who register, change filters and unregister, at random.

use std::ops::AddAssign;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fgraph::{Error, Handle};

use crate::failures::{Failure, note};
use crate::filters::Range;
use crate::ledger::{self, Balance};
use crate::rng::Rng;
use crate::threads;
use crate::users::{Aligned, Payload, Taste, Watcher};

/// Users that are registered now.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// Most users that were registered at a time.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Most users that were registered at a time.
pub(crate) fn most_at_once() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// How many users each controller registers at most, at this moment.
static CROWD: AtomicUsize = AtomicUsize::new(usize::MAX);

/// What was done, and what became of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toggles {
    pub(crate) registrations: u64,
    /// Registrations of users that take the fast path.
    pub(crate) fast_path: u64,
    pub(crate) filter_changes: u64,
    pub(crate) unregistrations: u64,
    pub(crate) balance: Balance,
}

impl AddAssign for Toggles {
    fn add_assign(&mut self, other: Self) {
        self.registrations += other.registrations;
        self.fast_path += other.fast_path;
        self.filter_changes += other.filter_changes;
        self.unregistrations += other.unregistrations;
        self.balance += other.balance;
    }
}

impl AddAssign for Balance {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.returned += other.returned;
        self.declined += other.declined;
        self.in_flight += other.in_flight;
    }
}

/// A registered user, whatever its data.
trait Registered {
    fn set_filter(&self, filter: &str) -> Result<usize, Error>;
    fn traced(&self) -> Result<usize, Error>;
    fn is_eligible(&self) -> bool;
    fn end(self: Box<Self>, user: usize, registration: u64, dropped: bool);
}

impl<D: Payload + PartialEq, const ALL: bool> Registered for Handle<Watcher<D, ALL>> {
    fn set_filter(&self, filter: &str) -> Result<usize, Error> {
        // SAFETY: a watcher's callbacks use atomics and memory that is there, which is allowed
        // everywhere.
        Ok(unsafe { self.set_filter(filter) }?.traced)
    }

    fn traced(&self) -> Result<usize, Error> {
        Ok(self.report()?.traced)
    }

    fn is_eligible(&self) -> bool {
        self.fast_path().is_ok_and(|it| it.is_eligible())
    }

    fn end(self: Box<Self>, user: usize, registration: u64, dropped: bool) {
        let counters = self.counters();
        let lost =
            counters.overrun + counters.unreserved + counters.lost + counters.no_shadow_stack;
        if lost != 0 {
            note(Failure::Dropped, user as u64, lost);
        }
        if self.status() != fgraph::UserStatus::Active {
            note(Failure::Refused, user as u64, 0);
        }
        if dropped {
            return;
        }
        match self.unregister() {
            Ok(watcher) if watcher.is(user, registration) => {}
            _ => note(Failure::Refused, user as u64, 3),
        }
    }
}

/// Registers `user`; each has its own kind of data and taste.
fn register(user: usize, registration: u64, filter: &str) -> Result<Box<dyn Registered>, Error> {
    fn boxed<D: Payload + PartialEq>(
        user: usize,
        registration: u64,
        taste: Taste,
        filter: &str,
    ) -> Result<Box<dyn Registered>, Error> {
        // SAFETY: as in `set_filter`.
        unsafe {
            if registration.is_multiple_of(2) {
                let watcher = Watcher::<D, true>::new(user, registration, taste);
                Ok(Box::new(fgraph::register(watcher, filter)?))
            } else {
                let watcher = Watcher::<D, false>::new(user, registration, taste);
                Ok(Box::new(fgraph::register(watcher, filter)?))
            }
        }
    }
    match user % 8 {
        0 => boxed::<()>(user, registration, Taste::Everything, filter),
        1 => boxed::<u64>(user, registration, Taste::Everything, filter),
        2 => boxed::<Aligned>(user, registration, Taste::Everything, filter),
        3 => boxed::<[u8; 100]>(user, registration, Taste::Everything, filter),
        4 => boxed::<[u8; 1024]>(user, registration, Taste::Half, filter),
        5 => boxed::<u64>(user, registration, Taste::Nothing, filter),
        6 => boxed::<[u8; 8]>(user, registration, Taste::Half, filter),
        _ => boxed::<[u8; 16]>(user, registration, Taste::Everything, filter),
    }
}

/// A user in the hands of its controller.
struct User {
    number: usize,
    registration: u64,
    handle: Option<Box<dyn Registered>>,
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
) -> Toggles {
    threads::enter(number);
    let mut rng = Rng::new(seed, number as u64);
    let mut toggles = Toggles::default();
    let mut users: Vec<User> = users
        .map(|number| User {
            number,
            registration: 0,
            handle: None,
        })
        .collect();
    for user in &mut users {
        user.register(range, &mut rng, &mut toggles);
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
        let registered = users.iter().filter(|user| user.handle.is_some()).count();
        let mut candidates: Vec<&mut User> = users
            .iter_mut()
            .filter(|user| registered < crowd || user.handle.is_some())
            .collect();
        let chosen = rng.below(candidates.len());
        let user = &mut candidates[chosen];
        if user.handle.is_none() {
            user.register(range, &mut rng, &mut toggles);
        } else if registered > crowd || rng.once_in(2) {
            user.unregister(&mut rng, &mut toggles);
        } else {
            user.set_filter(range, &mut rng, &mut toggles);
        }
    }
    for user in &mut users {
        user.unregister(&mut rng, &mut toggles);
    }
    toggles
}

impl User {
    fn register(&mut self, range: &Range, rng: &mut Rng, toggles: &mut Toggles) {
        let (filter, selects) = range.filter(rng);
        self.registration += 1;
        ledger::open(self.number, self.registration);
        match register(self.number, self.registration, &filter) {
            Ok(handle) => {
                match handle.traced() {
                    Ok(traced) => check_selected(traced, selects),
                    Err(error) => self.refused("report", &error),
                }
                toggles.registrations += 1;
                toggles.fast_path += u64::from(handle.is_eligible());
                self.handle = Some(handle);
                let registered = REGISTERED.fetch_add(1, Ordering::Relaxed) + 1;
                MOST.fetch_max(registered, Ordering::Relaxed);
            }
            Err(error) => self.refused("register", &error),
        }
    }

    fn set_filter(&mut self, range: &Range, rng: &mut Rng, toggles: &mut Toggles) {
        let (filter, selects) = range.filter(rng);
        let Some(handle) = &self.handle else { return };
        match handle.set_filter(&filter) {
            Ok(traced) => check_selected(traced, selects),
            Err(error) => self.refused("set_filter", &error),
        }
        toggles.filter_changes += 1;
    }

    fn unregister(&mut self, rng: &mut Rng, toggles: &mut Toggles) {
        let Some(handle) = self.handle.take() else {
            return;
        };
        ledger::ending(self.number);
        handle.end(self.number, self.registration, rng.once_in(8));
        toggles.balance += ledger::close(self.number);
        toggles.unregistrations += 1;
        REGISTERED.fetch_sub(1, Ordering::Relaxed);
    }

    fn refused(&self, operation: &str, error: &Error) {
        // One that was not registered is not told of returns.
        if self.handle.is_none() {
            ledger::ending(self.number);
        }
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
