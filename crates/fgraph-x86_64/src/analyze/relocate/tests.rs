extern crate std;

use super::{Code, RelocateError, Relocated, Window, plan, plan_breakpoint};
use crate::unwind::{EH_FRAME_FDE, Row, Rows};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::vec;
use std::vec::Vec;

const ADDRESS: usize = 0x1000_0000;
const PROLOGUE: usize = 0x1200_0000;

/// The bytes of a hex string, blanks ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn plan_of(function: &str, behind: &str) -> Result<Window, RelocateError> {
    let mut bytes = hex(function);
    let size = bytes.len();
    bytes.extend(hex(behind));
    plan(&Code {
        bytes: &bytes,
        address: ADDRESS,
        size,
    })
}

fn refusal(function: &str) -> RelocateError {
    plan_of(function, "cccccccccc").unwrap_err()
}

fn relocate(window: &Window, at: usize) -> Result<(Vec<u8>, Relocated), RelocateError> {
    let mut out = vec![0; window.relocated_len()];
    let relocated = window.relocate(at, &mut out)?;
    out.truncate(relocated.len);
    Ok((out, relocated))
}

/// The relocated prologue of a function, followed by a jump back to offset `back`.
fn assert_relocated(function: &str, expected: &str, back: Option<usize>) {
    let window = plan_of(function, "cccccccccc").unwrap();
    let (out, _) = relocate(&window, PROLOGUE).unwrap();
    let mut expected = hex(expected);
    if let Some(back) = back {
        assert_eq!(window.len(), back);
        let end = PROLOGUE + expected.len() + 5;
        expected.push(0xe9);
        expected.extend(((ADDRESS + back).wrapping_sub(end) as u32).to_le_bytes());
    }
    assert_eq!(out, expected, "{out:02x?}");
}

#[test]
fn instructions_that_mean_the_same_everywhere_are_copied() {
    // push rbp; mov rbp, rsp; sub rsp, 16
    assert_relocated("55 4889e5 4883ec10 c9 c3", "55 4889e5 4883ec10", Some(8));
    // syscall
    assert_relocated("b827000000 0f05 c3", "b827000000", Some(5));
    assert_relocated("89f8 0f05 90 c3", "89f8 0f05 90", Some(5));
    // mov eax, edi; jmp [rax*8 + 0x1000]
    assert_relocated("89f8 ff24c500100000", "89f8 ff24c500100000", None);
}

#[test]
fn a_window_ends_at_the_first_boundary_behind_the_jump() {
    let window = plan_of("55 4889e5 4883ec10 c9 c3", "").unwrap();
    assert_eq!((window.len(), window.boundaries()), (8, 0b1_0011));
    assert!(!window.is_empty());
    let (_, relocated) = relocate(&window, PROLOGUE).unwrap();
    assert_eq!([0, 1, 4].map(|k| relocated.resume[k]), [0, 1, 4]);
    let window = plan_of("e900000000", "").unwrap();
    assert_eq!((window.len(), window.boundaries()), (5, 1));
}

#[test]
fn a_rip_relative_operand_leads_to_the_same_address() {
    // cmp dword ptr [rip + 0x11223344], 0x55667788: the displacement is not the last field.
    // The relocated prologue is 0x2000000 further.
    assert_relocated(
        "813d 44332211 88776655 c3",
        "813d 4433220f 88776655",
        Some(10),
    );
    // lea rax, [rip - 7]: the function itself.
    assert_relocated("488d05 f9ffffff c3", "488d05 f9fffffd", Some(7));
}

#[test]
fn short_branches_become_near_ones() {
    // test edi, edi; je +0x10; xor eax, eax
    let target = ADDRESS + 4 + 0x10;
    let operand = |end: usize| {
        let bytes = (target.wrapping_sub(PROLOGUE + end) as u32).to_le_bytes();
        bytes.map(|byte| std::format!("{byte:02x}")).concat()
    };
    let expected = std::format!("85ff 0f84{} 31c0", operand(8));
    assert_relocated("85ff 7410 31c0 c3 9090", &expected, Some(6));
    // jrcxz and its relatives have no near form.
    for opcode in ["e0", "e1", "e2", "e3"] {
        let expected = std::format!("85ff {opcode}02 eb05 e9{} 31c0", operand(11));
        assert_relocated(
            &std::format!("85ff {opcode}10 31c0 c3 9090"),
            &expected,
            Some(6),
        );
    }
    let target = ADDRESS + 3 + 0x10;
    let bytes = (target.wrapping_sub(PROLOGUE + 10) as u32).to_le_bytes();
    let operand = bytes.map(|byte| std::format!("{byte:02x}")).concat();
    let expected = std::format!("67e302 eb05 e9{operand} 31c0");
    assert_relocated("67e310 31c0 c3 9090", &expected, Some(5));
}

