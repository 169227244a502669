//! The registers that a trampoline saves: where, how wide, and the moves.
//!
//! The registers beyond those that the callbacks see are saved behind their records:
//!
//! ```text
//!   rsp at dispatch of the entry           rsp at dispatch of the return
//!   +0    EntryRegs, vectors 0 to 7       +0    ReturnRegs, vectors 0 and 1
//!   +640  vectors 8 to 15                 +176  rsi rdi r9 r10 r11
//!   +1152 vectors 16 to 31, opmasks       +216  bytes of each vector that are saved
//!   ...   bytes of each vector that               (to a multiple of 64)
//!         are saved                       r9    vectors 2 to 15
//!         (64, up to S-8 or below)        ...   vectors 16 to 31, opmasks
//!                                               (32, up to S or S+8)
//! ```
//!
//! The widths of the other vectors are noted apart from that of the vectors in the record: a
//! callback that requests all bytes of an argument has the record filled up with zeros.
//!
//! Four registers are saved where they stay in reach until the last instruction: in the red zone
//! below the return address, whose place is S. At entry the stub has put the caller's r11 at S-16;
//! when it is back in its register the body's address takes its place, for the jump or call through
//! memory. At return rcx is at S-8, r8 at S-16 and rbp at S-24: with the value of r8 the thread's
//! `entered_sp` is cleared when everything else is in place. A signal handler that comes then is
//! traced, and uses neither the frame, which is not needed any more, nor the 128 bytes below S.

use core::mem::offset_of;

use fgraph_core::regs::{EntryRegs, ReturnRegs, Vector};

use super::variant::Variant;

/// A local label in a text that a trampoline has two copies of; `$copy` tells them apart.
macro_rules! label {
    ($name:literal, $copy:literal) => {
        concat!(".L", $name, "_", $copy, "_{v}:\n")
    };
}

/// A jump to a `label`.
macro_rules! jump {
    ($jump:literal, $name:literal, $copy:literal) => {
        concat!($jump, " .L", $name, "_", $copy, "_{v}\n")
    };
}

/// Stores numbered vector registers, each at `$place`, where `\n` stands for the number.
macro_rules! store {
    (
        $place:expr,
        ($mov:literal, $reg:literal, $width:literal, $bytes:literal),
        $numbers:literal
    ) => {
        concat!(
            ".irp n,", $numbers, "\n", $mov, " ", $width, " ptr [", $place, "], ", $reg, "\\n\n",
            ".endr\n",
        )
    };
}

/// Loads numbered vector registers, as `store` has stored them.
macro_rules! load {
    (
        $place:expr,
        ($mov:literal, $reg:literal, $width:literal, $bytes:literal),
        $numbers:literal
    ) => {
        concat!(
            ".irp n,", $numbers, "\n", $mov, " ", $reg, "\\n, ", $width, " ptr [", $place, "]\n",
            ".endr\n",
        )
    };
}

/// The place of an argument that the callbacks see.
macro_rules! arg {
    () => {
        "rsp + {vector} + 64*\\n"
    };
}

/// The place of a result that the callbacks see.
macro_rules! result {
    () => {
        "rsp + {result_vector} + 64*\\n"
    };
}

