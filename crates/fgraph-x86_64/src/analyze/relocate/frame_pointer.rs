//! Tells functions that take an argument in rbp.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::Code;
use super::paths::{Step, follow};

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
    let mut factory = None;
    follow::<{ LOOKED_AT / 64 }, _>(code.body(), (), |instruction, ()| {
        use_of(instruction, &mut factory)
    })
}

/// What an instruction does with rbp: [`Step::Found`] if it reads the value, [`Step::End`] if it
/// writes another one, or saves this one in order to.
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
