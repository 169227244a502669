//! `fgraph locks`: locks that are taken in orders that can deadlock, that are held long, and that
//! are waited for.
//!
//! The calls of the C library's functions for locks are events as others are, with the lock, the
//! caller and the result; what they come to is found here. So nothing is lost with the program, and
//! its locks cost no more than recorded calls.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::process::ExitCode;

use fgraph_trace::Source;
use fgraph_trace::event::What as Did;
use fgraph_trace::names::{Names, process_id};
use fgraph_trace::pairing::{Change, Ending, Pairing};
use fgraph_tracers::agent::Settings;
use fgraph_tracers::locks::{Action, functions};
use serde::Serialize;

use crate::error::Error;
use crate::json;
use crate::launch::events::Events;
use crate::launch::interrupt::Interrupts;
use crate::launch::{Launched, Target};
use crate::output::Out;
use crate::places::{self, Places};
use crate::sources;
use crate::table::Table;
use crate::text::{self, grouped, time};

const EXAMPLES: &str = "\
Examples:
  fgraph locks -- ./server
  fgraph locks -n 20 -p 1234

Seen are POSIX mutexes, read-write locks, spin locks and condition variables, which release a mutex
while they wait. The locks of Rust's standard library are no functions where they are free: of these
waits are seen, where the functions for that were not inlined.

Taking a lock while another one is held says that the other one comes first. Taking two locks in an
order that contradicts what was taken before is an inversion: it may deadlock, whether it has or
not. A lock is known by its address, until it is destroyed.";

/// Run a program and show locks that can deadlock, and those held and waited for longest
///
/// Inversions are shown as they are met, each two locks once for each process; the tables come at
/// the end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// How many locks each table shows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Print one JSON object when the program has ended
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The view as JSON.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LocksView {
    /// Events that are missing.
    lost: u64,
    /// Calls of locks that are too many to be followed.
    not_followed: u64,
    /// In the order in which they were met.
    inversions: Vec<InversionView>,
    /// The locks that were held longest at once.
    held: Vec<LockView>,
    /// The locks that were waited for longest at once.
    waited: Vec<LockView>,
}

/// Locks that were taken in orders that contradict each other.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InversionView {
    process: u32,
    /// Each takes the lock that the next one holds, the last one that of the first.
    orders: Vec<OrderView>,
}

/// A lock that was taken while another one was held.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OrderView {
    thread: json::Thread,
    /// Addresses of locks are hexadecimal.
    taken: String,
    taken_at: String,
    held: String,
    held_at: String,
}

/// How long a lock was held or waited for.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LockView {
    process: u32,
    /// Its address, in hexadecimal.
    lock: String,
    /// The place where it was taken for the longest time.
    at: String,
    times: u64,
    total_ns: u64,
    longest_ns: u64,
}

/// Runs the program, and ends as it does.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let settings = Settings {
        trace: functions().map(|(name, _)| format!("{name:?}")).collect(),
        arguments: 2,
        result: true,
        callers: true,
        ..Settings::default()
    };
    let show = |launched: &mut _, interrupts: &_| show(args, launched, interrupts);
    args.target.run(settings, show)
}

/// Locks and orders that are told apart; of more only holds and waits are lost, and counted.
const MOST: usize = 1 << 18;

