//! What there is to trace: every function, and how or why not.

use core::fmt;
use core::slice;

use crate::control;
use crate::error::{Error, Refusal};

/// How a function is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum How {
    /// The compiler has left a NOP at its entry, which is replaced by a jump.
    Nop,
    /// Its first instructions are replaced by a jump, and run elsewhere.
    Relocated,
    /// Its first byte is replaced by a breakpoint, by which every call traps: see
    /// [`allow_breakpoints`].
    Breakpoint,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Relocated => "relocated",
            Self::Breakpoint => "breakpoint",
        })
    }
}

/// A function of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SiteInfo {
    /// Its name as the programmer knows it; empty when it has none. Filters match its other names as
    /// well.
    pub name: String,
    /// Path of its module.
    pub module: String,
    /// Where it starts.
    pub address: usize,
    /// How it is traced, or why it cannot be.
    pub how: Result<How, Refusal>,
    /// Whether users are told of its returns. Those of functions that return twice, say, go untold.
    pub returns: bool,
}

impl fmt::Display for SiteInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} {}: ", self.address, self.name)?;
        match &self.how {
            Ok(how) if self.returns => how.fmt(f),
            Ok(how) => write!(f, "{how}, entries only"),
            Err(refusal) => write!(f, "refused: {refusal}"),
        }
    }
}

/// How many functions of a module can be traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleCount {
    /// Path of the module.
    pub module: String,
    /// Functions with a [NOP](How::Nop).
    pub nops: usize,
    /// Functions that are [relocated](How::Relocated).
    pub relocated: usize,
    /// Functions with a [breakpoint](How::Breakpoint).
    pub breakpoints: usize,
    /// Functions that cannot be traced.
    pub refused: usize,
    /// Functions among those that can be traced whose returns go untold.
    pub entry_only: usize,
    /// The module was stripped, and has no debug file: only functions that other modules can see are
    /// known.
    pub stripped: bool,
}

/// All functions of the process, by module.
#[derive(Clone, Debug, Default)]
pub struct SiteList {
    pub(crate) all: Vec<SiteInfo>,
    /// Paths of the modules that were stripped.
    pub(crate) stripped: Vec<String>,
}

impl SiteList {
    /// The functions, those of one module after those of the other, by address.
    pub fn iter(&self) -> slice::Iter<'_, SiteInfo> {
        self.all.iter()
    }

    /// The counts of each module that has functions.
    pub fn modules(&self) -> Vec<ModuleCount> {
        let modules = self.all.chunk_by(|a, b| a.module == b.module);
        modules.map(|sites| self.count(sites)).collect()
    }

    fn count(&self, sites: &[SiteInfo]) -> ModuleCount {
        let all = |wanted: fn(&SiteInfo) -> bool| sites.iter().filter(|site| wanted(site)).count();
        let module = sites[0].module.clone();
        ModuleCount {
            nops: all(|site| site.how == Ok(How::Nop)),
            relocated: all(|site| site.how == Ok(How::Relocated)),
            breakpoints: all(|site| site.how == Ok(How::Breakpoint)),
            refused: all(|site| site.how.is_err()),
            entry_only: all(|site| site.how.is_ok() && !site.returns),
            stripped: self.stripped.contains(&module),
            module,
        }
    }
}

impl<'a> IntoIterator for &'a SiteList {
    type Item = &'a SiteInfo;
    type IntoIter = slice::Iter<'a, SiteInfo>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Every function of the program and its libraries, and how it can be traced, or why it cannot.
///
/// Nothing is patched or kept for this. fgraph's own functions are left out.
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
    Ok(control::lock()?.control.inventory())
}

/// Says whether functions may be traced by a breakpoint that have no room for a jump. Without this they
/// are refused.
///
/// These are functions of less than five bytes with the next one directly behind them, and such that
/// call from their first five bytes or are branched into there: none in most programs, one in a hundred
/// where functions are not aligned. (Where memory for the stubs of jumps is short there may be others.)
/// The first byte of such a function becomes an `int3`, for as long as somebody wants its calls.
///
/// It holds for each module whose functions are selected by a filter for the first time from now on;
/// what was decided for a module stays. So call it before the first [`register`](crate::register).
///
/// # What it costs
///
/// Each call of such a function is a trap: the kernel delivers SIGTRAP and returns from it. That takes one
/// to three microseconds, a hundred times as long as by a jump, and needs room on the stack for the frame
/// of a signal. Calls of all other functions cost what they did.
///
/// # When it is dangerous
///
/// With jumps alone no thread traps but while functions are being patched. With breakpoints any thread
/// may, at any time, and SIGTRAP has to be fgraph's all that time:
///
/// - A thread that *blocks* SIGTRAP and calls such a function is killed by the kernel, and the process
///   with it. Threads that block it when a filter is set are found
///   ([`SignalBlocked`](Error::SignalBlocked)), those that do so later are not. The C library blocks all
///   signals while it makes threads and processes: its own functions (and those of a program that it is
///   linked into statically) never get breakpoints.
/// - A program that sets its own handler of SIGTRAP, or the default one, gets fgraph's traps until the
///   next filter is set. The same holds for a child made by `vfork` that does so.
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
