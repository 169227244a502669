//! Relocates the prologue of a function, to make room for a jump.
//!
//! A function without a NOP is traced by writing `jmp stub` over its first five bytes. The
//! displaced instructions have to run elsewhere: this module computes their relocated copy for
//! another address. It reads bytes and writes bytes; nothing is patched here.
//!
//! ```text
//!   original                                  copy
//!   +---+                                     +---+
//!   | a |  boundary 0      \                  | a |          as it is
//!   +---+                   |  five bytes     +---+------+
//!   |  b  |  boundary 1     |  of jmp         |    b'    |   rip-relative operand adjusted
//!   +---+-+--+              |                 +----+-----+-----+
//!   |   c    |  boundary 4 /                  |       c'       |  short branch made near
//!   +--------+                                +----------------+
//!   |  rest  |  <---------------------------- | jmp rest       |
//!   +--------+                                +----------------+
//! ```
//!
//! # Duties of the patcher
//!
//! A thread may be at a boundary within the five bytes, or arrive there. The patcher makes sure
//! that the jump has an `int3` at each of [`Window::boundaries`] except the first, and that a
//! thread that traps there continues at [`Relocated::resume`].
//!
//! # Guarantees of the relocated prologue
//!
//! - Every register, flag and word of the stack is the same after every displaced instruction.
//! - A called function sees the same return address: a displaced `call` pushes the original's
//!   address and jumps. The return is not predicted then, and faults if the processor keeps a
//!   shadow stack: see [`Window::call`].
//! - The caller's frame can be found: [`Relocated::rows`].
//!
//! A prologue for which these cannot be kept is refused with a [`RelocateError`].
//!
//! # Loops
//!
//! A branch from the body back to the entry would make a call of every round of a loop, and a
//! branch to another boundary of the five bytes would trap. If such a loop is small, makes no calls
//! and cannot be entered in another way, the window is extended to contain the loop, and the
//! relocated copy loops within itself. A jump to an entry that begins to set up the frame is not a
//! loop but a tail call of the function by itself, and counts as a call.

mod branches;
mod convention;
mod frame_pointer;
mod inbound_branches;
mod own_frame;
mod paths;
mod stack_effect;

use alloc::vec::Vec;
use core::fmt;

use iced_x86::{Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::stub::SITE_LEN;
use crate::unwind::{Row, Rule};
use branches::Branch;
use stack_effect::StackEffect;

pub use branches::first_jump;
pub use convention::Convention;
pub use frame_pointer::uses_frame_pointer_of_caller;
pub use inbound_branches::{InboundBranch, branches_to};
pub use own_frame::is_misled_by_a_call;

/// A function, or a part of one, that is to be patched at its first byte.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Text from the patch address on (after an `endbr64`), up to the next function or the end of
    /// the segment, including padding.
    pub bytes: &'a [u8],
    /// Address of the first of the bytes.
    pub address: usize,
    /// The size of the function from there on; 0 if it is unknown.
    pub size: usize,
}

impl<'a> Code<'a> {
    /// Returns the bytes without the padding, as far as that is known. A function ends before the
    /// start of the next one, whatever its size says.
    fn body(&self) -> &'a [u8] {
        let len = match self.size {
            0 => self.bytes.len(),
            size => size.min(self.bytes.len()),
        };
        &self.bytes[..len]
    }
}

