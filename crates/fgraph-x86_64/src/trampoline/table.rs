//! The addresses of the trampolines, by variant and by machine.

use super::save::Machine;
use super::variant::Variant;

/// The targets of stubs: the address of each variant of the entry trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampolines {
    /// Addresses by number of the variant.
    entries: [usize; Variant::ALL.len()],
    /// The code behind the return points, for the variants that dispatch returns.
    pub(super) return_code: [usize; Variant::CALLING.len()],
    /// The number of bytes that survive of each vector register.
    pub vector_bytes: u32,
}

impl Trampolines {
    /// No trampolines: no calls go through them.
    pub const NONE: Self = Self {
        entries: [0; Variant::ALL.len()],
        return_code: [0; Variant::CALLING.len()],
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

/// The entry point of a trampoline, that of its twin, and the return code of both: the first one if
/// they have none.
type Points = [unsafe extern "C" fn(); 3];

/// The points of a trampoline and of its twin.
macro_rules! points {
    ($entry:literal, $return:literal) => {{
        unsafe extern "C" {
            #[link_name = $entry]
            fn entry();
            #[link_name = concat!($entry, "_checking")]
            fn checking_entry();
            #[link_name = concat!($entry, $return)]
            fn return_code();
        }
        [entry, checking_entry, return_code] as Points
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
static POINTS: [[Points; 4]; Variant::ALL.len()] = [
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
    let points = |variant: Variant| POINTS[variant as usize][machine as usize];
    let entry = usize::from(checks_callers);
    Trampolines {
        entries: Variant::ALL.map(|variant| points(variant)[entry] as usize),
        return_code: Variant::CALLING.map(|variant| points(variant)[2] as usize),
        vector_bytes,
    }
}

/// The number of stretches of a variant's code with a frame: in the last one it is not in rbp.
pub(super) const STRETCHES: usize = 4;

/// A stretch of code with a frame: start and end, in bytes from the start of the code.
pub(super) type Stretch = [u32; 2];

/// The place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePlace {
    /// In rbp.
    Rbp,
    /// The body is about to be called: the frame is the one that was dispatched last, and rbx the
    /// caller's again.
    Dispatched,
}

/// Returns where the frame is at `address` in the variant at `start`, if a call is going on there.
///
/// # Safety
///
/// `start` must be the address of one.
pub(super) unsafe fn frame_place(start: usize, address: usize) -> Option<FramePlace> {
    // SAFETY: the stretches stand right before the code.
    let stretches = unsafe { (start as *const [Stretch; STRETCHES]).sub(1).read() };
    let offset = address.wrapping_sub(start);
    let is_in = |[from, to]: [u32; 2]| (from as usize..to as usize).contains(&offset);
    let nth = stretches.into_iter().position(is_in)?;
    Some(match nth {
        3 => FramePlace::Dispatched,
        _ => FramePlace::Rbp,
    })
}
