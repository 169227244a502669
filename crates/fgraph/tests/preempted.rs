//! Threads that stand between two of the instructions that a jump is written over.
//!
//! A thread is led there one instruction at a time, with the processor's trap flag, and held in the
//! handler of the signal that each step causes; meanwhile another thread patches. For the program
//! it is as if the scheduler had taken the processor away at that very place.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use fgraph::Handle;
use fgraph::testing::{self, Skip};
use fgraph_needs::skip;
use fgraph_scenario::{Count, code, forked, is_patched, patched, plain, scenario};

// Instructions of one byte start at 0, 1, 2, 3, and 4. None may be left out, or run twice.
plain!(
    "five_ones",
    "push rdi",
    "pop rax",
    "push rsi",
    "pop rcx",
    "stc",
    "adc rax, rcx",
    "ret"
);
plain!(
    "preempted_framed",
    "push rbp",
    "mov rbp, rsp",
    "sub rsp, 16",
    "mov [rbp - 8], rdi",
    "lea rax, [rdi + rsi]",
    "xor rax, [rbp - 8]",
    "leave",
    "ret",
);
plain!(
    "two_first",
    "mov eax, edi",
    "add eax, esi",
    "inc eax",
    "ret"
);
plain!("three_first", "mov rax, rdi", "add rax, rsi", "ret");
plain!("four_first", "lea rax, [rdi + 7]", "xor rax, rsi", "ret");
plain!(
    "with_branch",
    "test edi, edi",
    "jz 2f",
    "lea rax, [rdi + rsi]",
    "ret",
    "2:",
    "lea rax, [rsi * 2]",
    "ret"
);
plain!(
    "with_call",
    "push rsi",
    "call three_first",
    "pop rcx",
    "add rax, rcx",
    "ret"
);
plain!(
    "with_address",
    "push rsi",
    "lea rax, [rip + with_address]",
    "pop rcx",
    "sub rcx, rax",
    "lea rax, [rip + with_address]",
    "add rax, rcx",
    "ret"
);
plain!(
    "preempted_landing_pad",
    "endbr64",
    "push rdi",
    "pop rax",
    "mov ecx, 5",
    "lea rax, [rax + rcx]",
    "ret"
);
// As gcc pads functions that are to be patched. Neighbours, so that their stubs cannot all be at
// the same distance.
plain!(
    "pad_a",
    "nop; nop; nop; nop; nop",
    "lea rax, [rdi + rsi]",
    "ret"
);
plain!(
    "pad_b",
    "nop; nop; nop; nop; nop",
    "lea rax, [rdi + rsi]",
    "ret"
);
plain!(
    "pad_c",
    "nop; nop; nop; nop; nop",
    "lea rax, [rdi + rsi]",
    "ret"
);
plain!(
    "pad_d",
    "nop; nop; nop; nop; nop",
    "lea rax, [rdi + rsi]",
    "ret"
);

plain!(
    "debug_traps",
    ".byte 0xf1", // int1
    ".byte 0xf1", // int1
    "lea rax, [rdi + rsi]",
    "ret"
);

type Function = extern "C" fn(u64, u64) -> u64;

unsafe extern "C" {
    safe fn five_ones(a: u64, b: u64) -> u64;
    safe fn preempted_framed(a: u64, b: u64) -> u64;
    safe fn two_first(a: u64, b: u64) -> u64;
    safe fn three_first(a: u64, b: u64) -> u64;
    safe fn four_first(a: u64, b: u64) -> u64;
    safe fn with_branch(a: u64, b: u64) -> u64;
    safe fn with_call(a: u64, b: u64) -> u64;
    safe fn with_address(a: u64, b: u64) -> u64;
    safe fn preempted_landing_pad(a: u64, b: u64) -> u64;
    safe fn pad_a(a: u64, b: u64) -> u64;
    safe fn pad_b(a: u64, b: u64) -> u64;
    safe fn pad_c(a: u64, b: u64) -> u64;
    safe fn pad_d(a: u64, b: u64) -> u64;
    safe fn debug_traps(a: u64, b: u64) -> u64;
}