/// The reason that a prologue cannot be relocated. Offsets are from the patch address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RelocateError {
    /// The function ends before the jump would, and the bytes after it are not padding.
    TooShort {
        /// The number of bytes that may be overwritten.
        have: usize,
    },
    /// Bytes that are no instruction.
    Undecodable {
        /// The offset of these bytes.
        at: usize,
    },
    /// An `int3`: a breakpoint of a debugger, or of another tool.
    Breakpoint {
        /// The offset of the `int3`.
        at: usize,
    },
    /// An instruction whose effect depends on its address.
    Unmovable {
        /// The offset of the instruction.
        at: usize,
    },
    /// A call that returns into the bytes of the jump.
    Returns {
        /// The offset of the call.
        at: usize,
        /// The offset to which the call returns.
        to: usize,
    },
    /// A branch from elsewhere in the function into the bytes of the jump.
    Target {
        /// The offset of the branch.
        from: usize,
        /// The offset to which the branch leads.
        to: usize,
    },
    /// A branch back to the patch address: every round of a loop would count as a call.
    Loop {
        /// The offset of the branch.
        from: usize,
    },
    /// An instruction after which no register gives the position of the caller's frame.
    StackPointer {
        /// The offset of the instruction.
        at: usize,
    },
    /// A call whose copy would push its return address, while the processor keeps a shadow stack.
    ShadowStack {
        /// The offset of the call.
        at: usize,
    },
    /// An operand that does not reach its target from the address of the copy.
    Reach {
        /// The offset of the instruction.
        at: usize,
        /// The address that the instruction cannot reach.
        target: usize,
    },
    /// The memory for the copy is too small.
    Room {
        /// The number of bytes needed.
        need: usize,
        /// The number of bytes available.
        have: usize,
    },
}

impl fmt::Display for RelocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => write!(
                f,
                "ends after {have} bytes with no padding behind, a jump needs {SITE_LEN}"
            ),
            Self::Undecodable { at } => write!(f, "no instruction at +{at:#x}"),
            Self::Breakpoint { at } => {
                write!(f, "an int3 at +{at:#x}: a breakpoint of a debugger")
            }
            Self::Unmovable { at } => {
                write!(f, "the instruction at +{at:#x} depends on where it is")
            }
            Self::Returns { at, to } => write!(
                f,
                "the call at +{at:#x} returns to +{to:#x}, where the jump would be"
            ),
            Self::Target { from, to } => write!(
                f,
                "the branch at +{from:#x} leads to +{to:#x}, where the jump would be"
            ),
            Self::Loop { from } => write!(
                f,
                "the branch at +{from:#x} leads back to the entry: every round would be a call"
            ),
            Self::StackPointer { at } => write!(
                f,
                "behind the instruction at +{at:#x} the caller's frame cannot be found"
            ),
            Self::ShadowStack { at } => write!(
                f,
                "the copy of the call at +{at:#x} would push its return address, which the \
                 processor's shadow stack does not allow"
            ),
            Self::Reach { at, target } => write!(
                f,
                "the copy of the instruction at +{at:#x} does not reach {target:#x}"
            ),
            Self::Room { need, have } => write!(f, "{need} bytes do not fit in {have}"),
        }
    }
}

impl core::error::Error for RelocateError {}

/// The displaced instructions, with everything needed to write their relocated copy.
#[derive(Debug, Clone)]
pub struct Window {
    address: usize,
    /// The displaced bytes.
    bytes: Vec<u8>,
    /// The number of bytes that are overwritten, at most.
    patched: usize,
    instructions: Vec<Displaced>,
    /// The unwind rule after the last instruction.
    after: Rule,
    /// True if the last instruction never continues to the next.
    ends: bool,
}

/// One displaced instruction.
#[derive(Debug, Clone, Copy)]
struct Displaced {
    offset: usize,
    len: usize,
    kind: Kind,
    /// The unwind rule before the instruction.
    before: Rule,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Means the same at any address.
    Plain,
    /// Contains a rip-relative operand, at the offset `operand` in the instruction.
    RipRelative { operand: usize },
    /// `jmp` to an address.
    Jmp { target: usize },
    /// A conditional jump; `opcode` is the low byte of the opcode of its near form.
    Jcc { opcode: u8, target: usize },
    /// `loop`, `loope`, `loopne`, `jrcxz`, which have no near form: the opcode, and true if it
    /// counts in ecx.
    Count {
        opcode: u8,
        ecx: bool,
        target: usize,
    },
    /// `call` to an address.
    Call { target: usize },
    /// `call` through a register or memory; `opcode` is the offset of the opcode in the
    /// instruction.
    CallIndirect { opcode: usize },
}

