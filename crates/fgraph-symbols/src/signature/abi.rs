//! Locations of passed values: the System V convention of x86-64, and rustc's version of it for
//! Rust functions.
//!
//! Rust's own convention is not guaranteed. The rules used here hold for the rustc with which they
//! are tested: a value that is one number is passed in a register, one that is two numbers in two,
//! any other value of at most eight bytes in an integer register; larger ones by their address.
//! Older versions do so with arguments. Where a convention leaves the place open, the place is
//! unknown, and so are those of later arguments.

use super::{Piece, Place, Source, Type, TypeKind};

/// A calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Convention {
    /// C and C++.
    SystemV,
    /// Rust.
    Rust,
    /// Rust with an older rustc. Some versions returned two words in registers.
    OlderRust,
}

/// The location of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResultPlace {
    /// The location when the function returns.
    pub(crate) place: Option<Place>,
    /// True if the address for it is passed as the first argument; `None` if that is unknown.
    pub(crate) is_argument: Option<bool>,
}

/// A number in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leaf {
    offset: u64,
    size: u64,
    is_float: bool,
}

/// The largest value that is passed in registers, in bytes.
const IN_REGISTERS: u64 = 16;
const WORD: u64 = 8;
/// The number of integer registers for arguments.
const INTEGERS: u8 = 6;
const VECTORS: u8 = 8;

/// Returns the location of a result.
pub(crate) fn result(convention: Convention, ty: &Type) -> ResultPlace {
    let in_memory = || ResultPlace {
        place: Some(Place::Memory {
            address: Source::Integer(0),
            offset: 0,
        }),
        is_argument: Some(true),
    };
    if ty.by_address || ty.size > IN_REGISTERS {
        return in_memory();
    }
    // Both conventions have two registers of each kind for results.
    let mut registers = Registers {
        integers: 0..2,
        vectors: 0..2,
        stack: 0,
    };
    let place = match convention {
        Convention::SystemV => registers.eightbytes(ty),
        Convention::Rust | Convention::OlderRust => match registers.scalars(ty) {
            Some(place) => Some(place),
            None if ty.size <= WORD => registers.word_of_bytes(ty),
            None if convention == Convention::Rust => return in_memory(),
            None => {
                return ResultPlace {
                    place: None,
                    is_argument: None,
                };
            }
        },
    };
    ResultPlace {
        place,
        is_argument: Some(false),
    }
}

/// Assigns each argument its location, in order.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    convention: Convention,
    /// The free registers; `None` once they are unknown.
    registers: Option<Registers>,
}

impl Arguments {
    /// Starts with the first argument, after the address for a result if there is one.
    pub(crate) fn new(convention: Convention, has_result: Option<bool>) -> Self {
        Self {
            convention,
            registers: has_result.map(|has_result| Registers {
                integers: u8::from(has_result)..INTEGERS,
                vectors: 0..VECTORS,
                stack: 0,
            }),
        }
    }

    /// Returns the location of the next argument.
    pub(crate) fn next(&mut self, ty: &Type) -> Option<Place> {
        let mut registers = self.registers.take()?;
        let place = match self.convention {
            Convention::SystemV => registers.system_v(ty),
            Convention::Rust | Convention::OlderRust => registers.rust(ty),
        }?;
        self.registers = Some(registers);
        Some(place)
    }
}

/// The free registers, and the next word of the stack.
#[derive(Clone, Debug)]
struct Registers {
    integers: std::ops::Range<u8>,
    vectors: std::ops::Range<u8>,
    stack: u16,
}

impl Registers {
    fn register(&mut self, is_float: bool) -> Option<Source> {
        match is_float {
            true => self.vectors.next().map(Source::Vector),
            false => self.integers.next().map(Source::Integer),
        }
    }

    fn on_stack(&mut self) -> Source {
        let word = self.stack;
        self.stack = word.saturating_add(1);
        Source::Stack(word)
    }

    fn word(&mut self, is_float: bool) -> Source {
        self.register(is_float).unwrap_or_else(|| self.on_stack())
    }

    fn memory(&mut self) -> Place {
        Place::Memory {
            address: self.word(false),
            offset: 0,
        }
    }

