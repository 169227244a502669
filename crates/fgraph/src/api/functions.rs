//! Listing the functions that can be traced, and how they may be.

use std::path::Path;
use std::sync::Arc;

use fgraph_symbols::filter::Filter;

use super::into_filter::IntoFilter;
use crate::control;
use crate::process::plan_store::{self, PlanStore};
use crate::report::error::{Error, FileError};
use crate::report::functions::SiteList;
use crate::sites::of_file;

/// Every function of the program and its libraries, and how it can be traced, or why it cannot.
///
/// Nothing is patched for this. fgraph's own functions are left out.
///
/// The first time, the symbol tables of all modules are read, and kept. What there is to say of a
/// function is found out when the list is [read](SiteList::iter), which takes many times as long.
///
/// ```
/// let sites = fgraph::sites()?;
/// for module in sites.modules() {
///     let traced = module.nops + module.relocated + module.breakpoints;
///     println!("{}: {} of {}", module.module, traced, traced + module.refused);
/// }
/// assert!(sites.iter().any(|site| site.name == "malloc" && site.how.is_ok()));
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
pub fn sites() -> Result<SiteList, Error> {
    sites_of(Filter::all())
}

/// The functions that a filter selects, and how they can be traced, or why they cannot: what
/// [`register`](crate::register) would trace.
///
/// Nothing is patched for this.
///
/// ```
/// let close = fgraph::sites_of("close:mod:libc.so*")?;
/// assert_eq!(close.iter().count(), 1);
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// # Errors
///
/// [`Filter`](Error::Filter), [`InsideCallback`](Error::InsideCallback),
/// [`Unsupported`](Error::Unsupported).
pub fn sites_of(filter: impl IntoFilter) -> Result<SiteList, Error> {
    let filter = filter.into_filter()?;
    control::lock()?.control.inventory(&filter)
}

/// The functions of a program or library that need not be loaded, and how they could be traced, or
/// why they could not. Their addresses are those in the file.
///
/// It takes the file at its word: what the process around it adds is not known, such as text that
/// another tool has patched. `breakpoints` says whether functions may get
/// [breakpoints](crate::TraceMethod::Breakpoint).
///
/// What was read of the file stays in memory for as long as the process lives.
///
/// ```
/// # use std::path::Path;
/// let sites = fgraph::sites_of_file(Path::new("/proc/self/exe"), false)?;
/// assert!(sites.iter().any(|site| site.how.is_ok()));
/// # Ok::<(), fgraph::FileError>(())
/// ```
///
/// # Errors
///
/// If the file cannot be read, or is not a 64-bit ELF file for x86-64.
pub fn sites_of_file(path: &Path, breakpoints: bool) -> Result<SiteList, FileError> {
    of_file(path, breakpoints)
}

/// Says whether users that are registered from now on may watch functions by a breakpoint that have
/// no room for a jump, and whether [`sites`] lists them as traceable. Without this they are
/// refused. [`Options::breakpoints`](crate::Options::breakpoints) says it for one user.
///
/// These are functions of less than five bytes with the next one directly behind them, and such
/// that call from their first five bytes or are branched into there: none in most programs, one in
/// a hundred where functions are not aligned. (Where memory for the stubs of jumps is short there
/// may be others.) The first byte of such a function becomes an `int3`, for as long as a user wants
/// its calls.
///
/// Users that are registered keep what they have. Which modules others have asked for before makes
/// no difference.
///
/// # What it costs
///
/// Each call of such a function is a trap: the kernel delivers SIGTRAP and returns from it. That
/// takes one to three microseconds, a hundred times as long as by a jump, and needs room on the
/// stack for the frame of a signal. Calls of all other functions cost what they did.
///
/// # When it is dangerous
///
/// With jumps alone no thread traps but while functions are being patched. With breakpoints any
/// thread may, at any time, and SIGTRAP has to be fgraph's all that time:
///
/// - A thread that *blocks* SIGTRAP and calls such a function is killed by the kernel, and the
///   process with it. Threads that block it when a filter is set are found
///   ([`SignalBlocked`](Error::SignalBlocked)), those that do so later are not. The C library
///   blocks all signals while it makes threads and processes: its own functions (and those of a
///   program that it is linked into statically) never get breakpoints.
/// - A program that sets its own handler of SIGTRAP gets fgraph's traps until the next change of a
///   filter, and one that sets the default action is killed by the next of them. The same holds for
///   a child made by `vfork` that does so. Every change of a filter, also one that changes nothing,
///   puts fgraph's handler before the program's.
/// - A debugger stops at each of these calls.
///
/// ```
/// fgraph::allow_breakpoints(true)?;
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
pub fn allow_breakpoints(allow: bool) -> Result<(), Error> {
    control::lock()?.control.allow_breakpoints(allow);
    Ok(())
}

/// Keeps plans of modules in `store` from now on, and takes them from there; `None` ends that.
///
/// The plan of a module says which functions its file has, and how each is traced. To make one
/// takes some microseconds a function; with a plan that another process has saved, a filter that
/// selects a function of the module takes about a third of the time. A plan is of use to processes
/// that have loaded the same file, on the same kind of processor. Modules that a filter has asked
/// for before are not concerned.
///
/// # Safety
///
/// The store keeps what [`PlanStore`] promises.
///
/// ```no_run
/// use std::fs;
/// use std::path::PathBuf;
/// use std::sync::Arc;
///
/// struct Directory(PathBuf);
///
/// // SAFETY: no other program writes to the directory.
/// unsafe impl fgraph::PlanStore for Directory {
///     fn load(&self, _module: &str, key: u128) -> Option<Vec<u8>> {
///         fs::read(self.0.join(format!("{key:032x}"))).ok()
///     }
///
///     fn save(&self, _module: &str, key: u128, plan: &[u8]) {
///         let _ = fs::write(self.0.join(format!("{key:032x}")), plan);
///     }
/// }
///
/// let store = Arc::new(Directory("/var/cache/mine".into()));
/// // SAFETY: the directory is for this build of the program alone.
/// unsafe { fgraph::keep_plans(Some(store)) };
/// ```
pub unsafe fn keep_plans(store: Option<Arc<dyn PlanStore>>) {
    plan_store::set(store);
}

/// Says whether modules from now on are looked at only as far as filters mention their functions,
/// which is meant for programs that run for a short time.
///
/// Without this the first filter that selects a function of a module has all of it looked at: later
/// ones change what is watched in no time, and each call costs as little as it can. With it that is
/// left out as long as filters mention less than a quarter of the module's functions: a tenth of
/// the time until a user is registered that watches a few.
///
/// What it costs: calls of these functions preserve every register, since it is not known what
/// their callers rely on; they take half as much time again. The fourth filter that mentions
/// functions of the module for the first time has all others looked at. [`Status::sites`] counts
/// what has been looked at.
///
/// [`Status::sites`]: crate::Status::sites
///
/// ```
/// fgraph::lazy_sites(true)?;
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
pub fn lazy_sites(lazy: bool) -> Result<(), Error> {
    control::lock()?.control.make_sites_lazily(lazy);
    Ok(())
}
