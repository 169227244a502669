//! The functions of allocators, and the effect of each on blocks of memory.

pub use fgraph_symbols::allocators::{Act, Role, Size, role, words};
