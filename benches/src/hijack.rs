//! For comparison only: a trampoline that replaces the return address.
//!
//! The kernel, Gum and uftrace work in this way. Everything else is as in fgraph: the same saved
//! registers (with AVX-512 16 bytes of each vector, as fgraph saves unless an argument is wider,
//! but without fgraph's check for that), the same [`enter`] and [`leave`], the same shadow stack,
//! the same users. There is one difference: fgraph calls the body, and this one overwrites the
//! return address with the address of a handler and jumps to the body. The difference in time is
//! the price of returns that the processor does not predict, and of finding the frame without rbp.
//!
//! No unwinder gets through such a call; nothing here may panic.
//!
//! # Safety
//!
//! The trampolines run for [functions](crate::functions) that are written for them, in threads
//! whose state fgraph has made; in other threads the call is not traced.

use core::arch::global_asm;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use fgraph_core::Fgraph;
use fgraph_core::MAX_USERS;
use fgraph_core::dispatch::{enter, leave};
use fgraph_core::frame::Frame;
use fgraph_core::grace::HazardSlot;
use fgraph_core::regs::{EntryRegs, ReturnRegs};
use fgraph_core::site::{Module, Site, SiteName, module};
use fgraph_core::thread::Thread;
use fgraph_x86_64::cpu;
use fgraph_x86_64::stub::SITE_LEN;

use crate::functions::{Function, Variant};

/// Sites of the functions, null until the first [`Hijack`].
static LEAF: AtomicPtr<Site> = AtomicPtr::new(ptr::null_mut());
static RECURSIVE: AtomicPtr<Site> = AtomicPtr::new(ptr::null_mut());
/// Address that the stubs jump to.
static TRAMPOLINE: AtomicUsize = AtomicUsize::new(0);

static MODULE: Module = module("hijack", &());

/// Way in which the handler returns to the caller.
///
/// The return of the body has used up the prediction for the return to the caller, and was
/// mispredicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Like the kernel's `return_to_handler`: by the return of a call made for the purpose. That
    /// return is always mispredicted, but all further returns are predicted rightly.
    Balanced,
    /// Like uftrace's `mcount_return`: by a plain return. It uses up the prediction for the
    /// caller's own return, which then has none. A loop that makes calls and never returns does not
    /// show that.
    Plain,
}

// SAFETY: this is a part of the runtime of this process, and uses the shared state like dispatch.
static FGRAPH: &Fgraph = unsafe { fgraph_core::FGRAPH.get() };

/// While it lives, the hijacked variants of the functions are traced for one user.
#[derive(Debug)]
pub struct Hijack(());

impl Hijack {
    /// Traces for the only user that is registered with fgraph. Drop this before unregistering the
    /// user.
    ///
    /// # Panics
    ///
    /// Panics if there is no user.
    pub fn of_the_only_user(handler: Handler) -> Self {
        let mark = HazardSlot::new();
        let slot = (0..MAX_USERS)
            .find(|&slot| !FGRAPH.slots.is_stub(FGRAPH.slots.acquire(&mark, slot)))
            .expect("a user is registered");
        prepare();
        TRAMPOLINE.store(trampoline(handler), Ordering::Relaxed);
        for function in Function::ALL {
            site(function).interest.store(1 << slot, Ordering::Relaxed);
        }
        Self(())
    }
}

/// Makes the hijacked variants ready for calls, traced or not.
pub(crate) fn prepare() {
    if TRAMPOLINE.load(Ordering::Acquire) == 0 {
        for function in Function::ALL {
            site(function);
        }
        TRAMPOLINE.store(trampoline(Handler::Balanced), Ordering::Release);
    }
}

