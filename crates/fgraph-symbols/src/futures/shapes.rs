//! Types: the members of structures and their variants.

// Names of DWARF's constants are as in its standard.
#![allow(non_upper_case_globals)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use gimli::constants::*;
use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Reader, Unit, UnitOffset};
use gimli::{DebugInfoOffset, UnitHeader};

use crate::signature::dwarf::types::bits;

/// The most members of a type that are read, and the most children of an entry.
const MAX_MEMBERS: usize = 512;
const MAX_CHILDREN: usize = 8192;
/// The most references that are followed from an entry to the one that has its attributes.
const MAX_ORIGINS: usize = 4;
/// The longest name, in bytes: those of nested futures are long.
const MAX_NAME: usize = 1 << 16;

/// Types around a future that programmers did not write, and the member that has it: without a
/// name, it is the first one.
const WRAPPERS: [(&str, &str); 7] = [
    ("Pin", ""),
    ("Box", ""),
    ("ManuallyDrop", ""),
    ("UnsafeCell", ""),
    ("AssertUnwindSafe", ""),
    ("AsyncCallOnDrop", "future"),
    ("SupportTaskLocals", "future"),
];
/// The most wrappers around a type.
const MAX_WRAPPERS: usize = 64;

pub(super) type Entry<R> = DebuggingInformationEntry<R>;

/// A type. Types are known by their offsets in the section.
#[derive(Debug, Default)]
pub(super) struct Shape {
    pub(super) kind: Kind,
    /// The name with its type parameters, without modules.
    pub(super) name: String,
    /// The target of a pointer, or the element of an array.
    pub(super) target: Option<usize>,
    /// The number of elements.
    pub(super) count: u64,
    pub(super) members: Vec<Member>,
    pub(super) part: Option<Part>,
    /// The first type parameter.
    pub(super) parameter: Option<usize>,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Structure,
    Pointer,
    Array,
    #[default]
    Other,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) ty: usize,
}

/// The part of a structure that has variants.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Offset and size of the number that tells the variant.
    pub(super) tag: Option<(u64, u64)>,
    pub(super) variants: Vec<Variant>,
}

#[derive(Debug)]
pub(super) struct Variant {
    /// The number; none for the variant of all other numbers.
    pub(super) value: Option<u64>,
    pub(super) member: Member,
    pub(super) place: Option<(String, u32)>,
}

impl Shape {
    pub(super) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Returns true for the future of async code.
    pub(super) fn is_async(&self) -> bool {
        self.part.is_some() && self.name.starts_with("{async_") && self.name.contains("_env#")
    }

    /// Returns the member around which a type is, if that is all that programmers know of it.
    pub(super) fn wrapped(&self) -> Option<&Member> {
        let (_, member) = WRAPPERS.iter().find(|(name, _)| self.is_named(name))?;
        match *member {
            "" => self.members.first(),
            member => self.member(member),
        }
    }

    /// Returns true for pointers that own a future, or borrow it to poll it. Others may lead to
    /// futures of other tasks.
    pub(super) fn is_followed(&self) -> bool {
        self.name.starts_with("&mut ") || self.is_boxed()
    }

    pub(super) fn is_boxed(&self) -> bool {
        self.name.starts_with("alloc::boxed::Box<") || self.name.starts_with("Box<")
    }

    /// Returns true for types with this name and any parameters.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('<'))
    }
}

/// The names of the entries of a unit, and their parents.
type Parents = HashMap<usize, (usize, String)>;

/// Reads types, each once.
pub(super) struct Shapes<R: Reader<Offset = usize>> {
    pub(super) dwarf: Arc<Dwarf<R>>,
    /// The headers of units, by offset.
    headers: Vec<UnitHeader<R>>,
    units: RefCell<HashMap<usize, Rc<Unit<R>>>>,
    shapes: RefCell<HashMap<usize, Rc<Shape>>>,
    parents: RefCell<HashMap<usize, Rc<Parents>>>,
}

