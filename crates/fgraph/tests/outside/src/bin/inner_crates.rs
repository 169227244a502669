//! The inner crates give nobody the slots, the states of threads, or what handlers of traps follow.

#![forbid(unsafe_code)]

use fgraph_core::{FGRAPH, replacement};
use fgraph_core::registration::Header;
use fgraph_core::stacks::machine::Stack;
use fgraph_core::thread::{StackProvider, Thread};
use fgraph_x86_64::{trampoline, trap};

static PROVIDER: StackProvider = StackProvider {
    find: |_, _, _| true,
    is_alternate: |_| true,
    are_on_one: |_, _, _| true,
    is_gone: |_, _| true,
    caller: |_, _| None,
};

extern "C" fn attach() -> *const Thread {
    8 as *const Thread
}

extern "C" fn abort(_: *const fgraph_core::frame::Frame, _: usize) -> ! {
    std::process::exit(1)
}

fn main() {
    let guarded = FGRAPH.get(); //~ E0133
    guarded.slots.publish(0, 8 as *const Header); //~ E0133
    guarded.set_stacks(&PROVIDER); //~ E0133
    guarded.points.set_span(4096); //~ E0133
    guarded.points.add(8); //~ E0133
    guarded.wait_for_grace(0, |thread| thread.enter_thread_stack()); //~ E0133
    guarded.is_grace_over(0, |thread| thread.low.take() != 0); //~ E0133
    guarded.threads.iter().for_each(|thread| thread.low.set(0)); //~ E0133
    drop(Thread::new()); //~ E0133
    drop(Thread::always_inside()); //~ E0133
    drop(Stack::new()); //~ E0133
    trampoline::install(attach, abort); //~ E0133
    trampoline::attaching(); //~ E0133
    trampoline::disable_cancellation(); //~ E0133
    trampoline::trust_announcements(); //~ E0133
    replacement::set_must_run(0); //~ E0133
    trampoline::set_current(8 as *const Thread); //~ E0133
    trap::TRAP_RANGES.set(std::ptr::dangling_mut()); //~ E0133
    trap::TRAP_RANGES.push(trap::TrapRange::new(&[], 5)); //~ E0133
    trap::CHAIN.set(std::ptr::dangling_mut()); //~ E0133
}
