//! The names of sites that were made together.
//!
//! ```text
//!   sites       0         1               2         3
//!               malloc    jump before 2   free      system call in read
//!   own         -         -               -         "read+0x14"
//!   functions   17        NONE            18        NONE
//!                |                         |
//!   all         the names of the module's functions, by index
//! ```

use fgraph_core::site::Site;

use super::names::Names;

/// In place of a function's index: the site has names of its own, or none.
pub(super) const NONE: u32 = u32::MAX;

/// The names of sites that were made together; see the module documentation.
#[derive(Debug)]
pub(super) struct SiteNames {
    own: Names,
    functions: Vec<u32>,
    /// `None` if they are not kept.
    all: Option<&'static Names>,
}

/// Sites that were made together, with their names.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedSites {
    /// By address.
    pub(super) sites: &'static [Site],
    pub(super) names: &'static SiteNames,
}

impl SiteNames {
    /// Makes the names of sites that have `own` names, or belong to `functions` that are among
    /// `all`.
    pub(super) fn new(own: Names, functions: Vec<u32>, all: Option<&'static Names>) -> Self {
        Self {
            own,
            functions,
            all,
        }
    }

    /// Returns all names of a site, by its place among the sites, the best first.
    pub(super) fn of(&self, place: usize) -> impl Iterator<Item = &str> {
        let function = self.functions[place];
        let all = self.all.filter(|_| function != NONE).into_iter();
        let shared = all.flat_map(move |all| all.of(function as usize));
        self.own.of(place).chain(shared)
    }

    /// Returns the best name of a site; empty if it has none.
    pub(super) fn best(&self, place: usize) -> &str {
        self.of(place).next().unwrap_or_default()
    }
}
