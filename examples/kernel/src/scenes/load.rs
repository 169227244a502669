//! Load: tasks of three kinds, timer interrupts and NMIs on both processors, and 16 users that are
//! registered and unregistered at random.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::stage::scene;
use crate::clock;
use crate::heap;
use crate::interrupts;
use crate::machine;
use crate::queue;
use crate::serial::println;
use crate::start::Settings;
use crate::tasks;
use crate::trace::control::{self, Error, User};
use crate::trace::state;
use crate::users::checker::Checker;
use crate::users::depth::Depth;
use crate::users::graph::Graph;
use crate::users::latency::Latency;
use crate::users::profiler::Profiler;
use crate::work;

/// Tasks that work.
const WORKERS: u64 = 8;

/// Filters, from which the users take theirs.
const FILTERS: [&str; 12] = [
    "kernel::*",
    "kernel::work::*",
    "kernel::tasks::*",
    "kernel::heap::* kernel::queue::*",
    "kernel::work::* !kernel::work::leaf",
    "*::timer_tick *::count_tick *::nmi_work *::count_nmi",
    "kernel::tasks::schedule kernel::tasks::pick_next",
    "kernel::apic::* kernel::clock::* kernel::symbols::*",
    "kernel::work::leaf",
    "kernel::queue::* *::nmi_work",
    "kernel::work::many kernel::work::pair kernel::work::descend",
    "* !kernel::tasks::*",
];

static IS_OVER: AtomicBool = AtomicBool::new(false);
/// Rounds of the workers, and results that were wrong.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static FAILURES: AtomicU64 = AtomicU64::new(0);
/// Workers that have not ended.
static WORKING: AtomicU64 = AtomicU64::new(0);

/// Random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A registered user of any kind.
enum Any {
    Checker(User<Checker>),
    Graph(User<Graph>),
    Profiler(User<Profiler>),
    Latency(User<Latency>),
    Depth(User<Depth>),
}

/// The sums of all users that have left.
#[derive(Default)]
struct Sums {
    registrations: u64,
    refusals: u64,
    filters: u64,
    accepted: u64,
    returned: u64,
    dropped: u64,
    failures: u64,
}

fn fail(what: &str) {
    println!("FAIL: {what}");
    FAILURES.fetch_add(1, Ordering::Relaxed);
}

fn check(is_right: bool, what: &str) {
    if !is_right {
        fail(what);
    }
}

/// Runs the load for the seconds of the settings.
pub(super) fn run(settings: &Settings) {
    scene("load");
    let mut random = Random(settings.seed);
    interrupts::be_quiet(true);
    tasks::prefer();
    interrupts::send_nmis(true);
    let used = heap::used();
    for worker in 0..WORKERS {
        WORKING.fetch_add(1, Ordering::Relaxed);
        check(tasks::spawn(move || work_on(worker)).is_some(), "no task");
    }
    let before = (work::counts(), interrupts::traps(), tasks::switches());
    let start = clock::now();
    let end = start + settings.seconds * 1_000_000_000;
    let mut users: Vec<Any> = Vec::new();
    let mut sums = Sums::default();
    let mut ended = (0, 0);
    let mut most = 0;
    while clock::now() < end {
        step(&mut random, &mut users, &mut sums);
        most = most.max(users.len());
        match random.below(8) {
            0 => begin(|| {
                work::end_within(black_box(4));
            }),
            1 => begin(|| {
                let result = work::outer(3);
                check(result == work::outer_result(3), "a short task");
            }),
            2 if random.below(16) == 0 => begin(|| {
                work::overflow(0);
            }),
            _ => {}
        }
        let (tasks, by_fault) = state::reap();
        ended = (ended.0 + tasks, ended.1 + by_fault);
    }
    while let Some(user) = users.pop() {
        leave(user, &mut sums);
    }
    IS_OVER.store(true, Ordering::Relaxed);
    while WORKING.load(Ordering::Relaxed) != 0 {
        tasks::give_way();
    }
    interrupts::send_nmis(false);
    clock::wait(2_000_000);
    let (tasks, by_fault) = state::reap();
    ended = (ended.0 + tasks, ended.1 + by_fault);
    interrupts::be_quiet(false);
    let milliseconds = (clock::now() - start) / 1_000_000;
    let per_second = |count: u64| count * 1000 / milliseconds.max(1);
    let after = (work::counts(), interrupts::traps(), tasks::switches());
    check(control::patched() == 0, "text is not restored");
    let counters = state::counters();
    println!("load: milliseconds {milliseconds}");
    println!("load: registrations {}, at once {most}", sums.registrations);
    println!(
        "load: refused {}, filters changed {}",
        sums.refusals, sums.filters
    );
    println!("load: rounds of work {}", ROUNDS.load(Ordering::Relaxed));
    println!(
        "load: timer interrupts a second {}",
        per_second(after.0.0 - before.0.0)
    );
    println!("load: NMIs a second {}", per_second(after.0.1 - before.0.1));
    for (name, places) in [
        ("timer interrupts", &interrupts::TIMER_PLACES),
        ("NMIs", &interrupts::NMI_PLACES),
    ] {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        println!("load: {name} in trampolines {}", get(&places.trampoline));
        println!("load: {name} in callbacks {}", get(&places.callback));
        println!("load: {name} in patching {}", get(&places.writing));
    }
    println!("load: latest interrupt {} us", work::take_latest() / 1000);
    println!("load: switches of tasks {}", after.2 - before.2);
    println!("load: tasks ended {}, by a full stack {}", ended.0, ended.1);
    println!("load: breakpoints hit {}", after.1 - before.1);
    println!("load: items refused by the queue {}", queue::refused());
    println!(
        "load: calls accepted {}, returned {}, dropped {}",
        sums.accepted, sums.returned, sums.dropped
    );
    println!("load: {counters}");
    println!("load: heap {} bytes before, {} after", used, heap::used());
    let failures = FAILURES.load(Ordering::Relaxed) + sums.failures;
    println!("load: failures {failures}");
    if failures != 0 {
        machine::leave(false);
    }
}