/// Bytes of the literal that a displaced call pushes.
const LITERAL_LEN: usize = 8;
/// Bytes of `push qword ptr [rip + d]`.
const PUSH_LEN: usize = 6;
/// Bytes of `jmp rel32`.
const JMP_LEN: usize = 5;

impl Kind {
    /// Returns the number of bytes of the copy; `len` is that of the original. An upper bound for
    /// indirect calls.
    fn copy_len(self, len: usize) -> usize {
        match self {
            Self::Plain | Self::RipRelative { .. } => len,
            Self::Jmp { .. } => JMP_LEN,
            Self::Jcc { .. } => 6,
            Self::Count { ecx, .. } => usize::from(ecx) + 2 + 2 + JMP_LEN,
            Self::Call { .. } => PUSH_LEN + JMP_LEN + LITERAL_LEN,
            // An operand relative to rsp may get a displacement of 32 bits where it had none.
            Self::CallIndirect { .. } => PUSH_LEN + len + 4 + LITERAL_LEN,
        }
    }

    /// Returns the target of a jump that stays in the function, or may stay there.
    fn branches_to(self) -> Option<usize> {
        match self {
            Self::Jmp { target } | Self::Jcc { target, .. } | Self::Count { target, .. } => {
                Some(target)
            }
            _ => None,
        }
    }

    fn is_call(self) -> bool {
        matches!(self, Self::Call { .. } | Self::CallIndirect { .. })
    }
}

/// The result of writing a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// The number of bytes written.
    pub len: usize,
    /// The offset in the copy of the instruction that was at offset k; meaningful only for k in
    /// [`Window::boundaries`].
    pub resume: [u8; SITE_LEN],
    /// The unwind rules of the copy; [`Rule::DEFAULT`] holds before the first row.
    pub rows: Vec<Row>,
}

/// Plans the relocation of a function's prologue for a patch of five bytes: a jump.
///
/// # Errors
///
/// Fails with the reason that the prologue cannot be relocated.
pub fn plan(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, SITE_LEN)
}

/// Plans the relocation for a patch of two bytes: a short jump.
///
/// # Errors
///
/// Fails with the reason that the prologue cannot be relocated.
pub fn plan_short(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, 2)
}

/// Plans the relocation for a patch of one byte: an `int3`, at which every call of the function
/// traps.
///
/// That is slow, but possible where a jump is not: for functions of less than five bytes, and for
/// those that branch back into their first five.
///
/// # Errors
///
/// Fails with the reason that the prologue cannot be relocated.
pub fn plan_breakpoint(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, 1)
}

/// Plans again for a patch of `patched` bytes that displaces the first `len` bytes. Branches into
/// these were checked before, and are not checked now. Returns `None` for code of which other bytes
/// would be displaced.
#[must_use]
pub fn plan_again(code: &Code<'_>, patched: usize, len: usize) -> Option<Window> {
    let window = decode(code, patched, patched.max(len)).ok()?;
    (window.len() == len).then_some(window)
}

/// Plans the relocation for a patch of `patched` bytes.
fn plan_patch(code: &Code<'_>, patched: usize) -> Result<Window, RelocateError> {
    let window = decode(code, patched, patched)?;
    let intruders = window.intruders(code, patched.min(window.len()));
    let Some(first) = intruders.first() else {
        return Ok(window);
    };
    widen(code, patched, &intruders).ok_or(match first.to {
        0 => RelocateError::Loop { from: first.from },
        to => RelocateError::Target {
            from: first.from,
            to,
        },
    })
}

/// The largest size to which a window is extended for a loop.
const WIDEST: usize = 256;

