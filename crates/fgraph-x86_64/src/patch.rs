//! Changes code while threads run it.

pub mod move_text;
pub mod spawn_gate;
pub mod text_write;
pub mod trap;
