//! What there is to trace: every function, and how or why not.

use core::fmt;
use core::slice;

use super::error::RefusalReason;

/// How a function is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceMethod {
    /// The compiler has left a NOP at its entry, which is replaced by a jump.
    Nop,
    /// Its first instructions are replaced by a jump, and run elsewhere.
    Relocated,
    /// Its first byte is replaced by a breakpoint, by which every call traps: see
    /// [`allow_breakpoints`](crate::allow_breakpoints).
    Breakpoint,
}

impl fmt::Display for TraceMethod {
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
    /// Its name as the programmer knows it; `module+0x1234`, where it is in the file, when it has
    /// none. Filters match its other names as well.
    pub name: String,
    /// Whether a symbol table has a name for it.
    pub has_name: bool,
    /// Path of its module.
    pub module: String,
    /// The address at which the function starts.
    pub address: usize,
    /// The number of its bytes; 0 if its file does not say.
    pub size: usize,
    /// How it is traced, or why it cannot be.
    pub how: Result<TraceMethod, RefusalReason>,
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
    /// Functions with a [NOP](TraceMethod::Nop).
    pub nops: usize,
    /// Functions that are [relocated](TraceMethod::Relocated).
    pub relocated: usize,
    /// Functions with a [breakpoint](TraceMethod::Breakpoint).
    pub breakpoints: usize,
    /// Functions that cannot be traced.
    pub refused: usize,
    /// Functions among those that can be traced whose returns go untold.
    pub entry_only: usize,
    /// Functions among all of these that have no name.
    pub unnamed: usize,
    /// The module was stripped, and has no debug file: only functions that other modules can see
    /// have names, and others are known by their unwind information.
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
            nops: all(|site| site.how == Ok(TraceMethod::Nop)),
            relocated: all(|site| site.how == Ok(TraceMethod::Relocated)),
            breakpoints: all(|site| site.how == Ok(TraceMethod::Breakpoint)),
            refused: all(|site| site.how.is_err()),
            entry_only: all(|site| site.how.is_ok() && !site.returns),
            unnamed: all(|site| !site.has_name),
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
