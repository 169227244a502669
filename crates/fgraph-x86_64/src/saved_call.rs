//! Calls that change only the general registers that any function may change.
//!
//! A callback on the fast path is called while vector registers and the floating-point unit hold
//! the program's values. If it has to do something that may change these, which is rare, it does so
//! through this module: one instruction stores the whole state, and another loads it again.
//!
//! ```text
//!   rbp - 16   the caller's r12, rbx, rbp, the return address
//!   ...
//!   rsp        x87, mmx, xmm (512 bytes), header (64), then what the processor has beyond
//! ```
//!
//! # Safety
//!
//! The unsafe code is assembly that keeps to the ABI.

use core::arch::{asm, naked_asm};
use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

/// The size of the stored state in bytes; 0 until it is known.
static BYTES: AtomicU32 = AtomicU32::new(0);
/// The components of it, in the encoding of the instruction; 0 if the processor has only the older
/// instruction, which stores everything.
static PARTS: AtomicU32 = AtomicU32::new(0);

/// The size of the component that every processor has, including the header after it.
const LEAST: u32 = 512 + 64;
/// The components that any code may change: x87, SSE, AVX, opmasks, the upper halves of zmm0-15,
/// and zmm16-31. There are more; one of them has 8 KiB.
const ALL_PARTS: u32 = 0b1110_0111;

/// Calls `work` with `data`.
///
/// # Safety
///
/// `work` must be safe to call with `data`.
#[inline(always)]
pub unsafe fn call(work: unsafe extern "C" fn(*mut c_void), data: *mut c_void) {
    // The call is not the compiler's, which would keep no vector register across it. The target is
    // in the instruction, where an analysis of the code finds it.
    // SAFETY: the function preserves all registers except the declared ones.
    unsafe {
        asm!("call {}", sym call_saved,
            inout("rdi") work => _, inout("rsi") data => _,
            out("rax") _, out("rcx") _, out("rdx") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
}

/// Calls rdi with rsi. Changes only the general registers that any function may change.
// SAFETY: it preserves the stack and the callee-saved registers; the memory is aligned as the
// instructions require, and the reserved part of its header is zero.
#[unsafe(naked)]
unsafe extern "C" fn call_saved() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        ".cfi_offset rbx, -24",
        "push r12",
        ".cfi_offset r12, -32",
        "mov r8, rdi",
        "mov r12, rsi",
        "mov ecx, dword ptr [rip + {bytes}]",
        "test ecx, ecx",
        "jnz 6f",
        // The first call: r9d is the size, r10d the components.
        "mov r9d, {least}",
        "xor r10d, r10d",
        "mov eax, 1",
        "cpuid",
        // OSXSAVE.
        "bt ecx, 27",
        "jnc 5f",
        "xor ecx, ecx",
        "xgetbv",
        "and eax, {all_parts}",
        "mov r10d, eax",
        "mov r11d, 2",
        "4:",
        "bt r10d, r11d",
        "jnc 7f",
        // The end of a component: eax is its size, ebx its offset.
        "mov eax, 0xd",
        "mov ecx, r11d",
        "cpuid",
        "add eax, ebx",
        "cmp eax, r9d",
        "cmova r9d, eax",
        "7:",
        "inc r11d",
        "cmp r11d, 8",
        "jb 4b",
        "5:",
        // In this order: a thread that reads the size finds the components.
        "mov dword ptr [rip + {parts}], r10d",
        "mov dword ptr [rip + {bytes}], r9d",
        "mov ecx, r9d",
        "6:",
        "mov rbx, r8",
        "sub rsp, rcx",
        "and rsp, -64",
        // The header: the bytes that the processor does not write must be zero when they are read.
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "mov eax, dword ptr [rip + {parts}]",
        "xor edx, edx",
        "test eax, eax",
        "jz 2f",
        "xsave64 [rsp]",
        "mov rdi, r12",
        "call rbx",
        "mov eax, dword ptr [rip + {parts}]",
        "xor edx, edx",
        "xrstor64 [rsp]",
        "jmp 3f",
        "2:",
        "fxsave64 [rsp]",
        "mov rdi, r12",
        "call rbx",
        "fxrstor64 [rsp]",
        "3:",
        "lea rsp, [rbp - 16]",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        least = const LEAST,
        all_parts = const ALL_PARTS,
        bytes = sym BYTES,
        parts = sym PARTS,
    )
}

