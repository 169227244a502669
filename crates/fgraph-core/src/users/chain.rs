//! The word that goes from user to user while a call is dispatched.
//!
//! ```text
//!   bits 0 to 15    users that are yet to be asked or told
//!   bits 16 to 31   users that have accepted
//!   bits 32 to 63   the program's `errno`: a register costs less than a place in memory
//! ```

/// The users that are yet to be asked or told.
pub(crate) const TO_GO: u64 = 0xffff;

/// Where the users that have accepted are.
pub(crate) const ACCEPTED_SHIFT: u32 = 16;

/// Where the program's `errno` is.
const ERRNO_SHIFT: u32 = 32;

/// The program's `errno`.
#[inline(always)]
pub(crate) fn errno(users: u64) -> i32 {
    (users >> ERRNO_SHIFT) as i32
}

/// The word with another `errno`.
#[inline(always)]
pub(crate) fn with_errno(users: u64, errno: i32) -> u64 {
    users & ((1 << ERRNO_SHIFT) - 1) | u64::from(errno.cast_unsigned()) << ERRNO_SHIFT
}
