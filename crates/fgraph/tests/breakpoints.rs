//! Functions that have no room for a jump.

use std::arch::global_asm;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fgraph::{
    AnywhereOps, Entry, Error, FgraphOps, FilterReport, Handle, ModuleCount, Options,
    RefusalReason, RelocateError, TraceMethod,
};
use fgraph_scenario::{Count, Paired, code, overwrite, patched, plain, scenario};

/// A function of assembly, directly behind the one before it.
macro_rules! packed {
    ($($name:literal: $code:literal;)*) => {
        global_asm!(
            ".pushsection .text.packed,\"ax\",@progbits",
            ".p2align 4",
            ".globl packed_start",
            "packed_start:",
            $(
                concat!(".globl ", $name),
                concat!(".type ", $name, ",@function"),
                concat!($name, ":"),
                ".cfi_startproc",
                $code,
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            ".popsection",
        );
    };
}

// Breakpoints before jumps at every distance, several breakpoints in a row, and one behind a jump.
packed! {
    "tiny_one": "ret";
    "after_one": "mov eax, 1; ret";
    "tiny_two": "jmp 2f";
    "after_two": "mov eax, 2; ret";
    "tiny_three": "xor eax, eax; ret";
    "after_three": "mov eax, 3; ret";
    "tiny_four": "lea eax, [rdi + 1]; ret";
    "after_four": "2: mov eax, 4; ret";
    "tiny_a": "ret";
    "tiny_b": "ret";
    "tiny_c": "mov eax, edi; ret";
    "after_c": "mov eax, 5; ret";
    // Leads back to its first byte.
    "tiny_loop": "5: nop; loop 5b; ret";
    // Returns into its first five bytes.
    "calls_back_first": "push rbx; call rdi; pop rbx; ret";
    // A loop that calls, and leads into the first five bytes.
    "loops_back": "push rbx; mov ebx, edi; 3: call 4f; dec ebx; jnz 3b; pop rbx; ret";
    "tiny_helper": "4: push rbx; pop rax; ret";
    "after_helper": "mov eax, 6; ret";
}

// Five instructions of one byte, for which a jump has but a few operands that are safe.
plain!(
    "narrow",
    "clc",
    "clc",
    "clc",
    "clc",
    "clc",
    "mov eax, 7",
    "ret"
);

type Function = extern "C" fn(u64) -> u64;

unsafe extern "C" {
    safe static packed_start: [u8; 77];

    safe fn tiny_one(n: u64) -> u64;
    safe fn after_one(n: u64) -> u64;
    safe fn tiny_two(n: u64) -> u64;
    safe fn after_two(n: u64) -> u64;
    safe fn tiny_three(n: u64) -> u64;
    safe fn after_three(n: u64) -> u64;
    safe fn tiny_four(n: u64) -> u64;
    safe fn after_four(n: u64) -> u64;
    safe fn tiny_a(n: u64) -> u64;
    safe fn tiny_b(n: u64) -> u64;
    safe fn tiny_c(n: u64) -> u64;
    safe fn after_c(n: u64) -> u64;
    safe fn tiny_loop(_: u64, _: u64, _: u64, rounds: u64);
    safe fn calls_back_first(callback: Function) -> u64;
    safe fn loops_back(rounds: u64) -> u64;
    safe fn tiny_helper(n: u64) -> u64;
    safe fn after_helper(n: u64) -> u64;
    safe fn narrow() -> u64;
}

/// The functions that a breakpoint is for.
const TINY: [*const (); 11] = [
    tiny_one as *const (),
    tiny_two as *const (),
    tiny_three as *const (),
    tiny_four as *const (),
    tiny_a as *const (),
    tiny_b as *const (),
    tiny_c as *const (),
    tiny_loop as *const (),
    calls_back_first as *const (),
    loops_back as *const (),
    tiny_helper as *const (),
];

/// The functions that have room for a jump.
const AFTER: [*const (); 6] = [
    after_one as *const (),
    after_two as *const (),
    after_three as *const (),
    after_four as *const (),
    after_c as *const (),
    after_helper as *const (),
];

const ALL: &str = "tiny_* after_* calls_back_first loops_back";

/// Calls each of them, and returns how many calls that are: those that they make count.
fn call_all() -> u64 {
    tiny_one(0);
    assert_eq!([after_one(0), after_two(0), after_three(0)], [1, 2, 3]);
    // It jumps to `after_four`.
    assert_eq!([tiny_two(0), tiny_three(7), tiny_four(7)], [4, 0, 8]);
    assert_eq!([after_four(0), after_c(0), after_helper(0)], [4, 5, 6]);
    tiny_a(0);
    tiny_b(0);
    assert_eq!(tiny_c(9), 9);
    tiny_loop(0, 0, 0, 100);
    assert_eq!(calls_back_first(tiny_four_of), 8);
    // It returns the result of its helper in the last round.
    assert_eq!(loops_back(10) as u32, 1);
    tiny_helper(0);
    17 + 1 + 1 + 10
}

/// Called with whatever `calls_back_first` was called with.
extern "C" fn tiny_four_of(_: u64) -> u64 {
    tiny_four(7)
}

/// The text of all of them.
fn bytes() -> [u8; 77] {
    code((&raw const packed_start).cast())
}

fn first(function: *const ()) -> u8 {
    code::<1>(function)[0]
}

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// The options of users that may have breakpoints.
const MAY: Options = Options::new().breakpoints(true);

fn may(filter: &str) -> Handle<Count> {
    fgraph_scenario::register_with(Count::default(), filter, &MAY).unwrap()
}

fn numbers(report: &FilterReport) -> (usize, usize) {
    (report.traced, report.refused.len())
}

#[scenario]
fn functions_with_no_room_for_a_jump_are_traced_where_breakpoints_are_allowed() {
    let before = bytes();
    for _ in 0..3 {
        let user = fgraph_scenario::register_with(Paired::default(), ALL, &MAY).unwrap();
        assert_eq!(
            numbers(&user.report().unwrap()),
            (17, 0),
            "{:?}",
            user.report().unwrap()
        );
        assert_eq!(TINY.map(first), [0xcc; 11]);
        assert_eq!(AFTER.map(first), [0xe9; 6]);
        let calls: u64 = (0..100).map(|_| call_all()).sum();
        let seen = user.unregister().unwrap().calls();
        assert!(seen.is_exact(), "{seen:?}");
        assert_eq!(seen.entries, calls);
        assert_eq!((bytes(), patched()), (before, 0));
        call_all();
    }
}

#[scenario]
fn only_the_first_byte_is_written() {
    let mut expected = bytes();
    for function in TINY {
        expected[function.addr() - (&raw const packed_start).addr()] = 0xcc;
    }
    let user = may("tiny_* calls_back_first loops_back");
    assert_eq!(numbers(&user.report().unwrap()), (11, 0));
    assert_eq!(bytes(), expected);
    call_all();
}

#[scenario]
fn without_leave_they_are_refused_with_the_reason() {
    let before = bytes();
    let user = count(ALL);
    assert_eq!(
        numbers(&user.report().unwrap()),
        (6, 11),
        "{:?}",
        user.report().unwrap()
    );
    let mut refused = user.report().unwrap().refused.clone();
    refused.sort_by_key(|refused| refused.address);
    let short = |have| RelocateError::TooShort { have };
    let expected = [
        short(1),
        short(2),
        short(3),
        short(4),
        short(1),
        short(1),
        short(3),
        short(4),
        RelocateError::Returns { at: 1, to: 3 },
        RelocateError::Target { from: 10, to: 3 },
        short(3),
    ];
    for ((refused, reason), function) in refused.iter().zip(expected).zip(TINY) {
        assert_eq!(refused.address, function.addr());
        assert_eq!(refused.reason, RefusalReason::Displace(reason));
    }
    call_all();
    drop(user);
    assert_eq!(bytes(), before);
    let sites = fgraph::sites().unwrap();
    let tiny = sites.iter().find(|site| site.name == "tiny_one").unwrap();
    assert_eq!(tiny.how, Err(RefusalReason::Displace(short(1))));
}

#[scenario]
fn a_filter_whose_functions_are_all_refused_is_an_error_with_the_reasons() {
    let before = bytes();
    let strict =
        |filter: &str| fgraph_scenario::register_with(Paired::default(), filter, &Options::new());
    let error = strict("tiny_*").unwrap_err();
    let Error::AllRefused { refused } = &error else {
        panic!("{error}");
    };
    assert!(refused.len() > 1, "{refused:?}");
    let is_displacing =
        |refused: &fgraph::RefusedFunction| matches!(refused.reason, RefusalReason::Displace(_));
    assert!(refused.iter().all(is_displacing), "{refused:?}");
    let text = error.to_string();
    let start = format!(
        "none of {} selected functions can be traced; ",
        refused.len()
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("shorter than a jump"), "{text}");

    let error = strict("tiny_one").unwrap_err();
    let text = error.to_string();
    let start = "the only selected function cannot be traced: tiny_one at 0x";
    assert!(text.starts_with(start), "{text}");

    // A function that can be traced is enough, until the filter changes.
    let user = strict("tiny_one after_one").unwrap();
    // SAFETY: as in `fgraph_scenario::register`.
    let [set, add] = unsafe { [user.set_filter("tiny_one"), user.add_filter("tiny_one")] };
    assert_eq!([set, add], [Err(error.clone()), Err(error)]);
    assert_eq!(numbers(&user.report().unwrap()), (1, 1));
    drop(user);
    assert_eq!(bytes(), before);
}

/// A user whose callbacks do nothing.
struct Nothing;

impl FgraphOps for Nothing {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        None
    }
}

