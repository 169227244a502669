//! Gates before functions that must not run at certain moments of a change of text.
//!
//! - [`SPAWNS`]: functions that start processes in the memory of their parent. Such a child runs
//!   the parent's code, often with all signals blocked, and must not exist while text changes.
//! - [`MAPPINGS`]: functions that change mappings and their rights. The rights of text must not
//!   change between the moment when they are compared and the move of new text there.
//!
//! While a gate is closed, calls of its functions wait, except those of the thread that has closed
//! it.
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

use core::arch::{asm, global_asm};
use core::ffi::CStr;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The state of a gate.
#[derive(Debug)]
#[repr(C)]
pub struct Gate {
    /// 0, [`Gate::CLOSED`] or [`Gate::LOCKED`]. Calls wait for this futex. The first one that has
    /// waited for a tenth of a second opens a closed gate; a locked one stays so.
    pub closed: AtomicU32,
    /// The number of calls that have passed the gate and not returned.
    pub inside: AtomicU32,
    /// The thread pointer of the thread that has closed the gate.
    pub owner: AtomicUsize,
}

impl Gate {
    /// A gate that a call opens after a tenth of a second: it may have a lock that the closing
    /// thread waits for, such as an allocator's.
    pub const CLOSED: u32 = 1;
    /// A gate that no call opens, because its owner neither waits nor allocates.
    pub const LOCKED: u32 = 2;

    const fn new() -> Self {
        Self {
            closed: AtomicU32::new(0),
            inside: AtomicU32::new(0),
            owner: AtomicUsize::new(0),
        }
    }
}

/// The gate of `vfork`, `posix_spawn` and `posix_spawnp`.
pub static SPAWNS: Gate = Gate::new();

/// The gate of `mprotect`, `pkey_mprotect`, `mmap`, `munmap` and `mremap`.
pub static MAPPINGS: Gate = Gate::new();

/// The functions that have a gate.
pub const FUNCTIONS: [&CStr; 8] = [
    c"posix_spawn",
    c"posix_spawnp",
    c"vfork",
    c"mprotect",
    c"pkey_mprotect",
    c"mmap",
    c"munmap",
    c"mremap",
];

/// The address of the relocated prologue for each of [`FUNCTIONS`]; 0 before [`stand_at`].
static PROLOGUES: [AtomicUsize; FUNCTIONS.len()] = [const { AtomicUsize::new(0) }; FUNCTIONS.len()];

/// The time that a call waits, as `struct timespec`.
static PATIENCE: [i64; 2] = [0, 100_000_000];

/// Returns the thread pointer of the calling thread.
#[must_use]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the ABI has the thread pointer in the first word of the thread block.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) pointer,
            options(nostack, preserves_flags, pure, readonly));
    }
    pointer
}

global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    // Waits until the gate at r11 is open.
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
    "mov rdi, [rsp]",
    "mov edx, [rdi + {closed}]",
    "test edx, edx",
    "je 3f",
    // FUTEX_WAIT | FUTEX_PRIVATE_FLAG, while the gate is as it was read.
    "mov esi, 128",
    "lea r10, [rip + {patience}]",
    "mov eax, {futex}",
    "syscall",
    "cmp eax, {timed_out}",
    "jne 2b",
    "mov eax, {CLOSED}",
    "xor edx, edx",
    // Atomic, because its owner may be locking it.
    "lock cmpxchg [rdi + {closed}], edx",
    "jmp 2b",
    "3:",
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
    closed = const offset_of!(Gate, closed),
    patience = sym PATIENCE,
    futex = const 202,
    timed_out = const -110,
    CLOSED = const Gate::CLOSED,
);

const _: () = assert!(offset_of!(Gate, closed) == 0);

/// Makes a gate for a function that returns once, with all of its arguments in registers. A call
/// passes at once if `$passes_if` jumps to `4`.
macro_rules! counting {
    ($name:literal, $gate:ident, $at:literal, $($passes_if:literal),*) => {
        global_asm!(
            ".pushsection fgraph_text, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            $($passes_if,)*
            "2:",
            "lock inc dword ptr [rip + {gate} + {inside}]",
            "cmp dword ptr [rip + {gate}], 0",
            "je 3f",
            "push r11",
            ".cfi_adjust_cfa_offset 8",
            "mov r11, fs:[0]",
            "cmp r11, [rip + {gate} + {owner}]",
            "pop r11",
            ".cfi_adjust_cfa_offset -8",
            "je 3f",
            "lock dec dword ptr [rip + {gate} + {inside}]",
            "push r11",
            ".cfi_adjust_cfa_offset 8",
            "lea r11, [rip + {gate}]",
            "call fgraph_wait_at_gate",
            "pop r11",
            ".cfi_adjust_cfa_offset -8",
            "jmp 2b",
            "3:",
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "call qword ptr [rip + {prologues} + {at}]",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "lock dec dword ptr [rip + {gate} + {inside}]",
            "ret",
            "4:",
            "jmp qword ptr [rip + {prologues} + {at}]",
            ".cfi_endproc",
            ".popsection",
            gate = sym $gate,
            inside = const offset_of!(Gate, inside),
            owner = const offset_of!(Gate, owner),
            prologues = sym PROLOGUES,
            at = const 8 * $at,
        );
    };
}

counting!("fgraph_gate_of_posix_spawn", SPAWNS, 0,);
counting!("fgraph_gate_of_posix_spawnp", SPAWNS, 1,);
counting!("fgraph_gate_of_mprotect", MAPPINGS, 3,);
// Without a key it calls `mprotect`, which has its own gate.
counting!(
    "fgraph_gate_of_pkey_mprotect",
    MAPPINGS,
    4,
    "cmp ecx, -1",
    "je 4f"
);
counting!("fgraph_gate_of_mmap", MAPPINGS, 5,);
counting!("fgraph_gate_of_munmap", MAPPINGS, 6,);
counting!("fgraph_gate_of_mremap", MAPPINGS, 7,);

global_asm!(
    ".pushsection fgraph_text, \"ax\", @progbits",
    ".globl fgraph_gate_of_vfork",
    ".hidden fgraph_gate_of_vfork",
    "fgraph_gate_of_vfork:",
    ".cfi_startproc",
    "cmp dword ptr [rip + {gate}], 0",
    "je 2f",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "lea r11, [rip + {gate}]",
    "call fgraph_wait_at_gate",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "2:",
    "jmp qword ptr [rip + {prologues} + 16]",
    ".cfi_endproc",
    ".popsection",
    gate = sym SPAWNS,
    prologues = sym PROLOGUES,
);

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
        fn fgraph_gate_of_mprotect();
        fn fgraph_gate_of_pkey_mprotect();
        fn fgraph_gate_of_mmap();
        fn fgraph_gate_of_munmap();
        fn fgraph_gate_of_mremap();
    }
    // Release: a thread that comes to the gate finds the relocated prologue.
    PROLOGUES[index].store(prologue, Ordering::Release);
    let gates: [unsafe extern "C" fn(); FUNCTIONS.len()] = [
        fgraph_gate_of_posix_spawn,
        fgraph_gate_of_posix_spawnp,
        fgraph_gate_of_vfork,
        fgraph_gate_of_mprotect,
        fgraph_gate_of_pkey_mprotect,
        fgraph_gate_of_mmap,
        fgraph_gate_of_munmap,
        fgraph_gate_of_mremap,
    ];
    gates[index] as *const () as usize
}
