//! `Entry::unwind` and `Return::unwind`, beside the C library's `backtrace`.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::Mutex;

use corosensei::{Coroutine, CoroutineResult};
use fgraph_scenario::{on_main_thread, scenario, user};

/// Room for the addresses of one backtrace.
const ROOM: usize = 64;

/// Return addresses of the calls around `innermost`, by the C library, in the body.
static TRUTH: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The same addresses by `unwind`, at entry and at return.
static SEEN: Mutex<Vec<Vec<usize>>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn innermost(n: u64) -> u64 {
    let mut addresses = [core::ptr::null_mut::<c_void>(); ROOM];
    // SAFETY: there is room for so many.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), ROOM as c_int) };
    // The first is in here.
    let around = addresses[1..count as usize]
        .iter()
        .map(|address| address.addr());
    *TRUTH.lock().unwrap() = around.collect();
    black_box(n) + 1
}

// A call by a jump: the caller of `jumper` is that of `innermost`.
std::arch::global_asm!(
    ".pushsection .text.jumper,\"ax\",@progbits",
    ".globl jumper",
    ".type jumper,@function",
    "jumper:",
    ".cfi_startproc",
    ".nops 16",
    "jmp {innermost}",
    ".cfi_endproc",
    ".size jumper, . - jumper",
    ".popsection",
    innermost = sym innermost,
);

unsafe extern "C" {
    fn jumper(n: u64) -> u64;
}

/// Called by `qsort`, so frames of the C library are around it.
unsafe extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
    // SAFETY: takes a number and gives one.
    black_box(unsafe { jumper(1) }) as c_int - 2
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sorter(n: u64) -> u64 {
    let mut numbers = [n, n + 1];
    // SAFETY: two numbers, which are not read.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 2, 8, Some(compare)) };
    numbers[0]
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn outermost(n: u64) -> u64 {
    black_box(sorter(black_box(n))) + 1
}

/// A user that notes what is around `innermost`.
fn watcher() -> impl fgraph::FgraphOps {
    let note = |addresses: &[usize]| SEEN.lock().unwrap().push(addresses.to_vec());
    user(
        move |call| {
            if call.function().name().as_str() == "innermost" {
                let mut addresses = [0; ROOM];
                let count = call.unwind(&mut addresses);
                note(&addresses[..count]);
                assert_eq!(call.unwind(&mut addresses[..1]), 1);
                assert_eq!(addresses[0], call.return_address());
            }
            Some(0u64)
        },
        move |call, _| {
            if call.function().name().as_str() == "innermost" {
                let mut addresses = [0; ROOM];
                let count = call.unwind(&mut addresses);
                note(&addresses[..count]);
            }
        },
    )
}

/// Makes `call` untraced and then traced, with `filter`, from one place, and compares what the C
/// library has told of the first with what `unwind` tells of the second.
fn assert_tells_what_is_true(filter: &str, mut call: impl FnMut()) {
    let mut truth = Vec::new();
    let mut user = None;
    for is_traced in [false, true, true] {
        if is_traced && user.is_none() {
            user = Some(fgraph_scenario::register(watcher(), filter).unwrap());
        }
        SEEN.lock().unwrap().clear();
        call();
        if !is_traced {
            truth = TRUTH.lock().unwrap().clone();
            continue;
        }
        let seen = SEEN.lock().unwrap();
        assert_eq!(seen.len(), 2, "entry and return");
        for seen in &*seen {
            // The address of a function that a signal has interrupted is one behind it.
            let is_true = |(seen, truth): (&usize, &usize)| seen - truth <= 1;
            let is_true = seen.iter().zip(&truth).all(is_true) && seen.len() == truth.len();
            assert!(is_true, "{seen:#x?} is not {truth:#x?}");
        }
    }
    assert!(truth.len() > 3);
}

#[scenario]
fn unwind_returns_all_callers_traced_or_not() {
    on_main_thread(|| {
        for filter in [
            "innermost",
            "innermost jumper",
            "innermost jumper sorter",
            "innermost jumper sorter outermost qsort* *:mod:libc.so*,!*backtrace*,!*unwind*",
        ] {
            assert_tells_what_is_true(filter, || _ = black_box(outermost(black_box(1))));
        }
    });
}

extern "C" fn handler(_: c_int) {
    black_box(outermost(1));
}

#[scenario]
fn unwind_goes_through_a_signal_handler() {
    on_main_thread(|| {
        let mut memory = vec![0u8; 1 << 18];
        let stack = libc::stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        // SAFETY: memory that stays until the end of the process, and a handler that returns.
        unsafe {
            assert_eq!(
                libc::sigaltstack(&raw const stack, core::ptr::null_mut()),
                0
            )
        };
        std::mem::forget(memory);
        for flags in [0, libc::SA_ONSTACK] {
            // SAFETY: as above.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = handler as *const () as usize;
                action.sa_flags = flags;
                libc::sigaction(libc::SIGUSR2, &raw const action, core::ptr::null_mut());
            }
            assert_tells_what_is_true("innermost sorter", || {
                // SAFETY: the handler returns.
                unsafe { libc::raise(libc::SIGUSR2) };
            });
        }
    });
}

#[scenario]
fn unwind_ends_at_the_start_of_a_coroutine() {
    on_main_thread(|| {
        let call = || {
            let mut coroutine = Coroutine::new(|_: &_, ()| black_box(outermost(1)));
            assert!(matches!(
                coroutine.resume(()),
                CoroutineResult::<(), _>::Return(_)
            ));
        };
        let user = fgraph_scenario::register(watcher(), "innermost sorter").unwrap();
        call();
        let seen = SEEN.lock().unwrap().clone();
        // In `compare`, the C library, `sorter` and `outermost` at the least.
        assert!(seen.iter().all(|seen| seen.len() >= 4), "{seen:x?}");
        assert_eq!(seen[0], seen[1]);
        drop(user);
    });
}

/// Code without unwind information, as it is made at run time: calls what rdi points to.
const GENERATED: [u8; 5] = [0x53, 0xff, 0xd7, 0x5b, 0xc3];

/// Runs it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn runner(code: usize) -> u64 {
    // SAFETY: pushes rbx, calls, pops rbx, and returns.
    let code: extern "C" fn(extern "C" fn(u64) -> u64) -> u64 =
        unsafe { core::mem::transmute(code) };
    black_box(code(innermost)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn caller_of_runner(code: usize) -> u64 {
    black_box(runner(code)) + 1
}

#[scenario]
fn code_without_unwind_information_is_left_out_or_ends_the_list() {
    on_main_thread(|| {
        // SAFETY: a mapping of its own, which stays.
        let code = unsafe {
            let code = libc::mmap(
                core::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(code, libc::MAP_FAILED);
            code.cast::<[u8; 5]>().write(GENERATED);
            code.expose_provenance()
        };
        let seen_with = |filter| {
            SEEN.lock().unwrap().clear();
            let user = fgraph_scenario::register(watcher(), filter).unwrap();
            caller_of_runner(code);
            drop(user);
            let seen = SEEN.lock().unwrap().clone();
            assert_eq!(seen[0], seen[1]);
            assert_eq!(seen[0][0], code + 3);
            seen[0].clone()
        };
        assert_eq!(seen_with("innermost").len(), 1);
        let seen = seen_with("innermost runner");
        let size = 256;
        let start = caller_of_runner as *const () as usize;
        assert!((start..start + size).contains(&seen[1]), "{seen:x?}");
        assert!(seen.len() > 4);
    });
}
