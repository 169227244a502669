//! The books that the users keep: which calls are open, for each user and thread.
//!
//! A *lane* belongs to one user and one thread. Only callbacks in that thread write to it while the
//! user is registered, and no two of them run at once, signal handlers included; before and after,
//! it is the controller's. The fields are atomics because a thread that is idle may look at its own
//! lane while a controller opens it for the next registration.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::failures::{Failure, must, note};

/// How many calls of one thread can be open for one user.
const OPEN_MAX: usize = 128;

/// An accepted call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    /// A number that no other call has.
    pub(crate) token: u64,
    /// The function's number.
    pub(crate) function: usize,
    /// Its first integer argument.
    pub(crate) argument: u64,
    /// Of the shadow stack.
    pub(crate) depth: usize,
    /// Of the caller.
    pub(crate) stack_pointer: usize,
    /// Of the caller.
    pub(crate) return_address: usize,
}

/// The calls of one user in one thread.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Lane {
    accepted: AtomicU64,
    returned: AtomicU64,
    declined: AtomicU64,
    open: AtomicUsize,
    places: [Cell<Call>; OPEN_MAX],
}

// SAFETY: the cells are used by callbacks of one thread only, see above.
unsafe impl Sync for Lane {}

/// Adds to a counter that only this thread writes.
#[inline(always)]
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Lane {
    fn new() -> Self {
        Self {
            accepted: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            declined: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            places: [const {
                Cell::new(Call {
                    token: 0,
                    function: 0,
                    argument: 0,
                    depth: 0,
                    stack_pointer: 0,
                    return_address: 0,
                })
            }; OPEN_MAX],
        }
    }

    /// How many calls there were, accepted or not: the number of the next one.
    #[inline(always)]
    pub(crate) fn calls(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed) + self.declined.load(Ordering::Relaxed)
    }

    /// The innermost call that is open.
    #[inline(always)]
    pub(crate) fn innermost(&self) -> Option<Call> {
        let open = self.open.load(Ordering::Relaxed);
        self.places.get(open.checked_sub(1)?).map(Cell::get)
    }

    /// A call is accepted. `false`, and it is not, when too many are open.
    #[inline(always)]
    pub(crate) fn enter(&self, call: Call) -> bool {
        let open = self.open.load(Ordering::Relaxed);
        let Some(place) = self.places.get(open) else {
            return false;
        };
        place.set(call);
        self.open.store(open + 1, Ordering::Relaxed);
        add(&self.accepted);
        true
    }

    /// A call was not accepted.
    #[inline(always)]
    pub(crate) fn decline(&self) {
        add(&self.declined);
    }

    /// The innermost call returns.
    #[inline(always)]
    pub(crate) fn leave(&self) -> Option<Call> {
        let call = self.innermost()?;
        self.open
            .store(self.open.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        add(&self.returned);
        Some(call)
    }
}

/// What happened to the calls of a user.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Balance {
    pub(crate) accepted: u64,
    pub(crate) returned: u64,
    pub(crate) declined: u64,
    pub(crate) in_flight: u64,
}

/// Set in a user's registration number while it is being unregistered.
const ENDING: u64 = 1 << 63;

/// A user's books.
#[derive(Debug)]
struct Book {
    /// The number of its registration, 0 while there is none.
    registration: AtomicU64,
    /// By thread.
    lanes: Box<[Lane]>,
}

static BOOKS: OnceLock<Box<[Book]>> = OnceLock::new();

/// Makes books for so many users and threads.
pub(crate) fn prepare(users: usize, threads: usize) {
    BOOKS.get_or_init(|| {
        (0..users)
            .map(|_| Book {
                registration: AtomicU64::new(0),
                lanes: (0..threads).map(|_| Lane::new()).collect(),
            })
            .collect()
    });
}

#[inline(always)]
fn books() -> &'static [Book] {
    must(BOOKS.get().map(AsRef::as_ref))
}

/// The lane of `user` in `thread`.
#[inline(always)]
pub(crate) fn lane(user: usize, thread: usize) -> &'static Lane {
    must(must(books().get(user)).lanes.get(thread))
}

/// `user` is about to be registered, as `registration`.
pub(crate) fn open(user: usize, registration: u64) {
    let book = &books()[user];
    for lane in &book.lanes {
        lane.accepted.store(0, Ordering::Relaxed);
        lane.returned.store(0, Ordering::Relaxed);
        lane.declined.store(0, Ordering::Relaxed);
        lane.open.store(0, Ordering::Relaxed);
    }
    // Release pairs with the Acquire in `check_idle`: who sees the number sees empty lanes.
    book.registration.store(registration, Ordering::Release);
}

/// `user` is about to be unregistered: from now on its returns may stay away.
pub(crate) fn ending(user: usize) {
    // It is ordered before the change of the slot by the lock that comes with it, and so is seen
    // by whoever finds the slot changed.
    books()[user]
        .registration
        .fetch_or(ENDING, Ordering::SeqCst);
}

/// `user` has been unregistered: no callback may run any more.
pub(crate) fn close(user: usize) -> Balance {
    let book = &books()[user];
    book.registration.store(0, Ordering::SeqCst);
    let mut sum = Balance::default();
    for lane in &book.lanes {
        let accepted = lane.accepted.load(Ordering::Relaxed);
        let returned = lane.returned.load(Ordering::Relaxed);
        let in_flight = lane.open.load(Ordering::Relaxed) as u64;
        if accepted != returned + in_flight {
            let excess = accepted.wrapping_sub(returned + in_flight);
            note(Failure::Count, user as u64, excess);
        }
        sum.accepted += accepted;
        sum.returned += returned;
        sum.declined += lane.declined.load(Ordering::Relaxed);
        sum.in_flight += in_flight;
    }
    sum
}

/// Whether callbacks of `user` may run as `registration`.
#[inline(always)]
pub(crate) fn is_open(user: usize, registration: u64) -> bool {
    let book = must(books().get(user));
    book.registration.load(Ordering::Relaxed) & !ENDING == registration
}

/// `thread`, which is this one, is in no traced function: none of its calls may be open for a user
/// that has been, and is going to stay, registered.
#[inline(always)]
pub(crate) fn check_idle(thread: usize) {
    for (user, book) in books().iter().enumerate() {
        let registration = book.registration.load(Ordering::Acquire);
        if registration == 0 || registration & ENDING != 0 {
            continue;
        }
        let open = book.lanes[thread].open.load(Ordering::Relaxed);
        // Unless it has just come to its end, since returns are missing from then on. A return
        // that found the slot changed has made us see that.
        if open != 0 && book.registration.load(Ordering::SeqCst) == registration {
            note(Failure::Open, user as u64, open as u64);
        }
    }
}