#[test]
fn a_branch_within_the_window_stays_within_the_relocated_prologue() {
    // 0: dec ecx; jne 0; ret
    assert_relocated("ffc9 75fc c3", "ffc9 0f85f8ffffff c3", None);
    // test edi, edi; je 5; inc eax; 5: (behind the window)
    assert_relocated(
        "85ff 7401 90 c3",
        &std::format!("85ff 0f84{} 90", {
            let bytes = (ADDRESS + 5).wrapping_sub(PROLOGUE + 8) as u32;
            bytes
                .to_le_bytes()
                .map(|byte| std::format!("{byte:02x}"))
                .concat()
        }),
        Some(5),
    );
}

#[test]
fn a_call_pushes_the_address_behind_the_original() {
    let next = |offset: usize| {
        let bytes = ((ADDRESS + offset) as u64).to_le_bytes();
        bytes.map(|byte| std::format!("{byte:02x}")).concat()
    };
    // call +0x100
    let operand = (ADDRESS + 5 + 0x100).wrapping_sub(PROLOGUE + 11) as u32;
    let operand = operand
        .to_le_bytes()
        .map(|byte| std::format!("{byte:02x}"))
        .concat();
    let expected = std::format!("ff3505000000 e9{operand} {}", next(5));
    assert_relocated("e800010000 c3", &expected, None);
    // push rax; call [rip + 0x2000100]: 6 bytes of push before it.
    let expected = std::format!("50 ff3506000000 ff25faf00000 {}", next(7));
    assert_relocated("50 ff1500f10002 58 c3", &expected, None);
    // call [rsp + 8], which is 16 behind the push; with a displacement of 8 bits, 32 bits, none.
    let expected = std::format!("89f8 ff3507000000 ffa42410000000 {}", next(6));
    assert_relocated("89f8 ff542408 c3", &expected, None);
    let expected = std::format!("ff3507000000 ffa42410010000 {}", next(7));
    assert_relocated("ff942408010000 c3", &expected, None);
    let expected = std::format!("89f8 ff3507000000 ffa42408000000 {}", next(5));
    assert_relocated("89f8 ff1424 c3", &expected, None);
    // call [r12 + 8] looks alike.
    let expected = std::format!("ff3505000000 41ff642408 {}", next(5));
    assert_relocated("41ff542408 c3", &expected, None);
    // A register, with and without REX; fs:[rax].
    let expected = std::format!("50 89f8 ff3502000000 ffe0 {}", next(5));
    assert_relocated("50 89f8 ffd0 58 c3", &expected, None);
    let expected = std::format!("89f8 ff3503000000 41ffe3 {}", next(5));
    assert_relocated("89f8 41ffd3 c3", &expected, None);
    let expected = std::format!("89f8 ff3503000000 64ff20 {}", next(5));
    assert_relocated("89f8 64ff10 c3", &expected, None);
}

#[test]
fn a_call_that_cannot_be_written_as_push_and_jump_is_refused() {
    // call rsp; call [rsp - 8]; call [rsp + rax]
    for function in ["6690 90 ffd4 c3", "90 ff5424f8 c3", "6690 ff1404 c3"] {
        assert!(
            matches!(refusal(function), RelocateError::Unmovable { .. }),
            "{function}"
        );
    }
}

#[test]
fn a_call_may_not_return_into_the_patch() {
    assert_eq!(
        refusal("50 ffd7 58 c3"),
        RelocateError::Returns { at: 1, to: 3 }
    );
    // call +0; pop rax: returns behind it.
    assert!(plan_of("e800000000 58 c3", "").is_ok());
}

#[test]
fn instructions_that_depend_on_their_place_are_refused() {
    let functions = [
        "c7f800000000 c3",     // xbegin
        "48ff28 9090 c3",      // jmp far [rax]
        "ff18 90909090 c3",    // call far [rax]
        "cb 90909090 c3",      // retf
        "6674 10 9090909090",  // je with a 16-bit operand
        "67488b05 00000000c3", // eip-relative
        "8b05 fcffffff c3",    // reads its own bytes
    ];
    for function in functions {
        assert_eq!(
            refusal(function),
            RelocateError::Unmovable { at: 0 },
            "{function}"
        );
    }
}

