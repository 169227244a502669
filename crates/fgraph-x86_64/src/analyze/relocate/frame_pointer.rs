//! Detects functions that take an argument in rbp.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::paths::{Step, follow};
use super::window::Code;

/// The number of a function's bytes that are analyzed.
const LOOKED_AT: usize = 4096;

/// Returns true if the function seems to use its caller's value of rbp.
///
/// Compilers never write such code. Hand-written assembly has routines that take an argument there,
/// and some functions record the caller's registers (`setjmp`). During a traced call, rbp is not
/// the caller's.
///
/// The analysis follows every path from the entry, along direct branches and within 4 KiB, up to
/// the first instruction that writes rbp or saves it on the stack. A function that saves rbp is
/// about to use it for its own value; compilers even copy the caller's value then, and never use
/// that copy.
#[must_use]
pub fn uses_frame_pointer_of_caller(code: &Code<'_>) -> bool {
    let mut factory = None;
    follow::<{ LOOKED_AT / 64 }, _>(code.body(), (), |instruction, ()| {
        use_of(instruction, &mut factory)
    })
}

/// Classifies an instruction by its use of rbp: [`Step::Found`] if it reads the value,
/// [`Step::End`] if it writes another one, or saves this one in order to.
fn use_of(instruction: &Instruction, factory: &mut Option<InstructionInfoFactory>) -> Step {
    if !mentions(instruction) {
        return Step::Next;
    }
    if saves(instruction) || overwrites(instruction) {
        return Step::End;
    }
    let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    let mut result = Step::Next;
    for used in info.used_registers() {
        if used.register().full_register() == Register::RBP {
            match used.access() {
                OpAccess::Write => result = Step::End,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => return Step::Found,
            }
        }
    }
    result
}

/// Returns true if rbp or a part of it is an operand. Costs less than computing the instruction's
/// full effect.
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

/// Returns true if the instruction only pushes or stores rbp on the stack.
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

/// Returns true if the instruction is a short form of loading 0 or -1: `and rbp, 0`, `or rbp, -1`.
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
