//! The part of a site's record that describes its bytes.

use core::ptr;
use core::sync::atomic::Ordering;

use fgraph_core::site::Site;

use crate::arch::stub;
use crate::arch::stub::SITE_LEN;
use crate::arch::text_write::Content;
use crate::process::{call_gate, loader_event};

/// The entry is as the compiler made it.
pub(crate) const OFF: u8 = 0;
/// The entry jumps to the stub, or traps permanently.
pub(crate) const ON: u8 = 1;

/// The length of a site's short jump to its padding jump.
const SHORT_JUMP_LEN: usize = 2;

/// The content of [`Site::runtime`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Original {
    /// The bytes that the compiler made at the entry.
    pub(crate) bytes: [u8; SITE_LEN],
    /// The number of patched bytes: one for a breakpoint, two for a short jump, otherwise five.
    pub(crate) patched_len: u8,
    /// True if the site is the NOP before a function that becomes its padding jump.
    pub(crate) is_padding_jump: bool,
    /// True if the site is a system call within a function.
    pub(crate) is_system_call: bool,
    /// True if no thread may trap there, so that the text must be exchanged as a whole.
    pub(crate) is_exchanged: bool,
}

impl Original {
    pub(crate) fn of(site: &Site) -> Self {
        let word = site.runtime.load(Ordering::Relaxed);
        let [a, b, c, d, e, patched_len, flags, _] = word.to_le_bytes();
        let [is_padding_jump, is_system_call, is_exchanged] =
            [1, 2, 4].map(|flag| flags & flag != 0);
        Self {
            bytes: [a, b, c, d, e],
            patched_len,
            is_padding_jump,
            is_system_call,
            is_exchanged,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        let [a, b, c, d, e] = self.bytes;
        let flags = u8::from(self.is_padding_jump)
            | u8::from(self.is_system_call) << 1
            | u8::from(self.is_exchanged) << 2;
        u64::from_le_bytes([a, b, c, d, e, self.patched_len, flags, 0])
    }

    /// Returns the system call number of the site: the operand of its instruction.
    pub(crate) fn system_call(self) -> Option<u32> {
        let [_, a, b, c, d] = self.bytes;
        let number = u32::from_le_bytes([a, b, c, d]);
        self.is_system_call.then_some(number)
    }
}

/// Returns true if a site is the NOP before a function that becomes its padding jump, because the
/// function's own entry has no room for it. The function's record follows that of the NOP.
pub(crate) fn is_padding_jump(site: &Site) -> bool {
    Original::of(site).is_padding_jump
}

/// Returns true if no thread may trap at a site, so that its text must be exchanged as a whole.
pub(crate) fn is_exchanged(site: &Site) -> bool {
    Original::of(site).is_exchanged
}

/// Returns true if a site belongs to a function that fgraph hooks for itself: the linker's event
/// function, and those before a gate.
pub(crate) fn is_hook(site: &Site) -> bool {
    let address = site.address();
    loader_event::is_event(address) || call_gate::functions().any(|hook| hook == address)
}

/// Returns the system call number of a site within a function.
pub(crate) fn system_call(site: &Site) -> Option<u32> {
    Original::of(site).system_call()
}

/// Returns true if a site belongs to a function, and is its own.
pub(crate) fn is_function(site: &Site) -> bool {
    let original = Original::of(site);
    !original.is_padding_jump && !original.is_system_call
}

/// Returns the site of the function that uses the padding jump `padding_jump`.
pub(crate) fn function_of_padding_jump(padding_jump: &Site) -> &'static Site {
    // SAFETY: records of a module are in one slice, which is never freed, and that of the function
    // is the next one.
    unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(padding_jump).addr()).add(1) }
}

/// Returns the padding jump of the function of `site`, if it has one.
pub(crate) fn padding_jump_of(site: &Site) -> Option<&'static Site> {
    // SAFETY: only sites with a padding jump have a short jump, and its record is directly before.
    let padding_jump =
        || unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(site).addr()).sub(1) };
    (patched_len(site) == SHORT_JUMP_LEN).then(padding_jump)
}

/// Returns the short jump of a site to its padding jump.
pub(crate) fn short_jump(site: &Site) -> Option<[u8; 2]> {
    stub::jmp_rel8(site.entry, padding_jump_of(site)?.entry)
}

/// Returns the number of patched bytes of a site: one for a breakpoint, two for a short jump,
/// otherwise five.
pub(crate) fn patched_len(site: &Site) -> usize {
    Original::of(site).patched_len.into()
}

/// Returns the compiler's bytes at a site. For a breakpoint only the first byte counts.
pub(crate) fn original(site: &Site) -> Content {
    let starts = site
        .inner
        .iter()
        .rev()
        .fold(0, |starts, &copy| (starts | u8::from(copy != 0)) << 1);
    Content {
        bytes: Original::of(site).bytes,
        starts: starts | 1,
    }
}
