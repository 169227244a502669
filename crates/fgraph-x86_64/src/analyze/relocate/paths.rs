//! Follows the paths of a function from its entry.

use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::is_end;

/// How a path goes on behind an instruction.
pub(super) enum Step {
    Next,
    /// What comes behind does not matter.
    End,
    /// What is looked for is here.
    Found,
}

/// Follows every path from the first byte, as far as direct branches show the way, each instruction
/// once, and tells whether `step` found what it looks for. `step` is given each instruction, and
/// what is known on the path that led there. Only the first 64 * `WORDS` bytes are looked at.
pub(super) fn follow<const WORDS: usize, S: Copy>(
    body: &[u8],
    at_entry: S,
    mut step: impl FnMut(&Instruction, &mut S) -> Step,
) -> bool {
    let body = &body[..body.len().min(64 * WORDS)];
    let mut instruction = Instruction::default();
    let mut decoder = Decoder::new(64, body, DecoderOptions::NONE);
    // One bit per offset that was looked at.
    let mut seen = [0u64; WORDS];
    let mut paths = Vec::new();
    let mut path = Some((0, at_entry));
    while let Some((start, mut state)) = path {
        // Only offsets within the body are put in the list.
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
                Step::End => break,
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
            // What a call does not come back from is followed by the target of a branch.
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
