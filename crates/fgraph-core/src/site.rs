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
//!   +36  index     the function's number
//!   +40  module    the program or library it is in
//!   +48  stub      where a thread goes on that meets the patched entry
//!   +56  runtime   a word of the runtime's: the original bytes
//! ```
//!
//! 64 bytes, so that a record is one cache line: all that a traced call reads of it is together.

use alloc::string::String;
use core::cmp::Ordering;
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

/// How many users may be registered at once: each has a bit of [`Site::interest`].
pub const MAX_USERS: usize = 16;

/// The program or one of its shared libraries.
#[derive(Debug)]
pub struct Module {
    /// Path of its file.
    pub path: &'static str,
    /// What is known of its functions.
    pub symbols: &'static dyn Symbols,
}

/// What is known of the functions of a module, beside what is in their records.
pub trait Symbols: fmt::Debug + Sync {
    /// The name that the function of a site has in the symbol table; empty if there is none.
    fn symbol(&self, site: &Site) -> &'static str;

    /// One of all names of the function of a site: the best for `nth` 0, and so on.
    fn name(&self, site: &Site, nth: usize) -> Option<&'static str>;

    /// The bytes of the function of a site; 0 if that is not known.
    fn size(&self, site: &Site) -> usize;

    /// The number of the system call that a site is; `None` if it is of a function.
    fn system_call(&self, _site: &Site) -> Option<u32> {
        None
    }

    /// Where the function of a site is in its source; `None` if that is not known.
    fn source(&self, _site: &Site) -> Option<Source> {
        None
    }

    /// Writes the name of the function of a site with all that tells it from others.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    fn write_full_name(&self, site: &Site, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A place in the source of a program, as debug information has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Source {
    /// The path of the file where it was compiled.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

impl Source {
    /// The line `line` of `file`.
    pub fn new(file: String, line: u32) -> Self {
        Self { file, line }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Nothing is known.
impl Symbols for () {
    fn symbol(&self, _: &Site) -> &'static str {
        ""
    }

    fn name(&self, site: &Site, nth: usize) -> Option<&'static str> {
        (nth == 0).then(|| site.name.as_str())
    }

    fn size(&self, _: &Site) -> usize {
        0
    }

    fn write_full_name(&self, site: &Site, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(site.name.as_str())
    }
}

/// A text that takes 12 bytes: one of 16 would leave no room in a [`Site`].
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub struct SiteName {
    start: NonNull<u8>,
    len: u32,
}

// SAFETY: it stands for a `&'static str`.
unsafe impl Send for SiteName {}
// SAFETY: as above.
unsafe impl Sync for SiteName {}

impl SiteName {
    /// The text; an empty one for a text of 4 GiB and more.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        let len = if text.len() > u32::MAX as usize {
            0
        } else {
            text.len() as u32
        };
        Self {
            // SAFETY: a reference is not null.
            start: unsafe { NonNull::new_unchecked(text.as_ptr().cast_mut()) },
            len,
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        // SAFETY: start and length are those of a `&'static str`, or the length is 0.
        unsafe {
            let bytes = core::slice::from_raw_parts(self.start.as_ptr(), self.len as usize);
            core::str::from_utf8_unchecked(bytes)
        }
    }
}

impl fmt::Debug for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
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
    pub name: SiteName,
    /// The function's number.
    pub index: u32,
    /// The program or library that the function is in.
    pub module: &'static Module,
    /// Address of its stub.
    pub stub: usize,
    /// A word of the runtime's.
    pub runtime: AtomicU64,
}

const _: () = assert!(size_of::<Site>() == 64);
const _: () = assert!(core::mem::offset_of!(Site, module) == 40);

impl Site {
    /// The function's address.
    pub fn address(&self) -> usize {
        // Nothing that may panic: callbacks ask for it.
        self.entry.wrapping_sub(usize::from(self.lead))
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

    /// Its number: less than [`fgraph::function_count()`], and so the place of what a user keeps of
    /// it in an array.
    ///
    /// Functions are numbered from 0 as filters first select a function of their module. A number
    /// is never given to another function; a library that is loaded again, also at another address,
    /// gets the numbers back that it had, if it has a build id.
    ///
    /// [`fgraph::function_count()`]: https://docs.rs/fgraph/latest/fgraph/fn.function_count.html
    pub fn index(self) -> u32 {
        self.0.index
    }

    /// The number of the system call that it is, if it is none of the program's functions but a
    /// system call that one of these makes itself: its address is there, and its name that of the
    /// function with a distance.
    ///
    /// Users get such calls by a filter that [asks for them]. The call's arguments are those of
    /// [`Entry::system_call_arg`](crate::Entry::system_call_arg), and the result is the kernel's: a
    /// negative `errno` after an error. It has no caller: it returns to code of fgraph's.
    ///
    /// [asks for them]: https://docs.rs/fgraph/latest/fgraph/struct.Filter.html#method.system_calls
    pub fn system_call(self) -> Option<u32> {
        self.0.module.symbols.system_call(self.0)
    }

    /// The number of its bytes; 0 if its file does not say. It is looked up.
    pub fn size(self) -> usize {
        self.0.module.symbols.size(self.0)
    }

    /// Its name in the symbol table; empty when the table has none. It is looked up.
    pub fn symbol(self) -> &'static str {
        self.0.module.symbols.symbol(self.0)
    }