/// Extends a window to contain all loops that the `intruders` close: in the copy they lead to the
/// copy.
///
/// That is right only if the original of the loop no longer runs. So nothing else may lead there:
/// no branch from after the window, no call that returns there, no table of addresses.
fn widen(code: &Code<'_>, patched: usize, intruders: &[Branch]) -> Option<Window> {
    if code.size == 0 || branches::has_table(code.body()) {
        return None;
    }
    let mut intruders = Vec::from(intruders);
    while let Some(end) = intruders.iter().map(|branch| branch.end).max() {
        if end > WIDEST {
            return None;
        }
        let window = decode(code, patched, end).ok()?;
        let (_, but_last) = window.instructions.split_last()?;
        let returns = but_last.iter().any(|one| one.kind.is_call());
        // Control must not leave the window and return, and its frame must be found by rsp alone.
        let rules = window.instructions.iter().map(|one| one.before);
        let moves = rules
            .chain([window.after])
            .any(|rule| !rule.by_stack_pointer());
        // No branch of the copy may lead to the original.
        let leaves = window.instructions.iter().any(|one| {
            let target = one.kind.branches_to();
            let to = target.map(|target| target.wrapping_sub(code.address));
            to.is_some_and(|to| to < window.len() && window.copy_of(to).is_none())
        });
        if returns || moves || leaves {
            return None;
        }
        intruders = window.intruders(code, window.len());
        if intruders.is_empty() {
            return Some(window);
        }
    }
    None
}

/// Decodes the instructions that cover the first `need` bytes, which are at least `patched`, or the
/// whole function with the padding after it.
fn decode(code: &Code<'_>, patched: usize, need: usize) -> Result<Window, RelocateError> {
    let body = code.body();
    let mut decoder = Decoder::with_ip(64, body, code.address as u64, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut instructions: Vec<Displaced> = Vec::new();
    // The state of the stack at the targets of branches that are not decoded yet.
    let mut ahead: Vec<(usize, StackEffect)> = Vec::new();
    let mut stack = StackEffect::at_entry();
    let mut ends = false;
    let mut len = 0;
    while len < need {
        let at = len;
        if at == body.len() || (ends && code.size == 0) {
            // This is the end of the function, or probably so if its size is unknown: the bytes
            // after it must be unused.
            if ends && is_padding(code, at, need) {
                break;
            }
            return Err(RelocateError::TooShort { have: at });
        }
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return Err(match decoder.last_error() {
                DecoderError::NoMoreBytes => RelocateError::TooShort { have: at },
                _ => RelocateError::Undecodable { at },
            });
        }
        len = decoder.position();
        let lost = RelocateError::StackPointer { at };
        let mut joins = ahead
            .iter()
            .filter(|(to, _)| *to == at)
            .map(|(_, stack)| stack);
        if ends {
            // Only a branch leads here; or nothing, if there is no branch.
            stack = joins.next().cloned().unwrap_or_else(StackEffect::at_entry);
        }
        let before = stack.rule().ok_or(lost)?;
        if joins.any(|join| join.rule() != Some(before)) {
            return Err(lost);
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let operand = offsets.displacement_offset();
        let kind = classify(&instruction, &body[at..len], at, operand)?;
        // Code that reads its own bytes would read the patch.
        let read = (instruction.ip_rel_memory_address() as usize).wrapping_sub(code.address);
        if instruction.is_ip_rel_memory_operand()
            && instruction.mnemonic() != Mnemonic::Lea
            && (read < patched || read > usize::MAX - 64)
        {
            return Err(RelocateError::Unmovable { at });
        }
        if kind.is_call() && len < patched {
            return Err(RelocateError::Returns { at, to: len });
        }
        instructions.push(Displaced {
            offset: at,
            len: len - at,
            kind,
            before,
        });
        stack.step(&instruction);
        ends = is_end(&instruction);
        if !ends && stack.rule().is_none() {
            return Err(lost);
        }
        if let Some(target) = kind.branches_to() {
            let to = target.wrapping_sub(code.address);
            let back = instructions.iter().find(|one| one.offset == to);
            if back.is_some_and(|back| Some(back.before) != stack.rule()) {
                return Err(lost);
            }
            ahead.push((to, stack.clone()));
        }
    }
    let window = Window {
        address: code.address,
        bytes: Vec::from(&body[..len]),
        patched,
        instructions,
        after: stack.rule().unwrap_or_default(),
        ends,
    };
    window.check_own_branches()?;
    Ok(window)
}

/// Classifies an instruction by the way to copy it; `offset` is its own, `displacement` that of its
/// displacement within it.
fn classify(
    instruction: &Instruction,
    bytes: &[u8],
    offset: usize,
    displacement: usize,
) -> Result<Kind, RelocateError> {
    let unmovable = RelocateError::Unmovable { at: offset };
    let prefixes = Prefixes::of(bytes);
    let flow = instruction.flow_control();
    // Vendors differ in the meaning of a 16-bit branch in 64-bit mode.
    if prefixes.operand16 && flow != FlowControl::Next {
        return Err(unmovable);
    }
    let target = instruction.near_branch_target() as usize;
    if instruction.is_jmp_short_or_near() {
        return Ok(Kind::Jmp { target });
    }
    if instruction.is_jcc_short_or_near() {
        // 70 to 7f, or 0f 80 to 0f 8f: the condition is in the low four bits.
        let opcode = bytes[prefixes.len];
        let condition = match opcode {
            0x0f => bytes[prefixes.len + 1],
            short => short,
        };
        let opcode = 0x80 | (condition & 0xf);
        return Ok(Kind::Jcc { opcode, target });
    }
    if instruction.is_loop() || instruction.is_loopcc() || instruction.is_jcx_short() {
        return Ok(Kind::Count {
            opcode: bytes[prefixes.len],
            ecx: prefixes.address32,
            target,
        });
    }
    if instruction.is_call_near() {
        return Ok(Kind::Call { target });
    }
    if instruction.is_call_near_indirect() {
        let operand = Operand::of(bytes, prefixes.len + 1).ok_or(unmovable)?;
        // The push comes before the operand is read. So the operand must not be rsp itself, nor in
        // the word that the push writes.
        let hidden = match operand {
            Operand::Register { rsp } => rsp,
            Operand::Rsp {
                displacement,
                index,
                ..
            } => index || prefixes.address32 || (-15..0).contains(&displacement),
            Operand::RipRelative => prefixes.address32,
            Operand::Memory => false,
        };
        if hidden {
            return Err(unmovable);
        }
        return Ok(Kind::CallIndirect {
            opcode: prefixes.len,
        });
    }
    match flow {
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => {
            return Err(RelocateError::Breakpoint { at: offset });
        }
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => {
            return Err(unmovable);
        }
        _ if instruction.is_jmp_far()
            || instruction.is_jmp_far_indirect()
            || instruction.is_call_far()
            || instruction.is_call_far_indirect()
            || instruction.mnemonic() == Mnemonic::Retf =>
        {
            return Err(unmovable);
        }
        // Any other kind of branch.
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            return Err(unmovable);
        }
        _ => {}
    }
    if instruction.is_ip_rel_memory_operand() {
        // An operand relative to eip cannot reach beyond 4 GiB.
        if prefixes.address32 {
            return Err(unmovable);
        }
        return Ok(Kind::RipRelative {
            operand: displacement,
        });
    }
    Ok(Kind::Plain)
}

