//! All calls around a call, the traced ones and those between them.
//!
//! The runtime knows the unwind information of modules, and so how to get from one function to its
//! caller. The body of a traced call returns to the machine layer; from there the call's frame on
//! the shadow stack leads on:
//!
//! ```text
//!   machine stack                        shadow stack
//!   | return address into g  |  unwind information of g
//!   | return point           | ------> frame of f: true return address, caller's frame pointer
//!   | ...                    | <------   unwind information of f's caller
//! ```
//!
//! Where there is no unwind information, the nearest traced call around leads on as well.

use core::mem::MaybeUninit;
use core::ptr;

use super::known_rules::{self, Rules};
use crate::call::{Entry, Return};
use crate::fgraph::FGRAPH;
use crate::frame::Frame;
use crate::stack_provider::Position;
use crate::thread::Thread;

/// Defines the method, which `Entry` and `Return` share.
macro_rules! define_unwind {
    ($of:ident) => {
        impl<D> $of<'_, D> {
            /// Fills in where this call and all calls around it return to, traced or not, the
            /// innermost first, and says how many addresses these are: at most as many as there is
            /// room for.
            ///
            /// They are the true addresses, without any of fgraph's own code. The byte before each
            /// belongs to the function that calls, or that a signal has interrupted. The calls are
            /// found by the unwind information of modules (`.eh_frame`). Where code has none, as
            /// code that is compiled at run time, the nearest traced call around is the next; if
            /// there is none, the list ends. It never goes on with a guess.
            ///
            /// Neither allocates nor locks, and may be called for calls of signal handlers too. A
            /// call at a place that was met before takes much less time than the first one there.
            /// [`callers`](Self::callers), which tells of traced calls only, takes less.
            ///
            /// # Example
            ///
            /// ```
            /// # use fgraph_core::{Entry, FgraphOps};
            /// /// Prints where `abort` is called.
            /// struct Backtrace;
            ///
            /// impl FgraphOps for Backtrace {
            ///     type Data = ();
            ///
            ///     fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
            ///         let mut addresses = [0; 64];
            ///         let count = call.unwind(&mut addresses);
            ///         eprintln!("{:#x?}", &addresses[..count]);
            ///         None
            ///     }
            /// }
            /// ```
            pub fn unwind(&self, addresses: &mut [usize]) -> usize {
                let at = Position {
                    address: self.returns_to(),
                    stack_pointer: self.stack_pointer(),
                    frame_pointer: self.frame_pointer(),
                };
                let enclosing = self.enclosing().unwrap_or(ptr::null_mut());
                // SAFETY: the frames enclose this call, which is on the thread's stack.
                unsafe { unwind(self.thread(), enclosing, at, addresses) }
            }

            /// Returns the addresses that [`unwind`](Self::unwind) would fill in, if that takes
            /// little: no traced call is around this one on its machine stack, and all places were
            /// met before. Otherwise returns `None`; `unwind` helps then.
            ///
            /// It takes a few nanoseconds for each call, and callbacks on the fast path may use it.
            #[inline(always)]
            pub fn unwind_known<'p>(
                &self,
                places: &'p mut [MaybeUninit<usize>],
            ) -> Option<&'p [usize]> {
                let at = Position {
                    address: self.returns_to(),
                    stack_pointer: self.stack_pointer(),
                    frame_pointer: self.frame_pointer(),
                };
                let enclosing = self.enclosing()?;
                // SAFETY: the frame is null, or one that encloses this call, which is on the
                // thread's stack.
                unsafe {
                    let is_alone = enclosing.as_ref().is_none_or(|it| it.previous.is_null());
                    if !is_alone {
                        return None;
                    }
                    unwind_known(self.thread(), at, places)
                }
            }
        }
    };
}

define_unwind!(Entry);
define_unwind!(Return);

