//! System calls that functions make themselves.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use fgraph::{Entry, FgraphOps, RefusalReason, Return, SystemCallError};
use fgraph_scenario::{Count, code, plain, scenario, user};

// Saves what a system call must leave alone, after one, in the 64 words at its first argument. The
// second argument is what the flags are before.
plain!(
    "keeps_state",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rbx, rdi",
    "lea rsp, [rsp - 128]",
    "push rsi",
    "popfq",
    "lea rsp, [rsp + 128]",
    "mov ebp, 0x101",
    "mov edi, 0x102",
    "mov esi, 0x103",
    "mov edx, 0x104",
    "mov r8d, 0x105",
    "mov r9d, 0x106",
    "mov r10d, 0x107",
    "mov r12d, 0x108",
    "mov r13d, 0x109",
    "mov r14d, 0x10a",
    "mov r15d, 0x10b",
    ".irp reg,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movq xmm\\reg, r12",
    "mov qword ptr [rsp - 8 - 8 * \\reg], r13",
    ".endr",
    "mov eax, 39",
    "syscall",
    "mov [rbx], rax",
    "mov [rbx + 8], rcx",
    "mov [rbx + 16], rdx",
    "mov [rbx + 24], rsi",
    "mov [rbx + 32], rdi",
    "mov [rbx + 40], rbp",
    "mov [rbx + 48], rsp",
    "mov [rbx + 56], r8",
    "mov [rbx + 64], r9",
    "mov [rbx + 72], r10",
    "mov [rbx + 80], r12",
    "mov [rbx + 88], r13",
    "mov [rbx + 96], r14",
    "mov [rbx + 104], r15",
    ".irp reg,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "movq [rbx + 128 + 8 * \\reg], xmm\\reg",
    "mov rax, [rsp - 8 - 8 * \\reg]",
    "mov [rbx + 256 + 8 * \\reg], rax",
    ".endr",
    "lea rsp, [rsp - 128]",
    "pushfq",
    "pop rax",
    "lea rsp, [rsp + 128]",
    "mov [rbx + 112], rax",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
);

// Waits for files: poll(2).
plain!("waits", "mov r10d, 0x1234", "mov eax, 7", "syscall", "ret");

// read(2)
plain!(
    "reads",
    "mov r10d, 0x1234",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "mov eax, 0",
    "syscall",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
);

// Its first system call only, and what cannot be traced.
plain!(
    "makes_others",
    "mov r10d, 0",
    "mov eax, 39",
    "syscall",
    "xor eax, eax",
    "syscall",
    "mov eax, 60",
    "syscall",
    "ret",
);
plain!("begins_with_one", "mov eax, 39", "syscall", "ret");
// Where a thread is cancelled.
plain!(
    "starts_reading",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov rsi, rsp",
    "mov edx, 1",
    "call reads",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
);

unsafe extern "C" {
    fn keeps_state(state: *mut u64, flags: u64);
    fn reads(file: c_int, into: *mut u8, len: usize) -> isize;
    fn waits(files: *mut libc::pollfd, len: usize, milliseconds: c_int) -> c_int;
    fn makes_others();
    fn begins_with_one() -> usize;
}

