//! Code that threads of the other process run to load the library.
//!
//! ```text
//!   area    code, the instructions below | stack, growing down | `Parameters` | frame, texts
//! ```
//!
//! The stopped thread makes a thread, reports that, and waits a moment for the attaching process,
//! which restores all its registers. If that process is gone, the thread does so itself: it returns
//! from a signal that never came, by a frame that holds the registers. Before there is an area,
//! such a frame is on the thread's own stack, where a signal's would be.
//!
//! Before glibc 2.34 a program without libpthread cannot make a thread. There the stopped thread
//! first loads libpthread. That takes no lock that another thread could hold, because there is no
//! other thread.
//!
//! Both threads block the C library's own signals except while they call its functions. The
//! attaching process could not stop a thread between two handlers that run one after the other.
//!
//! The new thread, on a stack of its own, executes one of three steps when it is told to:
//!
//! - make a system call;
//! - load the library;
//! - close and unmap everything, and end.
//!
//! It also executes the last step when it was told nothing for a moment, but then keeps the area.
//! The stopped thread may still be there, unless [`Parameters::is_alone`] says that it is not.
//!
//! # Safety
//!
//! The unsafe code names the instructions, which are never run in this process.

use std::arch::global_asm;
use std::io;
use std::mem::{self, offset_of};
use std::slice;

use libc::user_regs_struct;

use crate::ptrace::State;
use crate::signals::{Whose, unblocked_in_functions};

/// Results of system calls that the kernel restarts, as numbers below zero.
const ERESTARTSYS: i64 = 512;
const ERESTARTNOINTR: i64 = 513;
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;

/// Bytes of a `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

/// Number of seconds, less one at most, for which an idle thread waits for a step.
const SECONDS: u64 = 2;

/// Values of [`Parameters::done`].
pub(crate) const MADE: u64 = 1;
pub(crate) const LOADED: u64 = 2;
pub(crate) const FAILED: u64 = 3;

/// Value of [`Parameters::result`] if the stopped thread could not load libpthread.
pub(crate) const NO_THREADS: i64 = -1;

/// Most files that can be received.
pub(crate) const FILES: usize = 8;
/// Bytes of the stopped thread's stack.
pub(crate) const STACK: u64 = 256 << 10;
/// Bytes of the new thread's stack, including the C library's data there.
const NEW_STACK: u64 = 2 << 20;
/// Bytes above the stopped thread's stack: parameters, registers, and 128 KiB of arguments.
pub(crate) const UPPER: u64 = 192 << 10;
/// Bytes of the code.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of the area.
pub(crate) const AREA: u64 = PAGE + STACK + UPPER;
/// Offset of the parameters in the area.
pub(crate) const PARAMETERS: u64 = PAGE + STACK;

/// Bytes from the start of a `link_map` to the pointer to its name.
const LINK_MAP_NAME: usize = 8;

/// Control message of a socket with one descriptor, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) len: u64,
    pub(crate) level: i32,
    pub(crate) kind: i32,
    /// Descriptor; -1 until it is received.
    pub(crate) descriptor: i32,
    pub(crate) unused: i32,
}

impl Received {
    pub(crate) const NONE: Self = Self {
        len: 0,
        level: 0,
        kind: 0,
        descriptor: -1,
        unused: 0,
    };
}

