//! Punned jumps: jumps whose operand traps if it is executed from the middle.
//!
//! The five bytes of a jump may replace several instructions of the original code, and a thread may
//! have been preempted between two of them. If it continues there later, it runs the operand of the
//! jump as code. So wherever an original instruction started, the operand has a byte that traps as
//! an instruction of its own. That fixes bits of the distance, and so the possible addresses of the
//! stub (instruction punning: Chamith, Svensson, Dalessandro and Newton, *Instruction punning:
//! lightweight instrumentation for x86-64*, PLDI 2017):
//!
//! ```text
//!   push rbp; mov rbp, rsp; push r15     55 | 48 89 e5 | 41 57       starts at 0, 1, 4
//!                                        +--+--+--+--+--+
//!   jump                                 |e9|cc|..|..|cc|
//!                                        +--+--+--+--+--+
//!   distance      0xcc....cc             between -0x34000000 and -0x33000000, in steps of 256
//! ```
//!
//! Bytes that trap are `int3` (SIGTRAP) and the one-byte opcodes that do not exist in 64-bit mode
//! (SIGILL). The latter are for the last byte, which has the sign: with `int3` there, the stub is
//! 860 MB *below* the site, and a program that is not position independent has no addresses there.

use core::iter;

use crate::stub::SITE_LEN;

/// The breakpoint instruction.
const INT3: u8 = 0xcc;

/// Opcodes that are invalid in 64-bit mode and were complete instructions before: `push ds` and the
/// like, `daa`, `das`, `aaa`, `aas`, `pusha`, `popa`. All are positive as the last byte of a
/// distance.
const INVALID: [u8; 12] = [
    0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60,
];

/// Returns the last bytes of the distance to try for a site with instruction starts `starts`, the
/// best first: far from where heaps grow, and with the stubs of all sites of a module together.
pub fn last_bytes(starts: u8) -> impl Iterator<Item = u8> {
    // If the last byte need not trap, any byte works that leads away from the module.
    let free = starts >> (SITE_LEN - 1) & 1 == 0;
    let others = (1..0x30).flat_map(|by| [INT3 - by, INT3 + by]);
    iter::once(INT3)
        .chain(others.take_while(move |_| free))
        .chain(INVALID.into_iter().rev())
}

/// Returns true if a thread that continues at byte `at` of a site, which is `byte`, traps.
#[must_use]
pub fn traps(at: usize, byte: u8) -> bool {
    byte == INT3 || at == SITE_LEN - 1 && INVALID.contains(&byte)
}

/// Returns true if the trap at a byte that [traps](traps()) is always SIGILL.
#[must_use]
pub fn is_invalid(byte: u8) -> bool {
    INVALID.contains(&byte)
}

/// The possible addresses of a site's stub, for one choice of the last byte of the distance.
#[derive(Clone, Copy, Debug)]
pub struct JumpTargets {
    /// The lowest target.
    lowest: usize,
    /// The bits of the distance that may be chosen, all below the last byte.
    free: u32,
}

impl JumpTargets {
    /// Returns the targets for the site at `address`, with instruction starts `starts` in its five
    /// bytes. Returns `None` if `last` would not trap where it must, or if the targets are outside
    /// of the address space.
    #[must_use]
    pub fn new(address: usize, starts: u8, last: u8) -> Option<Self> {
        let must_trap = |at: usize| starts >> at & 1 != 0;
        if must_trap(SITE_LEN - 1) && !traps(SITE_LEN - 1, last) {
            return None;
        }
        let mut distance = [0, 0, 0, last];
        let mut free = [0xff, 0xff, 0xff, 0];
        for at in 1..SITE_LEN - 1 {
            if must_trap(at) {
                distance[at - 1] = INT3;
                free[at - 1] = 0;
            }
        }
        let lowest = address
            .checked_add(SITE_LEN)?
            .checked_add_signed(i32::from_le_bytes(distance) as isize)?;
        let targets = Self {
            lowest,
            free: u32::from_le_bytes(free),
        };
        (targets.highest() < 1 << 47).then_some(targets)
    }

    /// Returns the lowest target.
    #[must_use]
    pub fn lowest(self) -> usize {
        self.lowest
    }

    /// Returns the highest target.
    #[must_use]
    pub fn highest(self) -> usize {
        self.lowest + self.free as usize
    }

