//! What one instruction, or a run of them, reads and writes.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::registers::{GUESSED, LOW_BYTE, REST, SEEN, SYSTEM_ARGUMENTS, Set, bits, guess};

/// What a run of instructions reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// Read before anything is written there.
    pub(super) reads: Set,
    /// Registers that are written, whatever happens.
    pub(super) kills: Set,
    /// Registers that are perhaps written: guesses.
    pub(super) writes: Set,
}

impl Effect {
    fn read(&mut self, registers: Set) {
        self.reads |= registers & !self.kills;
    }

    /// Adds an instruction. `is_entry` says whether it is in the first block of a function.
    pub(super) fn add(
        &mut self,
        instruction: &Instruction,
        is_entry: bool,
        factory: &mut InstructionInfoFactory,
    ) {
        match instruction.mnemonic() {
            // vzeroupper is for gcc no write: what is written holds no value of any code.
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Vzeroupper => return,
            Mnemonic::Syscall => self.read(SYSTEM_ARGUMENTS),
            Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Sysenter => {
                self.read(GUESSED);
            }
            Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64 => self.read(SEEN),
            _ => {}
        }
        let weak = weak_reads(instruction, is_entry);
        let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let (access, register) = (used.access(), used.register());
            let reads = matches!(
                access,
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if !reads || weak == Weak::Nothing(register) {
                continue;
            }
            let (seen, _) = bits(register);
            // What is above a byte that has just been written is seldom meant.
            let rest = seen >> REST & 0x7f;
            let above_byte = rest != 0 && seen >> LOW_BYTE & 0x7f & self.kills >> LOW_BYTE != 0;
            if above_byte || weak == Weak::Guess(register) {
                self.read(guess(register));
            } else {
                self.read(seen);
            }
        }
        for used in info.used_registers() {
            let always = matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite);
            if always || matches!(used.access(), OpAccess::CondWrite | OpAccess::ReadCondWrite) {
                self.writes |= guess(used.register());
            }
            if always {
                let (bits, whole) = bits(used.register());
                self.kills |= bits;
                if whole || used.register().is_xmm() {
                    self.kills |= guess(used.register());
                }
            }
        }
    }
}

/// Of which register nothing is read, or not for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weak {
    Neither,
    /// What is written does not depend on it.
    Nothing(Register),
    /// It is handed on, or what is read stays where it is.
    Guess(Register),
}

fn weak_reads(instruction: &Instruction, is_entry: bool) -> Weak {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let both = instruction.op1_kind() == OpKind::Register;
    match instruction.mnemonic() {
        Mnemonic::Pcmpeqb | Mnemonic::Pcmpeqw | Mnemonic::Pcmpeqd | Mnemonic::Pcmpeqq
            if both && to == from =>
        {
            Weak::Nothing(to)
        }
        Mnemonic::Or if matches!(instruction.try_immediate(1), Ok(ones) if ones as u32 == !0) => {
            Weak::Nothing(to)
        }
        Mnemonic::Sbb if both && to == from => Weak::Nothing(to),
        // Room on the stack is made like this.
        Mnemonic::Push => Weak::Guess(to),
        Mnemonic::Mov
            if is_entry
                && instruction.op0_kind() == OpKind::Memory
                && matches!(instruction.memory_base(), Register::RSP | Register::RBP) =>
        {
            Weak::Guess(from)
        }
        Mnemonic::Bsf
        | Mnemonic::Bsr
        | Mnemonic::Movhlps
        | Mnemonic::Movss
        | Mnemonic::Movsd
        | Mnemonic::Cvtsi2ss
        | Mnemonic::Cvtsi2sd
        | Mnemonic::Cvtss2sd
        | Mnemonic::Cvtsd2ss
        | Mnemonic::Sqrtss
        | Mnemonic::Sqrtsd
        | Mnemonic::Roundss
        | Mnemonic::Roundsd
            if to != from =>
        {
            Weak::Guess(to)
        }
        _ => Weak::Neither,
    }
}
