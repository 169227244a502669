//! Writes the relocated prologue, from displaced instructions.

use alloc::vec::Vec;

use super::error::RelocateError;
use super::operand::{Operand, displacement};
use super::window::{Displaced, JMP_LEN, Kind, PUSH_LEN, Window};
use crate::stub::SITE_LEN;
use crate::unwind::{Row, Rule};

/// The result of writing a relocated prologue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// The number of bytes written.
    pub len: usize,
    /// The offset in the relocated prologue of the instruction that was at offset k; meaningful
    /// only for k in [`Window::boundaries`].
    pub resume: [u8; SITE_LEN],
    /// The unwind rules of the relocated prologue; [`Rule::DEFAULT`] holds before the first row.
    pub rows: Vec<Row>,
}

impl Window {
    /// Writes the relocated prologue for the address `at` to the start of `out`.
    ///
    /// # Errors
    ///
    /// Fails with [`RelocateError::Reach`] if an operand does not reach its target from there, and
    /// with [`RelocateError::Room`] if `out` is shorter than [`Self::relocated_len`].
    pub fn relocate(&self, at: usize, out: &mut [u8]) -> Result<Relocated, RelocateError> {
        let need = self.relocated_len();
        let have = out.len();
        let out = out.get_mut(..need);
        let mut writer = Writer {
            out: out.ok_or(RelocateError::Room { need, have })?,
            at,
            len: 0,
            instruction: 0,
        };
        let mut relocated = Relocated {
            len: 0,
            resume: [0; SITE_LEN],
            rows: Vec::new(),
        };
        let mut rows = RowList::default();
        for instruction in &self.instructions {
            writer.instruction = instruction.offset;
            if let Some(resume) = relocated.resume.get_mut(instruction.offset) {
                // At most four instructions of 15 bytes, in their longest form, come before.
                *resume = writer.len as u8;
            }
            rows.set(writer.len, instruction.before);
            if instruction.kind.is_call() {
                rows.set(writer.len + PUSH_LEN, instruction.before.pushed());
            }
            self.encode(instruction, &mut writer)?;
        }
        if self.goes_on() {
            rows.set(writer.len, self.after);
            writer.instruction = self.len();
            writer.put(&[0xe9]);
            writer.relative(self.address.wrapping_add(self.len()), 0)?;
        }
        relocated.len = writer.len;
        relocated.rows = rows.rows;
        Ok(relocated)
    }

    fn encode(
        &self,
        instruction: &Displaced,
        writer: &mut Writer<'_>,
    ) -> Result<(), RelocateError> {
        let bytes = &self.bytes[instruction.offset..][..instruction.len];
        let next = self
            .address
            .wrapping_add(instruction.offset + instruction.len);
        // A branch within the window stays within the relocated prologue.
        let follow = |target: usize| {
            self.relocated_offset(target.wrapping_sub(self.address))
                .map_or(target, |start| writer.at.wrapping_add(start))
        };
        match instruction.kind {
            Kind::Plain => writer.put(bytes),
            Kind::RipRelative { operand } => {
                let target = next.wrapping_add_signed(displacement(bytes, operand));
                writer.put(&bytes[..operand]);
                let behind = &bytes[operand + 4..];
                writer.relative(target, behind.len())?;
                writer.put(behind);
            }
            Kind::Jmp { target } => {
                let target = follow(target);
                writer.put(&[0xe9]);
                writer.relative(target, 0)?;
            }
            Kind::Jcc { opcode, target } => {
                let target = follow(target);
                writer.put(&[0x0f, opcode]);
                writer.relative(target, 0)?;
            }
            Kind::Count {
                opcode,
                ecx,
                target,
            } => {
                // loop over the jump that is taken otherwise:
                //   loop +2; jmp short +5; jmp target
                let target = follow(target);
                if ecx {
                    writer.put(&[0x67]);
                }
                writer.put(&[opcode, 2, 0xeb, JMP_LEN as u8, 0xe9]);
                writer.relative(target, 0)?;
            }
            Kind::Call { target } => {
                // The literal follows the jump.
                writer.push_literal(JMP_LEN);
                writer.put(&[0xe9]);
                writer.relative(target, 0)?;
                writer.put(&(next as u64).to_le_bytes());
            }
            Kind::CallIndirect { opcode } => {
                let start = opcode + 1;
                let mut jmp = [0; 16 + 4];
                let mut len = bytes.len();
                jmp[..len].copy_from_slice(bytes);
                // ff /2 is call, ff /4 is jmp.
                jmp[start] = (bytes[start] & !0x38) | 4 << 3;
                let operand = Operand::of(bytes, start);
                if let Some(Operand::Rsp { displacement, .. }) = operand {
                    // rsp is 8 less than at the call. Mode 2: a displacement of 32 bits.
                    jmp[start] = (jmp[start] & 0x3f) | 0x80;
                    let displacement = displacement.wrapping_add(8).to_le_bytes();
                    jmp[start + 2..start + 6].copy_from_slice(&displacement);
                    len = start + 6;
                }
                writer.push_literal(len);
                if operand == Some(Operand::RipRelative) {
                    let target = next.wrapping_add_signed(displacement(bytes, start + 1));
                    writer.put(&jmp[..=start]);
                    writer.relative(target, 0)?;
                } else {
                    writer.put(&jmp[..len]);
                }
                writer.put(&(next as u64).to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Collects the rows of a relocated prologue.
#[derive(Debug, Default)]
pub(super) struct RowList {
    rows: Vec<Row>,
    /// The rule of the last row.
    rule: Rule,
}

impl RowList {
    /// Sets the rule that holds from `offset` on.
    fn set(&mut self, offset: usize, rule: Rule) {
        if rule != self.rule {
            self.rows.push(Row { offset, rule });
            self.rule = rule;
        }
    }
}

/// Appends bytes. They always fit, because [`Window::relocated_len`] bytes were reserved.
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    /// The address of the first byte of `out`.
    at: usize,
    len: usize,
    /// The instruction being copied, for errors.
    instruction: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends four bytes: the distance to `target` from the end of the instruction, which is
    /// `behind` bytes after theirs.
    fn relative(&mut self, target: usize, behind: usize) -> Result<(), RelocateError> {
        let end = self.at.wrapping_add(self.len + 4 + behind);
        let distance = target.wrapping_sub(end).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| RelocateError::Reach {
            at: self.instruction,
            target,
        })?;
        self.put(&distance.to_le_bytes());
        Ok(())
    }

    /// Appends `push qword ptr [rip + distance]`.
    fn push_literal(&mut self, distance: usize) {
        self.put(&[0xff, 0x35]);
        // The distance is the length of one instruction.
        self.put(&(distance as u32).to_le_bytes());
    }
}
