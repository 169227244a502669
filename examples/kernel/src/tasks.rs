//! Tasks and the scheduler.
//!
//! A task has a stack, thread-local storage and a place in one run queue for both processors. It is
//! switched with interrupts disabled and the queue's lock taken; the task that comes releases it.
//!
//! ```text
//!   guard page | stack ........................ | thread-local storage | thread pointer
//!              ^ low                            ^ high, the first call is here
//! ```

use alloc::boxed::Box;
use core::hint;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::boot;
use crate::cpu::{self, Lock, PROCESSORS};
use crate::memory::{self, PAGE};

/// The number of tasks, with one idle task for each processor.
pub(crate) const TASKS: usize = 24;
/// Bytes of a task's stack.
pub(crate) const STACK: usize = 64 << 10;
/// The address of the stacks; each takes twice its size of addresses.
const STACKS: usize = 0xffff_b000_0000_0000;
/// Bytes for the thread-local storage above the first call's frame.
pub(crate) const STORAGE: usize = 512;

/// The life of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Ready,
    Running,
    /// Waits for a wake-up of this address.
    Waiting(usize),
    /// It has ended, and may still be on its stack.
    Ended,
}

/// The scheduler's view of a task.
struct Task {
    stage: Stage,
    /// The stack pointer while it does not run.
    stack_pointer: usize,
    work: Option<Box<dyn FnOnce() + Send>>,
    is_ended_by_fault: bool,
}

struct Scheduler {
    tasks: [Task; TASKS],
    /// The task that gets every second turn; 0 for none.
    preferred: usize,
    /// The number of turns.
    turns: u64,
    /// The task that was taken last; the next ones come first.
    last: usize,
}

static SCHEDULER: Lock<Scheduler> = Lock::new(Scheduler {
    tasks: [const {
        Task {
            stage: Stage::Free,
            stack_pointer: 0,
            work: None,
            is_ended_by_fault: false,
        }
    }; TASKS],
    preferred: 0,
    turns: 0,
    last: 0,
});

/// The running task of each processor, by its place in the table. Idle tasks come first.
static RUNNING: [AtomicUsize; PROCESSORS] = [AtomicUsize::new(0), AtomicUsize::new(1)];
/// The task's numbers, which are never used again; 0 for none.
static NUMBERS: [AtomicU32; TASKS] = [const { AtomicU32::new(0) }; TASKS];
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);
static SWITCHES: AtomicU64 = AtomicU64::new(0);

/// Returns the place of the running task in the table.
#[inline(always)]
pub(crate) fn current() -> usize {
    // The task may move to the other processor in between, but not if it is the same at the end.
    loop {
        let number = cpu::number();
        let task = RUNNING[number].load(Ordering::Relaxed);
        if number == cpu::number() {
            return task;
        }
    }
}

/// Returns the number of a task.
pub(crate) fn number(task: usize) -> u32 {
    NUMBERS[task].load(Ordering::Relaxed)
}

/// Returns the number of switches between tasks.
pub(crate) fn switches() -> u64 {
    SWITCHES.load(Ordering::Relaxed)
}

/// Returns the lowest and the highest address of a task's stack.
pub(crate) fn stack(task: usize) -> core::ops::Range<usize> {
    if task < PROCESSORS {
        return boot::stack(task);
    }
    let low = STACKS + task * 2 * STACK + STACK;
    low..low + STACK
}

/// Returns the task that has overflowed its stack if an access to `address` fails.
pub(crate) fn overflown(address: usize) -> Option<usize> {
    let is_below =
        |&task: &usize| (stack(task).start - STACK..stack(task).start).contains(&address);
    (PROCESSORS..TASKS).find(is_below)
}

/// Storage of idle tasks, whose stacks are made before there is memory.
static IDLE_STORAGE: [[AtomicU64; STORAGE / 8]; PROCESSORS] =
    [const { [const { AtomicU64::new(0) }; STORAGE / 8] }; PROCESSORS];

