//! What can be done with a function, from its bytes and its name.
//!
//! ```text
//!   a NOP at the entry            -> patched in place
//!   anything else that is code    -> its first instructions are displaced by a jump
//!     entered from elsewhere      -> its first one only, by a short jump to the padding before it
//!     with no room for a jump     -> its first instruction by a breakpoint, if that is allowed
//!   neither                       -> refused, with the reason
//! ```
//!
//! A function at which no thread may trap gets one of the first three only if a single instruction
//! is displaced: none can be inside of it when the text changes.

use super::candidate::{Callers, Candidate, ENTRY_BYTES, is_regcall, is_rust};
use super::saved_plan::SavedWindow;
use crate::arch::nop;
use crate::arch::relocate::{self, Convention, RelocateError, Window};
use crate::arch::stub::SITE_LEN;
use crate::arch::trampoline::Variant;
use crate::report::error::RefusalReason;
use crate::report::functions::TraceMethod;
use fgraph_symbols::notrace::Notrace;

/// How a function is traced.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) how: TraceMethod,
    /// Bytes before what is patched: an `endbr64`.
    pub(crate) lead: usize,
    /// The instructions to displace; `None` for a NOP.
    pub(crate) window: Option<Window>,
    /// Distance from the entry back to the NOP that becomes the jump, if the entry is a short jump
    /// to it.
    pub(crate) relay: Option<usize>,
    /// The trampoline for its calls.
    pub(crate) variant: Variant,
    /// The reason why it gets a breakpoint and no jump.
    pub(crate) no_jump: Option<RefusalReason>,
    /// True if the text may be exchanged as a whole only, because no thread may trap there.
    pub(crate) is_exchanged: bool,
}

impl Plan {
    /// The plan that another process has made and saved; `None` if the function's code is not such
    /// that it can have been made.
    pub(super) fn restore(function: &Candidate<'_>, saved: SavedWindow) -> Option<Self> {
        let (lead, relay) = (saved.lead.into(), usize::from(saved.relay));
        let entry = &function.text[..function.text.len().min(ENTRY_BYTES)];
        let mut plan = Self {
            how: TraceMethod::Nop,
            lead,
            window: None,
            relay: None,
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
            plan.relay = (relay != 0).then_some(relay);
            let code = function.code_behind(lead);
            let window = relocate::plan_again(&code, plan.patched_len(), saved.len.into())?;
            end = lead + window.len();
            let pushes = function.has_shadow_stacks && window.call().is_some();
            let has_nop = plan.relay.is_none()
                || nop::last_with_room(function.padding, SITE_LEN) == plan.relay;
            (has_nop && !pushes).then_some(())?;
            plan.window = Some(window);
        }
        (end <= function.relocated.unwrap_or(usize::MAX)).then_some(plan)
    }

    /// How many bytes are patched.
    pub(crate) fn patched_len(&self) -> usize {
        match self.how {
            TraceMethod::Breakpoint => 1,
            TraceMethod::Relocated if self.relay.is_some() => 2,
            TraceMethod::Nop | TraceMethod::Relocated => SITE_LEN,
        }
    }
}

/// Finds out what can be done with a function. `callers` is asked only where it decides, as the
/// answer may take a look at all code; `breakpoints` says whether the function may get one.
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
    let is_relied_on = function.convention_is_relied_on
        || is_regcall(function.symbol)
        // What has no name may be one of the compiler's own helpers, which change next to nothing.
        || function.symbol.is_empty() && !function.listed
        || function.code_is_relied_on && knows_code();
    let mut variant = if convention.reads_high || is_relied_on && keeps_high() {
        Variant::PreserveAll
    } else if is_relied_on
        || convention.reads_scratch
        || convention.starts_at_rcx
        || convention.gives_flags
    {
        Variant::Preserve
    } else {
        Variant::Plain
    };
    let is_misled = || !is_rust(function.symbol) && relocate::is_misled_by_a_call(&whole);
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
            relay: None,
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
    let jump = relocate::plan(&code).and_then(check);
    let jump = jump.map_err(RefusalReason::Displace);
    let jump = jump.and_then(|window| match function.entered & window.boundaries() {
        0 => Ok((window, None)),
        entered => with_relay(function, &code).ok_or(RefusalReason::Entered {
            to: entered.trailing_zeros() as usize,
        }),
    });
    let jump = match function.notrace {
        Some(rule @ Notrace::Trap { .. }) => {
            let is_single = |(window, _): &(Window, _)| window.boundaries() == 1;
            let single = jump.ok().filter(is_single);
            let single = single.or_else(|| with_relay(function, &code));
            // A breakpoint would trap.
            Ok(single.ok_or(RefusalReason::Notrace(rule.reason()))?)
        }
        _ => jump,
    };
    let (how, window, relay, no_jump) = match jump {
        Ok((window, relay)) => (TraceMethod::Relocated, window, relay, None),
        Err(reason) => {
            let plan = || relocate::plan_breakpoint(&code).and_then(check).ok();
            match breakpoints.then(plan).flatten() {
                Some(window) => (TraceMethod::Breakpoint, window, None, Some(reason)),
                None => return Err(reason),
            }
        }
    };
    if lead + window.len() > relocated {
        return Err(RefusalReason::TextRelocation);
    }
    // While a body runs that has been called by the trampoline, rbp is not the caller's.
    if knows_code() && relocate::uses_frame_pointer_of_caller(&code) {
        variant = variant.entry_only();
    }
    Ok(Plan {
        how,
        lead,
        relay,
        window: Some(window),
        variant,
        no_jump,
        is_exchanged,
    })
}

