//! Tracks the stack pointer and the frame pointer through a function.

use iced_x86::{
    Code, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

/// Distance of the return address below the CFA.
pub(super) const RETURN_ADDRESS: i32 = 8;

/// The value of rbp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InRbp {
    /// The caller's value.
    Callers,
    /// An address at this distance below the CFA.
    Below(i32),
    Other,
}

/// The stack pointer and the frame pointer before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Distance of the stack pointer below the CFA.
    pub(super) rsp: Option<i32>,
    pub(super) rbp: InRbp,
    /// True if the caller's rbp was saved somewhere.
    pub(super) is_saved: bool,
    /// Distance below the CFA of the saved rbp, if it was pushed.
    pub(super) saved: Option<i32>,
}

impl Frame {
    /// The state at the entry of a function.
    pub(super) const AT_ENTRY: Self = Self {
        rsp: Some(RETURN_ADDRESS),
        rbp: InRbp::Callers,
        is_saved: false,
        saved: None,
    };

    /// Returns the distance below the CFA of an instruction's memory operand.
    pub(super) fn below(&self, instruction: &Instruction) -> Option<i32> {
        if instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return None;
        }
        let base = match (instruction.memory_base(), self.rbp) {
            (Register::RSP, _) => self.rsp?,
            (Register::RBP, InRbp::Below(below)) => below,
            _ => return None,
        };
        base.checked_sub(instruction.memory_displacement64() as i32)
    }

    /// Returns true if the instruction reads or writes the return address, or takes its address. A
    /// push and a pop access the word to which they move the stack pointer: [`step`](Self::step)
    /// handles these.
    pub(super) fn names_return_address(&self, instruction: &Instruction) -> bool {
        // It writes back the value that it has read.
        let is_barrier = instruction.has_lock_prefix()
            && matches!(instruction.mnemonic(), Mnemonic::Or | Mnemonic::Add)
            && matches!(instruction.try_immediate(1), Ok(0));
        if is_barrier || instruction.mnemonic() == Mnemonic::Nop {
            return false;
        }
        let copies_rsp = instruction.op1_register() == Register::RSP
            || instruction.mnemonic() == Mnemonic::Push
                && instruction.op0_register() == Register::RSP;
        // An operand has at least the size of a byte.
        let len = instruction.memory_size().size().max(1);
        let is_in_operand = |below: i32| {
            let end = i64::from(below) - len as i64;
            below > 0 && end < RETURN_ADDRESS.into()
        };
        copies_rsp && self.rsp == Some(RETURN_ADDRESS)
            || self.below(instruction).is_some_and(is_in_operand)
    }

    /// Merges the states of two paths; `None` if the stack pointers differ.
    pub(super) fn meet(self, other: Self) -> Option<Self> {
        (self.rsp == other.rsp).then_some(Self {
            rsp: self.rsp,
            rbp: if self.rbp == other.rbp {
                self.rbp
            } else {
                InRbp::Other
            },
            is_saved: self.is_saved && other.is_saved,
            saved: self.saved.filter(|_| self.saved == other.saved),
        })
    }

    /// Updates the state for an instruction; returns `false` if the caller's rbp is lost.
    pub(super) fn step(
        &mut self,
        instruction: &Instruction,
        factory: &mut Option<InstructionInfoFactory>,
    ) -> bool {
        let [op0, op1] = [instruction.op0_register(), instruction.op1_register()];
        let is_immediate = !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
        match instruction.mnemonic() {
            Mnemonic::Push => {
                self.adjust(instruction.stack_pointer_increment().checked_neg());
                if op0 == Register::RBP && self.rbp == InRbp::Callers {
                    (self.is_saved, self.saved) = (true, self.rsp);
                }
            }
            Mnemonic::Pop => {
                self.adjust(Some(-instruction.stack_pointer_increment()));
                match op0.full_register() {
                    Register::RBP if op0 == Register::RBP => return self.restore(),
                    Register::RBP => return self.write(InRbp::Other),
                    Register::RSP => self.rsp = None,
                    _ => {}
                }
            }
            Mnemonic::Leave => {
                self.rsp = match self.rbp {
                    InRbp::Below(below) if instruction.code() == Code::Leaveq => Some(below - 8),
                    _ => None,
                };
                return self.restore();
            }
            Mnemonic::Enter => {
                (self.rsp, self.rbp, self.is_saved) = (None, InRbp::Other, true);
            }
            Mnemonic::Sub | Mnemonic::Add if op0 == Register::RSP && is_immediate => {
                let by = i32::try_from(instruction.immediate(1).cast_signed()).ok();
                let by = match instruction.mnemonic() {
                    Mnemonic::Add => by.and_then(i32::checked_neg),
                    _ => by,
                };
                self.adjust(by);
            }
            Mnemonic::Lea if op0 == Register::RSP => self.rsp = self.below(instruction),
            Mnemonic::Mov if op0 == Register::RSP => {
                self.rsp = match self.rbp {
                    InRbp::Below(below) if op1 == Register::RBP => Some(below),
                    _ => None,
                };
            }
            Mnemonic::Mov if op0 == Register::RBP && op1 == Register::RSP => {
                return self.write(self.rsp.map_or(InRbp::Other, InRbp::Below));
            }
            Mnemonic::Lea if op0 == Register::RBP => {
                let below = self.below(instruction);
                return self.write(below.map_or(InRbp::Other, InRbp::Below));
            }
            // The register or memory may hold the saved value.
            Mnemonic::Mov if op0 == Register::RBP => return self.restore_or_write(instruction),
            Mnemonic::Mov if op1 == Register::RBP => self.is_saved = true,
            Mnemonic::Xchg if [op0, op1].contains(&Register::RBP) => {
                (self.rbp, self.is_saved) = (InRbp::Other, true);
                if [op0, op1].contains(&Register::RSP) {
                    self.rsp = None;
                }
            }
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Call => {}
            // With another or an unknown stack pointer, the path is never taken.
            Mnemonic::Ret => {
                return self.rbp == InRbp::Callers || self.rsp != Some(RETURN_ADDRESS);
            }
            _ => {
                // pushfq and popfq
                self.adjust(instruction.stack_pointer_increment().checked_neg());
                if mentions(instruction, Register::RSP)
                    && writes(instruction, Register::RSP, factory)
                {
                    self.rsp = None;
                }
                if mentions(instruction, Register::RBP)
                    && writes(instruction, Register::RBP, factory)
                {
                    return self.write(InRbp::Other);
                }
            }
        }
        true
    }

    /// Replaces the value of rbp; returns `false` if the old value was saved nowhere.
    fn write(&mut self, new: InRbp) -> bool {
        self.rbp = new;
        self.is_saved
    }

    /// Handles a load of rbp from memory or from another register.
    fn restore_or_write(&mut self, instruction: &Instruction) -> bool {
        let from_stack = instruction.op1_kind() == OpKind::Memory
            && matches!(
                instruction.memory_base(),
                Register::RSP | Register::RBP | Register::None
            );
        let is_saved_there = match self.below(instruction) {
            Some(below) => self.saved.is_none_or(|saved| saved == below),
            None => true,
        };
        if self.is_saved && from_stack && is_saved_there {
            return self.restore();
        }
        // It may be saved in the register, or in memory at which another register points.
        if self.is_saved && self.saved.is_none() {
            self.rbp = InRbp::Callers;
            return true;
        }
        self.write(InRbp::Other)
    }

    /// Restores the caller's value, if it was saved.
    fn restore(&mut self) -> bool {
        self.rbp = InRbp::Callers;
        self.is_saved
    }

    /// Lowers the stack pointer.
    fn adjust(&mut self, by: Option<i32>) {
        self.rsp = self.rsp.zip(by).and_then(|(rsp, by)| rsp.checked_add(by));
    }
}

/// Returns true if a register or a part of it is an operand, other than as part of an address.
fn mentions(instruction: &Instruction, register: Register) -> bool {
    let operands = 0..instruction.op_count();
    operands
        .into_iter()
        .any(|at| instruction.op_register(at).full_register() == register)
}

/// Returns true if the instruction writes the register.
fn writes(
    instruction: &Instruction,
    register: Register,
    factory: &mut Option<InstructionInfoFactory>,
) -> bool {
    let factory = factory.get_or_insert_with(InstructionInfoFactory::new);
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
    info.used_registers().iter().any(|used| {
        used.register().full_register() == register
            && matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::ReadWrite
                    | OpAccess::CondWrite
                    | OpAccess::ReadCondWrite
            )
    })
}
