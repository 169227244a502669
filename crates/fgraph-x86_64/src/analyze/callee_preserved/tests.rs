use alloc::vec::Vec;

use super::{Code, PreservingFunctions, Search};

const BASE: usize = 0x40_0000;
/// Where the functions of these tests start.
const CALLER: usize = BASE;
const F: usize = BASE + 0x40;
const G: usize = BASE + 0x80;
/// Outside.
const ELSEWHERE: usize = BASE + 0x1000;

/// A direct call (0xe8) or jump (0xe9) from an offset.
fn branch(opcode: u8, from: usize, to: usize) -> [u8; 5] {
    let [a, b, c, d] = ((to as i64 - (BASE + from + 5) as i64) as i32).to_le_bytes();
    [opcode, a, b, c, d]
}

/// Returns the functions that `find` finds among these three.
fn found(
    [caller, f, g]: [&[u8]; 3],
    find: impl FnOnce(Search<'_>) -> PreservingFunctions,
) -> Vec<usize> {
    let mut bytes = alloc::vec![0xcc; 0xc0];
    for (at, code) in [(0, caller), (0x40, f), (0x80, g)] {
        bytes[at..at + code.len()].copy_from_slice(code);
    }
    let code = [Code {
        address: BASE,
        bytes: &bytes,
    }];
    let functions = [CALLER, F, G];
    let found = find(Search::new(&code, &functions, &functions, &[]));
    let is_found = |function: &usize| found.contains(*function);
    functions.into_iter().filter(is_found).collect()
}

fn callee_preserved(caller: &[u8], f: &[u8], g: &[u8]) -> Vec<usize> {
    found([caller, f, g], |search| search.by_code())
}

fn by_convention(caller: &[u8], f: &[u8], g: &[u8]) -> Vec<usize> {
    found([caller, f, g], |search| search.by_convention())
}

const RET: &[u8] = &[0xc3];
/// add rax, r8; ret
const READ_R8: &[u8] = &[0x4c, 0x01, 0xc0, 0xc3];
/// mov r8d, 1
const WRITE_R8: &[u8] = &[0x41, 0xb8, 1, 0, 0, 0];

fn calls(to: usize, behind: &[u8]) -> Vec<u8> {
    [&branch(0xe8, 0, to)[..], behind].concat()
}

#[test]
fn a_register_read_behind_a_call_is_callee_preserved() {
    assert_eq!(callee_preserved(&calls(F, READ_R8), RET, RET), [F]);
    assert_eq!(callee_preserved(&calls(F, RET), RET, RET), []);
    let written = [WRITE_R8, READ_R8].concat();
    assert_eq!(callee_preserved(&calls(F, &written), RET, RET), []);
    // add rax, rdx: a result.
    assert_eq!(
        callee_preserved(&calls(F, &[0x48, 0x01, 0xd0, 0xc3]), RET, RET),
        []
    );
    // movaps xmm0, xmm9, which the caller has not set: so it has it from its own.
    let read_xmm9 = calls(F, &[0x41, 0x0f, 0x28, 0xc1, 0xc3]);
    assert_eq!(callee_preserved(&read_xmm9, RET, RET), [CALLER, F]);
    // In another module nobody knows what is left alone.
    assert_eq!(callee_preserved(&calls(ELSEWHERE, READ_R8), RET, RET), []);
}

/// movabs rbp, imm64
fn wide(to: usize) -> Vec<u8> {
    [&[0x48, 0xbd][..], &to.to_le_bytes()].concat()
}

/// call rbp
const CALL_RBP: &[u8] = &[0xff, 0xd5];
/// test edi, edi; je +n
const fn if_zero(n: u8) -> [u8; 4] {
    [0x85, 0xff, 0x74, n]
}
/// call +4; pause; jmp -4: what follows takes the return address away.
const TRAP: &[u8] = &[0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc];
/// mov \[rsp\], rbp; ret
const TO_RBP: &[u8] = &[0x48, 0x89, 0x2c, 0x24, 0xc3];

#[test]
fn a_call_through_a_constant_is_a_call_of_its_function() {
    let through = |load: &[u8]| callee_preserved(&[load, CALL_RBP, READ_R8].concat(), RET, RET);
    assert_eq!(through(&wide(F)), [F]);
    // mov ebp, f
    assert_eq!(
        through(&[&[0xbd][..], &(F as u32).to_le_bytes()].concat()),
        [F]
    );
    // lea rbp, [rip + f - (caller + 7)]
    assert_eq!(through(&[0x48, 0x8d, 0x2d, 0x39, 0, 0, 0]), [F]);
    // lea rax, [rip - 7]; movabs rbp, f - caller; add rbp, rax
    let sum = [
        &[0x48, 0x8d, 0x05, 0xf9, 0xff, 0xff, 0xff][..],
        &wide(F - CALLER),
        &[0x48, 0x01, 0xc5],
    ];
    assert_eq!(through(&sum.concat()), [F]);
    // In another block, behind another call.
    let hoisted = [&wide(F)[..], &if_zero(2), CALL_RBP, CALL_RBP, READ_R8].concat();
    assert_eq!(callee_preserved(&hoisted, RET, RET), [F]);
    // jmp rbp, of a function whose caller relies on r8.
    let tail = [&wide(G)[..], &[0xff, 0xe5]].concat();
    assert_eq!(callee_preserved(&calls(F, READ_R8), &tail, RET), [F, G]);
}

#[test]
fn a_call_by_the_large_code_model_that_is_not_found_may_be_of_any_function() {
    // mov rbp, [rdi]
    let load: &[u8] = &[0x48, 0x8b, 0x2f];
    let unknown = [&wide(F)[..], load, CALL_RBP, READ_R8].concat();
    assert_eq!(callee_preserved(&unknown, RET, RET), [CALLER, F, G]);
    // One of two functions.
    let either = [&wide(F)[..], &if_zero(10), &wide(G), CALL_RBP, READ_R8].concat();
    assert_eq!(callee_preserved(&either, RET, RET), [CALLER, F, G]);
    // lea rbp, [rip + f - (caller + 7)]: pointers are made like this, too.
    let pointer = [
        &[0x48, 0x8d, 0x2d, 0x39, 0, 0, 0][..],
        load,
        CALL_RBP,
        READ_R8,
    ]
    .concat();
    assert_eq!(callee_preserved(&pointer, RET, RET), []);
}

#[test]
fn a_function_may_return_by_a_thunk() {
    let f = branch(0xe9, 0x40, G);
    for end in [
        &[0x48, 0x8d, 0x64, 0x24, 8, 0xc3][..],
        &[0x48, 0x83, 0xc4, 8, 0xc3],
    ] {
        let thunk = [TRAP, end].concat();
        assert_eq!(callee_preserved(&calls(F, READ_R8), &f, &thunk), [F, G]);
        // Inline.
        assert_eq!(callee_preserved(&calls(F, READ_R8), &thunk, RET), [F]);
        assert_eq!(callee_preserved(&calls(F, RET), &f, &thunk), []);
    }
    // hlt, where something else is written when the program starts.
    let bytes = {
        let mut bytes = alloc::vec![0xf4; 0xc0];
        let caller = calls(F, READ_R8);
        bytes[..caller.len()].copy_from_slice(&caller);
        bytes[0x40..0x45].copy_from_slice(&f);
        bytes
    };
    let code = [Code {
        address: BASE,
        bytes: &bytes,
    }];
    let functions = [CALLER, F, G];
    let callee_preserved = |thunks: &[usize]| {
        let search = Search::new(&code, &functions, &functions, thunks);
        search.by_code().len()
    };
    assert_eq!((callee_preserved(&[]), callee_preserved(&[G])), (0, 2));
}

#[test]
fn a_retpoline_leads_to_the_function_in_its_register() {
    let retpoline = [TRAP, TO_RBP].concat();
    let caller = [&wide(F)[..], &branch(0xe8, 10, G), READ_R8].concat();
    assert_eq!(callee_preserved(&caller, RET, &retpoline), [F]);
    // jmp over; it: retpoline; over: call it
    let inline = [
        &wide(F)[..],
        &[0xeb, 14],
        &retpoline,
        &[0xe8, 0xed, 0xff, 0xff, 0xff],
        READ_R8,
    ];
    assert_eq!(callee_preserved(&inline.concat(), RET, RET), [F]);
}

#[test]
fn functions_called_in_between_must_preserve_it_too() {
    let caller = calls(F, READ_R8);
    let f = [&branch(0xe8, 0x40, G)[..], RET].concat();
    assert_eq!(callee_preserved(&caller, &f, RET), [F, G]);
    let tail = branch(0xe9, 0x40, G);
    assert_eq!(callee_preserved(&caller, &tail, RET), [F, G]);
    // push r8; call g; pop r8; ret
    let call = branch(0xe8, 0x42, G);
    let saved = [&[0x41, 0x50][..], &call, &[0x41, 0x58], RET].concat();
    assert_eq!(callee_preserved(&caller, &saved, RET), [F]);
}

#[test]
fn reads_of_an_unknown_function_count_only_for_preserved_registers() {
    let unknown = branch(0xe8, 5, ELSEWHERE);
    let caller = calls(F, &[&unknown[..], RET].concat());
    // f writes to nothing: rdi may be the argument still.
    assert_eq!(callee_preserved(&caller, RET, RET), [F]);
    // f calls an unknown function itself.
    let f = [&branch(0xe8, 0x40, ELSEWHERE)[..], RET].concat();
    assert_eq!(callee_preserved(&caller, &f, RET), []);
    // A read that is seen counts in any case.
    assert_eq!(callee_preserved(&calls(F, READ_R8), &f, RET), [F]);
}

#[test]
fn a_function_that_takes_r11_needs_it() {
    // mov rax, r11; ret
    assert_eq!(callee_preserved(RET, &[0x4c, 0x89, 0xd8, 0xc3], RET), [F]);
}

#[test]
fn behind_a_jump_by_table_everything_may_be_read() {
    // jmp rax
    assert_eq!(callee_preserved(&calls(F, &[0xff, 0xe0]), RET, RET), [F]);
}

#[test]
fn a_callee_that_never_returns_keeps_nothing() {
    // ud2
    assert_eq!(callee_preserved(&calls(F, READ_R8), &[0x0f, 0x0b], RET), []);
}

/// mov r8d, 1; ret
const CLOBBER_R8: &[u8] = &[0x41, 0xb8, 1, 0, 0, 0, 0xc3];

#[test]
fn a_convention_shows_where_a_register_is_read_behind_a_call_that_leaves_it_alone() {
    let caller = calls(F, READ_R8);
    assert_eq!(by_convention(&caller, RET, RET), [F]);
    assert_eq!(by_convention(&calls(F, RET), RET, RET), []);
    // After the call the register does not hold the value from before it.
    assert_eq!(by_convention(&caller, CLOBBER_R8, RET), []);
    let unknown = [&branch(0xe8, 0x40, ELSEWHERE)[..], RET].concat();
    assert_eq!(by_convention(&caller, &unknown, RET), []);
    // A result in two registers, and a byte whose upper bits do not count: mov cl, 1; mov eax, ecx.
    assert_eq!(
        by_convention(&calls(F, &[0x48, 0x01, 0xd0, 0xc3]), RET, RET),
        []
    );
    let byte = calls(F, &[0xb1, 1, 0x89, 0xc8, 0xc3]);
    assert_eq!(by_convention(&byte, RET, RET), []);
}

#[test]
fn a_helper_saves_for_its_caller_what_the_microsoft_abi_preserves() {
    // mov [rax - 0x38], rsi; movaps [rax + 16 * n], xmm6 to 15; ret
    let save_rsi = [0x48, 0x89, 0x70, 0xc8];
    let vectors = |numbers: core::ops::Range<u8>| -> Vec<u8> {
        let store = |number: u8| {
            let prefix = (number > 7).then_some(0x44);
            let operand = [0x0f, 0x29, 0x40 | (number & 7) << 3, 16 * (number & 7)];
            prefix.into_iter().chain(operand)
        };
        numbers.flat_map(store).collect()
    };
    let helper = [&save_rsi[..], &vectors(6..16), RET].concat();
    // add rax, rsi; ret. mov esi, 1; ret
    let caller = calls(F, &[0x48, 0x01, 0xf0, 0xc3]);
    let with_helper = [&branch(0xe8, 0x40, G)[..], &[0xbe, 1, 0, 0, 0, 0xc3]].concat();
    assert_eq!(by_convention(&caller, &with_helper, &helper), [F]);
    // Any other function may store its argument.
    let other = [&save_rsi[..], &vectors(6..15), RET].concat();
    assert_eq!(by_convention(&caller, &with_helper, &other), []);
    let without = &with_helper[5..];
    assert_eq!(by_convention(&caller, without, &helper), []);
}

#[test]
fn a_register_that_is_saved_first_is_callee_preserved_by_convention() {
    // push r8; mov r8d, 1; pop r8; ret
    let push = &[0x41, 0x50][..];
    let pop = &[0x41, 0x58][..];
    let saves = [push, WRITE_R8, pop, RET].concat();
    let caller = calls(F, READ_R8);
    assert_eq!(by_convention(&caller, &saves, RET), [F]);
    // Around a call of what nobody knows, and of a function that need not keep it then.
    let unknown = [push, &branch(0xe8, 0x42, ELSEWHERE), pop, RET].concat();
    assert_eq!(by_convention(&caller, &unknown, RET), [F]);
    let around = [push, &branch(0xe8, 0x42, G), pop, RET].concat();
    assert_eq!(by_convention(&caller, &around, CLOBBER_R8), [F]);
    // Too late.
    let late = [WRITE_R8, &saves].concat();
    assert_eq!(by_convention(&caller, &late, RET), []);
    // G preserves the register itself, so F need not save it around the call of G.
    let passes = [&branch(0xe8, 0x40, G)[..], RET].concat();
    assert_eq!(by_convention(&caller, &passes, &saves), [F, G]);
    // movaps [rsp - 24], xmm9; xorps xmm9, xmm9; movaps xmm9, [rsp - 24]; ret
    let saves = [
        0x44, 0x0f, 0x29, 0x4c, 0x24, 0xe8, 0x45, 0x0f, 0x57, 0xc9, 0x44, 0x0f, 0x28, 0x4c, 0x24,
        0xe8, 0xc3,
    ];
    let read_xmm9 = calls(F, &[0x41, 0x0f, 0x28, 0xc1, 0xc3]);
    assert_eq!(by_convention(&read_xmm9, &saves, RET), [F]);
    assert_eq!(by_convention(&read_xmm9, &saves[6..], RET), []);
}

#[test]
fn arguments_that_are_handed_on_show_a_convention() {
    // call f; call g; ret, where g reads r8
    let caller = calls(F, &[&branch(0xe8, 5, G)[..], RET].concat());
    assert_eq!(by_convention(&caller, RET, READ_R8), [F]);
    assert_eq!(by_convention(&caller, RET, RET), []);
    // The first one of a function in another module.
    let unknown = [&branch(0xe8, 5, ELSEWHERE)[..], RET].concat();
    assert_eq!(by_convention(&calls(F, &unknown), RET, RET), [F]);
    // mov edi, 1
    let other = [&[0xbf, 1, 0, 0, 0][..], &branch(0xe8, 10, ELSEWHERE), RET].concat();
    assert_eq!(by_convention(&calls(F, &other), RET, RET), []);
}

#[test]
fn nothing_is_taken_for_a_convention_that_is_not_seen() {
    // jmp rax; then what it may lead to: mov r8d, 1; ret
    let table = [&[0xff, 0xe0][..], CLOBBER_R8].concat();
    assert_eq!(by_convention(&calls(F, READ_R8), &table, RET), []);
    assert_eq!(by_convention(&calls(F, &[0xff, 0xe0]), RET, RET), []);
    // An instruction that does not exist.
    assert_eq!(by_convention(&calls(F, &[0x06]), RET, RET), []);
}

#[test]
fn any_bytes_are_looked_at() {
    let mut state = 1_u64;
    for len in 0..200 {
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..len * 7).map(|_| byte()).collect();
        let code = [Code {
            address: BASE,
            bytes: &bytes,
        }];
        let search = Search::new(&code, &[BASE, BASE + 3, BASE + 50], &[BASE + 9], &[]);
        let _ = (search.by_convention(), search.by_code());
    }
}

#[test]
fn code_may_end_with_any_instruction() {
    let ends: [&[u8]; 7] = [
        &[0x90],                         // nop
        &[0xff, 0x10],                   // call [rax]
        &[0xff, 0xd0],                   // call rax
        &[0xe8, 0xfb, 0xff, 0xff, 0xff], // call itself
        &[0xe8, 0, 0, 0, 1],             // call elsewhere
        &[0x74, 0xfe],                   // je itself
        &[0x48],                         // half an instruction
    ];
    for bytes in ends {
        let code = [Code {
            address: BASE,
            bytes,
        }];
        let search = Search::new(&code, &[BASE], &[BASE], &[]);
        assert!(search.by_convention().len() <= 1);
        assert!(search.by_code().len() <= 1);
    }
}
