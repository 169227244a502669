//! fgraph: several users watch the entry and return of the functions of a running program.
//!
//! Each user is a value whose type implements [`FgraphOps`]. [`register`] activates it for the
//! functions that a [`Filter`] selects, while the program runs. Up to 16 users share functions in
//! any combination, each with its own data that it carries from entry to return. A function that no
//! user watches is exactly as the compiler made it.
//!
//! ```no_run
//! use fgraph::{Entry, FgraphOps, Return, Ticks};
//!
//! /// Prints how long calls take.
//! struct Durations;
//!
//! impl FgraphOps for Durations {
//!     type Data = Ticks;
//!
//!     fn entry(&self, _call: &mut Entry<'_, Ticks>) -> Option<Ticks> {
//!         Some(Ticks::now())
//!     }
//!
//!     fn ret(&self, call: &mut Return<'_, Ticks>, entered: Ticks) {
//!         println!("{} ns {}", entered.elapsed_ns(), call.function().name());
//!     }
//! }
//!
//! // SAFETY: printing is allowed where these functions are called: none of them is called by a
//! // signal handler, by the allocator or before `main`.
//! let durations = unsafe { fgraph::register(Durations, "mycrate::*") }?;
//! // ... from here on calls are printed ...
//! drop(durations);
//! # Ok::<(), fgraph::Error>(())
//! ```
//!
//! Any function of the program and of its libraries can be traced that has a name in a symbol
//! table, or unwind information; [`sites()`] lists them, and says of each how, or why not.
//! The [guide] leads from an empty file to a user. In the repository, `ARCHITECTURE.md` says how
//! fgraph works, and `docs/limits.md` what it does not promise.
//!
//! # Features
//!
//! None of them is on by default.
//!
//! - `debugdata`: names of functions that stripped files have in a section `.gnu_debugdata`, like
//!   those of Fedora.
//! - `dwarf`: [source files and lines](Function::source) of functions, from debug information.
//! - `plans`: plans of modules that processes share, with `set_plan_store`.

#![warn(missing_docs)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fgraph runs on Linux on x86-64 only");

mod api;
mod arch;
mod code;
mod control;
mod os;
mod patching;
mod process;
mod report;
mod sites;
mod threads;
mod unwinding;

#[cfg(fgraph_testing)]
#[doc(hidden)]
pub use api::testing;

pub use api::anywhere::{AnywhereHandle, AnywhereOps, register_anywhere, register_anywhere_with};
pub use api::fast_path::{FastPath, Ineligible};
#[cfg(feature = "plans")]
pub use api::functions::set_plan_store;
pub use api::functions::{sites, sites_of, sites_of_file, sites_with};
pub use api::generated::{GeneratedFunctions, RemoveError, add_functions};
pub use api::handle::{
    Handle, RegisterError, UnregisterError, UserStatus, register, register_with,
};
pub use api::into_filter::IntoFilter;
pub use api::saved_registers::with_registers_saved;
pub use api::status::{Status, ThreadStatus, restore_functions, status, stop, thread_id, threads};
pub use api::symbols::{Symbol, SymbolName, function_at, function_count, load_symbols};
pub use api::ticks::Ticks;
pub use code::text_writer::TextMethod;
pub use control::options::Options;
#[doc(hidden)]
pub use fgraph_core::ops::check_data;
pub use fgraph_core::ops::{MAX_DATA_ALIGN, MAX_DATA_SIZE};
pub use fgraph_core::site::{FullName, Name, Source};
pub use fgraph_core::{
    Counters, Dropped, DroppedOf, Entry, EntryOf, EntryWriter, FgraphOps, FromRegister, Function,
    LibraryEvent, MAX_USERS, Module, OnCall, OnEntry, Outcome, PerThread, Recycle, Recycled,
    Return, ReturnOf, ReturnWriter, UserId, WriteError, on_call, on_entry,
};
pub use fgraph_symbols::filter::{Filter, FilterError, FunctionFacts};
pub use fgraph_symbols::signature;
pub use process::generated::GeneratedFunction;
pub use process::linker::before_main;
#[cfg(feature = "plans")]
pub use process::plan_store::PlanStore;
pub use report::analysis::{IneligibleReason, RelocateError, SystemCallError};
pub use report::error::{
    Error, FileError, FilterReport, GeneratedError, RefusalReason, RefusedFunction, SlotUser,
    StopReason, Unsupported, WordReport,
};
pub use report::functions::{ModuleCount, SiteInfo, SiteIter, SiteList, TraceMethod};
pub use threads::set_shadow_stack_size;
pub use threads::untraced::{Untraced, untraced};

#[doc = include_str!("../guide.md")]
pub mod guide {}

/// Lets `cargo check` find data of a user that is too large, or aligned too strictly.
///
/// Without this only `cargo build` finds it: see [`FgraphOps::Data`]. The arguments are types
/// without parameters, or with all of them given.
///
/// ```
/// use fgraph::{Entry, FgraphOps};
///
/// struct Arguments;
///
/// impl FgraphOps for Arguments {
///     type Data = [u64; 6];
///
///     fn entry(&self, call: &mut Entry<'_, [u64; 6]>) -> Option<[u64; 6]> {
///         Some([0, 1, 2, 3, 4, 5].map(|index| call.arg(index).unwrap_or_default()))
///     }
/// }
///
/// fgraph::check_data!(Arguments);
/// ```
///
/// ```compile_fail,E0080
/// # use fgraph::{Entry, FgraphOps};
/// # struct TooMuch;
/// # impl FgraphOps for TooMuch {
/// #     type Data = [u8; fgraph::MAX_DATA_SIZE + 1];
/// #     fn entry(&self, _: &mut Entry<'_, Self::Data>) -> Option<Self::Data> { None }
/// # }
/// fgraph::check_data!(TooMuch);
/// ```
#[macro_export]
macro_rules! check_data {
    ($($user:ty),+ $(,)?) => {
        $(const _: () = $crate::check_data::<$user>();)+
    };
}

/// Compiles the samples of the package's README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the programs of the page on futures as tests.
#[cfg(doctest)]
#[doc = include_str!("../async.md")]
struct Async;
