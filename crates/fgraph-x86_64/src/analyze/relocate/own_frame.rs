//! Detects functions that must not be called from any place other than their caller.

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    OpKind, Register,
};

use memchr::{memchr, memchr_iter};

use super::paths::{Step, follow};
use super::window::Code;
use crate::analyze::frame::{Frame, InRbp, RETURN_ADDRESS};

/// The number of a function's bytes that are analyzed.
const LOOKED_AT: usize = 1024;
/// The same for a function that may read its return address behind these.
const LOOKED_AT_MOST: usize = 16 << 10;

/// Returns true if the function looks at its return address or at its caller's frame pointer, or
/// returns with another value in rbp.
///
/// ```text
///   CFA - 8    return address          read, replaced, popped, its address taken
///   CFA - 16   the caller's rbp        read otherwise than to restore it; its address taken,
///              where it is saved       which is what walkers of frames begin with
///   rbp        the caller's            written without having been saved, or left so at a return
/// ```
///
/// gcc copies the return address to the frame of a function that aligns its stack: the copy counts
/// too, but making it does not.
///
/// The analysis follows every path from the entry, along direct branches, each instruction once,
/// within 1 KiB; within 16 KiB if bytes there look like a read of the return address. Once the
/// stack pointer is unknown, reads through it are ignored.
#[must_use]
pub fn is_misled_by_a_call(code: &Code<'_>) -> bool {
    let body = code.body();
    let body = &body[..body.len().min(LOOKED_AT_MOST)];
    let (near, far) = body.split_at(body.len().min(LOOKED_AT));
    if may_read_return_address(near, far) {
        return looks_on_a_path::<{ LOOKED_AT_MOST / 64 }>(body);
    }
    is_worth_a_look(near) && looks_on_a_path::<{ LOOKED_AT / 64 }>(near)
}

/// Returns true if an instruction on a path within 64 * `WORDS` bytes does that.
fn looks_on_a_path<const WORDS: usize>(body: &[u8]) -> bool {
    let mut factory = None;
    follow::<WORDS, _>(body, State::AT_ENTRY, |instruction, state| {
        if state.looks(instruction) || !state.step(instruction, &mut factory) {
            Step::Found
        } else {
            Step::Next
        }
    })
}

/// Bytes of the registers that a function saves, and one more for the alignment.
const PUSHED: u32 = 7 * 8;

/// The size in bytes up to which functions are always decoded.
const SHORT: usize = 32;

/// Returns true if the bytes contain anything that [`is_misled_by_a_call`] may find. Most functions
/// need not be decoded then.
fn is_worth_a_look(body: &[u8]) -> bool {
    const PUSH_RBP: u8 = 0x55;
    body.len() <= SHORT
        // pop
        || matches!(body, [0x58..=0x5f, ..] | [0x41, 0x58..=0x5f, ..])
        || memchr(PUSH_RBP, body).is_none() && writes_rbp(body)
        || has_frame_pointer(body) && shows_frame(body)
        || keeps_stack_pointer(body)
        || reads_beside_locals(body)
}

/// Returns true if there may be an instruction in `far` that reads the return address, where `near`
/// begins the function: eight bytes at \[rbp + 8\], or above rsp, behind locals and saved
/// registers.
fn may_read_return_address(near: &[u8], far: &[u8]) -> bool {
    /// The number of bytes in which a frame is made.
    const FIRST: usize = 64;
    if far.is_empty() {
        return false;
    }
    let first = &near[..near.len().min(FIRST)];
    let locals = locals(first).map(|(_, locals)| locals).min();
    let has_frame_pointer = has_frame_pointer(first);
    let is_beside = |displacement: u32, locals: u32| {
        let above = displacement.wrapping_sub(locals);
        above <= PUSHED && above.is_multiple_of(8)
    };
    let has_arguments = first_room_given_back(first).is_some();
    let is_above_locals = |displacement| {
        is_beside(displacement, locals.unwrap_or_default())
            || has_arguments && is_beside(displacement, 0)
    };
    far.windows(4).enumerate().any(|(at, bytes)| match *bytes {
        // push [rbp + 8]
        [0xff, 0x75, 8, _] => has_frame_pointer,
        [0x48 | 0x4c, 0x85 | 0x87 | 0x89 | 0x8b | 0x8d, modrm, last]
        | [0x48 | 0x4c, 0x01..=0x3b, modrm, last] => match modrm & 0xc7 {
            0x45 => has_frame_pointer && last == 8,
            0x44 | 0x84 if last == 0x24 => {
                let len = if modrm & 0xc7 == 0x44 { 1 } else { 4 };
                is_above_locals(number(&far[at + 4..], len))
            }
            _ => false,
        },
        _ => false,
    })
}