/// Parameters and results of the instructions.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parameters {
    /// Address of `__errno_location`.
    pub(crate) errno: u64,
    pub(crate) pthread_attr_init: u64,
    pub(crate) pthread_attr_setdetachstate: u64,
    /// Address of the function; 0 if `pthread_create` is 0.
    pub(crate) pthread_attr_setstacksize: u64,
    /// Address of the function; 0 if the stopped thread must load libpthread for it.
    pub(crate) pthread_create: u64,
    /// Address of `dlopen`, or of `__libc_dlopen_mode`.
    pub(crate) dlopen: u64,
    /// Second argument of that function.
    pub(crate) mode: u64,
    /// Address of `dlsym`, or of `__libc_dlsym`.
    pub(crate) dlsym: u64,
    /// Address of `dlerror`, or 0 if the process has none.
    pub(crate) dlerror: u64,
    /// Address of `syscall; ret` in the C library.
    pub(crate) call: u64,
    /// Address of the frame by which the stopped thread continues.
    pub(crate) frame: u64,
    /// A `pthread_attr_t`, and a `pthread_t`.
    pub(crate) attributes: [u64; 7],
    pub(crate) handle: u64,
    /// Id of the new thread, once it runs.
    pub(crate) thread: u64,
    /// Nonzero if the stopped thread is no longer in the area.
    pub(crate) is_alone: u64,
    /// Path of the library; 0 if it is loaded and `function` is known.
    pub(crate) path: u64,
    /// Name that the linker keeps for the library, of the same length as the path.
    pub(crate) shown: u64,
    /// Bytes of the path, with the zero at its end.
    pub(crate) path_len: u64,
    /// Name of the function to call.
    pub(crate) name: u64,
    /// Address of that function.
    pub(crate) function: u64,
    pub(crate) argument: u64,
    pub(crate) argument_len: u64,
    /// Number and arguments of the system call to make.
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 4],
    /// The two ends of the socket for files, or -1.
    pub(crate) sockets: [i32; 2],
    /// Files that were received: the library's, then those for the function.
    pub(crate) files: [Received; FILES],
    /// A `msghdr`, the `iovec` that it points to, and the byte that this one points to.
    pub(crate) header: [u64; 7],
    pub(crate) part: [u64; 2],
    pub(crate) byte: u64,
    /// Result of the function or of the system call.
    pub(crate) result: u64,
    /// Message of the linker.
    pub(crate) message: u64,
    pub(crate) done: u64,
    /// A `timespec` of the last check.
    pub(crate) time: [u64; 2],
    /// Signals that are unblocked while functions are called.
    pub(crate) unblocked: u64,
}

impl Parameters {
    pub(crate) fn new() -> Self {
        Self {
            sockets: [-1; 2],
            files: [Received::NONE; FILES],
            unblocked: unblocked_in_functions(Whose::Programs),
            ..Self::default()
        }
    }

    /// Returns the offset of a field in the area.
    pub(crate) const fn at(field: usize) -> u64 {
        PARAMETERS + field as u64
    }
}

/// Changes the signals that the thread blocks, if the kernel lets it. Changes rax, rcx, rdx, rdi,
/// rsi, r10 and r11.
macro_rules! change_mask {
    ($how:literal) => {
        concat!(
            "mov eax, {RT_SIGPROCMASK}\n",
            "mov edi, {",
            $how,
            "}\n",
            "lea rsi, [rbx + {UNBLOCKED}]\n",
            "xor edx, edx\n",
            "mov r10d, 8\n",
            "syscall",
        )
    };
}

