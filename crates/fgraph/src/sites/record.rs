//! What the record of a site says of its bytes.

use core::ptr;
use core::sync::atomic::Ordering;

use fgraph_core::site::Site;

use crate::arch::poke::Content;
use crate::arch::stub;
use crate::arch::stub::SITE_LEN;

/// How many bytes the jump of a site to its relay has.
const SHORT_JUMP_LEN: usize = 2;

/// What [`Site::runtime`] holds: the bytes at the entry, and how many of them are patched.
pub(crate) fn pack_original(original: [u8; SITE_LEN], patched: usize) -> u64 {
    let mut word = [0; 8];
    word[..SITE_LEN].copy_from_slice(&original);
    word[SITE_LEN] = patched as u8;
    u64::from_le_bytes(word)
}

/// As [`pack_original`], for the NOP before a function that becomes its jump.
pub(crate) fn pack_relay_original(original: [u8; SITE_LEN]) -> u64 {
    pack_original(original, SITE_LEN) | 1 << (8 * RELAY)
}

/// The byte of the word that is not 0 for a relay.
const RELAY: usize = SITE_LEN + 1;

/// Whether a site is the NOP before a function that becomes its jump, because the function's own
/// entry has no room for it. The function's record is right behind that of the NOP.
pub(crate) fn is_relay(site: &Site) -> bool {
    site.runtime.load(Ordering::Relaxed).to_le_bytes()[RELAY] != 0
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
    site.runtime.load(Ordering::Relaxed).to_le_bytes()[SITE_LEN].into()
}

/// What the compiler made at a site. Of a breakpoint's only the first byte counts.
pub(crate) fn original(site: &Site) -> Content {
    let [a, b, c, d, e, ..] = site.runtime.load(Ordering::Relaxed).to_le_bytes();
    let starts = site
        .inner
        .iter()
        .rev()
        .fold(0, |starts, &copy| (starts | u8::from(copy != 0)) << 1);
    Content {
        bytes: [a, b, c, d, e],
        starts: starts | 1,
    }
}
