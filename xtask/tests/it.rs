//! Chores that other tests do not run, and the lists of public items, in one binary.

mod patch_test;
mod preload;
mod public_items;
mod tracers;
