//! What the record of a site says of its bytes.

use core::ptr;
use core::sync::atomic::Ordering;

use fgraph_core::site::Site;

use crate::arch::poke::Content;
use crate::arch::stub;
use crate::arch::stub::SITE_LEN;
use crate::process::{loader_event, spawn_gate};

/// The entry is as the compiler made it.
pub(crate) const OFF: u8 = 0;
/// The entry jumps to the stub, or traps for good.
pub(crate) const ON: u8 = 1;

/// How many bytes the jump of a site to its relay has.
const SHORT_JUMP_LEN: usize = 2;

/// What [`Site::runtime`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Original {
    /// The bytes that the compiler made at the entry.
    pub(crate) bytes: [u8; SITE_LEN],
    /// How many of them are patched: one for a breakpoint, two for a short jump, else five.
    pub(crate) patched_len: u8,
    /// Whether the site is the NOP before a function that becomes its jump.
    pub(crate) is_relay: bool,
    /// Whether the site is a system call within a function.
    pub(crate) is_system_call: bool,
    /// True if no thread may trap there, and text may be exchanged as a whole only.
    pub(crate) is_exchanged: bool,
}

impl Original {
    pub(crate) fn of(site: &Site) -> Self {
        let word = site.runtime.load(Ordering::Relaxed);
        let [a, b, c, d, e, patched_len, flags, _] = word.to_le_bytes();
        let [is_relay, is_system_call, is_exchanged] = [1, 2, 4].map(|flag| flags & flag != 0);
        Self {
            bytes: [a, b, c, d, e],
            patched_len,
            is_relay,
            is_system_call,
            is_exchanged,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        let [a, b, c, d, e] = self.bytes;
        let flags = u8::from(self.is_relay)
            | u8::from(self.is_system_call) << 1
            | u8::from(self.is_exchanged) << 2;
        u64::from_le_bytes([a, b, c, d, e, self.patched_len, flags, 0])
    }

    /// The number of the system call that the site is: what the instruction there puts into a
    /// register.
    pub(crate) fn system_call(self) -> Option<u32> {
        let [_, a, b, c, d] = self.bytes;
        let number = u32::from_le_bytes([a, b, c, d]);
        self.is_system_call.then_some(number)
    }
}

/// Whether a site is the NOP before a function that becomes its jump, because the function's own
/// entry has no room for it. The function's record is right behind that of the NOP.
pub(crate) fn is_relay(site: &Site) -> bool {
    Original::of(site).is_relay
}

/// True if no thread may trap at a site, and its text may be exchanged as a whole only.
pub(crate) fn is_exchanged(site: &Site) -> bool {
    Original::of(site).is_exchanged
}

/// Whether a site is of a function that fgraph hooks for itself: the linker's, which tells of
/// libraries, and those that start processes in the same memory.
pub(crate) fn is_hook(site: &Site) -> bool {
    let address = site.address();
    loader_event::is_event(address) || spawn_gate::functions().any(|hook| hook == address)
}

/// The number of the system call within a function that a site is.
pub(crate) fn system_call(site: &Site) -> Option<u32> {
    Original::of(site).system_call()
}

/// Whether a site is of a function, and that function's own.
pub(crate) fn is_function(site: &Site) -> bool {
    let original = Original::of(site);
    !original.is_relay && !original.is_system_call
}

/// The site of the function that `relay` is for.
pub(crate) fn relayed(relay: &Site) -> &'static Site {
    // SAFETY: records of a module are in one slice, which is never freed, and that of the function
    // is right behind.
    unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(relay).addr()).add(1) }
}

/// The site before the function of `site` that has its jump, if it has one.
pub(crate) fn relay_of(site: &Site) -> Option<&'static Site> {
    // SAFETY: as in `relayed`: only sites with a relay have a short jump, and it is right before.
    let relay =
        || unsafe { &*ptr::with_exposed_provenance::<Site>(ptr::from_ref(site).addr()).sub(1) };
    (patched_len(site) == SHORT_JUMP_LEN).then(relay)
}

/// The short jump of a site to its relay.
pub(crate) fn short_jump(site: &Site) -> Option<[u8; 2]> {
    stub::jmp_rel8(site.entry, relay_of(site)?.entry)
}

/// How many bytes of a site are patched: one for a breakpoint, two for a short jump, else five.
pub(crate) fn patched_len(site: &Site) -> usize {
    Original::of(site).patched_len.into()
}

/// What the compiler made at a site. Of a breakpoint's only the first byte counts.
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
