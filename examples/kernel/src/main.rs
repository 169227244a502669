//! A kernel that traces its own functions: `fgraph-core` and `fgraph-x86_64` outside of a process.
//!
//! `docs/kernel.md` explains it; `cargo xtask kernel` builds it and runs it in QEMU.
//!
//! It has two processors, preemptive tasks, an allocator, and a queue that interrupts fill. Its
//! runtime for fgraph is in `trace/`, its users are in `users/`, and `scenes.rs` tries them.

#![no_std]
#![no_main]

extern crate alloc;

mod apic;
mod barrier;
mod boot;
mod clock;
mod cpu;
mod heap;
mod interrupts;
mod machine;
mod memory;
mod port;
mod queue;
mod scenes;
mod serial;
mod start;
mod symbols;
mod tasks;
mod trace;
mod users;
mod work;

use core::panic::PanicInfo;
use core::sync::atomic::Ordering;

use scenes::hostile;
use serial::println;
use trace::backtrace;

/// Starts the first processor, with the information that the loader passes.
#[unsafe(no_mangle)]
extern "C" fn start_first(information: usize) -> ! {
    cpu::prepare(0);
    serial::prepare();
    interrupts::prepare();
    interrupts::load();
    println!("kernel: the first processor runs");
    // SAFETY: the loader's, and the first processor is alone.
    let settings = unsafe { start::prepare(information) };
    tasks::prepare(0);
    tasks::prepare_stacks();
    barrier::join();
    let count = trace::prepare();
    println!("trace: {count} functions");
    apic::start_second();
    let started = clock::now();
    while barrier::processors() < cpu::PROCESSORS && clock::now() < started + 1_000_000_000 {
        core::hint::spin_loop();
    }
    println!("processors: {}", barrier::processors());
    if tasks::spawn(move || scenes::run(&settings)).is_none() {
        machine::leave(false);
    }
    apic::start_timer();
    tasks::idle()
}

/// Starts the second processor.
#[unsafe(no_mangle)]
extern "C" fn start_second() -> ! {
    cpu::prepare(1);
    interrupts::load();
    memory::use_kernel_tables();
    apic::enable();
    tasks::prepare(1);
    barrier::join();
    apic::start_timer();
    tasks::idle()
}

#[panic_handler]
fn panic(panic: &PanicInfo<'_>) -> ! {
    let task = tasks::current();
    let is_wanted = hostile::PANICS.load(Ordering::Relaxed) == tasks::number(task);
    println!(
        "{}panic: {}",
        if is_wanted { "" } else { "FAIL: " },
        panic.message()
    );
    if let (false, Some(place)) = (is_wanted, panic.location()) {
        println!("  at {place}");
    }
    backtrace::print_here(32);
    if is_wanted {
        tasks::exit_by_fault();
    }
    machine::leave(false)
}