/// The place of another of the first 16 vector registers at entry: densely, because the processor
/// writes two words of one cache line at once.
macro_rules! saved_arg {
    (($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("rsp + {saved_vectors} + ", $bytes, "*(\\n - 8)")
    };
}

/// The place of another of the first 16 vector registers at return.
macro_rules! saved_result {
    (($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("r9 + ", $bytes, "*(\\n - 2)")
    };
}

/// Notes how wide vectors are stored.
macro_rules! note {
    (
        $size:literal, $place:literal,
        ($mov:literal, $reg:literal, $width:literal, $bytes:literal)
    ) => {
        concat!("mov ", $size, " ptr [rsp + {", $place, "}], ", $bytes, "\n")
    };
}

/// Looks whether vectors are stored so wide.
macro_rules! compare {
    ($place:literal, ($mov:literal, $reg:literal, $width:literal, $bytes:literal)) => {
        concat!("cmp dword ptr [rsp + {", $place, "}], ", $bytes, "\n")
    };
}

/// Stores the vector arguments, and the others of the first 16 registers where they must survive.
macro_rules! store_args {
    ($moves:tt) => {
        concat!(
            store!(arg!(), $moves, "0,1,2,3,4,5,6,7"),
            ".if {preserve}\n",
            store!(saved_arg!($moves), $moves, "8,9,10,11,12,13,14,15"),
            note!("dword", "saved_width", $moves),
            ".endif\n",
            note!("dword", "width", $moves),
        )
    };
}

/// Loads the vector arguments.
macro_rules! load_args {
    ($moves:tt) => {
        load!(arg!(), $moves, "0,1,2,3,4,5,6,7")
    };
}

/// Loads the others that `store_args` stored.
macro_rules! load_saved_args {
    ($moves:tt) => {
        concat!(
            ".if {preserve}\n",
            load!(saved_arg!($moves), $moves, "8,9,10,11,12,13,14,15"),
            ".endif\n",
        )
    };
}

/// Stores the vector results, and the others of the first 16 registers where they must survive.
macro_rules! store_results {
    ($moves:tt) => {
        concat!(
            store!(result!(), $moves, "0,1"),
            ".if {preserve}\n",
            store!(
                saved_result!($moves),
                $moves,
                "2,3,4,5,6,7,8,9,10,11,12,13,14,15"
            ),
            note!("dword", "saved_result_width", $moves),
            ".endif\n",
            // And clears `how`, which follows.
            note!("qword", "result_width", $moves),
        )
    };
}

/// Loads the vector results.
macro_rules! load_results {
    ($moves:tt) => {
        load!(result!(), $moves, "0,1")
    };
}

/// Loads the others that `store_results` stored.
macro_rules! load_saved_results {
    ($moves:tt) => {
        concat!(
            ".if {preserve}\n",
            load!(
                saved_result!($moves),
                $moves,
                "2,3,4,5,6,7,8,9,10,11,12,13,14,15"
            ),
            ".endif\n",
        )
    };
}

/// Stores what only AVX-512 has, where it must survive, at `$place`: vector registers 16 to 31 and
/// the opmasks.
macro_rules! store_beyond {
    ($place:literal, ($opmask_mov:literal, $opmask_width:literal)) => {
        concat!(
            ".if {beyond}\n",
            store!(
                concat!($place, " + 64*(\\n - 16)"),
                ("vmovups", "zmm", "zmmword", 64),
                "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
            ),
            store!(
                concat!($place, " + 64*16 + 8*\\n"),
                ($opmask_mov, "k", $opmask_width, 8),
                "0,1,2,3,4,5,6,7"
            ),
            ".endif\n",
        )
    };
}

/// Loads what `store_beyond` has stored.
macro_rules! load_beyond {
    ($place:literal, $opmask:tt) => {
        load_beyond!(
            $place,
            $opmask,
            "16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "0,1,2,3,4,5,6,7"
        )
    };
    (
        $place:literal, ($opmask_mov:literal, $opmask_width:literal),
        $vectors:literal, $opmasks:literal
    ) => {
        concat!(
            ".if {beyond}\n",
            load!(
                concat!($place, " + 64*(\\n - 16)"),
                ("vmovups", "zmm", "zmmword", 64),
                $vectors
            ),
            load!(
                concat!($place, " + 64*16 + 8*\\n"),
                ($opmask_mov, "k", $opmask_width, 8),
                $opmasks
            ),
            ".endif\n",
        )
    };
}

/// Makes r9 point to where vector registers are saved at return: at a multiple of their width,
/// which the machine stack does not promise.
macro_rules! point_r9 {
    () => {
        ".if {preserve}
         lea r9, [rsp + {saved_results} + 63]
         and r9, -64
         .endif
        "
    };
}

/// Stores the results, and what the caller may rely on of the general registers, in the room that
/// rsp points to.
macro_rules! store_int {
    () => {
        "mov [rsp + {result}], rax
         mov [rsp + {result} + 8], rdx
         .if {preserve}
         mov [rsp + {saved_int}], rsi
         mov [rsp + {saved_int} + 8], rdi
         mov [rsp + {saved_int} + 16], r9
         mov [rsp + {saved_int} + 24], r10
         mov [rsp + {saved_int} + 32], r11
         .endif
        "
    };
}

/// Loads what `leave_call` has saved of the general registers that calls change, but for r9.
macro_rules! load_saved_int {
    () => {
        ".if {preserve}
         mov rsi, [rsp + {saved_int}]
         mov rdi, [rsp + {saved_int} + 8]
         mov r10, [rsp + {saved_int} + 24]
         mov r11, [rsp + {saved_int} + 32]
         .endif
        "
    };
}

/// Goes to the wide moves if a vector argument needs them, or if any of the first 16 registers
/// does.
///
/// The trampolines of machines with AVX look whether any of the vector registers has a bit set
/// above the lowest 128, and save no more than those if not, because wide stores and loads take
/// longer. The loads of 128 bits clear the rest, whatever the callbacks have left there.
///
/// zmm16, zmm17 and k1 are free under the ABI, not promised by the variant, or saved before. So are
/// ymm8 to 11 under the ABI.
macro_rules! if_wide_args {
    (never) => {
        ""
    };
    (by_abi) => {
        "vmovdqa64 zmm16, zmm0
         vmovdqa64 zmm17, zmm3
         vpternlogq zmm16, zmm1, zmm2, 0xfe
         vpternlogq zmm17, zmm4, zmm5, 0xfe
         vpternlogq zmm16, zmm6, zmm7, 0xfe
         vporq zmm16, zmm16, zmm17
         vptestmq k1, zmm16, zmm16
         kmovw eax, k1
         test al, 0xfc
         jnz .Lwide_args_{v}"
    };
    (by_all) => {
        concat!(test_16!(), "jnz .Lwide_args_{v}")
    };
    (ymm_by_abi) => {
        "vorps ymm8, ymm0, ymm1
         vorps ymm9, ymm2, ymm3
         vorps ymm10, ymm4, ymm5
         vorps ymm11, ymm6, ymm7
         vorps ymm8, ymm8, ymm9
         vorps ymm10, ymm10, ymm11
         vorps ymm8, ymm8, ymm10
         vextractf128 xmm8, ymm8, 1
         vptest xmm8, xmm8
         jnz .Lwide_args_{v}"
    };
    (ymm_by_all) => {
        concat!(
            test_16_ymm!("rsp + {saved_vectors} + 32*8"),
            "jnz .Lwide_args_{v}"
        )
    };
}

/// As `if_wide_args`, for the results.
macro_rules! if_wide_results {
    (never, $stack:literal) => {
        ""
    };
    (by_abi, $stack:literal) => {
        concat!(
            "vporq zmm16, zmm0, zmm1
             vptestmq k1, zmm16, zmm16
             kmovw ecx, k1
             test cl, 0xfc
            ",
            jump!("jnz", "wide_results", $stack)
        )
    };
    (by_all, $stack:literal) => {
        concat!(test_16!(), jump!("jnz", "wide_results", $stack))
    };
    (ymm_by_abi, $stack:literal) => {
        concat!(
            "vorps ymm2, ymm0, ymm1
             vextractf128 xmm2, ymm2, 1
             vptest xmm2, xmm2
            ",
            jump!("jnz", "wide_results", $stack)
        )
    };
    (ymm_by_all, $stack:literal) => {
        concat!(
            test_16_ymm!("r9 + 32*14"),
            jump!("jnz", "wide_results", $stack)
        )
    };
}

/// Clears the bits above the lowest 128 of the first 16 vector registers: all these bits are zero,
/// saved, or free.
///
/// The users' code is of SSE mostly. Each change between that and AVX, the moves here included,
/// takes 50 ns on some processors (EPYC, family 25) while anything may be there.
macro_rules! zero_upper {
    (never) => {
        ""
    };
    ($by:ident) => {
        "vzeroupper\n"
    };
}

/// Does the same as `test_16` for 256 bits. No register is free: two are at `$place` meanwhile.
macro_rules! test_16_ymm {
    ($place:literal) => {
        concat!(
            "vmovups ymmword ptr [",
            $place,
            "], ymm14
             vmovups ymmword ptr [",
            $place,
            " + 32], ymm15
             .irp n,0,2,4,6,8,10,12
             vorps ymm14, ymm14, ymm\\n
             .endr
             .irp n,1,3,5,7,9,11,13
             vorps ymm15, ymm15, ymm\\n
             .endr
             vorps ymm15, ymm15, ymm14
             vextractf128 xmm15, ymm15, 1
             vptest xmm15, xmm15
             vmovups ymm14, ymmword ptr [",
            $place,
            "]
             vmovups ymm15, ymmword ptr [",
            $place,
            " + 32]
            "
        )
    };
}

/// Looks whether one of the first 16 vector registers has a bit set above the lowest 128.
macro_rules! test_16 {
    () => {
        "vmovdqa64 zmm16, zmm0
         vmovdqa64 zmm17, zmm3
         vpternlogq zmm16, zmm1, zmm2, 0xfe
         vpternlogq zmm17, zmm4, zmm5, 0xfe
         vpternlogq zmm16, zmm6, zmm7, 0xfe
         vpternlogq zmm17, zmm8, zmm9, 0xfe
         vpternlogq zmm16, zmm10, zmm11, 0xfe
         vpternlogq zmm17, zmm12, zmm13, 0xfe
         vpternlogq zmm16, zmm14, zmm15, 0xfe
         vporq zmm16, zmm16, zmm17
         vptestmq k1, zmm16, zmm16
         kmovw ecx, k1
         test cl, 0xfc
        "
    };
}

/// Goes to the wide moves if the arguments were stored by those, or a callback has widened them.
macro_rules! if_widened_args {
    (never) => {
        ""
    };
    ($by:ident) => {
        "cmp dword ptr [rsp + {width}], 16
         jne .Lwidened_args_{v}"
    };
}

/// As `if_widened_args`, for the results.
macro_rules! if_widened_results {
    (never, $stack:literal) => {
        ""
    };
    ($by:ident, $stack:literal) => {
        concat!(
            "cmp dword ptr [rsp + {result_width}], 16\n",
            jump!("jne", "widened_results", $stack)
        )
    };
}

/// The vector registers and opmasks of a machine.
#[derive(Clone, Copy)]
pub(super) enum Machine {
    /// xmm0 to 15.
    Sse,
    /// ymm0 to 15.
    Avx,
    /// zmm0 to 31, opmasks of 16 bits.
    Avx512F,
    /// zmm0 to 31, opmasks of 64 bits.
    Avx512Bw,
}

impl Machine {
    /// The one with vector registers of `vector_bytes` and opmasks of `opmask_bytes`.
    pub(super) const fn of(vector_bytes: u32, opmask_bytes: u32) -> Self {
        match (vector_bytes, opmask_bytes) {
            (64, 8) => Self::Avx512Bw,
            (64, _) => Self::Avx512F,
            (32, _) => Self::Avx,
            _ => Self::Sse,
        }
    }
}

/// The registers that a variant saves beside those that all variants save.
pub(super) struct SaveSet {
    /// True if it saves vector registers 8 to 15, and every general register at return. The stub
    /// has saved r11.
    pub(super) preserve: bool,
    /// True if it saves vector registers 16 to 31 and the opmasks.
    pub(super) beyond: bool,
}

impl Variant {
    pub(super) const fn save_set(self) -> SaveSet {
        SaveSet {
            preserve: !matches!(self, Self::Plain),
            beyond: matches!(self, Self::PreserveAll | Self::EntryOnlyAll),
        }
    }
}

/// Bytes of a vector register.
const VECTOR: usize = size_of::<Vector>();
/// Bytes of what only AVX-512 has.
const BEYOND: usize = 16 * VECTOR + 8 * 8;

impl SaveSet {
    /// Bytes on the stack at dispatch of an entry. The last 64 are free for what stands beneath
    /// the link: the caller's r11, and what a user puts in the place of the body.
    pub(super) const fn entry_room(&self) -> usize {
        if self.preserve {
            self.saved_width() + 64
        } else {
            size_of::<EntryRegs>() + 64
        }
    }

    /// The place of vector registers 8 to 15 at entry.
    pub(super) const fn saved_vectors(&self) -> usize {
        size_of::<EntryRegs>()
    }

    /// The place of vector registers 16 to 31 and the opmasks at entry.
    pub(super) const fn saved_beyond(&self) -> usize {
        self.saved_vectors() + 8 * VECTOR
    }

    /// The place of the width with which vector registers 8 to 15 are saved at entry.
    pub(super) const fn saved_width(&self) -> usize {
        self.saved_beyond() + if self.beyond { BEYOND } else { 0 }
    }

    /// Bytes on the stack at dispatch of a return: in the last 32 are the words below the return
    /// address.
    pub(super) const fn return_room(&self) -> usize {
        if self.preserve {
            let vectors = 14 * VECTOR + if self.beyond { BEYOND } else { 0 };
            self.saved_results() + 64 + vectors + 32
        } else {
            // Beside S, where our return point must be seen for as long as the frame is on a shadow
            // stack: another thread may look there whether the call goes on.
            size_of::<ReturnRegs>() + 16
        }
    }

    /// The place of general registers at return.
    pub(super) const fn saved_int(&self) -> usize {
        size_of::<ReturnRegs>()
    }

    /// The place of the width with which vector registers 2 to 15 are saved at return.
    pub(super) const fn saved_result_width(&self) -> usize {
        self.saved_int() + 5 * 8
    }

    /// The place after which, at the next multiple of 64, vector registers are saved at return.
    pub(super) const fn saved_results(&self) -> usize {
        self.saved_result_width() + 8
    }
}

// Assumptions of the assembly.
const _: () = assert!(
    offset_of!(EntryRegs, vector).is_multiple_of(64)
        && Variant::PreserveAll
            .save_set()
            .entry_room()
            .is_multiple_of(64)
);
const _: () = assert!(
    Variant::PreserveAll
        .save_set()
        .return_room()
        .is_multiple_of(16)
);
const _: () = assert!(offset_of!(ReturnRegs, how) == offset_of!(ReturnRegs, width) + 4);
