//! Functions with known code, and how they are traced.

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
        preserves_by_code: true,
        preserves_by_convention: false,
        leads_to_misled: false,
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
fn entries_without_room_for_a_jump_get_a_breakpoint_only_if_allowed() {
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
fn entry_after_endbr64_is_patched() {
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
fn registers_are_preserved_only_for_functions_whose_callers_need_them() {
    let variant = |symbol, listed, preserves_by_code, preserves_by_convention, callers| {
        let candidate = Candidate {
            listed,
            preserves_by_code,
            preserves_by_convention,
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
fn use_of_registers_and_flags_shows_another_convention() {
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
            (plan.padding_jump, plan.patched_len(), len)
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
        Ok((len, plan.padding_jump, plan.patched_len()))
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