#[test]
fn breakpoints_and_bytes_that_are_no_instruction_are_refused() {
    assert_eq!(
        refusal("cc 90909090 c3"),
        RelocateError::Breakpoint { at: 0 }
    );
    assert_eq!(
        refusal("90 cc 909090 c3"),
        RelocateError::Breakpoint { at: 1 }
    );
    assert_eq!(
        refusal("90 06 909090 c3"),
        RelocateError::Undecodable { at: 1 }
    );
    // Cut off by the end of the function.
    assert_eq!(refusal("90 48b80000"), RelocateError::TooShort { have: 1 });
}

#[test]
fn a_short_function_needs_padding_behind() {
    for padding in [
        "90909090",
        "660f1f440000",
        "cccccccc",
        "0f1f00 90",
        "00000000000000000000000000",
    ] {
        let window = plan_of("31c0 c3", padding).unwrap();
        assert_eq!((window.len(), window.boundaries()), (3, 0b101), "{padding}");
        assert_eq!(relocate(&window, PROLOGUE).unwrap().0, hex("31c0c3"));
    }
    for behind in ["", "90", "9048", "4889f8", "0000 4889f8", "f390"] {
        assert_eq!(
            plan_of("31c0 c3", behind).unwrap_err(),
            RelocateError::TooShort { have: 3 },
            "{behind}"
        );
    }
    // One that goes on behind its end.
    assert_eq!(refusal("90 90"), RelocateError::TooShort { have: 2 });
}

#[test]
fn a_size_of_zero_ends_the_function_where_padding_begins() {
    let plan = |text: &str| {
        plan(&Code {
            bytes: &hex(text),
            address: ADDRESS,
            size: 0,
        })
    };
    assert_eq!(plan("31c0 c3 9090").unwrap().len(), 3);
    assert_eq!(
        plan("31c0 c3 31c0 c3").unwrap_err(),
        RelocateError::TooShort { have: 3 }
    );
    assert_eq!(plan("31c0 89f8 8d0407 c3").unwrap().len(), 7);
    assert!(plan("").is_err());
}

#[test]
fn code_behind_an_early_return_belongs_to_the_window() {
    // test edi, edi; jne 5; ret; 5: ...
    let window = plan_of("85ff 7501 c3 89f8 c3", "").unwrap();
    assert_eq!((window.len(), window.boundaries()), (5, 0b1_0101));
    // jne 3; ret; 3: mov eax, edi; ret
    let window = plan_of("7501 c3 89f8 c3", "").unwrap();
    assert_eq!((window.len(), window.boundaries()), (5, 0b0_1101));
    assert_relocated("7501 c3 89f8 c3", "0f8501000000 c3 89f8", Some(5));
}

#[test]
fn a_branch_into_the_patch_is_refused() {
    // push rbx; mov ebx, edi; 3: dec ebx; call; jne 3
    let short = "53 89fb ffcb e800010000 75f7 5b c3";
    assert_eq!(refusal(short), RelocateError::Target { from: 10, to: 3 });
    let near = "53 89fb ffcb e800010000 0f85f3ffffff 5b c3";
    assert_eq!(refusal(near), RelocateError::Target { from: 10, to: 3 });
    let jmp = "53 89fb ffcb e800010000 e9f4ffffff 5b c3";
    assert_eq!(refusal(jmp), RelocateError::Target { from: 10, to: 3 });
    let call = "53 89fb ffcb e800010000 e8f4ffffff 5b c3";
    assert_eq!(refusal(call), RelocateError::Target { from: 10, to: 3 });
    let count = "53 89f9 ffcb e800010000 e2f7 5b c3";
    assert_eq!(refusal(count), RelocateError::Target { from: 10, to: 3 });
    // Into the middle of an instruction.
    let middle = "53 89fb ffcb e800010000 75f8 5b c3";
    assert_eq!(refusal(middle), RelocateError::Target { from: 10, to: 4 });
    // The overwritten bytes end at 5.
    assert!(plan_of("53 89fb ffcb e800010000 75f9 5b c3", "").is_ok());
    // The same bytes as the operand of another instruction are no branch: mov eax, 0xf775.
    assert!(plan_of("53 89fb ffcb e800010000 b875f70000 5b c3", "").is_ok());
    // Within the window itself.
    assert_eq!(
        refusal("eb01 b800000000 c3"),
        RelocateError::Target { from: 0, to: 3 }
    );
}

