//! Text that is exchanged as a whole.

use std::fs;
use std::hint::black_box;
use std::ops::Range;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use fgraph::{RefusalReason, testing};
use fgraph_needs::skip;
use fgraph_scenario::{Count, scenario};

const C_LIBRARY: &str = ":mod:libc.so*";
const NOTHING: &str = "nothing_has_this_name";

/// Returns the lines of the process's maps that are of the C library's text.
fn text_in_maps() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_text = |line: &&str| line.contains("/libc.so") && line.contains(" r-xp ");
    maps.lines().filter(is_text).map(str::to_owned).collect()
}

/// Returns the kilobytes of the C library's text that are this process's own.
fn private_text() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut private = 0;
    while let Some(line) = lines.next() {
        if line.contains("/libc.so") && line.contains(" r-xp ") {
            let line = lines.find(|line| line.starts_with("Anonymous:")).unwrap();
            let number = line.split_whitespace().nth(1).unwrap();
            private += number.parse::<u64>().unwrap();
        }
    }
    private
}

/// Sets the flag when the test ends, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls functions of the C library until told to stop. Returns the number of calls.
fn call_the_c_library(is_over: &AtomicBool) -> u64 {
    let mut calls = 0;
    while !is_over.load(Ordering::Relaxed) {
        let mut text = [0; 64];
        // SAFETY: the text has room for the number.
        let len = unsafe { libc::snprintf(text.as_mut_ptr(), 64, c"%d".as_ptr(), 1234) };
        assert_eq!(black_box(len), 4);
        calls += 1;
    }
    calls
}

#[scenario]
fn calls_do_not_trap_while_the_c_library_is_exchanged() {
    const CYCLES: u64 = 50;
    let before = text_in_maps();
    assert_eq!(before.len(), 1);
    let user = fgraph_scenario::register(Count::default(), NOTHING).unwrap();
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..2 {
            scope.spawn(|| calls.fetch_add(call_the_c_library(&is_over), Ordering::Relaxed));
        }
        let traps = testing::traps();
        for _ in 0..CYCLES {
            fgraph_scenario::set_filter(&user, C_LIBRARY).unwrap();
            assert_eq!(text_in_maps(), before);
            fgraph_scenario::set_filter(&user, NOTHING).unwrap();
            assert_eq!(text_in_maps(), before);
        }
        let traps = testing::traps() - traps;
        // A thread traps that is between two displaced instructions at that moment.
        assert!(traps <= 4 * CYCLES, "{traps} traps");
    });
    assert!(calls.into_inner() > 0);
    assert!(user.user().both().0 > 0);
}

#[scenario]
fn text_is_the_files_again_when_the_last_user_has_gone() {
    let (before, private) = (text_in_maps(), private_text());
    for _ in 0..3 {
        let [first, last] = [C_LIBRARY, "snprintf"]
            .map(|filter| fgraph_scenario::register(Count::default(), filter).unwrap());
        assert!(private_text() > private + 1000);
        drop(first);
        assert!(private_text() > private);
        drop(last);
        assert_eq!((text_in_maps(), private_text()), (before.clone(), private));
    }
}

#[scenario]
fn children_of_posix_spawn_survive_while_the_c_library_is_exchanged() {
    const CHILDREN: usize = 200;
    let user = fgraph_scenario::register(Count::default(), NOTHING).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let spawner = scope.spawn(|| {
            let _over = Over(&is_over);
            // The standard library uses `posix_spawn` here.
            let children = (0..CHILDREN).map(|_| Command::new("/bin/true").status().unwrap());
            children.filter(|status| !status.success()).count()
        });
        while !is_over.load(Ordering::Relaxed) {
            fgraph_scenario::set_filter(&user, C_LIBRARY).unwrap();
            fgraph_scenario::set_filter(&user, NOTHING).unwrap();
        }
        assert_eq!(spawner.join().unwrap(), 0);
    });
}

/// The C library's text in locked memory. It is not exchanged meanwhile: no more memory may be
/// locked.
struct Locked(Range<usize>);

impl Locked {
    fn new() -> Option<Self> {
        let text = text_in_maps().remove(0);
        let (start, rest) = text.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        let range = start..end;
        fgraph_scenario::limit_locks(range.len());
        let start = ptr::without_provenance(range.start);
        // SAFETY: locking changes no memory.
        (unsafe { libc::mlock(start, range.len()) } == 0).then_some(Self(range))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let start = ptr::without_provenance(self.0.start);
        // SAFETY: locking changes no memory.
        unsafe { libc::munlock(start, self.0.len()) };
    }
}

