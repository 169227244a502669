//! Functions by number and by address.

use core::fmt;

use fgraph_core::site::Source;
use fgraph_symbols::signature::{NoValue, Signature, Value, ValuePath};

use crate::control;
use crate::report::error::Error;
use crate::sites::{indices, symbol_table};

/// How many functions have a number: every [`Function::index`](crate::Function::index) is less.
///
/// It grows as filters first select a function of a module, by all functions of that module, and is
/// at most 2^24. Neither locks nor allocates, so callbacks may ask as well.
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
    control::lock()?.control.load_symbols()
}

/// The function whose code an address is in: of functions inside each other, the innermost.
///
/// It knows the functions of all modules that were loaded when [`load_symbols`] was called, and of
/// every module that a filter has asked for: of those that can be traced and of others. `None` for
/// an address in none of these. What is known of a library that was unloaded is forgotten with the
/// next change of a filter.
///
/// Two binary searches: it neither locks nor allocates, so callbacks may call it, with the
/// addresses of their callers, say.
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

/// A function of the process, whether it can be traced or not; from [`function_at`].
#[derive(Clone, Copy)]
pub struct Symbol(symbol_table::FunctionRow);

impl Symbol {
    /// Its name as programmers know it; `module+0x1234` if it has none.
    #[must_use]
    pub fn name(&self) -> SymbolName {
        SymbolName(self.0)
    }

    /// The path of the file of its program or library.
    #[must_use]
    pub fn module(&self) -> &'static str {
        self.0.path()
    }

    /// The address at which the function starts.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.start
    }

    /// The number of its bytes; 0 if its file does not say.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Where it is in its source, as [`Function::source`](crate::Function::source) tells, with what
    /// that says of callbacks.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        self.0.source()
    }

    /// What it takes and gives back, and where that is, from debug information of C, C++ and Rust:
    /// see [`Function::source`](crate::Function::source) for where that is looked for, and for what
    /// it says of callbacks.
    ///
    /// The first time for each unit of the function's source all of the unit is looked through,
    /// which takes a second for the largest.
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

    /// The value that an argument leads to, where [`signature`](Self::signature) knows it: members
    /// of structures, and what addresses lead to.
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
    /// Why there is none.
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
/// Formatting it does not allocate, so the name of a C++ function of a module of which no filter
/// has selected anything is written as it is in the symbol table.
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