    fn system_v(&mut self, ty: &Type) -> Option<Place> {
        if ty.by_address {
            return Some(self.memory());
        }
        if ty.size <= IN_REGISTERS {
            let mut registers = self.clone();
            if let Some(place) = registers.eightbytes(ty) {
                *self = registers;
                return Some(place);
            }
            // Some are not at the next word of the stack, but at the one after it.
            let leaves = leaves(ty)?;
            if leaves.iter().any(|leaf| leaf.size > WORD) {
                return None;
            }
        } else if !is_aligned_to_words(ty) {
            return None;
        }
        let words = u16::try_from(ty.size.div_ceil(WORD)).ok()?;
        let pieces = (0..words).map(|word| self.stack_piece(ty, word));
        pieces.collect::<Option<_>>().map(Place::Pieces)
    }

    fn stack_piece(&mut self, ty: &Type, word: u16) -> Option<Piece> {
        let offset = u64::from(word) * WORD;
        Some(Piece {
            source: self.on_stack(),
            offset: u8::try_from(offset).ok()?,
            size: (ty.size - offset).min(WORD) as u8,
        })
    }

    /// Assigns each word of a value a register of its class.
    fn eightbytes(&mut self, ty: &Type) -> Option<Place> {
        let leaves = leaves(ty)?;
        if leaves.is_empty() && ty.size > 0 {
            // C++ passes nothing for a class without members.
            return Some(Place::Pieces(Vec::new()));
        }
        let words = (0..ty.size.div_ceil(WORD)).map(|word| {
            let offset = word * WORD;
            let in_word = |leaf: &&Leaf| {
                leaf.offset < offset + WORD && offset < leaf.offset.saturating_add(leaf.size)
            };
            let mut here = leaves.iter().filter(in_word).peekable();
            let is_float = here.peek().is_some() && here.all(|leaf| leaf.is_float);
            Some(Piece {
                source: self.register(is_float)?,
                offset: offset as u8,
                size: (ty.size - offset).min(WORD) as u8,
            })
        });
        words.collect::<Option<_>>().map(Place::Pieces)
    }

    fn rust(&mut self, ty: &Type) -> Option<Place> {
        if ty.size > IN_REGISTERS {
            return Some(self.memory());
        }
        leaves(ty)?;
        match self.scalars(ty) {
            Some(place) => Some(place),
            None if ty.size <= WORD => self.word_of_bytes(ty),
            None => Some(self.memory()),
        }
    }

    /// Assigns a value of one or two numbers: each in a register, or else on the stack.
    fn scalars(&mut self, ty: &Type) -> Option<Place> {
        let leaves = leaves(ty)?;
        let piece = |this: &mut Self, leaf: &Leaf| Piece {
            source: this.word(leaf.is_float),
            offset: leaf.offset as u8,
            size: leaf.size as u8,
        };
        let is_word = |leaf: &Leaf| leaf.size <= WORD;
        match leaves.as_slice() {
            [] if ty.size == 0 => Some(Place::Pieces(Vec::new())),
            _ if has_array(ty) => None,
            [one] if one.size == ty.size && is_word(one) => {
                Some(Place::Pieces(vec![piece(self, one)]))
            }
            [one, two]
                if is_word(one)
                    && is_word(two)
                    && one.offset == 0
                    && two.offset == one.size.next_multiple_of(two.size.max(1))
                    && (two.offset + two.size).next_multiple_of(one.size.max(two.size))
                        == ty.size =>
            {
                Some(Place::Pieces(vec![piece(self, one), piece(self, two)]))
            }
            _ => None,
        }
    }

    /// Assigns any value of at most a word, in an integer register.
    fn word_of_bytes(&mut self, ty: &Type) -> Option<Place> {
        leaves(ty)?;
        Some(Place::Pieces(vec![Piece {
            source: self.word(false),
            offset: 0,
            size: ty.size as u8,
        }]))
    }
}

/// Returns the numbers in a value of at most two words, by offset; `None` if they are unknown.
fn leaves(ty: &Type) -> Option<Vec<Leaf>> {
    let mut found = Vec::new();
    add_leaves(ty, 0, &mut found)?;
    found.sort_unstable();
    found.dedup();
    Some(found)
}

