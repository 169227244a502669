//! Tells functions that take an argument in rbp.

use alloc::vec::Vec;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use super::Code;

/// Bytes of a function that are looked at.
const LOOKED_AT: usize = 4096;

/// Offsets that a walk came by.
type Seen = [u64; LOOKED_AT / 64];

/// What an instruction does with rbp.
enum Use {
    /// It reads the caller's value.
    Read,
    /// It replaces the caller's value.
    Write,
    /// It only puts the caller's value on the stack.
    Save,
    Nothing,
}

/// Whether the function seems to use what its caller left in rbp.
///
/// Compilers never write such code; hand-written assembly has routines that take an argument there,
/// and some look at the caller's frame record. While a traced call runs rbp is not the caller's.
///
/// The answer is found by following every path from the entry up to the first instruction that
/// writes rbp, as far as direct branches show the way and not beyond 4 KiB. Saving rbp on the stack
/// is no use of it. In doubt the answer is yes, but for one thing: a function that has saved rbp
/// and then calls another is not followed behind that call, which may be one that never returns.
#[must_use]
pub fn uses_frame_pointer_of_caller(code: &Code<'_>) -> bool {
    let body = code.body();
    let body = &body[..body.len().min(LOOKED_AT)];
    let mut factory = None;
    let mut instruction = Instruction::default();
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    // By whether rbp was saved on the way.
    let mut seen: [Seen; 2] = [[0; _]; 2];
    let mut paths = Vec::new();
    let mut path = Some((0, false));
    while let Some((start, mut saved)) = path {
        // Only offsets within the body are put in the list.
        if decoder.set_position(start).is_err() {
            return false;
        }
        decoder.set_ip(start as u64);
        while decoder.can_decode() {
            let offset = decoder.position();
            let (word, bit) = (offset / 64, 1 << (offset % 64));
            let seen = &mut seen[usize::from(saved)][word];
            if *seen & bit != 0 {
                break;
            }
            *seen |= bit;
            decoder.decode_out(&mut instruction);
            match use_of(&instruction, &mut factory) {
                Use::Read => return true,
                Use::Write => break,
                Use::Save => saved = true,
                Use::Nothing => {}
            }
            let target = instruction.near_branch_target();
            let flow = instruction.flow_control();
            if matches!(
                flow,
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            ) && target < body.len() as u64
            {
                paths.push((target as usize, saved));
            }
            match flow {
                FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Exception => break,
                FlowControl::Call | FlowControl::IndirectCall if saved => break,
                _ if instruction.is_invalid() => break,
                _ => {}
            }
        }
        path = paths.pop();
    }
    false
}

fn use_of(instruction: &Instruction, factory: &mut Option<InstructionInfoFactory>) -> Use {
    if !mentions(instruction) {
        return Use::Nothing;
    }
    if saves(instruction) {
        return Use::Save;
    }
    let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    let mut result = Use::Nothing;
    for used in info.used_registers() {
        if used.register().full_register() == Register::RBP {
            match used.access() {
                OpAccess::Write => result = Use::Write,
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
