//! What there is to trace: every function, and how or why not.

use core::fmt;
use std::sync::Arc;

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

/// The functions of a module, of which the details are found out when they are asked for.
pub(crate) trait Listing: fmt::Debug + Send + Sync {
    /// The path of the module.
    fn path(&self) -> &str;

    /// The number of functions.
    fn len(&self) -> usize;

    /// All that is known of the function at an index less than `len`.
    fn get(&self, index: usize) -> SiteInfo;

    /// How it is traced, or why it cannot be, and whether its returns are told.
    fn how(&self, index: usize) -> (Result<TraceMethod, RefusalReason>, bool);

    /// Whether a symbol table has a name for it.
    fn has_name(&self, index: usize) -> bool;

    /// Whether the module was stripped.
    fn is_stripped(&self) -> bool;
}

/// All functions of the process, by module.
///
/// The list itself is small. What there is to say of a function is found out when the function is
/// reached: its name is demangled and its code is looked at, some microseconds for each. It is as
/// it is then, so a function that meanwhile got patched by another tool is refused.
#[derive(Clone, Debug, Default)]
pub struct SiteList {
    pub(crate) modules: Vec<Arc<dyn Listing>>,
}

impl SiteList {
    /// The functions, those of one module after those of the other, by address.
    ///
    /// To count and to skip functions costs nothing; each that is reached costs some microseconds.
    #[must_use]
    pub fn iter(&self) -> SiteIter<'_> {
        SiteIter {
            modules: &self.modules,
            next: 0,
        }
    }

    /// The number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.modules.iter().map(|module| module.len()).sum()
    }

    /// Whether there is no function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts of each module that has functions. The code of all functions is looked at.
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

/// The functions of a [`SiteList`].
#[derive(Clone, Debug)]
pub struct SiteIter<'a> {
    modules: &'a [Arc<dyn Listing>],
    /// In the first of the modules.
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
