//! One program under all tracers at once, and what each of them has to say.
//!
//! The job counts the words of files, each on a thread, and adds them up under two locks. It has
//! three faults that tracers find: once it takes the locks in the wrong order, once a worker paints
//! what only the main thread may, and one step takes too long. A fourth is put in by a tracer:
//! every third time a file cannot be opened, and the standard library has to try again.
//!
//!     cargo run --release --example tracers -- README.md ARCHITECTURE.md CHANGELOG.md

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use fgraph_trace::graph::{FunctionGraph, Options, Parts};
use fgraph_tracers::locks::LockTracer;
use fgraph_tracers::outliers::{Limits, Outliers};
use fgraph_tracers::probe::fault::Fault;
use fgraph_tracers::probe::probe;
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::Recorder;
use fgraph_tracers::registry::Registry;
use fgraph_tracers::stack::StackTracer;
use fgraph_tracers::syscalls::Syscalls;
use fgraph_tracers::threads::{Rule, ThreadChecker};
use fgraph_tracers::watchdog::Watchdog;

/// The functions of the job.
const JOB: &str = "tracers::job::*";
/// Lines of a result that are printed.
const LINES: usize = 24;

/// The program that is watched. Nothing in it knows of that.
mod job {
    use super::*;

    /// A POSIX mutex.
    pub(super) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

    // SAFETY: that is what it is for.
    unsafe impl Sync for Lock {}

    impl Lock {
        const fn new() -> Self {
            Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
        }

        fn with<R>(&self, work: impl FnOnce() -> R) -> R {
            // SAFETY: a mutex, which is taken and released in turn.
            unsafe { libc::pthread_mutex_lock(self.0.get()) };
            let result = work();
            // SAFETY: as above.
            unsafe { libc::pthread_mutex_unlock(self.0.get()) };
            result
        }
    }

    static TOTALS: Lock = Lock::new();
    static PROGRESS: Lock = Lock::new();
    static WORDS: AtomicU64 = AtomicU64::new(0);

    /// Counts the words of a file.
    #[inline(never)]
    pub(super) fn count_words(path: &str) -> io::Result<u64> {
        let text = fs::read_to_string(path)?;
        let mut words: HashMap<&str, u64> = HashMap::new();
        for line in text.lines() {
            count_line(line, &mut words);
        }
        let count = words.values().sum();
        add_up(count);
        Ok(count)
    }

    #[inline(never)]
    fn count_line<'t>(line: &'t str, words: &mut HashMap<&'t str, u64>) {
        for word in line.split_whitespace() {
            *words.entry(black_box(word)).or_default() += 1;
        }
    }

    #[inline(never)]
    fn add_up(count: u64) {
        TOTALS.with(|| {
            WORDS.fetch_add(count, Ordering::Relaxed);
            PROGRESS.with(|| paint(count));
        });
    }

    /// Shows how far the job is: for the main thread only.
    #[inline(never)]
    pub(super) fn paint(words: u64) -> u64 {
        black_box(words) + 1
    }

    /// Waits for too long, with the locks in the wrong order.
    #[inline(never)]
    pub(super) fn clean_up() -> u64 {
        PROGRESS.with(|| TOTALS.with(|| wait(Duration::from_millis(100))));
        WORDS.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn wait(time: Duration) {
        thread::sleep(black_box(time));
    }
}