/// Bytes of the `endbr64` that an entry begins with.
fn landing_pad(entry: &[u8]) -> usize {
    match entry.starts_with(&nop::ENDBR64) {
        true => nop::ENDBR64.len(),
        false => 0,
    }
}

/// The farthest that a short jump leads back from its own start.
const SHORT_JUMP_REACH: usize = 126;

/// Plans for a short jump to a NOP before the function. A thread that comes by the NOP goes on
/// with the function, so it may be a jump to the stub as well.
fn with_relay(
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
mod tests {
    use super::*;

    fn candidate<'a>(text: &'a [u8], symbol: &'a str) -> Candidate<'a> {
        Candidate {
            address: 0x40_0000,
            size: text.len(),
            text,
            listed: false,
            relocated: None,
            padding: &[],
            entered: 0,
            code_is_relied_on: true,
            convention_is_relied_on: false,
            has_shadow_stacks: false,
            symbol,
            notrace: fgraph_symbols::notrace::look_up(symbol),
        }
    }

    /// push rbp; mov rbp, rsp; sub rsp, 16; leave; ret
    const CODE: [u8; 10] = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc9, 0xc3];
    const NOP: [u8; 6] = [0x0f, 0x1f, 0x44, 0x00, 0x08, 0xc3];

    #[test]
    fn a_nop_is_patched_in_place_and_other_code_is_displaced() {
        let nop = classify(&candidate(&NOP, "f"), || Callers::LowRegisters, true).unwrap();
        assert!(nop.how == TraceMethod::Nop && nop.window.is_none());
        let code = classify(&candidate(&CODE, "f"), || Callers::LowRegisters, true).unwrap();
        assert_eq!(code.how, TraceMethod::Relocated);
        assert_eq!(code.window.unwrap().len(), 8);
    }

    #[test]
    fn what_has_no_room_for_a_jump_gets_a_breakpoint_only_if_that_is_allowed() {
        // xor eax, eax; ret
        let text = [0x31, 0xc0, 0xc3];
        let plan = classify(&candidate(&text, "f"), || Callers::Abi, true).unwrap();
        assert_eq!((plan.how, plan.patched_len()), (TraceMethod::Breakpoint, 1));
        assert_eq!(plan.window.unwrap().len(), 2);
        let refused = classify(&candidate(&text, "f"), || Callers::Abi, false).unwrap_err();
        let short = RefusalReason::Displace(RelocateError::TooShort { have: 3 });
        assert_eq!(refused, short);
        // An int3 is the breakpoint of another tool.
        let refused = classify(&candidate(&[0xcc, 0xc3], "f"), || Callers::Abi, true);
        assert!(matches!(refused, Err(RefusalReason::Displace(_))));
    }

    #[test]
    fn a_call_is_not_displaced_where_the_processor_keeps_shadow_stacks() {
        // sub rsp, 8; call +0; add rsp, 8; ret
        let text = [
            0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3,
        ];
        let plan = |has_shadow_stacks, breakpoints| {
            let candidate = Candidate {
                has_shadow_stacks,
                ..candidate(&text, "f")
            };
            classify(&candidate, || Callers::Abi, breakpoints).map(|plan| plan.how)
        };
        assert_eq!(plan(false, false), Ok(TraceMethod::Relocated));
        let refused = RefusalReason::Displace(RelocateError::ShadowStack { at: 4 });
        assert_eq!(plan(true, false), Err(refused));
        // The first instruction alone.
        assert_eq!(plan(true, true), Ok(TraceMethod::Breakpoint));
        let without_call = Candidate {
            has_shadow_stacks: true,
            ..candidate(&CODE, "f")
        };
        let plan = classify(&without_call, || Callers::Abi, false).unwrap();
        assert_eq!(plan.how, TraceMethod::Relocated);
    }

    #[test]
    fn what_is_behind_an_endbr64_is_patched() {
        let text = [&nop::ENDBR64[..], &CODE].concat();
        let code = classify(&candidate(&text, "f"), || Callers::Abi, false).unwrap();
        assert_eq!((code.lead, code.window.unwrap().boundaries()), (4, 0b10011));
    }

    #[test]
    fn registers_are_preserved_for_callers_that_may_count_on_it() {
        let variant = |symbol, listed, callers| {
            let candidate = Candidate {
                listed,
                ..candidate(&CODE, symbol)
            };
            classify(&candidate, || callers, false).unwrap().variant
        };
        assert_eq!(variant("f", false, Callers::Abi), Variant::Plain);
        assert_eq!(
            variant("f", false, Callers::LowRegisters),
            Variant::Preserve
        );
        assert_eq!(
            variant("f", false, Callers::AllRegisters),
            Variant::PreserveAll
        );
        assert_eq!(variant("f", true, Callers::AllRegisters), Variant::Plain);
        for rust in [
            "_RNvCs1234_7mycrate3foo",
            "_ZN3app4main17h0123456789abcdefE",
            "_ZN3app4main17h0123456789abcdefE.llvm.123",
        ] {
            assert_eq!(
                variant(rust, false, Callers::AllRegisters),
                Variant::Plain,
                "{rust}"
            );
        }
        for other in ["_ZN3app4mainE", "_ZN3app4main17hE", "_ZN3appEv"] {
            assert_eq!(
                variant(other, false, Callers::LowRegisters),
                Variant::Preserve
            );
        }
        assert_eq!(
            variant("setjmp", false, Callers::AllRegisters),
            Variant::EntryOnlyAll
        );
        assert_eq!(variant("vfork", false, Callers::Abi), Variant::EntryOnly);
    }

    #[test]
    fn what_only_some_are_relied_on_for_is_preserved_for_those() {
        let variant = |symbol, listed, code_is_relied_on, convention_is_relied_on, callers| {
            let candidate = Candidate {
                listed,
                code_is_relied_on,
                convention_is_relied_on,
                ..candidate(&CODE, symbol)
            };
            classify(&candidate, || callers, false).unwrap().variant
        };
        let rust = "_RNvCs1234_7mycrate3foo";
        for (symbol, listed) in [("f", true), (rust, false)] {
            for (callers, kept) in [
                (Callers::Abi, Variant::Preserve),
                (Callers::LowRegisters, Variant::Preserve),
                (Callers::AllRegisters, Variant::PreserveAll),
            ] {
                assert_eq!(
                    variant(symbol, listed, true, false, callers),
                    Variant::Plain
                );
                assert_eq!(variant(symbol, listed, false, true, callers), kept);
            }
        }
        assert_eq!(
            variant("f", false, false, false, Callers::AllRegisters),
            Variant::Plain
        );
        assert_eq!(
            variant("f", false, true, false, Callers::Abi),
            Variant::Plain
        );
        assert_eq!(
            variant("f", false, false, true, Callers::Abi),
            Variant::Preserve
        );
        for regcall in ["__regcall3__f", "_Z13__regcall3__fm"] {
            let variant = variant(regcall, true, false, false, Callers::Abi);
            assert_eq!(variant, Variant::Preserve, "{regcall}");
        }
    }

    #[test]
    fn what_a_function_does_with_registers_and_flags_shows_another_convention() {
        let variant = |text: &[u8]| {
            classify(&candidate(text, "f"), || Callers::Abi, false).map(|plan| plan.variant)
        };
        // Behind the NOP: lea rax, [rdi + r11]; movaps [rsp - 24], xmm8; stc.
        let nop = &NOP[..5];
        assert_eq!(
            variant(&[nop, &[0x4a, 0x8d, 0x04, 0x1f, 0xc3]].concat()),
            Ok(Variant::Preserve)
        );
        assert_eq!(
            variant(&[nop, &[0x44, 0x0f, 0x29, 0x44, 0x24, 0xe8, 0xc3]].concat()),
            Ok(Variant::Preserve)
        );
        assert_eq!(
            variant(&[nop, &[0xf9, 0xc3]].concat()),
            Ok(Variant::EntryOnly)
        );
        // adc eax, 7
        let refused = variant(&[nop, &[0x83, 0xd0, 7, 0xc3]].concat());
        assert!(matches!(refused, Err(RefusalReason::Notrace(_))));
    }

    #[test]
    fn a_function_that_others_enter_behind_its_first_instruction_gets_no_jump() {
        let entered = |entered| {
            let candidate = Candidate {
                entered,
                ..candidate(&CODE, "f")
            };
            let plan = |breakpoints| classify(&candidate, || Callers::Abi, breakpoints);
            let how = plan(true).map(|plan| plan.how);
            (plan(false).map(|plan| plan.how), how)
        };
        let to = |to| {
            (
                Err(RefusalReason::Entered { to }),
                Ok(TraceMethod::Breakpoint),
            )
        };
        assert_eq!(entered(0b10010), to(1));
        assert_eq!(entered(0b10000), to(4));
        // Nothing starts there.
        assert_eq!(
            entered(0b01100),
            (Ok(TraceMethod::Relocated), Ok(TraceMethod::Relocated))
        );
    }

    #[test]
    fn a_function_that_others_enter_gets_a_short_jump_where_there_is_padding_before_it() {
        // mov rax, rdi; cmp rdx, 64; ret
        let text = [0x48, 0x89, 0xf8, 0x48, 0x83, 0xfa, 0x40, 0xc3];
        let with = |padding, entered| {
            let candidate = Candidate {
                entered,
                padding,
                ..candidate(&text, "f")
            };
            classify(&candidate, || Callers::Abi, false).map(|plan| {
                let len = plan.window.as_ref().map_or(0, Window::len);
                (plan.relay, plan.patched_len(), len)
            })
        };
        let nop = [0x90, 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00];
        assert_eq!(with(&nop, 0b1000), Ok((Some(6), 2, 3)));
        assert_eq!(with(&nop, 0), Ok((None, 5, 7)));
        // Shorter NOPs may follow.
        let nops = [&nop[..], &[0x66, 0x90]].concat();
        assert_eq!(with(&nops, 0b1000), Ok((Some(8), 2, 3)));
        let refused = Err(RefusalReason::Entered { to: 3 });
        assert_eq!(with(&[0x90; 7], 0b1000), refused, "too short");
        assert_eq!(with(&[], 0b1000), refused, "no padding");
    }

    #[test]
    fn a_function_without_traps_displaces_a_single_instruction() {
        // mov eax, 1; ret
        const LONG: [u8; 6] = [0xb8, 1, 0, 0, 0, 0xc3];
        // ret
        const SHORT: [u8; 1] = [0xc3];
        let plan = |text, padding| {
            let candidate = Candidate {
                padding,
                notrace: Some(Notrace::Trap { returns: true }),
                ..candidate(text, "f")
            };
            let plan = classify(&candidate, || Callers::Abi, true)?;
            let len = plan.window.as_ref().map(Window::boundaries);
            assert!(plan.is_exchanged);
            Ok((len, plan.relay, plan.patched_len()))
        };
        let refused = Err(RefusalReason::Notrace(
            Notrace::Trap { returns: true }.reason(),
        ));
        let padding = &NOP[..5];
        assert_eq!(plan(&NOP, &[]), Ok((None, None, SITE_LEN)));
        assert_eq!(plan(&LONG, &[]), Ok((Some(1), None, SITE_LEN)));
        // sub rsp, 16; leave; ret
        assert_eq!(plan(&CODE[4..], padding), Ok((Some(1), Some(5), 2)));
        assert_eq!(plan(&CODE[4..], &[]), refused);
        // push rbp
        assert_eq!(plan(&CODE, padding), refused);
        assert_eq!(plan(&SHORT, padding), refused);
    }

    #[test]
    fn the_table_is_heeded() {
        let refused = classify(&candidate(&CODE, "_start"), || Callers::Abi, true);
        assert!(matches!(refused, Err(RefusalReason::Notrace(_))));
    }
}