#[test]
fn a_loop_at_the_entry_is_refused_when_it_calls_or_moves_the_frame() {
    // 0: mov edi, eax; xor ecx, ecx; inc ecx; call; test; jne 0
    let function = "89c7 31c9 ffc1 e800010000 85c0 75f1 c3";
    assert_eq!(refusal(function), RelocateError::Loop { from: 13 });
    // A table of addresses may lead anywhere.
    let function = "89c7 31c9 ffc1 85c0 75f6 ff24c500100000";
    assert_eq!(refusal(function), RelocateError::Loop { from: 8 });
    // The frame is found by rbp: push rbp; mov rbp, rsp; 4: and rsp, -32; dec eax; jne 4.
    let function = "55 4889e5 4883e4e0 ffc8 75f8 c9 c3";
    assert_eq!(refusal(function), RelocateError::Target { from: 10, to: 4 });
}

#[test]
fn the_longest_loop_that_is_moved_has_256_bytes() {
    // xor eax, eax; 2: dec eax; nop ...; jne 2; ret
    let function = |nops: usize| {
        let back = (2 - (10 + nops as i32)).to_le_bytes();
        let back = back.map(|byte| std::format!("{byte:02x}")).concat();
        std::format!("31c0 ffc8 {} 0f85{back} c3", "90".repeat(nops))
    };
    assert_eq!(plan_of(&function(246), "").unwrap().len(), 256);
    assert_eq!(
        refusal(&function(247)),
        RelocateError::Target { from: 251, to: 2 }
    );
}

#[test]
fn a_loop_without_calls_is_moved_as_a_whole() {
    // 0: mov rax, [rdi]; test rax, rax; je 13; mov rdi, rax; jmp 0; 13: mov rax, rdi; ret
    let function = "488b07 4885c0 7405 4889c7 ebf3 4889f8 c3";
    let window = plan_of(function, "").unwrap();
    assert_eq!((window.len(), window.boundaries()), (13, 0b1001));
    let (out, relocated) = relocate(&window, PROLOGUE).unwrap();
    assert!(relocated.rows.is_empty());
    // The last jump leads to the start of the relocated prologue, the exit to the original.
    assert_eq!(out[..6], hex("488b07 4885c0"));
    assert_eq!(out[15..], hex("e9 ecffffff"));
    // Into the interior as well: 0: xor eax, eax; 2: inc eax; cmp; jne 2; ret.
    let window = plan_of("31c0 ffc0 83f864 75f9 c3", "").unwrap();
    assert_eq!(window.len(), 9);
    // With an exit to what is farther behind.
    let window = plan_of("488b07 4885c0 7406 4889c7 ebf3 90 4889f8 c3", "").unwrap();
    assert_eq!(window.len(), 13);
}

#[test]
fn recursion_is_no_loop() {
    // A call of itself.
    assert!(plan_of("53 89fb 31c0 e8f6ffffff 5b c3", "").is_ok());
    // A tail call of itself: the frame is set up again.
    assert!(plan_of("53 89fb 31c0 e800010000 5b ebf3", "").is_ok());
}

#[test]
fn a_breakpoint_displaces_one_instruction() {
    let plan = |text: &str| {
        let bytes = hex(text);
        plan_breakpoint(&Code {
            bytes: &bytes,
            address: ADDRESS,
            size: bytes.len(),
        })
    };
    let window = plan("c3").unwrap();
    assert_eq!((window.len(), window.boundaries()), (1, 1));
    let window = plan("53 89fb ffcb e800010000 75f7 5b c3").unwrap();
    assert_eq!((window.len(), window.boundaries()), (1, 1));
    let window = plan("50 ffd7 58 c3").unwrap();
    assert_eq!(relocate(&window, PROLOGUE).unwrap().0.len(), 6);
    let window = plan("488b07 4885c0 7405 4889c7 ebf3 4889f8 c3").unwrap();
    assert_eq!(
        (window.len(), window.boundaries()),
        (13, 1),
        "a loop at the entry"
    );
    assert!(plan("").is_err());
}

