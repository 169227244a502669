//! Computes orders, holds and waits from threads' calls on locks.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, Ending, Pairing};
use fgraph_tracers::locks::{Action, functions, shortest_way};

/// The most locks and orders that are distinguished; further ones have no holds and waits, and are
/// counted.
const MOST: usize = 1 << 18;

/// Process and thread.
pub(super) type Thread = (u32, u32);
/// Process and address.
pub(super) type Name = (u32, u64);

/// A place where a function was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// An address in the call.
    pub(super) at: u64,
    /// The calls around it, as a number in [`Stacks`].
    pub(super) stack: u32,
}

/// Return addresses of the calls around a call, the innermost first. Each stack is stored once.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    numbers: HashMap<Rc<[u64]>, u32>,
    all: Vec<Rc<[u64]>>,
}

impl Stacks {
    /// Returns the number of a stack. One without room is empty.
    pub(super) fn number(&mut self, stack: &[u64]) -> u32 {
        if let Some(known) = self.numbers.get(stack) {
            return *known;
        }
        if stack.is_empty() || self.all.len() >= MOST {
            return 0;
        }
        let stack: Rc<[u64]> = stack.into();
        self.all.push(stack.clone());
        let number = self.all.len() as u32;
        self.numbers.insert(stack, number);
        number
    }

    /// Returns the stack with a number.
    pub(super) fn get(&self, number: u32) -> &[u64] {
        let index = (number as usize).checked_sub(1);
        index
            .and_then(|index| self.all.get(index))
            .map_or(&[], |stack| stack)
    }
}

/// A thread that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) thread: u32,
    /// The place where it has taken the lock.
    pub(super) place: Place,
}

/// A time that is measured repeatedly, in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) longest: u64,
    /// The place where the lock was taken that time.
    pub(super) place: Place,
    /// The thread that held it when another one began to wait that time, if known.
    pub(super) holder: Option<Holder>,
}

impl Times {
    fn add(&mut self, time: u64, place: Place, holder: Option<Holder>) {
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        if time >= self.longest {
            (self.longest, self.place, self.holder) = (time, place, holder);
        }
    }

    pub(super) fn held(lock: &Lock) -> &Self {
        &lock.held
    }

    pub(super) fn waited(lock: &Lock) -> &Self {
        &lock.waited
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lock {
    held: Times,
    waited: Times,
}

/// A lock that a thread holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    lock: u64,
    since: u64,
    place: Place,
    /// The number of times that it was taken.
    depth: u32,
}

/// The data of a call in progress.
#[derive(Clone, Copy, Debug)]
struct Call {
    action: Action,
    lock: u64,
    place: Place,
    /// The thread that holds the lock when this one asks for it.
    holder: Option<Holder>,
}

#[derive(Debug, Default)]
struct State {
    holds: Vec<Hold>,
    calls: Pairing<Call>,
}

/// One lock was taken while another one was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) held: u64,
    pub(super) held_at: Place,
    pub(super) taken: u64,
    pub(super) taken_at: Place,
    pub(super) thread: u32,
}

/// Contradictory orders; the last leads to the first lock of the first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inversion {
    pub(super) process: u32,
    pub(super) orders: Vec<Order>,
}

#[derive(Debug, Default)]
pub(super) struct Locks {
    actions: HashMap<(u32, u32), Option<Action>>,
    threads: HashMap<Thread, State>,
    /// The thread that has taken a lock last, of those that hold it.
    holders: HashMap<Name, Holder>,
    pub(super) locks: HashMap<Name, Lock>,
    /// For each lock, those that were taken while it was held.
    orders: HashMap<Name, Vec<Order>>,
    /// For each lock, those that were held when it was taken.
    before: HashMap<Name, Vec<u64>>,
    known: HashSet<(u32, u64, u64)>,
    /// Inversions not shown yet.
    pub(super) inversions: Vec<Inversion>,
    pub(super) lost: u64,
    /// The number of calls on locks without room.
    pub(super) untold: u64,
}

