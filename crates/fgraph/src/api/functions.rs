//! Lists the functions that can be traced, and how.

use std::path::Path;
#[cfg(feature = "plans")]
use std::sync::Arc;

use fgraph_symbols::filter::Filter;

use super::into_filter::IntoFilter;
use crate::control;
use crate::control::options::Options;
#[cfg(feature = "plans")]
use crate::process::plan_store::{self, PlanStore};
use crate::report::error::{Error, FileError};
use crate::report::functions::SiteList;
use crate::sites::of_file;

/// Lists every function of the program and its libraries, with the way it can be traced, or the
/// reason that it cannot.
///
/// Nothing is patched for this. fgraph's own functions are left out.
///
/// The first call reads and keeps the symbol tables of all modules. The facts about a function are
/// computed when the list is [read](SiteList::iter), which takes many times as long.
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
/// Fails with [`InsideCallback`](Error::InsideCallback) or [`Unsupported`](Error::Unsupported).
pub fn sites() -> Result<SiteList, Error> {
    sites_of(Filter::all())
}

/// Lists the functions that a filter selects, with the way each can be traced, or the reason that
/// it cannot: the functions that [`register`](crate::register) would trace.
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
/// Fails with [`Filter`](Error::Filter), [`InsideCallback`](Error::InsideCallback) or
/// [`Unsupported`](Error::Unsupported).
pub fn sites_of(filter: impl IntoFilter) -> Result<SiteList, Error> {
    sites_with(filter, &Options::new())
}

/// The functions that a filter selects, and how they can be traced, or why they cannot, for a user
/// with these options: what [`register_with`](crate::register_with) would trace.
///
/// The options make a difference if they allow [breakpoints](Options::breakpoints). Nothing is
/// patched for this.
///
/// # Errors
///
/// Fails as [`sites_of`] does.
pub fn sites_with(filter: impl IntoFilter, options: &Options) -> Result<SiteList, Error> {
    let filter = filter.into_filter()?;
    control::lock()?
        .control
        .inventory(&filter, options.breakpoints)
}

/// Lists the functions of a program or library that need not be loaded, with the way each could be
/// traced, or the reason that it could not. Addresses are those in the file.
///
/// The result is based on the file alone, without effects of a process, for example text that
/// another tool has patched. `breakpoints` says if functions may get
/// [breakpoints](crate::TraceMethod::Breakpoint).
///
/// The data that was read of the file stays in memory for the life of the process.
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
/// Fails if the file cannot be read, or is not a 64-bit ELF file for x86-64.
pub fn sites_of_file(path: &Path, breakpoints: bool) -> Result<SiteList, FileError> {
    of_file(path, breakpoints)
}

/// Keeps plans of modules in `store` from now on, and takes them from there; `None` ends that.
///
/// The plan of a module has the functions of its file, and the way each is traced. Making one takes
/// some microseconds a function. With a plan that another process has saved, a filter that selects
/// a function of the module takes about a third of the time. A plan is useful for processes that
/// have loaded the same file on the same kind of processor. Modules that an earlier filter has
/// selected are not affected.
///
/// # Safety
///
/// The store keeps the promises of [`PlanStore`].
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
/// unsafe { fgraph::set_plan_store(Some(store)) };
/// ```
#[cfg(feature = "plans")]
pub unsafe fn set_plan_store(store: Option<Arc<dyn PlanStore>>) {
    plan_store::set(store);
}
