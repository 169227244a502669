//! How code is changed while threads run it.

pub mod poke;
pub mod trap;