/// Returns true if the next instruction is not run after this one.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

/// Returns true if the bytes from `end` up to `need` exist and have no meaning.
fn is_padding(code: &Code<'_>, end: usize, need: usize) -> bool {
    let Some(padding) = code.bytes.get(end..) else {
        return false;
    };
    if padding.len() < need - end {
        return false;
    }
    // Zeros may be data. As padding they reach up to the next function, or to an alignment.
    let to_alignment = (code.address + end).wrapping_neg() % 16;
    let aligned = &padding[..padding.len().min(to_alignment)];
    if aligned.len() >= need - end && aligned.iter().all(|&byte| byte == 0) {
        return true;
    }
    let mut decoder = Decoder::new(64, padding, DecoderOptions::NONE);
    while decoder.position() < need - end {
        if !matches!(decoder.decode().mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return false;
        }
    }
    true
}

impl Window {
    /// Returns the number of displaced bytes: at least as many as are overwritten, unless the
    /// function ends before.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns false: there is at least one instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a bit mask: bit k, for k from 0 to 4, is set if an instruction of the original
    /// starts at byte k.
    ///
    /// Bit 0 is always set, and is the only one after [`plan_breakpoint`]. Padding after the end of
    /// the function does not count: it never runs.
    #[must_use]
    pub fn boundaries(&self) -> u8 {
        self.instructions
            .iter()
            .filter(|instruction| instruction.offset < self.patched)
            .fold(0, |mask, instruction| mask | 1 << instruction.offset)
    }

