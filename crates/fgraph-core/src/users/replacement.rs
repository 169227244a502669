//! Replaces a function's body: by nothing, with a result, or by another function.
//!
//! The machine layer loads the address of the body from the site as its last act before it goes
//! there. So a replacement stores another pointer in the place of the site's, to a [`Body`] that
//! leads to code of the machine layer. The operands of that code are below the [`Link`], where the
//! machine layer reserves room, and where no signal handler writes:
//!
//! ```text
//!   Replacement
//!   +0    values     the result, or where to go on
//!   +16   reserved   the machine layer's own
//!   +32   Link
//! ```
//!
//! If the call gets a frame, because a user wants its return, the machine layer sees that the frame
//! names another site, and sets [`REPLACED`](crate::frame::REPLACED) in it, for the users that get
//! the return.

use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::frame::{Frame, REDIRECTED};
use crate::registration::UserId;
use crate::regs::{EntryRegs, Link};
use crate::site::Site;
use crate::thread::Thread;
use crate::write::WriteError;

/// The words below the link of a call that is replaced.
#[repr(C)]
#[derive(Debug)]
pub struct Replacement {
    /// The values of the result, or the address to which the call is redirected.
    pub values: [u64; 2],
    /// Words for the machine layer.
    pub reserved: [usize; 2],
}

/// The code that replaces a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The replacement returns without a result.
    Nothing,
    /// The replacement returns the first value as an integer.
    Int,
    /// The replacement returns both values as the two words of an integer.
    Ints,
    /// The replacement returns the first value in the first vector register.
    Float,
    /// The replacement jumps to the address in the first value.
    Redirect,
}

/// The number of [`Kind`]s.
pub const KINDS: usize = 5;

/// The part of a site that the machine layer reads to find the body.
#[repr(C)]
#[derive(Debug)]
pub struct Body {
    unused: usize,
    address: AtomicUsize,
}

const _: () = assert!(offset_of!(Body, address) == offset_of!(Site, body));

/// One body for each [`Kind`].
static BODIES: [Body; KINDS] = [const {
    Body {
        unused: 0,
        address: AtomicUsize::new(0),
    }
}; KINDS];

/// The function that must always run, because fgraph itself depends on it.
static MUST_RUN: AtomicUsize = AtomicUsize::new(0);

/// Sets the addresses of the machine layer's code, for each [`Kind`] in order.
///
/// # Safety
///
/// The code must do what its kind says, and preserve every other register.
pub unsafe fn set_bodies(addresses: [usize; KINDS]) {
    for (body, address) in BODIES.iter().zip(addresses) {
        body.address.store(address, Ordering::Relaxed);
    }
}

/// Sets the only function, at `address`, that must always run.
///
/// # Safety
///
/// The function must be the one on which fgraph depends.
pub unsafe fn set_must_run(address: usize) {
    MUST_RUN.store(address, Ordering::Relaxed);
}

/// Replaces the body of the function of `site`, on behalf of `user`.
#[cold]
pub(crate) fn replace(
    regs: &mut EntryRegs,
    thread: &Thread,
    user: UserId,
    kind: Kind,
    values: [u64; 2],
) -> Result<(), WriteError> {
    let frame = thread.shadow.top().cast::<Frame>();
    // SAFETY: the frame was opened for this call, with its site, and sites are never freed.
    let (site, slot) = unsafe { (&*(*frame).site, (*frame).return_slot_addr) };
    if let Some(by) = regs.replaced_by(thread) {
        return Err(WriteError::AlreadyReplaced { by });
    }
    let address = site.address();
    if address == MUST_RUN.load(Ordering::Relaxed) {
        return Err(WriteError::MustRun { address });
    }
    let link = slot - offset_of!(Link, return_address);
    let replacement = ptr::with_exposed_provenance_mut::<Replacement>(link).wrapping_sub(1);
    // SAFETY: the machine layer reserves room below the link, and its own words there are not
    // changed. The frame is this thread's, and not on the shadow stack yet.
    unsafe {
        (&raw mut (*replacement).values).write(values);
        (*frame).replaced_by = match kind {
            Kind::Redirect => user.epoch() | REDIRECTED,
            _ => user.epoch(),
        };
    }
    regs.site = ptr::from_ref(&BODIES[kind as usize]).cast();
    Ok(())
}

impl EntryRegs {
    /// Returns the user that has replaced the body.
    pub(crate) fn replaced_by(&self, thread: &Thread) -> Option<UserId> {
        // SAFETY: the frame was opened for this call, with its site, and the machine layer reserves
        // room below the link.
        let (site, by) = unsafe {
            let frame = thread.shadow.top().cast::<Frame>();
            ((*frame).site, &raw const (*frame).replaced_by)
        };
        // SAFETY: the user has stored its id there.
        (!ptr::eq(self.site, site)).then(|| UserId::new(unsafe { *by } & !REDIRECTED))
    }
}
