//! The word that is passed from user to user while a call is dispatched.
//!
//! ```text
//!   bits 0 to 15    users that are yet to be asked or told
//!   bits 16 to 31   at entry users that have accepted; at return the place in the frame's list
//!   bits 32 to 63   the program's `errno`: a register costs less than a place in memory
//! ```

/// The users to which the call is yet to be dispatched.
pub(crate) const TO_GO: u64 = 0xffff;

/// The lowest bit of the users that have accepted.
pub(crate) const ACCEPTED_SHIFT: u32 = 16;

/// The users that have accepted.
pub(crate) const ACCEPTED: u64 = TO_GO << ACCEPTED_SHIFT;

/// The bit of a return that is told by the list of its frame: see `dispatch/ordered.rs`.
pub(crate) const TELLS_BY_LIST: u64 = 1 << ACCEPTED_SHIFT;

/// The lowest bit of the place in that list.
pub(crate) const PLACE_SHIFT: u32 = ACCEPTED_SHIFT + 1;

/// The place in that list.
pub(crate) const PLACE: u64 = 0x1f << PLACE_SHIFT;

/// The lowest bit of the program's `errno`.
const ERRNO_SHIFT: u32 = 32;

/// Returns the program's `errno`.
#[inline(always)]
pub(crate) fn errno(users: u64) -> i32 {
    (users >> ERRNO_SHIFT) as i32
}

/// Returns the word with another `errno`.
#[inline(always)]
pub(crate) fn with_errno(users: u64, errno: i32) -> u64 {
    users & ((1 << ERRNO_SHIFT) - 1) | u64::from(errno.cast_unsigned()) << ERRNO_SHIFT
}
