//! Finds the places to which a function leaves by a jump, with its return address on top of
//! the stack.
//!
//! The bytes are searched for possible jumps, without decoding. A jump that is not there rarely
//! leads to a function; [`is_instruction`] tells if it does.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::window::Code;
use crate::analyze::nop::ENDBR64;
use crate::analyze::scan;

/// A place to which a function may jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Code outside of the function.
    Code(usize),
    /// The code whose address is stored here.
    Slot(usize),
    /// The code whose address is stored here, or in one of the words after it.
    Table(usize),
}

/// Calls `with` with each place to which the function may jump, and the offset of the jump.
pub fn exits(code: &Code<'_>, mut with: impl FnMut(Exit, usize)) {
    /// The farthest that a short jump leads from its start.
    const SHORT: usize = 130;
    let body = code.body();
    let mut is_indirect = false;
    let mut leave = |to: usize, at: usize| {
        if to.wrapping_sub(code.address) >= body.len() {
            with(Exit::Code(to), at);
        }
    };
    let near = |operand: usize| {
        let value = body.get(operand..)?.first_chunk().copied()?;
        let next = code.address.wrapping_add(operand + 4);
        Some(next.wrapping_add_signed(i32::from_le_bytes(value) as isize))
    };
    let mut slots = Vec::new();
    let opcodes = scan::places(body, 1, |first, second| {
        first.is(0xe9)
            | first.is(0x0f) & second.is_like(0x80, 0xf0)
            | first.is(0xff) & second.is_like(0x20, 0x38)
    });
    for at in opcodes {
        match (body[at], body.get(at + 1)) {
            (0xe9, _) => near(at + 1).into_iter().for_each(|to| leave(to, at)),
            (0x0f, _) => near(at + 2).into_iter().for_each(|to| leave(to, at)),
            (_, Some(0x25)) => slots.extend(near(at + 2).map(|slot| (slot, at))),
            _ => is_indirect = true,
        }
    }
    let is_short = |opcode: u8| opcode & 0xf0 == 0x70 || opcode == 0xeb;
    let first = 0..body.len().min(SHORT);
    let last = first.end.max(body.len().saturating_sub(SHORT))..body.len();
    for at in first.chain(last) {
        if let [opcode, operand, ..] = body[at..]
            && is_short(opcode)
        {
            let next = code.address.wrapping_add(at + 2);
            leave(next.wrapping_add_signed(operand.cast_signed().into()), at);
        }
    }
    slots
        .into_iter()
        .for_each(|(slot, at)| with(Exit::Slot(slot), at));
    if is_indirect {
        through_registers(code, &mut with);
    }
}

/// Calls `with` with the code to which a jump through a register may lead: that whose address the
/// function computes or loads.
fn through_registers(code: &Code<'_>, with: &mut impl FnMut(Exit, usize)) {
    let mut decoder = Decoder::with_ip(64, code.body(), code.address as u64, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let (mut found, mut jumps, mut indexes) = (Vec::new(), false, false);
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        let is_relative = instruction.is_ip_rel_memory_operand();
        let address = instruction.memory_displacement64() as usize;
        indexes |= instruction.memory_index() != Register::None;
        match instruction.mnemonic() {
            Mnemonic::Lea if is_relative => {
                found.extend([(Exit::Code(address), at), (Exit::Table(address), at)]);
            }
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Immediate32 => {
                found.push((Exit::Code(instruction.immediate32() as usize), at));
            }
            _ if instruction.flow_control() == FlowControl::IndirectBranch && !is_relative => {
                jumps = true;
                if instruction.memory_index() != Register::None && address != 0 {
                    found.push((Exit::Table(address), at));
                }
            }
            _ if is_relative && instruction.op0_register().is_gpr64() => {
                found.push((Exit::Slot(address), at));
            }
            _ => {}
        }
    }
    if jumps {
        found.retain(|(exit, _)| indexes || !matches!(exit, Exit::Table(_)));
        found.into_iter().for_each(|(exit, at)| with(exit, at));
    }
}

