//! The sites of a module, in the parts in which they were made: all at once, or first those of a
//! few functions.
//!
//! ```text
//!   part 0            part 1                      numbered across all parts
//!   +---+---+---+     +---+---+---+---+---+
//!   | 0 | 1 | 2 |     | 3 | 4 | 5 | 6 | 7 |       each part by address
//!   +---+---+---+     +---+---+---+---+---+
//! ```

use core::ops::Range;

use fgraph_core::site::Site;

use super::record::patched_len;
use super::site_names::NamedSites;
use crate::arch::trap::TrapRange;
use crate::code::arena::Unwind;

/// Sites of a module that were made together.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) named: NamedSites,
    /// The unwind rules of padding jumps. Unwinders know them while the module is loaded.
    pub(super) padding_jump_unwind: Unwind,
    /// The sites, for the trap handlers.
    pub(super) traps: &'static TrapRange,
}

/// All sites of a module; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<Part>);

impl Parts {
    pub(super) fn push(&mut self, part: Part) {
        self.0.push(part);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Part> {
        self.0.iter()
    }

    /// Returns the number of sites.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|part| part.named.sites.len()).sum()
    }

    /// Returns the part that contains a site, and the site's place in it.
    fn place(&self, mut index: usize) -> Option<(&Part, usize)> {
        for part in &self.0 {
            match index.checked_sub(part.named.sites.len()) {
                Some(rest) => index = rest,
                None => return Some((part, index)),
            }
        }
        None
    }

    /// Returns the site at an index.
    ///
    /// # Panics
    ///
    /// Panics if it is not less than [`len`](Self::len).
    pub(super) fn site(&self, index: usize) -> &'static Site {
        let (part, place) = self.place(index).expect("a number of a site");
        &part.named.sites[place]
    }

    /// Returns the names of the site at an index.
    pub(super) fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        let place = self.place(index);
        place
            .into_iter()
            .flat_map(|(part, at)| part.named.names.of(at))
    }

    /// Returns the site of the function at `address`.
    pub(super) fn site_at(&self, address: usize) -> Option<&'static Site> {
        self.0.iter().find_map(|part| {
            let place = part
                .named
                .sites
                .binary_search_by_key(&address, Site::address);
            Some(&part.named.sites[place.ok()?])
        })
    }

    /// Iterates over the indices of sites of functions in a range of addresses.
    pub(super) fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        let mut before = 0;
        self.0.iter().flat_map(move |part| {
            let behind = |address| {
                part.named
                    .sites
                    .partition_point(|site| site.address() < address)
            };
            let first = before + behind(addresses.start);
            let end = before + behind(addresses.end);
            before += part.named.sites.len();
            first..end
        })
    }

    /// Returns true if a range of addresses contains patched bytes of a site.
    pub(super) fn overlap(&self, addresses: &Range<usize>) -> bool {
        let is_before = |site: &Site| site.entry + patched_len(site) <= addresses.start;
        self.0.iter().any(|part| {
            let next = part
                .named
                .sites
                .get(part.named.sites.partition_point(is_before));
            next.is_some_and(|site| site.entry < addresses.end)
        })
    }
}
