//! A traced place: one function entry that can be patched.
//!
//! ```text
//!   +0   entry     address of the five bytes that are patched
//!   +8   body      where the function goes on behind them
//!   +16  interest  which of the 16 users want this function
//!   +18  lead      bytes between the function's address and `entry` (an endbr64)
//!   +19  state     whether the entry is patched, the runtime's own
//!   +20  inner     where the copies are of instructions that start at bytes 1 to 4 of the entry
//!   +24  name      as the programmer knows it: demangled
//!   +40  module    the program or library it is in
//!   +48  stub      where a thread goes on that meets the patched entry
//!   +56  runtime   a word of the runtime's: the original bytes
//! ```
//!
//! 64 bytes, so that a record is one cache line: all that a traced call reads of it is together.

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

/// The program or one of its shared libraries.
#[derive(Debug)]
pub struct Module {
    /// Path of its file.
    pub path: &'static str,
    /// Looks up the name that a site of this module has in the symbol table; empty when there is none.
    pub symbol: fn(&'static Site) -> &'static str,
}

impl Module {
    /// The file name without its directories.
    pub fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }
}

/// One function entry that can be patched; see the module documentation for the layout.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Site {
    /// Address of the bytes that are patched.
    pub entry: usize,
    /// Where the function goes on behind them, or where the copy of their instructions is.
    pub body: usize,
    /// Bit *k* is set while the user in slot *k* wants this function.
    pub interest: AtomicU16,
    /// Bytes between the function's address and `entry`.
    pub lead: u8,
    /// What the runtime knows of the site's bytes.
    pub state: AtomicU8,
    /// For each of the bytes 1 to 4 of the entry at which an original instruction starts, how far
    /// behind `body` its relocated copy is; 0 for the others. All 0 where the entry is one
    /// instruction.
    pub inner: [u8; 4],
    /// The name as the programmer knows it; empty when there is none.
    pub name: &'static str,
    /// Where it is from.
    pub module: &'static Module,
    /// Address of its stub.
    pub stub: usize,
    /// A word of the runtime's.
    pub runtime: AtomicU64,
}

const _: () = assert!(size_of::<Site>() == 64);

impl Site {
    /// The function's address.
    pub fn address(&self) -> usize {
        self.entry - usize::from(self.lead)
    }
}

/// A function of the traced program.
#[derive(Clone, Copy)]
pub struct Function(&'static Site);

impl Function {
    /// The function that `site` is the entry of.
    pub fn of(site: &'static Site) -> Self {
        Self(site)
    }

    /// Its address.
    pub fn address(self) -> usize {
        self.0.address()
    }

    /// Its name as the programmer knows it: demangled, without the hash of rustc.
    ///
    /// Formatting it neither allocates nor demangles, so it may be used in a callback at any place.
    pub fn name(self) -> Name {
        Name(self.0)
    }

    /// Its name in the symbol table; empty when the table has none. It is looked up.
    pub fn symbol(self) -> &'static str {
        (self.0.module.symbol)(self.0)
    }

    /// The program or library that it is in.
    pub fn module(self) -> &'static Module {
        self.0.module
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.0.entry == other.0.entry
    }
}

impl Eq for Function {}

impl core::hash::Hash for Function {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.0.entry.hash(state);
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.name(), self.address())
    }
}

/// A function's name; its address if it has none.
#[derive(Clone, Copy)]
pub struct Name(&'static Site);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.name.is_empty() {
            write!(f, "{:#x}", self.0.address())
        } else {
            f.write_str(self.0.name)
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
