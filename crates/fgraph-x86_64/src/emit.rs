//! Code generation: stubs, jumps and unwind information, as bytes.

pub mod punned_jump;
pub mod stub;
pub mod system_call;
pub mod unwind;