global_asm!(
    ".pushsection .rodata.fgraph_attach, \"a\", @progbits",
    // Other crates may inline the function that names these symbols.
    ".globl fgraph_attach_stub, fgraph_attach_call, fgraph_attach_load, fgraph_attach_leave",
    ".hidden fgraph_attach_stub, fgraph_attach_call, fgraph_attach_load, fgraph_attach_leave",
    ".globl fgraph_attach_stub_end",
    ".hidden fgraph_attach_stub_end",
    // The stopped thread. rbx holds the parameters, which are aligned at the end of its stack once
    // that can be written to. Callee-saved registers are free to use. Functions expect an empty x87
    // stack and the usual rounding.
    "fgraph_attach_stub:",
    "lea rdi, [rbx - {STACK}]",
    "mov esi, {WRITTEN}",
    "mov edx, {READ_WRITE}",
    "mov eax, {MPROTECT}",
    "syscall",
    "test rax, rax",
    "jnz 3f",
    "fninit",
    "push {MXCSR}",
    "ldmxcsr [rsp]",
    "pop rax",
    change_mask!("UNBLOCK"),
    "call [rbx + {ERRNO}]",
    "mov r12, rax",
    "mov r13d, [r12]",
    "cmp qword ptr [rbx + {CREATE}], 0",
    "jne 6f",
    "lea rdi, [rip + fgraph_attach_libpthread]",
    "mov esi, [rbx + {MODE}]",
    "call [rbx + {DLOPEN}]",
    "mov r14, rax",
    "test rax, rax",
    "jz 4f",
    "mov rdi, r14",
    "lea rsi, [rip + fgraph_attach_pthread_create]",
    "call [rbx + {DLSYM}]",
    "mov [rbx + {CREATE}], rax",
    "test rax, rax",
    "jz 4f",
    "mov rdi, r14",
    "lea rsi, [rip + fgraph_attach_setstacksize]",
    "call [rbx + {DLSYM}]",
    "mov [rbx + {ATTR_SETSTACKSIZE}], rax",
    "test rax, rax",
    "jz 4f",
    "6:",
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "call [rbx + {ATTR_INIT}]",
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "mov esi, {DETACHED}",
    "call [rbx + {ATTR_SETDETACHSTATE}]",
    "lea rdi, [rbx + {ATTRIBUTES}]",
    "mov esi, {NEW_STACK}",
    "call [rbx + {ATTR_SETSTACKSIZE}]",
    "lea rdi, [rbx + {HANDLE}]",
    "lea rsi, [rbx + {ATTRIBUTES}]",
    "lea rdx, [rip + 5f]",
    "mov rcx, rbx",
    "call [rbx + {CREATE}]",
    "mov eax, eax",
    "2:",
    "mov [r12], r13d",
    "mov [rbx + {RESULT}], rax",
    change_mask!("BLOCK"),
    "mov qword ptr [rbx + {DONE}], {MADE}",
    "lea r13, [rip + 3f]",
    "jmp 9f",
    "4:",
    "mov rax, {NO_THREADS}",
    "jmp 2b",
    "3:",
    "mov rsp, [rbx + {FRAME}]",
    "mov eax, {RT_SIGRETURN}",
    "syscall",
    // The new thread, as a function: rdi holds the parameters.
    "5:",
    "push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    change_mask!("BLOCK"),
    "mov eax, {GETTID}",
    "syscall",
    "mov [rbx + {THREAD}], rax",
    "jmp 8f",
    "fgraph_attach_call:",
    "mov rdi, [rbx + {ARGUMENTS}]",
    "mov rsi, [rbx + {ARGUMENTS} + 8]",
    "mov rdx, [rbx + {ARGUMENTS} + 16]",
    "mov r10, [rbx + {ARGUMENTS} + 24]",
    "mov rax, [rbx + {NUMBER}]",
    "syscall",
    "mov [rbx + {RESULT}], rax",
    "mov qword ptr [rbx + {DONE}], {MADE}",
    "jmp 8f",
    "fgraph_attach_load:",
    change_mask!("UNBLOCK"),
    "mov rdi, [rbx + {PATH}]",
    "test rdi, rdi",
    "jz 6f",
    "mov esi, [rbx + {MODE}]",
    "call [rbx + {DLOPEN}]",
    "test rax, rax",
    "jz 7f",
    // The linker keeps the path, which soon leads to another file. The handle is a `link_map`.
    "mov rdx, rax",
    "mov rdi, [rdx + {LINK_MAP_NAME}]",
    "mov rsi, [rbx + {PATH}]",
    "mov rcx, [rbx + {PATH_LEN}]",
    "repe cmpsb",
    "jne 4f",
    "mov rdi, [rdx + {LINK_MAP_NAME}]",
    "mov rsi, [rbx + {SHOWN}]",
    "mov rcx, [rbx + {PATH_LEN}]",
    "rep movsb",
    "4:",
    "mov rdi, rdx",
    "mov rsi, [rbx + {NAME}]",
    "call [rbx + {DLSYM}]",
    "mov [rbx + {FUNCTION}], rax",
    "test rax, rax",
    "jz 7f",
    "6:",
    // All files but the first now belong to the function.
    "lea rdi, [rbx + {FILES} + {FILE}]",
    "mov ecx, {SHARED} * {FILE}",
    "mov eax, -1",
    "rep stosb",
    "mov rdi, [rbx + {ARGUMENT}]",
    "mov rsi, [rbx + {ARGUMENT_LEN}]",
    "call [rbx + {FUNCTION}]",
    "cdqe",
    "mov [rbx + {RESULT}], rax",
    change_mask!("BLOCK"),
    "mov qword ptr [rbx + {DONE}], {LOADED}",
    "jmp 8f",
    "7:",
    "mov rax, [rbx + {DLERROR}]",
    "test rax, rax",
    "jz 2f",
    "call rax",
    "2:",
    "mov [rbx + {MESSAGE}], rax",
    change_mask!("BLOCK"),
    "mov qword ptr [rbx + {DONE}], {FAILED}",
    "8:",
    "lea r13, [rip + fgraph_attach_leave]",
    // Waits without a stack, then jumps to r13: the new thread continues from here when it is told
    // to. A call that sleeps would overwrite the kernel's record of the call that the stopped
    // thread must restart.
    "9:",
    "xor r12d, r12d",
    "2:",
    "mov edi, {CLOCK}",
    "lea rsi, [rbx + {TIME}]",
    "mov eax, {CLOCK_GETTIME}",
    "syscall",
    "test r12, r12",
    "jnz 3f",
    "mov r12, [rbx + {TIME}]",
    "add r12, {SECONDS}",
    "3:",
    "mov eax, {SCHED_YIELD}",
    "syscall",
    "cmp [rbx + {TIME}], r12",
    "jl 2b",
    "jmp r13",
    "fgraph_attach_leave:",
    change_mask!("UNBLOCK"),
    "mov edi, [rbx + {SOCKETS}]",
    "test edi, edi",
    "js 2f",
    "mov eax, {CLOSE}",
    "syscall",
    "mov edi, [rbx + {SOCKETS} + 4]",
    "mov eax, {CLOSE}",
    "syscall",
    "2:",
    "lea r12, [rbx + {FILES} + {DESCRIPTOR}]",
    "mov r13d, {FILES_LEN}",
    "2:",
    "mov edi, [r12]",
    "test edi, edi",
    "js 3f",
    "mov eax, {CLOSE}",
    "syscall",
    "3:",
    "add r12, {FILE}",
    "dec r13d",
    "jnz 2b",
    "lea rdi, [rbx - {PARAMETERS}]",
    "mov esi, {AREA}",
    "mov rdx, [rbx + {CALL}]",
    "cmp qword ptr [rbx + {IS_ALONE}], 0",
    "pop r13",
    "pop r12",
    "pop rbx",
    "je 4f",
    "mov eax, {MUNMAP}",
    "jmp rdx",
    "4:",
    "xor eax, eax",
    "ret",
    "fgraph_attach_libpthread:",
    ".asciz \"libpthread.so.0\"",
    "fgraph_attach_pthread_create:",
    ".asciz \"pthread_create\"",
    "fgraph_attach_setstacksize:",
    ".asciz \"pthread_attr_setstacksize\"",
    "fgraph_attach_stub_end:",
    ".popsection",
    ERRNO = const offset_of!(Parameters, errno),
    ATTRIBUTES = const offset_of!(Parameters, attributes),
    ATTR_INIT = const offset_of!(Parameters, pthread_attr_init),
    ATTR_SETDETACHSTATE = const offset_of!(Parameters, pthread_attr_setdetachstate),
    ATTR_SETSTACKSIZE = const offset_of!(Parameters, pthread_attr_setstacksize),
    NO_THREADS = const NO_THREADS,
    CREATE = const offset_of!(Parameters, pthread_create),
    HANDLE = const offset_of!(Parameters, handle),
    THREAD = const offset_of!(Parameters, thread),
    IS_ALONE = const offset_of!(Parameters, is_alone),
    CALL = const offset_of!(Parameters, call),
    PATH = const offset_of!(Parameters, path),
    PATH_LEN = const offset_of!(Parameters, path_len),
    SHOWN = const offset_of!(Parameters, shown),
    LINK_MAP_NAME = const LINK_MAP_NAME,
    DLOPEN = const offset_of!(Parameters, dlopen),
    MODE = const offset_of!(Parameters, mode),
    NAME = const offset_of!(Parameters, name),
    DLSYM = const offset_of!(Parameters, dlsym),
    DLERROR = const offset_of!(Parameters, dlerror),
    FUNCTION = const offset_of!(Parameters, function),
    ARGUMENT = const offset_of!(Parameters, argument),
    ARGUMENT_LEN = const offset_of!(Parameters, argument_len),
    NUMBER = const offset_of!(Parameters, number),
    ARGUMENTS = const offset_of!(Parameters, arguments),
    SOCKETS = const offset_of!(Parameters, sockets),
    FILES = const offset_of!(Parameters, files),
    FILES_LEN = const FILES,
    SHARED = const FILES - 1,
    FILE = const size_of::<Received>(),
    DESCRIPTOR = const offset_of!(Received, descriptor),
    RESULT = const offset_of!(Parameters, result),
    MESSAGE = const offset_of!(Parameters, message),
    DONE = const offset_of!(Parameters, done),
    FRAME = const offset_of!(Parameters, frame),
    SECONDS = const SECONDS,
    TIME = const offset_of!(Parameters, time),
    UNBLOCKED = const offset_of!(Parameters, unblocked),
    BLOCK = const libc::SIG_BLOCK,
    UNBLOCK = const libc::SIG_UNBLOCK,
    RT_SIGPROCMASK = const libc::SYS_rt_sigprocmask,
    CLOCK = const libc::CLOCK_MONOTONIC,
    CLOCK_GETTIME = const libc::SYS_clock_gettime,
    MADE = const MADE,
    LOADED = const LOADED,
    FAILED = const FAILED,
    MXCSR = const 0x1f80,
    STACK = const STACK,
    WRITTEN = const STACK + UPPER,
    NEW_STACK = const NEW_STACK,
    PARAMETERS = const PARAMETERS,
    AREA = const AREA,
    READ_WRITE = const libc::PROT_READ | libc::PROT_WRITE,
    DETACHED = const libc::PTHREAD_CREATE_DETACHED,
    MPROTECT = const libc::SYS_mprotect,
    MUNMAP = const libc::SYS_munmap,
    CLOSE = const libc::SYS_close,
    GETTID = const libc::SYS_gettid,
    SCHED_YIELD = const libc::SYS_sched_yield,
    RT_SIGRETURN = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    static fgraph_attach_stub: u8;
    static fgraph_attach_call: u8;
    static fgraph_attach_load: u8;
    static fgraph_attach_leave: u8;
    static fgraph_attach_stub_end: u8;
}