/// Returns true if the function begins at an address.
pub fn begins(address: usize) -> bool {
    address == call_saved as unsafe extern "C" fn() as usize
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::cpu;

    /// Changes vector registers, the opmasks if there are any, and the floating-point unit.
    unsafe extern "C" fn clobber(data: *mut c_void) {
        // SAFETY: it changes only state that the caller has stored; the word belongs to the test.
        unsafe {
            asm!(
                "pcmpeqd xmm0, xmm0",
                "pcmpeqd xmm15, xmm15",
                "fld1",
                "ldmxcsr [{control}]",
                control = in(reg) &0x7f80_u32,
                out("xmm0") _, out("xmm15") _,
                options(nostack),
            );
            if cpu::vector_bytes() >= 32 {
                asm!("vpcmpeqd ymm1, ymm1, ymm1", "vzeroupper", out("xmm1") _, options(nostack));
            }
            *data.cast::<u64>() += 1;
        }
    }

    #[test]
    fn a_call_leaves_vector_registers_and_the_floating_point_unit_as_they_were() {
        extern "C" fn nothing(_: *mut c_void) {}
        // SAFETY: `nothing` needs nothing.
        unsafe { call(nothing, core::ptr::null_mut()) };
        let parts = PARTS.load(Ordering::Relaxed);
        assert_eq!(cpu::vector_bytes() > 16, parts & 0b100 != 0);
        // With the instruction that this machine has, and with the one that all machines have.
        for parts in [parts, 0] {
            PARTS.store(parts, Ordering::Relaxed);
            let (mut calls, mut wide) = (0_u64, [0_u64; 8]);
            let (first, last): (u64, u64);
            let (mut before, mut after, mut status) = (0_u32, 0_u32, 0_u16);
            let is_wide = parts != 0 && cpu::vector_bytes() >= 32;
            // SAFETY: the changed registers are declared; the call preserves all others.
            unsafe {
                asm!("stmxcsr [{}]", in(reg) &mut before, options(nostack));
                // Values that are needed after the call are in callee-saved registers.
                if is_wide {
                    asm!(
                        "vmovq xmm1, r13", "vinserti128 ymm1, ymm1, xmm1, 1",
                        "call {call}",
                        "vmovups [r14], ymm1", "vzeroupper",
                        call = sym call_saved,
                        in("r13") 0x1234_5678_9abc_def0_u64,
                        in("r14") &mut wide,
                        in("rdi") clobber as unsafe extern "C" fn(*mut c_void),
                        in("rsi") &raw mut calls,
                        clobber_abi("C"),
                    );
                }
                asm!(
                    "movq xmm0, r12", "movq xmm15, r13", "call {call}",
                    "movq r12, xmm0", "movq r13, xmm15", "fnstsw [r14]",
                    call = sym call_saved,
                    inout("r12") 0x1111_u64 => first,
                    inout("r13") 0x2222_u64 => last,
                    in("r14") &mut status,
                    in("rdi") clobber as unsafe extern "C" fn(*mut c_void),
                    in("rsi") &raw mut calls,
                    clobber_abi("C"),
                );
                asm!("stmxcsr [{}]", in(reg) &mut after, options(nostack));
            }
            assert_eq!(
                (first, last, calls),
                (0x1111, 0x2222, 1 + u64::from(is_wide))
            );
            assert_eq!((before & 0x7f80, status >> 11 & 7), (after & 0x7f80, 0));
            if is_wide {
                assert_eq!((wide[0], wide[2]), (0x1234_5678_9abc_def0, wide[0]));
            }
        }
        PARTS.store(parts, Ordering::Relaxed);
    }
}