/// Returns a number of `len` bytes.
fn number(bytes: &[u8], len: usize) -> u32 {
    let bytes = bytes.iter().take(len).rev();
    bytes.fold(0, |number, &byte| number << 8 | u32::from(byte))
}

/// Returns the numbers that may be subtracted from rsp, each behind the number of bytes that
/// follow.
fn locals(body: &[u8]) -> impl Iterator<Item = (usize, u32)> {
    // sub rsp, imm8; sub rsp, imm32; add rsp, -128
    let small = around(0xec, body).filter_map(|(before, behind)| match before {
        0x83 => Some((behind.len(), number(behind, 1))),
        0x81 => Some((behind.len(), number(behind, 4))),
        _ => None,
    });
    let large = around(0xc4, body)
        .filter(|(before, behind)| *before == 0x83 && behind.first() == Some(&0x80))
        .map(|(_, behind)| (behind.len(), 128));
    small.chain(large)
}

/// Returns the number of bytes that follow the first number that may be added to rsp. The room that
/// this gives back may have been for the arguments of a call, or for locals of another path.
fn first_room_given_back(body: &[u8]) -> Option<usize> {
    // add rsp, imm8; add rsp, imm32
    let given = around(0xc4, body).find(|(before, behind)| match before {
        0x83 => behind.first() != Some(&0x80),
        before => *before == 0x81,
    });
    given.map(|(_, behind)| behind.len())
}

/// Returns true if there may be a `mov r, rsp` or `lea r, [rsp + 8]` among the first instructions,
/// for another register than rbp.
fn keeps_stack_pointer(body: &[u8]) -> bool {
    /// The number of bytes in which they are: registers are saved before them.
    const FIRST: usize = 24;
    let first = &body[..body.len().min(FIRST)];
    first.windows(4).any(|bytes| match *bytes {
        [0x48 | 0x49, 0x89, modrm, _] => modrm & 0xf8 == 0xe0 && modrm != 0xe5,
        [0x48 | 0x4c, 0x8d, modrm, 0x24] => modrm & 0xc7 == 0x44 && modrm != 0x64,
        _ => false,
    })
}

/// Returns true if there may be an instruction that writes a value other than a constant to rbp.
fn writes_rbp(body: &[u8]) -> bool {
    body.windows(3).any(|bytes| match *bytes {
        // Without a prefix that would make it r13.
        [
            prefix,
            0x03 | 0x0b | 0x13 | 0x1b | 0x23 | 0x2b | 0x33 | 0x8b | 0x8d,
            modrm,
        ] => modrm & 0x38 == 0x28 && prefix & 0xf4 != 0x44,
        [
            prefix,
            0x01 | 0x09 | 0x11 | 0x19 | 0x21 | 0x29 | 0x31 | 0x89,
            modrm,
        ] => modrm & 0xc7 == 0xc5 && prefix & 0xf1 != 0x41,
        [prefix, 0xbd, _] => prefix & 0xf1 != 0x41,
        _ => false,
    })
}

/// Returns, for each place of `last` in the bytes, the byte before it and the bytes after it.
fn around(last: u8, body: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let places = memchr_iter(last, body).filter(|&at| at > 0);
    places.map(move |at| (body[at - 1], &body[at + 1..]))
}

/// Returns true if there may be a `mov rbp, rsp` or `lea rbp, [rsp + ...]`.
fn has_frame_pointer(body: &[u8]) -> bool {
    around(0xe5, body).any(|(before, _)| before == 0x89)
        || around(0xec, body).any(|(before, _)| before == 0x8b)
        || around(0x6c, body).any(|(before, _)| before == 0x8d)
        || around(0xac, body).any(|(before, _)| before == 0x8d)
}