/// Fills in where the calls go on, the innermost first, and returns how many these are. `at` is
/// where the first one does, as the machine stack has it, and `enclosing` the newest traced call
/// around it, or null.
///
/// # Safety
///
/// `enclosing` must be null, or a frame of a shadow stack whose frames stay while this runs. `at`
/// must be on the machine stack of `thread`, which is the running one.
unsafe fn unwind(
    thread: &Thread,
    mut enclosing: *mut Frame,
    mut at: Position,
    addresses: &mut [usize],
) -> usize {
    let step = FGRAPH.0.stacks().caller;
    let mut count = 0;
    while let Some(place) = addresses.get_mut(count) {
        // SAFETY: handed on.
        enclosing = unsafe { above(enclosing, at.stack_pointer.wrapping_sub(size_of::<usize>())) };
        if FGRAPH.0.is_return_point(at.address) {
            // SAFETY: as above.
            match unsafe { behind(&mut enclosing) } {
                Some(position) if position.stack_pointer == at.stack_pointer => at = position,
                _ => break,
            }
        }
        *place = at.address;
        count += 1;
        // SAFETY: as above; what has been looked at is left out.
        let traced = || unsafe {
            let mut next = above(enclosing, at.stack_pointer);
            let position = behind(&mut next);
            enclosing = next;
            position
        };
        match step(thread, at).or_else(traced) {
            Some(caller) => at = caller,
            None => break,
        }
    }
    count
}

/// Fills in addresses like [`unwind`], where all rules are cached and no traced call is around.
///
/// # Safety
///
/// `at` must be on the machine stack of `thread`, which is the running one.
#[inline(always)]
unsafe fn unwind_known<'p>(
    thread: &Thread,
    mut at: Position,
    places: &'p mut [MaybeUninit<usize>],
) -> Option<&'p [usize]> {
    let (low, span) = (thread.low.get(), thread.span.get());
    if at.stack_pointer.wrapping_sub(low) >= span || !at.stack_pointer.is_multiple_of(8) {
        return None;
    }
    let mut count = 0;
    while let Some(place) = places.get_mut(count) {
        place.write(at.address);
        count += 1;
        let Rules::Caller {
            by_frame_pointer,
            frame,
            saved,
        } = known_rules::known(at.address.wrapping_sub(1))?
        else {
            break;
        };
        let base = match by_frame_pointer {
            true => at.frame_pointer,
            false => at.stack_pointer,
        };
        let frame = base.wrapping_add(frame);
        // All words that are read are above the stack pointer, and below the end of the stack.
        let is_within = frame > at.stack_pointer
            && frame.wrapping_sub(low) <= span
            && frame.is_multiple_of(8)
            && saved <= frame.wrapping_sub(at.stack_pointer);
        if !is_within {
            return None;
        }
        let word = |below: usize| {
            let word = ptr::with_exposed_provenance::<usize>(frame.wrapping_sub(below));
            // SAFETY: a stack is mapped from the stack pointer of a call to its end. Volatile:
            // other code may use the word in any way.
            unsafe { word.read_volatile() }
        };
        let address = word(size_of::<usize>());
        if address == 0 {
            break;
        }
        at = Position {
            address,
            stack_pointer: frame,
            frame_pointer: match saved {
                0 => at.frame_pointer,
                saved => word(saved),
            },
        };
    }
    // SAFETY: the first `count` places were written.
    Some(unsafe { core::slice::from_raw_parts(places.as_ptr().cast(), count) })
}

/// The newest frame from `frame` on whose return address stood at `slot` or above; null if there is
/// none.
///
/// # Safety
///
/// The contract of [`unwind`] holds.
unsafe fn above(mut frame: *mut Frame, slot: usize) -> *mut Frame {
    // SAFETY: the caller vouches for the frames.
    while let Some(known) = unsafe { frame.as_ref() }
        && known.return_slot_addr < slot
    {
        frame = known.previous;
    }
    frame
}

/// Where the call of `frame` truly returns to, with those that were made by a jump from there,
/// which it leaves behind. `None` if that is the sentinel.
///
/// # Safety
///
/// The contract of [`unwind`] holds.
unsafe fn behind(frame: &mut *mut Frame) -> Option<Position> {
    // SAFETY: the caller vouches for the frames.
    let slot = unsafe { frame.as_ref() }?.return_slot_addr;
    let mut position = None;
    // SAFETY: as above.
    while let Some(known) = unsafe { frame.as_ref() }
        && known.return_slot_addr == slot
        && !known.previous.is_null()
    {
        position = Some(Position {
            address: known.return_address,
            stack_pointer: slot + size_of::<usize>(),
            frame_pointer: known.frame_pointer,
        });
        *frame = known.previous;
    }
    position
}