// SAFETY: the callbacks do nothing.
unsafe impl AnywhereOps for Nothing {}

#[scenario]
fn a_user_that_safe_code_registers_gets_no_breakpoints() {
    let before = bytes();
    let options = Options::new().breakpoints(true).allow_no_match();
    let user = fgraph::register_anywhere_with(Nothing, ALL, &options).unwrap();
    assert_eq!(numbers(&user.report().unwrap()), (6, 11));
    assert_eq!(user.set_filter("tiny_*").unwrap().traced, 0);
    assert_eq!(user.add_filter("after_one").unwrap().traced, 1);
    let Nothing = user.unregister().unwrap();
    assert_eq!(bytes(), before);
}

/// Registers a user that may have breakpoints and one that may not, the one that may first or last.
fn each_has_its_own(first: bool) {
    let may = |breakpoints| {
        let options = Options::new().breakpoints(breakpoints).allow_no_match();
        fgraph_scenario::register_with(Paired::default(), ALL, &options).unwrap()
    };
    let traced = |user: &Handle<Paired>| numbers(&user.report().unwrap());
    let before = bytes();
    let users = [may(first), may(!first)];
    let [with, without] = if first { [0, 1] } else { [1, 0] }.map(|index| &users[index]);
    assert_eq!((traced(with), traced(without)), ((17, 0), (6, 11)));
    assert_eq!(without.functions().unwrap().len(), 6);
    // Its filter changes nothing about that.
    // SAFETY: as in `fgraph_scenario::register`.
    unsafe { without.set_filter("tiny_*") }.unwrap();
    assert_eq!(traced(without).0, 0);
    // SAFETY: as above.
    unsafe { without.add_filter("loops_back after_three") }.unwrap();
    assert_eq!(traced(without).0, 1);
    without.remove_filter("tiny_* loops_back").unwrap();
    assert_eq!(traced(without), (1, 0));
    with.remove_filter("tiny_one").unwrap();
    assert_eq!(traced(with), (16, 0));
    call_all();
    drop(users);
    assert_eq!(bytes(), before);
}

