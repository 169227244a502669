//! Code that loads every register, calls, and looks at every register afterwards.
//!
//! ```text
//!   drive:  registers = CALLER_HAS;  call TARGET;  CALLER_GETS = registers
//!   body:   BODY_GETS = registers;   *WRITE_TO = WRITTEN;  registers = BODY_LEAVES;  ret
//! ```
//!
//! The body leaves alone what a callee has to preserve. Everything is there three times, for vector
//! registers of 16, 32 and 64 bytes.

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::mem::offset_of;

/// The registers that a caller may care about.
#[repr(C, align(64))]
#[derive(Clone)]
pub(crate) struct Registers {
    pub(crate) vectors: [[u8; 64]; 32],
    pub(crate) opmasks: [u64; 8],
    /// As the instruction set numbers them: rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub(crate) general: [u64; 16],
}

pub(crate) const GENERAL: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
pub(crate) const RAX: usize = 0;
pub(crate) const RDX: usize = 2;
pub(crate) const RBX: usize = 3;
pub(crate) const RSP: usize = 4;
pub(crate) const RBP: usize = 5;
pub(crate) const RDI: usize = 7;
pub(crate) const R9: usize = 9;
/// Registers that a callee has to preserve, besides rsp.
pub(crate) const CALLEE_SAVED: [usize; 6] = [RBX, RBP, 12, 13, 14, 15];

impl Registers {
    /// Different values everywhere, which depend on `seed`.
    pub(crate) fn pattern(seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            // Constants of Knuth's MMIX; the upper bits are the better ones.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) ^ state.rotate_left(24)
        };
        Self {
            vectors: std::array::from_fn(|_| std::array::from_fn(|_| next() as u8 | 1)),
            opmasks: std::array::from_fn(|_| next()),
            general: std::array::from_fn(|_| next()),
        }
    }

    /// The same with vector registers 0 to 15 no wider than `bytes`.
    pub(crate) fn narrowed(mut self, bytes: usize) -> Self {
        for vector in &mut self.vectors[..16] {
            vector[bytes..].fill(0);
        }
        self
    }
}

/// A place that assembly reads or writes; tests use it with the lock held.
#[repr(transparent)]
pub(crate) struct Place<T>(UnsafeCell<T>);

// SAFETY: used by one test at a time.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
}

impl<T: Clone> Place<T> {
    pub(crate) fn get(&self) -> T {
        // SAFETY: one test at a time.
        unsafe { (*self.0.get()).clone() }
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: one test at a time.
        unsafe { *self.0.get() = value }
    }
}

const EMPTY: Registers = Registers {
    vectors: [[0; 64]; 32],
    opmasks: [0; 8],
    general: [0; 16],
};

pub(crate) static CALLER_HAS: Place<Registers> = Place::new(EMPTY);
pub(crate) static CALLER_GETS: Place<Registers> = Place::new(EMPTY);
pub(crate) static BODY_GETS: Place<Registers> = Place::new(EMPTY);
pub(crate) static BODY_LEAVES: Place<Registers> = Place::new(EMPTY);
static RUBBISH: Registers = Registers {
    vectors: [[0xd5; 64]; 32],
    opmasks: [0xd5d5_d5d5_d5d5_d5d5; 8],
    general: [0xd5d5_d5d5_d5d5_d5d5; 16],
};
pub(crate) static TARGET: Place<usize> = Place::new(0);
pub(crate) static TAIL_TARGET: Place<usize> = Place::new(0);
pub(crate) static WRITE_TO: Place<usize> = Place::new(0);
pub(crate) static WRITTEN: Place<usize> = Place::new(0);

macro_rules! load_vectors {
    ($from:literal, ($mov:literal, $reg:literal, $numbers:literal, $opmasks:literal)) => {
        concat!(
            ".irp n,",
            $numbers,
            "\n",
            $mov,
            " ",
            $reg,
            "\\n, [rip + {",
            $from,
            "} + 64*\\n]\n",
            ".endr\n",
            ".if ",
            $opmasks,
            "\n",
            ".irp n,0,1,2,3,4,5,6,7\n",
            "kmovq k\\n, [rip + {",
            $from,
            "} + 64*32 + 8*\\n]\n",
            ".endr\n",
            ".endif\n",
        )
    };
}