/// Returns the thread pointer of a task: the storage is below it.
fn thread_pointer(task: usize) -> usize {
    match task < PROCESSORS {
        true => (&raw const IDLE_STORAGE[task]).addr() + STORAGE - 16,
        false => stack(task).end - 16,
    }
}

/// Returns the task whose thread-local storage the running processor uses.
pub(crate) fn of_storage() -> Option<usize> {
    let storage = cpu::thread_pointer();
    (0..TASKS).find(|&task| thread_pointer(task) == storage)
}

/// Makes the task of the running processor: the code that runs now, which later idles.
pub(crate) fn prepare(processor: usize) {
    cpu::without_interrupts(|| {
        let mut scheduler = SCHEDULER.lock();
        scheduler.tasks[processor].stage = Stage::Running;
        NUMBERS[processor].store(
            NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            Ordering::Relaxed,
        );
        let storage = thread_pointer(processor);
        // SAFETY: its own storage, which is large enough.
        unsafe { cpu::set_thread_pointer(storage) };
    });
}

/// Maps the stacks of all tasks, each with pages below that are not mapped.
pub(crate) fn prepare_stacks() {
    unsafe extern "C" {
        static tls_size: u8;
    }
    assert!((&raw const tls_size).addr() + 16 <= STORAGE);
    for task in PROCESSORS..TASKS {
        let stack = stack(task);
        assert!(stack.start.is_multiple_of(PAGE));
        // SAFETY: nothing else uses the addresses.
        unsafe { memory::map_new(stack.start, stack.len()) };
    }
}

/// Starts a task, and returns its place; `None` if there are too many.
#[inline(never)]
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Option<usize> {
    let mut work: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(work));
    let mut scheduler = SCHEDULER.lock();
    let is_free = |&task: &usize| scheduler.tasks[task].stage == Stage::Free;
    let task = (PROCESSORS..TASKS).find(is_free)?;
    let top = stack(task).end - STORAGE;
    // SAFETY: the stack of a free task. Its storage is zero, and above the registers that `switch`
    // loads: six, and the address where it continues; then the end of backtraces.
    unsafe {
        ptr::write_bytes(top as *mut u8, 0, STORAGE);
        let saved = (top - 16 * 8) as *mut usize;
        ptr::write_bytes(saved, 0, 16);
        *saved.add(6) = start as *const () as usize;
        scheduler.tasks[task].stack_pointer = saved.addr();
    }
    scheduler.tasks[task].work = work.take();
    scheduler.tasks[task].stage = Stage::Ready;
    NUMBERS[task].store(
        NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
        Ordering::Relaxed,
    );
    Some(task)
}

/// The first function of a task. It comes from `switch`, with the lock taken.
extern "C" fn start() -> ! {
    let task = RUNNING[cpu::number()].load(Ordering::Relaxed);
    // SAFETY: taken by the task that was switched from. The task may be interrupted.
    let work = unsafe {
        SCHEDULER.unlock();
        cpu::enable_interrupts();
        SCHEDULER.lock().tasks[task].work.take()
    };
    if let Some(work) = work {
        work();
    }
    exit()
}

/// Ends the running task, wherever it is: nothing that it has called returns.
#[inline(never)]
pub(crate) fn exit() -> ! {
    cpu::disable_interrupts();
    let task = current();
    SCHEDULER.lock().tasks[task].stage = Stage::Ended;
    schedule();
    unreachable!("an ended task runs");
}

/// Ends the running task after a fault.
pub(crate) fn exit_by_fault() -> ! {
    cpu::disable_interrupts();
    let task = current();
    SCHEDULER.lock().tasks[task].is_ended_by_fault = true;
    exit()
}

/// Returns an ended task that is off its stack, and whether a fault has ended it. The caller
/// [frees](free) it.
pub(crate) fn ended() -> Option<(usize, bool)> {
    let scheduler = SCHEDULER.lock();
    let is_running = |task: usize| RUNNING.iter().any(|it| it.load(Ordering::Relaxed) == task);
    let mut tasks = PROCESSORS..TASKS;
    let task =
        tasks.find(|&task| scheduler.tasks[task].stage == Stage::Ended && !is_running(task))?;
    Some((task, scheduler.tasks[task].is_ended_by_fault))
}