/// Leaves garbage in the registers that callbacks may change.
fn spoil() {
    // SAFETY: it changes what it says.
    unsafe {
        std::arch::asm!(
            ".irp reg,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "pcmpeqd xmm\\reg, xmm\\reg",
            ".endr",
            "xor ecx, ecx",
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
}

/// A system call that was seen: where, its number, its arguments, its result.
type Seen = (String, u32, [u64; 6], i64);

/// User that keeps its events.
#[derive(Debug, Default)]
struct Keep {
    seen: Mutex<Vec<Seen>>,
}

impl FgraphOps for Keep {
    type Data = [u64; 6];

    fn entry(&self, call: &mut Entry<'_, [u64; 6]>) -> Option<[u64; 6]> {
        let args = std::array::from_fn(|index| call.system_call_arg(index).unwrap());
        assert_eq!(call.system_call_arg(6), None);
        spoil();
        Some(args)
    }

    fn ret(&self, call: &mut Return<'_, [u64; 6]>, args: [u64; 6]) {
        let function = call.function();
        let number = function.system_call().unwrap();
        let name = function.name().as_str().to_owned();
        let result = call.result().unwrap() as i64;
        self.seen.lock().unwrap().push((name, number, args, result));
        spoil();
    }
}

/// The system calls of this program's own functions.
const OWN: &str = ":syscalls:mod:it-*";

#[scenario]
fn a_traced_system_call_changes_the_same_registers_as_an_untraced_one() {
    let state = |flags| {
        let mut state = [0; 64];
        // SAFETY: there is room for what it saves.
        unsafe { keeps_state(state.as_mut_ptr(), flags) };
        state
    };
    // Carry, parity, auxiliary carry, zero, sign, overflow: alone and together.
    let flags = [0, 1, 4, 0x10, 0x40, 0x80, 0x800, 0x8d5, 0x8c1, 0x0d5];
    let before = flags.map(state);
    let own = fgraph_scenario::register(Keep::default(), OWN).unwrap();
    let during = flags.map(state);
    let seen = std::mem::take(&mut *own.user().seen.lock().unwrap());
    let seen: Vec<_> = seen
        .iter()
        .filter(|(name, ..)| name.starts_with("keeps_state+0x"))
        .collect();
    assert_eq!(seen.len(), flags.len());
    let args = [0x102, 0x103, 0x104, 0x107, 0x105, 0x106];
    let pid = std::process::id().into();
    assert!(
        seen.iter()
            .all(|seen| (seen.1, seen.2, seen.3) == (39, args, pid))
    );
    for (before, during) in before.iter().zip(&during) {
        assert_eq!(before, during);
    }
    drop(own);
    assert_eq!(flags.map(state), before);
}

#[scenario]
fn no_other_filter_selects_system_calls_and_their_own_selects_no_function() {
    // So that they are in the program.
    std::hint::black_box([makes_others as *const (), begins_with_one as *const ()]);
    let everything = fgraph_scenario::register(Count::default(), ":mod:it-*").unwrap();
    let functions = everything.functions().unwrap();
    assert!(functions.len() > 10);
    assert!(functions.iter().all(|one| one.system_call().is_none()));
    drop(everything);
    let own = fgraph_scenario::register(Keep::default(), OWN).unwrap();
    let calls = own.functions().unwrap();
    assert!(calls.iter().all(|one| one.system_call().is_some()));
    let numbers = |name: &str| {
        let named = calls
            .iter()
            .filter(|one| one.name().as_str().starts_with(name));
        named
            .filter_map(|one| one.system_call())
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers("keeps_state+0x"), [39]);
    assert_eq!(numbers("reads+0x"), [0]);
    assert_eq!(numbers("makes_others+0x"), [39]);
    assert_eq!(numbers("begins_with_one"), []);
    // The report has the reason for each function that cannot be traced.
    let report = own.report().unwrap();
    let reasons = |name: &str| {
        let named = report
            .refused
            .iter()
            .filter(|one| one.name.starts_with(name));
        named.map(|one| one.reason.clone()).collect::<Vec<_>>()
    };
    let system_calls = |errors: &[SystemCallError]| {
        errors
            .iter()
            .copied()
            .map(RefusalReason::SystemCall)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        reasons("makes_others+0x"),
        system_calls(&[
            SystemCallError::NoNumber,
            SystemCallError::Special { number: 60 }
        ])
    );
    assert_eq!(
        reasons("begins_with_one+0x0"),
        system_calls(&[SystemCallError::AtEntry { number: 39 }])
    );
}

/// Handles of signals counted by [`on_signal`].
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_signal: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Waits until the kernel says that a thread sleeps.
fn until_blocked(thread: u32) {
    let sleeps = || {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    };
    while !sleeps() {
        thread::yield_now();
    }
}

/// Sends a signal to a thread that sleeps, which sleeps on when it has been handled.
fn interrupt(thread: u32) {
    let before = SIGNALS.load(Ordering::SeqCst);
    // SAFETY: the signal has a handler.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
    while SIGNALS.load(Ordering::SeqCst) == before {
        thread::yield_now();
    }
    until_blocked(thread);
}

#[scenario]
fn a_call_that_waits_is_made_anew_where_it_was_made() {
    // SAFETY: a handler that counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut());
    }
    let (from, mut to) = std::io::pipe().unwrap();
    let ids = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        ids.0.send(fgraph::thread_id()).unwrap();
        let read = || {
            let mut byte = 0;
            // SAFETY: there is room for a byte.
            (unsafe { reads(from.as_raw_fd(), &mut byte, 1) }, byte)
        };
        [read(), read(), read()]
    });
    let id = ids.1.recv().unwrap();
    until_blocked(id);
    let text: [u8; 24] = code(reads as *const ());
    // It waits in the function's own instruction, which stays.
    let own = fgraph_scenario::register(Count::default(), OWN).unwrap();
    assert_ne!(code(reads as *const ()), text);
    interrupt(id);
    to.write_all(b"a").unwrap();
    while own.user().entries.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    until_blocked(id);
    // Now in that of the copy.
    interrupt(id);
    let other = fgraph_scenario::register(Count::default(), OWN).unwrap();
    drop(own);
    interrupt(id);
    drop(other);
    assert_eq!(code(reads as *const ()), text);
    interrupt(id);
    to.write_all(b"bc").unwrap();
    let read = reader.join().unwrap();
    assert_eq!(read, [(1, b'a'), (1, b'b'), (1, b'c')]);
}