macro_rules! store_vectors {
    ($to:literal, ($mov:literal, $reg:literal, $numbers:literal, $opmasks:literal)) => {
        concat!(
            ".irp n,",
            $numbers,
            "\n",
            $mov,
            " [rip + {",
            $to,
            "} + 64*\\n], ",
            $reg,
            "\\n\n",
            ".endr\n",
            ".if ",
            $opmasks,
            "\n",
            ".irp n,0,1,2,3,4,5,6,7\n",
            "kmovq [rip + {",
            $to,
            "} + 64*32 + 8*\\n], k\\n\n",
            ".endr\n",
            ".endif\n",
        )
    };
}

macro_rules! load_caller_saved {
    ($from:literal) => {
        concat!(
            "mov rax, [rip + {",
            $from,
            "} + 64*33]\n",
            "mov rcx, [rip + {",
            $from,
            "} + 64*33 + 8]\n",
            "mov rdx, [rip + {",
            $from,
            "} + 64*33 + 16]\n",
            "mov rsi, [rip + {",
            $from,
            "} + 64*33 + 48]\n",
            "mov rdi, [rip + {",
            $from,
            "} + 64*33 + 56]\n",
            ".irp n,8,9,10,11\n",
            "mov r\\n, [rip + {",
            $from,
            "} + 64*33 + 8*\\n]\n",
            ".endr\n",
        )
    };
}

macro_rules! store_general {
    ($to:literal) => {
        concat!(
            "mov [rip + {",
            $to,
            "} + 64*33], rax\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 8], rcx\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 16], rdx\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 24], rbx\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 32], rsp\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 40], rbp\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 48], rsi\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 56], rdi\n",
            ".irp n,8,9,10,11,12,13,14,15\n",
            "mov [rip + {",
            $to,
            "} + 64*33 + 8*\\n], r\\n\n",
            ".endr\n",
        )
    };
}

macro_rules! drive {
    ($name:ident, $end:ident, $vectors:tt, $pad:literal) => {
        global_asm!(
            ".pushsection .text",
            concat!(".globl ", stringify!($name)),
            concat!(".globl ", stringify!($end)),
            ".p2align 4",
            concat!(stringify!($name), ":"),
            ".cfi_startproc",
            ".irp r,rbx,rbp,r12,r13,r14,r15",
            "push \\r",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset \\r, 0",
            ".endr",
            concat!("sub rsp, ", $pad),
            concat!(".cfi_adjust_cfa_offset ", $pad),
            load_vectors!("has", $vectors),
            "mov rbx, [rip + {has} + 64*33 + 24]",
            "mov rbp, [rip + {has} + 64*33 + 40]",
            ".irp n,12,13,14,15",
            "mov r\\n, [rip + {has} + 64*33 + 8*\\n]",
            ".endr",
            "mov [rip + {has} + 64*33 + 32], rsp",
            load_caller_saved!("has"),
            "call [rip + {target}]",
            store_general!("gets"),
            store_vectors!("gets", $vectors),
            // This flag is the ABI's, whatever the others have become.
            "cld",
            concat!("add rsp, ", $pad),
            concat!(".cfi_adjust_cfa_offset -", $pad),
            ".irp r,r15,r14,r13,r12,rbp,rbx",
            "pop \\r",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_same_value \\r",
            ".endr",
            "ret",
            ".cfi_endproc",
            concat!(stringify!($end), ":"),
            ".popsection",
            has = sym CALLER_HAS,
            gets = sym CALLER_GETS,
            target = sym TARGET,
        );
        unsafe extern "C" {
            fn $name();
            fn $end();
        }
    };
}

macro_rules! body {
    ($name:ident, $end:ident, $vectors:tt) => {
        global_asm!(
            ".pushsection .text",
            concat!(".globl ", stringify!($name)),
            concat!(".globl ", stringify!($end)),
            ".p2align 4",
            concat!(stringify!($name), ":"),
            ".cfi_startproc",
            store_general!("gets"),
            store_vectors!("gets", $vectors),
            "mov rax, [rip + {write_to}]",
            "mov rcx, [rip + {written}]",
            "mov [rax], rcx",
            load_vectors!("leaves", $vectors),
            load_caller_saved!("leaves"),
            "ret",
            ".cfi_endproc",
            concat!(stringify!($end), ":"),
            ".popsection",
            gets = sym BODY_GETS,
            leaves = sym BODY_LEAVES,
            write_to = sym WRITE_TO,
            written = sym WRITTEN,
        );
        unsafe extern "C" {
            fn $name();
            fn $end();
        }
    };
}

