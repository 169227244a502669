//! Values of a call that callbacks read and change.

use std::hint::black_box;
use std::sync::Mutex;

use fgraph::{Entry, Function, WriteError};
use fgraph_needs::skip;
use fgraph_scenario::{Count, Log, plain, scenario, totals, traceable, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn eight(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> u64 {
    let mut sum = 0;
    for digit in black_box([a, b, c, d, e, f, g, h]) {
        sum = sum * 10 + digit;
    }
    sum
}

#[unsafe(no_mangle)]
#[inline(never)]
#[allow(clippy::too_many_arguments)]
extern "C" fn eight_floats(
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    e: f64,
    f: f64,
    g: f64,
    h: f64,
    i: f64,
) -> f64 {
    let mut sum = 0.0;
    for digit in black_box([a, b, c, d, e, f, g, h, i]) {
        sum = sum * 10.0 + digit;
    }
    sum
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn half(x: f32, n: u32, y: f32) -> f32 {
    black_box(x) / n as f32 + black_box(y)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn wide(low: u64, high: u64) -> u128 {
    black_box(u128::from(high) << 64 | u128::from(low))
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair(f64, f64);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pair(x: f64) -> Pair {
    black_box(Pair(x, -x))
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mixed(u64, f64);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mixed(n: u64, x: f64) -> Mixed {
    black_box(Mixed(n, x))
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct Large([u64; 8]);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn large(n: u64) -> Large {
    black_box(Large([n; 8]))
}

#[scenario]
fn integer_arguments_are_seen_and_changed() {
    let log = Log::new();
    let entries = log.clone();
    let reader = fgraph_scenario::register(
        user(
            move |call| {
                entries.push((0..8).map(|i| call.arg(i)).collect::<Vec<_>>());
                entries.push((0..2).map(|i| call.stack_arg(i)).collect());
                None
            },
            |_, ()| (),
        ),
        "eight",
    )
    .unwrap();
    assert_eq!(eight(1, 2, 3, 4, 5, 6, 7, 8), 12_345_678);
    let registers = (1..=6).map(Some).chain([None, None]).collect();
    assert_eq!(log.take(), [registers, vec![Some(7), Some(8)]]);
    drop(reader);
    // Each alone, declined and accepted.
    for index in 0..8usize {
        for accept in [false, true] {
            let _writer = fgraph_scenario::register(
                user(
                    move |call| {
                        // SAFETY: `eight` takes any numbers, two of them on the stack.
                        let mut writer = unsafe { call.rewrite() };
                        let done = match index {
                            0..6 => writer.set_arg(index, 9),
                            _ => writer.set_stack_arg(index - 6, 9),
                        };
                        let none = WriteError::NoSuchArgument { index: 6, count: 6 };
                        assert_eq!((done, writer.set_arg(6, 9)), (Ok(()), Err(none)));
                        accept.then_some(())
                    },
                    |_, ()| (),
                ),
                "eight",
            )
            .unwrap();
            let digit = 10u64.pow(7 - index as u32);
            let expected = 12_345_678 + (9 - (index as u64 + 1)) * digit;
            assert_eq!(eight(1, 2, 3, 4, 5, 6, 7, 8), expected);
        }
    }
}

#[scenario]
fn a_user_sees_the_changes_of_the_user_before_it() {
    let log = Log::new();
    let change = || {
        let (entries, returns) = (log.clone(), log.clone());
        user(
            move |call: &mut Entry<'_, u64>| {
                let seen = call.arg(0)?;
                entries.push(seen);
                // SAFETY: `eight` takes any numbers.
                unsafe { call.rewrite() }.set_arg(0, seen + 1).unwrap();
                Some(seen)
            },
            move |call, _| {
                let seen = call.result().unwrap();
                returns.push(seen);
                // SAFETY: the caller compares it.
                unsafe { call.rewrite() }.set_result(seen * 2).unwrap();
            },
        )
    };
    let _users = [(); 3].map(|()| fgraph_scenario::register(change(), "eight").unwrap());
    assert_eq!(eight(0, 0, 0, 0, 0, 0, 0, 0), 240_000_000);
    assert_eq!(log.take(), [0, 1, 2, 30_000_000, 60_000_000, 120_000_000]);
}

#[scenario]
fn words_past_the_end_of_the_stack_are_none() {
    let log = Log::new();
    let entries = log.clone();
    let _user = fgraph_scenario::register(
        user(
            move |call| {
                let far = [1 << 40, usize::MAX / 8, usize::MAX];
                entries.push(far.map(|index| {
                    let seen = call.stack_arg(index);
                    // SAFETY: nothing is written.
                    let set = unsafe { call.rewrite() }.set_stack_arg(index, 1);
                    let is_past = |error| {
                        matches!(error, WriteError::PastTheStack { index: at, end }
                                if at == index && end > call.stack_pointer())
                    };
                    (seen, set.is_err_and(is_past))
                }));
                let last = (0..).take_while(|&i| call.stack_arg(i).is_some()).count();
                assert!(last > 2);
                None
            },
            |_, ()| (),
        ),
        "eight",
    )
    .unwrap();
    assert_eq!(eight(1, 2, 3, 4, 5, 6, 7, 8), 12_345_678);
    assert_eq!(log.take(), [[(None, true); 3]]);
}

#[scenario]
fn floating_point_arguments_and_results_are_seen_and_changed() {
    let call = || eight_floats(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0);
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    let reader = fgraph_scenario::register(
        user(
            move |call| {
                entries.push((0..9).map(|i| call.float_arg(i)).collect::<Vec<_>>());
                entries.push(vec![call.stack_arg(0).map(f64::from_bits)]);
                Some(())
            },
            move |call, ()| returns.push(vec![call.float_result()]),
        ),
        "eight_floats",
    )
    .unwrap();
    assert_eq!(call(), 123_456_789.0);
    let registers = (1..=8).map(|n| Some(f64::from(n))).chain([None]).collect();
    assert_eq!(
        log.take(),
        [registers, vec![Some(9.0)], vec![Some(123_456_789.0)]]
    );
    drop(reader);
    for index in 0..8 {
        let _writer = fgraph_scenario::register(
            user(
                move |call| {
                    // SAFETY: `eight_floats` takes any numbers.
                    let mut writer = unsafe { call.rewrite() };
                    writer.set_float_arg(index, 0.0).unwrap();
                    let none = WriteError::NoSuchArgument { index: 8, count: 8 };
                    assert_eq!(writer.set_float_arg(8, 0.0), Err(none));
                    Some(())
                },
                |call, ()| {
                    let result = call.float_result().unwrap() + 0.5;
                    // SAFETY: the caller compares it.
                    unsafe { call.rewrite() }.set_float_result(result).unwrap();
                },
            ),
            "eight_floats",
        )
        .unwrap();
        let digit = 10f64.powi(8 - index as i32);
        assert_eq!(call(), 123_456_789.5 - (index as f64 + 1.0) * digit);
    }
}

#[scenario]
fn single_precision_arguments_and_results_are_seen_and_changed() {
    let _user = fgraph_scenario::register(
        user(
            |call| {
                let seen = [0, 1, 8].map(|i| call.float32_arg(i));
                assert_eq!(seen, [Some(5.0), Some(0.25), None]);
                assert_eq!(call.arg(0).map(|n| n as u32), Some(2));
                // SAFETY: `half` takes any numbers.
                let mut writer = unsafe { call.rewrite() };
                writer.set_float32_arg(0, 7.0).unwrap();
                let none = WriteError::NoSuchArgument { index: 8, count: 8 };
                assert_eq!(writer.set_float32_arg(8, 0.0), Err(none));
                Some(())
            },
            |call, ()| {
                assert_eq!(call.float32_result(), Some(3.75));
                // SAFETY: the caller compares it.
                unsafe { call.rewrite() }.set_float32_result(1.5).unwrap();
            },
        ),
        "half",
    )
    .unwrap();
    assert_eq!(half(5.0, 2, 0.25), 1.5);
    assert_eq!(_user.status(), fgraph::UserStatus::Active);
}

#[scenario]
fn results_of_every_kind_are_seen_and_changed() {
    let ints = fgraph_scenario::register(
        user(
            |_| Some(()),
            |call, ()| {
                assert!(!call.unwinding());
                let (low, high) = (call.result().unwrap(), call.result_high().unwrap());
                assert_eq!((low, high), (5, 6));
                // SAFETY: the caller compares them.
                let mut writer = unsafe { call.rewrite() };
                writer.set_result(7).unwrap();
                writer.set_result_high(8).unwrap();
            },
        ),
        "wide",
    )
    .unwrap();
    assert_eq!(wide(5, 6), 8 << 64 | 7);
    let floats = fgraph_scenario::register(
        user(
            |_| Some(()),
            |call, ()| {
                assert_eq!(call.float_result(), Some(2.5));
                assert_eq!(call.vector_result(2), None);
                // SAFETY: the caller compares them.
                let mut writer = unsafe { call.rewrite() };
                let second = writer.vector_result_mut(1).unwrap();
                assert_eq!(second[..8], (-2.5f64).to_le_bytes());
                second[..8].copy_from_slice(&4.5f64.to_le_bytes());
                writer.set_float_result(3.5).unwrap();
                let none = WriteError::NoSuchResult { index: 2, count: 2 };
                assert_eq!(writer.vector_result_mut(2), Err(none));
            },
        ),
        "pair",
    )
    .unwrap();
    assert_eq!(pair(2.5), Pair(3.5, 4.5));
    let both = fgraph_scenario::register(
        user(
            |_| Some(()),
            |call, ()| {
                assert_eq!((call.result(), call.float_result()), (Some(3), Some(0.25)));
                // SAFETY: the caller compares them.
                let mut writer = unsafe { call.rewrite() };
                writer.set_result(4).unwrap();
                writer.set_float_result(0.75).unwrap();
            },
        ),
        "mixed",
    )
    .unwrap();
    assert_eq!(mixed(3, 0.25), Mixed(4, 0.75));
    // A large result comes back through memory, whose address is the first argument.
    let memory = fgraph_scenario::register(
        user(
            |call| {
                assert_eq!(call.arg(1), Some(9));
                call.arg(0)
            },
            |call, place| assert_eq!(call.result(), Some(place)),
        ),
        "large",
    )
    .unwrap();
    assert_eq!(large(9), Large([9; 8]));
    for status in [
        ints.status(),
        floats.status(),
        both.status(),
        memory.status(),
    ] {
        assert_eq!(status, fgraph::UserStatus::Active);
    }
}

mod names {
    pub(crate) struct Shape<T>(pub(crate) T);

    impl<T: Copy> Shape<T> {
        #[inline(never)]
        pub(crate) fn area(&self) -> T {
            std::hint::black_box(self.0)
        }
    }

    impl Clone for Shape<u8> {
        #[inline(never)]
        fn clone(&self) -> Self {
            Self(std::hint::black_box(self.0))
        }
    }

    #[inline(never)]
    pub(crate) fn plain(n: u64) -> u64 {
        std::hint::black_box(n)
    }
}

#[scenario]
fn functions_have_their_demangled_names() {
    let log: Log<Function> = Log::new();
    let entries = log.clone();
    let handle = fgraph_scenario::register(
        user(
            move |call| {
                entries.push(call.function());
                None
            },
            |_, ()| (),
        ),
        "it::values::names::plain *names::Shape* eight",
    )
    .unwrap();
    names::plain(1);
    black_box(names::Shape(1u64).area());
    black_box(names::Shape(1u8).clone().0);
    eight(1, 2, 3, 4, 5, 6, 7, 8);
    let seen = log.take();
    let found: Vec<String> = seen
        .iter()
        .map(|function| function.name().to_string())
        .collect();
    assert_eq!(found[0], "it::values::names::plain");
    assert!(
        found[1].contains("names::Shape") && found[1].ends_with("::area"),
        "{found:?}"
    );
    assert!(
        found[2].contains("Clone") && found[2].ends_with("::clone"),
        "{found:?}"
    );
    assert_eq!(found[3], "eight");
    assert_eq!(seen[0].address(), names::plain as *const () as usize);
    assert_eq!(seen[3].address(), eight as *const () as usize);
    assert_eq!(seen[3].symbol(), "eight");
    assert!(seen[0].symbol().starts_with("_") && seen[0].symbol().contains("plain"));
    let program = std::env::current_exe().unwrap();
    assert_eq!(seen[0].module().path(), program.to_str().unwrap());
    assert!(program.ends_with(seen[0].module().name()));
    assert_eq!(seen[0], seen[0]);
    assert_ne!(seen[0], seen[1]);
    // The filter can name the module.
    let name = seen[0].module().name();
    assert_eq!(
        fgraph_scenario::set_filter(&handle, format!("eight:mod:{name}"))
            .unwrap()
            .traced,
        1
    );
    assert!(
        fgraph_scenario::set_filter(&handle, "eight:mod:libc.so*")
            .unwrap()
            .matches_nothing()
    );
}

plain!(
    "calls_leaf",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    // The stack pointer before the call is the argument.
    "mov rdi, rsp",
    "call asm_leaf",
    ".globl behind_the_call",
    "behind_the_call:",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
);
traceable!("asm_leaf", "lea rax, [rdi + 1]", "ret");

unsafe extern "C" {
    fn calls_leaf() -> u64;
    fn behind_the_call();
}

#[scenario]
fn the_call_site_is_true_while_the_function_is_traced() {
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    let _others =
        [(); 2].map(|()| fgraph_scenario::register(Count::default(), "asm_leaf").unwrap());
    let handle = fgraph_scenario::register(
        user(
            move |call| {
                entries.push((
                    call.return_address(),
                    call.call_site(),
                    call.stack_pointer(),
                ));
                call.arg(0)
            },
            move |call, sp: u64| {
                returns.push((
                    call.return_address(),
                    call.call_site(),
                    call.stack_pointer(),
                ));
                assert_eq!(call.stack_pointer(), sp as usize);
                assert_eq!(call.result(), Some(sp + 1));
            },
        ),
        "asm_leaf",
    )
    .unwrap();
    // SAFETY: takes nothing and keeps to the ABI.
    let sp = unsafe { calls_leaf() } as usize - 1;
    let behind = behind_the_call as *const () as usize;
    assert_eq!(log.take(), [(behind, behind - 1, sp); 2]);
    assert_eq!(handle.status(), fgraph::UserStatus::Active);
}

#[scenario]
fn the_thread_is_that_of_the_call() {
    let log = Log::new();
    let (entries, returns) = (log.clone(), log.clone());
    let _user = fgraph_scenario::register(
        user(
            move |call| {
                entries.push(call.thread_id());
                Some(())
            },
            move |call, ()| returns.push(call.thread_id()),
        ),
        "wide",
    )
    .unwrap();
    let own = || {
        wide(1, 2);
        // SAFETY: no arguments.
        unsafe { libc::gettid() as u32 }
    };
    let here = own();
    let there = std::thread::spawn(own).join().unwrap();
    assert_eq!(log.take(), [here, here, there, there]);
    let mut threads: Vec<u32> = fgraph::threads().iter().map(|thread| thread.id).collect();
    threads.sort_unstable();
    let mut expected = [here, there];
    expected.sort_unstable();
    assert_eq!(threads, expected);
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reads_errno(set: i32) -> i32 {
    // SAFETY: this thread's own.
    unsafe {
        let before = *libc::__errno_location();
        *libc::__errno_location() = set;
        before
    }
}

#[scenario]
fn errno_is_not_changed_by_callbacks() {
    let seen = Log::new();
    let (entries, returns) = (seen.clone(), seen.clone());
    fn spoil() -> i32 {
        // SAFETY: this thread's own.
        unsafe { std::mem::replace(&mut *libc::__errno_location(), 77) }
    }
    let _user = fgraph_scenario::register(
        user(
            move |call| {
                entries.push(spoil());
                call.arg(0).filter(|&n| n as i32 != 4).map(|_| ())
            },
            move |_, ()| returns.push(spoil()),
        ),
        "reads_errno",
    )
    .unwrap();
    // SAFETY: this thread's own.
    let errno = unsafe { &mut *libc::__errno_location() };
    // The first hit of a thread, later ones, and one that is declined.
    for set in [9, 9, 4] {
        *errno = 5;
        assert_eq!(reads_errno(set), 5);
        assert_eq!(*errno, set);
    }
    assert_eq!(seen.take(), [5, 9, 5, 9, 5]);
}

// All registers with known values into `all_registers`, and all that must survive out of it.
plain!(
    "with_all_registers",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "push rdi",
    "mov rbp, 101",
    "mov rbx, 102",
    "mov r12, 103",
    "mov r13, 104",
    "mov r14, 105",
    "mov r15, 106",
    "mov rsi, 2",
    "mov rdx, 3",
    "mov rcx, 4",
    "mov r8, 5",
    "mov r9, 6",
    "mov rax, 7",
    "mov r10, 8",
    "call all_registers",
    "pop rdi",
    "mov [rdi + 128], rax",
    "mov [rdi + 136], rdx",
    "mov [rdi + 144], rbp",
    "mov [rdi + 152], rbx",
    "mov [rdi + 160], r12",
    "mov [rdi + 168], r13",
    "mov [rdi + 176], r14",
    "mov [rdi + 184], r15",
    "fstp qword ptr [rdi + 192]",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
);
traceable!(
    "all_registers",
    "mov [rdi], rdi",
    "mov [rdi + 8], rsi",
    "mov [rdi + 16], rdx",
    "mov [rdi + 24], rcx",
    "mov [rdi + 32], r8",
    "mov [rdi + 40], r9",
    "mov [rdi + 48], rax",
    "mov [rdi + 56], r10",
    "mov [rdi + 64], rbp",
    "mov [rdi + 72], rbx",
    "mov [rdi + 80], r12",
    "mov [rdi + 88], r13",
    "mov [rdi + 96], r14",
    "mov [rdi + 104], r15",
    // The stack pointer at an entry is 8 above a multiple of 16.
    "mov rax, rsp",
    "and rax, 15",
    "mov [rdi + 112], rax",
    "mov rax, 201",
    "mov rdx, 202",
    // A long double comes back in st(0).
    "fldpi",
    "ret",
);

unsafe extern "C" {
    fn with_all_registers(into: *mut [u64; 25]);
}

#[scenario]
fn every_register_is_at_entry_and_return_as_without_tracing() {
    let run = || {
        let mut registers = [0u64; 25];
        // SAFETY: writes to the array.
        unsafe { with_all_registers(&mut registers) };
        // The array's address; and rbp, which is the frame while the body of an accepted
        // call runs.
        registers[0] = 0;
        registers[8] = 0;
        registers
    };
    let untraced = run();
    assert_eq!(untraced[1..8], [2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(untraced[16..18], [201, 202]);
    assert_eq!(f64::from_bits(untraced[24]), std::f64::consts::PI);
    for users in 1..=16 {
        for accept in [false, true] {
            let _users: Vec<_> = (0..users)
                .map(|_| {
                    let ops = user(
                        move |call| {
                            black_box(format!("{:?}", call.function()));
                            accept.then_some([1u64; 3])
                        },
                        |call, _| drop(black_box(format!("{:?}", call.function()))),
                    );
                    fgraph_scenario::register(ops, "all_registers").unwrap()
                })
                .collect();
            assert_eq!(run(), untraced, "{users} users that accept: {accept}");
            // In a thread that has had no hit.
            assert_eq!(std::thread::spawn(run).join().unwrap(), untraced);
        }
    }
    assert_eq!(totals(), [0; 5]);
}

// As gcc does with local leaf functions: rsp is a multiple of 16 where the callee begins.
plain!("calls_misaligned", "call misaligned", "ret",);
traceable!(
    "misaligned",
    "lea rax, [rdi + rsi]",
    "mov rdx, rsp",
    "and rdx, 15",
    "addsd xmm0, xmm0",
    "ret",
);
unsafe extern "C" {
    fn calls_misaligned(a: u64, b: u64, x: f64) -> u128;
}

#[scenario]
fn callers_may_have_a_misaligned_stack() {
    static ALIGNED: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    #[inline(never)]
    fn note_alignment() {
        let local: u128 = black_box(1);
        let mut rsp: usize;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack)) };
        black_box(local);
        ALIGNED.lock().unwrap().push(rsp.is_multiple_of(16));
    }
    // SAFETY: the function takes these and keeps to the rest of the ABI.
    let run = || unsafe { calls_misaligned(40, 2, 1.25) };
    // Without tracing it really is misaligned.
    assert_eq!(run(), 42);
    let make = |accept: bool| {
        user(
            move |call| {
                note_alignment();
                assert_eq!((call.arg(0), call.arg(1)), (Some(40), Some(2)));
                assert_eq!(call.float_arg(0), Some(1.25));
                // 16-byte aligned stores of the compiler's.
                black_box(format!(
                    "{:?} {:?}",
                    call.function(),
                    black_box([1.0f32; 8])
                ));
                accept.then_some([0u128; 2])
            },
            |call, data: [u128; 2]| {
                note_alignment();
                assert_eq!(data, [0; 2]);
                assert_eq!(call.result(), Some(42));
                assert_eq!(call.float_result(), Some(2.5));
                black_box(format!(
                    "{:?} {:?}",
                    call.function(),
                    black_box([1.0f32; 8])
                ));
            },
        )
    };
    let declines = fgraph_scenario::register(make(false), "misaligned").unwrap();
    assert_eq!(run(), 42);
    let accepts = fgraph_scenario::register(make(true), "misaligned").unwrap();
    assert_eq!(run(), 42);
    assert_eq!(std::thread::spawn(run).join().unwrap(), 42);
    for status in [declines.status(), accepts.status()] {
        assert_eq!(status, fgraph::UserStatus::Active);
    }
    let aligned = ALIGNED.lock().unwrap();
    assert_eq!(aligned.len(), 1 + 2 * 3);
    assert!(aligned.iter().all(|&aligned| aligned), "{aligned:?}");
    assert_eq!(totals(), [0; 5]);
}

// zmm0-7 from the first argument (8 of 64 bytes), a call, and zmm0-1 to the third. The callee
// stores zmm0-7 to the second and answers with zmm7 and zmm6. For each width.
macro_rules! vectors {
    ($caller:literal, $callee:literal, $mov:literal, $reg:literal) => {
        plain!(
            $caller,
            "push rbx",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbx, 0",
            "mov rbx, rdx",
            concat!($mov, " ", $reg, "0, [rdi]"),
            concat!($mov, " ", $reg, "1, [rdi + 64]"),
            concat!($mov, " ", $reg, "2, [rdi + 128]"),
            concat!($mov, " ", $reg, "3, [rdi + 192]"),
            concat!($mov, " ", $reg, "4, [rdi + 256]"),
            concat!($mov, " ", $reg, "5, [rdi + 320]"),
            concat!($mov, " ", $reg, "6, [rdi + 384]"),
            concat!($mov, " ", $reg, "7, [rdi + 448]"),
            "mov rdi, rsi",
            concat!("call ", $callee),
            concat!($mov, " [rbx], ", $reg, "0"),
            concat!($mov, " [rbx + 64], ", $reg, "1"),
            "pop rbx",
            ".cfi_adjust_cfa_offset -8",
            "ret",
        );
        traceable!(
            $callee,
            concat!($mov, " [rdi], ", $reg, "0"),
            concat!($mov, " [rdi + 64], ", $reg, "1"),
            concat!($mov, " [rdi + 128], ", $reg, "2"),
            concat!($mov, " [rdi + 192], ", $reg, "3"),
            concat!($mov, " [rdi + 256], ", $reg, "4"),
            concat!($mov, " [rdi + 320], ", $reg, "5"),
            concat!($mov, " [rdi + 384], ", $reg, "6"),
            concat!($mov, " [rdi + 448], ", $reg, "7"),
            concat!($mov, " ", $reg, "0, ", $reg, "7"),
            concat!($mov, " ", $reg, "1, ", $reg, "6"),
            "ret",
        );
    };
}
vectors!("with_xmm", "takes_xmm", "movups", "xmm");
vectors!("with_ymm", "takes_ymm", "vmovups", "ymm");
vectors!("with_zmm", "takes_zmm", "vmovups", "zmm");

type Vectors<const N: usize> = [[u8; 64]; N];
unsafe extern "C" {
    fn with_xmm(from: &Vectors<8>, seen: &mut Vectors<8>, results: &mut Vectors<2>);
    fn with_ymm(from: &Vectors<8>, seen: &mut Vectors<8>, results: &mut Vectors<2>);
    fn with_zmm(from: &Vectors<8>, seen: &mut Vectors<8>, results: &mut Vectors<2>);
}

/// Overwrites all vector registers, in the machine's full width, and mask registers.
#[inline(never)]
fn clobber() {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the machine has the registers, and the compiler is told that they change.
        unsafe {
            std::arch::asm!(
                "vpternlogd zmm0, zmm0, zmm0, 0xff",
                "vmovdqa64 zmm1, zmm0", "vmovdqa64 zmm2, zmm0", "vmovdqa64 zmm3, zmm0",
                "vmovdqa64 zmm4, zmm0", "vmovdqa64 zmm5, zmm0", "vmovdqa64 zmm6, zmm0",
                "vmovdqa64 zmm7, zmm0", "vmovdqa64 zmm8, zmm0", "vmovdqa64 zmm15, zmm0",
                "kxnorw k1, k1, k1", "kxnorw k7, k7, k7",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm15") _,
                options(nomem, nostack),
            );
        }
    } else if is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                "vcmptrueps ymm0, ymm0, ymm0",
                "vmovaps ymm1, ymm0", "vmovaps ymm2, ymm0", "vmovaps ymm3, ymm0",
                "vmovaps ymm4, ymm0", "vmovaps ymm5, ymm0", "vmovaps ymm6, ymm0",
                "vmovaps ymm7, ymm0",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                out("xmm5") _, out("xmm6") _, out("xmm7") _,
                options(nomem, nostack),
            );
        }
    } else {
        black_box([0.5f64; 16].map(f64::sqrt));
    }
}

/// Clears all vector registers, their upper halves included.
#[inline(never)]
fn clear_uppers() {
    if is_x86_feature_detected!("avx") {
        // SAFETY: the machine has the instruction, and the compiler is told what changes.
        unsafe {
            std::arch::asm!("vzeroall",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                out("xmm5") _, out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _,
                out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _,
                out("xmm15") _, options(nomem, nostack));
        }
    }
}

#[scenario]
fn vector_arguments_and_results_survive_callbacks_in_full_width() {
    let mut from: Vectors<8> = [[0; 64]; 8];
    for (register, bytes) in from.iter_mut().enumerate() {
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (register * 64 + index * 7 + 1) as u8;
        }
    }
    type Caller = unsafe extern "C" fn(&Vectors<8>, &mut Vectors<8>, &mut Vectors<2>);
    let mut widths: Vec<(&str, usize, Caller)> = vec![("takes_xmm", 16, with_xmm)];
    if is_x86_feature_detected!("avx") {
        widths.push(("takes_ymm", 32, with_ymm));
    }
    if is_x86_feature_detected!("avx512f") {
        widths.push(("takes_zmm", 64, with_zmm));
    }
    let widest = widths.last().unwrap().1;
    for (name, width, caller) in widths {
        let mut expected: Vectors<8> = [[0; 64]; 8];
        for (expected, from) in expected.iter_mut().zip(&from) {
            expected[..width].copy_from_slice(&from[..width]);
        }
        let run = || {
            let (mut seen, mut results): (Vectors<8>, Vectors<2>) = ([[0; 64]; 8], [[0; 64]; 2]);
            // SAFETY: the machine has the registers; the arrays are what the function
            // wants.
            unsafe { caller(&from, &mut seen, &mut results) };
            assert_eq!(seen, expected, "{name}");
            results
        };
        assert_eq!(run(), [expected[7], expected[6]]);
        for accept in [false, true] {
            for spoil in [clobber, clear_uppers] {
                let _user = fgraph_scenario::register(
                    user(
                        move |call| {
                            spoil();
                            for (index, expected) in expected.iter().enumerate() {
                                let seen = call.vector_arg(index).unwrap();
                                assert_eq!(seen.len(), widest);
                                assert_eq!(seen[..width], expected[..width]);
                            }
                            assert!(call.vector_arg(8).is_none());
                            accept.then_some(())
                        },
                        move |call, ()| {
                            spoil();
                            assert_eq!(
                                call.vector_result(0).unwrap()[..width],
                                expected[7][..width]
                            );
                            assert_eq!(
                                call.vector_result(1).unwrap()[..width],
                                expected[6][..width]
                            );
                        },
                    ),
                    name,
                )
                .unwrap();
                // A thread's first hit, and a later one.
                std::thread::scope(|scope| {
                    let results = scope.spawn(|| [run(), run()]).join().unwrap();
                    assert_eq!(results, [[expected[7], expected[6]]; 2]);
                });
                assert_eq!(_user.status(), fgraph::UserStatus::Active);
            }
        }
        // And all of it can be written.
        let _writer = fgraph_scenario::register(
            user(
                move |call| {
                    // SAFETY: the function stores what it gets.
                    let mut writer = unsafe { call.rewrite() };
                    writer.vector_arg_mut(7).unwrap().fill(0x5a);
                    assert!(writer.vector_arg_mut(8).is_err());
                    Some(())
                },
                move |call, ()| {
                    // SAFETY: the caller stores what it gets.
                    let mut writer = unsafe { call.rewrite() };
                    writer.vector_result_mut(1).unwrap().fill(0xa5);
                },
            ),
            name,
        )
        .unwrap();
        let (mut seen, mut results): (Vectors<8>, Vectors<2>) = ([[0; 64]; 8], [[0; 64]; 2]);
        // SAFETY: as above.
        unsafe { caller(&from, &mut seen, &mut results) };
        assert_eq!(seen[..7], expected[..7]);
        assert!(seen[7][..width].iter().all(|&byte| byte == 0x5a));
        assert!(results[0][..width].iter().all(|&byte| byte == 0x5a));
        assert!(results[1][..width].iter().all(|&byte| byte == 0xa5));
    }
}

mod avx {
    use std::arch::x86_64::{
        __m256, _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_storeu_ps,
    };

    // The C ABI passes these in registers, which Rust's own does not.
    #[allow(improper_ctypes_definitions)]
    #[unsafe(no_mangle)]
    #[inline(never)]
    #[target_feature(enable = "avx")]
    extern "C" fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_add_ps(_mm256_mul_ps(a, b), c)
    }

    #[target_feature(enable = "avx")]
    pub(crate) fn run(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut result = [0.0; 8];
        // SAFETY: reads and writes 8 numbers each.
        unsafe {
            let [a, b, c] = [a, b, c].map(|v| _mm256_loadu_ps(std::hint::black_box(v).as_ptr()));
            _mm256_storeu_ps(result.as_mut_ptr(), multiply_add(a, b, c));
        }
        result
    }
}

