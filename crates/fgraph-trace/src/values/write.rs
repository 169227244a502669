//! Displays values as text.

use std::fmt::{self, Formatter};

use crate::text::Quoted;

use super::{Behind, FAULT, MORE, Operand, Recorded, Shape, ShapeField, ShapeVariant};

/// The most values that are written of one argument or result.
const MAX_WRITTEN: usize = 1024;

/// Takes words from the front; `None` if there are fewer than `count`.
fn take<'w>(words: &mut &'w [u64], count: usize) -> Option<&'w [u64]> {
    let (taken, rest) = words.split_at_checked(count)?;
    *words = rest;
    Some(taken)
}

/// Recorded memory.
#[derive(Clone, Debug)]
struct Memory {
    bytes: Vec<u8>,
    /// True if the memory continues.
    has_more: bool,
    /// True if the memory after these bytes could not be read.
    is_fault: bool,
}

impl Memory {
    /// Takes memory with the head before it. `count` is its number of words; `None` takes it from
    /// the head.
    fn take(words: &mut &[u64], count: Option<usize>) -> Option<Self> {
        let [head] = *take(words, 1)? else {
            return None;
        };
        let len = head as u32 as usize;
        let found = take(words, count.unwrap_or(len.div_ceil(8)))?;
        Some(Self {
            bytes: bytes(found, len),
            has_more: head & MORE != 0,
            is_fault: head & FAULT != 0,
        })
    }
}

fn bytes(words: &[u64], len: usize) -> Vec<u8> {
    let all = words.iter().flat_map(|word| word.to_le_bytes());
    all.take(len).collect()
}

/// Writes the value whose words come next, and removes these words.
pub(super) fn value(f: &mut Formatter<'_>, recorded: &Recorded, words: &mut &[u64]) -> fmt::Result {
    let found = read(&recorded.shape, recorded.in_memory, words);
    let Some((own, target, behind)) = found else {
        // The meaning of the next words is unknown, too.
        *words = &[];
        return f.write_str("?");
    };
    let mut writer = Writer {
        behind: &behind,
        left: MAX_WRITTEN,
    };
    match (&recorded.shape, target) {
        (Shape::Reference(shape), Some(target)) if !target.is_fault => {
            f.write_str("&")?;
            writer.shape(f, shape, &target.bytes, 0)
        }
        (Shape::Reference(_), Some(_)) => {
            writer.shape(f, &Shape::Pointer, &own.bytes, 0)?;
            f.write_str("(fault)")
        }
        _ if own.is_fault => f.write_str("(fault)"),
        (shape, _) => writer.shape(f, shape, &own.bytes, 0),
    }
}

/// Converts the value whose words come next to an operand, and removes these words.
pub(super) fn operand(recorded: &Recorded, words: &mut &[u64]) -> Operand {
    let Some((own, target, behind)) = read(&recorded.shape, recorded.in_memory, words) else {
        *words = &[];
        return Operand::default();
    };
    let whole = number(&own.bytes, 0, own.bytes.len()).filter(|_| !own.is_fault);
    let number = whole.and_then(|word| match recorded.shape {
        Shape::Signed(_) | Shape::Enumeration { .. } => Some(signed(word, own.bytes.len()).into()),
        Shape::Bool
        | Shape::Char
        | Shape::Unsigned(_)
        | Shape::Pointer
        | Shape::CString
        | Shape::Reference(_) => Some(word.into()),
        _ => None,
    });
    let holder = match (&recorded.shape, &target) {
        (Shape::Reference(shape), Some(target)) if !target.is_fault => shape,
        (shape, _) => shape,
    };
    let is_text = matches!(holder, Shape::CString | Shape::Str { .. });
    let text = behind.first().filter(|_| is_text && !own.is_fault);
    let text = text.filter(|(_, memory)| !memory.is_fault || !memory.bytes.is_empty());
    let mut text = text.map(|(_, memory)| memory.bytes.as_slice());
    // An array of characters is a text that ends at a zero.
    if let Shape::Array(element, _) = &recorded.shape
        && matches!(**element, Shape::Signed(1) | Shape::Unsigned(1))
        && !own.is_fault
    {
        text = own.bytes.split(|byte| *byte == 0).next();
    }
    Operand {
        number,
        text: text.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
    }
}

type BehindWords = Vec<(Behind, Memory)>;

