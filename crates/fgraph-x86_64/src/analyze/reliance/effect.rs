//! What one instruction, or a run of them, reads and writes.
//!
//! What an instruction reads depends on those before it in one way: where only the lowest byte of a
//! general register has been written, what is above is seldom meant.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::registers::{
    GENERAL_BITS, GUESS, GUESSED, LOW_BYTE, REST, SEEN, SYSTEM_ARGUMENTS, Set, bits, guess,
};

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

/// What one instruction reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    /// Read, but for those of `whole`.
    reads: Set,
    /// The general registers of which more than a byte is read, by their position in the set.
    whole: u8,
    kills: Set,
    /// From [`GUESS`] on, where all of them are.
    writes: u32,
}

impl Access {
    /// Whether it may make a difference that an instruction is in the first block of a function.
    pub(super) fn depends_on_entry(instruction: &Instruction) -> bool {
        instruction.mnemonic() == Mnemonic::Mov && is_stored(instruction)
    }

    /// That of an instruction. `is_entry` says whether it is in the first block of a function.
    pub(super) fn of(
        instruction: &Instruction,
        is_entry: bool,
        factory: &mut InstructionInfoFactory,
    ) -> Self {
        let mut this = Self::default();
        match instruction.mnemonic() {
            // vzeroupper is for gcc no write: what is written holds no value of any code.
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Vzeroupper => return this,
            Mnemonic::Syscall => this.reads |= SYSTEM_ARGUMENTS,
            Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Sysenter => {
                this.reads |= GUESSED;
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
            | Mnemonic::Xsaves64 => this.reads |= SEEN,
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
            if reads && weak != Weak::Nothing(register) {
                let (seen, _) = bits(register);
                let both = (seen >> LOW_BYTE & seen >> REST & GENERAL_BITS) as u8;
                if weak == Weak::Guess(register) {
                    this.reads |= guess(register);
                } else if both != 0 {
                    this.whole |= both;
                } else {
                    this.reads |= seen;
                }
            }
            let always = matches!(access, OpAccess::Write | OpAccess::ReadWrite);
            if always || matches!(access, OpAccess::CondWrite | OpAccess::ReadCondWrite) {
                this.writes |= (guess(register) >> GUESS) as u32;
            }
            if always {
                let (bits, whole) = bits(register);
                this.kills |= bits;
                if whole || register.is_xmm() {
                    this.kills |= guess(register);
                }
            }
        }
        this
    }
}

impl Effect {
    /// Adds what an instruction does.
    pub(super) fn add(&mut self, access: &Access) {
        // What is above a byte that has just been written is seldom meant.
        let whole = Set::from(access.whole);
        let above_byte = whole & self.kills >> LOW_BYTE;
        let whole = whole & !above_byte;
        let reads = access.reads | above_byte << GUESS | whole << LOW_BYTE | whole << REST;
        self.reads |= reads & !self.kills;
        self.kills |= access.kills;
        self.writes |= Set::from(access.writes) << GUESS;
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

/// Whether an instruction writes to the stack.
fn is_stored(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && matches!(instruction.memory_base(), Register::RSP | Register::RBP)
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
        Mnemonic::Mov if is_entry && is_stored(instruction) => Weak::Guess(from),
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
