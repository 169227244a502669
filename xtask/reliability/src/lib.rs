//! Hostile programs, run untraced and traced: both must print the same and end the same way.
//!
//! A [`Scenario`] makes a promise to users and has a program that shows it; `scenarios` has all of
//! them, a module for each group. Each program is built in several ways ([`Build`]), run untraced,
//! and run with the tracer preloaded. The tracer registers users for all functions of the program
//! and counts their callbacks in a [`record`].
//!
//! ```text
//!   scenario -> builds: compiler x NOPs or not x -O0..3 -> runs: untraced, 1 user, 16 users
//!                                                                 |          |        |
//!                                                           same output and end, and the
//!                                                           record that the scenario expects
//! ```
//!
//! Run `cargo test -p fgraph-reliability --test scenarios GROUP` for one group. `cargo xtask
//! reliability` prints a table, and writes the one in the documentation.

pub mod document;
pub mod record;

mod build;
mod compiler;
mod expect;
mod generate;
mod process;
mod run;
mod scenario;
mod scenarios;

pub use build::{Build, Ways};
pub use compiler::{Compiler, Sites};
pub use run::{Figures, Tools, missing_compilers, run};
pub use scenario::{Elsewhere, Expect, Group, Hostile, Part, Scenario, Shown, Trace};
pub use scenarios::GROUPS;
