//! Analysis of functions' code: bytes in, facts and plans out.

pub mod evex;
mod frame;
pub mod nop;
pub mod reliance;
pub mod relocate;
pub mod scalar;
mod scan;
pub mod system_calls;