#[test]
fn a_relocated_prologue_reaches_two_gibibytes_either_way() {
    // mov rax, [rip]; ret: 7 bytes, the operand is counted from their end.
    let window = plan_of("488b05 00000000 c3", "").unwrap();
    let reach = |at: usize| window.relocate(at, &mut [0; 32]);
    let target = ADDRESS + 7;
    let lowest = (ADDRESS + 7).wrapping_sub(0x7fff_ffff).wrapping_sub(7);
    assert!(reach(lowest).is_ok());
    let far = lowest.wrapping_sub(1);
    assert_eq!(
        reach(far).unwrap_err(),
        RelocateError::Reach { at: 0, target }
    );
    let highest = ADDRESS + 7 + 0x8000_0000 - 12;
    assert!(reach(highest).is_ok());
    // The jump back is the one that is out of reach.
    assert_eq!(
        reach(highest + 1).unwrap_err(),
        RelocateError::Reach { at: 7, target }
    );
    assert_eq!(
        window.relocate(PROLOGUE, &mut [0; 11]).unwrap_err(),
        RelocateError::Room { need: 12, have: 11 }
    );
}

fn rows(function: &str) -> Vec<(usize, u8, i32)> {
    let window = plan_of(function, "cccccccccc").unwrap();
    let rows = relocate(&window, PROLOGUE).unwrap().1.rows;
    rows.iter()
        .map(|Row { offset, rule }| (*offset, rule.register, rule.offset))
        .collect()
}

#[test]
fn rows_follow_the_stack_pointer() {
    // push rbp; mov rbp, rsp; sub rsp, 16
    assert_eq!(rows("55 4889e5 4883ec10 c3"), [(1, 7, 16), (8, 7, 32)]);
    // push rbp; mov rbp, rsp; and rsp, -32: from here on by rbp.
    assert_eq!(rows("55 4889e5 4883e4e0 c3"), [(1, 7, 16), (8, 6, 16)]);
    // lea r10, [rsp + 8]; and rsp, -32, by r10.
    assert_eq!(rows("6690 90 4c8d542408 4883e4e0"), []);
    assert_eq!(rows("4989e2 4883e4e0 c3"), [(7, 10, 8)]);
    // lea rsp, [rsp - 128]; add rsp, 128 is not in the window.
    assert_eq!(rows("488d6424 80 4883ec80 c3"), [(5, 7, 136)]);
    // push rbx; pop rbx; push imm; pushfq; ret
    assert_eq!(
        rows("53 5b 6a01 9c c3"),
        [(1, 7, 16), (2, 7, 8), (4, 7, 16), (5, 7, 24)]
    );
    // push rbp; mov rbp, rsp; leave; ret
    assert_eq!(rows("55 4889e5 c9 c3"), [(1, 7, 16), (5, 7, 8)]);
    // Within a call: behind the push.
    assert_eq!(rows("50 e800010000 58 c3"), [(1, 7, 16), (7, 7, 24)]);
}

#[test]
fn rows_tell_where_registers_are_saved() {
    let saved = |function: &str| {
        let window = plan_of(function, "cccccccccc").unwrap();
        let rows = relocate(&window, PROLOGUE).unwrap().1.rows;
        rows.iter().map(|row| row.rule.saved).collect::<Vec<_>>()
    };
    // push r15; push rbx; push rdi; mov
    assert_eq!(
        saved("4157 53 57 89f3 c3"),
        [[0, 0, 0, 0, 0, 2], [3, 0, 0, 0, 0, 2], [3, 0, 0, 0, 0, 2]]
    );
    // Not the caller's value any more: xor ebx, ebx; push rbx.
    assert_eq!(saved("31db 53 6690 c3"), [[0; 6]]);
    // mov [rsp - 24], rbx: in the red zone; mov [rsp - 16], rbp.
    assert_eq!(saved("48895c24e8 48896c24f0 c3"), [[4, 0, 0, 0, 0, 0]]);
    // pop gives it back.
    assert_eq!(saved("53 5b 9090 90 c3"), [[2, 0, 0, 0, 0, 0], [0; 6]]);
}

#[test]
fn a_stack_pointer_that_is_lost_is_refused() {
    // mov rsp, rdi; xchg rsp, rax; enter; sub rsp, rax
    for function in [
        "4889fc 6690 c3",
        "4894 909090 c3",
        "c8100000 90 c3",
        "4829c4 6690 c3",
    ] {
        let refusal = refusal(function);
        assert!(
            matches!(refusal, RelocateError::StackPointer { .. }),
            "{function} {refusal:?}"
        );
    }
}

