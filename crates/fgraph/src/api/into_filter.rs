//! Types that can be passed as a filter.

use fgraph_core::Function;
use fgraph_symbols::filter::{Filter, FilterError};

/// A type that selects functions to watch: a [`Filter`], its text, or a [`Function`].
///
/// ```
/// # use fgraph::{Entry, FgraphOps};
/// # struct Nothing;
/// # impl FgraphOps for Nothing {
/// #     type Data = ();
/// #     fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> { None }
/// # }
/// use fgraph::Filter;
///
/// // SAFETY: its callbacks do nothing.
/// let user = unsafe { fgraph::register(Nothing, "getpid getppid") }?;
/// for function in user.functions()? {
///     // SAFETY: as above.
///     let other = unsafe { fgraph::register(Nothing, function) }?;
///     assert_eq!(other.functions()?, [function]);
/// }
/// // SAFETY: as above.
/// unsafe { user.set_filter(Filter::none().name("getuid"))? };
/// # Ok::<(), fgraph::Error>(())
/// ```
///
/// It cannot be implemented by others.
pub trait IntoFilter: private::Sealed {
    /// Converts to a filter.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a valid filter.
    fn into_filter(self) -> Result<Filter, FilterError>;
}

mod private {
    /// A type of this crate's choice.
    pub trait Sealed {}
}

/// Seals the trait with these types.
macro_rules! sealed {
    ($($type:ty),*) => {
        $(impl private::Sealed for $type {})*
    };
}

sealed!(Filter, Result<Filter, FilterError>, &str, &String, String, Function, &[Function]);

impl<const N: usize> private::Sealed for [Function; N] {}

impl IntoFilter for Filter {
    fn into_filter(self) -> Result<Filter, FilterError> {
        Ok(self)
    }
}

/// The result of a call that makes a filter.
impl IntoFilter for Result<Filter, FilterError> {
    fn into_filter(self) -> Result<Filter, FilterError> {
        self
    }
}

/// The filter's text.
impl IntoFilter for &str {
    fn into_filter(self) -> Result<Filter, FilterError> {
        self.parse()
    }
}

/// The filter's text.
impl IntoFilter for &String {
    fn into_filter(self) -> Result<Filter, FilterError> {
        self.parse()
    }
}

/// The filter's text.
impl IntoFilter for String {
    fn into_filter(self) -> Result<Filter, FilterError> {
        self.parse()
    }
}

/// Selects this function only. Watching it is an error when its library is no longer loaded.
impl IntoFilter for Function {
    fn into_filter(self) -> Result<Filter, FilterError> {
        [self].into_filter()
    }
}

/// Selects these functions only.
impl IntoFilter for &[Function] {
    fn into_filter(self) -> Result<Filter, FilterError> {
        let add = |filter: Filter, function: &Function| {
            filter.address_in(function.address(), function.module().path())
        };
        self.iter().try_fold(Filter::none(), add)
    }
}

/// Selects these functions only.
impl<const N: usize> IntoFilter for [Function; N] {
    fn into_filter(self) -> Result<Filter, FilterError> {
        self.as_slice().into_filter()
    }
}