/// A function, where its instructions start within what is patched, and what it answers for
/// [`ARGUMENTS`].
struct Subject {
    name: &'static str,
    function: Function,
    inside: &'static [usize],
    answer: u64,
}

const ARGUMENTS: (u64, u64) = (1000, 34);

const fn subject(
    name: &'static str,
    function: Function,
    inside: &'static [usize],
    answer: u64,
) -> Subject {
    Subject {
        name,
        function,
        inside,
        answer,
    }
}

fn subjects() -> [Subject; 13] {
    [
        subject("five_ones", five_ones, &[1, 2, 3, 4], 1035),
        subject("preempted_framed", preempted_framed, &[1, 4], 1034 ^ 1000),
        subject("two_first", two_first, &[2, 4], 1035),
        subject("three_first", three_first, &[3], 1034),
        subject("four_first", four_first, &[4], 1007 ^ 34),
        subject("with_branch", with_branch, &[2, 4], 1034),
        subject("with_call", with_call, &[1], 1068),
        subject("with_address", with_address, &[1], 34),
        // Behind the endbr64.
        subject(
            "preempted_landing_pad",
            preempted_landing_pad,
            &[4 + 1, 4 + 2],
            1005,
        ),
        subject("pad_a", pad_a, &[1, 2, 3, 4], 1034),
        subject("pad_b", pad_b, &[1, 2, 3, 4], 1034),
        subject("pad_c", pad_c, &[1, 2, 3, 4], 1034),
        subject("pad_d", pad_d, &[1, 2, 3, 4], 1034),
    ]
}

/// Leads a thread, step by step, to certain places.
mod steps {
    use super::*;

    const TRAP_FLAG: i64 = 0x100;

    /// Range of the next stop: at an address inside it, or outside.
    static FROM: AtomicUsize = AtomicUsize::new(0);
    static TO: AtomicUsize = AtomicUsize::new(0);
    static WITHIN: AtomicBool = AtomicBool::new(true);
    /// Address at which the thread is held; 0 if it is not.
    static HELD: AtomicUsize = AtomicUsize::new(0);
    /// Next action of the thread: 1 to go on to the next place, 2 to run freely.
    static GO: AtomicU32 = AtomicU32::new(0);

    /// Place at which a thread stops.
    #[derive(Clone, Copy)]
    pub(super) enum Place {
        At(usize),
        Outside(usize, usize),
    }

    fn set(place: Place) {
        let (from, to, within) = match place {
            Place::At(address) => (address, address + 1, true),
            Place::Outside(from, to) => (from, to, false),
        };
        FROM.store(from, SeqCst);
        TO.store(to, SeqCst);
        WITHIN.store(within, SeqCst);
    }

