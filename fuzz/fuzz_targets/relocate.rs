//! Any bytes are refused, or moved so that the copy does what the original does.
//!
//! `cargo +nightly fuzz run relocate`; what it is given:
//!
//! ```text
//!   byte 0       how many bytes of the code are the function
//!   byte 1       the address of the code, and of the copy
//!   byte 2       bit 0: a breakpoint instead of a jump
//!   the rest     the code
//! ```

#![no_main]

use fgraph_x86_64::relocate::uses_frame_pointer_of_caller;
use fgraph_x86_64::relocate::{Code, Relocated, Window, plan, plan_breakpoint};
use fgraph_x86_64::unwind::{Rows, Rule};
use iced_x86::{Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [size, place, patch, bytes @ ..] = data else {
        return;
    };
    let address = [0x40_0000, 0x7f00_1234_5678, 0, usize::MAX - 64][usize::from(place & 3)];
    let distance =
        [0x1000_0000, -0x1000_0000, 0x7fff_ff00, -0x8000_0000][usize::from(place >> 2 & 3)];
    let code = Code {
        bytes,
        address,
        size: usize::from(*size),
    };
    let _ = uses_frame_pointer_of_caller(&code);
    let breakpoint = patch & 1 != 0;
    let plan = if breakpoint { plan_breakpoint } else { plan };
    let Ok(window) = plan(&code) else {
        return;
    };
    let patched = if breakpoint { 1 } else { 5 };
    let at = address.wrapping_add_signed(distance);
    let mut out = vec![0xcc; window.relocated_len() + 8];
    assert!(
        window
            .relocate(at, &mut out[..window.relocated_len() - 1])
            .is_err()
    );
    let Ok(copy) = window.relocate(at, &mut out) else {
        return;
    };
    assert!(copy.len <= window.relocated_len());
    assert!(out[copy.len..].iter().all(|&byte| byte == 0xcc));
    assert!(window.len() <= bytes.len());
    if window.len() < patched {
        assert!(
            bytes.len() >= patched,
            "only bytes that are there are overwritten"
        );
    }
    follow(&code, &window, &copy, at, &out[..copy.len], patched);
    check_rows(&copy);
});