/// Stops this process by a shell, which lets it go on.
fn stop_for_a_moment() {
    let stop = "kill -STOP $PPID && kill -CONT $PPID";
    let stopped = std::process::Command::new("sh").args(["-c", stop]).status();
    assert!(stopped.unwrap().success());
}

#[scenario]
fn a_wait_with_an_end_goes_on_after_the_process_was_stopped() {
    let (from, mut to) = std::io::pipe().unwrap();
    let ids = std::sync::mpsc::channel();
    let waiter = thread::spawn(move || {
        ids.0.send(fgraph::thread_id()).unwrap();
        let mut files = libc::pollfd {
            fd: from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // The kernel goes on with what is left of the time, by another system call:
        // restart_syscall(2).
        // SAFETY: one file.
        let first = unsafe { waits(&mut files, 1, 600_000) };
        let mut byte = 0;
        // SAFETY: there is room for a byte.
        unsafe { reads(from.as_raw_fd(), &mut byte, 1) };
        // SAFETY: as above.
        (first, unsafe { waits(&mut files, 1, 600_000) })
    });
    let id = ids.1.recv().unwrap();
    until_blocked(id);
    stop_for_a_moment();
    until_blocked(id);
    // It waits in the function's own instruction, and then in that of the copy.
    let own = fgraph_scenario::register(Count::default(), OWN).unwrap();
    stop_for_a_moment();
    until_blocked(id);
    to.write_all(b"a").unwrap();
    while own.user().entries.load(Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
    until_blocked(id);
    stop_for_a_moment();
    until_blocked(id);
    drop(own);
    stop_for_a_moment();
    to.write_all(b"b").unwrap();
    assert_eq!(waiter.join().unwrap(), (1, 1));
}

#[scenario]
fn each_call_is_made_once_while_they_are_switched_on_and_off() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(|| {
                let mut calls = 0_u64;
                let pid = u64::from(std::process::id());
                while !OVER.load(Ordering::Relaxed) {
                    let mut state = [0; 64];
                    // SAFETY: there is room for what it saves.
                    unsafe { keeps_state(state.as_mut_ptr(), 0x8d5) };
                    assert_eq!(state[0], pid);
                    assert_eq!(state[14] & 0x8d5, 0x8d5);
                    assert_eq!(state[16..48], [[0x108; 16], [0x109; 16]].concat());
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let own = fgraph_scenario::register(Count::default(), OWN).unwrap();
    let off = "no_such_function";
    for _ in 0..300 {
        fgraph_scenario::set_filter(&own, off).unwrap();
        fgraph_scenario::set_filter(&own, OWN).unwrap();
    }
    while own.user().entries.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    OVER.store(true, Ordering::Relaxed);
    let calls: u64 = threads.into_iter().map(|one| one.join().unwrap()).sum();
    let (entries, returns) = own.user().both();
    assert!(
        entries == returns && entries <= calls,
        "{entries} {returns} {calls}"
    );
}

mod steps {
    use super::*;

    const TRAP_FLAG: i64 = 0x100;

    /// The functions that callers are to be found of, innermost first, by where they start.
    pub(super) static FUNCTIONS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    pub(super) static STEPS: AtomicU64 = AtomicU64::new(0);
    /// Steps at which a caller was missing, and the first such place.
    pub(super) static WRONG: AtomicU64 = AtomicU64::new(0);
    pub(super) static FIRST: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    static FOUND: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" {
        fn _Unwind_Backtrace(
            each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            argument: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetRegionStart(context: *mut c_void) -> usize;
    }

    extern "C" fn each_caller(context: *mut c_void, _: *mut c_void) -> c_int {
        // SAFETY: the unwinder's own.
        let start = unsafe { _Unwind_GetRegionStart(context) };
        let next = FOUND.load(Ordering::Relaxed);
        let is_it = |function: &AtomicUsize| function.load(Ordering::Relaxed) == start;
        if FUNCTIONS.get(next).is_some_and(is_it) {
            FOUND.store(next + 1, Ordering::Relaxed);
        }
        0
    }

    extern "C" fn on_step(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel passes.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let registers = &mut context.uc_mcontext.gregs;
        FOUND.store(0, Ordering::Relaxed);
        // SAFETY: the callback has the type that is asked for.
        unsafe { _Unwind_Backtrace(each_caller, ptr::null_mut()) };
        let found = FOUND.load(Ordering::Relaxed);
        STEPS.fetch_add(1, Ordering::Relaxed);
        // The callee is not there before its first instruction nor after its last.
        let rip = registers[libc::REG_RIP as usize] as usize;
        let in_driver = rip.wrapping_sub(FUNCTIONS[1].load(Ordering::Relaxed)) < 64;
        let is_wrong = found != FUNCTIONS.len() && !in_driver;
        if is_wrong && WRONG.fetch_add(1, Ordering::Relaxed) == 0 {
            FIRST.store(ptr::without_provenance_mut(rip), Ordering::Relaxed);
        }
        if rip == steps_end as *const () as usize {
            registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
        }
    }

    plain!(
        "steps_driver",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "or dword ptr [rsp], 0x100",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "call reads",
        ".globl steps_end",
        "steps_end:",
        "nop",
        "nop",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
    );

    unsafe extern "C" {
        pub(super) fn steps_driver(file: c_int, into: *mut u8, len: usize) -> isize;
        fn steps_end();
    }

    pub(super) fn install() {
        FUNCTIONS[0].store(reads as *const () as usize, Ordering::Relaxed);
        FUNCTIONS[1].store(steps_driver as *const () as usize, Ordering::Relaxed);
        // SAFETY: the handler has the type that is asked for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_step as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut());
        }
    }
}

#[scenario]
fn an_unwinder_finds_every_caller_at_every_instruction() {
    steps::install();
    let own = fgraph_scenario::register(Count::default(), OWN).unwrap();
    let run = || {
        let mut byte = 0;
        // SAFETY: it is told of no file.
        unsafe { steps::steps_driver(-1, &mut byte, 1) }
    };
    // A thread's first traced call sets up its state, before the steps begin.
    let mut byte = 0;
    // SAFETY: as above.
    unsafe { reads(-1, &mut byte, 1) };
    assert_eq!(run(), -libc::EBADF as isize);
    let (steps, wrong) = (&steps::STEPS, &steps::WRONG);
    assert!(steps.load(Ordering::Relaxed) > 60, "{steps:?}");
    let first = steps::FIRST.load(Ordering::Relaxed);
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "first at {first:?}");
    assert_eq!(own.user().both(), (2, 2));
}

#[scenario]
fn a_thread_is_cancelled_in_a_system_call() {
    let own = fgraph_scenario::register(Count::default(), OWN).unwrap();
    let (from, _to) = std::io::pipe().unwrap();
    let file = from.as_raw_fd();
    // SAFETY: the thread runs assembly that an unwinder may go through, on a file that stays
    // open; `starts_reading` hands its argument on as the number of a file.
    unsafe {
        let mut thread = std::mem::zeroed();
        let start: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(starts_asynchronous as *const ());
        let argument = ptr::without_provenance_mut(file as usize);
        assert_eq!(
            libc::pthread_create(&mut thread, ptr::null(), start, argument),
            0
        );
        while own.user().entries.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        assert_eq!(pthread_cancel(thread), 0);
        let mut result = ptr::null_mut();
        assert_eq!(libc::pthread_join(thread, &mut result), 0);
        assert_eq!(result.addr(), usize::MAX, "PTHREAD_CANCELED");
    }
    assert_eq!(own.user().all(), (1, 1, 1));
}

// Lets itself be cancelled at any instruction.
plain!(
    "starts_asynchronous",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "mov edi, 1",
    "xor esi, esi",
    "call pthread_setcanceltype@PLT",
    "mov rdi, [rsp]",
    "call starts_reading",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "ret",
);

unsafe extern "C" {
    fn starts_asynchronous(file: *mut c_void) -> *mut c_void;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

#[scenario]
fn the_c_librarys_own_calls_are_seen_without_a_trap() {
    let user = user(|_| Some(()), |_, ()| ());
    let own = fgraph_scenario::register(user, ":syscalls:mod:libc.so*").unwrap();
    let traced = own.functions().unwrap();
    println!("{} of libc, {:?}", traced.len(), traced);
    for refused in own.report().unwrap().refused {
        println!("{refused}");
    }
    assert!(traced.len() > 50);
    assert!(traced.iter().all(|one| one.address() % 4096 <= 4096 - 7));
    // Threads and processes come and go, whose signals are blocked at times.
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    thread::spawn(|| ()).join().unwrap();
                }
            });
        }
        for _ in 0..20 {
            fgraph_scenario::set_filter(&own, "no_such_function").unwrap();
            fgraph_scenario::set_filter(&own, ":syscalls:mod:libc.so*").unwrap();
        }
    });
    let status = std::process::Command::new("/bin/true").status().unwrap();
    assert!(status.success());
    assert_eq!(fgraph_scenario::forked(|| 7).code(), Some(7));
}