    extern "C" fn on_step(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel passes; the context is this thread's, which is single-stepped.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            // A step whose reason a hypervisor has lost has the code of a breakpoint, but is
            // exception 1, the debug exception.
            let is_step = match (*info).si_code {
                libc::TRAP_TRACE => true,
                libc::TRAP_BRKPT => registers[libc::REG_TRAPNO as usize] == 1,
                _ => false,
            };
            if !is_step {
                // An int3 that nobody knows.
                libc::_exit(99);
            }
            let at = registers[libc::REG_RIP as usize] as usize;
            if (FROM.load(SeqCst)..TO.load(SeqCst)).contains(&at) != WITHIN.load(SeqCst) {
                return;
            }
            HELD.store(at, SeqCst);
            let go = loop {
                match GO.swap(0, SeqCst) {
                    0 => libc::sched_yield(),
                    go => break go,
                };
            };
            if go == 2 {
                registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
            }
        }
    }

    /// Installs the handler of steps. Call it before fgraph installs its own, which passes on the
    /// traps of others.
    pub(super) fn install() {
        // SAFETY: the handler has the signature that the flag asks for.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_step as *const () as usize;
            // Not blocked while a thread is held, for it shall be able to trap.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
        }
    }

    /// A call on its way.
    pub(super) struct Walk(thread::JoinHandle<u64>);

    /// Lets another thread call the function, up to `place`.
    pub(super) fn walk(function: Function, place: Place) -> Walk {
        set(place);
        let thread = thread::spawn(move || {
            let (a, b) = ARGUMENTS;
            // A thread's first traced call is not stepped through.
            function(a, b);
            let result: u64;
            // SAFETY: a call as the ABI has it; the trap flag is cleared at the latest behind it.
            unsafe {
                asm!(
                    "pushfq",
                    "or dword ptr [rsp], 0x100",
                    "popfq",
                    "call {function}",
                    "pushfq",
                    "and dword ptr [rsp], ~0x100",
                    "popfq",
                    function = in(reg) function,
                    inout("rdi") a => _,
                    inout("rsi") b => _,
                    out("rax") result,
                    clobber_abi("C"),
                );
            }
            result
        });
        let walk = Walk(thread);
        walk.wait();
        walk
    }

    impl Walk {
        fn wait(&self) {
            while HELD.load(SeqCst) == 0 {
                assert!(!self.0.is_finished(), "it never came there");
                thread::yield_now();
            }
        }

        /// Lets the thread go on to the next place, and returns the address.
        pub(super) fn on_to(&self, place: Place) -> usize {
            set(place);
            HELD.store(0, SeqCst);
            GO.store(1, SeqCst);
            self.wait();
            HELD.load(SeqCst)
        }

        /// Lets the thread run to its end, and returns the result.
        pub(super) fn finish(self) -> u64 {
            HELD.store(0, SeqCst);
            GO.store(2, SeqCst);
            self.0.join().unwrap()
        }
    }
}

use steps::{Place, walk};

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// Runs `each` for every place at which a thread may stand within a function that is patched.
fn everywhere(mut each: impl FnMut(&Subject, usize)) {
    steps::install();
    for subject in subjects() {
        let before: [u8; 16] = code(subject.function as *const ());
        let (a, b) = ARGUMENTS;
        assert_eq!((subject.function)(a, b), subject.answer, "{}", subject.name);
        for &inside in subject.inside {
            each(&subject, subject.function as usize + inside);
            assert_eq!(patched(), 0);
            assert_eq!(
                code::<16>(subject.function as *const ()),
                before,
                "{}",
                subject.name
            );
        }
        // And nobody has lost anything.
        let user = count(subject.name);
        assert_eq!((subject.function)(a, b), subject.answer);
        assert_eq!(
            user.unregister().unwrap().both(),
            (1, 1),
            "{}",
            subject.name
        );
    }
}

#[scenario]
fn a_thread_within_a_function_that_is_patched_goes_on_right() {
    everywhere(|subject, place| {
        let walk = walk(subject.function, Place::At(place));
        let user = count(subject.name);
        assert_eq!(
            user.report().unwrap().traced,
            1,
            "{:?}",
            user.report().unwrap()
        );
        assert!(is_patched(subject.function as *const ()));
        let traps = testing::traps();
        assert_eq!(
            walk.finish(),
            subject.answer,
            "{} at {place:#x}",
            subject.name
        );
        assert_eq!(
            testing::traps(),
            traps + 1,
            "{} at {place:#x}",
            subject.name
        );
        // It was entered before there was a user.
        assert_eq!(user.user().both(), (0, 0));
    });
}

#[scenario]
fn a_thread_within_the_copy_goes_on_right_after_the_function_was_put_back() {
    everywhere(|subject, place| {
        let entry = subject.function as usize;
        let walk = walk(subject.function, Place::At(place));
        let user = count(subject.name);
        // One instruction further, unless that leads back into the function.
        let copy = walk.on_to(Place::Outside(entry, entry));
        drop(user);
        assert_eq!(
            walk.finish(),
            subject.answer,
            "{} at {copy:#x}",
            subject.name
        );
    });
}