impl Drop for Hijack {
    fn drop(&mut self) {
        for function in Function::ALL {
            site(function).interest.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns the site of a function's hijacked variant. It is made once, because running calls may
/// use it.
fn site(function: Function) -> &'static Site {
    let place = match function {
        Function::Leaf => &LEAF,
        Function::Recursive => &RECURSIVE,
    };
    // SAFETY: null, or leaked below.
    if let Some(site) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        return site;
    }
    let entry = function.entry(Variant::Hijacked) as *const () as usize;
    let site = Box::leak(Box::new(Site {
        entry,
        body: entry + SITE_LEN,
        interest: AtomicU16::new(0),
        lead: 0,
        state: AtomicU8::new(0),
        inner: [0; 4],
        name: SiteName::new(function.name()),
        index: 0,
        module: &MODULE,
        stub: 0,
        runtime: AtomicU64::new(0),
    }));
    place.store(site, Ordering::Release);
    site
}

/// Defines a stub, which a site jumps to; it costs the same as fgraph's stubs.
macro_rules! stub {
    ($name:literal, $site:ident) => {
        global_asm!(
            ".pushsection .text.fgraph_bench_hijack, \"ax\", @progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            "mov r11, [rip + {site}]",
            "jmp qword ptr [rip + {trampoline}]",
            ".popsection",
            site = sym $site,
            trampoline = sym TRAMPOLINE,
        );
    };
}

stub!("fgraph_bench_hijacked_leaf_stub", LEAF);
stub!("fgraph_bench_hijacked_recursive_stub", RECURSIVE);

/// Moves of the vector registers `$n` to their slots.
macro_rules! store {
    ($base:literal, $mov:literal, $reg:literal, $width:literal $(, $n:literal)*) => {
        concat!($(
            $mov, " ", $width, " ptr [rsp + {", $base, "} + 64*", $n, "], ", $reg, $n, "\n"
        ),*)
    };
}

/// Moves of the vector registers `$n` from their slots.
macro_rules! load {
    ($base:literal, $mov:literal, $reg:literal, $width:literal $(, $n:literal)*) => {
        concat!($(
            $mov, " ", $reg, $n, ", ", $width, " ptr [rsp + {", $base, "} + 64*", $n, "]\n"
        ),*)
    };
}

/// Defines the return of [`Handler::Balanced`].
macro_rules! balanced {
    () => {
        "call 60f
         int3
         60:
         mov [rsp], rcx
         ret"
    };
}

/// Defines the return of [`Handler::Plain`].
macro_rules! plain {
    () => {
        "push rcx
         ret"
    };
}

/// One trampoline, which moves vector registers with `$mov`.
macro_rules! trampoline {
    ($name:ident, $mov:literal, $reg:literal, $width:literal, $return_to_rcx:expr) => {
        global_asm!(
            ".pushsection .text.fgraph_bench_hijack, \"ax\", @progbits",
            ".p2align 6",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(stringify!($name), ":"),
            "push rbx",
            "mov rbx, rsp",
            "and rsp, -64",
            "sub rsp, {entry_regs}",
            "mov [rsp + {int}], rdi",
            "mov [rsp + {int} + 8], rsi",
            "mov [rsp + {int} + 16], rdx",
            "mov [rsp + {int} + 24], rcx",
            "mov [rsp + {int} + 32], r8",
            "mov [rsp + {int} + 40], r9",
            "mov [rsp + {scratch}], rax",
            "mov [rsp + {scratch} + 8], r10",
            "mov [rsp + {site}], r11",
            "mov rdx, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov rdx, fs:[rdx]",
            "test rdx, rdx",
            "jz 41f",
            "cmp qword ptr [rdx + {entered_sp}], 0",
            "jne 41f",
            "mov [rdx + {entered_sp}], rsp",
            store!("vector", $mov, $reg, $width, 0, 1, 2, 3, 4, 5, 6, 7),
            "mov [rsp + {link}], rbx",
            "mov [rsp + {thread}], rdx",
            "mov rdi, rsp",
            "mov rsi, r11",
            "lea rcx, [rbx + 8]",
            "call {enter}",
            load!("vector", $mov, $reg, $width, 0, 1, 2, 3, 4, 5, 6, 7),
            "mov rdi, [rsp + {int}]",
            "mov rsi, [rsp + {int} + 8]",
            "mov r8, [rsp + {int} + 32]",
            "mov r9, [rsp + {int} + 40]",
            "mov r10, [rsp + {scratch} + 8]",
            "mov r11, [rsp + {site}]",
            "test rax, rax",
            "jz 40f",
            "mov rcx, [rbx + 8]",
            "mov [rax], rbp",
            "mov [rax + 8], rcx",
            // The difference to fgraph: the body will return to the handler.
            "lea rcx, [rip + 50f]",
            "mov [rbx + 8], rcx",
            "40:",
            "mov rdx, [rsp + {int} + 16]",
            "mov rcx, [rsp + {int} + 24]",
            "41:",
            "mov rax, [rsp + {scratch}]",
            "mov rsp, rbx",
            "pop rbx",
            "jmp qword ptr [r11 + {body}]",
            // The handler. rsp is the value that the caller gets back; the return address stood
            // below it.
            ".p2align 6",
            "50:",
            "sub rsp, {return_regs}",
            "mov [rsp + {result}], rax",
            "mov [rsp + {result} + 8], rdx",
            store!("result_vector", $mov, $reg, $width, 0, 1),
            "mov rsi, qword ptr [rip + fgraph_thread@GOTTPOFF]",
            "mov rsi, fs:[rsi]",
            "mov [rsi + {entered_sp}], rsp",
            "mov [rsp + {result_thread}], rsi",
            "mov dword ptr [rsp + {how}], 0",
            "mov rdi, rsp",
            "call {leave}",
            "mov rcx, rax",
            load!("result_vector", $mov, $reg, $width, 0, 1),
            "mov rax, [rsp + {result}]",
            "mov rdx, [rsp + {result} + 8]",
            "add rsp, {return_regs}",
            $return_to_rcx,
            ".popsection",
            enter = sym hijack_enter,
            leave = sym hijack_leave,
            entry_regs = const size_of::<EntryRegs>().next_multiple_of(64),
            return_regs = const size_of::<ReturnRegs>(),
            vector = const offset_of!(EntryRegs, vector),
            int = const offset_of!(EntryRegs, int),
            scratch = const offset_of!(EntryRegs, scratch),
            site = const offset_of!(EntryRegs, site),
            link = const offset_of!(EntryRegs, link),
            thread = const offset_of!(EntryRegs, thread),
            result_vector = const offset_of!(ReturnRegs, vector),
            result = const offset_of!(ReturnRegs, int),
            result_thread = const offset_of!(ReturnRegs, thread),
            how = const offset_of!(ReturnRegs, how),
            entered_sp = const offset_of!(Thread, entered_sp),
            body = const offset_of!(Site, body),
        );
    };
}

/// Defines the trampolines of both handlers, by the bytes of a vector register that are saved.
macro_rules! trampolines {
    ($($bytes:pat, $mov:literal $reg:literal $width:literal, $balanced:ident $plain:ident;)*) => {
        $(
            trampoline!($balanced, $mov, $reg, $width, balanced!());
            trampoline!($plain, $mov, $reg, $width, plain!());
        )*

        unsafe extern "C" {
            $(
                fn $balanced();
                fn $plain();
            )*
        }

        /// Returns the trampoline that saves the same registers as fgraph's own on this machine.
        fn trampoline(handler: Handler) -> usize {
            let trampoline: unsafe extern "C" fn() = match (cpu::vector_bytes(), handler) {
                $(
                    ($bytes, Handler::Balanced) => $balanced,
                    ($bytes, Handler::Plain) => $plain,
                )*
            };
            trampoline as *const () as usize
        }
    };
}

trampolines! {
    64, "vmovups" "xmm" "xmmword",
        fgraph_bench_hijack_balanced_avx512 fgraph_bench_hijack_plain_avx512;
    32, "vmovups" "ymm" "ymmword",
        fgraph_bench_hijack_balanced_avx fgraph_bench_hijack_plain_avx;
    _, "movups" "xmm" "xmmword",
        fgraph_bench_hijack_balanced_sse fgraph_bench_hijack_plain_sse;
}

/// Called by the trampolines at entry.
unsafe extern "C" fn hijack_enter(
    regs: *mut EntryRegs,
    site: &Site,
    thread: &Thread,
    slot: usize,
) -> *mut Frame {
    let (users, stamp) = FGRAPH.wanting(site, thread);
    // SAFETY: the trampoline passes the registers it has saved, the site that was hit, and the
    // state of this thread, which it has marked.
    unsafe { enter(regs, site, thread, slot, users, stamp) }
}

/// Called by the trampolines at return; returns the true return address.
unsafe extern "C" fn hijack_leave(regs: *mut ReturnRegs, thread: &Thread) -> usize {
    // The body has returned, and its frame must be found. No traced call here is left without
    // returning, so it is the newest one.
    let frame = thread.shadow.newest();
    // SAFETY: the trampoline passes the results it has saved and the state of this thread, which it
    // has marked; the frame is on its shadow stack.
    let return_address = unsafe {
        (*regs).frame = frame;
        leave(regs, frame, thread);
        // Dropped, but not written to while the thread is marked.
        (*frame).return_address
    };
    thread.entered_sp.store(0, Ordering::Release);
    return_address
}
