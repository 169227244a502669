//! Finds the system calls that functions make themselves.
//!
//! A `syscall` has two bytes, too few for a jump, and must stay at its address: a thread that waits
//! in the kernel returns to the next instruction, or, if the call is restarted, to the `syscall`
//! itself. But compilers load the number of the call into eax directly before, with an instruction
//! as long as a jump:
//!
//! ```text
//!    0  b8 xx xx xx xx   mov eax, number    <- becomes a jump
//!    5  0f 05            syscall            <- stays, and whoever jumps here is not seen
//!    7  ...
//! ```
//!
//! One instruction replaces another one, so no thread can be in the middle.
//! [`system_call`](crate::system_call) makes the code to which the jump leads.

use alloc::vec;
use alloc::vec::Vec;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::stub::SITE_LEN;

/// The instruction itself.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The reason that a system call within a function cannot be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemCallError {
    /// The instruction before it does not load a number into eax.
    NoNumber,
    /// No direct branch of the function leads there: it may be data.
    NotReached,
    /// It may return on another stack, in another process, with other thread-local data or without
    /// its stack.
    Special {
        /// The number of the system call.
        number: u32,
    },
}

/// A `syscall` instruction of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// The offset in the function of the instruction that can become a jump; or of the `syscall` if
    /// there is none.
    pub at: usize,
    /// The number of the system call, or the reason that it cannot be traced.
    pub number: Result<u32, SystemCallError>,
}

/// Returns true if the code is a system call that begins with its number: `mov eax, number;
/// syscall`.
#[must_use]
const fn is_system_call(code: &[u8; SITE_LEN + 2]) -> bool {
    matches!(code, [0xb8, _, _, _, _, 0x0f, 0x05])
}

/// Numbers that are not traced. After these calls a thread may be on another stack, or without one,
/// or be a new one, or find other thread-local data; or the kernel checks the address of the call.
#[rustfmt::skip]
const SPECIAL: [u32; 13] = [
    11, 25, 28,     // munmap, mremap, madvise: of the stack that it is called on
    15,             // rt_sigreturn
    56, 57, 58,     // clone, fork, vfork
    60,             // exit: as a rule the stack is another thread's already
    158,            // arch_prctl: sets fs
    335, 336,       // uretprobe, uprobe: only from the kernel's own code
    435,            // clone3
    453,            // map_shadow_stack
];

fn is_special(number: u32) -> bool {
    /// The first number of the x32 ABI, under which other calls have the same numbers.
    const OTHER_ABI: u32 = 512;
    number >= OTHER_ABI || SPECIAL.contains(&number)
}

/// Finds the system calls of a function; `body` is all of its code.
#[must_use]
pub fn find(body: &[u8]) -> Vec<SystemCall> {
    let mut places = memchr::memmem::find_iter(body, &SYSCALL).peekable();
    if places.peek().is_none() {
        return Vec::new();
    }
    let reached = Starts::reached(body);
    let listed = Starts::listed(body);
    let call = |at: usize| {
        if !reached.has(at) {
            // Otherwise these are bytes of other instructions.
            return listed.has(at).then_some(SystemCall {
                at,
                number: Err(SystemCallError::NotReached),
            });
        }
        let number = number_before(body, at, &reached).ok_or(SystemCallError::NoNumber);
        Some(SystemCall {
            at: number.map_or(at, |_| at - SITE_LEN),
            number: number.and_then(|number| match is_special(number) {
                true => Err(SystemCallError::Special { number }),
                false => Ok(number),
            }),
        })
    };
    places.filter_map(call).collect()
}

/// Returns the number that is loaded into eax directly before the `syscall` at `at`, by an
/// instruction of five bytes that overlaps no other one.
fn number_before(body: &[u8], at: usize, starts: &Starts) -> Option<u32> {
    let start = at.checked_sub(SITE_LEN)?;
    let code: &[u8; SITE_LEN + 2] = body.get(start..)?.first_chunk()?;
    let is_alone =
        (1..SITE_LEN).all(|byte| !starts.has(start + byte)) && !starts.has(start + SITE_LEN + 1);
    let is_it = is_system_call(code) && starts.has(start) && is_alone;
    let [_, a, b, c, d, ..] = *code;
    is_it.then_some(u32::from_le_bytes([a, b, c, d]))
}

/// The instruction starts of a function: a bit for each byte.
#[derive(Debug)]
struct Starts(Vec<u64>);

impl Starts {
    fn none(body: &[u8]) -> Self {
        Self(vec![0; body.len().div_ceil(64)])
    }