    /// Returns the bits of the distance that may be chosen.
    #[must_use]
    pub fn free(self) -> u32 {
        self.free
    }

    /// Returns the lowest target that is not below `address`, if there is one.
    #[must_use]
    pub fn at_or_above(self, address: usize) -> Option<usize> {
        let Some(wanted) = address.checked_sub(self.lowest) else {
            return Some(self.lowest);
        };
        let wanted = u32::try_from(wanted).ok()?;
        let fixed = wanted & !self.free;
        if fixed == 0 {
            return Some(address);
        }
        // Above the highest bit that cannot be set, the free bits are incremented by one; the free
        // bits below it are then 0.
        let above = self.free & (u32::MAX << (u32::BITS - 1 - fixed.leading_zeros()));
        let counted = ((wanted & above) | !above).wrapping_add(1) & above;
        (counted > wanted).then(|| self.lowest + counted as usize)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::{INVALID, JumpTargets, last_bytes, traps};
    use crate::stub::jmp_rel32;
    use std::vec::Vec;

    const SITE: usize = 0x7f12_3456_7890;

    #[test]
    fn a_jump_to_any_target_traps_where_instructions_start() {
        for starts in (1..32_u8).step_by(2) {
            for last in last_bytes(starts) {
                let targets = JumpTargets::new(SITE, starts, last).unwrap();
                let mut from = targets.lowest();
                let mut count = 0;
                while let Some(target) = targets.at_or_above(from) {
                    assert!(target >= from && target <= targets.highest());
                    let jump = jmp_rel32(SITE, target).unwrap();
                    for at in (1..5).filter(|at| starts >> at & 1 != 0) {
                        assert!(traps(at, jump[at]), "{starts:b} {jump:x?}");
                    }
                    assert_eq!(jump[4], last);
                    count += 1;
                    from = target + 1 + (count % 7) * 999;
                }
                assert!(count >= 1);
            }
        }
    }

    #[test]
    fn no_target_is_passed_over() {
        // Instructions at 1 and 2: the third byte of the distance is free.
        let targets = JumpTargets::new(SITE, 0b00111, 0xcc).unwrap();
        let all: Vec<usize> = (0..256)
            .map(|byte| targets.lowest() + (byte << 16))
            .collect();
        for pair in all.windows(2) {
            assert_eq!(targets.at_or_above(pair[0]), Some(pair[0]));
            assert_eq!(targets.at_or_above(pair[0] + 1), Some(pair[1]));
            assert_eq!(targets.at_or_above(pair[1] - 1), Some(pair[1]));
        }
        assert_eq!(targets.at_or_above(0), Some(all[0]));
        assert_eq!(targets.at_or_above(all[255]), Some(all[255]));
        assert_eq!(targets.at_or_above(all[255] + 1), None);
    }

    #[test]
    fn the_pad_of_gcc_has_one_target() {
        let targets = JumpTargets::new(SITE, 0b11111, 0xcc).unwrap();
        assert_eq!(targets.lowest(), SITE + 5 - 0x3333_3334);
        assert_eq!(targets.lowest(), targets.highest());
    }

    #[test]
    fn a_program_at_low_addresses_has_targets_above_only() {
        let site = 0x40_1000;
        assert!(JumpTargets::new(site, 0b10001, 0xcc).is_none());
        let targets = JumpTargets::new(site, 0b10001, 0x3f).unwrap();
        assert_eq!(targets.lowest(), site + 5 + 0x3f00_0000);
    }

    #[test]
    fn a_last_byte_that_does_not_trap_is_for_single_instructions() {
        assert!(JumpTargets::new(SITE, 0b10001, 0x10).is_none());
        assert!(JumpTargets::new(SITE, 0b01111, 0x10).is_some());
    }

    #[test]
    fn invalid_opcodes_trap() {
        // Tried on the machine: each raises SIGILL where it stands.
        let page = crate::trap::tests::executable(&INVALID);
        for (offset, byte) in INVALID.into_iter().enumerate() {
            assert!(traps(4, byte));
            assert_eq!(
                crate::trap::tests::signal_of(page.wrapping_add(offset)),
                (libc::SIGILL, page as usize + offset),
                "{byte:02x}"
            );
        }
    }
}
