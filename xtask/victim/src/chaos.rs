//! Everything hostile that a program may do, mixed at random, while users register and unregister
//! and live code is patched.
//!
//! *Actors* perform random [acts](ACTS). Which, and with what arguments, follows from the seed, the
//! round and the actor's number alone. Each act checks its results. The time is divided into
//! rounds: at the end of each all threads end, and the books of the users ([`ledger`]) must
//! balance.

mod act;
mod contexts;
mod controllers;
mod coroutines;
mod jumps;
mod ledger;
mod libraries;
mod limits;
mod memory;
mod processes;
mod short_threads;
mod signals;
mod towers;
mod tracers;
mod unwinding;
mod watchdog;

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use act::Act;
use signals::{Actor, Signals};

use crate::failures::{Failure, note};
use crate::figures::Figures;
use crate::filters::Range;
use crate::formula::mix;
use crate::options::Options;
use crate::rng::Rng;
use crate::threads;
use crate::workers;

/// Acts of an actor in a round.
const ACTS_IN_ROUND: u64 = 300;
/// Bytes of an actor's stack.
const STACK: usize = 8 << 20;
/// Number of threads that register and unregister.
const CONTROLLERS: usize = 2;
/// First stream of their random numbers.
const CONTROLLER_STREAM: u64 = 1 << 32;
/// Stream of the tracers' random numbers.
const TRACER_STREAM: u64 = 2 << 32;