#[scenario]
fn a_thread_that_stays_within_a_function_does_not_notice_patching() {
    everywhere(|subject, place| {
        let walk = walk(subject.function, Place::At(place));
        let traps = testing::traps();
        for _ in 0..3 {
            drop(count(subject.name));
        }
        // It finds the function as it left it.
        assert_eq!(
            walk.finish(),
            subject.answer,
            "{} at {place:#x}",
            subject.name
        );
        assert_eq!(testing::traps(), traps);
    });
}

#[scenario]
fn a_thread_that_was_there_before_comes_out_of_the_second_patch_as_well() {
    everywhere(|subject, place| {
        let walk = walk(subject.function, Place::At(place));
        drop(count(subject.name));
        let (first, second) = (count(subject.name), count(subject.name));
        drop(first);
        assert_eq!(
            walk.finish(),
            subject.answer,
            "{} at {place:#x}",
            subject.name
        );
        assert_eq!(second.user().both(), (0, 0));
    });
}

/// The call is traced, and the user goes while it is within the displaced instructions.
#[scenario]
fn a_traced_call_within_the_copy_goes_on_right_when_its_user_goes() {
    everywhere(|subject, place| {
        let entry = subject.function as usize;
        // Where the copy is: this thread is moved there.
        let visitor = walk(subject.function, Place::At(place));
        let user = count(subject.name);
        let copy = visitor.on_to(Place::Outside(entry, entry));
        assert_eq!(visitor.finish(), subject.answer);
        assert_eq!(user.user().both(), (0, 0));
        if (entry..entry + 16).contains(&copy) {
            // Back already.
            return;
        }
        let walk = walk(subject.function, Place::At(copy));
        assert_eq!(user.user().both(), (2, 1));
        fgraph_scenario::set_filter(&user, "no_such_function").unwrap();
        assert!(!is_patched(subject.function as *const ()));
        assert_eq!(
            walk.finish(),
            subject.answer,
            "{} at {copy:#x}",
            subject.name
        );
        drop(user);
    });
}

/// The last byte of a jump may have to be an opcode that there is none of, which causes SIGILL.
#[scenario]
fn a_jump_that_ends_in_an_invalid_opcode_is_left_as_well() {
    steps::install();
    let user = count("pad_?");
    let ends: Vec<u8> = [pad_a, pad_b, pad_c, pad_d]
        .map(|pad: Function| code::<5>(pad as *const ())[4])
        .to_vec();
    drop(user);
    let Some(index) = ends.iter().position(|&end| end != 0xcc) else {
        return skip!("all of them end in an int3");
    };
    let subjects = subjects();
    let pads = || {
        subjects
            .iter()
            .filter(|subject| subject.name.starts_with("pad_"))
    };
    let subject = pads().nth(index).unwrap();
    let walk = walk(subject.function, Place::At(subject.function as usize + 4));
    let user = count("pad_?");
    let end = code::<5>(subject.function as *const ())[4];
    let traps = testing::traps();
    assert_eq!(walk.finish(), subject.answer, "at {end:#x}");
    assert_eq!(testing::traps(), traps + 1);
    drop(user);
}

/// `int1` raises the exception of a single step. So does a step whose reason the machine has lost,
/// as hypervisors do: the kernel reports both with the code of a breakpoint.
#[scenario]
fn a_debug_exception_where_a_site_was_reaches_the_program() {
    static SEEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static IS_REPEATED: AtomicBool = AtomicBool::new(false);
    extern "C" fn on_trap(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel passes.
        let (code, next) = unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            ((*info).si_code, &mut registers[libc::REG_RIP as usize])
        };
        let at = *next as usize;
        // Some hypervisors raise the exception before the instruction, which comes again for ever.
        if at == debug_traps as *const () as usize || IS_REPEATED.load(SeqCst) {
            IS_REPEATED.store(true, SeqCst);
            *next += 1;
        }
        assert_eq!(code, libc::TRAP_BRKPT);
        SEEN.lock().unwrap().push(at);
    }
    // SAFETY: the handler has the signature that the flag asks for.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_trap as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
    let entry = debug_traps as *const () as usize;
    let call = || {
        assert_eq!(debug_traps(1000, 34), 1034);
        mem::take(&mut *SEEN.lock().unwrap())
    };
    let untraced = [entry + 1, entry + 2];
    let seen = call();
    if IS_REPEATED.load(SeqCst) {
        return skip!("this machine raises the exception of `int1` before the instruction");
    }
    assert_eq!(seen, untraced);
    let user = count("debug_traps");
    assert_eq!(call().len(), 2);
    let traps = testing::traps();
    assert_eq!(user.unregister().unwrap().both(), (1, 1));
    assert_eq!(call(), untraced);
    assert_eq!(testing::traps(), traps);
}

