//! Processors: their numbers, special registers, segments, and locks between them.

use core::arch::{asm, naked_asm};
use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// The number of processors.
pub(crate) const PROCESSORS: usize = 2;

/// Selector of the kernel's code.
pub(crate) const CODE: u16 = 8;

const FS_BASE: u32 = 0xc000_0100;
const GS_BASE: u32 = 0xc000_0101;

/// Interrupt stacks of a processor, by their number in the TSS. Handlers leave them at once: see
/// `interrupts.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ist {
    /// For interrupts.
    Interrupt = 1,
    /// For NMIs.
    Nmi = 2,
    /// For faults that a stack without room may have caused.
    Fault = 3,
}

const IST_STACK: usize = 16 << 10;

#[repr(C, align(16))]
struct IstStack(UnsafeCell<[u8; IST_STACK]>);

// SAFETY: only the processor itself uses the stack, and no Rust code the memory as bytes.
unsafe impl Sync for IstStack {}

static IST_STACKS: [[IstStack; 3]; PROCESSORS] =
    [const { [const { IstStack(UnsafeCell::new([0; IST_STACK])) }; 3] }; PROCESSORS];

#[repr(C, packed(4))]
struct Tss {
    reserved: u32,
    stacks: [u64; 3],
    reserved_too: u64,
    ist: [u64; 7],
    reserved_three: [u16; 5],
    io_map: u16,
}

/// A processor's own data; `gs` leads to it.
#[repr(C)]
struct Processor {
    /// The number, from 0. The first field, so that it is at the base of `gs`.
    number: u64,
    gdt: UnsafeCell<[u64; 5]>,
    tss: UnsafeCell<Tss>,
}

// SAFETY: only the processor itself uses its cells, and only before it handles interrupts.
unsafe impl Sync for Processor {}

static PROCESSOR: [Processor; PROCESSORS] = [processor(0), processor(1)];

const fn processor(number: u64) -> Processor {
    Processor {
        number,
        gdt: UnsafeCell::new([0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0]),
        tss: UnsafeCell::new(Tss {
            reserved: 0,
            stacks: [0; 3],
            reserved_too: 0,
            ist: [0; 7],
            reserved_three: [0; 5],
            io_map: size_of::<Tss>() as u16,
        }),
    }
}

/// A pointer to a table of the processor, for the instructions that load one.
#[repr(C, packed)]
pub(crate) struct TablePointer {
    /// Bytes of the table, minus one.
    pub(crate) limit: u16,
    /// Address of the table.
    pub(crate) base: u64,
}

/// Loads segments, interrupt stacks and the base of `gs` of the running processor.
pub(crate) fn prepare(number: usize) {
    let processor = &PROCESSOR[number];
    // SAFETY: the processor has just started, and nothing else uses what is its own. The segments
    // are flat, and those that it runs with.
    unsafe {
        let tss = processor.tss.get();
        for (nth, stack) in IST_STACKS[number].iter().enumerate() {
            (*tss).ist[nth] = (stack.0.get().addr() + IST_STACK) as u64;
        }
        let (base, limit) = (tss.addr() as u64, size_of::<Tss>() as u64 - 1);
        let gdt = processor.gdt.get();
        // An available TSS, whose base is in four places.
        (*gdt)[3] = limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        (*gdt)[4] = base >> 32;
        let pointer = TablePointer {
            limit: size_of_val(&*gdt) as u16 - 1,
            base: gdt.addr() as u64,
        };
        asm!(
            "lgdt [{pointer}]",
            "ltr {tss:x}",
            pointer = in(reg) &pointer,
            tss = in(reg) 24_u16,
            options(nostack),
        );
        write_msr(GS_BASE, (&raw const *processor).addr() as u64);
    }
}

/// Returns the number of the running processor, from 0. It may be another one right after, unless
/// interrupts are disabled.
#[inline(always)]
pub(crate) fn number() -> usize {
    let number: u64;
    // SAFETY: `gs` leads to the processor's own structure, which begins with its number.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) number, options(readonly, nostack, preserves_flags));
    }
    number as usize
}

/// Writes a model-specific register.
///
/// # Safety
///
/// The value must be one with which all code keeps working.
#[inline(always)]
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nostack, preserves_flags));
    }
}