/// An act's name, its weight in the choice, and the function that does it.
type Performance = (&'static str, usize, fn(&Actor, &mut Rng));

/// The acts, each at its place.
const ACTS: [Performance; 15] = [
    ("calls", 20, call),
    ("threads", 12, short_threads::start_some),
    ("panics", 20, unwinding::unwind),
    ("jumps", 20, jumps::jump_out),
    ("coroutines", 30, coroutines::resume_some),
    ("storms", 4, signals::storm),
    ("left_handlers", 8, signals::leave),
    ("forks", 1, processes::fork),
    ("spawns", 1, processes::spawn),
    ("libraries", 2, libraries::load),
    ("descents", 4, limits::descend),
    ("contexts", 6, contexts::travel),
    ("vforks", 1, processes::vfork),
    ("executions", 1, processes::execute),
    ("exchanges", 2, processes::exchange),
];

static PERFORMED: [AtomicU64; ACTS.len()] = [const { AtomicU64::new(0) }; ACTS.len()];

/// Acts that are mixed, a bit each.
static CHOSEN: AtomicU64 = AtomicU64::new(0);

/// Calls functions and does nothing else.
fn call(actor: &Actor, rng: &mut Rng) {
    for _ in 0..200 {
        workers::call(rng.below(actor.sites), rng.next());
    }
}

/// Prepares for all that goes on.
pub(crate) fn prepare(options: &Options, library: &Path) -> Result<(), Box<dyn Error>> {
    let tracers = if options.tracers { tracers::USERS } else { 0 };
    if options.users + tracers + processes::USERS > fgraph::MAX_USERS {
        return Err(format!("{} slots of users are taken", tracers + processes::USERS).into());
    }
    if options.threads > watchdog::MAX_ACTORS {
        return Err(format!("--threads must be at most {}", watchdog::MAX_ACTORS).into());
    }
    let names: Vec<&str> = options
        .acts
        .split(',')
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(name) = names
        .iter()
        .find(|&name| ACTS.iter().all(|act| act.0 != *name))
    {
        return Err(format!("there are no {name}").into());
    }
    for (index, (name, ..)) in ACTS.iter().enumerate() {
        if names.is_empty() || names.contains(name) {
            CHOSEN.fetch_or(1 << index, Ordering::Relaxed);
        }
    }
    towers::prepare();
    memory::prepare()?;
    ledger::prepare(options.users);
    libraries::prepare(library)?;
    signals::prepare(options.sites)?;
    watchdog::start(ACTS.iter().map(|act| act.0).collect())?;
    Ok(())
}

/// Lets all threads loose, round after round, until the time is over. Returns names and figures.
pub(crate) fn soak(options: &Options, start: Instant) -> Vec<(&'static str, u64)> {
    let end = start + Duration::from_secs(options.seconds);
    let range = match (Range::new(options.sites), options.tracers) {
        (range, true) => range.without_program(),
        (range, false) => range,
    };
    let (mut all, mut traced) = (Figures::default(), tracers::Figures::default());
    let mut rounds = 0;
    while Instant::now() < end {
        watchdog::begin_round(rounds);
        let (users, tracers) = round(options, rounds, &range, end);
        all += users;
        traced += tracers;
        rounds += 1;
    }
    watchdog::stop();
    libraries::end();
    let [signals, left, stays] = signals::handled();
    let mut figures = vec![
        ("rounds", rounds),
        ("registrations", all.registrations),
        ("fast_path", all.fast_path),
        ("filter_changes", all.filter_changes),
        ("unregistrations", all.unregistrations),
        ("accepted", all.accepted),
        ("returned", all.returned),
        ("lost_by_users", all.lost),
        ("open_after_rounds", all.left_open),
        ("of_these_lost", all.balanced),
        ("signals", signals),
        ("left_from_handlers", left),
        ("stays_at_sites", stays),
    ];
    if options.tracers {
        figures.extend([
            ("tracers_switched", traced.started),
            ("calls_for_tracers", traced.own_calls),
            ("events_recorded", traced.events),
            ("events_lost", traced.lost_events),
            ("lines_of_system_calls", traced.lines),
        ]);
    }
    for ((name, ..), performed) in ACTS.iter().zip(&PERFORMED) {
        figures.push((name, performed.load(Ordering::Relaxed)));
    }
    figures
}

/// One round.
fn round(
    options: &Options,
    round: u64,
    range: &Range,
    end: Instant,
) -> (Figures, tracers::Figures) {
    let seed = mix(options.seed ^ mix(round));
    let mut rng = Rng::new(seed, u64::MAX);
    limits::prepare(&mut rng);
    ledger::begin(rng.once_in(3));
    let is_over = AtomicBool::new(false);
    let mut figures = Figures::default();
    let mut traced = tracers::Figures::default();
    let users: Vec<_> = thread::scope(|scope| {
        let controllers: Vec<_> = (0..CONTROLLERS)
            .map(|controller| {
                let users = (0..options.users).filter(move |user| user % CONTROLLERS == controller);
                let rng = Rng::new(seed, CONTROLLER_STREAM + controller as u64);
                let is_over = &is_over;
                threads::spawn(scope, "controller", move || {
                    controllers::control(users, rng, range, is_over)
                })
            })
            .collect();
        let is_quiet = AtomicBool::new(false);
        thread::scope(|scope| {
            let tracers = options.tracers.then(|| {
                let rng = Rng::new(seed, TRACER_STREAM);
                let is_quiet = &is_quiet;
                threads::spawn(scope, "tracers", move || tracers::control(rng, is_quiet))
            });
            actors(options, seed, end);
            is_quiet.store(true, Ordering::Relaxed);
            match tracers.map(thread::ScopedJoinHandle::join) {
                Some(Ok(figures)) => traced = figures,
                Some(Err(_)) => note(Failure::Refused, u64::MAX, 4),
                None => {}
            }
        });
        is_over.store(true, Ordering::Relaxed);
        let mut users = Vec::new();
        for controller in controllers {
            match controller.join() {
                Ok((part, done)) => {
                    figures += done;
                    users.extend(part);
                }
                Err(_) => note(Failure::Refused, u64::MAX, 4),
            }
        }
        users
    });
    for user in users {
        controllers::balance(user, &mut figures);
    }
    (figures, traced)
}

/// Lets all actors perform, and ends what they have left open.
fn actors(options: &Options, seed: u64, end: Instant) {
    thread::scope(|scope| {
        for number in 0..options.threads {
            let builder = thread::Builder::new().name("actor".to_owned());
            builder
                .stack_size(STACK)
                .spawn_scoped(scope, move || perform(number, seed, options.sites, end))
                .expect("the system has room for a few threads");
        }
    });
    // Coroutines that wait come to their ends, on yet another thread.
    let finish = || {
        threads::enter(options.threads);
        coroutines::finish();
    };
    thread::scope(|scope| scope.spawn(finish).join())
        .unwrap_or_else(|_| note(Failure::Refused, u64::MAX, 4));
}

/// Performs random acts, a round's, unless it is over before.
fn perform(number: usize, seed: u64, sites: usize, end: Instant) {
    threads::enter(number);
    let mut rng = Rng::new(seed, number as u64);
    let Some(signals) = Signals::start(&mut rng) else {
        return note(Failure::System, Act::Storm as u64, 1);
    };
    let actor = Actor {
        number,
        sites,
        signals,
    };
    let chosen = CHOSEN.load(Ordering::Relaxed);
    let weight = |act: usize| {
        if chosen & 1 << act != 0 {
            ACTS[act].1
        } else {
            0
        }
    };
    let total = (0..ACTS.len()).map(weight).sum();
    for count in 0..ACTS_IN_ROUND {
        if Instant::now() >= end {
            break;
        }
        let mut at = rng.below(total);
        let act = (0..ACTS.len())
            .find(|&act| {
                let is_it = at < weight(act);
                at = at.wrapping_sub(weight(act));
                is_it
            })
            .expect("below the sum of all weights");
        // Numbers of its own, so that the next acts do not depend on how many it takes.
        let mut rng = Rng::from_state(rng.next());
        watchdog::begin(number, act, count);
        ACTS[act].2(&actor, &mut rng);
        PERFORMED[act].fetch_add(1, Ordering::Relaxed);
    }
    watchdog::end(number);
}
