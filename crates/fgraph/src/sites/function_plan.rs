//! How a function, or a system call within one, becomes a site.

use super::classify::Plan;
use super::entries::Subject;
use crate::arch::stub::SITE_LEN;
use crate::report::error::RefusalReason;

/// What is on its way to becoming a site.
pub(super) struct Planned {
    pub(super) subject: Subject,
    pub(super) address: usize,
    pub(super) plan: Plan,
    /// Why it cannot get a jump; `None` if it can.
    pub(super) no_jump: Option<RefusalReason>,
    /// What is at its entry, as far as it goes.
    pub(super) original: [u8; SITE_LEN],
    /// What is at the start of the NOP before it, if that becomes the jump.
    pub(super) relay: [u8; SITE_LEN],
}

impl Planned {
    /// Address of what is patched.
    pub(super) fn entry(&self) -> usize {
        self.address + self.plan.lead
    }
}