/// Decodes original and copy side by side.
fn follow(
    code: &Code<'_>,
    window: &Window,
    copy: &Relocated,
    at: usize,
    out: &[u8],
    patched: usize,
) {
    let decode =
        |bytes, address: usize| Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
    let originals: Vec<Instruction> = decode(&code.bytes[..window.len()], code.address)
        .into_iter()
        .collect();
    let mut copies = decode(out, at);
    // Where each original starts in the copy.
    let mut starts = Vec::new();
    // The branches of the copy: where the original leads, and where the copy does.
    let mut branches = Vec::new();
    let mut ends = false;
    let mut boundaries = 0;
    for original in &originals {
        let offset = original.ip().wrapping_sub(code.address as u64) as usize;
        let start = copies.position();
        starts.push((offset, start));
        if offset < patched {
            boundaries |= 1 << offset;
            assert_eq!(usize::from(copy.resume[offset]), start);
        }
        let moved = copies.decode();
        assert!(!moved.is_invalid());
        ends = false;
        match original.flow_control() {
            FlowControl::Call if original.mnemonic() == Mnemonic::Call => {
                is_push_of(&moved, original.next_ip(), out, at);
                let jump = copies.decode();
                assert_eq!(jump.mnemonic(), Mnemonic::Jmp);
                assert_eq!(jump.near_branch_target(), original.near_branch_target());
                copies.set_position(copies.position() + 8).unwrap();
                ends = true;
            }
            FlowControl::IndirectCall => {
                is_push_of(&moved, original.next_ip(), out, at);
                let jump = copies.decode();
                assert_eq!(jump.code(), Opcode::Jmp_rm64);
                assert_eq!(jump.op0_kind(), original.op0_kind());
                assert_eq!(jump.op0_register(), original.op0_register());
                assert_eq!(jump.memory_base(), original.memory_base());
                assert_eq!(jump.memory_index(), original.memory_index());
                assert_eq!(jump.segment_prefix(), original.segment_prefix());
                let lower = u64::from(jump.memory_base() == iced_x86::Register::RSP) * 8;
                assert_eq!(
                    jump.memory_displacement64(),
                    original.memory_displacement64().wrapping_add(lower)
                );
                copies.set_position(copies.position() + 8).unwrap();
                ends = true;
            }
            FlowControl::UnconditionalBranch => {
                assert_eq!(moved.mnemonic(), Mnemonic::Jmp);
                branches.push((original.near_branch_target(), moved.near_branch_target()));
                ends = true;
            }
            FlowControl::ConditionalBranch if original.is_jcc_short_or_near() => {
                assert_eq!(moved.condition_code(), original.condition_code());
                branches.push((original.near_branch_target(), moved.near_branch_target()));
            }
            FlowControl::ConditionalBranch => {
                assert_eq!(moved.code(), original.code());
                let over = copies.decode();
                assert_eq!(over.code(), Opcode::Jmp_rel8_64);
                let far = copies.decode();
                assert_eq!(far.code(), Opcode::Jmp_rel32_64);
                assert_eq!(moved.near_branch_target(), over.next_ip());
                assert_eq!(over.near_branch_target(), far.next_ip());
                branches.push((original.near_branch_target(), far.near_branch_target()));
            }
            flow => {
                ends = matches!(
                    flow,
                    FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Exception
                );
                // With the address of the operand made absolute by the decoder.
                assert_eq!(moved, *original);
                assert_eq!(
                    moved
                        .is_ip_rel_memory_operand()
                        .then(|| moved.ip_rel_memory_address()),
                    original
                        .is_ip_rel_memory_operand()
                        .then(|| original.ip_rel_memory_address())
                );
            }
        }
    }
    assert_eq!(window.boundaries(), boundaries);
    if window.len() < patched {
        assert!(ends);
    }
    if !ends {
        let back = copies.decode();
        assert_eq!(back.code(), Opcode::Jmp_rel32_64);
        let rest = code.address.wrapping_add(window.len());
        assert_eq!(back.near_branch_target(), rest as u64);
    }
    assert_eq!(copies.position(), out.len());
    for (target, moved) in branches {
        let offset = target.wrapping_sub(code.address as u64);
        match starts
            .iter()
            .find(|(original, _)| *original as u64 == offset)
        {
            Some((_, start)) => assert_eq!(moved, at.wrapping_add(*start) as u64),
            None => {
                assert_eq!(moved, target);
                assert!(offset >= patched.min(window.len()) as u64, "into the patch");
            }
        }
    }
}

/// The instruction pushes `value`, which is behind the jump that follows.
fn is_push_of(push: &Instruction, value: u64, out: &[u8], at: usize) {
    assert_eq!(push.code(), Opcode::Push_rm64);
    assert!(push.is_ip_rel_memory_operand());
    let literal = push.ip_rel_memory_address().wrapping_sub(at as u64) as usize;
    assert_eq!(out[literal..literal + 8], value.to_le_bytes());
}

/// The rows can be written down.
fn check_rows(copy: &Relocated) {
    let mut last = Rule::DEFAULT;
    let mut offset = None;
    for row in &copy.rows {
        assert!(row.offset < copy.len && offset < Some(row.offset));
        assert_ne!(row.rule, last);
        (last, offset) = (row.rule, Some(row.offset));
    }
    let mut rows = Rows::new();
    rows.piece(0, copy.len, &copy.rows);
    rows.piece(copy.len, copy.len, &copy.rows);
    let info = rows.finish(0x10_0000, 2 * copy.len, 0x20_0000);
    assert_eq!(info.len() % 4, 0);
}
