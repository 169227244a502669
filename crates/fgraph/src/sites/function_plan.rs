//! How a function, or a system call within one, becomes a site.

use super::candidates::Found;
use super::classify::{self, Callers, Plan, classify};
use super::entries::Subject;
use crate::arch::stub::SITE_LEN;
use crate::report::error::RefusalReason;

/// How one function, or a system call within one, is traced.
#[derive(Debug)]
pub(super) struct FunctionPlan {
    pub(super) subject: Subject,
    pub(super) address: usize,
    pub(super) plan: Plan,
    /// What is at its entry, as far as it goes.
    pub(super) original: [u8; SITE_LEN],
    /// What is at the start of the NOP before it, if that becomes the jump.
    pub(super) relay: [u8; SITE_LEN],
}

impl FunctionPlan {
    /// The plan for what was found at an address. `callers` is asked only where it decides;
    /// `breakpoints` says whether functions may get one.
    ///
    /// # Errors
    ///
    /// Why it cannot be traced.
    pub(super) fn new(
        subject: Subject,
        found: Found<'_>,
        callers: impl Fn() -> Callers,
        breakpoints: bool,
    ) -> Result<Self, RefusalReason> {
        let candidate = found?;
        let plan = classify(&candidate, callers, breakpoints)?;
        Ok(Self {
            subject,
            address: candidate.address,
            original: classify::first_bytes(&candidate.text[plan.lead..]),
            relay: plan.relay.map_or([0; SITE_LEN], |len| {
                classify::first_bytes(&candidate.padding[candidate.padding.len() - len..])
            }),
            plan,
        })
    }

    /// Address of what is patched.
    pub(super) fn entry(&self) -> usize {
        self.address + self.plan.lead
    }
}
