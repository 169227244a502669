//! Shared by the chores and the lab: builds by cargo, programs that run, figures.

pub mod cargo;
pub mod end;
pub mod figures;
pub mod process;
pub mod toolchain;
