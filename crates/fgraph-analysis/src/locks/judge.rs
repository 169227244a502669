//! Computes orders, holds and waits from threads' calls on locks.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use fgraph_symbols::locks::{Action, functions, shortest_way};
use fgraph_trace::names::Names;
use fgraph_trace::pairing::{Change, Ending, Pairing};

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
    /// True if other readers may hold it, too.
    is_shared: bool,
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
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lock {
    pub(super) held: Times,
    pub(super) waited: Times,
}

/// A lock that a thread holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    lock: u64,
    since: u64,
    place: Place,
    /// The number of times that it was taken.
    depth: u32,
    is_shared: bool,
}

/// The data of a call in progress.
#[derive(Clone, Copy, Debug)]
struct Call {
    action: Action,
    lock: u64,
    place: Place,
    /// True if it asks for a lock that readers share.
    is_shared: bool,
    /// The thread that holds the lock when this one asks for it, or that takes it before.
    holder: Option<Holder>,
    /// True if another thread has the lock while this one asks for it.
    is_contended: bool,
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

/// The locks of a source's processes: their orders, holds and waits.
#[derive(Debug, Default)]
pub struct Locks {
    pub(super) stacks: Stacks,
    /// The action of each function, and true if readers share the lock.
    actions: HashMap<(u32, u32), Option<(Action, bool)>>,
    threads: HashMap<Thread, State>,
    /// The thread that has taken a lock last, of those that hold it.
    holders: HashMap<Name, Holder>,
    /// Threads that ask for a lock.
    asking: HashMap<Name, Vec<u32>>,
    pub(super) locks: HashMap<Name, Lock>,
    /// For each lock, those that were taken while it was held.
    orders: HashMap<Name, Vec<Order>>,
    /// For each lock, those that were held when it was taken.
    before: HashMap<Name, Vec<u64>>,
    known: HashSet<(u32, u64, u64)>,
    /// Inversions not shown yet.
    pub(super) inversions: Vec<Inversion>,
    /// The number of missing events.
    pub lost: u64,
    /// The number of calls on locks that were not followed, because there are too many locks.
    pub untold: u64,
}

/// Returns the action of a function, by any of its names, and true if readers share the lock.
fn action(name: &str) -> Option<(Action, bool)> {
    let name = name.split('@').next().unwrap_or(name);
    let name = name.trim_start_matches('_');
    let action = functions().find_map(|(known, action)| (known == name).then_some(action));
    Some((action?, name.contains("rdlock")))
}

/// Takes a thread from those that ask for the lock of a call that has ended.
fn stop_asking(asking: &mut HashMap<Name, Vec<u32>>, (process, thread): Thread, call: &Call) {
    let key = (process, call.lock);
    if let Some(threads) = asking.get_mut(&key).filter(|_| call.action == Action::Lock) {
        if let Some(at) = threads.iter().position(|it| *it == thread) {
            threads.swap_remove(at);
        }
        if threads.is_empty() {
            asking.remove(&key);
        }
    }
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
        let Some((action, is_shared)) = *found else {
            return;
        };
        let lock = arguments[action.argument()];
        match action {
            Action::Unlock => self.release(thread, lock, begin, false),
            Action::Wait => self.release(thread, lock, begin, true),
            Action::Destroy => self.forget((process, lock)),
            Action::Lock => self.order(thread, lock, place),
            Action::Try | Action::Contended => {}
        }
        let holder = self.holders.get(&(process, lock)).copied();
        let holder = holder.filter(|it| it.thread != thread.1 && !(it.is_shared && is_shared));
        if action == Action::Lock {
            let asking = self.asking.entry((process, lock)).or_default();
            asking.push(thread.1);
        }
        let state = self.threads.entry(thread).or_default();
        let call = Call {
            action,
            lock,
            place,
            is_shared,
            holder,
            is_contended: holder.is_some() || action == Action::Contended,
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
                stop_asking(&mut self.asking, thread, &call.data);
                ended = call.duration().map(|took| (took, call.data));
            }
        }
        let Some((took, call)) = ended else {
            return;
        };
        if call.action.waits()
            && call.is_contended
            && let Some(lock) = self.lock((thread.0, call.lock))
        {
            lock.waited.add(took, call.place, call.holder);
        }
        if call.action.takes(result) {
            self.take(thread, &call, now);
        }
    }

    /// Notes that a thread has a lock: others that ask for it wait.
    fn contend(&mut self, thread: Thread, lock: u64, is_shared: bool, holder: Option<Holder>) {
        let asking = self.asking.get(&(thread.0, lock));
        for &other in asking.into_iter().flatten() {
            let state = self.threads.get_mut(&(thread.0, other));
            let call = state.and_then(|state| state.calls.calls_mut().last_mut());
            if let Some(call) = call
                && other != thread.1
                && !(is_shared && call.data.is_shared)
            {
                call.data.is_contended = true;
                call.data.holder = call.data.holder.or(holder);
            }
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

    fn take(&mut self, thread: Thread, call: &Call, since: u64) {
        let Call {
            lock,
            place,
            is_shared,
            ..
        } = *call;
        let holder = Holder {
            thread: thread.1,
            place,
            is_shared,
        };
        self.holders.insert((thread.0, lock), holder);
        self.contend(thread, lock, is_shared, Some(holder));
        let state = self.threads.entry(thread).or_default();
        match state.holds.iter_mut().find(|hold| hold.lock == lock) {
            Some(hold) => hold.depth = hold.depth.saturating_add(1),
            None => state.holds.push(Hold {
                lock,
                since,
                place,
                depth: 1,
                is_shared,
            }),
        }
    }

    /// Handles that a lock is about to be released, once or completely.
    fn release(&mut self, thread: Thread, lock: u64, now: u64, is_whole: bool) {
        let state = self.threads.get(&thread);
        let hold = state.and_then(|state| state.holds.iter().find(|hold| hold.lock == lock));
        // If it is unknown who has taken it, readers may have.
        let is_shared = hold.is_none_or(|hold| hold.is_shared);
        self.contend(thread, lock, is_shared, None);
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
            while let Some(change) = state.calls.change() {
                if let Change::Ended(call) = change {
                    stop_asking(&mut self.asking, thread, &call.data);
                }
            }
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
mod tests;
