//! Functions by index and by address.

use core::fmt;

use fgraph_core::site::Source;
use fgraph_symbols::signature::{NoValue, Signature, Value, ValuePath};

use crate::control;
use crate::report::error::Error;
use crate::sites::{indices, symbol_table};

/// Returns the number of functions with an index: every [`Function::index`](crate::Function::index)
/// is less.
///
/// It grows when a filter first selects a function of a module, by the number of functions of that
/// module, and is at most 2^24. Neither locks nor allocates, so callbacks may call it.
///
/// ```
/// # struct Nothing;
/// # impl fgraph::FgraphOps for Nothing {
/// #     type Data = ();
/// #     fn entry(&self, _: &mut fgraph::Entry<'_, ()>) -> Option<()> { None }
/// #     fn ret(&self, _: &mut fgraph::Return<'_, ()>, _: ()) {}
/// # }
/// // SAFETY: the callbacks do nothing.
/// let user = unsafe { fgraph::register(Nothing, "malloc") }?;
/// let calls = vec![0_u64; fgraph::function_count() as usize];
/// assert!(!calls.is_empty());
/// # drop(user);
/// # Ok::<(), fgraph::Error>(())
/// ```
#[must_use]
pub fn function_count() -> u32 {
    indices::count()
}

/// Reads the symbol tables of the program and of all libraries that are loaded, so that
/// [`function_at`] knows their functions.
///
/// Without this it knows the modules that a filter has asked for: those that a word with `:mod:`
/// names, and all as soon as a word has none. Tables that were read before are not read again, so
/// call this again after a library was loaded whose functions you want to name. Nothing is patched
/// for this.
///
/// ```
/// fgraph::load_symbols()?;
/// let symbol = fgraph::function_at(libc::malloc as *const () as usize + 1).expect("it is known");
/// assert_eq!(symbol.name().to_string(), "malloc");
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// # Errors
///
/// [`InsideCallback`](Error::InsideCallback), [`Unsupported`](Error::Unsupported).
pub fn load_symbols() -> Result<(), Error> {
    control::lock()?.control.load_symbols(None)
}

/// Returns the function whose code contains `address`; of nested functions, the innermost.
///
/// It knows the functions, traceable or not, of every module that a filter or
/// [`sites`](crate::sites()) has read; a filter without a module reads all of them. Returns `None`
/// for an address in none of these. Functions of an unloaded library are forgotten at the next
/// change of a filter.
///
/// It takes two binary searches, and neither locks nor allocates, so callbacks may call it, for
/// example with the addresses of their callers.
///
/// ```
/// fgraph::load_symbols()?;
/// let symbol = fgraph::function_at(libc::malloc as *const () as usize + 1).expect("it is known");
/// assert_eq!(symbol.name().to_string(), "malloc");
/// assert_eq!(symbol.address(), libc::malloc as *const () as usize);
/// # Ok::<(), fgraph::Error>(())
/// ```
#[must_use]
pub fn function_at(address: usize) -> Option<Symbol> {
    symbol_table::function_containing(address).map(Symbol)
}

/// A function of the process, traceable or not; from [`function_at`].
#[derive(Clone, Copy)]
pub struct Symbol(symbol_table::FunctionRow);

impl Symbol {
    /// Returns its name as programmers know it; `module+0x1234` if it has none.
    #[must_use]
    pub fn name(&self) -> SymbolName {
        SymbolName(self.0)
    }

    /// Returns the path of the file of its program or library.
    #[must_use]
    pub fn module(&self) -> &'static str {
        self.0.path()
    }

    /// Returns its start address.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.start
    }

    /// Returns its size in bytes; 0 if its file does not have it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Returns its source location, like [`Function::source`](crate::Function::source), with the
    /// same restrictions for callbacks.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.0.source()
    }

    /// Returns its parameters and its result, with their locations, from debug information of C,
    /// C++ and Rust. See [`Function::source`](crate::Function::source) for the places that are
    /// searched, and for the restrictions for callbacks.
    ///
    /// The first call for each unit of the function's source reads the whole unit, which takes a
    /// second for the largest.
    ///
    /// ```
    /// fgraph::load_symbols()?;
    /// let symbol = fgraph::function_at(libc::malloc as *const () as usize).expect("it is known");
    /// if let Some(signature) = symbol.signature() {
    ///     println!("{}{signature}", symbol.name()); // malloc(bytes: size_t) -> void *
    /// }
    /// # Ok::<(), fgraph::Error>(())
    /// ```
    #[must_use]
    pub fn signature(&self) -> Option<Signature> {
        self.0.signature()
    }

    /// Returns a value that is reached from an argument, if [`signature`](Self::signature) knows
    /// the argument: members of structures, and targets of addresses.
    ///
    /// ```
    /// let path = "*count".parse().unwrap();
    /// let symbol = fgraph::function_at(std::process::exit as fn(i32) -> ! as usize);
    /// if let Some(Err(error)) = symbol.map(|symbol| symbol.value(&path)) {
    ///     println!("{error}"); // the function has no argument 'count'
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the reason that there is none.
    pub fn value(&self, path: &ValuePath) -> Result<Value, NoValue> {
        self.0.value(path)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.name(), self.address())
    }
}

/// The name of a [`Symbol`].
///
/// Formatting it does not allocate. So the name of a C++ function is written as in the symbol table
/// if no filter has selected anything of its module.
#[derive(Clone, Copy)]
pub struct SymbolName(symbol_table::FunctionRow);

impl fmt::Display for SymbolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_name(f)
    }
}

impl fmt::Debug for SymbolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