#[scenario]
fn a_user_has_no_breakpoints_because_a_later_one_may() {
    each_has_its_own(false);
}

#[scenario]
fn a_user_has_breakpoints_although_a_later_one_may_not() {
    each_has_its_own(true);
}

#[scenario]
fn the_list_of_functions_says_which_have_breakpoints() {
    let check = |allowed: bool| {
        let options = Options::new().breakpoints(allowed);
        let sites = fgraph::sites_with("*", &options).unwrap();
        let how = |name: &str| {
            let site = sites.iter().find(|site| site.name == name).unwrap();
            site.how.ok()
        };
        let tiny = allowed.then_some(TraceMethod::Breakpoint);
        assert_eq!((how("tiny_three"), how("loops_back")), (tiny, tiny));
        assert_eq!(how("after_three"), Some(TraceMethod::Relocated));
        let program = std::env::current_exe().unwrap();
        let modules = sites.modules();
        let is_program = |module: &&ModuleCount| program.ends_with(&module.module);
        let count = modules.iter().find(is_program).unwrap();
        assert_eq!(count.breakpoints >= 11, allowed, "{count:?}");
    };
    check(false);
    check(true);
    let user = may(ALL);
    check(true);
    // It says so of users that may not have them, whatever others have.
    check(false);
    drop(user);
    check(true);
}