    /// Returns the offset of the first call. Its copy pushes the return address, which is not on
    /// the processor's shadow stack: if there is one, the return faults.
    #[must_use]
    pub fn call(&self) -> Option<usize> {
        let mut calls = self.instructions.iter().filter(|one| one.kind.is_call());
        calls.next().map(|call| call.offset)
    }

    /// Returns the most bytes that the copy takes.
    #[must_use]
    pub fn relocated_len(&self) -> usize {
        let copies = self.instructions.iter();
        copies
            .map(|instruction| instruction.kind.copy_len(instruction.len))
            .sum::<usize>()
            + if self.goes_on() { JMP_LEN } else { 0 }
    }

    /// Returns true if the copy ends with a jump back.
    fn goes_on(&self) -> bool {
        // A displaced call returns to the original itself.
        let call = self
            .instructions
            .last()
            .is_some_and(|last| last.kind.is_call());
        !self.ends && !call
    }

    /// Returns the branches from after the window that lead into its first `reach` bytes, and must
    /// not.
    fn intruders(&self, code: &Code<'_>, reach: usize) -> Vec<Branch> {
        let mut branches = branches::leading_back(code.body(), self.len(), reach);
        // Calls of the entry are recursion. So are jumps if the function sets up its frame there:
        // each round of a loop would do that again.
        let sets_up = self.sets_up_frame();
        branches.retain(|branch| branch.to != 0 || !(branch.is_call || sets_up));
        branches
    }

    /// Returns true if the first instructions, up to any branch, move the stack pointer.
    fn sets_up_frame(&self) -> bool {
        let straight = self
            .instructions
            .iter()
            .take_while(|one| matches!(one.kind, Kind::Plain | Kind::RipRelative { .. }));
        let next = self.instructions.iter().skip(1).map(|one| one.before);
        straight
            .zip(next.chain([self.after]))
            .any(|(_, after)| after.offset != Rule::DEFAULT.offset)
    }

    /// Checks the targets of displaced branches.
    fn check_own_branches(&self) -> Result<(), RelocateError> {
        for instruction in &self.instructions {
            let (target, is_call) = match (instruction.kind, instruction.kind.branches_to()) {
                (_, Some(target)) => (target, false),
                (Kind::Call { target }, _) => (target, true),
                _ => continue,
            };
            let to = target.wrapping_sub(self.address);
            let within = to != 0 && to < self.patched.min(self.len());
            // A call would have to return to the copy of the instructions that it skips.
            if within && (is_call || self.copy_of(to).is_none()) {
                let from = instruction.offset;
                return Err(RelocateError::Target { from, to });
            }
        }
        Ok(())
    }

    /// Returns the offset in the copy of the instruction at `offset`; `None` if there is none.
    fn copy_of(&self, offset: usize) -> Option<usize> {
        let mut start = 0;
        for instruction in &self.instructions {
            if instruction.offset == offset {
                return Some(start);
            }
            start += instruction.kind.copy_len(instruction.len);
        }
        None
    }

