//! The code that replaces a system call within a function.
//!
//! The site is in the middle of a function, so the rules of calls do not hold there: only rax, rcx
//! and r11 may change, not even flags, and there may be data below the stack pointer. So the site
//! leads to code that makes it a call, and a function makes the system call:
//!
//! ```text
//!      site: jmp made ------>  0  lea rsp, [rsp - 136]     past the red zone
//!      syscall                 8  lahf                     flags, since eax is about to be written
//!      next ... <--------.     9  seto al
//!                        |    12  mov [rsp], rax
//!                        |    16  call stub ---------------.
//!                        |    21  mov rcx, rax             |  result
//!                        |    24  mov rax, [rsp]           |
//!                        |    28  add al, 127              |  OF
//!                        |    30  sahf                     |
//!                        |    31  mov rax, rcx             |
//!                        |    34  lea rcx, [rip + next]    |  as the kernel leaves it
//!                        |    41  lea rsp, [rsp + 136]     |
//!                        '----49  jmp next                 |
//!                             54  stub  <------------------'  to the trampoline
//!                             78  mov eax, number          called by the trampoline
//!                             83  syscall
//!                             85  ret
//! ```
//!
//! The site's own `syscall` stays unchanged, for threads that wait in it, and for branches to it.
//! So does all of this code, once it is made.
//!
//! # Unwind info
//!
//! Up to the stub, the caller's frame is that of the function that contains the site, at `next`.
//! Its address is in the unwind information, since it is not on the stack. From the stub on,
//! everything is as at the entry of a function. See [`rows`].

use arrayvec::ArrayVec;

use crate::stub::{self, PRESERVING_STUB_LEN, SITE_LEN, StubKind};
use crate::unwind::{Row, Rule};

/// Offset of the stub.
pub const STUB: usize = 54;
/// Offset of the function that makes the system call.
pub const BODY: usize = STUB + PRESERVING_STUB_LEN;
/// The length of the code.
pub const LEN: usize = BODY + SITE_LEN + 3;

/// The distance of the function's own stack pointer above ours: the red zone, and a word.
const BELOW: i32 = 136;

/// The code.
pub type Code = ArrayVec<u8, LEN>;

/// Returns the address at which a function continues after the system call whose number is loaded
/// at `site`.
#[must_use]
pub const fn behind(site: usize) -> usize {
    site + SITE_LEN + 2
}

/// Encodes, for the address `at`, the code that replaces the system call `number` at `site`, whose
/// record is at `record`. The word at `trampoline_word` has the address of its trampoline, one for
/// [`StubKind::Preserving`]. Returns `None` if an operand is out of reach.
#[must_use]
pub fn encode(
    at: usize,
    site: usize,
    number: u32,
    record: u64,
    trampoline_word: usize,
) -> Option<Code> {
    let mut code = Code::new();
    let lea_rsp = |code: &mut Code, by: i32| {
        // lea rsp, [rsp + disp32]: REX.W, 8d /r, mod 10, rm 100; SIB of plain rsp.
        code.extend([0x48, 0x8d, 0xa4, 0x24]);
        code.extend(by.to_le_bytes());
    };
    lea_rsp(&mut code, -BELOW);
    // lahf; seto al; mov [rsp], rax
    code.extend([0x9f, 0x0f, 0x90, 0xc0, 0x48, 0x89, 0x04, 0x24]);
    let after_call = code.len() + SITE_LEN;
    code.push(0xe8);
    code.extend(((STUB - after_call) as u32).to_le_bytes());
    // mov rcx, rax; mov rax, [rsp]; add al, 127; sahf; mov rax, rcx
    code.extend([0x48, 0x89, 0xc1, 0x48, 0x8b, 0x04, 0x24, 0x04, 0x7f, 0x9e]);
    code.extend([0x48, 0x89, 0xc8]);
    // lea rcx, [rip + disp32]: REX.W, 8d /r, mod 00, rm 101. A jump has its operand last as well.
    let end = at.wrapping_add(code.len() + 7);
    let [_, distance @ ..] = stub::jmp_rel32(end.wrapping_sub(SITE_LEN), behind(site))?;
    code.extend([0x48, 0x8d, 0x0d]);
    code.extend(distance);
    lea_rsp(&mut code, BELOW);
    code.extend(stub::jmp_rel32(at.wrapping_add(code.len()), behind(site))?);
    code.extend(StubKind::Preserving.encode(
        at.wrapping_add(code.len()),
        record,
        trampoline_word,
    )?);
    code.push(0xb8);
    code.extend(number.to_le_bytes());
    // syscall; ret
    code.extend([0x0f, 0x05, 0xc3]);
    Some(code)
}

/// Returns the unwind rules of the code for `site`.
#[must_use]
pub fn rows(site: usize) -> [Row; 4] {
    let below = |offset| Rule {
        offset,
        returns_to: Some(behind(site) as u64),
        ..Rule::DEFAULT
    };
    [
        (0, below(0)),
        (8, below(BELOW)),
        (49, below(0)),
        (STUB, Rule::DEFAULT),
    ]
    .map(|(offset, rule)| Row { offset, rule })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};
    use std::vec::Vec;

    use super::*;

    const AT: usize = 0x7f00_0000_1000;
    const SITE: usize = AT + 0x1234_5678;

    #[test]
    fn the_code_has_its_parts_where_the_constants_say() {
        let code = encode(AT, SITE, 0x123, 0x4242, AT - 0x1000).unwrap();
        assert_eq!(code.len(), LEN);
        let decoder = Decoder::with_ip(64, &code, AT as u64, DecoderOptions::NONE);
        let all: Vec<_> = decoder.into_iter().collect();
        let at = |offset: usize| {
            let is_it = |one: &&iced_x86::Instruction| one.ip() == (AT + offset) as u64;
            *all.iter().find(is_it).expect("an instruction starts there")
        };
        assert_eq!(at(16).near_branch_target(), (AT + STUB) as u64);
        assert_eq!(at(34).memory_displacement64(), behind(SITE) as u64);
        assert_eq!(at(49).near_branch_target(), behind(SITE) as u64);
        assert_eq!(at(BODY).op0_register(), Register::EAX);
        assert_eq!(at(BODY).immediate32(), 0x123);
        assert_eq!(at(BODY + SITE_LEN).mnemonic(), Mnemonic::Syscall);
        // The stack pointer moves where the rows say, and nowhere else.
        for offset in [8, 49] {
            let before = all.iter().find(|one| one.next_ip() == (AT + offset) as u64);
            assert_eq!(before.unwrap().op0_register(), Register::RSP);
        }
        let moves = all
            .iter()
            .filter(|one| one.op0_register() == Register::RSP)
            .count();
        assert_eq!(moves, 2);
    }

    #[test]
    fn targets_out_of_reach_are_refused() {
        assert!(encode(AT, AT + (3 << 30), 1, 0, AT).is_none());
        assert!(encode(AT, SITE, 1, 0, AT - (3 << 30)).is_none());
    }
}