/// SIGILL is the program's, but for what is fgraph's.
#[scenario]
fn an_invalid_instruction_of_the_program_is_its_own_affair() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn on_invalid(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
        SEEN.fetch_add(1, SeqCst);
        // SAFETY: what the kernel passes; the instruction, `ud2`, is two bytes long.
        unsafe {
            let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
            registers[libc::REG_RIP as usize] += 2;
        }
    }
    fn install() {
        // SAFETY: the handler has the signature that the flag asks for.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_invalid as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, ptr::null_mut()), 0);
        }
    }
    fn invalid() {
        // SAFETY: the handler goes on behind it.
        unsafe { asm!("ud2") };
    }
    install();
    invalid();
    let user = count("pad_? five_ones");
    invalid();
    // Set anew while functions are traced.
    install();
    invalid();
    let other = count("preempted_framed");
    invalid();
    drop((user, other));
    invalid();
    assert_eq!(SEEN.load(SeqCst), 5);
    // Nobody has a handler: the process ends, as it would have.
    let status = forked(|| {
        // SAFETY: an action that there is.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        let _user = count("pad_? five_ones");
        invalid();
        0
    });
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(libc::SIGILL), "{status}");
}

/// The tests above can fail: without the breakpoints within, a thread runs the operand of the jump.
#[scenario]
fn without_breakpoints_within_a_thread_would_be_lost() {
    let lost = [1, 2, 3, 4].map(|inside| {
        let status = forked(|| {
            steps::install();
            testing::leave_out(Skip::INNER).unwrap();
            let walk = walk(
                five_ones,
                Place::At(five_ones as *const () as usize + inside),
            );
            let _user = count("five_ones");
            i32::from(walk.finish() != 1035)
        });
        !status.success()
    });
    assert!(lost.contains(&true), "{lost:?}");
}

/// No thread is led here: a timer interrupts them wherever they are, while others patch.
#[scenario]
fn threads_that_are_interrupted_anywhere_are_not_lost() {
    extern "C" fn on_tick(_signal: c_int) {
        // Others run now, while this thread stands where it is.
        // SAFETY: takes nothing.
        unsafe { libc::sched_yield() };
    }
    const THREADS: usize = 4;
    let done = AtomicBool::new(false);
    let calls = AtomicU64::new(0);
    // SAFETY: the handler may run at any place; the interval is valid.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_tick as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()), 0);
        let mut timer: libc::itimerval = mem::zeroed();
        timer.it_interval.tv_usec = 200;
        timer.it_value.tv_usec = 200;
        assert_eq!(
            libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut()),
            0
        );
    }
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let subjects = subjects();
                while !done.load(SeqCst) {
                    for subject in &subjects {
                        let (a, b) = ARGUMENTS;
                        assert_eq!((subject.function)(a, b), subject.answer);
                    }
                    calls.fetch_add(1, SeqCst);
                }
            });
        }
        let patcher = scope.spawn(|| {
            let all: Vec<&str> = subjects().iter().map(|subject| subject.name).collect();
            let all = all.join(" ");
            for _ in 0..50 {
                let user = count(&all);
                fgraph_scenario::set_filter(&user, "five_ones preempted_framed pad_?").unwrap();
                let (entries, returns) = user.unregister().unwrap().both();
                assert!(returns <= entries);
            }
        });
        let result = patcher.join();
        done.store(true, SeqCst);
        result.unwrap();
    });
    assert_eq!(patched(), 0);
    assert!(calls.load(SeqCst) > 0);
}
