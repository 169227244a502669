//! A program that asks about itself, and the answers: locks that can deadlock, why some calls take
//! longer, the tasks that are polled long, and the blocks of memory that live.
//!
//! Each question needs the calls of other functions, so each has a recorder. `fgraph_analysis`
//! reads the events of that.
//!
//!     cargo run --release --example answers

use std::cell::UnsafeCell;
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fgraph_analysis::addresses::Addresses;
use fgraph_analysis::heap::{CallPath, Heap, shown};
use fgraph_analysis::locks::{InversionView, LockView, Locks};
use fgraph_analysis::tasks::{KindView, Tasks};
use fgraph_analysis::why::{By, Explanation, Timeline, Wanted, Which};
use fgraph_analysis::{runtimes, waits};
use fgraph_symbols::{allocators, locks};
use fgraph_trace::Source as _;
use fgraph_trace::names::Names;
use fgraph_tracers::recorder::{Options, Recorder};

/// The program. Nothing in it knows of the questions.
mod job {
    use super::*;

    /// A POSIX mutex.
    struct Lock(UnsafeCell<libc::pthread_mutex_t>);

    // SAFETY: a mutex is made for several threads.
    unsafe impl Sync for Lock {}

    impl Lock {
        const fn new() -> Self {
            Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
        }

        fn with<R>(&self, work: impl FnOnce() -> R) -> R {
            // SAFETY: the mutex is initialized, and released below by the same thread.
            unsafe { libc::pthread_mutex_lock(self.0.get()) };
            let result = work();
            // SAFETY: this thread has taken the mutex above.
            unsafe { libc::pthread_mutex_unlock(self.0.get()) };
            result
        }
    }

    static ACCOUNTS: Lock = Lock::new();
    static JOURNAL: Lock = Lock::new();

    /// Takes both locks in one order or the other, one thread after the other.
    #[inline(never)]
    pub(super) fn transfer(is_backwards: bool) {
        match is_backwards {
            false => ACCOUNTS.with(|| JOURNAL.with(|| black_box(1))),
            true => JOURNAL.with(|| ACCOUNTS.with(|| black_box(2))),
        };
    }

    /// Handles a request; each eighth one sleeps.
    #[inline(never)]
    pub(super) fn handle(request: u64) -> u64 {
        if request % 8 == 7 {
            // SAFETY: sleeping has no conditions.
            unsafe { libc::usleep(20_000) };
        }
        black_box(request)
    }