/// Starts a task, unless there are too many.
fn begin(work: impl FnOnce() + Send + 'static) {
    let _ = tasks::spawn(work);
}

/// Registers a user, unregisters one, or changes a filter.
fn step(random: &mut Random, users: &mut Vec<Any>, sums: &mut Sums) {
    let filter = FILTERS[random.below(FILTERS.len())];
    // As many as possible for some time, then fewer.
    let wanted = 1 + random.below(24);
    if random.below(4) == 0 && !users.is_empty() {
        let user = &users[random.below(users.len())];
        if let Any::Checker(user) = user {
            user.filter(filter);
            sums.filters += 1;
        }
    } else if users.len() < wanted {
        match enter(random, filter) {
            Ok(user) => {
                users.push(user);
                sums.registrations += 1;
            }
            Err(Error::NoFreeSlot) => {
                check(users.len() == 16, "a slot is missing");
                sums.refusals += 1;
            }
            Err(error) => {
                println!("FAIL: {error}");
                sums.failures += 1;
            }
        }
    } else {
        let user = users.swap_remove(random.below(users.len()));
        leave(user, sums);
    }
}

fn enter(random: &mut Random, filter: &str) -> Result<Any, Error> {
    let is_fast = random.below(3) != 0;
    let number = random.next();
    match number % 12 {
        0 => {
            let user = control::register(Graph::new(), filter, is_fast);
            user.map(Any::Graph).map_err(|(_, error)| error)
        }
        1 => {
            let user = control::register(Profiler::new(), filter, is_fast);
            user.map(Any::Profiler).map_err(|(_, error)| error)
        }
        2 => {
            let user = control::register(Latency::default(), "*::timer_tick", is_fast);
            user.map(Any::Latency).map_err(|(_, error)| error)
        }
        3 => {
            let user = control::register(Depth::default(), filter, is_fast);
            user.map(Any::Depth).map_err(|(_, error)| error)
        }
        _ => {
            let user = control::register(Checker::new(number), filter, is_fast);
            user.map(Any::Checker).map_err(|(_, error)| error)
        }
    }
}

fn leave(user: Any, sums: &mut Sums) {
    match user {
        Any::Checker(user) => {
            let user = user.unregister();
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (accepted, returned) = (get(&user.accepted), get(&user.returned));
            let dropped = get(&user.dropped);
            sums.accepted += accepted;
            sums.returned += returned;
            sums.dropped += dropped;
            sums.failures += get(&user.failures);
            if get(&user.failures) != 0 {
                println!("FAIL: {} returns with wrong data", get(&user.failures));
            }
            let is_right = returned + dropped <= accepted;
            check(is_right, "more calls have returned than were accepted");
        }
        Any::Graph(user) => drop(user.unregister()),
        Any::Profiler(user) => drop(user.unregister()),
        Any::Latency(user) => drop(user.unregister()),
        Any::Depth(user) => drop(user.unregister()),
    }
}

/// The work of a task: its results are known.
fn work_on(worker: u64) {
    let mut value = worker;
    while !IS_OVER.load(Ordering::Relaxed) {
        match worker {
            0 => {
                let item = queue::queue_pop();
                check(work::leaf(item) == work::leaf_result(item), "an item");
            }
            1..=3 => check(work::allocate(40, value), "the heap"),
            4 => {
                let depth = value % 40;
                check(
                    work::descend(depth) == work::descend_result(depth),
                    "descend",
                );
                tasks::give_way();
            }
            _ => check(work::outer(value) == work::outer_result(value), "outer"),
        }
        let at = |nth: u64| black_box(value + nth);
        let many = work::many(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
        check(many == work::many_result(value), "many");
        let pair = work::pair(value);
        let expected = (work::leaf_result(value), work::leaf_result(value + 1));
        check(pair == expected, "pair");
        ROUNDS.fetch_add(1, Ordering::Relaxed);
        value = (value + WORKERS) % 1_000_000;
    }
    WORKING.fetch_sub(1, Ordering::Relaxed);
}
