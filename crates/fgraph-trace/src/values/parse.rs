//! Layouts as text, which is their form in a recording.
//!
//! ```text
//!   layout    number of arguments, and for each its name and a value; then the value of the result
//!   value     -                   not recorded
//!             = shape             recorded
//!             * shape             recorded from memory
//!   shape     b  c  p  z          true or false, character, address, address of a text
//!             i SIZE  u SIZE  f SIZE  x SIZE      numbers with and without a sign, IEEE 754, bytes
//!             & shape             address of a value
//!             s SIZE ADDRESS LENGTH               text
//!             [ SIZE ADDRESS LENGTH shape         row behind an address
//!             a COUNT shape                       row
//!             e SIZE COUNT, then COUNT times a number and a name
//!             { SIZE name fields                  structure
//!             | SIZE PLACE SIZE COUNT, then COUNT times a name, - or = and the tag, and fields
//!   fields    COUNT, then COUNT times place, name and shape
//! ```
//!
//! A number is its decimal digits followed by a comma. A name is its length in bytes, a colon and
//! the bytes. There are no blanks.

use std::fmt;

use super::{Argument, Layout, Recorded, Shape, ShapeField, ShapeVariant};

/// The deepest nesting of shapes.
const MAX_DEPTH: usize = 24;
/// The most shapes, names and variants of a layout.
const MAX_PARTS: usize = 4096;

impl fmt::Display for Layout {
    /// Writes the text that [`parse`](Self::parse) reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},", self.arguments.len())?;
        for argument in &self.arguments {
            name(f, &argument.name)?;
            recorded(f, argument.value.as_ref())?;
        }
        recorded(f, self.result.as_ref())
    }
}

fn name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    write!(f, "{}:{name}", name.len())
}

fn recorded(f: &mut fmt::Formatter<'_>, value: Option<&Recorded>) -> fmt::Result {
    let Some(value) = value else {
        return f.write_str("-");
    };
    f.write_str(if value.in_memory { "*" } else { "=" })?;
    shape(f, &value.shape)
}

fn shape(f: &mut fmt::Formatter<'_>, it: &Shape) -> fmt::Result {
    match it {
        Shape::Bool => f.write_str("b"),
        Shape::Char => f.write_str("c"),
        Shape::Pointer => f.write_str("p"),
        Shape::CString => f.write_str("z"),
        Shape::Signed(size) => write!(f, "i{size},"),
        Shape::Unsigned(size) => write!(f, "u{size},"),
        Shape::Float(size) => write!(f, "f{size},"),
        Shape::Opaque(size) => write!(f, "x{size},"),
        Shape::Reference(target) => {
            f.write_str("&")?;
            shape(f, target)
        }
        Shape::Str { size, data, len } => write!(f, "s{size},{data},{len},"),
        Shape::Slice {
            size,
            data,
            len,
            element,
        } => {
            write!(f, "[{size},{data},{len},")?;
            shape(f, element)
        }
        Shape::Array(element, count) => {
            write!(f, "a{count},")?;
            shape(f, element)
        }
        Shape::Enumeration { size, names } => {
            write!(f, "e{size},{},", names.len())?;
            names.iter().try_for_each(|(value, text)| {
                write!(f, "{value},")?;
                name(f, text)
            })
        }
        Shape::Struct {
            size,
            name: text,
            fields: all,
        } => {
            write!(f, "{{{size},")?;
            name(f, text)?;
            fields(f, all)
        }
        Shape::Variants {
            size,
            tag: (place, tag_size),
            variants,
        } => {
            write!(f, "|{size},{place},{tag_size},{},", variants.len())?;
            variants.iter().try_for_each(|variant| {
                name(f, &variant.name)?;
                match variant.tag {
                    Some(tag) => write!(f, "={tag},")?,
                    None => f.write_str("-")?,
                }
                fields(f, &variant.fields)
            })
        }
    }
}

fn fields(f: &mut fmt::Formatter<'_>, fields: &[ShapeField]) -> fmt::Result {
    write!(f, "{},", fields.len())?;
    fields.iter().try_for_each(|field| {
        write!(f, "{},", field.offset)?;
        name(f, &field.name)?;
        shape(f, &field.shape)
    })
}

