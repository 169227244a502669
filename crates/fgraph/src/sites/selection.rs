//! The selection of users' filters in a module: one bit for each site, and for each function that
//! cannot be traced, so that a change of a filter touches only the changed sites.

use core::iter;
use core::ops::Range;

use fgraph_core::MAX_USERS;
use fgraph_symbols::filter::{Bits, Catalog, FilterError, FunctionFacts, ModuleMatcher};

use super::build::BuiltModule;
use super::facts::ModuleFacts;
use super::parts::Parts;
use super::record::{is_function, system_call};
use super::unpatchable::Unpatchable;
use crate::report::error::{RefusalReason, RefusedFunction};

/// The selection of one user's filter in a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// By their place among the sites; `None` if there are none.
    pub(super) sites: Option<Bits>,
    /// Further selected sites that would get a breakpoint, which the user may not have.
    pub(super) withheld: Option<Bits>,
    /// The functions that cannot be traced, by their place among these.
    pub(super) unpatchable: Option<Bits>,
    /// True if the filter names this module, which cannot be read.
    pub(super) unreadable: bool,
}

/// The way in which a selection changes that of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It replaces the user's selection.
    Set,
    /// It is added to the user's selection.
    Add,
    /// It is removed from the user's selection.
    Remove,
}

impl Selection {
    /// Returns a filter's selection in a module with sites, for a user that may or may not have
    /// breakpoints. Adds the number of functions that match each word to `counts`.
    ///
    /// # Errors
    ///
    /// Fails if a predicate panics.
    pub(super) fn new(
        matcher: &ModuleMatcher<'_, '_>,
        known: &'static ModuleFacts,
        built: &mut BuiltModule,
        breakpoints: bool,
        counts: &mut [usize],
    ) -> Result<Self, FilterError> {
        let sites = SiteCatalog {
            known,
            parts: &built.parts,
        };
        let mut selection = Self {
            sites: matcher.select(&sites, &mut built.index, counts)?,
            ..Self::default()
        };
        if !breakpoints {
            let breakpoints = built.breakpoints.iter().map(|(site, _)| *site);
            selection.withhold(breakpoints, built.parts.len());
        }
        let unpatchable = UnpatchableCatalog {
            known,
            unpatchable: &built.unpatchable,
        };
        selection.unpatchable =
            matcher.select(&unpatchable, &mut built.unpatchable_index, counts)?;
        Ok(selection)
    }

    /// Returns true if it has a function that can be traced.
    pub(crate) fn has_sites(&self) -> bool {
        self.sites.as_ref().is_some_and(|sites| !sites.is_empty())
    }

    /// Returns the selected functions of the module at `path` that cannot be traced, or that would
    /// get a breakpoint which the user may not have.
    pub(super) fn refused(
        &self,
        built: &BuiltModule,
        path: &str,
    ) -> impl Iterator<Item = RefusedFunction> {
        let refused = |name: &str, address, reason: &RefusalReason| RefusedFunction {
            name: name.to_owned(),
            module: path.to_owned(),
            address,
            reason: reason.clone(),
        };
        let withheld = self.withheld.as_ref();
        let is_withheld = move |index: usize| withheld.is_some_and(|sites| sites.contains(index));
        let with_breakpoint = built.breakpoints.iter();
        let withheld = with_breakpoint.filter(move |(index, _)| is_withheld(*index));
        let withheld = withheld.map(move |(index, reason)| {
            let site = built.parts.site(*index);
            refused(site.name.as_str(), site.address(), reason)
        });
        let unpatchable = indices(self.unpatchable.as_ref()).map(move |index| {
            let one = &built.unpatchable[index];
            let name = one.names.first().map_or("", String::as_str);
            refused(name, one.address, &one.reason)
        });
        withheld.chain(unpatchable)
    }

    /// Withholds the sites that are among `breakpoints`. There are `count` sites.
    fn withhold(&mut self, breakpoints: impl Iterator<Item = usize>, count: usize) {
        let Some(sites) = &mut self.sites else { return };
        let mut withheld = Bits::new(count);
        breakpoints
            .filter(|site| sites.contains(*site))
            .for_each(|site| withheld.insert(site));
        sites.remove(&withheld);
        self.withheld = (!withheld.is_empty()).then_some(withheld);
    }

    fn grow(&mut self, sites: usize, unpatchable: usize) {
        for bits in [&mut self.sites, &mut self.withheld].into_iter().flatten() {
            bits.grow(sites);
        }
        if let Some(bits) = &mut self.unpatchable {
            bits.grow(unpatchable);
        }
    }

    /// Changes the selection by `new`. Returns the sites that were selected and are not any more,
    /// or are and were not.
    fn change(&mut self, new: Self, change: Change) -> Option<Bits> {
        change_bits(&mut self.unpatchable, new.unpatchable, change);
        change_bits(&mut self.withheld, new.withheld, change);
        self.unreadable = match change {
            Change::Set => new.unreadable,
            Change::Add => self.unreadable || new.unreadable,
            Change::Remove => self.unreadable && !new.unreadable,
        };
        change_bits(&mut self.sites, new.sites, change)
    }
}

/// The selection of each user in a module. Allocated separately from the module, so that skipping
/// many modules touches little memory.
#[derive(Debug, Default)]
pub(super) struct Selections(Box<[Selection; MAX_USERS]>);

impl Selections {
    /// Returns the selection of the user in `slot`.
    pub(super) fn of(&self, slot: usize) -> &Selection {
        &self.0[slot]
    }

    /// Changes the selection of the user in `slot`. Returns the sites that were selected and are
    /// not any more, or are and were not.
    pub(super) fn change(&mut self, slot: usize, new: Selection, change: Change) -> Option<Bits> {
        self.0[slot].change(new, change)
    }

