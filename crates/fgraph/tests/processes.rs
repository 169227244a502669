//! Processes that nobody tells fgraph of: children of bare system calls, and those that share the
//! memory.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fgraph_needs::{CC, needs};
use fgraph_scenario::{Count, scenario};

#[unsafe(no_mangle)]
#[inline(never)]
fn within_probe(work: fn()) -> u64 {
    let before = black_box(7);
    work();
    before + black_box(0x0102_0304_0506)
}

fn count() -> fgraph::Handle<Count> {
    fgraph_scenario::register(Count::default(), "within_probe").unwrap()
}

fn lost() -> u64 {
    fgraph::status().unwrap().counters.lost
}

#[scenario]
fn a_child_of_a_bare_fork_goes_on_with_its_calls() {
    static ENDS: Barrier = Barrier::new(2);
    static IN_CHILD: AtomicBool = AtomicBool::new(false);
    // Its call does not go on in the child.
    let user = count();
    let other = thread::spawn(|| {
        within_probe(|| {
            ENDS.wait();
            ENDS.wait();
        });
    });
    ENDS.wait();
    within_probe(|| {
        // SAFETY: the child does nothing that needs another thread.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: a child that hangs ends by itself.
            unsafe { libc::alarm(60) };
            IN_CHILD.store(true, Ordering::SeqCst);
            assert_eq!(lost(), 1);
            return;
        }
        let mut status = 0;
        // SAFETY: a live local.
        let ended = unsafe { libc::waitpid(child as i32, &mut status, 0) };
        assert_eq!(i64::from(ended), child);
        assert_eq!(status, 0);
        ENDS.wait();
    });
    if IN_CHILD.load(Ordering::SeqCst) {
        // SAFETY: the child ends here.
        unsafe { libc::_exit(i32::from(user.user().both() != (2, 1))) };
    }
    other.join().unwrap();
    assert_eq!(user.user().both(), (2, 2));
    assert_eq!(lost(), 0);
}

/// Runs `work` in a process that shares the memory and the calling thread's block, and waits for
/// its end.
fn in_shared_memory(work: extern "C" fn(*mut c_void) -> i32) {
    const STACK: usize = 256 << 10;
    let mut stack = vec![0u128; STACK / 16];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut status = 0;
    // SAFETY: a stack that lives until the child has ended, since this waits for it.
    unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(work, top, flags, std::ptr::null_mut());
        assert!(child > 0);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    assert_eq!(status, 0);
}

/// Calls a function in the child of `vfork`.
const VFORK: &str = "
    #include <sys/wait.h>
    #include <unistd.h>
    int in_vfork_child(void (*work)(void)) {
        int status = -1;
        pid_t child = vfork();
        if (child == 0) {
            work();
            _exit(0);
        }
        return waitpid(child, &status, 0) == child && status == 0;
    }
";

#[scenario]
fn a_thread_keeps_the_state_that_its_vfork_child_has_made() {
    static LOOKED: Barrier = Barrier::new(2);
    extern "C" fn calls() {
        within_probe(|| ());
    }
    let library = needs!(fgraph_scenario::library(&CC, "vforks.c", VFORK, &[]));
    // SAFETY: its type.
    let in_vfork_child: extern "C" fn(extern "C" fn()) -> i32 =
        unsafe { library.get("in_vfork_child") };
    let user = count();
    let thread = thread::spawn(move || {
        assert_eq!(in_vfork_child(calls), 1);
        within_probe(|| {
            LOOKED.wait();
            LOOKED.wait();
        });
    });
    LOOKED.wait();
    assert_eq!(lost(), 0);
    LOOKED.wait();
    thread.join().unwrap();
    assert_eq!((user.user().both(), lost()), ((2, 2), 0));
}

#[scenario]
fn a_process_that_shares_the_memory_ends_nobodys_calls() {
    static LOOKED: Barrier = Barrier::new(2);
    extern "C" fn looks(_: *mut c_void) -> i32 {
        i32::from(lost() != 0)
    }
    let user = count();
    let thread = thread::spawn(|| {
        within_probe(|| {
            LOOKED.wait();
            LOOKED.wait();
        });
    });
    LOOKED.wait();
    in_shared_memory(looks);
    LOOKED.wait();
    thread.join().unwrap();
    assert_eq!((user.user().both(), lost()), ((1, 1), 0));
}

#[scenario]
fn a_process_that_blocks_all_signals_makes_system_calls_while_they_are_patched() {
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    // As the child of `posix_spawn` does; and a thread that ends, as far as the calls go.
    extern "C" fn calls(_: *mut c_void) -> i32 {
        // SAFETY: the set is initialised; no memory is concerned.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            while !IS_OVER.load(Ordering::SeqCst) {
                if libc::madvise(std::ptr::null_mut(), 0, libc::MADV_NORMAL) != 0 {
                    return 1;
                }
            }
        }
        0
    }
    let thread = thread::spawn(|| in_shared_memory(calls));
    // Each of the two changes of text waits for the process as long as it may.
    for _ in 0..50 {
        let filter = "madvise:mod:libc.so* munmap:mod:libc.so* *close*:mod:libc.so*";
        drop(fgraph_scenario::register(Count::default(), filter).unwrap());
    }
    IS_OVER.store(true, Ordering::SeqCst);
    thread.join().unwrap();
}
