//! Reads signatures from debug information.
//!
//! In optimised code, debug information has the location of an argument at a function's first
//! instruction if the location begins in the register in which the argument is passed. Other code
//! has locations in the function's frame, which is not built there yet; so the calling convention
//! decides.

// Names of DWARF's constants are as in its standard.
#![allow(non_upper_case_globals)]

mod location;
mod paths;
pub(crate) mod types;
pub(crate) mod variables;

use std::cell::Cell;
use std::collections::HashMap;

use gimli::constants::*;
use gimli::{AttributeValue, DebuggingInformationEntry, Reader, UnitOffset, UnitRef};

use super::abi::{self, Arguments, Convention};
use super::{NoValue, Parameter, Place, Signature, Type, Value, ValuePath};
use location::Location;

/// The deepest nesting of types, and the most types of one signature. Damaged information may be
/// endless.
const MAX_DEPTH: usize = 8;
const MAX_TYPES: u32 = 256;
/// The most parameters of a function, members of a type, and names of an enumeration.
const MAX_MEMBERS: usize = 64;
/// The most children of an entry that are read: C++ classes have hundreds.
const MAX_CHILDREN: usize = 4096;
/// The longest name, in characters.
const MAX_NAME: usize = 256;
/// The most references that are followed from an entry to the one that has its attributes.
pub(crate) const MAX_ORIGINS: usize = 4;

/// The version 1.x of rustc from which on results are returned as [`abi`] says.
const NEWER_RUST: u32 = 95;

pub(crate) type Entry<R> = DebuggingInformationEntry<R>;

/// The functions of each unit that was read, by their address.
#[derive(Debug, Default)]
pub(crate) struct Index(HashMap<usize, Vec<(u64, UnitOffset)>>);

impl Index {
    /// Returns the signature of the function that begins at an address in a unit.
    pub(crate) fn signature<R: Reader<Offset = usize>>(
        &mut self,
        unit: UnitRef<'_, R>,
        address: u64,
    ) -> Option<Signature> {
        let function = self.function(unit, address)?;
        UnitTypes::new(unit)?.signature(function, address)
    }

    /// Returns the value to which a path leads, in the function that begins at an address in a
    /// unit.
    pub(crate) fn value<R: Reader<Offset = usize>>(
        &mut self,
        unit: UnitRef<'_, R>,
        address: u64,
        path: &ValuePath,
    ) -> Result<Value, NoValue> {
        let function = self.function(unit, address);
        let function = function.ok_or_else(NoValue::unknown)?;
        let types = UnitTypes::new(unit).ok_or_else(NoValue::unknown)?;
        types.value(function, address, path)
    }

    fn function<R: Reader<Offset = usize>>(
        &mut self,
        unit: UnitRef<'_, R>,
        address: u64,
    ) -> Option<UnitOffset> {
        let offset = unit.header.debug_info_offset()?.0;
        let functions = self.0.entry(offset);
        let functions = functions.or_insert_with(|| functions_of(unit));
        let at = functions.binary_search_by_key(&address, |&(address, _)| address);
        let (_, function) = *functions.get(at.ok()?)?;
        Some(function)
    }
}

/// Returns the functions of a unit that have code. Entries after a damaged one are left out.
fn functions_of<R: Reader<Offset = usize>>(unit: UnitRef<'_, R>) -> Vec<(u64, UnitOffset)> {
    let mut found = Vec::new();
    let Ok(mut entries) = unit.entries_raw(None) else {
        return found;
    };
    let mut entry = Entry::null();
    while !entries.is_empty() && entries.read_entry(&mut entry).is_ok() {
        if entry.tag() == DW_TAG_subprogram
            && let Some(address) = start_of(unit, &entry)
        {
            found.push((address, entry.offset()));
        }
    }
    found.sort_unstable_by_key(|&(address, _)| address);
    found.dedup_by_key(|&mut (address, _)| address);
    found
}

/// Returns the start of a function, if it has code. If it has several ranges, it starts at the
/// first one: a rarely executed part may be elsewhere.
pub(crate) fn start_of<R: Reader<Offset = usize>>(
    unit: UnitRef<'_, R>,
    entry: &Entry<R>,
) -> Option<u64> {
    if let Some(low) = entry.attr_value(DW_AT_low_pc) {
        return unit.attr_address(low).ok()?;
    }
    let mut ranges = unit.attr_ranges(entry.attr_value(DW_AT_ranges)?).ok()??;
    Some(ranges.next().ok()??.begin)
}

/// The language of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    C,
    Cpp,
    Rust,
}

/// Reads the types of a unit.
struct UnitTypes<'u, R: Reader<Offset = usize>> {
    unit: UnitRef<'u, R>,
    language: Language,
    types_left: Cell<u32>,
}

impl<'u, R: Reader<Offset = usize>> UnitTypes<'u, R> {
    fn new(unit: UnitRef<'u, R>) -> Option<Self> {
        let root = unit.entry(unit.header.root_offset()).ok()?;
        let Some(AttributeValue::Language(language)) = root.attr_value(DW_AT_language) else {
            return None;
        };
        let language = match language {
            DW_LANG_C89 | DW_LANG_C | DW_LANG_C99 | DW_LANG_C11 | DW_LANG_C17 => Language::C,
            DW_LANG_C_plus_plus
            | DW_LANG_C_plus_plus_03
            | DW_LANG_C_plus_plus_11
            | DW_LANG_C_plus_plus_14
            | DW_LANG_C_plus_plus_17
            | DW_LANG_C_plus_plus_20 => Language::Cpp,
            DW_LANG_Rust => Language::Rust,
            _ => return None,
        };
        Some(Self {
            unit,
            language,
            types_left: Cell::new(MAX_TYPES),
        })
    }