fn show(args: &Args, launched: &mut Launched, interrupts: &Interrupts) -> Result<(), Error> {
    let failed = |error| Error::source("the rings", error);
    let rings = launched.rings().clone();
    let mut events = Events::new(launched, interrupts)?;
    let mut out = Out::new();
    let mut places = Places::default();
    let mut locks = Locks::default();
    let mut inversions = Vec::new();
    loop {
        if !events.is_ready().map_err(failed)? {
            out.flush()?;
        }
        let Some(event) = events.next().map_err(failed)? else {
            break;
        };
        let (now, thread) = (event.time, (event.process, event.thread));
        match event.what {
            Did::Entry {
                function,
                arguments,
                caller,
                is_entry_only,
            } => {
                let arguments = [0, 1].map(|nth| arguments.get(nth).copied().unwrap_or(0));
                // What is behind the last instruction of a function belongs to another one.
                let at = caller.unwrap_or(0).saturating_sub(1);
                locks.enter(thread, function, arguments, at, now, events.names());
                if is_entry_only {
                    // Whether it has taken the lock is not known.
                    locks.leave(thread, function, None, now);
                }
            }
            Did::Return { function, result } => {
                let result = result.first().copied();
                locks.leave(thread, function, result, now);
            }
            Did::Unwound { function } => locks.leave(thread, function, None, now),
            Did::Lost { events, ends } => locks.lose(thread, events, ends),
            Did::Mark(_) => {}
        }
        for inversion in std::mem::take(&mut locks.inversions) {
            match args.json {
                true => inversions.push(inversion.to_json(events.names(), &mut places)),
                false => out.line(inversion.describe(events.names(), &mut places))?,
            }
        }
    }
    let lost = locks.lost.saturating_add(rings.events_without_ring());
    let held = locks.longest(Times::held, &events);
    let waited = locks.longest(Times::waited, &events);
    if args.json {
        let mut view = |all: &[Longest<'_>]| {
            let shown = all.iter().take(args.lines);
            let view = shown.map(|one| one.to_json(&events, &mut places));
            view.collect()
        };
        return json::write(&LocksView {
            lost,
            not_followed: locks.untold,
            inversions,
            held: view(&held),
            waited: view(&waited),
        });
    }
    for (what, all) in [("held", held), ("waited for", waited)] {
        let mut table = Table::new(&[
            ("longest", 0),
            ("total", 2),
            ("times", 1),
            ("lock", 0),
            ("at", 0),
        ]);
        for one in all.iter().take(args.lines) {
            let one = one.to_json(&events, &mut places);
            table.row(vec![
                time(one.longest_ns),
                time(one.total_ns),
                grouped(one.times),
                one.lock,
                one.at,
            ]);
        }
        let count = grouped(all.len() as u64);
        out.line(format_args!("{count} locks {what}"))?;
        table.write(&mut out)?;
    }
    if lost > 0 {
        say!(
            "fgraph: {} events lost, and what they would have told",
            grouped(lost)
        );
    }
    if locks.untold > 0 {
        say!(
            "fgraph: {} of further locks not followed",
            text::calls(locks.untold)
        );
    }
    out.finish()
}

/// Process and thread.
type Thread = (u32, u32);
/// Process and address.
type Name = (u32, u64);

/// A time that is measured again and again, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    count: u64,
    sum: u64,
    longest: u64,
    /// Where the lock was taken that time.
    at: u64,
}

impl Times {
    fn add(&mut self, time: u64, at: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(time);
        if time >= self.longest {
            (self.longest, self.at) = (time, at);
        }
    }

    fn held(lock: &Lock) -> &Self {
        &lock.held
    }

    fn waited(lock: &Lock) -> &Self {
        &lock.waited
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Lock {
    held: Times,
    waited: Times,
}

/// A lock that a thread holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    lock: u64,
    since: u64,
    at: u64,
    /// How often it was taken.
    depth: u32,
}

/// The data that is kept of a call that goes on.
#[derive(Clone, Copy, Debug)]
struct Call {
    action: Action,
    lock: u64,
    at: u64,
}

#[derive(Debug, Default)]
struct State {
    holds: Vec<Hold>,
    calls: Pairing<Call>,
}

/// One lock was taken while another one was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    held: u64,
    held_at: u64,
    taken: u64,
    taken_at: u64,
    thread: u32,
}

/// Orders that contradict each other; the last leads to the first lock of the first.
#[derive(Debug, PartialEq, Eq)]
struct Inversion {
    process: u32,
    orders: Vec<Order>,
}

impl Inversion {
    fn describe(&self, names: &Names, places: &mut Places) -> String {
        let orders = self.orders.iter().map(|order| {
            let thread = places::thread(names, self.process, order.thread);
            let OrderView {
                taken,
                taken_at,
                held,
                held_at,
                ..
            } = self.order_to_json(order, names, places);
            format!("{taken} was taken by {thread} at {taken_at} with {held} of {held_at}")
        });
        let orders: Vec<String> = orders.collect();
        format!("inversion: {}", orders.join("; but "))
    }

    fn to_json(&self, names: &Names, places: &mut Places) -> InversionView {
        let orders = self.orders.iter();
        InversionView {
            process: process_id(self.process),
            orders: orders
                .map(|order| self.order_to_json(order, names, places))
                .collect(),
        }
    }

