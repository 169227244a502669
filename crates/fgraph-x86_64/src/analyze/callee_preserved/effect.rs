//! The registers that one instruction, or a sequence of them, reads and writes.
//!
//! The reads of an instruction depend on earlier instructions in one way: if only the lowest byte
//! of a general register was written, a read of the bits above is rarely meaningful.

use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use super::registers::{
    GENERAL_BITS, GUESS, GUESSED, LOW_BYTE, REST, SEEN, SYSTEM_ARGUMENTS, Set, bits, guess,
};

/// The registers that a sequence of instructions reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// Registers that are read before they are written.
    pub(super) reads: Set,
    /// Registers that are certainly written.
    pub(super) kills: Set,
    /// Registers that may be written, among the guesses.
    pub(super) writes: Set,
}

/// The registers that one instruction reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    /// The registers that are read, except those in `whole`.
    reads: Set,
    /// The general registers that are read by more than a byte, by their position in the set.
    whole: u8,
    kills: Set,
    /// The registers that are written, from [`GUESS`] on, where all of them are.
    writes: u32,
}

impl Access {
    /// Returns true if it may matter that an instruction is in the first block of a function.
    pub(super) fn depends_on_entry(instruction: &Instruction) -> bool {
        instruction.mnemonic() == Mnemonic::Mov && is_stored(instruction)
    }

    /// Computes the access of an instruction. `is_entry` is true in the first block of a function.
    pub(super) fn of(
        instruction: &Instruction,
        is_entry: bool,
        factory: &mut InstructionInfoFactory,
    ) -> Self {
        let mut this = Self::default();
        match instruction.mnemonic() {
            // gcc does not count vzeroupper as a write: the registers hold no values of any code
            // there.
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
    /// Adds the effect of an instruction.
    pub(super) fn add(&mut self, access: &Access) {
        // A read of the bits above a byte that was just written is rarely meaningful.
        let whole = Set::from(access.whole);
        let above_byte = whole & self.kills >> LOW_BYTE;
        let whole = whole & !above_byte;
        let reads = access.reads | above_byte << GUESS | whole << LOW_BYTE | whole << REST;
        self.reads |= reads & !self.kills;
        self.kills |= access.kills;
        self.writes |= Set::from(access.writes) << GUESS;
    }
}

/// A register that is read formally, but not for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weak {
    Neither,
    /// The written value does not depend on it.
    Nothing(Register),
    /// Its value is passed on, or the read may not be of a value at all.
    Guess(Register),
}

/// Returns true if an instruction stores to the stack.
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
        // Pushes like this make room on the stack.
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