/// Takes the words of the value itself, of the value to which it refers, and of the memory with it.
fn read(
    shape: &Shape,
    in_memory: bool,
    words: &mut &[u64],
) -> Option<(Memory, Option<Memory>, BehindWords)> {
    let size = shape.size();
    let own = match in_memory {
        true => Memory::take(words, Some(size.div_ceil(8)))?,
        false => Memory {
            bytes: bytes(take(words, size.div_ceil(8))?, size),
            has_more: false,
            is_fault: false,
        },
    };
    let (target, holder) = match shape {
        Shape::Reference(target) => {
            let words = Memory::take(words, Some(target.size().div_ceil(8)))?;
            (Some(words), &**target)
        }
        _ => (None, shape),
    };
    let behind = holder.behind().into_iter();
    let behind = behind.map(|behind| Some((behind, Memory::take(words, None)?)));
    Some((own, target, behind.collect::<Option<_>>()?))
}

struct Writer<'m> {
    behind: &'m [(Behind, Memory)],
    /// The number of values that may still be written.
    left: usize,
}

/// Reads the number of `size` bytes at an offset; `None` if the bytes are missing.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let found = bytes.get(at..at.checked_add(size)?)?;
    let mut whole = [0; 8];
    whole.get_mut(..size)?.copy_from_slice(found);
    Some(u64::from_le_bytes(whole))
}