#[scenario]
fn neighbours_are_patched_and_put_back_while_threads_call_them() {
    let before = bytes();
    let stop = AtomicBool::new(false);
    let filters = [
        "tiny_*",
        "after_*",
        "tiny_one after_two tiny_three after_four tiny_b",
        "after_one tiny_two after_three tiny_four tiny_a tiny_c",
        "calls_back_first tiny_helper",
        "loops_back after_helper",
        ALL,
    ];
    let (one, other) = thread::scope(|scope| {
        let calls = || {
            while !stop.load(Ordering::Relaxed) {
                call_all();
            }
        };
        scope.spawn(calls);
        scope.spawn(calls);
        let one = fgraph_scenario::register_with(Paired::default(), ALL, &MAY).unwrap();
        let other = may("tiny_one");
        for round in 0..70 {
            fgraph_scenario::set_filter(&one, filters[round % filters.len()]).unwrap();
            fgraph_scenario::set_filter(&other, filters[round / 3 % filters.len()]).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        (one, other)
    });
    assert!(one.user().calls().is_exact(), "{:?}", one.user().calls());
    assert!(one.user().calls().entries > 0);
    let (entries, returns) = other.user().both();
    assert_eq!(entries, returns);
    drop((one, other));
    assert_eq!((bytes(), patched()), (before, 0));
}

#[scenario]
fn a_thread_that_blocks_the_signal_is_not_made_to_trap() {
    let before = bytes();
    // SAFETY: the set is initialised by the first call.
    let mask = |how| unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTRAP);
        assert_eq!(libc::pthread_sigmask(how, &set, ptr::null_mut()), 0);
    };
    mask(libc::SIG_BLOCK);
    let refused = fgraph_scenario::register_with(Count::default(), ALL, &MAY).map(drop);
    // SAFETY: no arguments.
    let thread = unsafe { libc::gettid() } as u32;
    assert_eq!(refused, Err(Error::SignalBlocked { thread }));
    assert_eq!(bytes(), before);
    // Jumps alone do it no harm.
    let user = may("after_*");
    assert_eq!(user.report().unwrap().traced, 6);
    call_all();
    mask(libc::SIG_UNBLOCK);
    assert_eq!(fgraph_scenario::set_filter(&user, ALL).unwrap().traced, 17);
    call_all();
    // Nor does it to have the breakpoints taken away.
    mask(libc::SIG_BLOCK);
    drop(user);
    assert_eq!(bytes(), before);
    call_all();
}

#[scenario]
fn an_action_that_the_program_sets_counts_until_the_next_change_of_a_filter() {
    let user = may(ALL);
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
    // It selects what it has selected.
    assert_eq!(fgraph_scenario::set_filter(&user, ALL).unwrap().traced, 17);
    let calls = call_all();
    assert_eq!(user.user().both(), (calls, calls));
}