    fn has(&self, at: usize) -> bool {
        let word = self.0.get(at / 64);
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Adds a start; returns true if it is new.
    fn add(&mut self, at: usize) -> bool {
        let is_new = !self.has(at);
        self.0[at / 64] |= 1 << (at % 64);
        is_new
    }

    /// Returns the instructions that are reached from the entry by direct branches: the rest may be
    /// data.
    fn reached(body: &[u8]) -> Self {
        let mut starts = Self::none(body);
        let mut decoder = Decoder::with_ip(64, body, 0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut paths = vec![0];
        while let Some(start) = paths.pop() {
            if decoder.set_position(start).is_err() {
                continue;
            }
            decoder.set_ip(start as u64);
            while decoder.can_decode() && starts.add(decoder.position()) {
                decoder.decode_out(&mut instruction);
                let flow = instruction.flow_control();
                let branches = matches!(
                    flow,
                    FlowControl::UnconditionalBranch
                        | FlowControl::ConditionalBranch
                        | FlowControl::XbeginXabortXend
                );
                let target = instruction.near_branch_target();
                if branches && target < body.len() as u64 {
                    paths.push(target as usize);
                }
                if instruction.is_invalid() || ends(&instruction, flow) {
                    break;
                }
            }
        }
        starts
    }

    /// Returns the starts of all instructions, decoded in sequence.
    fn listed(body: &[u8]) -> Self {
        let mut starts = Self::none(body);
        let mut decoder = Decoder::with_ip(64, body, 0, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            starts.add(decoder.position());
            decoder.decode_out(&mut instruction);
        }
        starts
    }
}

/// Returns true if a thread never continues after an instruction.
fn ends(instruction: &Instruction, flow: FlowControl) -> bool {
    matches!(
        flow,
        FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Return
            | FlowControl::Exception
            | FlowControl::Interrupt
    ) || instruction.mnemonic() == Mnemonic::Hlt
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mov eax, 39; syscall
    const CALL: [u8; 7] = [0xb8, 39, 0, 0, 0, 0x0f, 0x05];

    fn found(parts: &[&[u8]]) -> Vec<(usize, Result<u32, SystemCallError>)> {
        let found = find(&parts.concat()).into_iter();
        found.map(|call| (call.at, call.number)).collect()
    }

    #[test]
    fn a_call_right_behind_its_number_is_found() {
        // push rbx; the call; pop rbx; ret
        assert_eq!(found(&[&[0x53], &CALL, &[0x5b, 0xc3]]), [(1, Ok(39))]);
        // Two calls; only a branch leads to the second one: je +1; ret
        let two = found(&[&CALL, &[0x74, 0x01, 0xc3], &CALL, &[0xc3]]);
        assert_eq!(two, [(0, Ok(39)), (10, Ok(39))]);
        assert!(found(&[&[0x53, 0x5b, 0xc3]]).is_empty());
    }

    #[test]
    fn other_ways_to_the_number_are_told() {
        let no_number = [(2, Err(SystemCallError::NoNumber))];
        // xor eax, eax; syscall
        assert_eq!(found(&[&[0x31, 0xc0, 0x0f, 0x05, 0xc3]]), no_number);
        // movabs rax, imm64, whose last bytes look like it: 48 b8 .. b8 27 0 0 0; syscall
        let long = [0x48, 0xb8, 1, 2, 3];
        let at = [(10, Err(SystemCallError::NoNumber))];
        assert_eq!(found(&[&long, &CALL, &[0xc3]]), at);
        // mov r8d, 39; syscall
        let other = [(6, Err(SystemCallError::NoNumber))];
        assert_eq!(found(&[&[0x41], &CALL, &[0xc3]]), other);
    }

    #[test]
    fn bytes_that_are_no_instruction_are_ignored() {
        // mov ecx, 0x050f; ret
        assert!(found(&[&[0xb9, 0x0f, 0x05, 0, 0, 0xc3]]).is_empty());
        // jmp rax; then what only looks like code, or is reached through a table.
        let not_reached = [(7, Err(SystemCallError::NotReached))];
        assert_eq!(found(&[&[0xff, 0xe0], &CALL, &[0xc3]]), not_reached);
    }

    #[test]
    fn a_branch_into_the_number_or_the_call_is_refused() {
        // je +1 leads into the operand of the mov behind it.
        let into = found(&[&[0x74, 0x01], &CALL, &[0xc3]]);
        assert_eq!(into, [(7, Err(SystemCallError::NoNumber))]);
        // je +5 leads to the syscall itself, which stays.
        assert_eq!(found(&[&[0x74, 0x05], &CALL, &[0xc3]]), [(2, Ok(39))]);
        // je +6 leads into it: to add eax, imm32.
        let into = found(&[&[0x74, 0x06], &CALL, &[0xc3, 0, 0, 0, 0xc3]]);
        assert_eq!(into, [(7, Err(SystemCallError::NoNumber))]);
    }

    #[test]
    fn calls_that_change_the_stack_are_left_alone() {
        for number in SPECIAL.into_iter().chain([513, 0x4000_0000 + 56]) {
            let call = [&[0xb8], &number.to_le_bytes()[..], &SYSCALL].concat();
            let special = [(0, Err(SystemCallError::Special { number }))];
            assert_eq!(found(&[&call, &[0xc3]]), special);
        }
    }
}
