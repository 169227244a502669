//! Tells callbacks which of several filters select a function.
//!
//! A tracer that distinguishes functions registers the union of its filters, and looks up here
//! which of them select one. The filters are evaluated at the first call of the function. From then
//! on the result is two words, found by the function's number. Bit *k* of `decided` says that
//! filter *k* was evaluated, and bit *k* of `selected` that it selects the function.

use core::sync::atomic::{AtomicU64, Ordering};

use fgraph::{Error, Filter, Function, FunctionFacts, IntoFilter};

use super::arena::Zeroed;
use super::by_function::ByFunction;

/// Most filters in a table.
pub(crate) const FILTERS: usize = 64;
/// Most names of a function that filters are compared with.
const NAMES: usize = 64;

#[derive(Debug)]
struct Cell {
    decided: AtomicU64,
    selected: AtomicU64,
}

// SAFETY: zeros are valid numbers.
unsafe impl Zeroed for Cell {}

/// Results of filters for the functions that were looked up.
#[derive(Debug)]
pub(crate) struct Classes {
    cells: ByFunction<Cell>,
}

impl Classes {
    pub(crate) fn new() -> Self {
        Self {
            cells: ByFunction::new(),
        }
    }

    /// Returns the filters in `ask`, one bit each, that select `function`. `selects` evaluates one
    /// of them and must not allocate. Returns no bits without memory.
    #[inline]
    pub(crate) fn of(
        &self,
        function: Function,
        ask: u64,
        selects: impl Fn(usize, &FunctionFacts<'_>) -> bool,
    ) -> u64 {
        let Some(cell) = self.cells.of(function) else {
            return 0;
        };
        // Acquire: pairs with the Release in `decide`, so the results are visible.
        let undecided = ask & !cell.decided.load(Ordering::Acquire);
        if undecided != 0 {
            decide(cell, function, undecided, selects);
        }
        cell.selected.load(Ordering::Relaxed) & ask
    }

    /// Discards the results of filter `nth`, which another filter replaces. No callback may look it
    /// up meanwhile.
    pub(crate) fn forget(&self, nth: usize) {
        for cell in self.cells.iter() {
            if cell.decided.load(Ordering::Relaxed) & 1 << nth != 0 {
                cell.decided.fetch_and(!(1 << nth), Ordering::Relaxed);
                cell.selected.fetch_and(!(1 << nth), Ordering::Relaxed);
            }
        }
    }
}

#[cold]
#[inline(never)]
fn decide(
    cell: &Cell,
    function: Function,
    ask: u64,
    selects: impl Fn(usize, &FunctionFacts<'_>) -> bool,
) {
    let mut names = [""; NAMES];
    let known = names.iter_mut().zip(function.names());
    let len = known.map(|(place, name)| *place = name).count();
    let symbols = [function.symbol()];
    let facts = FunctionFacts::new(&names[..len], function.module().path())
        .with_symbols(&symbols)
        .with_place(function.address(), function.size());
    let is_selected = |nth: &usize| ask & 1 << nth != 0 && selects(*nth, &facts);
    let selected = (0..FILTERS).filter(is_selected);
    let selected = selected.fold(0, |bits, nth| bits | 1 << nth);
    cell.selected.fetch_or(selected, Ordering::Relaxed);
    // Release: pairs with the Acquire in `of`.
    cell.decided.fetch_or(ask, Ordering::Release);
}

/// Returns a filter that callbacks may evaluate: one without a predicate, which could do anything.
///
/// # Errors
///
/// [`PredicateAsText`](fgraph::FilterError::PredicateAsText) for a filter with a predicate, and
/// errors of the filter itself.
pub(crate) fn without_predicate(filter: impl IntoFilter) -> Result<Filter, Error> {
    let filter = filter.into_filter()?;
    // Text has no predicates.
    let text: Filter = filter.to_string().parse()?;
    drop(text);
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use fgraph::FilterError;

    use super::*;

    #[test]
    fn a_predicate_is_refused_and_text_is_not() {
        let predicate = Filter::none().predicate(|_| true);
        let refused = without_predicate(predicate).unwrap_err();
        assert_eq!(refused, Error::Filter(FilterError::PredicateAsText));
        for text in ["*", "!*", "a::<b c> !d:mod:e + f"] {
            let filter = without_predicate(text).unwrap();
            assert_eq!(filter, text.parse().unwrap());
        }
    }
}