#[scenario]
fn vectors_of_256_bits_keep_their_upper_halves() {
    if !is_x86_feature_detected!("avx") {
        return skip!("no AVX");
    }
    // SAFETY: the machine has AVX.
    let run = || unsafe {
        avx::run(
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            [10.0; 8],
            [0.5, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25],
        )
    };
    let expected = [10.5, 20.25, 30.5, 40.25, 50.5, 60.25, 70.5, 80.25];
    assert_eq!(run(), expected);
    for spoil in [clobber, clear_uppers] {
        for accept in [false, true] {
            let handle = fgraph_scenario::register(
                user(
                    move |_| {
                        spoil();
                        accept.then_some(())
                    },
                    move |_, ()| spoil(),
                ),
                "multiply_add",
            )
            .unwrap();
            assert_eq!(handle.report().unwrap().traced, 1);
            assert_eq!(run(), expected);
            assert_eq!(run(), expected);
        }
    }
}

traceable!("first_of", "mov rax, rdi", "ret");

unsafe extern "C" {
    fn first_of(a: u64, b: u64, c: u64, d: u64, x: f64, y: f32) -> u64;
}

#[scenario]
fn values_have_their_types_whatever_else_the_registers_hold() {
    let results = Log::new();
    let log = results.clone();
    let user = fgraph::on_call(
        move |call: &mut Entry<'_, u32>| {
            assert_eq!(
                (call.arg_as(0), call.arg_as(1)),
                (Some(-2i8), Some(0xd8ffu16))
            );
            assert_eq!((call.arg_as(2), call.arg_as(3)), (Some(false), Some('x')));
            assert_eq!(
                (call.arg_as(0), call.arg_as(1)),
                (Some(1.5f64), Some(-2.5f32))
            );
            // A surrogate is no character.
            assert_eq!(call.arg_as::<char>(1), None);
            let pointer = call.arg_as::<*const u8>(3).unwrap();
            assert_eq!(pointer.addr(), u32::from('x') as usize);
            assert_eq!((call.arg_as::<u64>(6), call.arg_as::<f64>(8)), (None, None));
            call.arg_as(0)
        },
        move |call, first| {
            log.push((first, call.result_as::<i16>(), call.result_as::<bool>()));
        },
    );
    let user = fgraph_scenario::register(user, String::from("first_of")).unwrap();
    let dirty = 0xdead_beef_0000_0000;
    // SAFETY: the function returns its first argument.
    let first = unsafe {
        first_of(
            dirty | 0xff_00fe,
            dirty | 0xd8ff,
            dirty,
            'x'.into(),
            1.5,
            -2.5,
        )
    };
    assert_eq!(first, dirty | 0xff_00fe);
    assert_eq!(results.take(), [(0xff_00fe, Some(0xfe), Some(true))]);
    assert!(user.unregister().is_ok());
}

#[scenario]
fn a_closure_counts_entries_and_skips_with_any_type_of_result() {
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = calls.clone();
    let user = fgraph::on_entry(move |call| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // SAFETY: the callers here take any integer.
        unsafe { call.rewrite() }.skip(-3i8).unwrap();
    });
    let user = fgraph_scenario::register(user, "first_of").unwrap();
    // SAFETY: as above.
    let first = unsafe { first_of(7, 0, 0, 0, 0.0, 0.0) };
    assert_eq!(first, -3i64 as u64);
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(
        format!("{:?}", user.unregister().unwrap()),
        "OnEntry { .. }"
    );
}