    fn order_to_json(&self, order: &Order, names: &Names, places: &mut Places) -> OrderView {
        let name = names.thread(self.process, order.thread);
        OrderView {
            thread: json::Thread {
                process: process_id(self.process),
                thread: order.thread,
                name: name.unwrap_or_default().to_owned(),
            },
            taken: format!("{:#x}", order.taken),
            taken_at: places.at(names, self.process, order.taken_at),
            held: format!("{:#x}", order.held),
            held_at: places.at(names, self.process, order.held_at),
        }
    }
}

/// A lock, and how long it was held or waited for.
struct Longest<'l> {
    name: Name,
    times: &'l Times,
}

impl Longest<'_> {
    fn to_json(&self, events: &Events<'_>, places: &mut Places) -> LockView {
        let ((process, address), times) = (self.name, self.times);
        let clock = events.clock();
        LockView {
            process: process_id(process),
            lock: format!("{address:#x}"),
            at: places.at(events.names(), process, times.at),
            times: times.count,
            total_ns: clock.nanoseconds(times.sum),
            longest_ns: clock.nanoseconds(times.longest),
        }
    }
}

#[derive(Debug, Default)]
struct Locks {
    actions: HashMap<(u32, u32), Option<Action>>,
    threads: HashMap<Thread, State>,
    locks: HashMap<Name, Lock>,
    /// For each lock those that were taken while it was held.
    orders: HashMap<Name, Vec<Order>>,
    /// For each lock those that were held when it was taken.
    before: HashMap<Name, Vec<u64>>,
    known: HashSet<(u32, u64, u64)>,
    /// Not shown yet.
    inversions: Vec<Inversion>,
    lost: u64,
    /// Calls of locks for which there is no room.
    untold: u64,
}

/// What a function does with a lock, by any of its names.
fn action(name: &str) -> Option<Action> {
    let name = name.split('@').next().unwrap_or(name);
    let name = name.trim_start_matches('_');
    functions().find_map(|(known, action)| (known == name).then_some(action))
}

impl Locks {
    fn enter(
        &mut self,
        thread: Thread,
        function: u32,
        arguments: [u64; 2],
        at: u64,
        begin: u64,
        names: &Names,
    ) {
        let process = thread.0;
        let found = self.actions.entry((process, function)).or_insert_with(|| {
            let name = names.function(process, function);
            name.and_then(|known| action(&known.name))
        });
        let Some(action) = *found else { return };
        let lock = arguments[usize::from(action == Action::Wait)];
        match action {
            Action::Unlock => self.release(thread, lock, begin, false),
            Action::Wait => self.release(thread, lock, begin, true),
            Action::Destroy => self.forget((process, lock)),
            Action::Lock => self.order(thread, lock, at),
            Action::Try | Action::Contended => {}
        }
        let state = self.threads.entry(thread).or_default();
        let call = Call { action, lock, at };
        state.calls.enter(function, begin, call);
        while state.calls.change().is_some() {}
    }

    fn leave(&mut self, thread: Thread, function: u32, result: Option<u64>, now: u64) {
        let Some(state) = self.threads.get_mut(&thread) else {
            return;
        };
        // An unwound one ends as well.
        state.calls.exit(function, now, Ending::Returned);
        let mut ended = None;
        while let Some(change) = state.calls.change() {
            if let Change::Ended(call) = change {
                ended = call.duration().map(|took| (took, call.data));
            }
        }
        let Some((took, call)) = ended else {
            return;
        };
        if matches!(call.action, Action::Lock | Action::Contended)
            && let Some(lock) = self.lock((thread.0, call.lock))
        {
            lock.waited.add(took, call.at);
        }
        // A wait that fails, or that is cancelled, has taken its mutex again all the same.
        let is_taken = match call.action {
            Action::Wait => true,
            Action::Lock | Action::Try => {
                let result = result.map(|result| result as u32 as i32);
                matches!(result, Some(0 | libc::EOWNERDEAD))
            }
            Action::Contended | Action::Unlock | Action::Destroy => false,
        };
        if is_taken {
            self.take(thread, call.lock, now, call.at);
        }
    }

