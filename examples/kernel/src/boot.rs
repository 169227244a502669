//! The first instructions of both processors, up to the first Rust function.
//!
//! QEMU reads the entry point in the ELF note and starts there in protected mode without paging:
//! the PVH protocol. The second processor starts in real mode, on a page below 1 MiB.
//!
//! ```text
//!   pvh_start   32 bits ---+
//!                          +--> long_mode: tables, paging on, 64 bits --> start_first
//!   ap_start    16 bits ---+                                         \--> start_second
//! ```
//!
//! The first Rust functions are in `main.rs`. Until the kernel has made tables of its own, these
//! map the first GiB three times, writable and executable: at 0, in the direct map, and where the
//! image is linked.

use core::arch::global_asm;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The physical address to which the second processor's first code is copied: its number, shifted
/// by 12, is the vector of the start-up IPI.
pub(crate) const AP_PAGE: usize = 0x8000;

/// Bytes of a processor's first stack.
const STACK: usize = 64 << 10;

/// The top of the stack on which the second processor starts.
pub(crate) static AP_STACK: AtomicUsize = AtomicUsize::new(0);

/// The first processor's stack until there are tasks; afterwards that of its idle task.
#[repr(C, align(4096))]
struct Stack([u8; STACK]);

static mut STACKS: [Stack; 2] = [const { Stack([0; STACK]) }; 2];

/// Returns the first stack of a processor.
pub(crate) fn stack(processor: usize) -> Range<usize> {
    let low = (&raw const STACKS).addr() + processor * STACK;
    low..low + STACK
}

/// Returns the second processor's first code, which runs at [`AP_PAGE`].
pub(crate) fn ap_code() -> Range<usize> {
    unsafe extern "C" {
        static ap_start: u8;
        static ap_end: u8;
    }
    (&raw const ap_start).addr()..(&raw const ap_end).addr()
}

/// Sets the stack on which the second processor starts.
pub(crate) fn prepare_ap() {
    // Release: the second processor is started after this, and reads it.
    AP_STACK.store(stack(1).end, Ordering::Release);
}

global_asm!(
    // Name and number are those of XEN_ELFNOTE_PHYS32_ENTRY.
    ".pushsection .boot.note, \"a\", @note",
    ".p2align 2",
    ".long 4, 8, 18",
    ".asciz \"Xen\"",
    ".quad pvh_start",
    ".popsection",
    //
    ".pushsection .boot.data, \"aw\", @progbits",
    ".p2align 12",
    ".globl boot_pml4",
    "boot_pml4:",
    ".quad boot_pdpt_low + 3",
    ".zero 8 * 255",
    // The direct map begins with the upper half.
    ".quad boot_pdpt_low + 3",
    ".zero 8 * 254",
    ".quad boot_pdpt_high + 3",
    "boot_pdpt_low:",
    ".quad boot_pd + 3",
    ".zero 8 * 511",
    "boot_pdpt_high:",
    ".zero 8 * 510",
    ".quad boot_pd + 3",
    ".zero 8",
    // Pages of 2 MiB: present, writable, large.
    "boot_pd:",
    ".set page, 0",
    ".rept 512",
    ".quad page + 0x83",
    ".set page, page + 0x200000",
    ".endr",
    "boot_gdt:",
    ".quad 0",
    ".quad 0x00af9b000000ffff", // 64-bit code
    ".quad 0x00cf93000000ffff", // data
    ".quad 0x00cf9b000000ffff", // 32-bit code
    "boot_gdt_end:",
    "boot_gdt_pointer:",
    ".word boot_gdt_end - boot_gdt - 1",
    ".quad boot_gdt",
    ".popsection",
    //
    ".pushsection .boot.text, \"ax\", @progbits",
    ".code32",
    ".globl pvh_start",
    // At this point: ebx is the address of the start information.
    "pvh_start:",
    "cld",
    "cli",
    "movl %ebx, %esi",
    "xorl %ebp, %ebp", // the first processor
    "lgdtl boot_gdt_pointer",
    // At this point: ebp is the processor's number, esi the start information.
    "long_mode:",
    "movl %cr4, %eax",
    "orl $0x620, %eax", // PAE, and SSE: the trampolines save its registers
    "movl %eax, %cr4",
    "movl $boot_pml4, %eax",
    "movl %eax, %cr3",
    "movl $0xc0000080, %ecx", // EFER
    "rdmsr",
    "orl $0x900, %eax", // long mode, and pages that are not executable
    "wrmsr",
    "movl %cr0, %eax",
    "andl $~4, %eax", // no emulation of the floating-point unit
    "orl $0x80010003, %eax", // paging, write protection, monitor, protected mode
    "movl %eax, %cr0",
    "ljmp $8, $in_long_mode",
    ".code64",
    "in_long_mode:",
    "movw $16, %ax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "xorl %eax, %eax",
    "movw %ax, %fs",
    "movw %ax, %gs",
    "movl %esi, %edi",
    "testl %ebp, %ebp",
    "jnz 2f",
    "movabsq ${stacks} + {stack}, %rsp",
    "movabsq $start_first, %rax",
    "jmp 3f",
    "2:",
    "movabsq ${ap_stack}, %rax",
    "movq (%rax), %rsp",
    "movabsq $start_second, %rax",
    "3:",
    "xorl %ebp, %ebp", // the end of all backtraces
    "callq *%rax",
    "ud2",
    ".popsection",
    //
    ".pushsection .rodata.ap, \"a\", @progbits",
    ".code16",
    ".globl ap_start",
    ".globl ap_end",
    "ap_start:",
    "cli",
    "cld",
    "xorw %ax, %ax",
    "movw %ax, %ds",
    "lgdtl (ap_gdt_pointer - ap_start + {ap_page})",
    "movl %cr0, %eax",
    "orl $1, %eax",
    "movl %eax, %cr0",
    "ljmpl $24, $(ap_protected - ap_start + {ap_page})",
    ".code32",
    "ap_protected:",
    "movw $16, %ax",
    "movw %ax, %ds",
    "movw %ax, %es",
    "movw %ax, %ss",
    "movl $1, %ebp", // the second processor
    "movl $long_mode, %eax",
    "jmpl *%eax",
    "ap_gdt_pointer:",
    ".word boot_gdt_end - boot_gdt - 1",
    ".long boot_gdt",
    "ap_end:",
    ".code64",
    ".popsection",
    stacks = sym STACKS,
    stack = const STACK,
    ap_stack = sym AP_STACK,
    ap_page = const AP_PAGE,
    options(att_syntax),
);
