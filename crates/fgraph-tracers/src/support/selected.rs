//! Evaluates a filter in callbacks, at each function's first call.

use fgraph::{Filter, Function, FunctionFacts};

use super::sink::FunctionSet;

/// Functions that a filter selects, among those that callbacks have met.
#[derive(Debug)]
pub(crate) struct Selected {
    filter: Filter,
    /// Functions that the filter selects, among those that were called.
    found: FunctionSet,
}

/// Most names of a function that are compared.
const NAMES: usize = 8;

impl Selected {
    /// Creates an empty set; `None` without memory.
    pub(crate) fn new(filter: &Filter) -> Option<Self> {
        Some(Self {
            filter: filter.clone(),
            found: FunctionSet::new()?,
        })
    }

    /// True if the filter selects a function that was [learnt](Self::learn).
    #[inline(always)]
    pub(crate) fn has(&self, function: Function) -> bool {
        self.found.has(function.index())
    }

    /// Evaluates the filter for a function. Neither allocates nor locks.
    #[cold]
    #[inline(never)]
    pub(crate) fn learn(&self, function: Function) {
        if selects(&self.filter, function) {
            self.found.set(function.index());
        }
    }
}

/// True if a filter selects a function. Neither allocates nor locks.
pub(crate) fn selects(filter: &Filter, function: Function) -> bool {
    let mut names = [""; NAMES];
    let mut count = 0;
    for (place, name) in names.iter_mut().zip(function.names()) {
        *place = name;
        count += 1;
    }
    let symbols = [function.symbol()];
    let facts = FunctionFacts::new(&names[..count], function.module().path())
        .with_symbols(&symbols)
        .with_place(function.address(), function.size());
    filter.matches(&facts)
}