#[test]
fn any_bytes_give_an_answer() {
    for prefix in [&[][..], &[0x0f]] {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let mut bytes = prefix.to_vec();
                bytes.extend([
                    first, second, 0x24, 0x08, 0xf9, 0xff, 0xff, 0xff, 0x90, 0xc3,
                ]);
                let code = Code {
                    bytes: &bytes,
                    address: ADDRESS,
                    size: bytes.len() - usize::from(second & 1),
                };
                for plan in [plan, plan_breakpoint] {
                    if let Ok(window) = plan(&code) {
                        let (_, relocated) = relocate(&window, PROLOGUE).unwrap();
                        assert!(relocated.len <= window.relocated_len());
                    }
                }
            }
        }
    }
}

// Functions to be run from their relocated prologue. Nothing is patched: that is called,
// and goes on in the original.

static VARIABLE: AtomicU32 = AtomicU32::new(0);

/// Returns 1 if [`VARIABLE`] is 0x12345678.
#[unsafe(naked)]
extern "C" fn compare() -> u64 {
    naked_asm!(
        "cmp dword ptr [rip + {variable}], 0x12345678",
        "sete al",
        "movzx eax, al",
        "ret",
        variable = sym VARIABLE,
    )
}

/// 2 for 0, else 1.
#[unsafe(naked)]
extern "C" fn branch(_: u64) -> u64 {
    naked_asm!(
        "test edi, edi",
        "je 2f",
        "mov eax, 1",
        "ret",
        "2: mov eax, 2",
        "ret",
    )
}

/// 2 for 0, else 1.
#[unsafe(naked)]
extern "C" fn count(_: u64) -> u64 {
    naked_asm!(
        "mov rcx, rdi",
        "jrcxz 2f",
        "mov eax, 1",
        "ret",
        "2: mov eax, 2",
        "ret",
    )
}

/// Its return address.
#[unsafe(naked)]
extern "C" fn returns_to() -> u64 {
    naked_asm!("mov rax, [rsp]", "ret")
}

/// The address behind its call, which is at 1.
#[unsafe(naked)]
extern "C" fn calls() -> u64 {
    naked_asm!(
        "push rbx",
        "call {callee}",
        "pop rbx",
        "ret",
        callee = sym returns_to,
    )
}

static POINTER: extern "C" fn() -> u64 = returns_to;

/// The address behind its call, which is at 1.
#[unsafe(naked)]
extern "C" fn calls_memory() -> u64 {
    naked_asm!(
        "push rbx",
        "call [rip + {pointer}]",
        "pop rbx",
        "ret",
        pointer = sym POINTER,
    )
}

/// The address behind its call, which is at 3.
#[unsafe(naked)]
extern "C" fn calls_register(_: extern "C" fn() -> u64) -> u64 {
    naked_asm!("push rbx", "mov eax, esi", "call rdi", "pop rbx", "ret")
}

/// The address behind its call, which is at 2.
#[unsafe(naked)]
extern "C" fn calls_stack(_: extern "C" fn() -> u64) -> u64 {
    naked_asm!(
        "push rdi",
        "push rsi",
        "call [rsp + 8]",
        "pop rcx",
        "pop rcx",
        "ret",
    )
}

/// The argument, and 1 more when its caller's comparison found more.
#[unsafe(naked)]
extern "C" fn above(_: u64) -> u64 {
    naked_asm!("seta al", "movzx eax, al", "add rax, rdi", "ret")
}

/// The argument, and 1 more if that is above 5.
#[unsafe(naked)]
extern "C" fn calls_with_flags(_: u64) -> u64 {
    naked_asm!(
        "cmp edi, 5",
        "call {above}",
        "ret",
        above = sym above,
    )
}

/// Ten times the argument.
#[unsafe(naked)]
extern "C" fn frame(_: u64) -> u64 {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 32",
        "mov [rbp - 8], rdi",
        "imul rax, [rbp - 8], 10",
        "leave",
        "ret",
    )
}

/// The argument and 1, in four bytes.
#[unsafe(naked)]
extern "C" fn short(_: u64) -> u64 {
    naked_asm!("lea eax, [rdi + 1]", "ret", ".balign 16, 0xcc")
}

