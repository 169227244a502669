//! The functions that act on locks, and the effect of each.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Effect of a function on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    /// Takes its first argument, and waits for it.
    Lock = 1,
    /// Takes its first argument if that is free.
    Try,
    /// Releases its first argument.
    Unlock,
    /// Destroys its first argument.
    Destroy,
    /// Releases its second argument, and takes it again.
    Wait,
    /// Waits for its first argument, which was not free.
    Contended,
}

/// The result of a lock whose owner has died, on Linux.
const EOWNERDEAD: i32 = 130;

impl Action {
    /// Returns the index of the argument that is the lock.
    #[inline]
    #[must_use]
    pub const fn argument(self) -> usize {
        matches!(self, Self::Wait) as usize
    }

    /// True if a call waits for its lock, so that its time is a waiting time.
    #[inline]
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Lock | Self::Contended)
    }

    /// True if a call with this result has taken its lock.
    #[inline]
    #[must_use]
    pub fn takes(self, result: Option<u64>) -> bool {
        match self {
            // A wait that fails or is cancelled has still taken its mutex again.
            Self::Wait => true,
            Self::Lock | Self::Try => {
                let result = result.map(|result| result as u32 as i32);
                matches!(result, Some(0 | EOWNERDEAD))
            }
            Self::Contended | Self::Unlock | Self::Destroy => false,
        }
    }
}

/// Returns the shortest way from one lock to another: the orders, each leading from its
/// first lock to its second. `of` returns the orders of a lock, and `ends` the locks of an order.
/// `None` if there is no way.
pub fn shortest_way<'o, L: Copy + Eq + Hash, O: Clone + 'o>(
    from: L,
    to: L,
    of: impl Fn(L) -> &'o [O],
    ends: impl Fn(&O) -> (L, L),
) -> Option<Vec<O>> {
    let mut reached: HashMap<L, &O> = HashMap::new();
    let mut todo = VecDeque::from([from]);
    while let Some(lock) = todo.pop_front() {
        for order in of(lock) {
            let next = ends(order).1;
            if next != from && !reached.contains_key(&next) {
                reached.insert(next, order);
                todo.push_back(next);
            }
        }
    }
    let mut way = Vec::new();
    let mut lock = to;
    while lock != from {
        let order = *reached.get(&lock)?;
        way.push(order.clone());
        lock = ends(order).0;
    }
    way.reverse();
    Some(way)
}

const FUNCTIONS: &[(&str, Action)] = &[
    ("pthread_mutex_lock", Action::Lock),
    ("pthread_mutex_timedlock", Action::Lock),
    ("pthread_mutex_clocklock", Action::Lock),
    ("pthread_mutex_trylock", Action::Try),
    ("pthread_mutex_unlock", Action::Unlock),
    ("pthread_mutex_destroy", Action::Destroy),
    ("pthread_rwlock_rdlock", Action::Lock),
    ("pthread_rwlock_wrlock", Action::Lock),
    ("pthread_rwlock_timedrdlock", Action::Lock),
    ("pthread_rwlock_timedwrlock", Action::Lock),
    ("pthread_rwlock_clockrdlock", Action::Lock),
    ("pthread_rwlock_clockwrlock", Action::Lock),
    ("pthread_rwlock_tryrdlock", Action::Try),
    ("pthread_rwlock_trywrlock", Action::Try),
    ("pthread_rwlock_unlock", Action::Unlock),
    ("pthread_rwlock_destroy", Action::Destroy),
    ("pthread_spin_lock", Action::Lock),
    ("pthread_spin_trylock", Action::Try),
    ("pthread_spin_unlock", Action::Unlock),
    ("pthread_spin_destroy", Action::Destroy),
    ("pthread_cond_wait", Action::Wait),
    ("pthread_cond_timedwait", Action::Wait),
    ("pthread_cond_clockwait", Action::Wait),
    (
        "std::sys::sync::mutex::futex::Mutex::lock_contended",
        Action::Contended,
    ),
    (
        "std::sys::sync::rwlock::futex::RwLock::read_contended",
        Action::Contended,
    ),
    (
        "std::sys::sync::rwlock::futex::RwLock::write_contended",
        Action::Contended,
    ),
];

/// Returns the watched functions, and the effect of each.
///
/// ```
/// use fgraph_symbols::locks::{Action, functions};
///
/// let found = functions().find(|(name, _)| *name == "pthread_mutex_lock");
/// assert_eq!(found.map(|(_, action)| action), Some(Action::Lock));
/// ```
pub fn functions() -> impl Iterator<Item = (&'static str, Action)> {
    FUNCTIONS.iter().copied()
}
