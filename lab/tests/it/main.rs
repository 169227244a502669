//! The lab's programs at work.

mod attach_test;
mod coverage;
mod hook;
mod spawn_test;
