//! Starts a program with the agent inside.

pub(crate) mod arguments;
mod attach;
mod budget;
mod call_sums;
mod check;
pub(crate) mod control;
pub(crate) mod counts;
pub(crate) mod descriptors;
pub(crate) mod events;
mod execute;
mod gone;
mod guard;
pub(crate) mod inherited;
pub(crate) mod interrupt;
mod launched;
mod library;
mod limits;
mod memory_limits;
pub(crate) mod plan_cache;
mod process;
mod program;
mod reader;
pub(crate) mod samples;
mod socket;
mod switching;
#[cfg(feature = "tui")]
pub(crate) mod thread_names;

use std::time::Duration;

pub(crate) use arguments::{Target, What};
pub(crate) use budget::{Budget, DEFAULT_BUDGET};
pub(crate) use launched::Launched;
pub(crate) use program::{LARGEST_RING, Program};

/// The time between two reads of empty rings.
pub(crate) const NAP: Duration = Duration::from_millis(5);
