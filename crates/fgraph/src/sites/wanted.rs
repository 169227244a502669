//! The filters for which sites are made.

use fgraph_symbols::filter::Matcher;

/// The filter of a user that may need sites.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a, 'f> {
    pub(crate) matcher: &'a Matcher<'f>,
    /// True if sites should be made only of functions that the filter mentions, if they are few.
    pub(crate) is_lazy: bool,
}

/// The functions of a module that need sites.
#[derive(Debug)]
pub(super) enum Wanting<'a, 'f> {
    /// All functions.
    All,
    /// Functions that these filters mention.
    Mentioned(Vec<&'a Matcher<'f>>),
}
