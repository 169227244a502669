//! Classifies a function by its bytes and its name: decides how it is traced.
//!
//! ```text
//!   a NOP at the entry            -> patched in place
//!   anything else that is code    -> its first instructions are displaced by a jump
//!     entered from elsewhere      -> its first one only, by a short jump to the padding before it
//!     with no room for a jump     -> its first instruction by a breakpoint, if that is allowed
//!   neither                       -> refused, with the reason
//! ```
//!
//! A function in which no thread may trap gets one of the first three only if a single instruction
//! is displaced: no thread can be inside of it when the text changes.

use super::candidate::{Callers, Candidate, ENTRY_BYTES, is_regcall, is_rust};
use super::saved_plan::SavedWindow;
use crate::arch::nop;
use crate::arch::relocate::{self, Convention, Window};
use crate::arch::stub::SITE_LEN;
use crate::arch::trampoline::Variant;
use crate::report::analysis::RelocateError;
use crate::report::error::RefusalReason;
use crate::report::functions::TraceMethod;
use fgraph_symbols::notrace::Notrace;

/// The way in which a function is traced.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) how: TraceMethod,
    /// The number of bytes before the patched ones: an `endbr64`.
    pub(crate) lead: usize,
    /// The displaced instructions; `None` for a NOP.
    pub(crate) window: Option<Window>,
    /// The distance from the entry back to the NOP that becomes the padding jump, if the entry
    /// becomes a short jump to it.
    pub(crate) padding_jump: Option<usize>,
    /// The trampoline for its calls.
    pub(crate) variant: Variant,
    /// The reason that it gets a breakpoint and no jump.
    pub(crate) no_jump: Option<RefusalReason>,
    /// True if the text must be exchanged as a whole, because no thread may trap there.
    pub(crate) is_exchanged: bool,
}

impl Plan {
    /// Restores the plan that another process has made and saved; `None` if it does not fit the
    /// function's code.
    pub(super) fn restore(function: &Candidate<'_>, saved: SavedWindow) -> Option<Self> {
        let (lead, padding_jump) = (saved.lead.into(), usize::from(saved.padding_jump));
        let entry = &function.text[..function.text.len().min(ENTRY_BYTES)];
        let mut plan = Self {
            how: TraceMethod::Nop,
            lead,
            window: None,
            padding_jump: None,
            variant: *Variant::ALL.get(usize::from(saved.variant))?,
            no_jump: None,
            is_exchanged: saved.is_exchanged,
        };
        let mut end = lead + SITE_LEN;
        if saved.len == 0 {
            (nop::find(entry) == Ok(lead)).then_some(())?;
        } else {
            (lead == landing_pad(entry)).then_some(())?;
            plan.how = TraceMethod::Relocated;
            plan.padding_jump = (padding_jump != 0).then_some(padding_jump);
            let code = function.code_behind(lead);
            let window = relocate::plan_again(&code, plan.patched_len(), saved.len.into())?;
            end = lead + window.len();
            let pushes = function.has_shadow_stacks && window.call().is_some();
            let has_nop = plan.padding_jump.is_none()
                || nop::last_with_room(function.padding, SITE_LEN) == plan.padding_jump;
            (has_nop && !pushes).then_some(())?;
            plan.window = Some(window);
        }
        (end <= function.relocated.unwrap_or(usize::MAX)).then_some(plan)
    }

    /// Returns the number of patched bytes.
    pub(crate) fn patched_len(&self) -> usize {
        match self.how {
            TraceMethod::Breakpoint => 1,
            TraceMethod::Relocated if self.padding_jump.is_some() => 2,
            TraceMethod::Nop | TraceMethod::Relocated => SITE_LEN,
        }
    }
}

