//! Facts from files about functions, and filters over their names: bytes in, facts out.
//!
//! This crate never reads the memory of a process, so all of it works on the bytes of a file from
//! another machine, under a fuzzer, or under Miri. The runtime, crate `fgraph`, is built on it.
//!
//! | module | holds |
//! |---|---|
//! | [`core_file`] | the memory of a process at its end, in a core file
//! | [`elf`] | an ELF file: sections, symbol tables, notes |
//! | [`functions`] | all functions of a file, by address, with all their names |
//! | [`demangle`] | names as programmers know them |
//! | `futures` | awaits of tasks, from memory and debug information, with the feature `dwarf` |
//! | `lines` | source files and lines of code, with the feature `dwarf` |
//! | `inlined` | functions that were inlined, and the places, with the feature `dwarf` |
//! | [`signature`] | arguments and results of functions |
//! | [`mapping`] | memory mappings, as the kernel lists them |
//! | [`locks`] | functions that act on locks |
//! | [`allocators`] | functions of allocators |
//! | [`notrace`] | functions that must not be traced, each with the reason |
//! | [`filter`] | the filter language |
//! | [`program`] | how the kernel starts a file |
//! | [`python`] | running functions of Python, from memory |
//! | `unwind_info` | functions without a symbol, found through their unwind information |
//! | [`unwind_rows`] | unwind rules: from an address in a function to its caller |
//! | [`testing`] | checks for fuzzers and tests |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use filter::{Filter, FilterError};

pub mod allocators;
pub mod core_file;
#[cfg(feature = "debugdata")]
pub mod debug_data;
pub mod demangle;
pub mod elf;
pub mod filter;
pub mod functions;
#[cfg(feature = "dwarf")]
pub mod futures;
pub mod ghc;
#[cfg(feature = "dwarf")]
pub mod inlined;
#[cfg(feature = "dwarf")]
pub mod lines;
pub mod locks;
pub mod mapping;
pub mod notrace;
pub mod program;
pub mod python;
pub mod signature;
#[doc(hidden)]
pub mod testing;
mod unwind_info;
pub mod unwind_rows;
