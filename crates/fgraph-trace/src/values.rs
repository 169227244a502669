//! Arguments and results by type: the encoding of a call's values as words, and their display.
//!
//! A function's [`Layout`] is described once; the words of each call follow its entry and its
//! return. A call's values follow each other; each has these words:
//!
//! ```text
//!   the value itself, as many words as its bytes take; a head before it, if it is from memory
//!   if it is a reference: a head, and what it refers to, as many words as its bytes take
//!   of each text and each row of values in it: a head, and as many words as the head's bytes take
//! ```
//!
//! A head has the number of recorded bytes in its low 32 bits. Bit 32 is set if there are more
//! bytes than were recorded, and bit 33 if the memory could not be read.

mod parse;
#[cfg(all(test, not(loom)))]
mod tests;
mod write;

use std::cell::Cell;
use std::fmt;

use crate::text::Quoted;

/// Bit of a head: there are more bytes.
pub const MORE: u64 = 1 << 32;
/// Bit of a head: the memory could not be read.
pub const FAULT: u64 = 1 << 33;

/// The recorded arguments and result of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// The arguments, in order.
    pub arguments: Vec<Argument>,
    /// The recorded result; `None` if there is none, or its place is unknown.
    pub result: Option<Recorded>,
}

impl Layout {
    /// The layout of these arguments and this result.
    #[must_use]
    pub fn new(arguments: Vec<Argument>, result: Option<Recorded>) -> Self {
        Self { arguments, result }
    }
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Argument {
    /// The name; empty if it has none.
    pub name: String,
    /// The recorded value; `None` if its place is unknown.
    pub value: Option<Recorded>,
}

impl Argument {
    /// An argument of this name.
    #[must_use]
    pub fn new(name: String, value: Option<Recorded>) -> Self {
        Self { name, value }
    }
}

/// A value that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// The type.
    pub shape: Shape,
    /// True if it was read from memory, so that a head precedes it.
    pub in_memory: bool,
}

impl Recorded {
    /// A value of this shape; `in_memory` if it is read from memory.
    #[must_use]
    pub fn new(shape: Shape, in_memory: bool) -> Self {
        Self { shape, in_memory }
    }
}

/// The type of a value's bytes. Offsets in a value, and sizes, are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// True or false, in one byte.
    Bool,
    /// A character as a Unicode code point, in four bytes.
    Char,
    /// A signed integer, of 1 to 8 bytes.
    Signed(u8),
    /// An unsigned integer, of 1 to 8 bytes.
    Unsigned(u8),
    /// A floating-point number of IEEE 754, of 4 or 8 bytes.
    Float(u8),
    /// An address.
    Pointer,
    /// The address of a text that ends with a zero byte. The text is recorded.
    CString,
    /// The address of a value, which is recorded. It cannot be inside another value.
    Reference(Box<Self>),
    /// A text with address and length. Its bytes are recorded.
    Str {
        /// The size of the value, excluding the text.
        size: u16,
        /// The offset of the address.
        data: u16,
        /// The offset of the number of bytes.
        len: u16,
    },
    /// A sequence of values with address and length. The values are recorded.
    Slice {
        /// The size of the value, excluding the elements.
        size: u16,
        /// The offset of the address.
        data: u16,
        /// The offset of the number of elements.
        len: u16,
        /// The type of the elements.
        element: Box<Self>,
    },
    /// A sequence of values inside the value, and their number.
    Array(Box<Self>, u16),
    /// A number with names.
    Enumeration {
        /// The size of the value.
        size: u8,
        /// The names.
        names: Vec<(u64, String)>,
    },
    /// A structure of several values.
    Struct {
        /// The size of the value.
        size: u16,
        /// Its name.
        name: String,
        /// The fields.
        fields: Vec<ShapeField>,
    },
    /// A value of one of several types.
    Variants {
        /// The size of the value.
        size: u16,
        /// Offset and size of the number that selects the variant; the size is 0 if there is none.
        tag: (u16, u8),
        /// All variants.
        variants: Vec<ShapeVariant>,
    },
    /// Bytes without a type, and their number.
    Opaque(u16),
}

/// A field of a structure or variant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeField {
    /// The name. A name of `__` and a number, as Rust's compiler makes it, stands for none.
    pub name: String,
    /// The offset in the value.
    pub offset: u16,
    /// The type.
    pub shape: Shape,
}

impl ShapeField {
    /// The value of this name, at an offset.
    #[must_use]
    pub fn new(name: String, offset: u16, shape: Shape) -> Self {
        Self {
            name,
            offset,
            shape,
        }
    }
}

/// One of several types that a value may have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeVariant {
    /// Its name.
    pub name: String,
    /// The tag that selects it; `None` if all other tags do.
    pub tag: Option<u64>,
    /// The fields.
    pub fields: Vec<ShapeField>,
}

impl ShapeVariant {
    /// The variant of this name, by its tag.
    #[must_use]
    pub fn new(name: String, tag: Option<u64>, fields: Vec<ShapeField>) -> Self {
        Self { name, tag, fields }
    }
}

/// Memory that is recorded together with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A text that ends with a zero byte.
    Text {
        /// The offset in the value of the text's address.
        data: u16,
    },
    /// A sequence of elements.
    Row {
        /// The offset in the value of the sequence's address.
        data: u16,
        /// The offset in the value of the number of elements.
        len: u16,
        /// Bytes of an element.
        stride: u16,
    },
}

