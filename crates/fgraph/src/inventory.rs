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
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Relocated => "relocated",
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
    /// Functions that cannot be traced.
    pub refused: usize,
    /// Functions among the former two whose returns go untold.
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
///     println!("{}: {} of {}", module.module, module.nops + module.relocated,
///         module.nops + module.relocated + module.refused);
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