    fn signature(&self, function: UnitOffset, address: u64) -> Option<Signature> {
        let entry = self.unit.entry(function).ok()?;
        let mut signature = Signature::default();
        let mut locations = Vec::new();
        let mut tree = self.unit.entries_tree(Some(function)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            let child = child.entry();
            match child.tag() {
                DW_TAG_formal_parameter if locations.len() < MAX_MEMBERS => {
                    let name = self.name(child);
                    let ty = self.type_of(child, 0)?;
                    locations.push(self.location(child, &entry, address, &ty));
                    let value = Value { ty, place: None };
                    signature.parameters.push(Parameter { name, value });
                }
                DW_TAG_unspecified_parameters => signature.is_variadic = true,
                _ => {}
            }
        }
        let convention = match self.language {
            Language::Rust if self.is_newer_rust() => Convention::Rust,
            Language::Rust => Convention::OlderRust,
            Language::C | Language::Cpp => Convention::SystemV,
        };
        let ty = self.type_of(&entry, 0);
        let result = ty.as_ref().map(|ty| abi::result(convention, ty));
        let is_argument = match &result {
            Some(result) => result.is_argument,
            None => Some(false),
        };
        let mut arguments = Arguments::new(convention, is_argument);
        let places = signature.parameters.iter();
        let places = places.map(|parameter| arguments.next(&parameter.value.ty));
        let places: Vec<Option<Place>> = places.collect();
        // LLVM changes the convention of functions whose callers it all knows. Other code keeps to
        // the convention.
        let mut both = locations.iter().zip(&places);
        let agree = both.all(|(location, place)| match location {
            Location::InFrame => true,
            Location::At(found) => place.as_ref().is_none_or(|place| place == found),
            Location::Later(found) => place.as_ref() == Some(found),
            Location::Unknown => false,
        });
        let is_known = agree || self.language != Language::Rust && self.is_external(&entry);
        // If it has changed a function's arguments, it may have removed the result.
        let place = result.and_then(|result| result.place);
        let place = place.filter(|place| is_known || matches!(place, Place::Memory { .. }));
        signature.result = ty.map(|ty| Value { ty, place });
        let all = signature.parameters.iter_mut().zip(locations).zip(places);
        for ((parameter, location), place) in all {
            parameter.value.place = match location {
                Location::At(place) => Some(place),
                _ => place.filter(|_| is_known),
            };
        }
        Some(signature)
    }

    /// Returns true if the convention is the one that `abi` knows.
    fn is_newer_rust(&self) -> bool {
        let root = self.unit.entry(self.unit.header.root_offset());
        let minor = || {
            let producer = root.ok()?.attr_value(DW_AT_producer)?;
            let producer = self.unit.attr_string(producer).ok()?;
            let producer = producer.to_string_lossy().ok()?;
            let (_, version) = producer.split_once("rustc version 1.")?;
            version.split('.').next()?.parse::<u32>().ok()
        };
        minor().is_some_and(|minor| minor >= NEWER_RUST)
    }

    fn is_external(&self, entry: &Entry<R>) -> bool {
        let external = self.attr(entry, DW_AT_external);
        matches!(external, Some(AttributeValue::Flag(true)))
    }

    /// Returns an attribute of an entry, or of the entry that it is an instance or definition of.
    fn attr(&self, entry: &Entry<R>, name: DwAt) -> Option<AttributeValue<R>> {
        if let Some(value) = entry.attr_value(name) {
            return Some(value);
        }
        let mut next = self.origin(entry);
        for _ in 0..MAX_ORIGINS {
            let entry = self.unit.entry(next?).ok()?;
            if let Some(value) = entry.attr_value(name) {
                return Some(value);
            }
            next = self.origin(&entry);
        }
        None
    }

    fn origin(&self, entry: &Entry<R>) -> Option<UnitOffset> {
        let names = [DW_AT_abstract_origin, DW_AT_specification];
        names
            .iter()
            .find_map(|&name| self.offset(entry.attr_value(name)?))
    }

    /// Returns the offset in the unit to which an attribute points. Offsets in other units are not
    /// followed.
    fn offset(&self, value: AttributeValue<R>) -> Option<UnitOffset> {
        match value {
            AttributeValue::UnitRef(offset) => Some(offset),
            AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&self.unit.header),
            _ => None,
        }
    }

    fn name(&self, entry: &Entry<R>) -> String {
        let text = || {
            let value = self.attr(entry, DW_AT_name)?;
            let text = self.unit.attr_string(value).ok()?;
            let text = text.to_string_lossy().ok()?;
            Some(text.chars().take(MAX_NAME).collect())
        };
        text().unwrap_or_default()
    }

    fn number(&self, entry: &Entry<R>, name: DwAt) -> Option<u64> {
        entry.attr_value(name)?.udata_value()
    }

    /// Returns the type of an entry.
    fn type_of(&self, entry: &Entry<R>, depth: usize) -> Option<Type> {
        let offset = self.offset(self.attr(entry, DW_AT_type)?)?;
        self.ty(offset, depth)
    }
}