/// Prints the first lines of a text, cut to the width of a page.
fn show(title: &str, text: &str) {
    println!("\n== {title}");
    for line in text.lines().take(LINES) {
        println!("{:.118}", line);
    }
    let rest = text.lines().count().saturating_sub(LINES);
    if rest != 0 {
        println!("... {rest} more lines");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<String> = env::args().skip(1).collect();
    if paths.is_empty() {
        paths = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
            .map(str::to_owned)
            .to_vec();
    }

    let mut tracers = Registry::new();
    tracers.register("profile", || {
        Profiler::start(format!("{JOB} malloc free").as_str())
    })?;
    tracers.register("stack", || StackTracer::start("*:mod:libc.so* tracers::*"))?;
    tracers.register("locks", LockTracer::start)?;
    tracers.register("syscalls", Syscalls::start)?;
    let rules = [(Rule::MainOnly, "tracers::job::paint")];
    tracers.register("threads", || ThreadChecker::start(rules))?;
    let limit = Duration::from_millis(20);
    tracers.register("watchdog", || Watchdog::start("tracers::job::*", limit))?;
    let limits = Limits {
        calls: 3,
        nodes: 1000,
    };
    tracers.register("outliers", || {
        Outliers::start(
            "tracers::job::count_words",
            "read* open* malloc tracers::*",
            limits,
        )
    })?;
    let recorder = Recorder::start(JOB)?;
    let slowest = Arc::new(AtomicU64::new(0));
    let longest = Arc::clone(&slowest);
    let probe = probe("tracers::job::count_line")
        .on_entry(|_call| Some(Instant::now()))
        .on_return(move |_call, entered| {
            longest.fetch_max(entered.elapsed().as_nanos() as u64, Ordering::Relaxed);
        });
    // SAFETY: the closures use the clock and an atomic.
    let probe = unsafe { probe.start() }?;
    let fault = Fault::skip(-1).errno(libc::EINTR).every(3);
    // SAFETY: `open` returns an `int`, and its callers must expect that it fails.
    let faults = unsafe { fault.start("open:mod:libc.so* open64:mod:libc.so*") }?;
    let (send, late) = mpsc::channel();
    let watchdog = tracers
        .get_as::<Watchdog>("watchdog")
        .ok_or("no watchdog")?;
    watchdog.watch(move |call| drop(send.send(call.to_string())))?;

    job::paint(0);
    let counts = thread::scope(|scope| -> io::Result<Vec<u64>> {
        let count = |path| scope.spawn(move || job::count_words(path));
        let threads: Vec<_> = paths.iter().map(|path| count(path.as_str())).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect()
    })?;
    let words = job::clean_up();
    for (path, count) in paths.iter().zip(&counts) {
        println!("{path}: {count} words");
    }

    let late = late.recv()?;
    let get = "the tracer is there";
    let profile = tracers
        .get_as::<Profiler>("profile")
        .expect(get)
        .profile()
        .together();
    show("profiler: where the time goes", &profile.to_string());
    let mut live = recorder.consume()?;
    recorder.finish()?;
    let mut graph = Vec::new();
    // Each line of each file would be a line here.
    let options = Options {
        without: Some(Box::new(|name, _| name == "tracers::job::count_line")),
        parts: Parts::default() | Parts::TAIL,
        ..Options::default()
    };
    FunctionGraph::new(options).write_all(&mut live, &mut graph)?;
    let graph = String::from_utf8(graph)?;
    show(
        "recorder: what happened, as function_graph draws it",
        &graph,
    );
    let deepest = tracers.get_as::<StackTracer>("stack").expect(get).deepest();
    show("stack: the deepest of any thread", &deepest[0].to_string());
    let slow = tracers.get_as::<Outliers>("outliers").expect(get).slowest();
    show("outliers: the slowest call", &slow[0].to_string());
    show("watchdog: what took too long, said while it did", &late);
    let checker = tracers.get_as::<ThreadChecker>("threads").expect(get);
    let violations = checker.violations();
    show(
        "threads: what was called on the wrong thread",
        &violations[0].to_string(),
    );
    let locks = tracers.get_as::<LockTracer>("locks").expect(get);
    let inversions = locks.inversions();
    show("locks: what can deadlock", &inversions[0].to_string());
    let syscalls = tracers.get_as::<Syscalls>("syscalls").expect(get);
    let lines = std::iter::from_fn(|| syscalls.read_line(Duration::ZERO));
    let lines: String = lines.filter(|line| line.contains("openat)")).collect();
    show("syscalls: files that were opened", &lines);
    let slowest = Duration::from_nanos(slowest.load(Ordering::Relaxed));
    let hits = probe.hits();
    show(
        "probe",
        &format!("{hits} lines were counted, the slowest in {slowest:?}"),
    );
    let (injected, calls) = (faults.injected(), faults.calls());
    show(
        "faults",
        &format!("{injected} of {calls} opens were made to fail"),
    );

    let files = paths.len() as u64;
    let hits = |name: &str| profile.of(name).map_or(0, |row| row.hits);
    let checks = [
        ("the words add up", counts.iter().sum::<u64>() == words),
        (
            "each file is profiled",
            hits("tracers::job::count_words") == files,
        ),
        (
            "probe and profiler agree",
            hits("tracers::job::count_line") == probe.hits(),
        ),
        (
            "the graph has the job",
            graph.contains("tracers::job::clean_up() {"),
        ),
        ("one place paints on a worker", violations.len() == 1),
        ("one order is wrong", inversions.len() == 1),
        (
            "each third open fails",
            injected == calls / 3 && calls >= files,
        ),
        (
            "the late call is the wait",
            late.contains("tracers::job::wait"),
        ),
        (
            "slow calls have trees",
            slow.iter().all(|call| call.tree.len() > 1),
        ),
        (
            "nothing is lost",
            syscalls.dropped() + probe.missed() + unrecorded(&tracers) == 0,
        ),
    ];
    for (what, is_so) in checks {
        if !is_so {
            return Err(format!("it is not so that {what}").into());
        }
    }
    Ok(())
}

/// Returns the number of calls that the profiler could not record.
fn unrecorded(tracers: &Registry) -> u64 {
    let profiler = tracers.get_as::<Profiler>("profile");
    profiler.map_or(u64::MAX, |profiler| profiler.profile().unrecorded)
}
