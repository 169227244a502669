//! `cargo fgraph`, in one binary.

mod diff;
mod support;
mod workspace;