fn add_leaves(ty: &Type, offset: u64, found: &mut Vec<Leaf>) -> Option<()> {
    if offset > IN_REGISTERS {
        return None;
    }
    let mut leaf = |offset, size, is_float| {
        found.push(Leaf {
            offset,
            size,
            is_float,
        });
        Some(())
    };
    match &ty.kind {
        TypeKind::Bool
        | TypeKind::Signed
        | TypeKind::Unsigned
        | TypeKind::Char
        | TypeKind::Pointer
        | TypeKind::CString
        | TypeKind::Reference(_)
        | TypeKind::Enumeration(_) => leaf(offset, ty.size, false),
        TypeKind::Float if matches!(ty.size, 4 | 8) => leaf(offset, ty.size, true),
        TypeKind::Str { data, len } | TypeKind::Slice { data, len, .. }
            if ty.size == IN_REGISTERS =>
        {
            leaf(offset + data, WORD, false)?;
            leaf(offset + len, WORD, false)
        }
        TypeKind::Array(element, count) => {
            let places = (0..*count).take(IN_REGISTERS as usize + 1);
            let mut places = places.map(|n| offset.saturating_add(n.saturating_mul(element.size)));
            places.try_for_each(|offset| add_leaves(element, offset, found))
        }
        TypeKind::Struct(fields) | TypeKind::Union(fields) => add_fields(fields, offset, found),
        TypeKind::Variants { tag, variants } => {
            if let Some((at, size)) = tag {
                leaf(offset.saturating_add(*at), *size, false)?;
            }
            let mut variants = variants.iter();
            variants.try_for_each(|variant| add_fields(&variant.fields, offset, found))
        }
        _ => None,
    }
}

fn add_fields(fields: &[super::Field], offset: u64, found: &mut Vec<Leaf>) -> Option<()> {
    fields
        .iter()
        .try_for_each(|field| add_leaves(&field.ty, offset.saturating_add(field.offset), found))
}

/// Returns true if a value contains an array, which Rust never treats as a number.
fn has_array(ty: &Type) -> bool {
    match &ty.kind {
        TypeKind::Array(..) | TypeKind::Union(_) => true,
        TypeKind::Struct(fields) => fields.iter().any(|field| has_array(&field.ty)),
        TypeKind::Variants { variants, .. } => {
            let mut fields = variants.iter().flat_map(|variant| &variant.fields);
            fields.any(|field| has_array(&field.ty))
        }
        _ => false,
    }
}