    /// Writes the copy for the address `at` to the start of `out`.
    ///
    /// # Errors
    ///
    /// Fails with [`RelocateError::Reach`] if an operand does not reach its target from there, and
    /// with [`RelocateError::Room`] if `out` is shorter than [`Self::relocated_len`].
    pub fn relocate(&self, at: usize, out: &mut [u8]) -> Result<Relocated, RelocateError> {
        let need = self.relocated_len();
        let have = out.len();
        let out = out.get_mut(..need);
        let mut writer = Writer {
            out: out.ok_or(RelocateError::Room { need, have })?,
            at,
            len: 0,
            instruction: 0,
        };
        let mut relocated = Relocated {
            len: 0,
            resume: [0; SITE_LEN],
            rows: Vec::new(),
        };
        let mut rows = RowList::default();
        for instruction in &self.instructions {
            writer.instruction = instruction.offset;
            if let Some(resume) = relocated.resume.get_mut(instruction.offset) {
                // At most four instructions of 15 bytes, in their longest form, come before.
                *resume = writer.len as u8;
            }
            rows.set(writer.len, instruction.before);
            if instruction.kind.is_call() {
                rows.set(writer.len + PUSH_LEN, instruction.before.pushed());
            }
            self.copy(instruction, &mut writer)?;
        }
        if self.goes_on() {
            rows.set(writer.len, self.after);
            writer.instruction = self.len();
            writer.put(&[0xe9]);
            writer.relative(self.address.wrapping_add(self.len()), 0)?;
        }
        relocated.len = writer.len;
        relocated.rows = rows.rows;
        Ok(relocated)
    }

