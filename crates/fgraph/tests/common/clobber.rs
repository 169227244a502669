//! Garbage in every register that a function may change, and in `errno`.
//!
//! Rust code leaves most registers alone most of the time; the users' callbacks leave none alone.
//! Where the ABI says that a function finds the x87 stack empty, at the entry, all of it is used,
//! as MMX registers as well. When a body is back its first two registers may hold a `long double`
//! or a complex one: no callback may use more than the other six.
//!
//! No exception flag of x87 or MXCSR is raised, which programs could see.
//!
//! # Safety
//!
//! The unsafe code tells the compiler which registers it changes.

// Long strings: assembly.

use std::arch::{asm, is_x86_feature_detected};

/// Before a body runs.
pub(crate) fn at_entry() {
    // SAFETY: the x87 stack is empty, and is afterwards. The registers are given.
    unsafe {
        asm!(
            ".rept 8",
            "fldpi",
            ".endr",
            ".rept 8",
            "fstp st(0)",
            ".endr",
            "pcmpeqd mm0, mm0",
            "movq mm1, mm0",
            "movq mm2, mm0",
            "movq mm3, mm0",
            "movq mm4, mm0",
            "movq mm5, mm0",
            "movq mm6, mm0",
            "movq mm7, mm0",
            "emms",
            clobber_abi("C"),
        );
    }
    vectors();
    integers();
}

/// After a body has run.
pub(crate) fn at_return() {
    // SAFETY: six registers are free, and are afterwards; the compiler takes all of them to be
    // changed.
    unsafe {
        asm!(
            ".rept 6",
            "fldpi",
            ".endr",
            ".rept 6",
            "fstp st(0)",
            ".endr",
            clobber_abi("C"),
        );
    }
    vectors();
    integers();
}

fn vectors() {
    if is_x86_feature_detected!("avx512bw") {
        // SAFETY: the machine has these registers, and the compiler is told that they change.
        unsafe {
            asm!(
                ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "vpternlogd zmm\\n, zmm\\n, zmm\\n, 0xff",
                ".endr",
                ".irp n,0,1,2,3,4,5,6,7",
                "kxnorq k\\n, k\\n, k\\n",
                ".endr",
                clobber_abi("C"),
            );
        }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        unsafe {
            asm!(
                ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "vpcmpeqd ymm\\n, ymm\\n, ymm\\n",
                ".endr",
                clobber_abi("C"),
            );
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!(
                ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
                "pcmpeqd xmm\\n, xmm\\n",
                ".endr",
                clobber_abi("C"),
            );
        }
    }
}

fn integers() {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = 0x5a5a };
    // SAFETY: the compiler is told that the registers and the flags change.
    unsafe {
        asm!(
            "mov eax, 0x7f",
            "add al, 1",
            "mov ah, 0xd5",
            "sahf",
            ".irp r,rax,rcx,rdx,rsi,rdi,r8,r9,r10,r11",
            "movabs \\r, 0x5a5a5a5a5a5a5a5a",
            ".endr",
            clobber_abi("C"),
        );
    }
}
