//! A site: one function entry that can be patched.
//!
//! ```text
//!   +0   entry     address of the five bytes that are patched
//!   +8   body      where the function goes on behind them
//!   +16  interest  which of the 16 users want this function
//!   +18  lead      bytes between the function's address and `entry` (an endbr64)
//!   +19  state     whether the entry is patched, the runtime's own
//!   +20  inner     offsets in the relocated prologue of the instructions at bytes 1 to 4
//!   +24  name      as the programmer knows it: demangled
//!   +36  index     the function's number
//!   +40  module    the program or library it is in
//!   +48  stub      where a thread goes on that meets the patched entry
//!   +56  runtime   a word of the runtime's: the original bytes
//! ```
//!
//! 64 bytes, so that a record is one cache line, and a traced call reads one line of it.

use alloc::string::String;
use core::cmp::Ordering;
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

/// The most users that can be registered at once: each has a bit of [`Site::interest`].
pub const MAX_USERS: usize = 16;

/// The program or one of its shared libraries.
#[derive(Debug)]
pub struct Module {
    /// The path of its file.
    path: &'static str,
    /// The names and sizes of its functions.
    symbols: &'static dyn Symbols,
}

/// Makes the module with the file at `path`. It is no method of [`Module`], which users see.
#[must_use]
pub const fn module(path: &'static str, symbols: &'static dyn Symbols) -> Module {
    Module { path, symbols }
}

/// The function that `site` is the entry of. It is no method of [`Function`], which users see.
#[must_use]
pub const fn function_of(site: &'static Site) -> Function {
    Function(site)
}

/// Facts about a module's functions that are not in their records.
pub trait Symbols: fmt::Debug + Sync {
    /// Returns the name of a site's function in the symbol table; empty if there is none.
    fn symbol(&self, site: &Site) -> &'static str;

    /// Returns one of the names of a site's function: the best for `nth` 0, and so on.
    fn name(&self, site: &Site, nth: usize) -> Option<&'static str>;

    /// Returns the size of a site's function in bytes; 0 if it is unknown.
    fn size(&self, site: &Site) -> usize;

    /// Returns the system call number if the site is a system call; `None` for a function.
    fn system_call(&self, _site: &Site) -> Option<u32> {
        None
    }

    /// Returns the source location of a site's function; `None` if it is unknown.
    fn source(&self, _site: &Site) -> Option<Source> {
        None
    }