/// Returns the instructions, which run at any address.
pub(crate) fn code() -> &'static [u8] {
    let (start, end) = (
        &raw const fgraph_attach_stub,
        &raw const fgraph_attach_stub_end,
    );
    // SAFETY: the two labels enclose these bytes.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// Step of the new thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Make a system call.
    Call,
    /// Load the library, and call its function.
    Load,
    /// Release everything, and end.
    Leave,
}

impl Step {
    /// Returns the offset from the start of the code.
    pub(crate) fn at(self) -> u64 {
        let at = match self {
            Self::Call => &raw const fgraph_attach_call,
            Self::Load => &raw const fgraph_attach_load,
            Self::Leave => &raw const fgraph_attach_leave,
        };
        (at.addr() - (&raw const fgraph_attach_stub).addr()) as u64
    }
}

/// Upper part of the area, from [`Parameters`] on.
#[derive(Debug)]
pub(crate) struct Area {
    bytes: Vec<u8>,
}

impl Area {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; size_of::<Parameters>()],
        }
    }

    /// Adds bytes. Returns their offset from the start.
    pub(crate) fn add(&mut self, bytes: &[u8], align: usize) -> u64 {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(align), 0);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at as u64
    }

    /// Returns all bytes, or an error if there is no room for them.
    pub(crate) fn finish(mut self, parameters: &Parameters) -> io::Result<Vec<u8>> {
        // SAFETY: `Parameters` consists of numbers without padding.
        let bytes = unsafe { bytes_of(parameters) };
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        match self.bytes.len() as u64 <= UPPER {
            true => Ok(self.bytes),
            false => Err(io::ErrorKind::ArgumentListTooLong.into()),
        }
    }

    /// Adds a signal frame that leads back to `state`, behind the address `restorer` of the
    /// instructions that return by it. Returns the stack pointer for returning by it, for an area
    /// at `base`, a multiple of 64.
    pub(crate) fn add_frame(&mut self, state: &State, base: u64, restorer: u64) -> u64 {
        let extended = self.add(&extended_frame(&state.extended), 64);
        self.add(&[0; 8], 16);
        self.add(&restorer.to_le_bytes(), 8);
        // SAFETY: the context consists of plain numbers and pointers, for which zeros are valid.
        let mut context: libc::ucontext_t = unsafe { mem::zeroed() };
        // The alternate stack stays as it is, because these flags are no valid state.
        context.uc_stack.ss_flags = !0;
        // Both selectors must be restored unchanged: `UC_FP_XSTATE`, `UC_SIGCONTEXT_SS` and
        // `UC_STRICT_RESTORE_SS`.
        context.uc_flags = 0b111;
        let general = resumed(&state.general);
        let set = |index: i32, value: u64| context.uc_mcontext.gregs[index as usize] = value as i64;
        fill(&general, set);
        context.uc_mcontext.fpregs =
            std::ptr::with_exposed_provenance_mut((base + extended) as usize);
        // SAFETY: numbers and pointers; padding is zero since the context was zeroed.
        let mut bytes = unsafe { bytes_of(&context) }.to_vec();
        let mask = offset_of!(libc::ucontext_t, uc_sigmask);
        bytes[mask..mask + 8].copy_from_slice(&state.blocked.to_le_bytes());
        base + self.add(&bytes, 16)
    }
}

