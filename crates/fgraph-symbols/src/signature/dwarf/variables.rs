//! Variables at fixed addresses, and the members that lie in them.

use std::collections::HashMap;
use std::fmt::Write as _;

use gimli::constants::*;
use gimli::{AttributeValue, DebugInfoOffset, Dwarf, Operation, Reader, UnitOffset, UnitRef};

use super::{Entry, MAX_ORIGINS, UnitTypes};

/// Types that are looked into, one in another.
const MAX_STEPS: usize = 64;

/// Types whose members nobody knows by name: those of locks.
const LOCKS: [&str; 12] = [
    "pthread_mutex_t",
    "pthread_rwlock_t",
    "pthread_cond_t",
    "pthread_spinlock_t",
    "pthread_barrier_t",
    "sem_t",
    "mutex",
    "recursive_mutex",
    "timed_mutex",
    "shared_mutex",
    "shared_timed_mutex",
    "condition_variable",
];

/// The variables of a file, by address: unit and entry of each.
#[derive(Debug)]
pub(crate) struct Variables(HashMap<u64, (DebugInfoOffset, UnitOffset)>);

impl Variables {
    /// Reads the variables of all units. Units that are damaged are left out.
    pub(crate) fn read<R: Reader<Offset = usize>>(dwarf: &Dwarf<R>) -> Self {
        let mut found = HashMap::new();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Some(offset) = header.debug_info_offset() else {
                continue;
            };
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let unit = unit.unit_ref(dwarf);
            let Ok(mut entries) = unit.entries_raw(None) else {
                continue;
            };
            let mut entry = Entry::null();
            while !entries.is_empty() && entries.read_entry(&mut entry).is_ok() {
                if entry.tag() == DW_TAG_variable
                    && let Some(address) = address_of(unit, &entry)
                {
                    found.entry(address).or_insert((offset, entry.offset()));
                }
            }
        }
        Self(found)
    }

    /// Returns the path to the member at `offset` in the variable at `address`, as `.lock` or
    /// `[3].lock`. In a lock, the path leads to the lock.
    pub(crate) fn member<R: Reader<Offset = usize>>(
        &self,
        dwarf: &Dwarf<R>,
        address: u64,
        offset: u64,
    ) -> Option<String> {
        let (unit, variable) = *self.0.get(&address)?;
        let header = dwarf.unit_header(unit).ok()?;
        let unit = dwarf.unit(header).ok()?;
        let types = UnitTypes::new(unit.unit_ref(dwarf))?;
        let variable = types.unit.entry(variable).ok()?;
        let ty = types.offset(types.attr(&variable, DW_AT_type)?)?;
        types.path_to(ty, offset)
    }
}

/// The address of a variable, if that is fixed.
pub(crate) fn address_of<R: Reader<Offset = usize>>(
    unit: UnitRef<'_, R>,
    entry: &Entry<R>,
) -> Option<u64> {
    let AttributeValue::Exprloc(expression) = entry.attr_value(DW_AT_location)? else {
        return None;
    };
    let mut operations = expression.operations(unit.encoding());
    let address = match operations.next().ok()?? {
        Operation::Address { address } => address,
        Operation::AddressIndex { index } => unit.address(index).ok()?,
        _ => return None,
    };
    operations.next().ok()?.is_none().then_some(address)
}

impl<R: Reader<Offset = usize>> UnitTypes<'_, R> {
    /// The path to what is at `offset` in a value of a type.
    fn path_to(&self, mut ty: UnitOffset, mut offset: u64) -> Option<String> {
        let mut path = String::new();
        for _ in 0..MAX_STEPS {
            let entry = self.unit.entry(ty).ok()?;
            if offset == 0 && LOCKS.contains(&self.name(&entry).as_str()) {
                return Some(path);
            }
            ty = match entry.tag() {
                DW_TAG_typedef | DW_TAG_const_type | DW_TAG_volatile_type | DW_TAG_atomic_type => {
                    self.offset(entry.attr_value(DW_AT_type)?)?
                }
                DW_TAG_structure_type | DW_TAG_class_type => {
                    let (name, start, inner) = self.member_at(&entry, offset)?;
                    if !name.is_empty() {
                        _ = write!(path, ".{name}");
                    }
                    offset -= start;
                    inner
                }
                DW_TAG_array_type => {
                    let element = self.offset(entry.attr_value(DW_AT_type)?)?;
                    let size = self.size(element).filter(|&size| size > 0)?;
                    _ = write!(path, "[{}]", offset / size);
                    offset %= size;
                    element
                }
                _ => return (offset == 0).then_some(path),
            };
        }
        None
    }

    /// The member of a structure that has the byte at `offset`: its name, which a base class does
    /// not have, where it begins, and its type.
    fn member_at(&self, entry: &Entry<R>, offset: u64) -> Option<(String, u64, UnitOffset)> {
        let mut found = None;
        self.children(entry, |child| {
            let is_static = child.has_attr(DW_AT_external) || child.has_attr(DW_AT_declaration);
            if matches!(child.tag(), DW_TAG_member | DW_TAG_inheritance)
                && !is_static
                && !child.has_attr(DW_AT_bit_size)
            {
                let start = self.number(child, DW_AT_data_member_location).unwrap_or(0);
                let ty = self
                    .attr(child, DW_AT_type)
                    .and_then(|ty| self.offset(ty))?;
                let size = self.size(ty).unwrap_or(0);
                if offset
                    .checked_sub(start)
                    .is_some_and(|distance| distance < size)
                {
                    let name = match child.tag() {
                        DW_TAG_member => self.name(child),
                        _ => String::new(),
                    };
                    found = Some((name, start, ty));
                }
            }
            found.is_none().then_some(())
        });
        found
    }

    /// The number of bytes of a type's values.
    fn size(&self, mut ty: UnitOffset) -> Option<u64> {
        let mut count = 1_u64;
        for _ in 0..MAX_ORIGINS * 2 {
            let entry = self.unit.entry(ty).ok()?;
            if let Some(size) = self.number(&entry, DW_AT_byte_size) {
                return size.checked_mul(count);
            }
            match entry.tag() {
                DW_TAG_pointer_type | DW_TAG_reference_type => return count.checked_mul(8),
                DW_TAG_array_type => {
                    self.children(&entry, |child| {
                        let bound = self.number(child, DW_AT_upper_bound);
                        let bound = bound.and_then(|bound| bound.checked_add(1));
                        let own = self.number(child, DW_AT_count).or(bound).unwrap_or(0);
                        count = count.saturating_mul(own);
                        Some(())
                    });
                }
                _ => {}
            }
            ty = self.offset(entry.attr_value(DW_AT_type)?)?;
        }
        None
    }
}
