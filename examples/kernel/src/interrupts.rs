//! Interrupts, NMIs and faults.
//!
//! fgraph's trampolines use up to 128 bytes below the stack pointer, as user space allows. The
//! processor would overwrite them: it pushes directly below the stack pointer. So interrupts and
//! NMIs come on a stack of their own. The first instructions move the words that the processor has
//! pushed to the interrupted stack, below those bytes:
//!
//! ```text
//!   interrupted stack                          interrupt stack of the processor
//!     ...                                        ss
//!     <- stack pointer                           rsp
//!     128 bytes of a trampoline                  rflags
//!     ss, rsp, rflags, cs, rip, ...  <---------  cs
//!     registers                                  rip
//!     <- the handler                             error code, vector, rax, rcx
//! ```
//!
//! From there on the interrupt stack is free. So handlers nest like calls, a task may be switched
//! in the middle of one, and their calls are traced as those of the interrupted task.
//!
//! A breakpoint needs no move: it is hit where a function begins, and nothing is below the stack
//! pointer there. Faults stay on their own stack, since the one in use may be full.
//!
//! Nothing in this file is traced: the handler of breakpoints must not hit one.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fgraph_x86_64::trap;

use crate::apic;
use crate::barrier;
use crate::cpu::{self, Ist, TablePointer};
use crate::machine;
use crate::queue;
use crate::serial::println;
use crate::tasks;
use crate::trace::{Places, backtrace, contexts};
use crate::work;