/// Returns true if there may be a `mov r, rbp`, \[rbp\] or \[rbp + 8\].
fn shows_frame(body: &[u8]) -> bool {
    body.windows(2).any(|bytes| match *bytes {
        [0x89, 0xe8..=0xef] => true,
        [0x8b, modrm] => modrm & 0xc7 == 0xc5,
        [modrm, 0 | 8] => modrm & 0xc7 == 0x45,
        _ => false,
    })
}

/// Returns true if a read at rsp may be beyond the locals. Locals are in the bytes that are
/// subtracted from rsp until these are given back; saved registers, the return address and
/// arguments follow.
fn reads_beside_locals(body: &[u8]) -> bool {
    let (mut first, mut least) = (0, u32::MAX);
    for (left, locals) in locals(body) {
        (first, least) = (first.max(left), least.min(locals));
    }
    let given_back = first_room_given_back(body).unwrap_or(0);
    around(0x24, body).any(|(modrm, behind)| {
        let displacement = match modrm & 0xc7 {
            0x04 => 0,
            0x44 => number(behind, 1),
            0x84 => number(behind, 4),
            _ => return false,
        };
        let has_locals = behind.len() <= first;
        has_locals && (least..=least.saturating_add(PUSHED)).contains(&displacement)
            || (!has_locals || behind.len() < given_back) && displacement <= PUSHED
    })
}

/// The value of a register, as far as it is an address in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Other,
    /// An address at this distance below the CFA.
    Below(i32),
    /// An address at this distance below the place to which the stack pointer was aligned.
    Aligned(i32),
}

impl Value {
    /// Returns the address at a distance from this one.
    fn plus(self, distance: i64) -> Self {
        let minus = |below: i32| below.checked_sub(i32::try_from(distance).ok()?);
        match self {
            Self::Below(below) => minus(below).map_or(Self::Other, Self::Below),
            Self::Aligned(below) => minus(below).map_or(Self::Other, Self::Aligned),
            Self::Other => Self::Other,
        }
    }
}

/// The registers before an instruction, as far as they are addresses in the frame.
#[derive(Clone, Copy)]
struct State {
    frame: Frame,
    /// By number. `frame` has rsp and rbp if they are relative to the CFA.
    values: [Value; 16],
    /// The place of the return address's copy, below the place to which the stack was aligned.
    copied: Option<i32>,
    /// The place of the saved rbp, likewise.
    saved: Option<i32>,
}

impl State {
    const AT_ENTRY: Self = Self {
        frame: Frame::AT_ENTRY,
        values: [Value::Other; 16],
        copied: None,
        saved: None,
    };

    /// Returns the value of a register.
    fn value(&self, register: Register) -> Value {
        if !register.is_gpr64() {
            return Value::Other;
        }
        let known = self.values[register.number()];
        match register {
            Register::RSP => self.frame.rsp.map_or(known, Value::Below),
            Register::RBP => match self.frame.rbp {
                InRbp::Below(below) => Value::Below(below),
                InRbp::Callers => Value::Other,
                InRbp::Other => known,
            },
            _ => known,
        }
    }