/// Returns the action of a function, by any of its names.
fn action(name: &str) -> Option<Action> {
    let name = name.split('@').next().unwrap_or(name);
    let name = name.trim_start_matches('_');
    functions().find_map(|(known, action)| (known == name).then_some(action))
}

impl Locks {
    pub(super) fn enter(
        &mut self,
        thread: Thread,
        function: u32,
        arguments: [u64; 2],
        place: Place,
        begin: u64,
        names: &Names,
    ) {
        let process = thread.0;
        let found = self.actions.entry((process, function)).or_insert_with(|| {
            let name = names.function(process, function);
            name.and_then(|known| action(&known.name))
        });
        let Some(action) = *found else { return };
        let lock = arguments[action.argument()];
        match action {
            Action::Unlock => self.release(thread, lock, begin, false),
            Action::Wait => self.release(thread, lock, begin, true),
            Action::Destroy => self.forget((process, lock)),
            Action::Lock => self.order(thread, lock, place),
            Action::Try | Action::Contended => {}
        }
        let holder = self.holders.get(&(process, lock)).copied();
        let state = self.threads.entry(thread).or_default();
        let call = Call {
            action,
            lock,
            place,
            holder: holder.filter(|holder| holder.thread != thread.1),
        };
        state.calls.enter(function, begin, call);
        while state.calls.change().is_some() {}
    }

    pub(super) fn leave(
        &mut self,
        thread: Thread,
        function: u32,
        result: Option<u64>,
        now: u64,
        how: Ending,
    ) {
        let Some(state) = self.threads.get_mut(&thread) else {
            return;
        };
        state.calls.exit(function, now, how);
        let mut ended = None;
        while let Some(change) = state.calls.change() {
            if let Change::Ended(call) = change {
                ended = call.duration().map(|took| (took, call.data));
            }
        }
        let Some((took, call)) = ended else {
            return;
        };
        if call.action.waits()
            && let Some(lock) = self.lock((thread.0, call.lock))
        {
            lock.waited.add(took, call.place, call.holder);
        }
        if call.action.takes(result) {
            self.take(thread, call.lock, now, call.place);
        }
    }

    /// Handles that a lock is about to be taken: the held ones come before it.
    fn order(&mut self, thread: Thread, lock: u64, place: Place) {
        let process = thread.0;
        let Some(state) = self.threads.get(&thread) else {
            return;
        };
        if state.holds.iter().any(|hold| hold.lock == lock) {
            return;
        }
        for hold in state.holds.clone() {
            if self.known.len() >= MOST || !self.known.insert((process, hold.lock, lock)) {
                continue;
            }
            let order = Order {
                held: hold.lock,
                held_at: hold.place,
                taken: lock,
                taken_at: place,
                thread: thread.1,
            };
            let of = |lock| self.orders.get(&(process, lock));
            let of = |lock| of(lock).map_or(&[][..], Vec::as_slice);
            let way = shortest_way(lock, hold.lock, of, |it| (it.held, it.taken));
            let orders = self.orders.entry((process, hold.lock)).or_default();
            orders.push(order);
            let before = self.before.entry((process, lock)).or_default();
            before.push(hold.lock);
            if let Some(way) = way {
                let orders = [vec![order], way].concat();
                self.inversions.push(Inversion { process, orders });
            }
        }
    }

    fn take(&mut self, thread: Thread, lock: u64, since: u64, place: Place) {
        let holder = Holder {
            thread: thread.1,
            place,
        };
        self.holders.insert((thread.0, lock), holder);
        let state = self.threads.entry(thread).or_default();
        match state.holds.iter_mut().find(|hold| hold.lock == lock) {
            Some(hold) => hold.depth = hold.depth.saturating_add(1),
            None => state.holds.push(Hold {
                lock,
                since,
                place,
                depth: 1,
            }),
        }
    }