/// Returns true if no part of a large value needs more than the alignment of a word.
fn is_aligned_to_words(ty: &Type) -> bool {
    match &ty.kind {
        TypeKind::Array(element, _) => is_aligned_to_words(element),
        TypeKind::Struct(fields) | TypeKind::Union(fields) => {
            fields.iter().all(|field| is_aligned_to_words(&field.ty))
        }
        TypeKind::Str { .. } | TypeKind::Slice { .. } => true,
        TypeKind::Opaque => false,
        _ => ty.size <= WORD,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Field, Variant};
    use super::*;

    fn scalar(size: u64, kind: TypeKind) -> Type {
        Type::new("", size, kind)
    }

    fn structure(size: u64, fields: &[(u64, Type)]) -> Type {
        let field = |(offset, ty): &(u64, Type)| Field {
            name: String::new(),
            offset: *offset,
            ty: ty.clone(),
        };
        scalar(size, TypeKind::Struct(fields.iter().map(field).collect()))
    }

    fn pieces(place: Option<Place>) -> Vec<(Source, u8, u8)> {
        match place {
            Some(Place::Pieces(pieces)) => pieces
                .iter()
                .map(|piece| (piece.source, piece.offset, piece.size))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn small_structures_travel_in_the_registers_of_their_words() {
        let (int, float) = (scalar(4, TypeKind::Signed), scalar(4, TypeKind::Float));
        let mut arguments = Arguments::new(Convention::SystemV, Some(false));
        let two_floats = structure(8, &[(0, float.clone()), (4, float.clone())]);
        assert_eq!(
            pieces(arguments.next(&two_floats)),
            [(Source::Vector(0), 0, 8)]
        );
        let mixed = structure(12, &[(0, float.clone()), (4, int.clone()), (8, float)]);
        let found = pieces(arguments.next(&mixed));
        assert_eq!(
            found,
            [(Source::Integer(0), 0, 8), (Source::Vector(1), 8, 4)]
        );
        assert_eq!(pieces(arguments.next(&int)), [(Source::Integer(1), 0, 4)]);
    }

    #[test]
    fn values_without_a_register_are_on_the_stack() {
        let word = scalar(8, TypeKind::Unsigned);
        let two = structure(16, &[(0, word.clone()), (8, word.clone())]);
        let mut arguments = Arguments::new(Convention::SystemV, Some(false));
        for index in 0..5 {
            assert_eq!(
                pieces(arguments.next(&word)),
                [(Source::Integer(index), 0, 8)]
            );
        }
        // It is not split: one register is left for the next argument.
        let found = pieces(arguments.next(&two));
        assert_eq!(found, [(Source::Stack(0), 0, 8), (Source::Stack(1), 8, 8)]);
        assert_eq!(pieces(arguments.next(&word)), [(Source::Integer(5), 0, 8)]);
        assert_eq!(pieces(arguments.next(&word)), [(Source::Stack(2), 0, 8)]);
        let three = structure(24, &[(0, word.clone()), (8, word.clone()), (16, word)]);
        assert_eq!(pieces(arguments.next(&three))[0].0, Source::Stack(3));
        // Rust splits it.
        let mut arguments = Arguments::new(Convention::Rust, Some(true));
        for _ in 0..4 {
            arguments.next(&scalar(1, TypeKind::Bool)).unwrap();
        }
        let found = pieces(arguments.next(&two));
        assert_eq!(
            found,
            [(Source::Integer(5), 0, 8), (Source::Stack(0), 8, 8)]
        );
    }

    #[test]
    fn behind_a_value_of_an_unknown_place_no_place_is_known() {
        let mut arguments = Arguments::new(Convention::SystemV, Some(false));
        assert!(arguments.next(&scalar(8, TypeKind::Opaque)).is_none());
        assert!(arguments.next(&scalar(8, TypeKind::Unsigned)).is_none());
    }

    #[test]
    fn large_values_travel_by_address_in_rust_and_as_results() {
        let large = structure(
            24,
            &[(0, 8), (8, 8), (16, 8)].map(|(at, size)| (at, scalar(size, TypeKind::Unsigned))),
        );
        let memory = |register| Place::Memory {
            address: Source::Integer(register),
            offset: 0,
        };
        let mut arguments = Arguments::new(Convention::Rust, Some(true));
        assert_eq!(arguments.next(&large), Some(memory(1)));
        for convention in [Convention::Rust, Convention::SystemV] {
            let found = result(convention, &large);
            assert_eq!(
                (found.place, found.is_argument),
                (Some(memory(0)), Some(true))
            );
        }
    }

    #[test]
    fn small_values_of_rust_that_are_not_numbers_travel_in_one_register_or_by_address() {
        let byte = scalar(1, TypeKind::Unsigned);
        let array = |count| scalar(count, TypeKind::Array(Box::new(byte.clone()), count));
        let mut arguments = Arguments::new(Convention::Rust, Some(false));
        assert_eq!(
            pieces(arguments.next(&array(3))),
            [(Source::Integer(0), 0, 3)]
        );
        let address = Source::Integer(1);
        let memory = Some(Place::Memory { address, offset: 0 });
        assert_eq!(arguments.next(&array(9)), memory);
        assert_eq!(result(Convention::Rust, &array(9)).is_argument, Some(true));
        let older = result(Convention::OlderRust, &array(9));
        assert_eq!(older.is_argument, None);
        let mut arguments = Arguments::new(Convention::OlderRust, older.is_argument);
        assert_eq!(arguments.next(&byte), None);
    }

    #[test]
    fn an_option_is_its_tag_and_its_value() {
        let field = Field {
            name: "__0".into(),
            offset: 4,
            ty: scalar(4, TypeKind::Unsigned),
        };
        let variant = |name: &str, tag, fields| Variant {
            name: name.into(),
            tag,
            fields,
        };
        let option = scalar(
            8,
            TypeKind::Variants {
                tag: Some((0, 4)),
                variants: vec![
                    variant("None", Some(0), vec![]),
                    variant("Some", Some(1), vec![field]),
                ],
            },
        );
        let found = pieces(result(Convention::Rust, &option).place);
        assert_eq!(
            found,
            [(Source::Integer(0), 0, 4), (Source::Integer(1), 4, 4)]
        );
    }
}
