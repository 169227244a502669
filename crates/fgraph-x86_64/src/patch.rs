//! Changes code while threads run it.

pub mod move_text;
pub mod poke;
pub mod spawn_gate;
pub mod trap;