#[scenario]
fn functions_that_run_blocked_are_left_alone_where_text_cannot_be_exchanged() {
    let filter = "getpagesize sched_getcpu";
    let (before, private) = (text_in_maps(), private_text());
    unsafe extern "C" {
        safe fn getpagesize() -> i32;
    }
    let calls = || {
        // SAFETY: no memory is concerned.
        let processor = unsafe { libc::sched_getcpu() };
        black_box(getpagesize() + processor);
    };
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        scope.spawn(move || ended.recv());
        let Some(locked) = Locked::new() else {
            return skip!("memory cannot be locked here");
        };
        let user = fgraph_scenario::register(Count::default(), filter).unwrap();
        let report = user.report().unwrap();
        assert_eq!(report.traced, 1);
        assert_eq!(report.refused[0].name, "getpagesize");
        assert_eq!(report.refused[0].reason, RefusalReason::NotExchanged);
        calls();
        assert_eq!(user.user().both(), (1, 1));
        drop(locked);
        let report = fgraph_scenario::set_filter(&user, filter).unwrap();
        assert_eq!((report.traced, report.refused), (2, vec![]));
        calls();
        assert_eq!(user.user().both(), (3, 3));
        // The jump stays, and leads to nobody.
        let locked = Locked::new();
        drop(user);
        calls();
        drop(locked);
        let user = fgraph_scenario::register(Count::default(), filter).unwrap();
        calls();
        assert_eq!(user.user().both(), (2, 2));
        drop(user);
        assert_eq!((text_in_maps(), private_text()), (before, private));
        drop(end);
    });
}

#[scenario]
fn a_thread_that_blocks_sigtrap_and_sleeps_elsewhere_is_no_error() {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let (say, said) = mpsc::channel();
        scope.spawn(move || {
            let all = !0_u64;
            let null = ptr::null_mut::<libc::c_void>();
            // SAFETY: the kernel reads the set, which the thread keeps to its end.
            unsafe {
                libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all, null, 8);
            }
            say.send(()).unwrap();
            ended.recv()
        });
        said.recv().unwrap();
        let user = fgraph_scenario::register(Count::default(), C_LIBRARY).unwrap();
        assert!(user.report().unwrap().traced > 1000);
        drop(user);
        drop(end);
    });
}

/// Returns 1 until a [`Hook`] replaces it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_hooked_by_the_program() -> i32 {
    black_box(1)
}

/// A function whose code the program itself replaces, as hooking libraries do.
struct Hook {
    function: usize,
    original: [u8; 6],
}

impl Hook {
    /// `mov eax, 77; ret`
    const CODE: [u8; 6] = [0xb8, 77, 0, 0, 0, 0xc3];

    fn new(function: usize) -> Self {
        // SAFETY: text of a function that is never unloaded.
        let original = unsafe { ptr::with_exposed_provenance::<[u8; 6]>(function).read() };
        Self { function, original }
    }

    /// Replaces the function, calls it, and puts it back, each time by making its page writable.
    fn cycle(&self) {
        // SAFETY: both functions have no arguments, and only this thread calls them.
        let call = || unsafe {
            let function = ptr::with_exposed_provenance::<()>(self.function);
            core::mem::transmute::<*const (), extern "C" fn() -> i32>(function)()
        };
        self.write(Self::CODE);
        assert_eq!(call(), 77);
        self.write(self.original);
        assert_ne!(call(), 77);
    }

    fn write(&self, code: [u8; 6]) {
        const PAGE: usize = 4096;
        let first = self.function / PAGE * PAGE;
        let len = (self.function + code.len()).next_multiple_of(PAGE) - first;
        let page = ptr::with_exposed_provenance_mut(first);
        let text = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: no other thread runs the function, and its page stays executable.
        unsafe {
            assert_eq!(libc::mprotect(page, len, text | libc::PROT_WRITE), 0);
            ptr::with_exposed_provenance_mut::<[u8; 6]>(self.function).write_volatile(code);
            assert_eq!(libc::mprotect(page, len, text), 0);
        }
    }
}

#[scenario]
fn program_that_patches_its_text_survives_exchanges() {
    const CYCLES: u64 = 20;
    unsafe extern "C" {
        fn lcong48(param: *mut u16);
    }
    let filter = ":mod:libc.so* *exchanged_text*:mod:it-* !lcong48 !is_hooked_by_the_program";
    let user = fgraph_scenario::register(Count::default(), NOTHING).unwrap();
    let (is_over, hooked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let own = is_hooked_by_the_program as *const ();
        for function in [lcong48 as *const (), own] {
            let hook = Hook::new(function.expose_provenance());
            let (is_over, hooked) = (&is_over, &hooked);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    hook.cycle();
                    hooked.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(100));
                }
            });
        }
        for _ in 0..CYCLES {
            fgraph_scenario::set_filter(&user, filter).unwrap();
            fgraph_scenario::set_filter(&user, NOTHING).unwrap();
        }
    });
    assert!(hooked.into_inner() > 0);
    assert!(user.user().both().0 > 0);
}
