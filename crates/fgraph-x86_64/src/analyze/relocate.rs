//! Moves the first instructions of a function out of the way of a jump.
//!
//! A function without a NOP is traced by writing `jmp stub` over its first five bytes. The
//! instructions that are there have to run elsewhere: this module says what a copy of them at
//! another address looks like. It reads bytes and writes bytes; nothing is patched here.
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
//! # What the patcher has to do
//!
//! A thread may stand, or arrive, at a boundary within the five bytes. The patcher sees to it that
//! the jump has an `int3` at each of [`Window::boundaries`] but the first, and that a thread that
//! traps there goes on at [`Relocated::resume`].
//!
//! # What is the same in the copy
//!
//! - Every register, flag and word of the stack after every displaced instruction.
//! - The return address that a called function sees: a displaced `call` pushes the original's
//!   address and jumps. The return is not predicted then, and faults where the processor keeps a
//!   shadow stack: see [`Window::call`].
//! - Where the caller's frame is: [`Relocated::rows`].
//!
//! What cannot be kept is refused with a [`RelocateError`].
//!
//! # Loops
//!
//! A branch from the body back to the entry would make a call of every round of a loop, and one to
//! another boundary of the five bytes a trap. Where such a loop is small, makes no calls and cannot
//! be entered in another way, the window is made so wide that the loop is in it, and the copy loops
//! within itself. A jump to an entry that begins to set up the frame is no loop but a tail call of
//! the function by itself, and counts as a call.

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

/// A function, or the part of one, that is to be patched at its first byte.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Text from the patch address on (behind an `endbr64`), up to the next function or the end of
    /// the segment, padding included.
    pub bytes: &'a [u8],
    /// Address of the first of the bytes.
    pub address: usize,
    /// Bytes of the function from there on; 0 when that is not known.
    pub size: usize,
}

impl<'a> Code<'a> {
    /// The bytes without the padding, as far as that is known. A function does not go on behind the
    /// start of the next one, whatever its size says.
    fn body(&self) -> &'a [u8] {
        let len = match self.size {
            0 => self.bytes.len(),
            size => size.min(self.bytes.len()),
        };
        &self.bytes[..len]
    }
}

