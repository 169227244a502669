//! Frames of functions.

use super::layout::Layout;
use super::lines;
use super::memory::{Memory, PythonError};

/// The longest text, in characters, and the longest table of lines, in bytes.
const LONGEST_TEXT: u64 = 4096;
const LONGEST_TABLE: u64 = 1 << 20;
/// Number of readings of something before it counts as changing too fast.
pub(super) const READINGS: usize = 10;

/// A running function of Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// Its name, from 3.11 on with its class: `Handler.get`.
    pub name: String,
    /// The source file, as the interpreter has it.
    pub file: String,
    /// The line that runs; `None` for code without lines.
    pub line: Option<u32>,
}

/// A frame that was read: its address, its code object, and the current instruction.
pub(super) type Reading = (u64, u64, u64);

impl Layout {
    /// Returns what a frame runs.
    pub(super) fn describe(
        &self,
        (frame, code, current): Reading,
        memory: Memory<'_>,
    ) -> Result<PythonFrame, PythonError> {
        let at = |offset: u64| code.wrapping_add(offset);
        let table = memory.word(at(self.lines))?;
        let len = memory.word(table.wrapping_add(self.bytes_len))?;
        if len > LONGEST_TABLE {
            return Err(PythonError::Unreadable(table));
        }
        let mut bytes = vec![0; len as usize];
        memory.fill(table.wrapping_add(self.bytes), &mut bytes)?;
        let first = memory.half(at(self.first_line))?;
        let instruction = self.instruction(frame, code, current, memory);
        Ok(PythonFrame {
            name: self.text(memory.word(at(self.name))?, memory)?,
            file: self.text(memory.word(at(self.file))?, memory)?,
            line: instruction.and_then(|at| lines::line(self.table, &bytes, first, at)),
        })
    }

    /// Returns the distance in bytes of the current instruction from the first one.
    fn instruction(&self, frame: u64, code: u64, current: u64, memory: Memory<'_>) -> Option<u32> {
        let Some(instructions) = self.instructions else {
            // A frame that has not begun has the index -1.
            let index = i64::from(current as u32 as i32);
            return u32::try_from((index * self.unit).max(0)).ok();
        };
        let mut start = code.wrapping_add(instructions);
        // Threads may have copies of the instructions, the first one being those in the object.
        if let Some((copies, index)) = self.copies {
            let index = memory.half(frame.wrapping_add(index)).ok()?;
            if index != 0 {
                let copies = memory.word(code.wrapping_add(copies)).ok()?;
                let at = copies.wrapping_add(8 + 8 * u64::from(index));
                start = memory.word(at).ok()?;
            }
        }
        u32::try_from(current.checked_sub(start)?).ok()
    }

    /// Reads a text.
    fn text(&self, object: u64, memory: Memory<'_>) -> Result<String, PythonError> {
        let damaged = PythonError::Unreadable(object);
        let len = memory.word(object.wrapping_add(self.text_len))?;
        let state = memory.half(object.wrapping_add(self.text_state))? >> self.text_shift;
        let (width, is_compact, is_ascii) = (state & 7, state >> 3 & 1 == 1, state >> 4 & 1 == 1);
        if len > LONGEST_TEXT || !is_compact {
            return Err(damaged);
        }
        let start = if is_ascii {
            self.ascii
        } else {
            self.ascii + self.more_than_ascii
        };
        let mut bytes = vec![0; len as usize * width as usize];
        memory.fill(object.wrapping_add(start), &mut bytes)?;
        let character = |code: u32| char::from_u32(code).ok_or(damaged);
        match width {
            1 => Ok(bytes.into_iter().map(char::from).collect()),
            2 => {
                let (pairs, _) = bytes.as_chunks();
                let codes = pairs.iter().map(|it| u16::from_le_bytes(*it));
                codes.map(|code| character(code.into())).collect()
            }
            4 => {
                let (words, _) = bytes.as_chunks();
                let codes = words.iter().map(|it| u32::from_le_bytes(*it));
                codes.map(character).collect()
            }
            _ => Err(damaged),
        }
    }
}