/// Returns true if an instruction of the function begins at an offset.
pub fn is_instruction(code: &Code<'_>, at: usize) -> bool {
    let mut decoder = Decoder::new(64, code.body(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    // A prefix may be before the opcode.
    while decoder.can_decode() && decoder.position() < at {
        decoder.decode_out(&mut instruction);
    }
    decoder.position() == at
        || decoder.position() > at && instruction.flow_control() != FlowControl::Next
}

/// Returns the slot through which the code jumps at once, as a procedure linkage table does.
#[must_use]
pub fn slot_of(code: &[u8], address: usize) -> Option<usize> {
    let rest = code.strip_prefix(&ENDBR64).unwrap_or(code);
    let rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
    let operand = rest.strip_prefix(&[0xff, 0x25])?.first_chunk().copied()?;
    let end = address + (code.len() - rest.len()) + 6;
    Some(end.wrapping_add_signed(i32::from_le_bytes(operand) as isize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Vec<Exit> {
        let code = Code {
            bytes,
            address: 0x1000,
            size: bytes.len(),
        };
        let mut all = Vec::new();
        exits(&code, |exit, at| {
            assert!(is_instruction(&code, at));
            all.push(exit);
        });
        all
    }

    #[test]
    fn direct_jumps_out_of_a_function_are_found() {
        // jmp 0x2000; je 0x2000; jmp and jne by one byte
        assert_eq!(found(&[0xe9, 0xfb, 0x0f, 0, 0]), [Exit::Code(0x2000)]);
        assert_eq!(
            found(&[0x0f, 0x84, 0xfa, 0x0f, 0, 0, 0xc3]),
            [Exit::Code(0x2000)]
        );
        assert_eq!(found(&[0xeb, 0x10]), [Exit::Code(0x1012)]);
        assert_eq!(found(&[0x75, 0xee, 0xc3]), [Exit::Code(0xff0)]);
        // jmp to itself; call; je to the ret
        assert_eq!(found(&[0xeb, 0xfe]), []);
        assert_eq!(found(&[0xe8, 0xfb, 0x0f, 0, 0, 0xc3]), []);
        assert_eq!(found(&[0x74, 0, 0xc3]), []);
    }

    #[test]
    fn jumps_through_slots_and_registers_are_found() {
        // jmp [rip + 0xffa]; bnd jmp [rip + 0xff9]
        let direct = [0xff, 0x25, 0xfa, 0x0f, 0, 0];
        assert_eq!(found(&direct), [Exit::Slot(0x2000)]);
        assert_eq!(slot_of(&direct, 0x1000), Some(0x2000));
        let landing = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xf5, 0x0f, 0, 0];
        assert_eq!(slot_of(&landing, 0x1000), Some(0x2000));
        assert_eq!(slot_of(&[0xe9, 0, 0, 0, 0], 0x1000), None);
        // mov rax, [rip + 0xff9]; jmp rax, which a call is not
        let loaded = [0x48, 0x8b, 5, 0xf9, 0x0f, 0, 0, 0xff, 0xe0];
        assert_eq!(found(&loaded), [Exit::Slot(0x2000)]);
        let called = [0x48, 0x8b, 5, 0xf9, 0x0f, 0, 0, 0xff, 0xd0];
        assert_eq!(found(&called), []);
        // lea rax, [rip + 0xff9]; jmp [rax + rdi * 8]
        let table = [0x48, 0x8d, 5, 0xf9, 0x0f, 0, 0, 0xff, 0x24, 0xf8];
        assert_eq!(found(&table), [Exit::Code(0x2000), Exit::Table(0x2000)]);
        // lea rdi, [rip + 0xff9]; jmp rax: an argument
        let argument = [0x48, 0x8d, 0x3d, 0xf9, 0x0f, 0, 0, 0xff, 0xe0];
        assert_eq!(found(&argument), [Exit::Code(0x2000)]);
    }
}