    /// All of its names as programmers know them, the best first, and behind them those that have a
    /// version, with it. They are looked up.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..).map_while(move |nth| self.0.module.symbols.name(self.0, nth))
    }

    /// Its name with all that tells it from others: with the parameters of a C++ function, and with
    /// the hashes of rustc, which differ for each instance of a generic function.
    ///
    /// Formatting it demangles the symbol, which for C++ allocates: not for callbacks on the
    /// functions of an allocator.
    pub fn full_name(self) -> FullName {
        FullName(self.0)
    }

    /// The source file, and the line of the function's first instruction: in most compilers' tables
    /// the one with its name.
    ///
    /// `None` without the feature `dwarf` of `fgraph`, and where there is no debug information,
    /// neither in the file of the module nor in a debug file where debuggers look for one.
    ///
    /// The first time for each module its debug information is read and kept, which takes seconds
    /// and a gigabyte for the largest. It allocates, locks and reads files: not for callbacks on
    /// functions that do so.
    ///
    /// ```no_run
    /// # fn source(function: fgraph_core::Function) {
    /// if let Some(source) = function.source() {
    ///     println!("{} is at {}:{}", function.name(), source.file, source.line);
    /// }
    /// # }
    /// ```
    pub fn source(self) -> Option<Source> {
        self.0.module.symbols.source(self.0)
    }

    /// Where the function goes on when it is traced: called there, it runs and no user sees it.
    ///
    /// What takes its place, see [`redirect`](crate::EntryWriter::redirect), calls the function so.
    /// The address is good for as long as the function's module is loaded.
    pub fn original(self) -> *const () {
        ptr::with_exposed_provenance(self.0.body)
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

/// A function's name. It is text: equal names may be those of different functions.
///
/// ```no_run
/// # fn name(function: fgraph_core::Function) {
/// let name = function.name();
/// println!("{name:>30.30} {}", name.as_str().len());
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Name(&'static Site);

impl Name {
    /// The text; empty if nothing is known.
    pub fn as_str(self) -> &'static str {
        self.0.name.as_str()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl core::hash::Hash for Name {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A function's name with all that tells it from others; see [`Function::full_name`].
#[derive(Clone, Copy)]
pub struct FullName(&'static Site);

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.module.symbols.write_full_name(self.0, f)
    }
}

impl fmt::Debug for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::format;

    use super::*;

    static MODULE: Module = Module {
        path: "/lib/module.so",
        symbols: &(),
    };

    fn function(name: &'static str, index: u32) -> Function {
        Function::of(Box::leak(Box::new(Site {
            entry: 0x1004,
            body: 0,
            interest: AtomicU16::new(0),
            lead: 4,
            state: AtomicU8::new(0),
            inner: [0; 4],
            name: SiteName::new(name),
            index,
            module: &MODULE,
            stub: 0,
            runtime: AtomicU64::new(0),
        })))
    }

    #[test]
    fn names_are_texts_that_can_be_aligned_compared_and_cut() {
        let (a, b) = (function("naïve::a", 0).name(), function("b", 7).name());
        assert_eq!(format!("{a:>10.7}|{b:<3}|"), "   naïve::|b  |");
        assert_eq!(a.as_str(), "naïve::a");
        assert!(b < a);
        assert_eq!(a, function("naïve::a", 1).name());
        assert_eq!(function("", 3).name().as_str(), "");
    }

    #[test]
    fn functions_know_their_number_and_their_place() {
        let function = function("f", 7);
        assert_eq!((function.index(), function.address()), (7, 0x1000));
        assert_eq!(function.names().collect::<std::vec::Vec<_>>(), ["f"]);
        assert_eq!((function.size(), function.symbol()), (0, ""));
    }
}
