//! The symbols of a module's sites.

use core::fmt;

use fgraph_core::site::{Site, Source, Symbols};
use fgraph_symbols::demangle;

use super::facts::ModuleFacts;
use super::record::{is_function, system_call};

/// The symbols of the module with these facts.
#[derive(Debug)]
pub(super) struct SiteSymbols(pub(super) &'static ModuleFacts);

impl Symbols for SiteSymbols {
    fn symbol(&self, site: &Site) -> &'static str {
        let index = self.0.index_of(site).filter(|_| is_function(site));
        index.map_or("", |index| self.0.symbol(index))
    }

    fn name(&self, site: &Site, nth: usize) -> Option<&'static str> {
        let (names, place) = self.0.names_of_site(site)?;
        names.of(place).nth(nth)
    }

    fn size(&self, site: &Site) -> usize {
        let index = self.0.index_of(site);
        index.map_or(0, |index| self.0.functions.get(index).size as usize)
    }

    fn system_call(&self, site: &Site) -> Option<u32> {
        system_call(site)
    }

    fn source(&self, site: &Site) -> Option<Source> {
        self.0.source(site.address())
    }

    fn write_full_name(&self, site: &Site, out: &mut dyn fmt::Write) -> fmt::Result {
        match self.symbol(site) {
            "" => out.write_str(site.name.as_str()),
            symbol => demangle::write_full(symbol, out),
        }
    }
}
