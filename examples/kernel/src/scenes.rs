//! Scenes: each tries something, and prints what `cargo xtask kernel` compares.

pub(crate) mod hostile;
mod load;
mod order;
mod stage;
mod tools;

use crate::machine;
use crate::start::Settings;

/// Runs all scenes, and ends the machine.
pub(crate) fn run(settings: &Settings) {
    hostile::memory();
    tools::graph();
    order::returns();
    order::filters();
    tools::profiler();
    tools::latency();
    tools::depth();
    hostile::interrupted_callback();
    hostile::panic();
    hostile::ended_tasks();
    hostile::overflow();
    load::run(settings);
    // The last one: afterwards nothing is traced.
    hostile::anomaly();
    machine::leave(true);
}