    /// Makes room for additions to the module: there are now `sites` sites, and `unpatchable`
    /// functions that cannot be traced.
    pub(super) fn grow(&mut self, sites: usize, unpatchable: usize) {
        for selection in self.0.iter_mut() {
            selection.grow(sites, unpatchable);
        }
    }
}

fn change_bits(bits: &mut Option<Bits>, new: Option<Bits>, change: Change) -> Option<Bits> {
    let changed = match (&mut *bits, new, change) {
        (None, None, _) | (None, Some(_), Change::Remove) => None,
        (Some(_), None, Change::Add | Change::Remove) => None,
        (Some(_), None, Change::Set) => return bits.take(),
        (None, Some(new), Change::Set | Change::Add) => {
            *bits = Some(new.clone());
            Some(new)
        }
        (Some(old), Some(mut new), Change::Set) => {
            core::mem::swap(old, &mut new);
            new.toggle(old);
            Some(new)
        }
        (Some(old), Some(mut new), Change::Add) => {
            new.remove(old);
            old.add(&new);
            Some(new)
        }
        (Some(old), Some(mut new), Change::Remove) => {
            new.retain(old);
            old.remove(&new);
            Some(new)
        }
    };
    if bits.as_ref().is_some_and(Bits::is_empty) {
        *bits = None;
    }
    changed
}

/// The sites of a module, for filters.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteCatalog<'a> {
    pub(super) known: &'static ModuleFacts,
    pub(super) parts: &'a Parts,
}

impl Catalog for SiteCatalog<'_> {
    fn len(&self) -> usize {
        self.parts.len()
    }

    fn is_function(&self, index: usize) -> bool {
        is_function(self.parts.site(index))
    }

    fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        let is_function = self.is_function(index);
        self.parts.names(index).filter(move |_| is_function)
    }

    fn system_calls(&self) -> impl Iterator<Item = usize> {
        let is_call = |&index: &usize| system_call(self.parts.site(index)).is_some();
        (0..self.parts.len()).filter(is_call)
    }

    fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        let within = self.parts.within(addresses);
        within.filter(|&index| self.is_function(index))
    }

    fn facts<R>(&self, index: usize, with: impl FnOnce(&FunctionFacts<'_>) -> R) -> R {
        let names: Vec<&str> = self.names(index).collect();
        let address = self.parts.site(index).address();
        self.known.facts(address, &names, with)
    }
}

/// The functions of a module that cannot be traced, for filters.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnpatchableCatalog<'a> {
    pub(super) known: &'static ModuleFacts,
    pub(super) unpatchable: &'a [Unpatchable],
}

impl Catalog for UnpatchableCatalog<'_> {
    fn len(&self) -> usize {
        self.unpatchable.len()
    }

    fn is_function(&self, index: usize) -> bool {
        !self.unpatchable[index].is_system_call
    }

    fn names(&self, index: usize) -> impl Iterator<Item = &str> {
        let function = Some(&self.unpatchable[index]).filter(|_| self.is_function(index));
        let names = function.into_iter().flat_map(|function| &function.names);
        names.map(String::as_str)
    }

    fn system_calls(&self) -> impl Iterator<Item = usize> {
        (0..self.unpatchable.len()).filter(|&index| !self.is_function(index))
    }

    fn within(&self, addresses: Range<usize>) -> impl Iterator<Item = usize> {
        let unpatchable = self.unpatchable.iter().enumerate();
        unpatchable.filter_map(move |(index, unpatchable)| {
            let is_it = !unpatchable.is_system_call && addresses.contains(&unpatchable.address);
            is_it.then_some(index)
        })
    }

    fn facts<R>(&self, index: usize, with: impl FnOnce(&FunctionFacts<'_>) -> R) -> R {
        let names: Vec<&str> = self.names(index).collect();
        self.known
            .facts(self.unpatchable[index].address, &names, with)
    }
}

/// Iterates over the indices of a selection.
pub(super) fn indices(bits: Option<&Bits>) -> impl Iterator<Item = usize> {
    bits.into_iter()
        .flat_map(|bits| bits.iter())
        .chain(iter::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(indices: &[usize]) -> Option<Bits> {
        let mut bits = Bits::new(100);
        indices.iter().for_each(|&index| bits.insert(index));
        (!indices.is_empty()).then_some(bits)
    }

    #[test]
    fn a_change_tells_what_it_changes() {
        let changed = |old: &[usize], new: &[usize], change| {
            let mut bits = of(old);
            let changed = change_bits(&mut bits, of(new), change);
            let all = |bits: Option<Bits>| indices(bits.as_ref()).collect::<Vec<_>>();
            (all(bits), all(changed))
        };
        let sets: [&[usize]; 5] = [&[], &[1], &[1, 70], &[2, 70, 99], &[1, 2, 70]];
        for (old, new) in sets.iter().flat_map(|old| sets.map(|new| (old, new))) {
            for change in [Change::Set, Change::Add, Change::Remove] {
                let is_selected = |index: &usize| match change {
                    Change::Set => new.contains(index),
                    Change::Add => old.contains(index) || new.contains(index),
                    Change::Remove => old.contains(index) && !new.contains(index),
                };
                let selected: Vec<_> = (0..100).filter(is_selected).collect();
                let differs = |index: &usize| old.contains(index) != selected.contains(index);
                let differing: Vec<_> = (0..100).filter(differs).collect();
                assert_eq!(
                    changed(old, new, change),
                    (selected, differing),
                    "{change:?}"
                );
            }
        }
    }
}
