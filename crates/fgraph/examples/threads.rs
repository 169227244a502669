//! A thread checker: directories that two threads read from.
//!
//! `readdir` may not be called by two threads at once with the same directory. The user keeps who
//! was the first to read from each that is open, and reports another thread that does, with the
//! calls that have led both there. Its callbacks neither allocate nor lock.
//!
//! The job lists directories on several threads, and hands one over half-way.
//!
//!     cargo run --release --example threads -- crates docs

use std::error::Error;
use std::fs::{self, ReadDir};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::{env, fmt, io, process, thread};

use fgraph::{Entry, FgraphOps};

/// The checked functions; then what their callers are looked for among: this program.
const FILTER: &str = "readdir64 closedir :mod:threads";
/// Directories that may be open at once, and reports.
const ROOM: usize = 64;

/// The thread that made a call, and its stack.
#[derive(Default)]
struct Trace {
    /// The kernel's id of the thread; 0 if there is none.
    thread: AtomicU32,
    /// Return addresses of the calls, the innermost first.
    callers: [AtomicUsize; 8],
}

impl Trace {
    fn write(&self, call: &Entry<'_, ()>) {
        let mut callers = [0; 8];
        call.callers(&mut callers);
        self.copy(call.thread_id(), callers);
    }

    fn copy(&self, thread: u32, callers: [usize; 8]) {
        for (to, caller) in self.callers.iter().zip(callers) {
            to.store(caller, Ordering::Relaxed);
        }
        self.thread.store(thread, Ordering::Release);
    }

    fn read(&self) -> (u32, [usize; 8]) {
        let thread = self.thread.load(Ordering::Acquire);
        (
            thread,
            self.callers
                .each_ref()
                .map(|caller| caller.load(Ordering::Relaxed)),
        )
    }
}

/// The calls by name.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (thread, callers) = self.read();
        let is_main = thread == process::id();
        writeln!(
            f,
            "  thread {thread}{}",
            if is_main { " (main)" } else { "" }
        )?;
        for &address in callers.iter().take_while(|&&address| address != 0) {
            // The call is right before where it returns to.
            match fgraph::function_at(address - 1) {
                Some(function) => {
                    let offset = address - 1 - function.address();
                    writeln!(f, "    {}+{offset:#x}", function.name())?;
                }
                None => writeln!(f, "    {address:#x}")?,
            }
        }
        Ok(())
    }
}

/// A directory that is open.
#[derive(Default)]
struct Directory {
    /// Argument of `readdir`; 0 if the place is free.
    handle: AtomicU64,
    first: Trace,
}

/// Two threads that have read from a directory.
#[derive(Default)]
struct Report {
    first: Trace,
    other: Trace,
}

/// User that keeps the reading threads of each directory.
struct Checker {
    open: [Directory; ROOM],
    reports: [Report; ROOM],
    /// Number of reports, including those that found no room.
    count: AtomicUsize,
    /// Calls with a directory that found no room.
    unchecked: AtomicU64,
}

impl Checker {
    fn new() -> Self {
        Self {
            open: std::array::from_fn(|_| Directory::default()),
            reports: std::array::from_fn(|_| Report::default()),
            count: AtomicUsize::new(0),
            unchecked: AtomicU64::new(0),
        }
    }

    fn find(&self, handle: u64) -> Option<&Directory> {
        let is_it = |directory: &&Directory| directory.handle.load(Ordering::Acquire) == handle;
        self.open.iter().find(is_it)
    }

    fn read(&self, call: &Entry<'_, ()>, handle: u64) {
        if let Some(directory) = self.find(handle) {
            let (thread, callers) = directory.first.read();
            if thread != call.thread_id() && thread != 0 {
                let index = self.count.fetch_add(1, Ordering::Relaxed);
                if let Some(report) = self.reports.get(index) {
                    report.first.copy(thread, callers);
                    report.other.write(call);
                }
                // Once is enough: from now on the directory is this thread's.
                directory.first.write(call);
            }
            return;
        }
        let take = |directory: &&Directory| {
            let free = &directory.handle;
            free.compare_exchange(0, handle, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        match self.open.iter().find(take) {
            Some(directory) => directory.first.write(call),
            None => drop(self.unchecked.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn close(&self, handle: u64) {
        if let Some(directory) = self.find(handle) {
            directory.first.thread.store(0, Ordering::Relaxed);
            directory.handle.store(0, Ordering::Release);
        }
    }
}

impl FgraphOps for Checker {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        match call.function().name().as_str() {
            "readdir" | "readdir64" => self.read(call, call.arg(0)?),
            "closedir" => self.close(call.arg(0)?),
            // `callers` tells of the calls whose return is wanted.
            _ => return Some(()),
        }
        None
    }
}

/// Returns the number of remaining entries.
#[inline(never)]
fn count(directory: ReadDir) -> io::Result<usize> {
    let mut count = 0;
    for entry in directory {
        entry?;
        count += 1;
    }
    Ok(count)
}

/// Lists a directory on one thread.
#[inline(never)]
fn list(path: &str) -> io::Result<usize> {
    count(fs::read_dir(path)?)
}

/// Lists a directory, but for the first entry on another thread.
#[inline(never)]
fn list_in_parts(path: &str) -> io::Result<usize> {
    let mut directory = fs::read_dir(path)?;
    let first = usize::from(directory.next().transpose()?.is_some());
    let rest = thread::spawn(|| count(directory))
        .join()
        .expect("no panic")?;
    Ok(first + rest)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<String> = env::args().skip(1).collect();
    if paths.is_empty() {
        paths = ["crates", "docs"].map(str::to_owned).to_vec();
    }
    // SAFETY: the callbacks use memory of their own only, with atomics.
    let checker = unsafe { fgraph::register(Checker::new(), FILTER) }?;
    thread::scope(|scope| -> io::Result<()> {
        let list = |path| scope.spawn(move || list(path));
        let threads: Vec<_> = paths.iter().map(|path| list(path.as_str())).collect();
        for (path, thread) in paths.iter().zip(threads) {
            println!("{path}: {} entries", thread.join().expect("no panic")?);
        }
        Ok(())
    })?;
    let alone = checker.user().count.load(Ordering::Relaxed);
    println!(
        "{}: {} entries, in parts",
        paths[0],
        list_in_parts(&paths[0])?
    );
    let checker = checker.unregister()?;

    let count = checker.count.into_inner();
    for report in checker.reports.iter().take(count) {
        println!(
            "\nA directory was read by two threads, first by\n{}then by\n{}",
            report.first, report.other
        );
    }
    let unchecked = checker.unchecked.into_inner();
    println!("{count} reports, {unchecked} calls not checked");
    if (alone, count, unchecked) != (0, 1, 0) {
        return Err("one directory was handed over, all others were not".into());
    }
    let [first, other] = [&checker.reports[0].first, &checker.reports[0].other];
    let is_named = |trace: &Trace, name: &str| trace.to_string().contains(name);
    if !is_named(first, "threads::list_in_parts") || !is_named(other, "threads::count") {
        return Err("the calls on the way are not named".into());
    }
    Ok(())
}
