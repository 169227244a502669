//! Lists of functions, each with the way it is traced, or the reason that it cannot be.

use core::fmt;
use std::sync::Arc;

use super::error::RefusalReason;

/// The way in which a function is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceMethod {
    /// The compiler has left a NOP at its entry, which is replaced by a jump.
    Nop,
    /// A jump replaces its first instructions, which run elsewhere.
    Relocated,
    /// Its first byte is replaced by a breakpoint, by which every call traps: see
    /// [`Options::breakpoints`](crate::Options::breakpoints).
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
    /// Its name as the programmer knows it; `module+0x1234`, from its place in the file, if it has
    /// none. Filters match its other names, too.
    pub name: String,
    /// True if a symbol table has a name for it.
    pub has_name: bool,
    /// The path of its module.
    pub module: String,
    /// The start address of the function.
    pub address: usize,
    /// The size in bytes; 0 if its file does not have it.
    pub size: usize,
    /// The way in which it is traced, or the reason that it cannot be.
    pub how: Result<TraceMethod, RefusalReason>,
    /// True if its returns are dispatched. For example, returns of functions that return twice are
    /// not.
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

/// The number of functions of a module by the way in which they are traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleCount {
    /// The path of the module.
    pub module: String,
    /// The number of functions with a [NOP](TraceMethod::Nop).
    pub nops: usize,
    /// The number of functions that are [relocated](TraceMethod::Relocated).
    pub relocated: usize,
    /// The number of functions with a [breakpoint](TraceMethod::Breakpoint).
    pub breakpoints: usize,
    /// The number of functions that cannot be traced.
    pub refused: usize,
    /// The number of traceable functions whose returns are not dispatched.
    pub entry_only: usize,
    /// The number of functions, traceable or not, that have no name.
    pub unnamed: usize,
    /// True if the module was stripped, and has no debug file: only functions that other modules
    /// can see have names, and others are known by their unwind information.
    pub stripped: bool,
}

/// The functions of a module; their details are computed when they are requested.
pub(crate) trait Listing: fmt::Debug + Send + Sync {
    /// Returns the path of the module.
    fn path(&self) -> &str;

    /// Returns the number of functions.
    fn len(&self) -> usize;

    /// Returns all facts about the function at an index less than `len`.
    fn get(&self, index: usize) -> SiteInfo;

    /// Returns the way in which it is traced, or the reason that it cannot be; and true if its
    /// returns are dispatched.
    fn how(&self, index: usize) -> (Result<TraceMethod, RefusalReason>, bool);

    /// Returns true if a symbol table has a name for it.
    fn has_name(&self, index: usize) -> bool;

    /// Returns true if the module was stripped.
    fn is_stripped(&self) -> bool;
}

/// All functions of the process, by module.
///
/// The list itself is small. The facts about a function are computed when the iteration reaches it:
/// its name is demangled and its code is analyzed, which takes some microseconds for each. They are
/// current then, so a function that another tool has patched meanwhile is refused.
#[derive(Clone, Debug, Default)]
pub struct SiteList {
    pub(crate) modules: Vec<Arc<dyn Listing>>,
}

impl SiteList {
    /// Iterates over the functions, module by module, in the order of addresses.
    ///
    /// Counting and skipping functions costs nothing; each function that is reached costs some
    /// microseconds.
    #[must_use]
    pub fn iter(&self) -> SiteIter<'_> {
        SiteIter {
            modules: &self.modules,
            next: 0,
        }
    }

    /// Returns the number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.modules.iter().map(|module| module.len()).sum()
    }

    /// Returns true if there is no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counts of each module that has functions. This analyzes the code of all
    /// functions.
    #[must_use]
    pub fn modules(&self) -> Vec<ModuleCount> {
        let modules = self.modules.iter().filter(|module| module.len() != 0);
        modules.map(|module| count(&**module)).collect()
    }
}

fn count(module: &dyn Listing) -> ModuleCount {
    let mut count = ModuleCount {
        module: module.path().to_owned(),
        stripped: module.is_stripped(),
        ..ModuleCount::default()
    };
    for index in 0..module.len() {
        let (how, returns) = module.how(index);
        *match how {
            Ok(TraceMethod::Nop) => &mut count.nops,
            Ok(TraceMethod::Relocated) => &mut count.relocated,
            Ok(TraceMethod::Breakpoint) => &mut count.breakpoints,
            Err(_) => &mut count.refused,
        } += 1;
        count.entry_only += usize::from(how.is_ok() && !returns);
        count.unnamed += usize::from(!module.has_name(index));
    }
    count
}

/// Iterates over the functions of a [`SiteList`].
#[derive(Clone, Debug)]
pub struct SiteIter<'a> {
    modules: &'a [Arc<dyn Listing>],
    /// Index in the first of the modules.
    next: usize,
}

impl Iterator for SiteIter<'_> {
    type Item = SiteInfo;

    fn next(&mut self) -> Option<SiteInfo> {
        self.nth(0)
    }

    fn nth(&mut self, mut skipped: usize) -> Option<SiteInfo> {
        while let Some((module, rest)) = self.modules.split_first() {
            let left = module.len() - self.next;
            if skipped < left {
                let index = self.next + skipped;
                self.next = index + 1;
                return Some(module.get(index));
            }
            skipped -= left;
            (self.modules, self.next) = (rest, 0);
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let all: usize = self.modules.iter().map(|module| module.len()).sum();
        let left = all - self.next;
        (left, Some(left))
    }

    fn count(self) -> usize {
        self.len()
    }
}

impl ExactSizeIterator for SiteIter<'_> {}

impl<'a> IntoIterator for &'a SiteList {
    type Item = SiteInfo;
    type IntoIter = SiteIter<'a>;

    fn into_iter(self) -> SiteIter<'a> {
        self.iter()
    }
}
