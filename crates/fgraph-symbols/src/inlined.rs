//! Inlined functions, from debug information.
//!
//! A compiler that inlines a function leaves no call there, so no tracer sees one. Debug
//! information has an entry for each such place, with the addresses of the code. The entry refers
//! to the entry of the function, which has the name.

// Names of DWARF's constants are as in its standard.
#![allow(non_upper_case_globals)]

use std::collections::HashMap;

use gimli::constants::*;
use gimli::{AttributeValue, DebugInfoOffset, Dwarf, Reader, Unit, UnitRef};

use crate::signature::dwarf::{Entry, MAX_ORIGINS, start_of};

/// The most places that are returned: a glob may name all functions of a file.
pub(crate) const MAX_PLACES: usize = 10_000;
/// The longest symbol, in characters. Sizes in a file are not trusted.
const MAX_SYMBOL: usize = 1 << 16;

/// A place at which a function is inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InlinedAt {
    /// The symbol that the inlined function would have; in C, its name.
    pub symbol: String,
    /// The address in the file of the first instruction of the inlined code.
    pub address: u64,
    /// The symbol of the function that contains the code; `None` if it is unknown.
    pub caller: Option<String>,
    /// The source file and line of the call, if they are known.
    pub place: Option<(String, u32)>,
}

/// The units of a file, in the order of their offsets.
struct Units<'d, R: Reader<Offset = usize>> {
    dwarf: &'d Dwarf<R>,
    units: Vec<(usize, Unit<R>)>,
}

impl<'d, R: Reader<Offset = usize>> Units<'d, R> {
    /// Reads the headers of all units. Units that are damaged are left out.
    fn read(dwarf: &'d Dwarf<R>) -> Self {
        let mut units = Vec::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            if let Ok(unit) = dwarf.unit(header) {
                units.push((offset.0, unit));
            }
        }
        Self { dwarf, units }
    }

    /// Calls `look` with the entry of each place at which a function is inlined.
    fn each_place(&self, mut look: impl FnMut(UnitRef<'_, R>, &Entry<R>)) {
        for (_, unit) in &self.units {
            let unit = unit.unit_ref(self.dwarf);
            let Ok(mut entries) = unit.entries_raw(None) else {
                continue;
            };
            let mut entry = Entry::null();
            while !entries.is_empty() && entries.read_entry(&mut entry).is_ok() {
                if entry.tag() == DW_TAG_inlined_subroutine {
                    look(unit, &entry);
                }
            }
        }
    }

    /// Returns the entry at an offset in the file, with its unit.
    fn at(&self, offset: usize) -> Option<(UnitRef<'_, R>, Entry<R>)> {
        let after = self.units.partition_point(|&(start, _)| start <= offset);
        let (_, unit) = self.units.get(after.checked_sub(1)?)?;
        let unit = unit.unit_ref(self.dwarf);
        let offset = DebugInfoOffset(offset).to_unit_offset(&unit.header)?;
        Some((unit, unit.entry(offset).ok()?))
    }

    /// Returns the symbol of a function, or its name, from its entry or its declaration. With
    /// link-time optimization, these may be in different units.
    fn symbol(&self, function: usize) -> Option<String> {
        let (mut name, mut next) = (None, Some(function));
        for _ in 0..=MAX_ORIGINS {
            let Some((unit, entry)) = next.and_then(|offset| self.at(offset)) else {
                break;
            };
            let text = |name| {
                let text = unit.attr_string(entry.attr_value(name)?).ok()?;
                let text = text.to_string_lossy().ok()?;
                Some(text.chars().take(MAX_SYMBOL).collect::<String>())
            };
            if let Some(symbol) = text(DW_AT_linkage_name) {
                return Some(symbol);
            }
            name = name.or_else(|| text(DW_AT_name));
            next = origin(unit, &entry);
        }
        name
    }
}

fn origin<R: Reader<Offset = usize>>(unit: UnitRef<'_, R>, entry: &Entry<R>) -> Option<usize> {
    let names = [DW_AT_abstract_origin, DW_AT_specification];
    let value = names.iter().find_map(|&name| entry.attr_value(name))?;
    match value {
        AttributeValue::UnitRef(offset) => Some(offset.to_debug_info_offset(&unit.header)?.0),
        AttributeValue::DebugInfoRef(DebugInfoOffset(offset)) => Some(offset),
        _ => None,
    }
}

/// Returns symbol and first address of each inlined copy of the functions for which `is_wanted`
/// returns true, at most [`MAX_PLACES`].
pub(crate) fn places<R: Reader<Offset = usize>>(
    dwarf: &Dwarf<R>,
    mut is_wanted: impl FnMut(&str) -> bool,
) -> Vec<(String, u64)> {
    let units = Units::read(dwarf);
    // Each function is looked up once, and is inlined at many places.
    let mut known: HashMap<usize, Option<String>> = HashMap::new();
    let mut found = Vec::new();
    units.each_place(|unit, entry| {
        let Some(function) = origin(unit, entry).filter(|_| found.len() < MAX_PLACES) else {
            return;
        };
        let wanted = known
            .entry(function)
            .or_insert_with(|| units.symbol(function).filter(|symbol| is_wanted(symbol)));
        if let (Some(symbol), Some(address)) = (wanted, start_of(unit, entry)) {
            found.push((symbol.clone(), address));
        }
    });
    found
}