macro_rules! clobber {
    ($name:ident, $vectors:tt) => {
        global_asm!(
            ".pushsection .text",
            concat!(".globl ", stringify!($name)),
            ".p2align 4",
            concat!(stringify!($name), ":"),
            ".cfi_startproc",
            load_vectors!("rubbish", $vectors),
            load_caller_saved!("rubbish"),
            "ret",
            ".cfi_endproc",
            ".popsection",
            rubbish = sym RUBBISH,
        );
        unsafe extern "C" {
            fn $name();
        }
    };
}

macro_rules! code {
    (
        $vectors:tt, $drive:ident, $drive_end:ident, $drive_misaligned:ident,
        $drive_misaligned_end:ident, $body:ident, $body_end:ident, $clobber:ident
    ) => {
        drive!($drive, $drive_end, $vectors, 8);
        drive!($drive_misaligned, $drive_misaligned_end, $vectors, 16);
        body!($body, $body_end, $vectors);
        clobber!($clobber, $vectors);
    };
}

code!(
    (
        "movups",
        "xmm",
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "0"
    ),
    drive_16,
    drive_16_end,
    drive_16_misaligned,
    drive_16_misaligned_end,
    body_16,
    body_16_end,
    clobber_16
);
code!(
    (
        "vmovups",
        "ymm",
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
        "0"
    ),
    drive_32,
    drive_32_end,
    drive_32_misaligned,
    drive_32_misaligned_end,
    body_32,
    body_32_end,
    clobber_32
);
code!(
    (
        "vmovups",
        "zmm",
        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
        "1"
    ),
    drive_64,
    drive_64_end,
    drive_64_misaligned,
    drive_64_misaligned_end,
    body_64,
    body_64_end,
    clobber_64
);

const _: () = assert!(offset_of!(Registers, opmasks) == 64 * 32);
const _: () = assert!(offset_of!(Registers, general) == 64 * 33);

global_asm!(
    ".pushsection .text",
    ".globl do_nothing",
    "do_nothing:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".globl tail_call",
    "tail_call:",
    ".cfi_startproc",
    "jmp [rip + {tail_target}]",
    ".cfi_endproc",
    ".popsection",
    tail_target = sym TAIL_TARGET,
);
unsafe extern "C" {
    /// Does nothing.
    pub(crate) safe fn do_nothing();
    /// Jumps to `TAIL_TARGET`.
    pub(crate) fn tail_call();
}

type Code = unsafe extern "C" fn();

/// The code for vector registers of one width.
#[derive(Clone, Copy)]
pub(crate) struct Machine {
    /// Bytes of a vector register.
    pub(crate) width: usize,
    /// Callers whose rsp is aligned for the ABI at the call, and off by 8.
    drive: [Code; 2],
    drive_end: [Code; 2],
    /// Stores what it gets and loads what it is to leave.
    pub(crate) body: Code,
    body_end: Code,
    clobber: Code,
}

pub(crate) static MACHINES: [Machine; 3] = [
    Machine {
        width: 16,
        drive: [drive_16, drive_16_misaligned],
        drive_end: [drive_16_end, drive_16_misaligned_end],
        body: body_16,
        body_end: body_16_end,
        clobber: clobber_16,
    },
    Machine {
        width: 32,
        drive: [drive_32, drive_32_misaligned],
        drive_end: [drive_32_end, drive_32_misaligned_end],
        body: body_32,
        body_end: body_32_end,
        clobber: clobber_32,
    },
    Machine {
        width: 64,
        drive: [drive_64, drive_64_misaligned],
        drive_end: [drive_64_end, drive_64_misaligned_end],
        body: body_64,
        body_end: body_64_end,
        clobber: clobber_64,
    },
];

impl Machine {
    /// Calls `TARGET` with `CALLER_HAS`; afterwards `CALLER_GETS` is what came back.
    pub(crate) fn drive(&self, misaligned: bool) {
        // SAFETY: what it calls is set up by the test, which holds the lock.
        unsafe { self.drive[usize::from(misaligned)]() }
    }

    /// Returns the range of the code of `drive`.
    pub(crate) fn driver(&self, misaligned: bool) -> std::ops::Range<usize> {
        let index = usize::from(misaligned);
        self.drive[index] as usize..self.drive_end[index] as usize
    }

    /// Returns the range of the code of the body.
    pub(crate) fn body_code(&self) -> std::ops::Range<usize> {
        self.body as usize..self.body_end as usize
    }

    /// Changes every register that a callee may change.
    pub(crate) fn clobber(&self) {
        // SAFETY: changes nothing but such registers.
        unsafe { (self.clobber)() }
    }
}