    /// Handles that a lock is about to be released, once or completely.
    fn release(&mut self, thread: Thread, lock: u64, now: u64, is_whole: bool) {
        // The lock was taken by another thread.
        let Some(state) = self.threads.get_mut(&thread) else {
            return;
        };
        let Some(nth) = state.holds.iter().position(|hold| hold.lock == lock) else {
            return;
        };
        let hold = &mut state.holds[nth];
        hold.depth -= 1;
        if hold.depth > 0 && !is_whole {
            return;
        }
        let hold = state.holds.swap_remove(nth);
        self.holders.remove(&(thread.0, hold.lock));
        if let Some(lock) = self.lock((thread.0, lock)) {
            lock.held
                .add(now.saturating_sub(hold.since), hold.place, None);
        }
    }

    /// Handles that a lock is destroyed: another one may be made at its address.
    fn forget(&mut self, (process, lock): Name) {
        for order in self.orders.remove(&(process, lock)).unwrap_or_default() {
            self.known.remove(&(process, lock, order.taken));
        }
        for before in self.before.remove(&(process, lock)).unwrap_or_default() {
            self.known.remove(&(process, before, lock));
            if let Some(orders) = self.orders.get_mut(&(process, before)) {
                orders.retain(|order| order.taken != lock);
            }
        }
    }

    /// Handles missing events of a thread: its held locks are unknown from then on. `ends`, if
    /// known, is the number of missing ends of calls.
    pub(super) fn lose(&mut self, thread: Thread, events: u64, ends: Option<u64>) {
        self.lost = self.lost.saturating_add(events);
        if let Some(state) = self.threads.get_mut(&thread) {
            for hold in state.holds.drain(..) {
                self.holders.remove(&(thread.0, hold.lock));
            }
            state.calls.lose(ends);
            while state.calls.change().is_some() {}
        }
    }