/// Why a function's first instructions cannot be moved. Offsets are from the patch address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RelocateError {
    /// The function ends before the jump would, and what follows is not padding.
    TooShort {
        /// Bytes that may be overwritten.
        have: usize,
    },
    /// Bytes that are no instruction.
    Undecodable {
        /// Offset of the bytes that are no instruction.
        at: usize,
    },
    /// An `int3`: a breakpoint of a debugger, or another tool's.
    Breakpoint {
        /// Offset of the `int3`.
        at: usize,
    },
    /// An instruction that would do something else in another place.
    Unmovable {
        /// Offset of the instruction.
        at: usize,
    },
    /// A call that returns into the bytes of the jump.
    Returns {
        /// Offset of the call.
        at: usize,
        /// Offset that the call returns to.
        to: usize,
    },
    /// A branch from elsewhere in the function into the bytes of the jump.
    Target {
        /// Offset of the branch.
        from: usize,
        /// Offset that the branch leads to.
        to: usize,
    },
    /// A branch back to the patch address: every round of a loop would count as a call.
    Loop {
        /// Offset of the branch.
        from: usize,
    },
    /// Behind this instruction no register tells where the caller's frame is.
    StackPointer {
        /// Offset of the instruction.
        at: usize,
    },
    /// A call whose copy would push its return address, where the processor keeps a shadow stack.
    ShadowStack {
        /// Offset of the call.
        at: usize,
    },
    /// An operand that does not reach its target from where the copy is to be.
    Reach {
        /// Offset of the instruction.
        at: usize,
        /// The address that the instruction cannot reach.
        target: usize,
    },
    /// The place for the copy is too small.
    Room {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
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

/// The instructions to move, and all that is needed to write their copy.
#[derive(Debug, Clone)]
pub struct Window {
    address: usize,
    /// The displaced bytes.
    bytes: Vec<u8>,
    /// How many of them are overwritten, at most.
    patched: usize,
    instructions: Vec<Displaced>,
    /// What holds behind the last instruction.
    after: Rule,
    /// Whether the last instruction never goes on to the next.
    ends: bool,
}

/// One displaced instruction.
#[derive(Debug, Clone, Copy)]
struct Displaced {
    offset: usize,
    len: usize,
    kind: Kind,
    /// How to unwind from it.
    before: Rule,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Means the same everywhere.
    Plain,
    /// Has a rip-relative operand; where in it.
    RipRelative { operand: usize },
    /// `jmp` to an address.
    Jmp { target: usize },
    /// A conditional jump; the low byte of the opcode of its near form.
    Jcc { opcode: u8, target: usize },
    /// `loop`, `loope`, `loopne`, `jrcxz`: there is no near form. Its opcode, and whether it counts
    /// in ecx.
    Count {
        opcode: u8,
        ecx: bool,
        target: usize,
    },
    /// `call` to an address.
    Call { target: usize },
    /// `call` through a register or memory; where in it the opcode is.
    CallIndirect { opcode: usize },
}

/// Bytes of the literal that a displaced call pushes.
const LITERAL_LEN: usize = 8;
/// Bytes of `push qword ptr [rip + d]`.
const PUSH_LEN: usize = 6;
/// Bytes of `jmp rel32`.
const JMP_LEN: usize = 5;

impl Kind {
    /// Bytes of the copy; `len` are those of the original. An upper bound for indirect calls.
    fn copy_len(self, len: usize) -> usize {
        match self {
            Self::Plain | Self::RipRelative { .. } => len,
            Self::Jmp { .. } => JMP_LEN,
            Self::Jcc { .. } => 6,
            Self::Count { ecx, .. } => usize::from(ecx) + 2 + 2 + JMP_LEN,
            Self::Call { .. } => PUSH_LEN + JMP_LEN + LITERAL_LEN,
            // An operand relative to rsp may get a displacement of 32 bits that had none.
            Self::CallIndirect { .. } => PUSH_LEN + len + 4 + LITERAL_LEN,
        }
    }

    /// Where a jump leads that stays in the function, or may.
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

/// A copy that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// Bytes written.
    pub len: usize,
    /// Where in the copy the instruction is that was at offset k; of use only for k in
    /// [`Window::boundaries`].
    pub resume: [u8; SITE_LEN],
    /// How to unwind from the copy; [`Rule::DEFAULT`] holds before the first row.
    pub rows: Vec<Row>,
}

/// Finds out whether the first instructions of a function can be moved out of the way of a jump.
///
/// # Errors
///
/// Why not.
pub fn plan(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, SITE_LEN)
}

/// The same for a patch of two bytes: a short jump.
///
/// # Errors
///
/// Why not.
pub fn plan_short(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, 2)
}

/// The same for a patch of one byte: an `int3`, by which every call of the function traps.
///
/// That is slow, but it can be done where a jump cannot: to functions of less than five bytes, and
/// to those that lead back into their first five.
///
/// # Errors
///
/// Why not.
pub fn plan_breakpoint(code: &Code<'_>) -> Result<Window, RelocateError> {
    plan_patch(code, 1)
}

/// Plans again for a patch of so many bytes that displaces the first `len` bytes: what leads into
/// these was looked at before, and is not now. `None` for code of which others would be displaced.
#[must_use]
pub fn plan_again(code: &Code<'_>, patched: usize, len: usize) -> Option<Window> {
    let window = decode(code, patched, patched.max(len)).ok()?;
    (window.len() == len).then_some(window)
}

/// Plans for a patch of that many bytes.
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

/// The longest window that is made to have a loop in it.
const WIDEST: usize = 256;

