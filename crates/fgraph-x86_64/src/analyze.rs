//! Analysis of functions' code: bytes in, facts and plans out.

pub mod callee_preserved;
pub mod evex;
pub mod fast_path;
mod frame;
pub mod nop;
pub mod relocate;
mod scan;
pub mod system_calls;