    /// Writes the name of a site's function with everything that distinguishes it from others.
    ///
    /// # Errors
    ///
    /// Fails with the errors of `out`.
    fn write_full_name(&self, site: &Site, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A location in a program's source, from debug information.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Source {
    /// The path of the file on the machine that compiled it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

impl Source {
    /// Makes the location of line `line` of `file`.
    pub fn new(file: String, line: u32) -> Self {
        Self { file, line }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// No facts are known.
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

/// A text in 12 bytes: 16 would leave no room in a [`Site`].
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub struct SiteName {
    start: NonNull<u8>,
    len: u32,
}

// SAFETY: the fields represent a `&'static str`, which is `Send`.
unsafe impl Send for SiteName {}
// SAFETY: the fields represent a `&'static str`, which is `Sync`.
unsafe impl Sync for SiteName {}

impl SiteName {
    /// Makes a name; a text of 4 GiB or more becomes empty.
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

    /// Returns the text.
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
    /// The path of its file.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// Returns the file name without its directories.
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
    /// Address of the code after the patched bytes, or of the relocated prologue.
    pub body: usize,
    /// Bit *k* is set while the user in slot *k* wants this function.
    pub interest: AtomicU16,
    /// Bytes between the function's address and `entry`.
    pub lead: u8,
    /// The runtime's state of the site's bytes.
    pub state: AtomicU8,
    /// For each of the bytes 1 to 4 of the entry at which an original instruction starts: the
    /// distance from `body` of its relocated instruction; 0 for other bytes. All 0 if the entry is
    /// one instruction.
    pub inner: [u8; 4],
    /// The name as the programmer knows it; empty if there is none.
    pub name: SiteName,
    /// The index of the function.
    pub index: u32,
    /// The program or library of the function.
    pub module: &'static Module,
    /// Address of its stub.
    pub stub: usize,
    /// A word for the runtime.
    pub runtime: AtomicU64,
}

const _: () = assert!(size_of::<Site>() == 64);
const _: () = assert!(core::mem::offset_of!(Site, module) == 40);

impl Site {
    /// Returns the function's address.
    pub fn address(&self) -> usize {
        // Must not panic: callbacks call this.
        self.entry.wrapping_sub(usize::from(self.lead))
    }
}

/// A function of the traced program: a copyable handle, valid for the life of the process.
#[derive(Clone, Copy)]
pub struct Function(&'static Site);

impl Function {
    /// Returns the function whose entry is `site`.
    pub fn of(site: &'static Site) -> Self {
        Self(site)
    }

    /// Its address.
    pub fn address(self) -> usize {
        self.0.address()
    }

    /// Returns its name as the programmer knows it: demangled, without rustc's hash.
    ///
    /// Formatting the name neither allocates nor demangles, so any callback may do it.
    pub fn name(self) -> Name {
        Name(self.0)
    }

    /// Returns its index, which is less than [`fgraph::function_count()`]: use it to keep data of
    /// each function in an array.
    ///
    /// Functions are numbered from 0, in the order in which filters first select functions of their
    /// modules. An index is never given to another function. A library that is loaded again, even
    /// at another address, gets its indices back if it has a build id.
    ///
    /// [`fgraph::function_count()`]: https://docs.rs/fgraph/latest/fgraph/fn.function_count.html
    pub fn index(self) -> u32 {
        self.0.index
    }

    /// Returns the system call number, if this is not a function of the program but a system call
    /// that one of its functions makes itself. Its address is then that of the system call, and its
    /// name that of the function with a distance.
    ///
    /// Users get such calls through a filter that [asks for them]. Read the call's arguments with
    /// [`Entry::system_call_arg`](crate::Entry::system_call_arg). The result is the kernel's: a
    /// negative `errno` after an error. The call has no caller: it returns to code of fgraph.
    ///
    /// [asks for them]: https://docs.rs/fgraph/latest/fgraph/struct.Filter.html#method.system_calls
    pub fn system_call(self) -> Option<u32> {
        self.0.module.symbols.system_call(self.0)
    }

    /// Looks up the number of its bytes; 0 if its file does not have it.
    pub fn size(self) -> usize {
        self.0.module.symbols.size(self.0)
    }

    /// Looks up its name in the symbol table; empty if the table has none.
    pub fn symbol(self) -> &'static str {
        self.0.module.symbols.symbol(self.0)
    }

    /// Looks up all of its names as programmers know them, the best first. Names with a version
    /// come last, including the version.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..).map_while(move |nth| self.0.module.symbols.name(self.0, nth))
    }

    /// Returns its name with everything that distinguishes it from others: the parameters of a C++
    /// function, and rustc's hashes, which differ for each instance of a generic function.
    ///
    /// Formatting it demangles the symbol, which allocates for C++: do not use it in callbacks on
    /// functions of an allocator.
    pub fn full_name(self) -> FullName {
        FullName(self.0)
    }

    /// Returns the source file, and the line of the function's first instruction. In most
    /// compilers' tables that is the line with its name.
    ///
    /// Returns `None` without the feature `dwarf` of `fgraph`, or if there is no debug information,
    /// neither in the file of the module nor in a debug file at a place that debuggers search.
    ///
    /// The first call for each module reads and keeps its debug information, which takes seconds
    /// and a gigabyte for the largest modules. It allocates, locks and reads files: do not use it
    /// in callbacks on functions that do so.
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

    /// Returns the address of the function's code behind the patched entry: a call of it runs the
    /// function, and no user sees the call.
    ///
    /// Replacements of the function call it there, see [`redirect`](crate::EntryWriter::redirect).
    /// The address is valid for as long as the function's module is loaded.
    pub fn original(self) -> *const () {
        ptr::with_exposed_provenance(self.0.body)
    }

    /// Returns the program or library of the function.
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

/// A function's name. Different functions may have equal names.
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
    /// Returns the text; empty if no name is known.
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

/// A function's name with everything that distinguishes it from others; see
/// [`Function::full_name`].
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

    static MODULE: Module = module("/lib/module.so", &());

    fn function(name: &'static str, index: u32) -> Function {
        function_of(Box::leak(Box::new(Site {
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
