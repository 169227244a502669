//! What files say of functions, and what filters say of names: bytes in, facts out.
//!
//! Nothing here reads the memory of a process, so all of it runs on the bytes of a file from
//! another machine, under a fuzzer, or under Miri. The runtime, crate `fgraph`, stands on it.
//!
//! | module | holds |
//! |---|---|
//! | [`elf`] | an ELF file: sections, symbol tables, notes |
//! | [`functions`] | all functions of a file, by address, with all their names |
//! | [`demangle`] | names as programmers know them |
//! | `lines` | source files and lines of code, with the feature `dwarf` |
//! | [`signature`] | what functions take and give back |
//! | [`notrace`] | functions that must not be traced, each with the reason |
//! | [`filter`] | the filter language |
//! | [`program`] | how a file is started |
//! | `unwind_info` | functions without a symbol, by their unwind information |
//! | [`unwind_rows`] | the way from a place in a function to its caller |
//! | [`testing`] | checks for fuzzers and tests |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use filter::{Filter, FilterError};

#[cfg(feature = "debugdata")]
pub mod debug_data;
pub mod demangle;
pub mod elf;
pub mod filter;
pub mod functions;
pub mod ghc;
#[cfg(feature = "dwarf")]
pub mod lines;
pub mod notrace;
pub mod program;
pub mod signature;
#[doc(hidden)]
pub mod testing;
mod unwind_info;
pub mod unwind_rows;
