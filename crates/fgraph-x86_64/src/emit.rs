//! What is written for the code of functions: stubs, jumps and unwind information, as bytes.

pub mod punned_jump;
pub mod stub;
pub mod system_call;
pub mod unwind;