/// Frees an ended task.
pub(crate) fn free(task: usize) {
    let mut scheduler = SCHEDULER.lock();
    debug_assert!(scheduler.tasks[task].stage == Stage::Ended);
    scheduler.tasks[task].is_ended_by_fault = false;
    scheduler.tasks[task].stage = Stage::Free;
    NUMBERS[task].store(0, Ordering::Relaxed);
}

/// Returns true while the task with this number lives.
pub(crate) fn is_alive(number: u32) -> bool {
    let scheduler = SCHEDULER.lock();
    (0..TASKS).any(|task| {
        NUMBERS[task].load(Ordering::Relaxed) == number
            && !matches!(scheduler.tasks[task].stage, Stage::Free | Stage::Ended)
    })
}

/// Picks the next task for a processor: a ready one, or else its idle task.
#[inline(never)]
fn pick_next(scheduler: &mut Scheduler, processor: usize) -> usize {
    let order = (1..=TASKS).map(|step| (scheduler.last + step) % TASKS);
    let mut order = order.filter(|&task| task >= PROCESSORS);
    scheduler.turns += 1;
    let preferred = scheduler.preferred;
    if preferred != 0
        && scheduler.turns.is_multiple_of(2)
        && scheduler.tasks[preferred].stage == Stage::Ready
    {
        return preferred;
    }
    match order.find(|&task| scheduler.tasks[task].stage == Stage::Ready) {
        Some(task) => {
            scheduler.last = task;
            task
        }
        None => processor,
    }
}

/// Gives the running task every second turn.
pub(crate) fn prefer() {
    let task = current();
    SCHEDULER.lock().preferred = task;
}

/// Lets another task run, if there is one. Interrupts are disabled.
#[inline(never)]
pub(crate) fn schedule() {
    let processor = cpu::number();
    let mut scheduler = SCHEDULER.lock();
    let current = RUNNING[processor].load(Ordering::Relaxed);
    if scheduler.tasks[current].stage == Stage::Running {
        scheduler.tasks[current].stage = Stage::Ready;
    }
    let next = pick_next(&mut scheduler, processor);
    scheduler.tasks[next].stage = Stage::Running;
    if next == current {
        return;
    }
    RUNNING[processor].store(next, Ordering::Relaxed);
    SWITCHES.fetch_add(1, Ordering::Relaxed);
    let to = scheduler.tasks[next].stack_pointer;
    let from = &raw mut scheduler.tasks[current].stack_pointer;
    // The lock stays taken, and the task that comes releases it.
    core::mem::forget(scheduler);
    // SAFETY: interrupts are disabled, and the next task is ready, so it was switched from or is
    // new.
    unsafe {
        cpu::switch(from, to, thread_pointer(next));
        SCHEDULER.unlock();
    }
}

/// Lets another task run.
pub(crate) fn give_way() {
    cpu::without_interrupts(schedule);
}

/// Waits until [`wake`] is called with the address, unless `is_over` says that there is nothing to
/// wait for: no wake-up comes in between.
#[inline(never)]
pub(crate) fn wait_for(address: usize, is_over: impl Fn() -> bool) {
    cpu::without_interrupts(|| {
        {
            let mut scheduler = SCHEDULER.lock();
            if is_over() {
                return;
            }
            scheduler.tasks[current()].stage = Stage::Waiting(address);
        }
        schedule();
    });
}

/// Wakes the tasks that wait for an address.
#[inline(never)]
pub(crate) fn wake(address: usize) {
    let mut scheduler = SCHEDULER.lock();
    for task in &mut scheduler.tasks {
        if task.stage == Stage::Waiting(address) {
            task.stage = Stage::Ready;
        }
    }
}

/// Runs while there is nothing to do on this processor.
pub(crate) fn idle() -> ! {
    loop {
        cpu::wait_for_interrupt();
        give_way();
        hint::spin_loop();
    }
}
