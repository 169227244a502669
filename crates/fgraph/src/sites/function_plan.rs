//! The plan for one function, or for a system call within one.

use super::candidate::{Callers, Candidate, ENTRY_BYTES, first_bytes};
use super::classify::{Plan, classify};
use super::entries::Subject;
use super::file_code::Found;
use super::saved_plan::SavedWindow;
use crate::arch::stub::SITE_LEN;
use crate::report::error::RefusalReason;
use crate::report::functions::TraceMethod;

/// The way in which one function, or a system call within one, is traced.
#[derive(Debug)]
pub(super) struct FunctionPlan {
    pub(super) subject: Subject,
    pub(super) address: usize,
    pub(super) plan: Plan,
    /// The bytes at its entry, as far as it goes.
    pub(super) original: [u8; SITE_LEN],
    /// The first bytes of the NOP before it, if that becomes the jump.
    pub(super) padding_jump: [u8; SITE_LEN],
}

impl FunctionPlan {
    fn new(subject: Subject, candidate: &Candidate<'_>, plan: Plan) -> Self {
        let padding = candidate.padding;
        Self {
            subject,
            address: candidate.address,
            original: first_bytes(&candidate.text[plan.lead..]),
            padding_jump: plan.padding_jump.map_or([0; SITE_LEN], |len| {
                first_bytes(&padding[padding.len() - len..])
            }),
            plan,
        }
    }

    /// Returns the address of the patched bytes.
    pub(super) fn entry(&self) -> usize {
        self.address + self.plan.lead
    }
}

/// The decision about a function, or a system call within one, from its file alone.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) subject: Subject,
    pub(super) address: usize,
    /// The bytes from its address on that must be equal in memory.
    pub(super) constant: &'static [u8],
    pub(super) plan: Result<FunctionPlan, RefusalReason>,
}

impl Decision {
    /// Makes the decision for the function found at an address. `callers` is called only where it
    /// matters; `breakpoints` is true if functions may get one.
    pub(super) fn new(
        subject: Subject,
        address: usize,
        found: &Found<'static>,
        callers: impl Fn() -> Callers,
        breakpoints: bool,
    ) -> Self {
        let decide = |candidate: &Candidate<'static>| {
            let plan = classify(candidate, callers, breakpoints)?;
            Ok(FunctionPlan::new(subject, candidate, plan))
        };
        let found = found.as_ref();
        Self {
            subject,
            address,
            constant: found.map_or(&[], |candidate| candidate.constant()),
            plan: found.map_err(RefusalReason::clone).and_then(decide),
        }
    }

    /// Restores another process's decision about the function at `index`; `None` if it does not fit
    /// the code.
    pub(super) fn restore(
        index: usize,
        code: &Candidate<'static>,
        saved: SavedWindow,
    ) -> Option<Self> {
        let subject = Subject::Function(index);
        let plan = Plan::restore(code, saved)?;
        Some(Self {
            subject,
            address: code.address,
            constant: code.constant(),
            plan: Ok(FunctionPlan::new(subject, code, plan)),
        })
    }

    /// Returns the decision in its saved form; `None` if other processes must decide again.
    pub(super) fn to_saved(&self) -> Option<SavedWindow> {
        let plan = &self.plan.as_ref().ok()?.plan;
        if plan.how == TraceMethod::Breakpoint || plan.no_jump.is_some() {
            return None;
        }
        Some(SavedWindow {
            lead: plan.lead.try_into().ok()?,
            len: match &plan.window {
                Some(window) => window.len().try_into().ok()?,
                None => 0,
            },
            padding_jump: plan.padding_jump.unwrap_or(0).try_into().ok()?,
            variant: plan.variant as u8,
            is_exchanged: plan.is_exchanged,
        })
    }

    /// Refuses functions whose memory differs from the file, because another tool has patched them.
    /// `mapping` checks that the mapping there may be patched, and `read` reads memory at an
    /// address, if it is readable.
    pub(super) fn compare(
        &mut self,
        mapping: Result<(), RefusalReason>,
        read: impl FnOnce(usize, &mut [u8]) -> bool,
    ) {
        let may_be_patched = match self.plan {
            Err(RefusalReason::Resolver) => return,
            Err(RefusalReason::Notrace(_)) => false,
            Ok(_) => true,
            Err(_) => !self.subject.is_system_call(),
        };
        if let Err(reason) = mapping {
            self.plan = Err(reason);
            return;
        }
        let mut now = [0; ENTRY_BYTES];
        let now = &mut now[..self.constant.len()];
        if may_be_patched && read(self.address, now) && now != self.constant {
            let found = first_bytes(now);
            self.plan = Err(RefusalReason::Patched { found });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_differs_from_the_file_is_left_alone() {
        // push rbp; mov rbp, rsp; sub rsp, 16; leave; ret
        const CODE: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc9, 0xc3];
        const PATCHED: &[u8] = &[0xe9, 1, 2, 3, 4, 0x83, 0xec, 0x10, 0xc9, 0xc3];
        let decide = |relocated, notrace| {
            let found = Ok(Candidate {
                address: 0x40_0000,
                size: CODE.len(),
                text: CODE,
                listed: false,
                relocated,
                padding: &[],
                entered: 0,
                preserves_by_code: true,
                preserves_by_convention: false,
                leads_to_misled: false,
                has_shadow_stacks: false,
                symbol: "f",
                notrace,
            });
            Decision::new(
                Subject::Function(0),
                0x40_0000,
                &found,
                || Callers::Abi,
                true,
            )
        };
        let reads = |text: &'static [u8]| {
            move |_, into: &mut [u8]| {
                into.copy_from_slice(&text[..into.len()]);
                true
            }
        };
        let mut same = decide(None, None);
        same.compare(Ok(()), reads(CODE));
        assert!(same.plan.is_ok());
        let mut patched = decide(None, None);
        patched.compare(Ok(()), reads(PATCHED));
        let found = [0xe9, 1, 2, 3, 4];
        assert_eq!(patched.plan.unwrap_err(), RefusalReason::Patched { found });
        // The linker may have written to bytes after the start.
        let mut relocated = decide(Some(0), None);
        relocated.compare(Ok(()), reads(PATCHED));
        assert_eq!(relocated.plan.unwrap_err(), RefusalReason::TextRelocation);
        let mut unreadable = decide(None, None);
        unreadable.compare(Ok(()), |_, _| false);
        assert!(unreadable.plan.is_ok());
        let mut unmapped = decide(None, None);
        unmapped.compare(Err(RefusalReason::Writable), reads(CODE));
        assert_eq!(unmapped.plan.unwrap_err(), RefusalReason::Writable);
        let rule = fgraph_symbols::notrace::look_up("_start");
        let mut never = decide(None, rule);
        never.compare(Ok(()), reads(PATCHED));
        assert!(matches!(never.plan, Err(RefusalReason::Notrace(_))));
    }
}