    /// A lock is about to be taken: what is held comes before it.
    fn order(&mut self, thread: Thread, lock: u64, at: u64) {
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
                held_at: hold.at,
                taken: lock,
                taken_at: at,
                thread: thread.1,
            };
            let way = self.way(process, lock, hold.lock);
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

    /// The shortest way from one lock to another one that it comes before.
    fn way(&self, process: u32, from: u64, to: u64) -> Option<Vec<Order>> {
        let mut reached: HashMap<u64, Order> = HashMap::new();
        let mut todo = VecDeque::from([from]);
        while let Some(lock) = todo.pop_front() {
            for order in self.orders.get(&(process, lock)).into_iter().flatten() {
                if order.taken != from && !reached.contains_key(&order.taken) {
                    reached.insert(order.taken, *order);
                    todo.push_back(order.taken);
                }
            }
        }
        let mut way = Vec::new();
        let mut lock = to;
        while lock != from {
            let order = reached.get(&lock)?;
            way.push(*order);
            lock = order.held;
        }
        way.reverse();
        Some(way)
    }

    fn take(&mut self, thread: Thread, lock: u64, since: u64, at: u64) {
        let state = self.threads.entry(thread).or_default();
        match state.holds.iter_mut().find(|hold| hold.lock == lock) {
            Some(hold) => hold.depth = hold.depth.saturating_add(1),
            None => state.holds.push(Hold {
                lock,
                since,
                at,
                depth: 1,
            }),
        }
    }

    /// A lock is about to be released, once, or wholly.
    fn release(&mut self, thread: Thread, lock: u64, now: u64, is_whole: bool) {
        // What another thread has taken is not known here.
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
        if let Some(lock) = self.lock((thread.0, lock)) {
            lock.held.add(now.saturating_sub(hold.since), hold.at);
        }
    }

    /// A lock is destroyed, in whose place another one may be made.
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

    /// Events of a thread are missing, of which so many ended calls, if that is known: what it
    /// holds is not known any more.
    fn lose(&mut self, thread: Thread, events: u64, ends: Option<u64>) {
        self.lost = self.lost.saturating_add(events);
        if let Some(state) = self.threads.get_mut(&thread) {
            state.holds.clear();
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

    /// The locks of the program, those first that were held or waited for longest.
    fn longest(&self, of: fn(&Lock) -> &Times, events: &Events<'_>) -> Vec<Longest<'_>> {
        // The agent's own locks are none of the program's.
        let is_ours = |process: u32, at: u64| {
            let module = sources::module_at(events.names(), process, at);
            module.is_some_and(|module| {
                let file = module.path.rsplit('/').next().unwrap_or_default();
                file.starts_with("fgraph-agent-")
            })
        };
        let locks = self.locks.iter();
        let mut locks: Vec<_> = locks
            .map(|(&name, lock)| Longest {
                name,
                times: of(lock),
            })
            .filter(|one| one.times.count > 0 && !is_ours(one.name.0, one.times.at))
            .collect();
        locks.sort_by_key(|one| (Reverse(one.times.longest), one.name));
        locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: u32 = 5;

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
            locks.enter(thread, index, arguments, now, now, &names);
            locks.leave(thread, index, Some(0), now + 5);
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
        assert_eq!((held.count, held.longest, held.at), (1, 25, 10));
        let waits = [(1, Lock, 7), (1, Wait, 7), (1, Unlock, 7)];
        let lock = locks(&waits).locks[&(1, 7)];
        assert_eq!((lock.held.count, lock.held.sum), (2, 10));
        assert_eq!((lock.waited.count, lock.waited.sum), (1, 5));
    }

    #[test]
    fn what_is_held_is_not_known_after_a_loss() {
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
            found.enter(thread, 1, [7, 0], 0, 10, &names);
            found.lose(thread, 1, ends);
            found.leave(thread, 1, Some(0), 30);
            let waited = found.locks.get(&(1, 7)).map_or(0, |lock| lock.waited.count);
            let holds = found.threads[&thread].holds.len();
            assert_eq!((waited, holds), (waits, waits as usize), "{ends:?}");
        }
    }

    #[test]
    fn the_docs_have_the_schema() {
        json::check_schema::<LocksView>("locks");
    }
}