    fn copy(&self, instruction: &Displaced, writer: &mut Writer<'_>) -> Result<(), RelocateError> {
        let bytes = &self.bytes[instruction.offset..][..instruction.len];
        let next = self
            .address
            .wrapping_add(instruction.offset + instruction.len);
        // A branch within the window stays within the copy.
        let follow = |target: usize| {
            self.copy_of(target.wrapping_sub(self.address))
                .map_or(target, |start| writer.at.wrapping_add(start))
        };
        match instruction.kind {
            Kind::Plain => writer.put(bytes),
            Kind::RipRelative { operand } => {
                let target = next.wrapping_add_signed(displacement(bytes, operand));
                writer.put(&bytes[..operand]);
                let behind = &bytes[operand + 4..];
                writer.relative(target, behind.len())?;
                writer.put(behind);
            }
            Kind::Jmp { target } => {
                let target = follow(target);
                writer.put(&[0xe9]);
                writer.relative(target, 0)?;
            }
            Kind::Jcc { opcode, target } => {
                let target = follow(target);
                writer.put(&[0x0f, opcode]);
                writer.relative(target, 0)?;
            }
            Kind::Count {
                opcode,
                ecx,
                target,
            } => {
                // loop over the jump that is taken otherwise:
                //   loop +2; jmp short +5; jmp target
                let target = follow(target);
                if ecx {
                    writer.put(&[0x67]);
                }
                writer.put(&[opcode, 2, 0xeb, JMP_LEN as u8, 0xe9]);
                writer.relative(target, 0)?;
            }
            Kind::Call { target } => {
                // The literal follows the jump.
                writer.push_literal(JMP_LEN);
                writer.put(&[0xe9]);
                writer.relative(target, 0)?;
                writer.put(&(next as u64).to_le_bytes());
            }
            Kind::CallIndirect { opcode } => {
                let start = opcode + 1;
                let mut jmp = [0; 16 + 4];
                let mut len = bytes.len();
                jmp[..len].copy_from_slice(bytes);
                // ff /2 is call, ff /4 is jmp.
                jmp[start] = (bytes[start] & !0x38) | 4 << 3;
                let operand = Operand::of(bytes, start);
                if let Some(Operand::Rsp { displacement, .. }) = operand {
                    // rsp is 8 less than at the call. Mode 2: a displacement of 32 bits.
                    jmp[start] = (jmp[start] & 0x3f) | 0x80;
                    let displacement = displacement.wrapping_add(8).to_le_bytes();
                    jmp[start + 2..start + 6].copy_from_slice(&displacement);
                    len = start + 6;
                }
                writer.push_literal(len);
                if operand == Some(Operand::RipRelative) {
                    let target = next.wrapping_add_signed(displacement(bytes, start + 1));
                    writer.put(&jmp[..=start]);
                    writer.relative(target, 0)?;
                } else {
                    writer.put(&jmp[..len]);
                }
                writer.put(&(next as u64).to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Collects the rows of a copy.
#[derive(Debug, Default)]
struct RowList {
    rows: Vec<Row>,
    /// The rule of the last row.
    rule: Rule,
}

impl RowList {
    /// Sets the rule that holds from `offset` on.
    fn set(&mut self, offset: usize, rule: Rule) {
        if rule != self.rule {
            self.rows.push(Row { offset, rule });
            self.rule = rule;
        }
    }
}

/// Returns the 32 bits at `offset` of an instruction, sign-extended.
fn displacement(bytes: &[u8], offset: usize) -> isize {
    let bytes = &bytes[offset..offset + 4];
    i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as isize
}

/// Appends bytes. They always fit, because [`Window::relocated_len`] bytes were reserved.
struct Writer<'a> {
    out: &'a mut [u8],
    /// The address of the first byte of `out`.
    at: usize,
    len: usize,
    /// The instruction being copied, for errors.
    instruction: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends four bytes: the distance to `target` from the end of the instruction, which is
    /// `behind` bytes after theirs.
    fn relative(&mut self, target: usize, behind: usize) -> Result<(), RelocateError> {
        let end = self.at.wrapping_add(self.len + 4 + behind);
        let distance = target.wrapping_sub(end).cast_signed();
        let distance = i32::try_from(distance).map_err(|_| RelocateError::Reach {
            at: self.instruction,
            target,
        })?;
        self.put(&distance.to_le_bytes());
        Ok(())
    }

    /// Appends `push qword ptr [rip + distance]`.
    fn push_literal(&mut self, distance: usize) {
        self.put(&[0xff, 0x35]);
        // The distance is the length of one instruction.
        self.put(&(distance as u32).to_le_bytes());
    }
}

/// The prefixes of an instruction.
#[derive(Debug, Clone, Copy)]
struct Prefixes {
    /// The number of prefix bytes.
    len: usize,
    /// True for 66 without a REX.W that overrides it.
    operand16: bool,
    /// True for 67.
    address32: bool,
}

impl Prefixes {
    fn of(bytes: &[u8]) -> Self {
        let is_prefix = |byte: &u8| {
            matches!(
                byte,
                0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
            )
        };
        let len = bytes.iter().take_while(|byte| is_prefix(byte)).count();
        let prefixes = &bytes[..len];
        // REX counts only directly before the opcode; W is its bit 3.
        let wide = prefixes.last().is_some_and(|byte| byte & 0xf8 == 0x48);
        Self {
            len,
            operand16: prefixes.contains(&0x66) && !wide,
            address32: prefixes.contains(&0x67),
        }
    }
}

/// The operand of an indirect call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    Register { rsp: bool },
    RipRelative,
    Rsp { displacement: i32, index: bool },
    Memory,
}

impl Operand {
    /// Reads the ModRM byte at `offset` of an instruction; the opcode is before it.
    fn of(bytes: &[u8], offset: usize) -> Option<Self> {
        let modrm = *bytes.get(offset)?;
        let (mode, rm) = (modrm >> 6, modrm & 7);
        // A REX prefix is directly before the opcode.
        let rex = offset
            .checked_sub(2)
            .map_or(0, |at| bytes[at])
            .wrapping_sub(0x40);
        let [base, index] = [1, 2].map(|bit| if rex < 16 && rex & bit != 0 { 8 } else { 0 });
        Some(match (mode, rm) {
            (3, _) => Self::Register {
                rsp: rm | base == 4,
            },
            (0, 5) => Self::RipRelative,
            (_, 4) => {
                let sib = *bytes.get(offset + 1)?;
                if (sib & 7) | base != 4 {
                    return Some(Self::Memory);
                }
                let displacement = match mode {
                    0 => 0,
                    1 => i32::from(bytes.get(offset + 2)?.cast_signed()),
                    _ => i32::try_from(displacement(bytes.get(..offset + 6)?, offset + 2)).ok()?,
                };
                Self::Rsp {
                    displacement,
                    index: ((sib >> 3) & 7) | index != 4,
                }
            }
            _ => Self::Memory,
        })
    }
}

#[cfg(test)]
mod tests;