impl Writer<'_> {
    fn memory(&self, behind: Behind) -> Option<&Memory> {
        let found = self.behind.iter().find(|(found, _)| *found == behind);
        found.map(|(_, memory)| memory)
    }

    fn shape(
        &mut self,
        f: &mut Formatter<'_>,
        shape: &Shape,
        bytes: &[u8],
        at: usize,
    ) -> fmt::Result {
        let Some(left) = self.left.checked_sub(1) else {
            return f.write_str("...");
        };
        self.left = left;
        let Some(size) = at
            .checked_add(shape.size())
            .filter(|&end| end <= bytes.len())
        else {
            return f.write_str("?");
        };
        let size = size - at;
        let simple = number(bytes, at, size.min(8)).unwrap_or(0);
        match shape {
            Shape::Bool if simple > 1 => write!(f, "{simple}"),
            Shape::Bool => write!(f, "{}", simple == 1),
            Shape::Char => match char::from_u32(simple as u32) {
                Some(char) => write!(f, "{char:?}"),
                None => write!(f, "{simple:#x}"),
            },
            Shape::Signed(_) => write!(f, "{}", signed(simple, size)),
            Shape::Unsigned(_) => write!(f, "{simple}"),
            Shape::Float(4) => write!(f, "{:?}", f32::from_bits(simple as u32)),
            Shape::Float(_) => write!(f, "{:?}", f64::from_bits(simple)),
            Shape::Pointer | Shape::Reference(_) => write!(f, "{simple:#x}"),
            Shape::CString => {
                let data = u16::try_from(at).unwrap_or(u16::MAX);
                self.text(f, Behind::Text { data }, simple)
            }
            Shape::Str { data, len, .. } => {
                let address = number(bytes, at + usize::from(*data), 8).unwrap_or(0);
                self.text(f, row(at, *data, *len, 1), address)
            }
            Shape::Slice {
                data, len, element, ..
            } => {
                let stride = element.size();
                let address = number(bytes, at + usize::from(*data), 8).unwrap_or(0);
                let memory = self.memory(row(at, *data, *len, stride)).cloned();
                self.row(f, memory, element, address)
            }
            Shape::Array(element, count) => {
                let rest = bytes.get(at..at + size).unwrap_or_default();
                self.list(f, element, rest, (*count).into(), false)
            }
            Shape::Enumeration { names, .. } => {
                match names.iter().find(|(value, _)| *value == simple) {
                    Some((_, name)) => write!(f, "{}", Quoted(name)),
                    None => write!(f, "{}", signed(simple, size)),
                }
            }
            Shape::Struct { name, fields, .. } => {
                write!(f, "{}", Quoted(name))?;
                self.fields(f, fields, bytes, at, name.is_empty())
            }
            Shape::Variants {
                tag: (place, size),
                variants,
                ..
            } => {
                let tag = number(bytes, at + usize::from(*place), (*size).into());
                match variant(variants, tag.unwrap_or(0)) {
                    Some(variant) => {
                        write!(f, "{}", Quoted(&variant.name))?;
                        self.fields(f, &variant.fields, bytes, at, false)
                    }
                    None => f.write_str("?"),
                }
            }
            Shape::Opaque(_) => {
                f.write_str("0x")?;
                let bytes = bytes.get(at..at + size).unwrap_or_default();
                let bytes = bytes.iter().rev();
                bytes
                    .into_iter()
                    .try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }

    fn text(&mut self, f: &mut Formatter<'_>, behind: Behind, address: u64) -> fmt::Result {
        match self.memory(behind) {
            Some(memory) if memory.is_fault && memory.bytes.is_empty() => match address {
                0 => f.write_str("NULL"),
                _ => write!(f, "{address:#x}(fault)"),
            },
            Some(memory) => {
                f.write_str("\"")?;
                for chunk in memory.bytes.utf8_chunks() {
                    write!(f, "{}", Quoted(chunk.valid()))?;
                    let mut bytes = chunk.invalid().iter();
                    bytes.try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                }
                f.write_str("\"")?;
                f.write_str(if memory.has_more || memory.is_fault {
                    "..."
                } else {
                    ""
                })
            }
            None => write!(f, "{address:#x}"),
        }
    }

    fn row(
        &mut self,
        f: &mut Formatter<'_>,
        memory: Option<Memory>,
        element: &Shape,
        address: u64,
    ) -> fmt::Result {
        let Some(memory) = memory else {
            return write!(f, "{address:#x}");
        };
        if memory.is_fault && memory.bytes.is_empty() {
            return write!(f, "{address:#x}(fault)");
        }
        let count = memory.bytes.len().checked_div(element.size()).unwrap_or(0);
        let has_more = memory.has_more || memory.is_fault;
        self.list(f, element, &memory.bytes, count, has_more)
    }

    /// Writes a sequence of values, which have no memory recorded with them.
    fn list(
        &mut self,
        f: &mut Formatter<'_>,
        element: &Shape,
        bytes: &[u8],
        count: usize,
        has_more: bool,
    ) -> fmt::Result {
        let mut inner = Writer {
            behind: &[],
            left: self.left,
        };
        let (mut comma, mut has_more) = ("", has_more);
        f.write_str("[")?;
        for n in 0..count {
            if inner.left == 0 {
                has_more = true;
                break;
            }
            f.write_str(comma)?;
            comma = ", ";
            inner.shape(f, element, bytes, n.saturating_mul(element.size()))?;
        }
        self.left = inner.left;
        if has_more {
            write!(f, "{comma}...")?;
        }
        f.write_str("]")
    }

    fn fields(
        &mut self,
        f: &mut Formatter<'_>,
        fields: &[ShapeField],
        bytes: &[u8],
        at: usize,
        is_tuple: bool,
    ) -> fmt::Result {
        if fields.is_empty() && !is_tuple {
            return Ok(());
        }
        let is_tuple = is_tuple || fields.iter().all(|field| field.name.starts_with("__"));
        f.write_str(if is_tuple { "(" } else { " { " })?;
        for (index, field) in fields.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            if self.left == 0 {
                f.write_str("...")?;
                break;
            }
            if !is_tuple {
                write!(f, "{}: ", Quoted(&field.name))?;
            }
            let at = at.saturating_add(field.offset.into());
            self.shape(f, &field.shape, bytes, at)?;
        }
        f.write_str(if is_tuple { ")" } else { " }" })
    }
}

fn row(at: usize, data: u16, len: u16, stride: usize) -> Behind {
    let at = u16::try_from(at).unwrap_or(u16::MAX);
    Behind::Row {
        data: at.saturating_add(data),
        len: at.saturating_add(len),
        stride: u16::try_from(stride).unwrap_or(u16::MAX),
    }
}

/// Returns the variant for a tag: the one with this tag, or else the one for all other tags.
fn variant(variants: &[ShapeVariant], tag: u64) -> Option<&ShapeVariant> {
    let says = |wanted| variants.iter().find(|variant| variant.tag == wanted);
    says(Some(tag)).or_else(|| says(None))
}

/// Converts a number of `size` bytes to a signed one.
fn signed(value: u64, size: usize) -> i64 {
    let unused = 64 - 8 * size.clamp(1, 8) as u32;
    (value << unused) as i64 >> unused
}
