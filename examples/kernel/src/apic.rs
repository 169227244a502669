//! The local APIC of each processor: its timer, and interrupts from one processor to another.

use core::hint;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::boot;
use crate::clock;
use crate::cpu::{self, PROCESSORS};
use crate::memory;
use crate::port;

/// Vector of the timer.
pub(crate) const TIMER: u8 = 0x40;
/// Vector of the interrupt that makes a processor serialize.
pub(crate) const BARRIER: u8 = 0x41;
/// Vector of the queue's device.
pub(crate) const DEVICE: u8 = 0x42;
/// Vector of interrupts that were withdrawn.
pub(crate) const SPURIOUS: u8 = 0xff;

/// Nanoseconds from one interrupt of the timer to the next.
const PERIOD: u64 = 100_000;

const REGISTERS: usize = 0xfee0_0000;
const END_OF_INTERRUPT: usize = 0xb0;
/// The first of eight registers, 16 bytes apart, with a bit for each interrupt that is handled.
const IN_SERVICE: usize = 0x100;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND: usize = 0x300;
const DESTINATION: usize = 0x310;
const TIMER_VECTOR: usize = 0x320;
const TIMER_INITIAL: usize = 0x380;
const TIMER_CURRENT: usize = 0x390;
const TIMER_DIVISOR: usize = 0x3e0;

const PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const NMI: u32 = 4 << 8;
const INIT: u32 = 5 << 8;
const STARTUP: u32 = 6 << 8;

/// Steps of the timer between two of its interrupts.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// The times at which the processors' next interrupts are due.
static DUE: [AtomicU64; PROCESSORS] = [const { AtomicU64::new(0) }; PROCESSORS];

fn register(offset: usize) -> *mut u32 {
    memory::direct(REGISTERS + offset) as *mut u32
}

fn read(offset: usize) -> u32 {
    // SAFETY: a register of the device, which is mapped.
    unsafe { register(offset).read_volatile() }
}

fn write(offset: usize, value: u32) {
    // SAFETY: a register of the device, which is mapped.
    unsafe { register(offset).write_volatile(value) };
}

/// Maps the registers, silences the older interrupt controllers, and measures the timer.
pub(crate) fn prepare() {
    // SAFETY: the address is that of the device; all inputs of the old controllers are masked.
    unsafe {
        memory::map(memory::direct(REGISTERS), REGISTERS, memory::Use::Device);
        port::write(0x21, 0xff);
        port::write(0xa1, 0xff);
    }
    enable();
    write(TIMER_DIVISOR, 3);
    write(TIMER_VECTOR, 1 << 16);
    write(TIMER_INITIAL, u32::MAX);
    clock::measure();
    let steps = u64::from(u32::MAX - read(TIMER_CURRENT));
    // The clock is measured for 10 ms.
    STEPS.store(steps * PERIOD / 10_000_000, Ordering::Relaxed);
}

/// Lets the running processor have interrupts.
pub(crate) fn enable() {
    write(SPURIOUS_VECTOR, 0x100 | u32::from(SPURIOUS));
}

/// Lets the running processor's timer interrupt once, a period from now. A timer that repeats could
/// leave a slow machine no time for tasks.
pub(crate) fn start_timer() {
    DUE[cpu::number()].store(clock::now() + PERIOD, Ordering::Relaxed);
    write(TIMER_DIVISOR, 3);
    write(TIMER_VECTOR, u32::from(TIMER));
    write(TIMER_INITIAL, STEPS.load(Ordering::Relaxed) as u32);
}

/// Returns the nanoseconds since the timer's last interrupt was due.
pub(crate) fn since_due() -> u64 {
    clock::now().saturating_sub(DUE[cpu::number()].load(Ordering::Relaxed))
}

/// Ends the handling of an interrupt.
pub(crate) fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Ends the interrupts whose handlers a fault has cut off, and starts the timer, which they may not
/// have done.
pub(crate) fn recover() {
    let is_any = || (0..8).any(|nth| read(IN_SERVICE + 0x10 * nth) != 0);
    while is_any() {
        end_of_interrupt();
    }
    start_timer();
}

/// Sends a command to another processor.
fn send(processor: usize, command: u32) {
    // The register has two halves.
    cpu::without_interrupts(|| {
        while read(COMMAND) & PENDING != 0 {
            hint::spin_loop();
        }
        write(DESTINATION, (processor as u32) << 24);
        write(COMMAND, ASSERT | command);
    });
}

/// Interrupts a processor.
pub(crate) fn interrupt(processor: usize, vector: u8) {
    send(processor, u32::from(vector));
}

/// Interrupts a processor even where it has disabled interrupts.
pub(crate) fn send_nmi(processor: usize) {
    send(processor, NMI);
}

/// Starts the second processor, at [`boot::AP_PAGE`].
pub(crate) fn start_second() {
    let code = boot::ap_code();
    // SAFETY: the page is free, and the code is bytes.
    unsafe {
        let to = memory::direct(boot::AP_PAGE) as *mut u8;
        to.copy_from_nonoverlapping(code.start as *const u8, code.len());
    }
    boot::prepare_ap();
    send(1, INIT);
    clock::wait(10_000_000);
    let page = (boot::AP_PAGE >> 12) as u32;
    for _ in 0..2 {
        send(1, STARTUP | page);
        clock::wait(200_000);
    }
}