/// Sets the base of `fs`, which leads to the running task's thread-local storage.
///
/// # Safety
///
/// It must be the storage of the task that runs, or is about to run with interrupts disabled.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(base: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe { write_msr(FS_BASE, base as u64) };
}

/// Returns the base of `fs`.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let (low, high): (u32, u32);
    // SAFETY: reads a register.
    unsafe {
        asm!("rdmsr", in("ecx") FS_BASE, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    (u64::from(high) << 32 | u64::from(low)) as usize
}

/// Returns true if interrupts are enabled.
#[inline(always)]
pub(crate) fn interrupts_are_enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & 1 << 9 != 0
}

/// Disables interrupts.
#[inline(always)]
pub(crate) fn disable_interrupts() {
    // SAFETY: code runs on until interrupts are enabled again.
    unsafe { asm!("cli", options(nostack)) };
}

/// Enables interrupts.
///
/// # Safety
///
/// An interrupt must do no harm to the running code.
#[inline(always)]
pub(crate) unsafe fn enable_interrupts() {
    // SAFETY: the caller keeps the contract.
    unsafe { asm!("sti", options(nostack)) };
}

/// Runs `work` with interrupts disabled.
#[inline(always)]
pub(crate) fn without_interrupts<R>(work: impl FnOnce() -> R) -> R {
    let were_enabled = interrupts_are_enabled();
    disable_interrupts();
    let result = work();
    if were_enabled {
        // SAFETY: they were enabled before.
        unsafe { enable_interrupts() };
    }
    result
}

/// Waits for an interrupt; enables interrupts before, in one step.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: called by idle tasks, which may be interrupted.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Makes the running processor forget all instructions that it has fetched.
#[inline(always)]
#[allow(unused_unsafe, reason = "newer compilers know that it is safe")]
pub(crate) fn serialize() {
    // SAFETY: every processor of this architecture has the instruction, which serializes.
    let _ = unsafe { core::arch::x86_64::__cpuid(0) };
}

/// Returns the address of the last page fault.
pub(crate) fn fault_address() -> usize {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Returns the caller's frame pointer.
#[inline(always)]
pub(crate) fn frame_pointer() -> usize {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}

/// Stops the running processor.
pub(crate) fn halt() -> ! {
    disable_interrupts();
    loop {
        // SAFETY: nothing runs on this processor any more, except NMIs.
        unsafe { asm!("hlt", options(nomem, nostack)) };
    }
}

/// Stores the callee-saved registers on the stack and the stack pointer at rdi, and continues with
/// the stack rsi and the thread-local storage rdx.
///
/// # Safety
///
/// Interrupts are disabled. `to` was stored by this function, or is a stack that
/// [`Stack::prepare`](crate::tasks) has made; `storage` belongs to the same task.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(from: *mut usize, to: usize, storage: usize) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        // An NMI between the two finds a state whose stack is another one: its calls are counted.
        "mov rsp, rsi",
        "mov ecx, {fs_base}",
        "mov eax, edx",
        "shr rdx, 32",
        "wrmsr",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        fs_base = const FS_BASE,
    )
}

/// A value that one processor at a time uses, with interrupts disabled. NMI handlers must not use
/// it.
pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one processor at a time use the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Disables interrupts and takes the lock.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let were_enabled = interrupts_are_enabled();
        disable_interrupts();
        // Acquire pairs with the Release in `unlock`: the value is as the last owner left it.
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
        }
        Locked {
            lock: self,
            were_enabled,
        }
    }

    /// Releases the lock, and leaves interrupts as they are.
    ///
    /// # Safety
    ///
    /// The running processor has taken the lock, and does not use its guard any more.
    #[inline(always)]
    pub(crate) unsafe fn unlock(&self) {
        // Release pairs with the Acquire in `lock`.
        self.taken.store(false, Ordering::Release);
    }
}

/// A taken lock.
pub(crate) struct Locked<'a, T> {
    lock: &'a Lock<T>,
    were_enabled: bool,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is taken.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is taken, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken by this guard, which ends.
        unsafe {
            self.lock.unlock();
            if self.were_enabled {
                enable_interrupts();
            }
        }
    }
}
