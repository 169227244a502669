//! Tells functions that take an argument in rbp.

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register,
};

use super::Code;

/// Bytes of a function that are looked at.
const LOOKED_AT: usize = 4096;

/// Whether the function seems to use what its caller left in rbp.
///
/// Compilers never write such code; hand-written assembly has routines that take an argument there,
/// and some look at the caller's frame record. While a traced call runs rbp is not the caller's.
///
/// The answer is found by reading the code in the order of addresses, up to the first instruction
/// that writes rbp, and not beyond 4 KiB. Saving rbp on the stack is no use of it. In doubt the
/// answer is yes.
#[must_use]
pub fn uses_frame_pointer_of_caller(code: &Code<'_>) -> bool {
    let body = code.body();
    let body = &body[..body.len().min(LOOKED_AT)];
    let mut factory = None;
    let mut instruction = Instruction::default();
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            // Data, or cut off: nothing is known about what comes behind.
            return false;
        }
        if !mentions(&instruction) || saves(&instruction) {
            continue;
        }
        let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
        let info = factory.info_options(&instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        let mut written = false;
        for used in info.used_registers() {
            if used.register().full_register() != Register::RBP {
                continue;
            }
            match used.access() {
                OpAccess::Write => written = true,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => return true,
            }
        }
        if written {
            return false;
        }
    }
    false
}

/// Whether rbp or a part of it is an operand, in a way that costs less to find out than all that
/// the instruction does.
fn mentions(instruction: &Instruction) -> bool {
    let is_rbp = |register: Register| {
        matches!(
            register,
            Register::RBP | Register::EBP | Register::BP | Register::BPL
        )
    };
    is_rbp(instruction.memory_base())
        || is_rbp(instruction.memory_index())
        || is_rbp(instruction.op0_register())
        || is_rbp(instruction.op1_register())
        || is_rbp(instruction.op2_register())
        || is_rbp(instruction.op3_register())
        || matches!(instruction.mnemonic(), Mnemonic::Leave | Mnemonic::Enter)
}

/// Whether the instruction only puts rbp on the stack.
fn saves(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => instruction.op0_register() == Register::RBP,
        Mnemonic::Mov => {
            instruction.op0_kind() == OpKind::Memory
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None
                && instruction.op1_register() == Register::RBP
        }
        _ => false,
    }
}
