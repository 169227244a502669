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

/// Sites of a module that were made at once.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) named: NamedSites,
    /// How to unwind from those that are before a function and have its jump. It is known to
    /// unwinders while the module is loaded.
    pub(super) relay_unwind: Unwind,
    /// What the handlers of traps know of the sites.
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

    /// How many sites there are.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|part| part.named.sites.len()).sum()
    }

    /// The part that a site is in, and its place there.
    fn place(&self, mut index: usize) -> Option<(&Part, usize)> {
        for part in &self.0 {
            match index.checked_sub(part.named.sites.len()) {
                Some(rest) => index = rest,
                None => return Some((part, index)),
            }
        }
        None
    }

    /// The site of a number.
    ///
    /// # Panics
    ///
    /// If it is not less than [`len`](Self::len).
    pub(super) fn site(&self, index: usize) -> &'static Site {
        let (part, place) = self.place(index).expect("a number of a site");
        &part.named.sites[place]
    }

    /// The names of the site of a number.
    pub(super) fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        let place = self.place(index);
        place
            .into_iter()
            .flat_map(|(part, at)| part.named.names.of(at))
    }

    /// The site of the function at `address`.
    pub(super) fn site_at(&self, address: usize) -> Option<&'static Site> {
        self.0.iter().find_map(|part| {
            let place = part
                .named
                .sites
                .binary_search_by_key(&address, Site::address);
            Some(&part.named.sites[place.ok()?])
        })
    }

    /// The numbers of the sites of functions in a range of addresses.
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

    /// Whether a site is patched somewhere in a range of addresses.
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
