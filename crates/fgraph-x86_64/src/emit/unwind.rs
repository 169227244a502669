//! Unwind information for displaced instructions.
//!
//! A profiler may unwind from a signal handler that interrupted a displaced instruction. The
//! position of the caller's frame depends on how much of the function's prologue has run, so each
//! instruction that changes it has a [`Row`]:
//!
//! ```text
//!   address                 instruction        the caller's frame
//!   start                   (default)          rsp + 8
//!   piece a                 push rbp           rsp + 8
//!         a + 1             mov rbp, rsp       rsp + 16, rbp at CFA - 16      a row
//!         a + 4             sub rsp, 64        rsp + 16, rbp at CFA - 16
//!         a + 8             jmp ...            rsp + 80, rbp at CFA - 16      a row
//!         a + 13            (default)          rsp + 8
//!   piece b                 ...
//! ```
//!
//! One CIE and one FDE describe a whole stretch of such pieces. Between them the default holds,
//! which is also that of the [stubs](crate::stub): the return address is on top of the stack. An
//! unwinder runs the program of an FDE from its start, so stretches should be short.

use alloc::vec::Vec;

/// The callee-saved registers, by their DWARF numbers: rbx, rbp, r12 to r15.
pub const CALLEE_SAVED: [u8; 6] = [3, 6, 12, 13, 14, 15];

/// The rule for finding the caller at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The DWARF number of the register from which the CFA is computed.
    pub register: u8,
    /// The distance from the register's value to the CFA, in bytes.
    pub offset: i32,
    /// The places where the caller's registers are saved, in the order of [`CALLEE_SAVED`]: n for 8
    /// * n bytes below the CFA, 0 for a register that is not saved.
    pub saved: [u16; CALLEE_SAVED.len()],
    /// The return address, if it is constant; otherwise it is 8 bytes below the CFA.
    pub returns_to: Option<u64>,
}

impl Rule {
    /// The rule at the entry of a function: the CFA is rsp + 8, nothing is saved.
    pub const DEFAULT: Self = Self {
        register: 7,
        offset: 8,
        saved: [0; CALLEE_SAVED.len()],
        returns_to: None,
    };

    /// Returns true if the CFA is computed from rsp.
    #[must_use]
    pub const fn by_stack_pointer(self) -> bool {
        self.register == Self::DEFAULT.register
    }

    /// Returns the rule after a push of eight bytes.
    #[must_use]
    pub const fn pushed(mut self) -> Self {
        if self.by_stack_pointer() {
            self.offset += 8;
        }
        self
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A change of the rule at some instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The offset of the instruction in its piece of code.
    pub offset: usize,
    /// The rule from there on.
    pub rule: Rule,
}

/// The rules of a stretch of code, in the order of addresses.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// The program of call frame instructions written until now.
    program: Vec<u8>,
    /// The number of bytes from the start of the stretch that the program has described.
    described: usize,
}

const DW_CFA_ADVANCE_LOC: u8 = 0x40;
const DW_CFA_ADVANCE_LOC1: u8 = 0x02;
const DW_CFA_ADVANCE_LOC2: u8 = 0x03;
const DW_CFA_ADVANCE_LOC4: u8 = 0x04;
const DW_CFA_OFFSET: u8 = 0x80;
const DW_CFA_RESTORE: u8 = 0xc0;
const DW_CFA_DEF_CFA: u8 = 0x0c;
const DW_CFA_DEF_CFA_SF: u8 = 0x12;
const DW_CFA_VAL_EXPRESSION: u8 = 0x16;
const DW_OP_CONST8U: u8 = 0x0e;
/// The column of the return address.
const RA: u8 = 16;
/// It is at CFA + 1 * the data alignment factor.
const RA_ON_STACK: [u8; 2] = [DW_CFA_OFFSET | RA, 1];

/// The bytes before the program: version, augmentation, factors, and the default rule.
#[rustfmt::skip]
const CIE: [u8; 24] = [
    20, 0, 0, 0,    // length: the bytes of the CIE behind this field
    0, 0, 0, 0,     // CIE id: 0 tells a CIE from an FDE in .eh_frame
    1,              // version
    b'z', b'R', 0,  // augmentation: has a length (z), which holds the pointer encoding (R)
    1,              // code alignment factor, uleb128: one byte
    0x78,           // data alignment factor, sleb128: -8
    16,             // column of the return address, uleb128: RA is 16 on x86-64
    1,              // length of the augmentation data, uleb128
    0x1b,           // R: DW_EH_PE_pcrel | DW_EH_PE_sdata4
    DW_CFA_DEF_CFA, 7, 8,       // CFA is rsp (7) + 8
    RA_ON_STACK[0], RA_ON_STACK[1],
    0, 0,           // DW_CFA_nop, to a multiple of four
];

/// Offset in the bytes of [`Rows::finish`] of the FDE; see
/// [`stub::EH_FRAME_FDE`](crate::stub::EH_FRAME_FDE).
pub const EH_FRAME_FDE: usize = CIE.len();

