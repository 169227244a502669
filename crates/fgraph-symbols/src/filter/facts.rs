//! What is known of a function, for filters to look at.

use core::any::Any;
use core::fmt;
use core::hash::{Hash, Hasher};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use super::error::FilterError;

/// What filters know of a function.
///
/// ```
/// use fgraph_symbols::filter::{Filter, FunctionFacts};
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
    /// The function that goes by all of `names`, demangled, the best first, in the module at the
    /// path `module`. Its symbols, its address and its size are not known.
    pub fn new(names: &'a [&'a str], module: &'a str) -> Self {
        Self {
            names,
            symbols: &[],
            module,
            address: 0,
            size: 0,
        }
    }

    /// The same with its names as they are in the symbol tables: mangled, without versions.
    #[must_use]
    pub fn with_symbols(self, symbols: &'a [&'a str]) -> Self {
        Self { symbols, ..self }
    }

    /// The same with its place: where it begins, and how many bytes it has.
    #[must_use]
    pub fn with_place(self, address: usize, size: usize) -> Self {
        Self {
            address,
            size,
            ..self
        }
    }

    /// The name that it goes by: demangled, without the hash of rustc; empty if it has none.
    pub fn name(&self) -> &'a str {
        self.names.first().copied().unwrap_or_default()
    }

    /// All its names, demangled, the best first, and behind them those with a version, such as
    /// `memcpy@@GLIBC_2.14`.
    pub fn names(&self) -> &'a [&'a str] {
        self.names
    }

    /// Its names as they are in the symbol tables: mangled, without versions.
    pub fn symbols(&self) -> &'a [&'a str] {
        self.symbols
    }

    /// The path of the program or library that it is in.
    pub fn module(&self) -> &'a str {
        self.module
    }

    /// Where it begins; 0 if that is not known.
    pub fn address(&self) -> usize {
        self.address
    }

    /// How many bytes it has; 0 if that is not known.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A question about functions.
#[derive(Clone)]
pub(super) struct Predicate(Arc<dyn Fn(&FunctionFacts<'_>) -> bool + Send + Sync>);

impl Predicate {
    pub(super) fn new(ask: impl Fn(&FunctionFacts<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn matches(&self, function: &FunctionFacts<'_>) -> bool {
        (self.0)(function)
    }

    /// The answer, or that it panicked.
    pub(super) fn try_matches(&self, function: &FunctionFacts<'_>) -> Result<bool, FilterError> {
        // Unwind safe, because a predicate is shared and so guards its own state.
        let answer = panic::catch_unwind(AssertUnwindSafe(|| self.matches(function)));
        answer.map_err(|payload| {
            let message = message(&*payload);
            // What was thrown may panic when it is dropped.
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

/// What a panic says.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is no text").to_owned()
}

/// A predicate is the same as its clones only.
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
