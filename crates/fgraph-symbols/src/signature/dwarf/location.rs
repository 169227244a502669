//! Finds the location of an argument at the first instruction of its function.

use gimli::constants::*;
use gimli::{AttributeValue, Operation, Reader, Register};

use super::{Entry, MAX_MEMBERS, UnitTypes};
use crate::signature::{Piece, Place, Source, Type};

/// The location of an argument at the first instruction, as debug information has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    At(Place),
    /// The location from a later instruction on.
    Later(Place),
    /// A location in a frame that is not built yet.
    InFrame,
    Unknown,
}

impl<R: Reader<Offset = usize>> UnitTypes<'_, R> {
    pub(super) fn location(
        &self,
        entry: &Entry<R>,
        function: &Entry<R>,
        address: u64,
        ty: &Type,
    ) -> Location {
        let Some(value) = entry.attr_value(DW_AT_location) else {
            return Location::Unknown;
        };
        if let AttributeValue::Exprloc(expression) = value {
            return self.described(expression, function, ty);
        }
        match self.in_list(value, address) {
            Some((expression, true)) => self.described(expression, function, ty),
            Some((expression, false)) => match self.described(expression, function, ty) {
                Location::At(place) => Location::Later(place),
                location => location,
            },
            None => Location::Unknown,
        }
    }

    fn described(
        &self,
        expression: gimli::Expression<R>,
        function: &Entry<R>,
        ty: &Type,
    ) -> Location {
        let mut operations = expression.operations(self.unit.encoding());
        let mut found = Vec::new();
        while let Ok(Some(operation)) = operations.next() {
            found.push(operation);
            if found.len() > 2 * MAX_MEMBERS {
                return Location::Unknown;
            }
        }
        match found.as_slice() {
            [
                Operation::RegisterOffset {
                    register, offset, ..
                },
            ] => match source(*register, 8).map(|piece| piece.source) {
                Some(address @ Source::Integer(_)) => Location::At(Place::Memory {
                    address,
                    offset: *offset,
                }),
                _ => Location::InFrame,
            },
            [Operation::FrameOffset { offset }] => self.in_callers_frame(function, *offset, ty),
            [Operation::FrameOffset { .. }, ..]
            | [Operation::RegisterOffset { .. }, Operation::Deref { .. }] => Location::InFrame,
            _ => in_registers(&found, ty).unwrap_or(Location::Unknown),
        }
    }

    /// Returns the location for an address in a list, or else the first location in it; and true if
    /// it is for the address.
    fn in_list(
        &self,
        value: AttributeValue<R>,
        address: u64,
    ) -> Option<(gimli::Expression<R>, bool)> {
        let mut locations = self.unit.attr_locations(value).ok()??;
        let mut first = None;
        while let Ok(Some(location)) = locations.next() {
            if (location.range.begin..location.range.end).contains(&address) {
                return Some((location.data, true));
            }
            first = first.or(Some((location.data, false)));
        }
        first
    }

    /// Returns the location of an argument that the caller has put on the stack.
    fn in_callers_frame(&self, function: &Entry<R>, offset: i64, ty: &Type) -> Location {
        let base = function.attr_value(DW_AT_frame_base);
        let base = base.and_then(|base| base.exprloc_value());
        let base = base.and_then(|base| base.operations(self.unit.encoding()).next().ok()?);
        // The frame pointer and the return address are below.
        let above = match base {
            Some(Operation::CallFrameCFA) => offset,
            Some(Operation::Register { register }) if register == FRAME_POINTER => offset - 16,
            _ => return Location::InFrame,
        };
        let (Ok(above), Ok(size)) = (u64::try_from(above), u8::try_from(ty.size)) else {
            return Location::InFrame;
        };
        let Ok(first) = u16::try_from(above / 8) else {
            return Location::Unknown;
        };
        if !above.is_multiple_of(8) {
            return Location::Unknown;
        }
        let word = |word: u8| Piece {
            source: Source::Stack(first.saturating_add(word.into())),
            offset: word * 8,
            size: (size - word * 8).min(8),
        };
        Location::At(Place::Pieces((0..size.div_ceil(8)).map(word).collect()))
    }
}

const FRAME_POINTER: Register = Register(6);

/// Returns the location of a value in registers, whole or in pieces.
fn in_registers<R: Reader>(operations: &[Operation<R>], ty: &Type) -> Option<Location> {
    let (mut found, mut offset, mut has_gap) = (Vec::new(), 0_u64, false);
    let mut rest = operations;
    while !rest.is_empty() {
        let register = in_register(&mut rest);
        let size = match rest.split_first() {
            Some((
                Operation::Piece {
                    size_in_bits,
                    bit_offset: None,
                },
                behind,
            )) => {
                rest = behind;
                size_in_bits / 8
            }
            None => ty.size,
            Some(_) => return None,
        };
        match register {
            Some(register) => {
                let size = u8::try_from(size)
                    .ok()
                    .filter(|size| matches!(size, 1..=8))?;
                let piece = source(register, size)?;
                let offset = u8::try_from(offset).ok()?;
                found.push(Piece { offset, ..piece });
            }
            None => has_gap = true,
        }
        offset = offset.checked_add(size)?;
    }
    let place = Place::Pieces(found);
    match offset == ty.size {
        // It must agree with the convention, so that nothing is in the gap.
        true if has_gap => Some(Location::Later(place)),
        true => Some(Location::At(place)),
        false => None,
    }
}

/// Takes the operations for a value in a register, unchanged or converted to another width.
fn in_register<R: Reader>(operations: &mut &[Operation<R>]) -> Option<Register> {
    match operations {
        [Operation::Register { register }, rest @ ..] => {
            *operations = rest;
            Some(*register)
        }
        [
            Operation::RegisterOffset {
                register,
                offset: 0,
                ..
            },
            rest @ ..,
        ] => {
            let is_conversion = |operation: &Operation<R>| {
                matches!(
                    operation,
                    Operation::UnsignedConstant { .. } | Operation::And | Operation::Convert { .. }
                )
            };
            let end = rest
                .iter()
                .position(|operation| !is_conversion(operation))?;
            matches!(rest[end], Operation::StackValue).then_some(())?;
            *operations = &rest[end + 1..];
            Some(*register)
        }
        _ => None,
    }
}

/// Returns the argument register with a DWARF number.
fn source(register: Register, size: u8) -> Option<Piece> {
    let source = match register.0 {
        5 => Source::Integer(0),
        4 => Source::Integer(1),
        1 => Source::Integer(2),
        2 => Source::Integer(3),
        8 => Source::Integer(4),
        9 => Source::Integer(5),
        vector @ 17..25 => Source::Vector((vector - 17) as u8),
        _ => return None,
    };
    Some(Piece {
        source,
        offset: 0,
        size,
    })
}
