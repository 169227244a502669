//! A gate before the functions that start processes in the memory of their parent.
//!
//! Such a child runs the parent's code, often with all signals blocked, and must not exist while
//! text changes. While the gate is closed, calls wait before they start one.
//!
//! ```text
//!   caller -> site -> stub -> gate -> relocated prologue -> the function
//!                               |
//!                               counts calls that have passed and not returned
//! ```
//!
//! `vfork` returns twice, so its calls are not counted. A gate changes only flags: a caller may
//! rely on all registers.
//!
//! A call counts itself before it reads the gate. The closing thread reads the count after closing,
//! so one of the two sees the other.

use core::arch::global_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// 1 while the gate is closed, otherwise 0. Calls wait for this futex, at most a tenth of a second;
/// the first one to time out opens the gate.
pub static CLOSED: AtomicU32 = AtomicU32::new(0);

/// The number of calls of `posix_spawn` and `posix_spawnp` that have passed the gate and not
/// returned.
pub static INSIDE: AtomicU32 = AtomicU32::new(0);

/// The address of the relocated prologue for each gate; 0 before [`stand_at`].
static PROLOGUES: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// The time that a call waits, as `struct timespec`.
static PATIENCE: [i64; 2] = [0, 100_000_000];

global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    // Waits until the gate is open.
    "fgraph_wait_at_gate:",
    ".cfi_startproc",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r10",
    "push r11",
    ".cfi_adjust_cfa_offset 56",
    "2:",
    "lea rdi, [rip + {closed}]",
    // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
    "mov esi, 128",
    "mov edx, 1",
    "lea r10, [rip + {patience}]",
    "mov eax, {futex}",
    "syscall",
    "cmp eax, {timed_out}",
    "jne 3f",
    "mov dword ptr [rip + {closed}], 0",
    "3:",
    "cmp dword ptr [rip + {closed}], 0",
    "jne 2b",
    "pop r11",
    "pop r10",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    ".cfi_adjust_cfa_offset -56",
    "ret",
    ".cfi_endproc",
    ".popsection",
    closed = sym CLOSED,
    patience = sym PATIENCE,
    futex = const 202,
    timed_out = const -110,
);

/// Makes a gate for a function that returns once, with all of its arguments in registers.
macro_rules! counting {
    ($name:literal, $at:literal) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            "2:",
            "lock inc dword ptr [rip + {inside}]",
            "cmp dword ptr [rip + {closed}], 0",
            "je 3f",
            "lock dec dword ptr [rip + {inside}]",
            "call fgraph_wait_at_gate",
            "jmp 2b",
            "3:",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call qword ptr [rip + {prologues} + {at}]",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "lock dec dword ptr [rip + {inside}]",
            "ret",
            ".cfi_endproc",
            ".popsection",
            inside = sym INSIDE,
            closed = sym CLOSED,
            prologues = sym PROLOGUES,
            at = const 8 * $at,
        );
    };
}

counting!("fgraph_gate_of_posix_spawn", 0);
counting!("fgraph_gate_of_posix_spawnp", 1);

global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    ".globl fgraph_gate_of_vfork",
    ".hidden fgraph_gate_of_vfork",
    "fgraph_gate_of_vfork:",
    ".cfi_startproc",
    "cmp dword ptr [rip + {closed}], 0",
    "je 2f",
    "call fgraph_wait_at_gate",
    "2:",
    "jmp qword ptr [rip + {prologues} + 16]",
    ".cfi_endproc",
    ".popsection",
    closed = sym CLOSED,
    prologues = sym PROLOGUES,
);

/// The functions that have a gate.
pub const FUNCTIONS: [&CStr; 3] = [c"posix_spawn", c"posix_spawnp", c"vfork"];

/// Makes the gate of a function, by its index in [`FUNCTIONS`], lead to `prologue`. Returns the
/// address of the gate, at which a stub may continue instead.
///
/// # Safety
///
/// `prologue` must be the address of the relocated prologue of that function, or of one with the
/// same arguments, and stay valid.
pub unsafe fn stand_at(index: usize, prologue: usize) -> usize {
    unsafe extern "C" {
        fn fgraph_gate_of_posix_spawn();
        fn fgraph_gate_of_posix_spawnp();
        fn fgraph_gate_of_vfork();
    }
    // Release: a thread that comes to the gate finds the relocated prologue.
    PROLOGUES[index].store(prologue, Ordering::Release);
    let gates: [unsafe extern "C" fn(); 3] = [
        fgraph_gate_of_posix_spawn,
        fgraph_gate_of_posix_spawnp,
        fgraph_gate_of_vfork,
    ];
    gates[index] as *const () as usize
}
