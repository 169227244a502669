//! The functions of a module that have no site.

use crate::report::error::RefusalReason;

/// A function that has no site, and why.
#[derive(Debug)]
pub(super) struct Unpatchable {
    /// All names of the function, as a site has them.
    pub(super) names: Vec<String>,
    pub(super) address: usize,
    pub(super) is_system_call: bool,
    pub(super) reason: RefusalReason,
}