impl<R: Reader<Offset = usize>> fmt::Debug for Shapes<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shapes").finish_non_exhaustive()
    }
}

impl<R: Reader<Offset = usize>> Shapes<R> {
    pub(super) fn new(dwarf: Arc<Dwarf<R>>) -> Self {
        let mut headers = Vec::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            headers.push(header);
        }
        Self {
            dwarf,
            headers,
            units: RefCell::default(),
            shapes: RefCell::default(),
            parents: RefCell::default(),
        }
    }

    /// Returns the headers of all units.
    pub(super) fn headers(&self) -> &[UnitHeader<R>] {
        &self.headers
    }

    /// Returns the unit with a header.
    pub(super) fn unit(&self, header: &UnitHeader<R>) -> Option<Rc<Unit<R>>> {
        let at = header.debug_info_offset()?.0;
        if let Some(unit) = self.units.borrow().get(&at) {
            return Some(Rc::clone(unit));
        }
        let unit = Rc::new(self.dwarf.unit(header.clone()).ok()?);
        self.units.borrow_mut().insert(at, Rc::clone(&unit));
        Some(unit)
    }

    /// Frees a unit that is not needed soon.
    pub(super) fn forget(&self, header: &UnitHeader<R>) {
        if let Some(at) = header.debug_info_offset() {
            self.units.borrow_mut().remove(&at.0);
        }
    }

    /// Returns the unit around an offset, and the offset in it.
    fn unit_at(&self, at: usize) -> Option<(Rc<Unit<R>>, UnitOffset)> {
        let start = |header: &UnitHeader<R>| header.debug_info_offset().map_or(0, |it| it.0);
        let next = self.headers.partition_point(|header| start(header) <= at);
        let header = self.headers.get(next.checked_sub(1)?)?;
        let offset = DebugInfoOffset(at).to_unit_offset(header)?;
        Some((self.unit(header)?, offset))
    }

    /// Returns an entry and its unit.
    fn entry(&self, at: usize) -> Option<(Rc<Unit<R>>, Entry<R>)> {
        let (unit, offset) = self.unit_at(at)?;
        let entry = unit.entry(offset).ok()?;
        Some((unit, entry))
    }

    /// Returns the entry to which an attribute points.
    fn reference(unit: &Unit<R>, value: &AttributeValue<R>) -> Option<usize> {
        match value {
            AttributeValue::UnitRef(offset) => Some(offset.to_debug_info_offset(&unit.header)?.0),
            AttributeValue::DebugInfoRef(offset) => Some(offset.0),
            _ => None,
        }
    }

    /// Returns the entry to which an attribute of an entry points.
    pub(super) fn target(&self, unit: &Unit<R>, entry: &Entry<R>, name: DwAt) -> Option<usize> {
        Self::reference(unit, &entry.attr_value(name)?)
    }

    /// Returns the text of an attribute of an entry, or of the entry that it is an instance or
    /// definition of.
    pub(super) fn text(&self, unit: &Unit<R>, entry: &Entry<R>, name: DwAt) -> Option<String> {
        let text = |unit: &Unit<R>, entry: &Entry<R>| {
            let text = self.dwarf.attr_string(unit, entry.attr_value(name)?).ok()?;
            let text = text.to_slice().ok()?;
            (text.len() <= MAX_NAME).then(|| String::from_utf8_lossy(&text).into_owned())
        };
        if let Some(found) = text(unit, entry) {
            return Some(found);
        }
        let next = |unit: &Unit<R>, entry: &Entry<R>| {
            self.target(unit, entry, DW_AT_specification)
                .or_else(|| self.target(unit, entry, DW_AT_abstract_origin))
        };
        let mut origin = next(unit, entry);
        for _ in 0..MAX_ORIGINS {
            let (unit, entry) = self.entry(origin?)?;
            if let Some(found) = text(&unit, &entry) {
                return Some(found);
            }
            origin = next(&unit, &entry);
        }
        None
    }

    /// Returns the type to which the table of a trait object's functions belongs.
    pub(super) fn container(&self, table: usize) -> Option<usize> {
        let (unit, entry) = self.entry(table)?;
        self.target(&unit, &entry, DW_AT_containing_type)
    }

    /// Returns a type.
    pub(super) fn shape(&self, at: usize) -> Option<Rc<Shape>> {
        if let Some(shape) = self.shapes.borrow().get(&at) {
            return Some(Rc::clone(shape));
        }
        let shape = Rc::new(self.read(at)?);
        self.shapes.borrow_mut().insert(at, Rc::clone(&shape));
        Some(shape)
    }

    fn read(&self, at: usize) -> Option<Shape> {
        let (unit, entry) = self.entry(at)?;
        let mut shape = Shape {
            kind: match entry.tag() {
                DW_TAG_structure_type => Kind::Structure,
                DW_TAG_pointer_type => Kind::Pointer,
                DW_TAG_array_type => Kind::Array,
                _ => Kind::Other,
            },
            name: self.text(&unit, &entry, DW_AT_name).unwrap_or_default(),
            target: self.target(&unit, &entry, DW_AT_type),
            size: number(&entry, DW_AT_byte_size).unwrap_or(0),
            ..Shape::default()
        };
        let mut tree = unit.entries_tree(Some(entry.offset())).ok()?;
        let mut children = tree.root().ok()?.children();
        let mut left = MAX_CHILDREN;
        while let (Ok(Some(child)), 1..) = (children.next(), left) {
            left -= 1;
            let entry = child.entry();
            match entry.tag() {
                DW_TAG_member if shape.members.len() < MAX_MEMBERS => {
                    shape.members.extend(self.read_member(&unit, entry));
                }
                DW_TAG_template_type_parameter if shape.parameter.is_none() => {
                    shape.parameter = self.target(&unit, entry, DW_AT_type);
                }
                DW_TAG_subrange_type => {
                    let last = number(entry, DW_AT_upper_bound);
                    let last = last.and_then(|last| last.checked_add(1));
                    shape.count = number(entry, DW_AT_count).or(last).unwrap_or(0);
                }
                DW_TAG_variant_part if shape.part.is_none() => {
                    let tag = self.target(&unit, entry, DW_AT_discr);
                    shape.part = Some(Part {
                        tag: tag.and_then(|tag| self.tag(tag)),
                        variants: Vec::new(),
                    });
                    let mut variants = child.children();
                    let variants_of = shape.part.as_mut()?;
                    while let (Ok(Some(variant)), 1..) = (variants.next(), left) {
                        left -= 1;
                        if variant.entry().tag() != DW_TAG_variant {
                            continue;
                        }
                        let value = variant.entry().attr_value(DW_AT_discr_value);
                        let value = value.and_then(|value| bits(&value));
                        let mut members = variant.children();
                        let Ok(Some(first)) = members.next() else {
                            continue;
                        };
                        let entry = first.entry();
                        if let Some(member) = self.read_member(&unit, entry) {
                            variants_of.variants.push(Variant {
                                value,
                                member,
                                place: self.place(&unit, entry),
                            });
                        }
                    }
                }
                _ => {}
            }
        }
        Some(shape)
    }

    fn read_member(&self, unit: &Unit<R>, entry: &Entry<R>) -> Option<Member> {
        let is_static = entry.has_attr(DW_AT_external) || entry.has_attr(DW_AT_declaration);
        (!is_static).then_some(())?;
        Some(Member {
            name: self.text(unit, entry, DW_AT_name).unwrap_or_default(),
            offset: number(entry, DW_AT_data_member_location).unwrap_or(0),
            ty: self.target(unit, entry, DW_AT_type)?,
        })
    }

    /// Returns offset and size of the member that tells the variant.
    fn tag(&self, member: usize) -> Option<(u64, u64)> {
        let (unit, entry) = self.entry(member)?;
        let member = self.read_member(&unit, &entry)?;
        let size = self.shape(member.ty)?.size;
        (1..=8).contains(&size).then_some((member.offset, size))
    }

    /// Returns the source file and the line of an entry.
    fn place(&self, unit: &Unit<R>, entry: &Entry<R>) -> Option<(String, u32)> {
        let line = u32::try_from(number(entry, DW_AT_decl_line)?).ok()?;
        let AttributeValue::FileIndex(file) = entry.attr_value(DW_AT_decl_file)? else {
            return None;
        };
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(file)?;
        let text = |value| {
            let text = self.dwarf.attr_string(unit, value).ok()?;
            Some(text.to_string_lossy().ok()?.into_owned())
        };
        let mut path = String::new();
        if let Some(folder) = &unit.comp_dir {
            path.push_str(&folder.to_string_lossy().ok()?);
        }
        let folder = match file.directory_index() {
            0 => None,
            _ => file.directory(header).and_then(text),
        };
        for part in folder.into_iter().chain([text(file.path_name())?]) {
            match part.starts_with('/') {
                true => path = part,
                false if path.is_empty() => path = part,
                false => path = format!("{path}/{part}"),
            }
        }
        (path.len() <= MAX_NAME).then_some((path, line))
    }

    /// Returns the names of the modules around an entry, from the outermost one, and its own.
    pub(super) fn path(&self, at: usize) -> Vec<String> {
        let mut path = Vec::new();
        let Some(parents) = self.parents(at) else {
            return path;
        };
        let mut next = at;
        // Entries are nested less deeply than this.
        while let (Some((parent, name)), true) = (parents.get(&next), path.len() < MAX_MEMBERS) {
            path.push(name.clone());
            next = *parent;
        }
        path.reverse();
        path
    }

    /// Returns the named entries of the unit around an entry.
    fn parents(&self, at: usize) -> Option<Rc<Parents>> {
        let (unit, _) = self.unit_at(at)?;
        let start = unit.header.debug_info_offset()?.0;
        if let Some(known) = self.parents.borrow().get(&start) {
            return Some(Rc::clone(known));
        }
        let mut found = Parents::new();
        // Depths and offsets of the entries around.
        let mut around: Vec<(isize, usize)> = Vec::new();
        let mut entries = unit.entries_raw(None).ok()?;
        let mut entry = Entry::null();
        while !entries.is_empty() && entries.read_entry(&mut entry).is_ok() {
            let is_it = matches!(
                entry.tag(),
                DW_TAG_namespace | DW_TAG_structure_type | DW_TAG_union_type | DW_TAG_base_type
            );
            if !is_it {
                continue;
            }
            let depth = entry.depth();
            while around.last().is_some_and(|&(it, _)| it >= depth) {
                around.pop();
            }
            let offset = entry.offset().to_debug_info_offset(&unit.header)?.0;
            let name = self.text(&unit, &entry, DW_AT_name).unwrap_or_default();
            let parent = around.last().map_or(0, |&(_, parent)| parent);
            found.insert(offset, (parent, name));
            around.push((depth, offset));
        }
        let found = Rc::new(found);
        self.parents.borrow_mut().insert(start, Rc::clone(&found));
        Some(found)
    }

    /// Returns the type in its wrappers and behind pointers.
    pub(super) fn without_wrappers(&self, mut ty: usize) -> usize {
        for _ in 0..MAX_WRAPPERS {
            let inner = self.shape(ty).and_then(|shape| match shape.kind {
                Kind::Pointer if shape.is_followed() => shape.target,
                _ => Some(shape.wrapped()?.ty),
            });
            match inner {
                Some(inner) => ty = inner,
                None => break,
            }
        }
        ty
    }

    /// Returns the offset and the type of the member to which names lead.
    pub(super) fn find(&self, ty: usize, names: &[&str]) -> Option<(u64, usize)> {
        let (mut offset, mut ty) = (0_u64, ty);
        for name in names {
            let shape = self.shape(ty)?;
            let member = shape.member(name)?;
            offset = offset.checked_add(member.offset)?;
            ty = member.ty;
        }
        Some((offset, ty))
    }
}

fn number<R: Reader>(entry: &DebuggingInformationEntry<R>, name: DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}