    /// Returns the address of an instruction's memory operand.
    fn address(&self, instruction: &Instruction) -> Value {
        if instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return Value::Other;
        }
        let displacement = instruction.memory_displacement64().cast_signed();
        self.value(instruction.memory_base()).plus(displacement)
    }

    /// Returns true if the instruction looks at the return address or at the caller's frame
    /// pointer.
    fn looks(&self, instruction: &Instruction) -> bool {
        let [op0, op1] = [instruction.op0_register(), instruction.op1_register()];
        let names_memory = instruction.memory_base() != Register::None;
        match instruction.mnemonic() {
            Mnemonic::Pop if self.frame.rsp == Some(RETURN_ADDRESS) => return true,
            // Except to restore rsp from it.
            Mnemonic::Mov if op1 == Register::RBP && op0 != Register::RSP => {
                return self.is_frame_pointer()
                    || names_memory && self.address(instruction) == Value::Below(RETURN_ADDRESS);
            }
            Mnemonic::Push if op0 == Register::RBP => return self.is_frame_pointer(),
            Mnemonic::Push if self.copies_return_address(instruction) => return false,
            Mnemonic::Nop => return false,
            // A barrier.
            _ if instruction.has_lock_prefix() => return false,
            _ => {}
        }
        if !names_memory || op0 == Register::RSP {
            return false;
        }
        let restores = matches!(op0, Register::RBP) && instruction.mnemonic() == Mnemonic::Mov;
        // A write there replaces no frame pointer: the slot is free then.
        let writes =
            instruction.op0_kind() == OpKind::Memory && instruction.mnemonic() == Mnemonic::Mov;
        let is_pointer = !restores && !writes;
        let is_in = |place: Option<i32>, at: i32| {
            place.is_some_and(|place| (place - 7..=place).contains(&at))
        };
        match self.address(instruction) {
            Value::Below(below) => {
                (1..=RETURN_ADDRESS).contains(&below)
                    || self.frame.saved == Some(below) && self.frame.is_saved && is_pointer
            }
            Value::Aligned(below) => {
                is_in(self.copied, below) || self.saved == Some(below) && is_pointer
            }
            Value::Other => false,
        }
    }

    /// Returns true if a push copies the return address to a frame that is aligned.
    fn copies_return_address(&self, instruction: &Instruction) -> bool {
        instruction.op0_kind() == OpKind::Memory
            && matches!(self.value(Register::RSP), Value::Aligned(_))
            && self.address(instruction) == Value::Below(RETURN_ADDRESS)
    }

    /// Returns true if rbp points to the slot where the caller's was pushed.
    fn is_frame_pointer(&self) -> bool {
        match self.value(Register::RBP) {
            Value::Below(below) => self.frame.saved == Some(below),
            Value::Aligned(below) => self.saved == Some(below),
            Value::Other => false,
        }
    }

    /// Updates the state for an instruction; returns `false` if the caller's rbp is lost.
    fn step(
        &mut self,
        instruction: &Instruction,
        factory: &mut Option<InstructionInfoFactory>,
    ) -> bool {
        let copies = self.copies_return_address(instruction);
        let saves = self.frame.rbp == InRbp::Callers
            && instruction.mnemonic() == Mnemonic::Push
            && instruction.op0_register() == Register::RBP;
        let written = self.written(instruction);
        let keeps = self.frame.step(instruction, factory);
        self.forget(instruction, factory);
        match written {
            (Register::RSP, Value::Below(below)) => self.frame.rsp = Some(below),
            (Register::None, _) => {}
            (register, value) => self.values[register.number()] = value,
        }
        if let (Register::RSP, Value::Aligned(below)) = written {
            if copies {
                self.copied = Some(below);
            }
            if saves {
                self.saved = Some(below);
            }
        }
        keeps
    }

    /// Returns the register that the instruction sets to an address in the frame, and that address.
    fn written(&self, instruction: &Instruction) -> (Register, Value) {
        let [op0, op1] = [instruction.op0_register(), instruction.op1_register()];
        let rsp = self.value(Register::RSP);
        let value = match instruction.mnemonic() {
            Mnemonic::Mov if op0.is_gpr64() => self.value(op1),
            Mnemonic::Lea if op0.is_gpr64() => self.address(instruction),
            Mnemonic::And if op0 == Register::RSP && self.frame.rsp.is_some() => {
                return (op0, Value::Aligned(0));
            }
            Mnemonic::Leave if matches!(self.value(Register::RBP), Value::Aligned(_)) => {
                return (Register::RSP, self.value(Register::RBP).plus(8));
            }
            Mnemonic::Sub | Mnemonic::Add if op0 == Register::RSP && self.frame.rsp.is_none() => {
                let by = instruction.try_immediate(1).map(u64::cast_signed);
                return match (by, instruction.mnemonic()) {
                    (Ok(by), Mnemonic::Add) => (op0, rsp.plus(by)),
                    (Ok(by), _) => (op0, rsp.plus(-by)),
                    (Err(_), _) => (op0, Value::Other),
                };
            }
            Mnemonic::Push | Mnemonic::Pop if self.frame.rsp.is_none() => {
                let by = instruction.stack_pointer_increment();
                return (Register::RSP, rsp.plus(by.into()));
            }
            _ => Value::Other,
        };
        match value {
            Value::Other => (Register::None, value),
            // The frame follows these itself.
            Value::Below(_) if op0 == Register::RBP => (Register::None, Value::Other),
            value => (op0, value),
        }
    }

    /// Forgets the values of registers that the instruction writes.
    fn forget(&mut self, instruction: &Instruction, factory: &mut Option<InstructionInfoFactory>) {
        if self.values == [Value::Other; 16] {
            return;
        }
        if instruction.flow_control() == FlowControl::Call {
            const CALLER_SAVED: [Register; 9] = [
                Register::RAX,
                Register::RCX,
                Register::RDX,
                Register::RSI,
                Register::RDI,
                Register::R8,
                Register::R9,
                Register::R10,
                Register::R11,
            ];
            CALLER_SAVED.iter().for_each(|register| {
                self.values[register.number()] = Value::Other;
            });
            return;
        }
        let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
        let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let register = used.register();
            let writes = !matches!(
                used.access(),
                OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
            );
            if writes && register.is_gpr() {
                self.values[register.full_register().number()] = Value::Other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn is_misled(bytes: &[u8]) -> bool {
        is_misled_by_a_call(&Code {
            bytes,
            address: 0x1000,
            size: bytes.len(),
        })
    }

    #[test]
    fn reading_the_return_address_is_detected() {
        // mov rax, [rsp]; ret
        assert!(is_misled(&[0x48, 0x8b, 0x04, 0x24, 0xc3]));
        // push rbp; mov rbp, rsp; mov rax, [rbp + 8]; pop rbp; ret
        let by_rbp = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x45, 0x08, 0x5d, 0xc3];
        assert!(is_misled(&by_rbp));
        // push rbx; sub rsp, 32; mov rdi, [rsp + 40]; add rsp, 32; pop rbx; ret
        let mut by_rsp = [
            0x53, 0x48, 0x83, 0xec, 32, 0x48, 0x8b, 0x7c, 0x24, 40, 0x48, 0x83, 0xc4, 32, 0x5b,
            0xc3,
        ];
        assert!(is_misled(&by_rsp));
        // Its last argument on the stack, or what it has there itself.
        for other in [48, 24] {
            by_rsp[9] = other;
            assert!(!is_misled(&by_rsp));
        }
        // pop r12; call rax; push r12; ret
        assert!(is_misled(&[0x41, 0x5c, 0xff, 0xd0, 0x41, 0x54, 0xc3]));
        // lea rax, [rsp]; ret
        assert!(is_misled(&[0x48, 0x8d, 0x04, 0x24, 0xc3]));
        // mov [rsp], rdi; ret
        assert!(is_misled(&[0x48, 0x89, 0x3c, 0x24, 0xc3]));
    }

    /// gcc's prologue and epilogue of a function that aligns its stack and has arguments there.
    fn aligned(keep: &[u8], push: &[u8], middle: &[u8]) -> Vec<u8> {
        // and rsp, -32; push [keep - 8]; push rbp; mov rbp, rsp; push keep; sub rsp, 104
        let realign = [&[0x48, 0x83, 0xe4, 0xe0], push, &[0x55, 0x48, 0x89, 0xe5]].concat();
        let locals = [0x41, 0x52, 0x48, 0x83, 0xec, 0x68];
        // mov r10, [rbp - 8]; leave; lea rsp, [r10 - 8]; ret
        let end = [0x4c, 0x8b, 0x55, 0xf8, 0xc9, 0x49, 0x8d, 0x62, 0xf8, 0xc3];
        [keep, &realign, &locals, middle, &end].concat()
    }

    #[test]
    fn reading_the_copy_of_the_return_address_is_detected() {
        // lea r10, [rsp + 8]; push [r10 - 8]
        let r10 = (
            &[0x4c, 0x8d, 0x54, 0x24, 8][..],
            &[0x41, 0xff, 0x72, 0xf8][..],
        );
        // push r13; lea r13, [rsp + 16]; push [r13 - 8]
        let r13 = (
            &[0x41, 0x55, 0x4c, 0x8d, 0x6c, 0x24, 16][..],
            &[0x41, 0xff, 0x75, 0xf8][..],
        );
        for (keep, push) in [r10, r13] {
            let misled = |middle: &[u8]| is_misled(&aligned(keep, push, middle));
            // mov eax, [rbp - 24]; call $+5
            assert!(!misled(&[0x8b, 0x45, 0xe8, 0xe8, 0, 0, 0, 0]));
            // mov rax, [rbp + 8]
            assert!(misled(&[0x48, 0x8b, 0x45, 8]));
            // lea rax, [rbp + 8]
            assert!(misled(&[0x48, 0x8d, 0x45, 8]));
            // mov rax, rbp; mov rax, [rbp]
            assert!(misled(&[0x48, 0x89, 0xe8]) && misled(&[0x48, 0x8b, 0x45, 0]));
        }
        // mov rax, r10; mov eax, [rax + 8], which is an argument; mov rax, [rax - 8]
        let (keep, push) = r10;
        let argument = [0x4c, 0x89, 0xd0, 0x8b, 0x40, 8];
        assert!(!is_misled(&aligned(keep, push, &argument)));
        let address = [0x4c, 0x89, 0xd0, 0x48, 0x8b, 0x40, 0xf8];
        assert!(is_misled(&aligned(keep, push, &address)));
    }

    #[test]
    fn reading_through_a_copy_of_the_stack_pointer_is_detected() {
        // mov rdx, rsp; mov rax, [rdx]; ret
        assert!(is_misled(&[0x48, 0x89, 0xe2, 0x48, 0x8b, 0x02, 0xc3]));
        // lea rcx, [rsp + 8]; mov rdx, rcx; mov rax, [rdx - 8]; ret
        let copied = |displacement| {
            [
                0x48,
                0x8d,
                0x4c,
                0x24,
                8,
                0x48,
                0x89,
                0xca,
                0x48,
                0x8b,
                0x42,
                displacement,
                0xc3,
            ]
        };
        assert!(is_misled(&copied(0xf8)));
        assert!(!is_misled(&copied(8)), "an argument");
        // mov rdx, rsp; mov rdx, rdi; mov rax, [rdx]; ret
        let other = [0x48, 0x89, 0xe2, 0x48, 0x89, 0xfa, 0x48, 0x8b, 0x02, 0xc3];
        assert!(!is_misled(&other));
    }

    #[test]
    fn code_behind_a_branch_is_read_too() {
        // test edi, edi; je +1; ret; mov rax, [rsp]; ret
        let code = [0x85, 0xff, 0x74, 1, 0xc3, 0x48, 0x8b, 0x04, 0x24, 0xc3];
        assert!(is_misled(&code));
        // test edi, edi; je +9; sub rsp, 8; call $+5 (never back); mov rax, [rsp + 8]; ret
        let code = [
            0x85, 0xff, 0x74, 9, 0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x44, 0x24, 8,
            0xc3,
        ];
        assert!(!is_misled(&code), "an argument on the stack");
    }

    #[test]
    fn a_return_address_is_found_behind_the_arguments_of_a_call() {
        // push rbx; test edi, 4; je +13; sub rsp, 32; call $+5; add rsp, 32
        let call = [
            0x53, 0xf7, 0xc7, 4, 0, 0, 0, 0x74, 13, 0x48, 0x83, 0xec, 32, 0xe8, 0, 0, 0, 0, 0x48,
            0x83, 0xc4, 32,
        ];
        // add rax, [rsp + 8]; pop rbx; ret
        let mut read = [0x48, 3, 0x44, 0x24, 8, 0x5b, 0xc3];
        let near = [&call[..], &[0x90; SHORT], &read].concat();
        assert!(is_misled(&near));
        let far = [&call[..], &[0x90; LOOKED_AT], &read].concat();
        assert!(is_misled(&far));
        // An argument.
        read[4] = 16;
        assert!(!is_misled(&[&call[..], &[0x90; SHORT], &read].concat()));
    }

    #[test]
    fn a_return_address_is_found_far_from_the_entry() {
        let far = |begin: &[u8], end: &[u8], distance| {
            let code = [begin, &alloc::vec![0x90; distance], end].concat();
            is_misled(&code)
        };
        let near_the_end = LOOKED_AT_MOST - 20;
        // push rbp; mov rbp, rsp
        let framed = [0x55, 0x48, 0x89, 0xe5];
        // mov rax, [rbp + 8]; leave; ret
        let read = [0x48, 0x8b, 0x45, 8, 0xc9, 0xc3];
        assert!(far(&framed, &read, 1100) && far(&framed, &read, near_the_end));
        assert!(!far(&framed, &read, LOOKED_AT_MOST));
        // push [rbp + 8]; leave; ret
        assert!(far(&framed, &[0xff, 0x75, 8, 0xc9, 0xc3], 1100));
        // mov rax, [rbp + 16], an argument
        assert!(!far(&framed, &[0x48, 0x8b, 0x45, 16, 0xc9, 0xc3], 1100));
        // push rbx; sub rsp, 0x100
        let locals = [0x53, 0x48, 0x81, 0xec, 0, 1, 0, 0];
        // lea rdx, [rsp + 0x108]; add rsp, 0x100; pop rbx; ret
        let mut read = [
            0x48, 0x8d, 0x94, 0x24, 8, 1, 0, 0, 0x48, 0x81, 0xc4, 0, 1, 0, 0, 0x5b, 0xc3,
        ];
        assert!(far(&locals, &read, 1100));
        // A local, and an argument.
        for other in [0xf8, 0x10] {
            (read[4], read[5]) = (other, u8::from(other == 0x10));
            assert!(!far(&locals, &read, 1100), "{other:#x}");
        }
    }

    #[test]
    fn reading_the_callers_frame_pointer_is_detected() {
        let framed = |middle: &[u8]| {
            let code = [&[0x55, 0x48, 0x89, 0xe5], middle, &[0x5d, 0xc3]].concat();
            is_misled(&code)
        };
        // mov rax, [rbp]
        assert!(framed(&[0x48, 0x8b, 0x45, 0]));
        // mov rax, rbp
        assert!(framed(&[0x48, 0x89, 0xe8]));
        // lea rdi, [rbp]
        assert!(framed(&[0x48, 0x8d, 0x7d, 0]));
        // mov rax, [rbp - 8]; mov rsp, rbp; lea rsp, [rbp]
        assert!(!framed(&[0x48, 0x8b, 0x45, 0xf8]));
        assert!(!framed(&[0x48, 0x89, 0xec]));
        assert!(!framed(&[0x48, 0x8d, 0x65, 0]));
        // push rbp; mov rbp, rdi; mov rax, [rbp]; mov rdi, rbp; pop rbp; ret
        let other = [
            0x55, 0x48, 0x89, 0xfd, 0x48, 0x8b, 0x45, 0, 0x48, 0x89, 0xef, 0x5d, 0xc3,
        ];
        assert!(!is_misled(&other), "rbp is no frame pointer");
    }

    #[test]
    fn not_preserving_rbp_is_detected() {
        // mov rbp, rdi; ret
        assert!(is_misled(&[0x48, 0x89, 0xfd, 0xc3]));
        // xor ebp, ebp; ret
        assert!(is_misled(&[0x31, 0xed, 0xc3]));
        // mov rbp, [rsp - 8]; ret
        assert!(is_misled(&[0x48, 0x8b, 0x6c, 0x24, 0xf8, 0xc3]));
        // push rbp; mov rbp, rdi; add rsp, 8; ret
        let saved_only = [0x55, 0x48, 0x89, 0xfd, 0x48, 0x83, 0xc4, 8, 0xc3];
        assert!(is_misled(&saved_only));
    }

    #[test]
    fn preserving_rbp_is_accepted() {
        // mov r10, rbp; xor ebp, ebp; mov rbp, r10; ret
        assert!(!is_misled(&[
            0x49, 0x89, 0xea, 0x31, 0xed, 0x4c, 0x89, 0xd5, 0xc3
        ]));
        // mov [rsp - 8], rbp; mov rbp, rdi; mov rbp, [rsp - 8]; ret
        let moved = [
            0x48, 0x89, 0x6c, 0x24, 0xf8, 0x48, 0x89, 0xfd, 0x48, 0x8b, 0x6c, 0x24, 0xf8, 0xc3,
        ];
        assert!(!is_misled(&moved));
        // push rbp; mov rbp, rsp; and rsp, -32; leave; ret
        let aligned = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0xc9, 0xc3];
        assert!(!is_misled(&aligned));
        // pushfq; pop rax; ret
        assert!(!is_misled(&[0x9c, 0x58, 0xc3]));
        // cmp rbp, rax; mov eax, [rbp + 8]; ret
        assert!(!is_misled(&[0x48, 0x39, 0xc5, 0x8b, 0x45, 8, 0xc3]));
    }
}