/// Makes a window that has all of the loops in it that the `intruders` close: in the copy they lead
/// to the copy.
///
/// That is right only if the original of the loop is not run any more, so nothing else may lead
/// there: no branch from behind the window, no call that returns there, no table of addresses.
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
        // While the window is not left and entered again, its frame is found by rsp alone.
        let rules = window.instructions.iter().map(|one| one.before);
        let moves = rules
            .chain([window.after])
            .any(|rule| !rule.by_stack_pointer());
        // Nor may a branch of the copy lead to the original.
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

/// Decodes what covers the first `need` bytes, which are not less than the `patched` ones, or the
/// whole function with padding behind.
fn decode(code: &Code<'_>, patched: usize, need: usize) -> Result<Window, RelocateError> {
    let body = code.body();
    let mut decoder = Decoder::with_ip(64, body, code.address as u64, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut instructions: Vec<Displaced> = Vec::new();
    // The stack at the targets of branches that are not decoded yet.
    let mut ahead: Vec<(usize, StackEffect)> = Vec::new();
    let mut stack = StackEffect::at_entry();
    let mut ends = false;
    let mut len = 0;
    while len < need {
        let at = len;
        if at == body.len() || (ends && code.size == 0) {
            // The end of the function, or with its size not known likely so: what follows must not
            // be needed.
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
            // Nothing but a branch leads here; if there is none, nothing at all.
            stack = joins.next().cloned().unwrap_or_else(StackEffect::at_entry);
        }
        let before = stack.rule().ok_or(lost)?;
        if joins.any(|join| join.rule() != Some(before)) {
            return Err(lost);
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let operand = offsets.displacement_offset();
        let kind = classify(&instruction, &body[at..len], at, operand)?;
        // Code that reads itself would read the patch.
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

/// Says how to copy an instruction; `offset` is its own, `displacement` that of its displacement
/// within it.
fn classify(
    instruction: &Instruction,
    bytes: &[u8],
    offset: usize,
    displacement: usize,
) -> Result<Kind, RelocateError> {
    let unmovable = RelocateError::Unmovable { at: offset };
    let prefixes = Prefixes::of(bytes);
    let flow = instruction.flow_control();
    // Vendors differ in what a 16-bit branch is in 64-bit mode.
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
        // The push comes before the operand is read. So it must not be rsp itself, nor in the word
        // that the push writes.
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
        // Whatever other branch there may be.
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            return Err(unmovable);
        }
        _ => {}
    }
    if instruction.is_ip_rel_memory_operand() {
        // Relative to eip there is no reach beyond 4 GiB.
        if prefixes.address32 {
            return Err(unmovable);
        }
        return Ok(Kind::RipRelative {
            operand: displacement,
        });
    }
    Ok(Kind::Plain)
}

/// Whether the instruction behind this one is not run after it.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
    )
}

