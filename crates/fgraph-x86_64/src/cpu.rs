//! Features of the machine.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, CpuidResult};

/// Returns the address of the calling thread's block, to which fs points.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let block: usize;
    // SAFETY: the ABI stores the thread pointer's own value there.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) block,
            options(nostack, preserves_flags, readonly));
    }
    block
}

/// Returns the bytes of a vector register that the processor has and the kernel saves: 16, 32 or
/// 64.
pub fn vector_bytes() -> u32 {
    const OSXSAVE: u32 = 1 << 27;
    const AVX: u32 = 1 << 28;
    const AVX512F: u32 = 1 << 16;
    /// XCR0 bits of the SSE and AVX state.
    const YMM: u32 = 0b110;
    /// XCR0 bits that add the opmasks, the upper halves of zmm0-15, and zmm16-31.
    const ZMM: u32 = YMM | 0b1110_0000;

    let features = cpuid(1).ecx;
    if features & OSXSAVE == 0 || features & AVX == 0 {
        return 16;
    }
    let (enabled, _high): (u32, u32);
    // SAFETY: the processor has xgetbv, since OSXSAVE is set.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _high,
            options(nomem, nostack, preserves_flags));
    }
    if enabled & YMM != YMM {
        return 16;
    }
    if extended_features() & AVX512F != 0 && enabled & ZMM == ZMM {
        64
    } else {
        32
    }
}

/// Returns the bytes of an opmask register on a machine with vector registers of 64 bytes: 2 or 8.
pub fn opmask_bytes() -> u32 {
    const AVX512BW: u32 = 1 << 30;
    if extended_features() & AVX512BW != 0 {
        8
    } else {
        2
    }
}

/// Returns true if the processor can load flags into ah, and back, in 64-bit mode.
pub fn has_lahf() -> bool {
    const EXTENDED: u32 = 0x8000_0000;
    cpuid(EXTENDED).eax > EXTENDED && cpuid(EXTENDED + 1).ecx & 1 != 0
}

/// Returns the first word of extended features; 0 if the processor has none.
fn extended_features() -> u32 {
    if cpuid(0).eax >= 7 { cpuid(7).ebx } else { 0 }
}

/// Executes `cpuid` for a leaf.
#[allow(unused_unsafe, reason = "newer compilers know that it is safe")]
fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: all processors of this architecture have the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}

/// Returns the words, and tells Memcheck, where the program runs in it, that it need not warn of
/// those that nobody has written.
///
/// Costs six instructions. Valgrind knows requests by instructions that change nothing: its
/// `valgrind.h` has them.
#[inline(always)]
pub fn of_any_memory(mut words: [usize; 2]) -> [usize; 2] {
    /// `VALGRIND_MAKE_MEM_DEFINED`.
    const MAKE_DEFINED: usize = 0x4d43_0002;
    // As if they were changed, so that they are read after the request.
    let place = words.as_mut_ptr().expose_provenance();
    let request = [MAKE_DEFINED, place, size_of_val(&words), 0, 0, 0];
    // SAFETY: rdi is rotated by 128 bits, and rbx exchanged with itself. Valgrind sets rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0 => _,
            options(nostack),
        );
    }
    words
}