/// The sum of all numbers up to the argument, in [`SUM_LEN`] bytes.
#[unsafe(naked)]
extern "C" fn sum(_: u64) -> u64 {
    naked_asm!(
        "xor eax, eax",
        "2: add eax, edi",
        "dec edi",
        "jne 2b",
        "ret",
    )
}

const SUM_LEN: usize = 9;

/// Divides by zero at 4, with two words on the stack; see [`on_fpe`].
#[unsafe(naked)]
extern "C" fn divides(_: u64) -> u64 {
    naked_asm!(
        "push rbp",
        "push rdi",
        "xor ecx, ecx",
        "div ecx",
        "pop rax",
        "pop rbp",
        "ret",
    )
}

/// A page within 2 GiB of this program that holds the relocated prologue of a window.
struct Page {
    start: *mut u8,
    window: Window,
    relocated: Relocated,
}

const PAGE_LEN: usize = 4096;

/// Where in the page its unwind information is.
const UNWIND_INFO: usize = 1024;

impl Page {
    /// For the function at an address; its size, or 0.
    fn of(function: usize, size: usize) -> Self {
        // SAFETY: the functions above are within this program's text, which is not written to and
        // goes on behind them.
        let bytes = unsafe { core::slice::from_raw_parts(function as *const u8, 32) };
        let window = plan(&Code {
            bytes,
            address: function,
            size,
        })
        .unwrap();
        let mut out = [0xcc; 256];
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // The program and its heap are in the way, and other tests.
        for distance in 1..512 {
            let at = (function & !(PAGE_LEN - 1)) - distance * (1 << 21);
            let Ok(relocated) = window.relocate(at, &mut out) else {
                continue;
            };
            let mut rows = Rows::new();
            rows.piece(0, relocated.len, &relocated.rows);
            let info = rows.finish(at, relocated.len, at + UNWIND_INFO);
            // SAFETY: a new mapping, written within its bounds before it is made executable.
            unsafe {
                let start = libc::mmap(at as *mut c_void, PAGE_LEN, protection, flags, -1, 0);
                if start != at as *mut c_void {
                    continue;
                }
                let start = start.cast::<u8>();
                start.copy_from_nonoverlapping(out.as_ptr(), out.len());
                let place = start.add(UNWIND_INFO);
                place.copy_from_nonoverlapping(info.as_ptr(), info.len());
                let protection = libc::PROT_READ | libc::PROT_EXEC;
                assert_eq!(libc::mprotect(start.cast(), PAGE_LEN, protection), 0);
                return Self {
                    start,
                    window,
                    relocated,
                };
            }
        }
        panic!("no room near {function:#x}");
    }

    /// Calls the relocated prologue of a function that takes an integer or a pointer, or nothing.
    #[inline(never)]
    fn call(&self, argument: u64) -> u64 {
        // SAFETY: the relocated prologue of a function of this kind; an argument that is not asked
        // for does no harm.
        let relocated =
            unsafe { core::mem::transmute::<*mut u8, extern "C" fn(u64) -> u64>(self.start) };
        // The call must not become a jump, which would leave no frame of this function.
        core::hint::black_box(relocated(argument))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is ours, and nobody runs it any more.
        unsafe { libc::munmap(self.start.cast(), PAGE_LEN) };
    }
}

#[test]
fn a_relocated_prologue_reads_the_variables_of_the_original() {
    let page = Page::of(compare as *const () as usize, 0);
    assert_eq!(page.call(0), 0);
    VARIABLE.store(0x1234_5678, Ordering::Relaxed);
    assert_eq!(page.call(0), 1);
}

#[test]
fn a_relocated_prologue_branches_as_the_original() {
    for function in [branch as extern "C" fn(u64) -> u64, count] {
        let page = Page::of(function as *const () as usize, 0);
        for argument in [0, 1, 7] {
            assert_eq!(page.call(argument), function(argument));
        }
    }
}

#[test]
fn a_callee_sees_the_return_address_of_the_original() {
    let argument = returns_to as *const () as u64;
    for (function, end) in [
        (calls as *const () as usize, 6),
        (calls_memory as *const () as usize, 7),
        (calls_register as *const () as usize, 5),
        (calls_stack as *const () as usize, 6),
    ] {
        let page = Page::of(function, 0);
        assert_eq!(page.window.len(), end);
        assert_eq!(page.call(argument), (function + end) as u64);
    }
}

