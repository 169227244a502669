//! The facts about a function that filters use.

use core::any::Any;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use super::error::FilterError;

/// The facts about a function that filters use.
///
/// ```
/// # use fgraph_symbols::filter as fgraph;
/// use fgraph::{Filter, FunctionFacts};
///
/// let filter: Filter = "close:mod:libc.so*".parse()?;
/// let names = ["__close", "close", "close@@GLIBC_2.2.5"];
/// let close = FunctionFacts::new(&names, "/lib/x86_64-linux-gnu/libc.so.6");
/// assert!(filter.matches(&close));
/// # Ok::<(), fgraph_symbols::filter::FilterError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FunctionFacts<'a> {
    names: &'a [&'a str],
    symbols: &'a [&'a str],
    module: &'a str,
    address: usize,
    size: usize,
}

impl<'a> FunctionFacts<'a> {
    /// Makes a function with these `names`, demangled and the best first, in the module at the path
    /// `module`. Its symbols, its address and its size are unknown.
    pub fn new(names: &'a [&'a str], module: &'a str) -> Self {
        Self {
            names,
            symbols: &[],
            module,
            address: 0,
            size: 0,
        }
    }

    /// Adds its names as they are in the symbol tables: mangled, without versions.
    #[must_use]
    pub fn with_symbols(self, symbols: &'a [&'a str]) -> Self {
        Self { symbols, ..self }
    }

    /// Adds its address and its size in bytes.
    #[must_use]
    pub fn with_place(self, address: usize, size: usize) -> Self {
        Self {
            address,
            size,
            ..self
        }
    }

    /// Returns its best name: demangled, without rustc's hash; empty if it has none.
    pub fn name(&self) -> &'a str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Returns all its names, demangled, the best first. Names with a version, such as
    /// `memcpy@@GLIBC_2.14`, come last.
    pub fn names(&self) -> &'a [&'a str] {
        self.names
    }

    /// Returns its names as they are in the symbol tables: mangled, without versions.
    pub fn symbols(&self) -> &'a [&'a str] {
        self.symbols
    }

    /// Returns the path of its program or library.
    pub fn module(&self) -> &'a str {
        self.module
    }

    /// Returns its start address; 0 if it is unknown.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns its size in bytes; 0 if it is unknown.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A predicate over functions.
#[derive(Clone)]
pub(super) struct Predicate(Arc<dyn Fn(&FunctionFacts<'_>) -> bool + Send + Sync>);

impl Predicate {
    pub(super) fn new(ask: impl Fn(&FunctionFacts<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn matches(&self, function: &FunctionFacts<'_>) -> bool {
        (self.0)(function)
    }

    /// Returns the predicate's result, or an error if it panicked.
    pub(super) fn try_matches(&self, function: &FunctionFacts<'_>) -> Result<bool, FilterError> {
        // Unwind safe, because a predicate is shared and so guards its own state.
        let answer = panic::catch_unwind(AssertUnwindSafe(|| self.matches(function)));
        answer.map_err(|payload| {
            let message = message(&*payload);
            // The payload may panic when it is dropped.
            core::mem::forget(payload);
            FilterError::PredicatePanicked {
                function: function.name().to_owned(),
                message,
            }
        })
    }

    fn id(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

/// Returns the message of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text").to_owned()
}

/// A predicate equals only its own clones.
impl PartialEq for Predicate {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Predicate {}

impl Hash for Predicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}