    fn lock(&mut self, name: Name) -> Option<&mut Lock> {
        if self.locks.len() >= MOST && !self.locks.contains_key(&name) {
            self.untold += 1;
            return None;
        }
        Some(self.locks.entry(name).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: u32 = 5;

    fn place(at: u64) -> Place {
        Place { at, stack: 0 }
    }

    /// Events of threads: what a thread does with which lock; times count up.
    fn locks(events: &[(u32, Action, u64)]) -> Locks {
        let mut locks = Locks::default();
        let actions = [
            Action::Lock,
            Action::Try,
            Action::Unlock,
            Action::Destroy,
            Action::Wait,
        ];
        for (index, action) in (1..).zip(actions) {
            locks.actions.insert((1, index), Some(action));
        }
        for (now, &(thread, action, lock)) in (1..).zip(events) {
            let index = 1 + actions.iter().position(|it| *it == action).unwrap() as u32;
            let arguments = if index == WAIT { [0, lock] } else { [lock, 0] };
            let (thread, now) = ((1, thread), 10 * now);
            let names = Names::new(1);
            locks.enter(thread, index, arguments, place(now), now, &names);
            locks.leave(thread, index, Some(0), now + 5, Ending::Returned);
        }
        locks
    }

    fn inversions(events: &[(u32, Action, u64)]) -> Vec<Vec<(u64, u64)>> {
        let found = locks(events).inversions;
        let pairs = |it: Inversion| it.orders.iter().map(|it| (it.held, it.taken)).collect();
        found.into_iter().map(pairs).collect()
    }

    #[test]
    fn an_order_that_contradicts_others_is_an_inversion() {
        use Action::{Lock, Try, Unlock};
        let take = |thread, first, second| {
            [
                (thread, Lock, first),
                (thread, Lock, second),
                (thread, Unlock, second),
                (thread, Unlock, first),
            ]
        };
        let same = [take(1, 7, 8), take(2, 7, 8)].concat();
        assert_eq!(inversions(&same), [[]; 0]);
        let two = [take(1, 7, 8), take(2, 8, 7), take(1, 8, 7)].concat();
        assert_eq!(inversions(&two), [[(8, 7), (7, 8)]]);
        let three = [take(1, 7, 8), take(1, 8, 9), take(2, 9, 7)].concat();
        assert_eq!(inversions(&three), [[(9, 7), (7, 8), (8, 9)]]);
        let tried = [&take(1, 7, 8)[..], &[(2, Lock, 8), (2, Try, 7)]].concat();
        assert_eq!(inversions(&tried), [[]; 0]);
    }

    #[test]
    fn a_lock_that_was_destroyed_has_no_order() {
        use Action::{Destroy, Lock, Unlock};
        let first = [(1, Lock, 7), (1, Lock, 8), (1, Unlock, 8), (1, Unlock, 7)];
        let second = [(1, Lock, 8), (1, Lock, 7), (1, Unlock, 7), (1, Unlock, 8)];
        for destroyed in [7, 8] {
            let all = [&first[..], &[(1, Destroy, destroyed)], &second].concat();
            assert_eq!(inversions(&all), [[]; 0]);
        }
    }

    #[test]
    fn a_lock_is_held_until_it_is_released_or_waited_with() {
        use Action::{Lock, Unlock, Wait};
        let taken = [(1, Lock, 7), (1, Lock, 7), (1, Unlock, 7), (1, Unlock, 7)];
        let held = locks(&taken).locks[&(1, 7)].held;
        assert_eq!((held.count, held.longest, held.place), (1, 25, place(10)));
        let waits = [(1, Lock, 7), (1, Wait, 7), (1, Unlock, 7)];
        let lock = locks(&waits).locks[&(1, 7)];
        assert_eq!((lock.held.count, lock.held.sum), (2, 10));
        assert_eq!((lock.waited.count, lock.waited.sum), (1, 5));
    }

    #[test]
    fn a_wait_has_the_thread_that_held_the_lock() {
        let names = Names::new(1);
        let mut found = locks(&[(1, Action::Lock, 7)]);
        found.enter((1, 2), 1, [7, 0], place(99), 20, &names);
        found.enter((1, 1), 3, [7, 0], place(98), 30, &names);
        found.leave((1, 1), 3, Some(0), 31, Ending::Returned);
        found.leave((1, 2), 1, Some(0), 40, Ending::Returned);
        let waited = found.locks[&(1, 7)].waited;
        let holder = Holder {
            thread: 1,
            place: place(10),
        };
        assert_eq!((waited.longest, waited.holder), (20, Some(holder)));
    }

    #[test]
    fn stacks_are_kept_once() {
        let mut stacks = Stacks::default();
        let numbers = [&[1, 2][..], &[], &[3], &[1, 2]].map(|stack| stacks.number(stack));
        assert_eq!(numbers, [1, 0, 2, 1]);
        assert_eq!((stacks.get(1), stacks.get(0)), (&[1, 2][..], &[][..]));
    }

    #[test]
    fn held_locks_are_unknown_after_a_loss() {
        use Action::{Lock, Unlock};
        let mut found = locks(&[(1, Lock, 7)]);
        found.lose((1, 1), 3, None);
        assert_eq!(found.lost, 3);
        assert!(found.threads[&(1, 1)].holds.is_empty());
        let again = locks(&[(1, Unlock, 7)]);
        assert_eq!(again.locks.len(), 0);
    }

    #[test]
    fn a_call_that_goes_on_after_a_loss_takes_its_lock() {
        let (thread, names) = ((1, 1), Names::new(1));
        for (ends, waits) in [(Some(0), 1), (Some(1), 0), (None, 0)] {
            let mut found = locks(&[]);
            found.enter(thread, 1, [7, 0], place(0), 10, &names);
            found.lose(thread, 1, ends);
            found.leave(thread, 1, Some(0), 30, Ending::Returned);
            let waited = found.locks.get(&(1, 7)).map_or(0, |lock| lock.waited.count);
            let holds = found.threads[&thread].holds.len();
            assert_eq!((waited, holds), (waits, waits as usize), "{ends:?}");
        }
    }
}