/// The most addresses in one value whose memory is recorded.
const MAX_BEHIND: usize = 8;

impl Shape {
    /// Returns the size of a value of this type, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Char => 4,
            Self::Signed(size) | Self::Unsigned(size) | Self::Float(size) => (*size).into(),
            Self::Pointer | Self::CString | Self::Reference(_) => 8,
            Self::Enumeration { size, .. } => (*size).into(),
            Self::Array(element, count) => element.size().saturating_mul((*count).into()),
            Self::Str { size, .. }
            | Self::Slice { size, .. }
            | Self::Struct { size, .. }
            | Self::Variants { size, .. }
            | Self::Opaque(size) => (*size).into(),
        }
    }

    /// Returns the memory that is recorded together with such a value, in order: at most eight
    /// texts and sequences, and none inside arrays.
    #[must_use]
    pub fn behind(&self) -> Vec<Behind> {
        let mut found = Vec::new();
        self.add_behind(0, &mut found);
        found
    }

    fn add_behind(&self, offset: u16, found: &mut Vec<Behind>) {
        if found.len() >= MAX_BEHIND {
            return;
        }
        match self {
            Self::CString => found.push(Behind::Text { data: offset }),
            Self::Str { data, len, .. } => found.push(Behind::Row {
                data: offset.saturating_add(*data),
                len: offset.saturating_add(*len),
                stride: 1,
            }),
            Self::Slice {
                data, len, element, ..
            } => found.push(Behind::Row {
                data: offset.saturating_add(*data),
                len: offset.saturating_add(*len),
                stride: u16::try_from(element.size()).unwrap_or(u16::MAX),
            }),
            Self::Struct { fields, .. } => add_behind(fields, offset, found),
            Self::Variants { variants, .. } => {
                for variant in variants {
                    add_behind(&variant.fields, offset, found);
                }
            }
            _ => {}
        }
    }
}

fn add_behind(fields: &[ShapeField], offset: u16, found: &mut Vec<Behind>) {
    for field in fields {
        let offset = offset.saturating_add(field.offset);
        field.shape.add_behind(offset, found);
    }
}

/// A value for computations in expressions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operand {
    /// The value as a number; addresses are numbers, too.
    pub number: Option<i128>,
    /// The text that the value is or points to, as far as it was recorded. Bytes that are not UTF-8
    /// are replaced.
    pub text: Option<String>,
}

impl Layout {
    /// Returns the arguments of a call as operands.
    ///
    /// Any words give a result: an argument that is missing has `None` in its fields.
    #[must_use]
    pub fn operands(&self, words: &[u64]) -> Vec<Operand> {
        let mut words = words;
        let arguments = self.arguments.iter();
        let operand = |argument: &Argument| match &argument.value {
            Some(value) => write::operand(value, &mut words),
            None => Operand::default(),
        };
        arguments.map(operand).collect()
    }

    /// Returns the result of a call as an operand; `None` if it was not recorded.
    #[must_use]
    pub fn result_operand(&self, words: &[u64]) -> Option<Operand> {
        let recorded = self.result.as_ref()?;
        let mut words = words;
        (!words.is_empty()).then(|| write::operand(recorded, &mut words))
    }

    /// Displays the arguments of a call, from the recorded words: `path="/etc/passwd", flags=0`.
    ///
    /// Any words give a result: a missing argument is shown as a question mark. Text is escaped.
    pub fn arguments<'a>(&'a self, words: &'a [u64]) -> impl fmt::Display {
        Arguments(self, words)
    }

    /// Returns the arguments of a call one by one, each with its name, formatted as by
    /// [`arguments`](Self::arguments).
    #[must_use]
    pub fn each_argument(&self, words: &[u64]) -> Vec<(&str, String)> {
        let rest = Cell::new(words);
        let each = self.arguments.iter().map(|argument| {
            let value = argument.value.as_ref();
            let text = value.map(|value| Taking(value, &rest).to_string());
            (
                argument.name.as_str(),
                text.unwrap_or_else(|| "?".to_owned()),
            )
        });
        each.collect()
    }

    /// Displays the result of a call, from the recorded words; `None` if it was not recorded.
    pub fn result<'a>(&'a self, words: &'a [u64]) -> Option<impl fmt::Display> {
        let recorded = self.result.as_ref()?;
        (!words.is_empty()).then_some(Single(recorded, words))
    }
}

struct Arguments<'a>(&'a Layout, &'a [u64]);

impl fmt::Display for Arguments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.1;
        for (index, argument) in self.0.arguments.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}=", Quoted(&argument.name))?;
            match &argument.value {
                Some(value) => write::value(f, value, &mut words)?,
                None => f.write_str("?")?,
            }
        }
        Ok(())
    }
}

/// Displays a value whose words come first, and removes these words.
struct Taking<'a, 'w>(&'a Recorded, &'a Cell<&'w [u64]>);

impl fmt::Display for Taking<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.1.get();
        let written = write::value(f, self.0, &mut words);
        self.1.set(words);
        written
    }
}

struct Single<'a>(&'a Recorded, &'a [u64]);

impl fmt::Display for Single<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = self.1;
        write::value(f, self.0, &mut words)
    }
}
