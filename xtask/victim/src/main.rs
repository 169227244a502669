//! A program whose functions are patched while its threads run, and which notices every mistake.
//!
//! `cargo xtask patch-test` runs it. Workers call 4,096 small functions of many shapes at random
//! and check each result; signal handlers and threads that come and go do the same. Controllers
//! register, change and unregister users, which check whatever they are told. In the end the
//! program's text must be what it was. It prints what it has done as pairs of name and value; the
//! failures go to the standard error.

#[cfg(feature = "relocated")]
#[macro_use]
mod assembly;
mod chaos;
mod controllers;
mod failures;
mod figures;
mod filters;
mod formula;
mod functions;
mod ledger;
mod options;
mod rng;
mod sites;
mod text;
mod threads;
mod users;
mod workers;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use failures::{Failure, note};
use figures::Figures;
use options::Options;
use threads::spawn;

/// Number of threads that register and unregister.
const CONTROLLERS: usize = 2;
/// Number of threads that start others, which come and go.
const STARTERS: usize = 2;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("fgraph-victim: {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = run(&options) {
        eprintln!("fgraph-victim: {error}");
        return ExitCode::from(2);
    }
    eprint!("{}", failures::List);
    if failures::count() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    functions::prepare();
    ledger::prepare(options.users, options.threads + CONTROLLERS + STARTERS);
    let text = text::Snapshot::take()?;
    if fgraph::status()?.patched != 0 {
        return Err("something is patched already".into());
    }
    // Before the sites are made.
    fgraph::testing::leave_out(options.leave_out)?;
    sites::check(options.leave_out)?;
    if let Some(library) = &options.chaos {
        chaos::prepare(options, library)?;
    } else {
        workers::handle_signals(options.sites)?;
    }

    let start = Instant::now();
    let figures = if options.chaos.is_some() {
        chaos::soak(options, start)
    } else {
        figures_of(&soak(options, start))
    };
    let elapsed = start.elapsed();

    text.compare();
    let status = fgraph::status()?;
    let dropped = status.counters.overrun
        + status.counters.unreserved
        + status.counters.lost
        + status.counters.no_shadow_stack;
    if dropped != 0 && options.chaos.is_none() {
        note(Failure::Dropped, u64::MAX, dropped);
    }
    if status.unattached != 0 {
        note(Failure::Unattached, status.unattached, 0);
    }
    if status.patched != 0 {
        note(Failure::Patched, status.patched as u64, 0);
    }
    if let Some(stop) = status.stopped {
        eprintln!("fgraph has stopped: {stop}");
        note(Failure::Refused, u64::MAX, 2);
    }
    print(figures, &status, elapsed);
    Ok(())
}

/// Lets all threads loose until the time is over.
fn soak(options: &Options, start: Instant) -> Figures {
    let Options {
        threads,
        sites,
        users,
        seed,
        ..
    } = *options;
    let end = start + Duration::from_secs(options.seconds);
    let range = filters::Range::new(sites);
    let barrier = Barrier::new(CONTROLLERS);
    thread::scope(|scope| {
        for number in 0..threads {
            spawn(scope, "worker", move || workers::work(number, seed, sites));
        }
        for number in threads..threads + STARTERS {
            spawn(scope, "starter", move || {
                workers::start_short_threads(number, seed, sites)
            });
        }
        let controllers: Vec<_> = (0..CONTROLLERS)
            .map(|controller| {
                let number = threads + STARTERS + controller;
                let users = (0..users).filter(move |user| user % CONTROLLERS == controller);
                let (range, barrier) = (&range, &barrier);
                spawn(scope, "controller", move || {
                    controllers::control(number, users, seed, range, barrier, end)
                })
            })
            .collect();
        let mut figures = Figures::default();
        for controller in controllers {
            match controller.join() {
                Ok(part) => figures += part,
                Err(_) => note(Failure::Refused, u64::MAX, 4),
            }
        }
        // Without users there is nothing to wait for but the time.
        thread::sleep(end.saturating_duration_since(Instant::now()));
        workers::stop();
        figures
    })
}

/// Prints pairs of name and value.
fn print(figures: Vec<(&str, u64)>, status: &fgraph::Status, elapsed: Duration) {
    let first = [
        ("elapsed_ms", elapsed.as_millis() as u64),
        ("site_patches", fgraph::testing::site_patches()),
    ];
    let last = [
        ("traps", fgraph::testing::traps()),
        ("missed", status.counters.missed + status.counters.internal),
        ("overrun", status.counters.overrun),
        ("unreserved", status.counters.unreserved),
        ("lost", status.counters.lost),
        ("no_shadow_stack", status.counters.no_shadow_stack),
        ("failures", failures::count() as u64),
    ];
    for (name, value) in first.into_iter().chain(figures).chain(last) {
        println!("{name} {value}");
    }
}

/// Returns names and figures.
fn figures_of(figures: &Figures) -> Vec<(&'static str, u64)> {
    let work = workers::work_done();
    vec![
        (
            "toggles",
            figures.registrations + figures.filter_changes + figures.unregistrations,
        ),
        ("registrations", figures.registrations),
        ("fast_path", figures.fast_path),
        ("filter_changes", figures.filter_changes),
        ("unregistrations", figures.unregistrations),
        ("users_at_once", controllers::most_at_once() as u64),
        ("calls", work.calls),
        ("signals", work.signals),
        ("short_threads", work.short_threads),
        ("accepted", figures.accepted),
        ("returned", figures.returned),
        ("in_flight", figures.in_flight),
        ("declined", figures.declined),
    ]
}
