//! `cargo xtask reliability`: hostile programs do the same traced and untraced.
//!
//! The scenarios are in `xtask/reliability`.

use std::io;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use fgraph_reliability::{Figures, GROUPS, Group, Tools, Ways, document, missing_compilers};

/// Options of the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Groups of scenarios; without one, all
    #[arg(value_name = "GROUP",
        value_parser = clap::builder::PossibleValuesParser::new(GROUPS.map(|group| group.name)))]
    groups: Vec<String>,
    /// Write docs/reliability.md and the table in README.md, and run nothing
    #[arg(long)]
    write: bool,
}

/// Runs the scenarios. Fails where one of them fails.
pub(crate) fn run(options: &Options) -> io::Result<bool> {
    if options.write {
        document::write()?;
        return Ok(true);
    }
    for missing in missing_compilers() {
        println!("skipped: as built by one more compiler: {missing}");
    }
    let tools = Tools::build()?;
    let mut failures = 0;
    for group in GROUPS {
        if options.groups.is_empty() || options.groups.iter().any(|name| name == group.name) {
            failures += run_group(&tools, group);
        }
    }
    Ok(failures == 0)
}

/// Runs a group, as many scenarios at once as there are processors, and prints a table. Returns how
/// many failures there are.
fn run_group(tools: &Tools, group: &Group) -> usize {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let all: Vec<Mutex<Figures>> = group.scenarios.iter().map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                // Relaxed: the number is all that matters.
                let next = || next.fetch_add(1, Ordering::Relaxed);
                for index in std::iter::repeat_with(next).take_while(|&index| index < all.len()) {
                    let scenario = &group.scenarios[index];
                    let figures = fgraph_reliability::run(tools, group, scenario, Ways::All);
                    *all[index].lock().expect("nothing panics") = figures;
                }
            });
        }
    });
    println!("{:<72}{:>6}{:>10}  promise", group.name, "runs", "failures");
    let mut failures = Vec::new();
    for (scenario, figures) in group.scenarios.iter().zip(all) {
        let figures = figures.into_inner().expect("nothing panics");
        println!(
            "{:<72}{:>6}{:>10}  {}",
            scenario.name,
            figures.runs,
            figures.failures.len(),
            scenario.promise
        );
        if let Some(outcome) = figures.not_yet {
            println!("  {outcome}");
        }
        for missing in figures.skipped {
            println!("  skipped: {missing}");
        }
        failures.extend(figures.failures);
    }
    println!("{:.1} s\n", start.elapsed().as_secs_f64());
    for failure in &failures {
        println!("FAILED: {failure}\n");
    }
    failures.len()
}
