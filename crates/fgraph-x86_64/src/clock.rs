//! Clocks that a callback may read.
//!
//! # Safety
//!
//! The unsafe code reads the time stamp counter, and is assembly that keeps to the ABI.

use core::arch::x86_64::_rdtsc;
use core::arch::{asm, naked_asm};

/// Reads the processor's time stamp counter.
#[inline(always)]
#[allow(unused_unsafe, reason = "later compilers know that it is safe")]
pub fn counter() -> u64 {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { _rdtsc() }
}

/// Returns true if the counter runs at a constant rate.
///
/// The call is direct assembly: compilers may call other functions through a register.
#[inline(always)]
pub fn has_steady_counter() -> bool {
    let steady: u64;
    // SAFETY: the function preserves all registers except the declared ones.
    unsafe {
        asm!("call {}", sym read_steadiness,
            out("rax") steady, out("rcx") _, out("rdx") _);
    }
    steady != 0
}

/// Returns 1 if the counter is steady, otherwise 0. Changes rax, rcx and rdx only.
// SAFETY: it preserves rbx and the stack, and every processor of this architecture has the
// instruction.
#[unsafe(naked)]
extern "C" fn read_steadiness() {
    naked_asm!(
        ".cfi_startproc",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "mov eax, 0x80000000",
        "cpuid",
        "cmp eax, 0x80000007",
        "mov eax, 0",
        "jb 2f",
        "mov eax, 0x80000007",
        "cpuid",
        "mov eax, edx",
        "shr eax, 8",
        "and eax, 1",
        "2:",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
    )
}

/// Returns nanoseconds on a clock that never goes back, through the system call `clock_gettime`:
/// the C library's function may call anything, and could be traced itself.
#[inline(always)]
pub fn monotonic() -> u64 {
    let nanoseconds: u64;
    // SAFETY: the function preserves all registers except the declared ones.
    unsafe {
        asm!("call {}", sym read_monotonic,
            out("rax") nanoseconds, out("rcx") _, out("rsi") _, out("rdi") _, out("r11") _);
    }
    nanoseconds
}

/// Reads the clock. Changes rax, rcx, rsi, rdi and r11 only.
// SAFETY: the kernel writes to room on the stack, and preserves all registers except rax, rcx and
// r11.
#[unsafe(naked)]
extern "C" fn read_monotonic() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov eax, 228",
        "mov edi, 1",
        "mov rsi, rsp",
        "syscall",
        "imul rax, qword ptr [rsp], 1000000000",
        "add rax, qword ptr [rsp + 8]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
    )
}

/// Returns true if a function of this file begins at an address; it changes only general registers,
/// which its instructions alone do not show.
pub fn begins(address: usize) -> bool {
    let functions = [read_steadiness, read_monotonic].map(|it: extern "C" fn()| it as usize);
    functions.contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_that_of_the_c_library() {
        let now = || {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: `clock_gettime` writes to the live local.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let (before, ours, after) = (now(), monotonic(), now());
        assert!((before..=after).contains(&ours));
    }

    #[test]
    fn functions_are_known_by_their_addresses() {
        assert!(begins(read_monotonic as extern "C" fn() as usize) && !begins(0));
        // As on all processors of the last fifteen years, and in their virtual machines.
        assert!(has_steady_counter());
    }
}