/// The registers of interrupted code, in the order in which `interrupt_direct` pushes them.
#[repr(C)]
#[derive(Debug)]
struct Registers {
    general: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

const BREAKPOINT: u64 = 3;
const NMI: u64 = 2;
const DOUBLE_FAULT: u64 = 8;
const STACK_FAULT: u64 = 12;
const PAGE_FAULT: u64 = 14;
const TIMER: u64 = apic::TIMER as u64;
const BARRIER: u64 = apic::BARRIER as u64;
const DEVICE: u64 = apic::DEVICE as u64;
const SPURIOUS: u64 = apic::SPURIOUS as u64;

/// Vectors and bytes of a gate.
const VECTORS: usize = 256;

struct Gates(UnsafeCell<[[u64; 2]; VECTORS]>);

// SAFETY: written by the first processor before any interrupt, then only read by processors.
unsafe impl Sync for Gates {}

static GATES: Gates = Gates(UnsafeCell::new([[0; 2]; VECTORS]));

/// True while NMIs are sent.
static SENDS_NMIS: AtomicBool = AtomicBool::new(false);
static TICKS: [AtomicU64; cpu::PROCESSORS] = [const { AtomicU64::new(0) }; cpu::PROCESSORS];
static ITEMS: AtomicU64 = AtomicU64::new(0);
/// Breakpoints at which a call has gone on in a stub.
static TRAPS: AtomicU64 = AtomicU64::new(0);

/// True while overflows are not printed.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Prints overflows of stacks, or not.
pub(crate) fn be_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// The places at which NMIs and timer interrupts have come.
pub(crate) static NMI_PLACES: Places = Places::new();
pub(crate) static TIMER_PLACES: Places = Places::new();

/// Lets processors send NMIs to each other, or not.
pub(crate) fn send_nmis(does: bool) {
    SENDS_NMIS.store(does, Ordering::Relaxed);
}

/// Returns the number of breakpoints at which a call has gone on in a stub.
pub(crate) fn traps() -> u64 {
    TRAPS.load(Ordering::Relaxed)
}

/// Makes the gates, which both processors use.
pub(crate) fn prepare() {
    unsafe extern "C" {
        static interrupt_stubs: u8;
    }
    for vector in 0..VECTORS {
        let address = (&raw const interrupt_stubs).addr() + vector * 16;
        let ist = match vector as u64 {
            NMI => Ist::Nmi as u64,
            DOUBLE_FAULT | STACK_FAULT | PAGE_FAULT => Ist::Fault as u64,
            0..32 => 0,
            _ => Ist::Interrupt as u64,
        };
        let address = address as u64;
        let low = address & 0xffff | u64::from(cpu::CODE) << 16 | ist << 32;
        let low = low | 0x8e00 << 32 | (address >> 16 & 0xffff) << 48;
        // SAFETY: no interrupt comes yet.
        unsafe { (*GATES.0.get())[vector] = [low, address >> 32] };
    }
}

/// Lets the running processor use the gates.
pub(crate) fn load() {
    let pointer = TablePointer {
        limit: (VECTORS * 16 - 1) as u16,
        base: GATES.0.get().addr() as u64,
    };
    // SAFETY: the gates lead to the handlers below.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

global_asm!(
    ".pushsection .text.interrupts, \"ax\", @progbits",
    ".p2align 4",
    ".globl interrupt_stubs",
    "interrupt_stubs:",
    ".set vector, 0",
    ".rept 256",
    ".p2align 4",
    // For these the processor pushes an error code.
    ".if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) \
        || (vector == 29) || (vector == 30)",
    ".else",
    "pushq $0",
    ".endif",
    "pushq $vector",
    ".if (vector == 2) || (vector >= 32)",
    "jmp interrupt_moved",
    ".else",
    "jmp interrupt_direct",
    ".endif",
    ".set vector, vector + 1",
    ".endr",
    // Nothing in here hits a breakpoint or a fault, so no NMI comes on the same stack again.
    "interrupt_moved:",
    "pushq %rax",
    "pushq %rcx",
    // The interrupted stack pointer.
    "movq 56(%rsp), %rax",
    "subq $128, %rax",
    "andq $-16, %rax",
    // Nine words; the stack is then aligned as after the processor's own pushes.
    "subq $72, %rax",
    ".irp at,0,8,16,24,32,40,48,56,64",
    "movq \\at(%rsp), %rcx",
    "movq %rcx, \\at(%rax)",
    ".endr",
    "movq %rax, %rsp",
    "popq %rcx",
    "popq %rax",
    "interrupt_direct:",
    ".irp register,rax,rcx,rdx,rbx,rbp,rsi,rdi,r8,r9,r10,r11,r12,r13,r14,r15",
    "pushq %\\register",
    ".endr",
    "cld",
    "movq %rsp, %rdi",
    "callq {handle}",
    ".irp register,r15,r14,r13,r12,r11,r10,r9,r8,rdi,rsi,rbp,rbx,rdx,rcx,rax",
    "popq %\\register",
    ".endr",
    "addq $16, %rsp",
    "iretq",
    ".popsection",
    handle = sym handle,
    options(att_syntax),
);

/// Handles any of them, with interrupts disabled.
extern "C" fn handle(registers: &mut Registers) {
    match registers.vector {
        BREAKPOINT => {
            // The instruction after the breakpoint is the interrupted one.
            let at = registers.rip as usize - 1;
            // SAFETY: the ranges of traps are those that the text writer has set.
            let to = unsafe { trap::resume_address(at, 1) };
            if to == 0 {
                fault(registers, "breakpoint");
            }
            TRAPS.fetch_add(1, Ordering::Relaxed);
            registers.rip = to as u64;
        }
        NMI => {
            NMI_PLACES.count(registers.rip as usize);
            contexts::run(|| work::nmi_work(registers.rip));
        }
        TIMER => {
            TIMER_PLACES.count(registers.rip as usize);
            timer();
        }
        BARRIER => {
            barrier::handle();
            apic::end_of_interrupt();
        }
        DEVICE => {
            apic::end_of_interrupt();
            let item = ITEMS.fetch_add(1, Ordering::Relaxed);
            contexts::run(|| queue::queue_push(item));
        }
        SPURIOUS => {}
        PAGE_FAULT | DOUBLE_FAULT | STACK_FAULT => memory_fault(registers),
        _ => fault(registers, "exception"),
    }
}

fn timer() {
    let processor = cpu::number();
    let late = apic::since_due();
    apic::end_of_interrupt();
    contexts::run(|| work::timer_tick(late));
    let tick = TICKS[processor].fetch_add(1, Ordering::Relaxed);
    let other = 1 - processor;
    if barrier::processors() > 1 {
        if tick.is_multiple_of(3) && SENDS_NMIS.load(Ordering::Relaxed) {
            apic::send_nmi(other);
        }
        if tick % 16 == processor as u64 * 8 {
            apic::interrupt(other, apic::DEVICE);
        }
    }
    apic::start_timer();
    tasks::schedule();
}

/// Ends a task that has no stack left; stops at any other fault.
fn memory_fault(registers: &mut Registers) {
    let address = cpu::fault_address();
    let Some(task) = tasks::overflown(address) else {
        fault(registers, "fault");
    };
    if !IS_QUIET.load(Ordering::Relaxed) {
        println!("task {}: stack overflow", tasks::number(task));
        backtrace::print(registers.rip as usize, registers.general[10] as usize, 3);
    }
    // The stack may have been too small for a handler, which is cut off.
    barrier::handle();
    apic::recover();
    contexts::end_all();
    tasks::exit_by_fault()
}

fn fault(registers: &Registers, what: &str) -> ! {
    println!(
        "FAIL: {what} {} (error {:#x}, address {:#x}) on processor {}",
        registers.vector,
        registers.error,
        cpu::fault_address(),
        cpu::number()
    );
    println!("{registers:#x?}");
    backtrace::print(registers.rip as usize, registers.general[10] as usize, 32);
    machine::leave(false)
}
