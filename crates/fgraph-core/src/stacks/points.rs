//! Return points: code beside each frame, to which the body of the frame's call returns.
//!
//! The machine layer calls a body from the return point of the call's frame. The return address on
//! the machine stack then says which frame it is, and every register is the caller's while the body
//! runs: collectors that scan stacks find what only a register of the caller points to, and walkers
//! of frame pointers go on to the caller.
//!
//! Shadow stacks are in *arenas*, with the return points at fixed distances from the frames:
//!
//! ```text
//!   arena, a multiple of 4 spans      + span             + 2 spans          + 3 spans
//!     | shadow stacks   F              | points  P0        | points  P1       | points  P2      |
//!
//!   F + n: a frame      F + n + span: its return point for calls of the first kind, and so on
//! ```
//!
//! A kind is a variant of the trampolines: each has its own code behind the return. The points of a
//! kind are alike on every page, so all arenas map the same few pages.
//!
//! All arenas are aligned to four spans, and a span is a power of two. So a frame is found from any
//! address in its return point by clearing bits.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::frame::{FRAME_ALIGN, Frame};

/// The number of kinds of return points.
pub const KINDS: usize = 3;

/// The bytes of an arena, in spans.
pub const SPANS: usize = 1 + KINDS;

/// The most arenas.
pub const MAX_ARENAS: usize = 1024;

/// The arenas of the process.
#[derive(Debug)]
pub struct Points {
    /// Bytes from a frame to its first return point; 0 before the first arena.
    span: AtomicUsize,
    /// The addresses of the arenas, followed by 0.
    arenas: [AtomicUsize; MAX_ARENAS],
}

impl Points {
    pub(crate) const fn new() -> Self {
        Self {
            span: AtomicUsize::new(0),
            arenas: [const { AtomicUsize::new(0) }; MAX_ARENAS],
        }
    }

    /// Returns the bytes from a frame to its first return point; 0 before the first arena.
    pub fn span(&self) -> usize {
        self.span.load(Ordering::Acquire)
    }

    /// Sets the span, unless it was set before; returns the one that holds.
    ///
    /// # Safety
    ///
    /// It must be a power of two, at least twice [`FRAME_ALIGN`].
    pub unsafe fn set_span(&self, span: usize) -> usize {
        let (acq_rel, acquire) = (Ordering::AcqRel, Ordering::Acquire);
        match self.span.compare_exchange(0, span, acq_rel, acquire) {
            Ok(_) => span,
            Err(known) => known,
        }
    }

    /// Adds an arena; returns `false` if there are too many.
    ///
    /// # Safety
    ///
    /// [`SPANS`] spans of memory at `arena`, a multiple of their size, must be set apart for
    /// shadow stacks and return points, permanently.
    pub unsafe fn add(&self, arena: usize) -> bool {
        self.arenas.iter().any(|place| {
            // Release pairs with the Acquire of readers, which read the arena's unwind information.
            place
                .compare_exchange(0, arena, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Returns the arena in whose return points an address is.
    #[inline]
    pub fn arena_of(&self, address: usize) -> Option<usize> {
        // Relaxed: set before the first arena is added.
        let span = self.span.load(Ordering::Relaxed);
        let arena = address & (SPANS * span).wrapping_neg();
        if address.wrapping_sub(arena) < span || arena == 0 {
            return None;
        }
        self.arenas().find(|&known| known == arena)
    }

    /// Iterates over the addresses of all arenas.
    #[inline]
    pub fn arenas(&self) -> impl Iterator<Item = usize> {
        let known = self
            .arenas
            .iter()
            .map(|known| known.load(Ordering::Acquire));
        known.take_while(|&known| known != 0)
    }

    /// Returns true if an address is in a return point.
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        self.arena_of(address).is_some()
    }

    /// Returns the place of the frame to whose return points an address belongs; `None` if it is in
    /// no return point.
    pub fn frame_at(&self, address: usize) -> Option<*mut Frame> {
        let arena = self.arena_of(address)?;
        let offset = address & (self.span() - 1) & !(FRAME_ALIGN - 1);
        Some(core::ptr::with_exposed_provenance_mut(arena + offset))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_from_their_return_points_and_no_other_address() {
        const SPAN: usize = 1 << 20;
        const ARENA: usize = 3 * SPANS * SPAN;
        let points = Points::new();
        assert!(!points.contains(0) && !points.contains(ARENA + SPAN));
        // SAFETY: nothing is read or written there.
        unsafe {
            assert_eq!(points.set_span(SPAN), SPAN);
            assert_eq!(points.set_span(2 * SPAN), SPAN);
            assert!(points.add(ARENA) && points.add(2 * ARENA));
        }
        for arena in [ARENA, 2 * ARENA] {
            for kind in 1..=KINDS {
                for frame in [arena, arena + 96, arena + SPAN - FRAME_ALIGN] {
                    let point = frame + kind * SPAN;
                    for within in [point, point + 4, point + FRAME_ALIGN - 1] {
                        let found = points.frame_at(within).map(|frame| frame.addr());
                        assert_eq!(found, Some(frame));
                    }
                }
            }
            for other in [arena - 1, arena, arena + SPAN - 1, arena + SPANS * SPAN] {
                assert_eq!(points.frame_at(other), None);
            }
        }
    }

    #[test]
    fn arenas_beyond_the_limit_are_refused() {
        let points = Points::new();
        // SAFETY: nothing is read or written there.
        unsafe {
            points.set_span(4096);
            for nth in 1..=MAX_ARENAS {
                assert!(points.add(nth << 20));
            }
            assert!(!points.add(1 << 40));
        }
    }
}
