//! Tracks the position of the caller's frame while a function sets up its own.
//!
//! An unwinder that stops between two displaced instructions must find the canonical frame address
//! (CFA: rsp before the call) and the caller's registers. So each instruction's effect is computed
//! on the registers from which the CFA can be computed, and on the saved registers.

use iced_x86::{
    Code, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::unwind::{CALLEE_SAVED, Rule};

/// The state before an instruction.
#[derive(Debug, Clone)]
pub(super) struct StackEffect {
    /// The distance below the CFA to which each register points, by the number of the register in
    /// instructions.
    below: [Option<i32>; 16],
    /// True if the register holds its value at entry, by index in [`CALLEE_SAVED`].
    intact: [bool; CALLEE_SAVED.len()],
    /// The distance below the CFA at which the register is saved, by index in [`CALLEE_SAVED`].
    saved: [Option<i32>; CALLEE_SAVED.len()],
}

const RSP: usize = 4;
const RBP: usize = 5;

/// The DWARF numbers of registers, by their numbers in instructions.
const DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

impl StackEffect {
    /// Returns the state at the entry of a function: the return address is on top of the stack.
    pub(super) fn at_entry() -> Self {
        let mut below = [None; 16];
        below[RSP] = Some(8);
        Self {
            below,
            intact: [true; CALLEE_SAVED.len()],
            saved: [None; CALLEE_SAVED.len()],
        }
    }

    /// Returns the unwind rule; `None` if no register gives the CFA.
    pub(super) fn rule(&self) -> Option<Rule> {
        let others = (0..16).filter(|&number| number != RSP && number != RBP);
        let (number, below) = [RSP, RBP]
            .into_iter()
            .chain(others)
            .find_map(|number| Some((number, self.below[number]?)))
            // DWARF encodes negative offsets in words only.
            .filter(|(_, below)| *below >= 0 || below % 8 == 0)?;
        Some(Rule {
            register: DWARF[number],
            offset: below,
            returns_to: None,
            saved: self.saved.map(|below| {
                // A save outside of a stack slot is not recorded: such code saves no register.
                let slot = below.filter(|below| *below > 8 && below % 8 == 0);
                slot.map_or(0, |below| u16::try_from(below / 8).unwrap_or(0))
            }),
        })
    }

    /// Updates the state for `instruction`.
    pub(super) fn step(&mut self, instruction: &Instruction) {
        let [op0, op1] = [0, 1].map(|operand| register(instruction, operand));
        let immediate = || i32::try_from(instruction.immediate(1).cast_signed()).ok();
        match (instruction.mnemonic(), op0, op1) {
            (Mnemonic::Push, pushed, _) => {
                self.adjust(instruction.stack_pointer_increment().checked_neg());
                if let Some(number) = pushed {
                    self.save(number, self.below[RSP]);
                }
            }
            (Mnemonic::Pop, Some(number), _) => {
                let from = self.below[RSP];
                self.adjust(Some(-8));
                self.restore(number, from);
            }
            (Mnemonic::Sub, Some(RSP), _) if immediates(instruction) => {
                self.adjust(immediate());
            }
            (Mnemonic::Add, Some(RSP), _) if immediates(instruction) => {
                self.adjust(immediate().and_then(i32::checked_neg));
            }
            _ if instruction.code() == Code::Leaveq => {
                let from = self.below[RBP];
                self.below[RSP] = from;
                self.adjust(Some(-8));
                self.restore(RBP, from);
            }
            (Mnemonic::Mov, Some(to), Some(from)) => {
                let below = self.below[from];
                self.write(to);
                self.below[to] = below;
            }
            (Mnemonic::Lea, Some(to), _) => {
                let below = self.address(instruction);
                self.write(to);
                self.below[to] = below;
            }
            (Mnemonic::Mov, None, Some(number))
                if instruction.op0_kind() == OpKind::Memory
                    && !matches!(instruction.memory_segment(), Register::FS | Register::GS) =>
            {
                self.save(number, self.address(instruction));
            }
            _ => self.other(instruction),
        }
    }

    /// Handles an instruction that is none of the idioms of prologues.
    fn other(&mut self, instruction: &Instruction) {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        let mut moved = false;
        for used in info.used_registers() {
            let register = used.register().full_register();
            let read = matches!(
                used.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess | OpAccess::None
            );
            if register == Register::RSP {
                moved |= !read;
            } else if register.is_gpr64() && !read {
                self.write(register.number());
            }
        }
        let call = instruction.is_call_near() || instruction.is_call_near_indirect();
        if call || instruction.mnemonic() == Mnemonic::Ret || !moved {
            // The next instruction runs after the call has returned, or is reached from elsewhere.
            return;
        }
        self.adjust(match instruction.stack_pointer_increment() {
            0 => None,
            increment => increment.checked_neg(),
        });
        if instruction.mnemonic() == Mnemonic::Enter {
            // It writes more of the stack than the increment says; no compiler uses it.
            self.below[RSP] = None;
        }
    }

    /// Lowers rsp by `bytes`.
    fn adjust(&mut self, bytes: Option<i32>) {
        self.below[RSP] = self.below[RSP]
            .zip(bytes)
            .and_then(|(a, b)| a.checked_add(b));
    }

    /// Returns the distance of the memory operand below the CFA.
    fn address(&self, instruction: &Instruction) -> Option<i32> {
        let base = gpr64(instruction.memory_base())?;
        let plain = instruction.memory_index() == Register::None;
        let displacement = instruction.memory_displacement64().cast_signed();
        let displacement = i32::try_from(displacement).ok()?;
        self.below[base]
            .filter(|_| plain)
            .and_then(|below| below.checked_sub(displacement))
    }

    /// Handles a new value of a register.
    fn write(&mut self, number: usize) {
        self.below[number] = None;
        if let Some(index) = callee_saved(number) {
            self.intact[index] = false;
        }
    }

    /// Handles a store of a register at a distance below the CFA.
    fn save(&mut self, number: usize, below: Option<i32>) {
        if let Some(index) = callee_saved(number)
            && self.intact[index]
            && self.saved[index].is_none()
        {
            self.saved[index] = below;
        }
    }

    /// Handles a load of a register from a distance below the CFA.
    fn restore(&mut self, number: usize, below: Option<i32>) {
        self.write(number);
        if let Some(index) = callee_saved(number)
            && below.is_some()
            && self.saved[index] == below
        {
            self.saved[index] = None;
            self.intact[index] = true;
        }
    }
}

/// Returns the number of the 64-bit register that is this operand.
fn register(instruction: &Instruction, operand: u32) -> Option<usize> {
    if operand >= instruction.op_count() || instruction.op_kind(operand) != OpKind::Register {
        return None;
    }
    gpr64(instruction.op_register(operand))
}

fn gpr64(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

/// Returns true if the second operand is an immediate, sign-extended to 64 bits.
fn immediates(instruction: &Instruction) -> bool {
    matches!(
        instruction.op1_kind(),
        OpKind::Immediate8to64 | OpKind::Immediate32to64
    )
}

fn callee_saved(number: usize) -> Option<usize> {
    CALLEE_SAVED
        .iter()
        .position(|&dwarf| dwarf == DWARF[number])
}
