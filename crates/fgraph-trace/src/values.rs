//! Arguments and results with their types: how a recording says what the words of a call's values
//! are, and how they are written.
//!
//! A function's [`Layout`] is described once; the words of each call stand behind its entry and its
//! return. Of each value these are, one behind the other:
//!
//! ```text
//!   the value itself, as many words as its bytes take; a head before it, if it is from memory
//!   if it is a reference: a head, and what it refers to, as many words as its bytes take
//!   of each text and each row of values in it: a head, and as many words as the head's bytes take
//! ```
//!
//! A head has the number of bytes that were read in bits 0 to 32; bit 32 is set if there are more
//! than were recorded, bit 33 if the memory could not be read.

mod parse;
#[cfg(all(test, not(loom)))]
mod tests;
mod write;

use std::cell::Cell;
use std::fmt;

/// Bit of a head: there are more bytes.
pub const MORE: u64 = 1 << 32;
/// Bit of a head: the memory could not be read.
pub const FAULT: u64 = 1 << 33;

/// Arguments and result of a function, as far as they are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The arguments, in order.
    pub arguments: Vec<Argument>,
    /// The result; `None` if there is none, or it is not known where it is.
    pub result: Option<Recorded>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name; empty if it has none.
    pub name: String,
    /// What is recorded of it; `None` if it is not known where it is.
    pub value: Option<Recorded>,
}

/// A value that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What it is.
    pub shape: Shape,
    /// Whether it was read from memory, so that a head is before it.
    pub in_memory: bool,
}

/// What the bytes of a value are. Places in a value, and sizes, are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// True or false, in one byte.
    Bool,
    /// A character by its number in Unicode, in four bytes.
    Char,
    /// A number with a sign, of 1 to 8 bytes.
    Signed(u8),
    /// A number without a sign, of 1 to 8 bytes.
    Unsigned(u8),
    /// A number of IEEE 754, of 4 or 8 bytes.
    Float(u8),
    /// An address.
    Pointer,
    /// The address of a text that ends with a byte of zeros, whose bytes are recorded.
    CString,
    /// The address of a value, which is recorded. It may be in no other value.
    Reference(Box<Self>),
    /// A text, whose bytes are recorded.
    Str {
        /// Its size, without the text.
        size: u16,
        /// Where the address is.
        data: u16,
        /// Where the number of bytes is.
        len: u16,
    },
    /// Values in a row, which are recorded.
    Slice {
        /// Its size, without the values.
        size: u16,
        /// Where the address is.
        data: u16,
        /// Where the number of values is.
        len: u16,
        /// What they are.
        element: Box<Self>,
    },
    /// Values in a row, and how many they are.
    Array(Box<Self>, u16),
    /// A number that has names.
    Enumeration {
        /// Its size.
        size: u8,
        /// The names.
        names: Vec<(u64, String)>,
    },
    /// Several values.
    Struct {
        /// Its size.
        size: u16,
        /// Its name.
        name: String,
        /// What is in it.
        fields: Vec<ShapeField>,
    },
    /// One of several.
    Variants {
        /// Its size.
        size: u16,
        /// Place and size of the number that tells which; the size is 0 if there is none.
        tag: (u16, u8),
        /// All that there are.
        variants: Vec<ShapeVariant>,
    },
    /// Bytes, and how many they are.
    Opaque(u16),
}

/// A value in a larger one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeField {
    /// Its name; with `__` before a number, as Rust's compiler names it, it has none.
    pub name: String,
    /// Where it is.
    pub offset: u16,
    /// What it is.
    pub shape: Shape,
}

/// One of those that a value may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeVariant {
    /// Its name.
    pub name: String,
    /// The tag that says so; `None` if every other one does.
    pub tag: Option<u64>,
    /// What is in it.
    pub fields: Vec<ShapeField>,
}

/// Memory that is recorded with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// A text up to a byte of zeros.
    Text {
        /// Where in the value its address is.
        data: u16,
    },
    /// A row: some bytes for each of a number.
    Row {
        /// Where in the value the address is.
        data: u16,
        /// Where the number is.
        len: u16,
        /// Bytes for each.
        stride: u16,
    },
}

/// Of one value, memory at so many addresses is recorded.
const MAX_BEHIND: usize = 8;

impl Shape {
    /// The number of bytes of such a value.
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

    /// The memory that is recorded with such a value, in order: of at most eight texts and rows,
    /// and of none in arrays.
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

/// What of a value can be computed with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operand {
    /// It as a number, which addresses are as well.
    pub number: Option<i128>,
    /// The text that it is or leads to, as far as that was recorded; what is not UTF-8 is replaced.
    pub text: Option<String>,
}

impl Layout {
    /// What of the arguments of a call can be computed with.
    ///
    /// Whatever the words are, this ends: what is missing is `None`.
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

    /// What of the result of a call can be computed with; `None` if it is not recorded.
    #[must_use]
    pub fn result_operand(&self, words: &[u64]) -> Option<Operand> {
        let recorded = self.result.as_ref()?;
        let mut words = words;
        (!words.is_empty()).then(|| write::operand(recorded, &mut words))
    }

    /// The arguments of a call, from the words that were recorded: `path="/etc/passwd", flags=0`.
    ///
    /// Whatever the words are, this ends: what is missing is a question mark. Text is escaped.
    pub fn arguments<'a>(&'a self, words: &'a [u64]) -> impl fmt::Display {
        Arguments(self, words)
    }

    /// The arguments of a call one by one, each with its name, as [`arguments`](Self::arguments)
    /// writes them.
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

    /// The result of a call, from the words that were recorded; `None` if it is not.
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
            write!(f, "{comma}{}=", argument.name.escape_debug())?;
            match &argument.value {
                Some(value) => write::value(f, value, &mut words)?,
                None => f.write_str("?")?,
            }
        }
        Ok(())
    }
}

/// A value whose words are the first ones, which are taken away.
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
