//! fgraph: many users watch the entry and return of the functions of a running program.
//!
//! Each user is a value whose type implements [`FgraphOps`]. [`register`] puts it to work for the
//! functions that a [`Filter`] selects, while the program runs; up to 16 users share the functions
//! as they like, each with data of its own that it carries from entry to return. Where nobody looks,
//! functions are as the compiler made them.
//!
//! ```
//! use std::time::Instant;
//! use fgraph::{Entry, FgraphOps, Return};
//!
//! /// Prints how long calls take.
//! struct Durations;
//!
//! impl FgraphOps for Durations {
//!     type Data = Instant;
//!
//!     fn entry(&self, _call: &mut Entry<'_, Instant>) -> Option<Instant> {
//!         Some(Instant::now())
//!     }
//!
//!     fn ret(&self, call: &mut Return<'_, Instant>, entered: Instant) {
//!         println!("{:?} {}", entered.elapsed(), call.function().name());
//!     }
//! }
//!
//! let durations = fgraph::register(Durations, "mycrate::*")?;
//! // ... from here on calls are printed ...
//! drop(durations);
//! # Ok::<(), fgraph::Error>(())
//! ```
//!
//! Any function of the program and of its libraries can be traced that has a name in a symbol table;
//! [`sites()`] lists them, and says of each how, or why not. See `docs/design.md` for how it works and what
//! it promises.

#![warn(missing_docs)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fgraph runs on Linux on x86-64 only");

mod abort;
mod arena;
mod control;
mod debug_file;
mod demangle;
mod elf;
mod error;
mod filter;
mod functions;
mod handle;
mod ifunc;
mod inventory;
mod libraries;
mod linker;
mod membarrier;
mod modules;
mod notrace;
mod os;
mod places;
mod protection;
mod signals;
mod sites;
mod stack;
mod stacks;
mod status;
mod text;
mod threads;
mod unwinder;

#[doc(hidden)]
pub mod testing;

pub use error::{Error, Refusal, Refused, Report, Stop, Unsupported};
pub use fgraph_core::ops::{MAX_DATA_ALIGN, MAX_DATA_SIZE};
pub use fgraph_core::site::Name;
pub use fgraph_core::{Counters, Entry, FgraphOps, Function, MAX_USERS, Module, Return};
pub use fgraph_x86_64::relocate::RelocateError;
pub use filter::{Filter, FilterError};
pub use handle::{Handle, UnregisterError, UserStatus, register};
pub use inventory::{How, ModuleCount, SiteInfo, SiteList, allow_breakpoints, sites};
pub use status::{Status, ThreadStatus, status, stop, threads};
pub use text::TextMethod;
pub use threads::set_shadow_stack_size;
