//! Follows the paths of a function from its entry.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::window::is_end;

/// The result of looking at an instruction on a path.
pub(super) enum Step {
    Next,
    /// The search has succeeded.
    Found,
}

/// Follows every path from the first byte, along direct branches, each instruction once. Returns
/// true if `step` has found what it searches for. `step` gets each instruction, and the state on
/// the path that led there. Only the first 64 * `WORDS` bytes are analyzed.
pub(super) fn follow<const WORDS: usize, S: Copy>(
    body: &[u8],
    at_entry: S,
    mut step: impl FnMut(&Instruction, &mut S) -> Step,
) -> bool {
    let body = &body[..body.len().min(64 * WORDS)];
    let mut instruction = Instruction::default();
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    // One bit per offset that was visited.
    let mut seen = [0u64; WORDS];
    let mut paths = Vec::new();
    let mut path = Some((0, at_entry));
    while let Some((start, mut state)) = path {
        // The list has only offsets within the body.
        if decoder.set_position(start).is_err() {
            return false;
        }
        decoder.set_ip(start as u64);
        while decoder.can_decode() {
            let offset = decoder.position();
            let (word, bit) = (&mut seen[offset / 64], 1 << (offset % 64));
            if *word & bit != 0 {
                break;
            }
            *word |= bit;
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            match step(&instruction, &mut state) {
                Step::Next => {}
                Step::Found => return true,
            }
            let flow = instruction.flow_control();
            if matches!(
                flow,
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            ) && instruction.near_branch_target() < body.len() as u64
            {
                paths.push((instruction.near_branch_target() as usize, state));
            }
            // Code after a call that does not return is reached through a branch.
            let next = decoder.position();
            let is_target = || paths.iter().any(|&(target, _)| target == next);
            if is_end(&instruction) || flow == FlowControl::Call && is_target() {
                break;
            }
        }
        path = paths.pop();
    }
    false
}