impl Rows {
    /// Makes rules for a stretch in which the default holds everywhere.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece of code: `len` bytes that start `offset` bytes into the stretch. The default
    /// holds before its first row and after its end.
    ///
    /// # Panics
    ///
    /// Panics if the piece starts before the end of an earlier one, or a row is out of order or
    /// outside of the piece.
    pub fn piece(&mut self, offset: usize, len: usize, rows: &[Row]) {
        let mut rule = Rule::DEFAULT;
        for row in rows {
            assert!(row.offset < len, "a row behind the end of its piece");
            self.advance(offset + row.offset);
            self.change(rule, row.rule);
            rule = row.rule;
        }
        if rule != Rule::DEFAULT {
            self.advance(offset + len);
            self.change(rule, Rule::DEFAULT);
        }
    }

    fn advance(&mut self, to: usize) {
        let by = to.checked_sub(self.described).expect("pieces in order");
        self.described = to;
        match by {
            0 => {}
            1..=0x3f => self.program.push(DW_CFA_ADVANCE_LOC | by as u8),
            0x40..=0xff => self.program.extend([DW_CFA_ADVANCE_LOC1, by as u8]),
            0x100..=0xffff => {
                self.program.push(DW_CFA_ADVANCE_LOC2);
                self.program.extend((by as u16).to_le_bytes());
            }
            _ => {
                let by = u32::try_from(by).expect("the stretch is shorter than 4 GiB");
                self.program.push(DW_CFA_ADVANCE_LOC4);
                self.program.extend(by.to_le_bytes());
            }
        }
    }

    fn change(&mut self, from: Rule, to: Rule) {
        if (from.register, from.offset) != (to.register, to.offset) {
            if let Ok(offset) = u32::try_from(to.offset) {
                self.program.extend([DW_CFA_DEF_CFA, to.register]);
                self.uleb128(offset);
            } else {
                // In units of the data alignment factor, and signed.
                self.program.extend([DW_CFA_DEF_CFA_SF, to.register]);
                self.sleb128(to.offset / -8);
            }
        }
        self.change_return(from.returns_to, to.returns_to);
        for (index, register) in CALLEE_SAVED.into_iter().enumerate() {
            match to.saved[index] {
                same if same == from.saved[index] => {}
                0 => self.program.push(DW_CFA_RESTORE | register),
                slot => {
                    self.program.push(DW_CFA_OFFSET | register);
                    self.uleb128(slot.into());
                }
            }
        }
    }

    fn change_return(&mut self, from: Option<u64>, to: Option<u64>) {
        match to {
            same if same == from => {}
            Some(address) => {
                const LEN: u8 = 1 + size_of::<u64>() as u8;
                self.program
                    .extend([DW_CFA_VAL_EXPRESSION, RA, LEN, DW_OP_CONST8U]);
                self.program.extend(address.to_le_bytes());
            }
            // libgcc treats `DW_CFA_restore` as the end of all rules of the register.
            None => self.program.extend(RA_ON_STACK),
        }
    }

    fn uleb128(&mut self, mut value: u32) {
        while value > 0x7f {
            self.program.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.program.push(value as u8);
    }

    fn sleb128(&mut self, mut value: i32) {
        // The sign is bit 6 of the last byte.
        while !(-0x40..0x40).contains(&value) {
            self.program.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.program.push(value as u8 & 0x7f);
    }

    /// Returns the `.eh_frame` of `len` bytes of code at `start`, to be stored at the address `at`:
    /// a CIE, an FDE, a terminator.
    ///
    /// Pointers in it are relative to their own addresses, so it is valid only at `at`.
    ///
    /// # Panics
    ///
    /// Panics if the code is further than 2 GiB from `at`, or longer than that: no arena is that
    /// large.
    #[must_use]
    pub fn finish(&self, start: usize, len: usize, at: usize) -> Vec<u8> {
        // After the length: CIE pointer, initial location, range, length of no augmentation data.
        let body = 4 + 4 + 4 + 1 + self.program.len();
        let fde_len = body.next_multiple_of(4);
        let mut bytes = Vec::with_capacity(CIE.len() + 4 + fde_len + 4);
        bytes.extend(CIE);
        let word = |value: usize| {
            let value = i32::try_from(value.cast_signed()).expect("the code is within 2 GiB");
            value.to_le_bytes()
        };
        bytes.extend(word(fde_len));
        // CIE pointer: the distance from the CIE's start to this field.
        bytes.extend(word(CIE.len() + 4));
        // initial location: relative to this field.
        bytes.extend(word(start.wrapping_sub(at + CIE.len() + 8)));
        bytes.extend(word(len));
        bytes.push(0);
        bytes.extend(&self.program);
        // DW_CFA_nop is 0, and so is the length that ends the list.
        bytes.resize(CIE.len() + 4 + fde_len + 4, 0);
        bytes
    }
}

#[cfg(test)]
mod tests;