/// Decides how a function is traced. `callers` is called only where it matters, because it may
/// analyze all code; `breakpoints` is true if the function may get one.
pub(crate) fn classify(
    function: &Candidate<'_>,
    callers: impl Fn() -> Callers,
    breakpoints: bool,
) -> Result<Plan, RefusalReason> {
    if let Some(Notrace::Entirely(reason)) = function.notrace {
        return Err(RefusalReason::Notrace(reason));
    }
    let relocated = function.relocated.unwrap_or(usize::MAX);
    let entry = &function.text[..function.text.len().min(ENTRY_BYTES)];
    let whole = relocate::Code {
        bytes: function.text,
        address: function.address,
        size: function.size,
    };
    let convention = Convention::of(&whole);
    if convention.takes_flags {
        return Err(RefusalReason::Notrace("takes an argument in the flags"));
    }
    let keeps_high = || callers() == Callers::AllRegisters;
    let is_c = !function.listed && !is_rust(function.symbol);
    let knows_code = || is_c && callers() != Callers::Abi;
    let is_callee_preserved = function.preserves_by_convention
        || is_regcall(function.symbol)
        // A function without a name may be one of the compiler's own helpers, which change next to
        // nothing.
        || function.symbol.is_empty() && !function.listed
        || function.preserves_by_code && knows_code();
    let mut variant = if convention.reads_high || is_callee_preserved && keeps_high() {
        Variant::PreserveAll
    } else if is_callee_preserved
        || convention.reads_scratch
        || convention.starts_at_rcx
        || convention.gives_flags
    {
        Variant::Preserve
    } else {
        Variant::Plain
    };
    let is_misled = || {
        let is_own = !is_rust(function.symbol) && relocate::is_misled_by_a_call(&whole);
        is_own || function.leads_to_misled
    };
    let (is_exchanged, returns) = match function.notrace {
        Some(Notrace::Trap { returns }) => (true, returns),
        notrace => (false, notrace.is_none()),
    };
    if !returns || convention.gives_flags || is_misled() {
        variant = variant.entry_only();
    }
    if let Ok(lead) = nop::find(entry) {
        if lead + SITE_LEN > relocated {
            return Err(RefusalReason::TextRelocation);
        }
        return Ok(Plan {
            how: TraceMethod::Nop,
            lead,
            padding_jump: None,
            window: None,
            variant,
            no_jump: None,
            is_exchanged,
        });
    }
    let lead = landing_pad(entry);
    let code = function.code_behind(lead);
    let check = |window: Window| match window.call().filter(|_| function.has_shadow_stacks) {
        Some(at) => Err(RelocateError::ShadowStack { at }),
        None => Ok(window),
    };
    let jump = relocate::plan(&code).map_err(RelocateError::new);
    let jump = jump.and_then(check);
    let jump = jump.map_err(RefusalReason::Displace);
    let jump = jump.and_then(|window| match function.entered & window.boundaries() {
        0 => Ok((window, None)),
        entered => with_padding_jump(function, &code).ok_or(RefusalReason::Entered {
            to: entered.trailing_zeros() as usize,
        }),
    });
    let jump = match function.notrace {
        Some(rule @ Notrace::Trap { .. }) => {
            let is_single = |(window, _): &(Window, _)| window.boundaries() == 1;
            let single = jump.ok().filter(is_single);
            let single = single.or_else(|| with_padding_jump(function, &code));
            // A breakpoint would trap.
            Ok(single.ok_or(RefusalReason::Notrace(rule.reason()))?)
        }
        _ => jump,
    };
    let (how, window, padding_jump, no_jump) = match jump {
        Ok((window, padding_jump)) => (TraceMethod::Relocated, window, padding_jump, None),
        Err(reason) => {
            let plan = || check(relocate::plan_breakpoint(&code).ok()?).ok();
            match breakpoints.then(plan).flatten() {
                Some(window) => (TraceMethod::Breakpoint, window, None, Some(reason)),
                None => return Err(reason),
            }
        }
    };
    if lead + window.len() > relocated {
        return Err(RefusalReason::TextRelocation);
    }
    Ok(Plan {
        how,
        lead,
        padding_jump,
        window: Some(window),
        variant,
        no_jump,
        is_exchanged,
    })
}

/// Returns the length of the `endbr64` at the start of an entry.
fn landing_pad(entry: &[u8]) -> usize {
    match entry.starts_with(&nop::ENDBR64) {
        true => nop::ENDBR64.len(),
        false => 0,
    }
}

/// The farthest distance that a short jump leads back from its own start.
const SHORT_JUMP_REACH: usize = 126;

/// Plans a short jump to a NOP before the function. A thread that runs through the NOP continues
/// with the function, so the NOP may be a jump to the stub as well.
fn with_padding_jump(
    function: &Candidate<'_>,
    code: &relocate::Code<'_>,
) -> Option<(Window, Option<usize>)> {
    let at_start = code.address == function.address;
    let in_reach = |&distance: &usize| at_start && distance <= SHORT_JUMP_REACH;
    let nop = nop::last_with_room(function.padding, SITE_LEN).filter(in_reach)?;
    let window = relocate::plan_short(code).ok()?;
    let pushes = function.has_shadow_stacks && window.call().is_some();
    // One instruction of two bytes or more.
    (window.boundaries() == 1 && function.entered & 0b10 == 0 && !pushes)
        .then_some((window, Some(nop)))
}

#[cfg(test)]
mod tests;