#[test]
fn a_callee_sees_the_flags_and_registers_of_the_original() {
    let page = Page::of(calls_with_flags as *const () as usize, 0);
    assert_eq!(page.window.len(), 8, "the call is displaced");
    for argument in [4, 5, 6, 7] {
        assert_eq!(page.call(argument), calls_with_flags(argument));
    }
}

#[test]
fn a_relocated_prologue_sets_up_the_frame_of_the_original() {
    let page = Page::of(frame as *const () as usize, 0);
    assert_eq!(page.call(7), 70);
}

#[test]
fn short_functions_and_loops_run_from_their_copies_alone() {
    let page = Page::of(short as *const () as usize, 4);
    assert_eq!(page.window.len(), 4);
    assert_eq!(page.call(7), 8);
    let page = Page::of(sum as *const () as usize, SUM_LEN);
    assert_eq!(page.window.len(), SUM_LEN - 1, "all but the return");
    assert_eq!(page.call(100), 5050);
}

// The unwinder that std links.
unsafe extern "C" {
    fn __register_frame(begin: *const u8);
    fn __deregister_frame(begin: *const u8);
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetRegionStart(context: *mut c_void) -> usize;
}

/// Where the division is.
static DIVISION: AtomicUsize = AtomicUsize::new(0);
/// Frames that were seen from there on.
static SEEN: AtomicUsize = AtomicUsize::new(0);
/// Start of the function whose frame comes next.
static CALLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn each_frame(context: *mut c_void, _: *mut c_void) -> c_int {
    // SAFETY: the unwinder gave us this context for the time of this call.
    let (address, start) = unsafe { (_Unwind_GetIP(context), _Unwind_GetRegionStart(context)) };
    let seen = SEEN.load(Ordering::Relaxed);
    if seen > 0 || address == DIVISION.load(Ordering::Relaxed) {
        SEEN.store(seen + 1, Ordering::Relaxed);
    }
    if seen == 1 {
        CALLER.store(start, Ordering::Relaxed);
    }
    0
}

extern "C" fn on_fpe(_: c_int, _: *mut c_void, context: *mut c_void) {
    // SAFETY: `each_frame` has the signature the unwinder calls; the kernel passes a ucontext,
    // which is ours to change until we return.
    unsafe {
        _Unwind_Backtrace(each_frame, core::ptr::null_mut());
        let context = context.cast::<libc::ucontext_t>();
        // Go on behind the division.
        (*context).uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
    }
}

/// SIGFPE, since no other test has it.
#[test]
fn the_unwinder_walks_through_a_displaced_prologue() {
    let page = Page::of(divides as *const () as usize, 0);
    let division = page.start as usize + usize::from(page.relocated.resume[4]);
    DIVISION.store(division, Ordering::Relaxed);
    // SAFETY: the page has the information, and stays until that is taken back; the handler is as
    // the kernel wants it.
    unsafe {
        let info = page.start.add(UNWIND_INFO + EH_FRAME_FDE);
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_fpe as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = core::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGFPE, &action, &mut before), 0);

        assert_eq!(page.call(7), 7);
        assert_eq!(SEEN.load(Ordering::Relaxed), 1, "nothing is registered");
        SEEN.store(0, Ordering::Relaxed);
        __register_frame(info);
        assert_eq!(page.call(7), 7);
        __deregister_frame(info);
        libc::sigaction(libc::SIGFPE, &before, core::ptr::null_mut());
    }
    assert_eq!(
        CALLER.load(Ordering::Relaxed),
        Page::call as *const () as usize
    );
    assert!(SEEN.load(Ordering::Relaxed) > 3, "up to the thread's start");
}

#[test]
fn the_depth_is_that_of_the_lowest_word_that_a_displaced_instruction_uses() {
    for (function, depth) in [
        // sub rsp, 8; mov rdi, rax
        ("4883ec08 4889c7 c3", 0),
        // sub rsp, 24; mov [rsp], rax
        ("4883ec18 48890424 c3", 24),
        // sub rsp, 24; mov [rsp + 8], rax
        ("4883ec18 4889442408 c3", 16),
        // sub rsp, 8; call
        ("4883ec08 e800100000 c3", 16),
        // push rbx; push r12; push r13
        ("53 4154 4155 c3", 24),
        // lea rax, [rsp - 64]
        ("488d4424c0 c3", 0),
    ] {
        let window = plan_of(function, "cccccccccc").unwrap();
        assert_eq!(window.depth(), depth, "{function}");
    }
}
