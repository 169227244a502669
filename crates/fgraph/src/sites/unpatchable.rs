//! The functions of a module that have no site.

use crate::report::error::RefusalReason;

/// A function without a site, and the reason.
#[derive(Debug)]
pub(super) struct Unpatchable {
    /// All names of the function, in the form of a site's names.
    pub(super) names: Vec<String>,
    pub(super) address: usize,
    pub(super) is_system_call: bool,
    pub(super) reason: RefusalReason,
}
