//! The addresses of the trampolines, by variant and by machine.

use super::save::Machine;
use super::variant::Variant;

/// The targets of stubs: the address of each variant of the entry trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampolines {
    /// Addresses by number of the variant.
    entries: [usize; Variant::ALL.len()],
    /// The return addresses of bodies, for the variants that dispatch returns.
    pub return_points: [usize; Variant::CALLING.len()],
    /// The number of bytes that survive of each vector register.
    pub vector_bytes: u32,
}

impl Trampolines {
    /// No trampolines: no calls go through them.
    pub const NONE: Self = Self {
        entries: [0; Variant::ALL.len()],
        return_points: [0; Variant::CALLING.len()],
        vector_bytes: 0,
    };

    /// Returns the start address of a variant's trampoline.
    #[must_use]
    pub const fn entry(&self, variant: Variant) -> usize {
        self.entries[variant as usize]
    }

    /// Returns the trampolines for a machine with vector registers of `vector_bytes` (16, 32 or 64)
    /// and, in the last case, opmasks of `opmask_bytes` (2 or 8).
    ///
    /// On a machine that has larger registers, the rest does not survive; on one that has smaller
    /// ones, they cannot run.
    pub fn of(vector_bytes: u32, opmask_bytes: u32) -> Self {
        trampolines(vector_bytes, opmask_bytes, false)
    }

    /// Returns the caller-checking trampolines, which also disable cancellation during dispatch;
    /// otherwise like [`of`].
    ///
    /// [`of`]: Self::of
    pub fn caller_checking_of(vector_bytes: u32, opmask_bytes: u32) -> Self {
        trampolines(vector_bytes, opmask_bytes, true)
    }
}

/// The entry point and the return point of a trampoline; both are the former if it has no return
/// point.
type Points = [unsafe extern "C" fn(); 2];

/// The points of a trampoline and of its twin.
macro_rules! points {
    ($entry:literal, $return:literal) => {{
        unsafe extern "C" {
            #[link_name = $entry]
            fn entry();
            #[link_name = concat!($entry, "_checking")]
            fn checking_entry();
            #[link_name = concat!($entry, $return)]
            fn return_point();
            #[link_name = concat!($entry, $return, "_checking")]
            fn checking_return_point();
        }
        [
            [entry, return_point],
            [checking_entry, checking_return_point],
        ] as [Points; 2]
    }};
}

/// The points of the trampolines of one variant, by machine. A machine may share them with another
/// one.
macro_rules! machines {
    ($return:literal, $sse:literal, $avx:literal, $avx512f:literal, $avx512bw:literal) => {
        [
            points!($sse, $return),
            points!($avx, $return),
            points!($avx512f, $return),
            points!($avx512bw, $return),
        ]
    };
}

/// The addresses inside the trampolines, by variant and by machine.
#[rustfmt::skip]
static POINTS: [[[Points; 2]; 4]; Variant::ALL.len()] = [
    machines!("_return", "fgraph_plain_sse", "fgraph_plain_avx",
        "fgraph_plain_avx512", "fgraph_plain_avx512"),
    machines!("_return", "fgraph_preserve_sse", "fgraph_preserve_avx",
        "fgraph_preserve_avx512", "fgraph_preserve_avx512"),
    machines!("_return", "fgraph_preserve_sse", "fgraph_preserve_avx",
        "fgraph_preserve_all_avx512f", "fgraph_preserve_all_avx512bw"),
    machines!("", "fgraph_entry_only_sse", "fgraph_entry_only_avx",
        "fgraph_entry_only_avx512", "fgraph_entry_only_avx512"),
    machines!("", "fgraph_entry_only_sse", "fgraph_entry_only_avx",
        "fgraph_entry_only_all_avx512f", "fgraph_entry_only_all_avx512bw"),
];

/// See [`Trampolines::of`].
fn trampolines(vector_bytes: u32, opmask_bytes: u32, checks_callers: bool) -> Trampolines {
    let machine = Machine::of(vector_bytes, opmask_bytes);
    let points =
        |variant: Variant| POINTS[variant as usize][machine as usize][usize::from(checks_callers)];
    Trampolines {
        entries: Variant::ALL.map(|variant| points(variant)[0] as usize),
        return_points: Variant::CALLING.map(|variant| points(variant)[1] as usize),
        vector_bytes,
    }
}

/// The number of stretches of a variant's code in which rbp is the frame.
pub(super) const STRETCHES: usize = 3;

/// A stretch of code in which rbp is the frame: start and end, in bytes from the start of the code.
pub(super) type Stretch = [u32; 2];

/// Returns true if rbp is the frame at `address` in the variant at `start`.
///
/// # Safety
///
/// `start` must be the address of one.
pub(super) unsafe fn has_frame(start: usize, address: usize) -> bool {
    // SAFETY: the stretches stand right before the code.
    let stretches = unsafe { (start as *const [Stretch; STRETCHES]).sub(1).read() };
    let offset = address.wrapping_sub(start);
    let is_in = |[from, to]: [u32; 2]| (from as usize..to as usize).contains(&offset);
    stretches.into_iter().any(is_in)
}
