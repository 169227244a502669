//! Decides which instructions a patch displaces, and how each of them is copied.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::branches::{self, Branch};
use super::error::RelocateError;
use super::operand::{Operand, Prefixes};
use super::stack_effect::StackEffect;
use super::window::{Code, Displaced, Kind, Window, is_end};
use crate::stub::SITE_LEN;

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
/// these were checked before, and are not checked now. Returns `None` if the patch would displace
/// other bytes of this code.
#[must_use]
pub fn plan_again(code: &Code<'_>, patched: usize, len: usize) -> Option<Window> {
    let window = decode(code, patched, patched.max(len)).ok()?;
    (window.len() == len).then_some(window)
}

/// Plans the relocation for a patch of `patched` bytes.
pub(super) fn plan_patch(code: &Code<'_>, patched: usize) -> Result<Window, RelocateError> {
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
pub(super) const WIDEST: usize = 256;

/// Extends a window to contain all loops that the `intruders` close: in the relocated prologue they
/// lead to the relocated prologue.
///
/// That is right only if the original of the loop no longer runs. So nothing else may lead there:
/// no branch from after the window, no call that returns there, no table of addresses.
pub(super) fn widen(code: &Code<'_>, patched: usize, intruders: &[Branch]) -> Option<Window> {
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
        // No branch of the relocated prologue may lead to the original.
        let leaves = window.instructions.iter().any(|one| {
            let target = one.kind.branches_to();
            let to = target.map(|target| target.wrapping_sub(code.address));
            to.is_some_and(|to| to < window.len() && window.relocated_offset(to).is_none())
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
pub(super) fn decode(
    code: &Code<'_>,
    patched: usize,
    need: usize,
) -> Result<Window, RelocateError> {
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

/// Classifies an instruction by the way to relocate it; `offset` is its own, `displacement` that of
/// its displacement within it.
pub(super) fn classify(
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

/// Returns true if the bytes from `end` up to `need` exist and have no meaning.
pub(super) fn is_padding(code: &Code<'_>, end: usize, need: usize) -> bool {
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
