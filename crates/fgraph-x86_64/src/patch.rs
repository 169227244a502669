//! Changes code while threads run it.

pub mod call_gate;
pub mod move_text;
pub mod text_write;
pub mod trap;