/// Whether the bytes from `end` up to `need` are there, and mean nothing.
fn is_padding(code: &Code<'_>, end: usize, need: usize) -> bool {
    let Some(padding) = code.bytes.get(end..) else {
        return false;
    };
    if padding.len() < need - end {
        return false;
    }
    // Zeros are data as well. As padding they reach up to the next function, or to an alignment.
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
    /// Bytes displaced: as many as are overwritten or more, or less when the function ends before.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: there is at least one instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bit k, for k from 0 to 4: an instruction of the original starts at byte k.
    ///
    /// Bit 0 is always set, and after [`plan_breakpoint`] no other. Padding behind the end of the
    /// function is no instruction: nothing ever runs it.
    #[must_use]
    pub fn boundaries(&self) -> u8 {
        self.instructions
            .iter()
            .filter(|instruction| instruction.offset < self.patched)
            .fold(0, |mask, instruction| mask | 1 << instruction.offset)
    }

    /// The offset of the first call. Its copy pushes the return address, of which the processor's
    /// shadow stack does not know: where there is one, the return faults.
    #[must_use]
    pub fn call(&self) -> Option<usize> {
        let mut calls = self.instructions.iter().filter(|one| one.kind.is_call());
        calls.next().map(|call| call.offset)
    }

    /// The most bytes that the copy takes.
    #[must_use]
    pub fn relocated_len(&self) -> usize {
        let copies = self.instructions.iter();
        copies
            .map(|instruction| instruction.kind.copy_len(instruction.len))
            .sum::<usize>()
            + if self.goes_on() { JMP_LEN } else { 0 }
    }

    /// Whether the copy ends with a jump back.
    fn goes_on(&self) -> bool {
        // A displaced call returns to the original by itself.
        let call = self
            .instructions
            .last()
            .is_some_and(|last| last.kind.is_call());
        !self.ends && !call
    }

    /// The branches from behind the window that lead into its first `reach` bytes and should not.
    fn intruders(&self, code: &Code<'_>, reach: usize) -> Vec<Branch> {
        let mut branches = branches::leading_back(code.body(), self.len(), reach);
        // Calls to the entry are recursion. So are jumps when the function sets up its frame there:
        // each round of a loop would do that again.
        let sets_up = self.sets_up_frame();
        branches.retain(|branch| branch.to != 0 || !(branch.is_call || sets_up));
        branches
    }

    /// Whether the first instructions, up to any branch, move the stack pointer.
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

    /// Checks where branches lead that are displaced themselves.
    fn check_own_branches(&self) -> Result<(), RelocateError> {
        for instruction in &self.instructions {
            let (target, is_call) = match (instruction.kind, instruction.kind.branches_to()) {
                (_, Some(target)) => (target, false),
                (Kind::Call { target }, _) => (target, true),
                _ => continue,
            };
            let to = target.wrapping_sub(self.address);
            let within = to != 0 && to < self.patched.min(self.len());
            // A call would have to return to the copy of what it skips.
            if within && (is_call || self.copy_of(to).is_none()) {
                let from = instruction.offset;
                return Err(RelocateError::Target { from, to });
            }
        }
        Ok(())
    }

    /// Offset in the copy of the instruction at `offset`, `None` if there is none.
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
    /// [`RelocateError::Reach`] when an operand does not reach its target from there,
    /// [`RelocateError::Room`] when `out` is shorter than [`Self::relocated_len`].
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
    /// The rule of the last of them.
    rule: Rule,
}

impl RowList {
    /// From `offset` on `rule` holds.
    fn set(&mut self, offset: usize, rule: Rule) {
        if rule != self.rule {
            self.rows.push(Row { offset, rule });
            self.rule = rule;
        }
    }
}

/// The 32 bits at `offset` of an instruction, sign-extended.
fn displacement(bytes: &[u8], offset: usize) -> isize {
    let bytes = &bytes[offset..offset + 4];
    i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as isize
}

/// Puts bytes one behind the other. What is written fits: [`Window::relocated_len`] was asked for.
struct Writer<'a> {
    out: &'a mut [u8],
    /// Address of the first byte of `out`.
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

    /// Puts four bytes that lead to `target` from the end of the instruction, which is `behind`
    /// bytes further than theirs.
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

    /// Puts `push qword ptr [rip + distance]`.
    fn push_literal(&mut self, distance: usize) {
        self.put(&[0xff, 0x35]);
        // The length of one instruction.
        self.put(&(distance as u32).to_le_bytes());
    }
}

/// What stands before an opcode.
#[derive(Debug, Clone, Copy)]
struct Prefixes {
    /// Bytes of them.
    len: usize,
    /// 66, with no REX.W to outdo it.
    operand16: bool,
    /// 67.
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
    /// Reads the ModRM byte at `offset` of an instruction, whose opcode is before it.
    fn of(bytes: &[u8], offset: usize) -> Option<Self> {
        let modrm = *bytes.get(offset)?;
        let (mode, rm) = (modrm >> 6, modrm & 7);
        // REX, if any, is directly before the opcode.
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