#[scenario]
fn a_first_byte_that_has_changed_is_left_alone() {
    drop(may(ALL));
    let (before, original) = (bytes(), first(tiny_c as *const ()));
    // It still returns.
    overwrite(tiny_c as *const () as usize, &[0xc3]);
    let user = may(ALL);
    let report = user.report().unwrap();
    assert_eq!(numbers(&report), (16, 1), "{report:?}");
    let RefusalReason::Changed { found } = report.refused[0].reason else {
        panic!("{report:?}");
    };
    assert_eq!(found[0], 0xc3);
    drop(user);
    overwrite(tiny_c as *const () as usize, &[original]);
    assert_eq!(bytes(), before);
    // A breakpoint that somebody else overwrites is left to them.
    let user = may(ALL);
    overwrite(tiny_a as *const () as usize, &[0x90]);
    drop(user);
    assert_eq!(first(tiny_a as *const ()), 0x90);
}

#[scenario]
fn a_breakpoint_of_somebody_else_is_theirs() {
    overwrite(tiny_a as *const () as usize, &[0xcc]);
    let user = may(ALL);
    assert_eq!(numbers(&user.report().unwrap()), (16, 1));
    let report = user.report().unwrap();
    let reason = &report.refused[0].reason;
    assert!(
        matches!(reason, RefusalReason::Patched { found: [0xcc, ..] }),
        "{reason}"
    );
    drop(user);
    assert_eq!(first(tiny_a as *const ()), 0xcc);
}

/// Maps memory at each place where the stub of `narrow` could be.
fn take_the_places_of_narrow() {
    for last in fgraph_x86_64::punned_jump::last_bytes(0b11111) {
        let distance = i32::from_le_bytes([0xcc, 0xcc, 0xcc, last]) as isize;
        let place = narrow as *const () as isize + 5 + distance;
        let page = ptr::without_provenance_mut((place & !0xfff) as usize);
        // SAFETY: nothing that is there is replaced.
        unsafe {
            libc::mmap(
                page,
                0x1000,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
        }
    }
}

#[scenario]
fn a_breakpoint_serves_where_there_is_no_place_for_the_stub_of_a_jump() {
    take_the_places_of_narrow();
    let before: [u8; 11] = code(narrow as *const ());
    let user = fgraph_scenario::register_with(Paired::default(), "narrow", &MAY).unwrap();
    assert_eq!(
        numbers(&user.report().unwrap()),
        (1, 0),
        "{:?}",
        user.report().unwrap()
    );
    let mut expected = before;
    expected[0] = 0xcc;
    assert_eq!(code::<11>(narrow as *const ()), expected);
    assert_eq!([narrow(), narrow()], [7, 7]);
    let seen = user.unregister().unwrap().calls();
    assert!(seen.is_exact() && seen.entries == 2, "{seen:?}");
    assert_eq!(code::<11>(narrow as *const ()), before);
}

#[scenario]
fn without_leave_and_a_place_for_its_stub_a_function_is_refused() {
    take_the_places_of_narrow();
    let user = count("narrow");
    assert_eq!(numbers(&user.report().unwrap()), (0, 1));
    assert_eq!(
        user.report().unwrap().refused[0].reason,
        RefusalReason::NoPlace
    );
    assert_eq!(narrow(), 7);
}

/// It calls its own functions with all signals blocked.
#[scenario]
fn the_c_library_gets_no_breakpoints() {
    let user = may("*");
    for _ in 0..5 {
        assert!(Command::new("true").status().unwrap().success());
        thread::spawn(call_all).join().unwrap();
    }
    let modules = fgraph::sites_with("*", &MAY).unwrap().modules();
    let is_libc = |module: &&ModuleCount| module.module.contains("/libc.");
    let libc = modules.iter().find(is_libc).unwrap();
    assert_eq!(libc.breakpoints, 0);
    drop(user);
}
