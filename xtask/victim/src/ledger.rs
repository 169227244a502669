//! The books of users whose calls return in order, for each user and thread.
//!
//! A *lane* belongs to one user and one thread. Only callbacks in that thread write to it while the
//! user is registered, and no two of them run at once, signal handlers included; before and after,
//! it is the controller's. The fields are atomics because a thread that is idle may look at its own
//! lane while a controller opens it for the next registration.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgraph::Counters;

use crate::failures::{Failure, must, note};
use crate::figures::Figures;
use crate::formula::mix;
use crate::functions;
use crate::users::{Books, Call, Identity, Left, Payload, Taste};

/// Most calls of one thread that can be open for one user.
const OPEN_MAX: usize = 128;

/// The calls of one user in one thread.
#[repr(align(128))]
#[derive(Debug)]
struct Lane {
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

    /// Returns the number of calls, accepted or not: the number of the next one.
    #[inline(always)]
    fn calls(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed) + self.declined.load(Ordering::Relaxed)
    }

    /// The innermost call that is open.
    #[inline(always)]
    fn innermost(&self) -> Option<Call> {
        let open = self.open.load(Ordering::Relaxed);
        self.places.get(open.checked_sub(1)?).map(Cell::get)
    }

    /// A call is accepted. `false`, and it is not, when too many are open.
    #[inline(always)]
    fn enter(&self, call: Call) -> bool {
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
    fn decline(&self) {
        add(&self.declined);
    }

    /// The innermost call returns.
    #[inline(always)]
    fn leave(&self) -> Option<Call> {
        let call = self.innermost()?;
        self.open
            .store(self.open.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        add(&self.returned);
        Some(call)
    }
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

/// Makes books for these numbers of users and threads.
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
fn lane(user: usize, thread: usize) -> &'static Lane {
    must(must(books().get(user)).lanes.get(thread))
}

/// The books of calls that return in order: each thread has a stack of open calls.
#[derive(Debug)]
pub(crate) struct Lanes;

impl Books for Lanes {
    const HAS_NAMES: bool = true;

    fn open(user: usize, registration: u64) {
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

    #[inline(always)]
    fn is_open(user: usize, registration: u64) -> bool {
        let book = must(books().get(user));
        book.registration.load(Ordering::Relaxed) & !ENDING == registration
    }

    fn ending(user: usize) {
        // It is ordered before the change of the slot by the lock that comes with it, and so is
        // seen by whoever finds the slot changed.
        books()[user]
            .registration
            .fetch_or(ENDING, Ordering::SeqCst);
    }

    fn close(user: usize, counters: Counters) -> Figures {
        let dropped =
            counters.overrun + counters.unreserved + counters.lost + counters.no_shadow_stack;
        if dropped != 0 {
            note(Failure::Dropped, user as u64, dropped);
        }
        let book = &books()[user];
        book.registration.store(0, Ordering::SeqCst);
        let mut sum = Figures::default();
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

    #[inline(always)]
    fn is_ours(function: usize) -> bool {
        functions::index_of(function).is_some()
    }

    #[inline(always)]
    fn enter(watcher: Identity, taste: Taste, thread: usize, call: Call) -> Option<u64> {
        let lane = lane(watcher.user, thread);
        let token =
            mix(watcher.registration << 40 ^ (thread as u64) << 28 ^ (call.function as u64) << 16)
                ^ mix(lane.calls());
        let is_wanted = match taste {
            Taste::Everything => true,
            Taste::Half => token & 1 == 0,
            Taste::Nothing => false,
        };
        if is_wanted && lane.enter(Call { token, ..call }) {
            return Some(token);
        }
        lane.decline();
        None
    }

    #[inline(always)]
    fn leave(user: usize, thread: usize, _token: Option<u64>, _stack_pointer: usize) -> Left {
        lane(user, thread)
            .leave()
            .map_or(Left::Unpaired, Left::Open)
    }

    #[inline(always)]
    fn is_parent<D: Payload + PartialEq>(
        user: usize,
        thread: usize,
        parent: Option<&D>,
        _stack_pointer: usize,
    ) -> bool {
        match (parent, lane(user, thread).innermost()) {
            (None, None) => true,
            (Some(data), Some(call)) => data.is_made_of(call.token),
            _ => false,
        }
    }
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
