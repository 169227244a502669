//! Tells functions that take an argument in rbp.

use alloc::vec::Vec;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use super::{Code, is_end};

/// Bytes of a function that are looked at.
const LOOKED_AT: usize = 4096;

/// Whether the function seems to use what its caller left in rbp.
///
/// Compilers never write such code; hand-written assembly has routines that take an argument there,
/// and some functions record the caller's registers (`setjmp`). While a traced call runs rbp is not
/// the caller's.
///
/// The answer is found by following every path from the entry, as far as direct branches show the
/// way and not beyond 4 KiB, up to the first instruction that writes rbp or saves it on the stack.
/// A function that saves rbp is going to have a value of its own in it; compilers even have it copy
/// what it finds there when that copy is never used.
#[must_use]
pub fn uses_frame_pointer_of_caller(code: &Code<'_>) -> bool {
    let body = code.body();
    let body = &body[..body.len().min(LOOKED_AT)];
    let mut factory = None;
    let mut instruction = Instruction::default();
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    // One bit per offset that was looked at.
    let mut seen = [0u64; LOOKED_AT / 64];
    let mut paths = Vec::new();
    let mut path = Some(0);
    while let Some(start) = path {
        // Only offsets within the body are put in the list.
        if decoder.set_position(start).is_err() {
            return false;
        }
        decoder.set_ip(start as u64);
        while decoder.can_decode() {
            let offset = decoder.position();
            let (word, bit) = (&mut seen[offset / 64], 1 << (offset % 64));
            if *word & bit != 0 {
                break;
            }
            *word |= bit;
            decoder.decode_out(&mut instruction);
            match use_of(&instruction, &mut factory) {
                Use::Read => return true,
                Use::Replace => break,
                Use::Nothing => {}
            }
            let target = instruction.near_branch_target();
            let flow = instruction.flow_control();
            if matches!(
                flow,
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            ) && target < body.len() as u64
            {
                paths.push(target as usize);
            }
            if is_end(&instruction) || instruction.is_invalid() {
                break;
            }
        }
        path = paths.pop();
    }
    false
}

/// What an instruction does with rbp.
enum Use {
    /// It reads the value.
    Read,
    /// It writes another value, or saves this one in order to.
    Replace,
    Nothing,
}

fn use_of(instruction: &Instruction, factory: &mut Option<InstructionInfoFactory>) -> Use {
    if !mentions(instruction) {
        return Use::Nothing;
    }
    if saves(instruction) || overwrites(instruction) {
        return Use::Replace;
    }
    let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    let mut result = Use::Nothing;
    for used in info.used_registers() {
        if used.register().full_register() == Register::RBP {
            match used.access() {
                OpAccess::Write => result = Use::Replace,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => return Use::Read,
            }
        }
    }
    result
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

/// Whether the instruction is a short form of loading 0 or -1: `and rbp, 0`, `or rbp, -1`.
fn overwrites(instruction: &Instruction) -> bool {
    let value = match instruction.mnemonic() {
        Mnemonic::And => 0,
        Mnemonic::Or => -1,
        _ => return false,
    };
    matches!(instruction.op0_register(), Register::RBP | Register::EBP)
        && matches!(
            instruction.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate8to32
        )
        && instruction.immediate(1).cast_signed() as i32 == value
}