impl Layout {
    /// Parses a layout; `None` if the text is damaged, or the layout larger than those of functions
    /// are.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser {
            text,
            parts_left: MAX_PARTS,
        };
        let argument = |parser: &mut Parser<'_>| {
            Some(Argument {
                name: parser.name()?,
                value: parser.recorded()?,
            })
        };
        let arguments = parser.list(argument)?;
        let result = parser.recorded()?;
        let layout = Self { arguments, result };
        parser.text.is_empty().then_some(layout)
    }
}

struct Parser<'t> {
    text: &'t str,
    parts_left: usize,
}

impl Parser<'_> {
    fn letter(&mut self) -> Option<char> {
        let letter = self.text.chars().next()?;
        self.text = &self.text[letter.len_utf8()..];
        Some(letter)
    }

    fn digits(&mut self, end: char) -> Option<u64> {
        let (digits, rest) = self.text.split_once(end)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        self.text = rest;
        digits.parse().ok().filter(|_| is_number)
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.digits(',')?).ok()
    }

    /// Reads the size of a number, in bytes.
    fn size(&mut self) -> Option<u8> {
        self.number().filter(|size| matches!(size, 1..=8))
    }

    fn name(&mut self) -> Option<String> {
        let len = usize::try_from(self.digits(':')?).ok()?;
        let (name, rest) = self.text.split_at_checked(len)?;
        self.text = rest;
        Some(name.to_owned())
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count: usize = self.number()?;
        self.parts_left = self.parts_left.checked_sub(count)?;
        (0..count).map(|_| one(self)).collect()
    }

    fn recorded(&mut self) -> Option<Option<Recorded>> {
        let in_memory = match self.letter()? {
            '-' => return Some(None),
            '=' => false,
            '*' => true,
            _ => return None,
        };
        let shape = self.shape(0)?;
        Some(Some(Recorded { shape, in_memory }))
    }

    fn shape(&mut self, depth: usize) -> Option<Shape> {
        self.parts_left = self.parts_left.checked_sub(1)?;
        let next = depth + 1;
        if next > MAX_DEPTH {
            return None;
        }
        Some(match self.letter()? {
            'b' => Shape::Bool,
            'c' => Shape::Char,
            'p' => Shape::Pointer,
            'z' => Shape::CString,
            'i' => Shape::Signed(self.size()?),
            'u' => Shape::Unsigned(self.size()?),
            'f' => Shape::Float(self.size()?),
            'x' => Shape::Opaque(self.number()?),
            '&' if depth == 0 => Shape::Reference(Box::new(self.shape(next)?)),
            's' => Shape::Str {
                size: self.number()?,
                data: self.number()?,
                len: self.number()?,
            },
            '[' => Shape::Slice {
                size: self.number()?,
                data: self.number()?,
                len: self.number()?,
                element: Box::new(self.shape(next)?),
            },
            'a' => {
                let count = self.number()?;
                Shape::Array(Box::new(self.shape(next)?), count)
            }
            'e' => Shape::Enumeration {
                size: self.size()?,
                names: self.list(|parser| Some((parser.number()?, parser.name()?)))?,
            },
            '{' => Shape::Struct {
                size: self.number()?,
                name: self.name()?,
                fields: self.fields(next)?,
            },
            '|' => Shape::Variants {
                size: self.number()?,
                tag: (
                    self.number()?,
                    self.number().filter(|size| matches!(size, 0..=8))?,
                ),
                variants: self.list(|parser| {
                    Some(ShapeVariant {
                        name: parser.name()?,
                        tag: match parser.letter()? {
                            '-' => None,
                            '=' => Some(parser.number()?),
                            _ => return None,
                        },
                        fields: parser.fields(next)?,
                    })
                })?,
            },
            _ => return None,
        })
    }

    fn fields(&mut self, depth: usize) -> Option<Vec<ShapeField>> {
        self.list(|parser| {
            Some(ShapeField {
                offset: parser.number()?,
                name: parser.name()?,
                shape: parser.shape(depth)?,
            })
        })
    }
}
