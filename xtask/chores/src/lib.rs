//! Shared by the chores and the lab: builds by cargo, programs that run, figures.

pub mod cargo;
mod commands;
pub mod end;
pub mod figures;
pub mod lab;
pub mod process;
pub mod toolchain;

pub use commands::exit_code;