    /// Runs a coroutine on, as the functions do that clang makes of coroutines of C++.
    #[unsafe(export_name = "fetch.resume")]
    #[inline(never)]
    pub(super) extern "C" fn resume(frame: &AtomicU64) {
        if frame.fetch_add(1, Ordering::Relaxed) == 2 {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Keeps a block of this size.
    #[inline(never)]
    pub(super) fn keep(size: usize) -> Vec<u8> {
        black_box(Vec::with_capacity(size))
    }
}

/// Names addresses of this process.
struct Own;

impl Addresses for Own {
    fn function(&mut self, _: &Names, _: u32, address: u64) -> Option<(String, u64)> {
        // A call may be the last instruction of a function.
        let function = fgraph::function_at(address as usize - 1)?;
        let distance = address - function.address() as u64;
        Some((function.name().to_string(), distance))
    }

    fn variable(&mut self, _: &Names, _: u32, _: u64) -> Option<String> {
        None
    }
}

/// Returns the inversions, and the locks that were held.
fn ask_for_locks() -> Result<(Vec<InversionView>, Vec<LockView>), Box<dyn Error>> {
    let names: Vec<String> = locks::functions().map(|it| format!("{:?}", it.0)).collect();
    let options = Options {
        arguments: 2,
        result: true,
        caller: true,
        ..Options::default()
    };
    let recorder = Recorder::start_with(names.join(" ").as_str(), &options)?;
    thread::spawn(|| job::transfer(false))
        .join()
        .expect("no panic");
    thread::spawn(|| job::transfer(true))
        .join()
        .expect("no panic");
    let (mut source, mut locks) = (recorder.snapshot(), Locks::default());
    while locks.next(&mut source)? {}
    let inversions = locks.inversions(source.names(), &mut Own);
    Ok((inversions, locks.held(&source, &mut Own, 20).0))
}

/// Returns the reasons for which the slowest requests take longer.
fn ask_why() -> Result<Explanation, Box<dyn Error>> {
    let words = format!("{} *job::handle", waits::words().join(" "));
    let recorder = Recorder::start(words.as_str())?;
    (0..64).map(job::handle).for_each(drop);
    let mut source = recorder.snapshot();
    let wanted = Wanted {
        is_it: Box::new(|name, _| name.ends_with("job::handle")),
        argument: None,
        is_last: false,
    };
    let mut timeline = Timeline::read(&mut source, vec![wanted])?;
    let calls = timeline
        .subjects(By::Call)
        .map_err(|it| format!("{it:?}"))?;
    let which = Which::Slowest(5.0);
    let why = timeline.explain(&calls, which, "handle", 5, &source, &mut Own);
    why.ok_or_else(|| "no call is slow".into())
}

/// Returns the kinds of tasks that were polled.
fn ask_for_tasks() -> Result<Vec<KindView>, Box<dyn Error>> {
    let options = Options {
        arguments: 1,
        ..Options::default()
    };
    let recorder = Recorder::start_with(runtimes::words().join(" ").as_str(), &options)?;
    let frames = [AtomicU64::new(0), AtomicU64::new(0)];
    for _ in 0..4 {
        frames.iter().for_each(|frame| job::resume(frame));
    }
    let mut source = recorder.snapshot();
    let threshold = source.clock().ticks(1_000_000);
    let tasks = Tasks::read(&mut source, threshold)?;
    let first = tasks.span.map_or(0, |(first, _)| first);
    Ok(tasks.kinds(&source, first, 5, &|_, _| None).0)
}

/// Returns the call paths that have made the blocks that live, the largest first.
fn ask_for_blocks() -> Result<Vec<CallPath>, Box<dyn Error>> {
    let words: Vec<String> = allocators::words().collect();
    let options = Options {
        allocations: true,
        ..Options::default()
    };
    let recorder = Recorder::start_with(words.join(" ").as_str(), &options)?;
    let kept = job::keep(1 << 20);
    let mut source = recorder.snapshot();
    recorder.finish()?;
    let heap = Heap::read(&mut source, None)?;
    let (mut paths, _) = heap.finish(source.names(), &mut Own, false);
    paths.sort_by_key(|path| std::cmp::Reverse(path.sums.live));
    drop(kept);
    Ok(paths)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    fgraph::load_symbols()?;

    let (inversions, held) = ask_for_locks()?;
    println!("== locks");
    for order in inversions.iter().flat_map(|it| &it.orders) {
        println!(
            "{} is taken at {} with {}",
            order.taken, order.taken_at, order.held
        );
    }
    for lock in &held {
        println!(
            "{} is held for {} ns, at {}",
            lock.lock, lock.longest_ns, lock.at
        );
    }

    let why = ask_why()?;
    println!(
        "\n== why\nthe {} slowest requests take {} ns more",
        why.explained, why.more_ns
    );
    for line in &why.lines {
        println!(
            "{} ns: {} in {}",
            line.ns,
            line.cause.words(),
            line.path.join(" < ")
        );
    }

    let tasks = ask_for_tasks()?;
    println!("\n== tasks");
    for kind in &tasks {
        let longest = kind.longest.as_ref().map_or(0, |poll| poll.ns);
        println!(
            "{}: {} tasks, the longest poll {longest} ns",
            kind.name, kind.tasks
        );
    }

    let paths = ask_for_blocks()?;
    println!("\n== blocks");
    for path in paths.iter().take(3) {
        let calls: Vec<&str> = shown(&path.calls)
            .iter()
            .take(3)
            .map(String::as_str)
            .collect();
        println!(
            "{} bytes by {} < {}",
            path.sums.live,
            path.allocator,
            calls.join(" < ")
        );
    }

    let is_kept = |path: &&CallPath| path.calls.iter().any(|call| call.contains("job::keep"));
    let checks = [
        ("one order contradicts another", inversions.len() == 1),
        (
            "both locks are held",
            held.iter().filter(|it| it.at.contains("job::")).count() == 2,
        ),
        (
            "slow requests sleep",
            why.lines
                .first()
                .is_some_and(|it| it.cause == waits::Cause::Sleep),
        ),
        (
            "two coroutines are polled, one for long",
            tasks.len() == 1 && tasks[0].tasks == 2 && tasks[0].blocking == 2,
        ),
        (
            "the kept block lives",
            paths
                .iter()
                .find(is_kept)
                .is_some_and(|it| it.sums.live == 1 << 20),
        ),
    ];
    for (what, is_so) in checks {
        if !is_so {
            return Err(format!("it is not so that {what}").into());
        }
    }
    Ok(())
}