/// Makes a signal frame for the thread's own stack, below `end`. Returns its start, its bytes, and
/// the address in it of the pointer to `restorer`, which a `ret` uses.
pub(crate) fn frame_below(end: u64, state: &State, restorer: u64) -> (u64, Vec<u8>, u64) {
    let frame_at = |base| {
        let mut area = Area { bytes: Vec::new() };
        let frame = area.add_frame(state, base, restorer);
        (area.bytes, frame)
    };
    let len = frame_at(0).0.len() as u64;
    let base = end.saturating_sub(len) & !63;
    let (bytes, frame) = frame_at(base);
    (base, bytes, frame - 8)
}

/// # Safety
///
/// `T` must have no bytes that are not initialised.
unsafe fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: all bytes are initialised, as the caller says.
    unsafe { slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn fill(general: &user_regs_struct, mut set: impl FnMut(i32, u64)) {
    let values = [
        (libc::REG_R8, general.r8),
        (libc::REG_R9, general.r9),
        (libc::REG_R10, general.r10),
        (libc::REG_R11, general.r11),
        (libc::REG_R12, general.r12),
        (libc::REG_R13, general.r13),
        (libc::REG_R14, general.r14),
        (libc::REG_R15, general.r15),
        (libc::REG_RDI, general.rdi),
        (libc::REG_RSI, general.rsi),
        (libc::REG_RBP, general.rbp),
        (libc::REG_RBX, general.rbx),
        (libc::REG_RDX, general.rdx),
        (libc::REG_RAX, general.rax),
        (libc::REG_RCX, general.rcx),
        (libc::REG_RSP, general.rsp),
        (libc::REG_RIP, general.rip),
        (libc::REG_EFL, general.eflags),
        // The selectors cs, gs, fs and ss.
        (libc::REG_CSGSFS, general.cs | general.ss << 48),
    ];
    for (index, value) in values {
        set(index, value);
    }
}

/// Returns the registers of a thread that continues by itself: an interrupted system call is
/// restarted. A call that cannot be restarted, because only the kernel knows its remaining time,
/// ends with `EINTR`.
fn resumed(general: &user_regs_struct) -> user_regs_struct {
    let mut resumed = *general;
    if (general.orig_rax as i64) < 0 {
        return resumed;
    }
    match -(general.rax as i64) {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => {
            resumed.rax = general.orig_rax;
            resumed.rip -= SYSCALL_LEN;
        }
        ERESTART_RESTARTBLOCK => resumed.rax = -i64::from(libc::EINTR) as u64,
        _ => {}
    }
    resumed
}

/// Offset in a signal frame of the description of the extended state.
const SOFTWARE: usize = 464;
const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;

/// Returns the extended state in the layout of a signal frame.
fn extended_frame(extended: &[u8]) -> Vec<u8> {
    let mut frame = extended.to_vec();
    if frame.len() < SOFTWARE + 48 {
        return frame;
    }
    // `ptrace` reports there which components the kernel saves.
    let components: [u8; 8] = frame[SOFTWARE..SOFTWARE + 8]
        .try_into()
        .expect("eight bytes");
    let len = frame.len() as u32;
    frame[SOFTWARE..SOFTWARE + 4].copy_from_slice(&MAGIC1.to_le_bytes());
    frame[SOFTWARE + 4..SOFTWARE + 8].copy_from_slice(&(len + 4).to_le_bytes());
    frame[SOFTWARE + 8..SOFTWARE + 16].copy_from_slice(&components);
    frame[SOFTWARE + 16..SOFTWARE + 20].copy_from_slice(&len.to_le_bytes());
    frame.extend(MAGIC2.to_le_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_can_be_made_anew_is() {
        // SAFETY: registers are plain numbers, for which zeros are valid.
        let mut general: user_regs_struct = unsafe { mem::zeroed() };
        general.rip = 0x1002;
        general.orig_rax = libc::SYS_read as u64;
        general.rax = -ERESTARTSYS as u64;
        let read = resumed(&general);
        assert_eq!((read.rip, read.rax), (0x1000, libc::SYS_read as u64));
        general.rax = -ERESTART_RESTARTBLOCK as u64;
        let sleep = resumed(&general);
        assert_eq!((sleep.rip, sleep.rax as i64), (0x1002, -4));
        // The thread is in no system call, so the number in rax has no meaning.
        general.orig_rax = u64::MAX;
        general.rax = -ERESTARTSYS as u64;
        let running = resumed(&general);
        assert_eq!((running.rip, running.rax as i64), (0x1002, -512));
    }

    #[test]
    fn the_code_has_room() {
        assert!(code().len() as u64 <= PAGE);
        let steps = [Step::Call, Step::Load, Step::Leave].map(Step::at);
        assert!(steps.is_sorted() && steps[2] < code().len() as u64);
    }
}
