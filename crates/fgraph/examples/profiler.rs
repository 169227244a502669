//! A profiler: how often each function is called, and how long it takes, of each thread.
//!
//! The job compresses files with zlib on several threads. The user watches the functions of zlib;
//! its callbacks add to a table that is the running thread's own, so threads do not get in each
//! other's way, and neither allocate nor lock.
//!
//!     cargo run --release --example profiler -- README.md Cargo.lock

mod library;

use std::array;
use std::collections::HashMap;
use std::error::Error;
use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use library::Library;

use fgraph::{Entry, FgraphOps, Function, PerThread, Return};

/// Functions of zlib with a name. The others are called by these, and count as theirs.
const FILTER: &str = ":mod:libz.so.1 !libz.so.1+0x*";
const THREADS: usize = 4;
const PASSES: usize = 20;
/// Rows of a table: functions have numbers from 0, those of the first module that is watched first.
const ROWS: usize = 512;

/// A number that one thread writes and all may read.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn add(&self, value: u64) {
        self.set(self.get() + value);
    }
}

/// Time of a thread in a function, in nanoseconds.
#[derive(Default)]
struct Row {
    hits: Count,
    /// Time in the function and in its callees. Calls within calls of it count again.
    total: Count,
    /// Time in the function without its watched callees.
    own: Count,
    min: Count,
    max: Count,
}

/// The profile of one thread.
struct Table {
    /// Rows by the function's number.
    rows: [Row; ROWS],
    /// Spent in calls that no other watched call is around.
    outermost: Count,
    /// Calls of functions that have no row.
    without_row: Count,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            rows: array::from_fn(|_| Row::default()),
            outermost: Count::default(),
            without_row: Count::default(),
        }
    }
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy)]
struct Call {
    entered: Instant,
    /// Nanoseconds spent in the watched calls inside it.
    inside: u64,
}

#[derive(Default)]
struct Profiler {
    tables: PerThread<Table>,
}

impl FgraphOps for Profiler {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let table = call.per_thread(&self.tables)?;
        if call.function().index() as usize >= ROWS {
            table.without_row.add(1);
            return None;
        }
        Some(Call {
            entered: Instant::now(),
            inside: 0,
        })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let took = data.entered.elapsed().as_nanos() as u64;
        let parent = call.parent_data_mut().map(|parent| parent.inside += took);
        let Some(table) = call.per_thread(&self.tables) else {
            return;
        };
        if parent.is_none() {
            table.outermost.add(took);
        }
        let row = &table.rows[call.function().index() as usize];
        let is_first = row.hits.get() == 0;
        row.hits.add(1);
        row.total.add(took);
        row.own.add(took - data.inside);
        row.max.set(row.max.get().max(took));
        row.min.set(if is_first {
            took
        } else {
            row.min.get().min(took)
        });
    }
}

impl Table {
    /// The rows of functions that were called, by what was spent in them alone.
    fn called(&self) -> Vec<(u32, &Row)> {
        let rows = (0..).zip(&self.rows);
        let mut rows: Vec<_> = rows.filter(|(_, row)| row.hits.get() != 0).collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.own.get()));
        rows
    }

    fn print(&self, names: &HashMap<u32, Function>) {
        let us = |count: &Count| format!("{:.3}", count.get() as f64 / 1e3);
        let header = ["hits", "total us", "self us", "min us", "max us"];
        let [hits, total, own, min, max] = header;
        println!("{hits:>8} {total:>12} {own:>12} {min:>10} {max:>10}  function");
        for (function, row) in self.called().into_iter().take(8) {
            let [total, own, min, max] = [&row.total, &row.own, &row.min, &row.max].map(us);
            let (hits, name) = (row.hits.get(), names[&function].name());
            println!("{hits:>8} {total:>12} {own:>12} {min:>10} {max:>10}  {name}");
        }
    }

    /// Checks that the times fit together and into `wall`.
    fn check(&self, wall: Duration) -> Result<(), String> {
        let mut own = 0;
        for (function, row) in self.called() {
            let [hits, total] = [row.hits.get(), row.total.get()];
            let range = hits * row.min.get()..=hits * row.max.get();
            if row.own.get() > total || !range.contains(&total) {
                return Err(format!("function {function}: {total} ns, not in {range:?}"));
            }
            own += row.own.get();
        }
        let outermost = self.outermost.get();
        if own != outermost || u128::from(outermost) > wall.as_nanos() {
            return Err(format!("{own} ns of {outermost} ns, {wall:?} in all"));
        }
        Ok(())
    }
}

/// The C interface of zlib, as far as the job needs it.
#[derive(Clone, Copy)]
struct Zlib {
    crc32: unsafe extern "C" fn(c_ulong, *const u8, c_uint) -> c_ulong,
    bound: unsafe extern "C" fn(c_ulong) -> c_ulong,
    compress: Convert,
    uncompress: Convert,
}

type Convert = unsafe extern "C" fn(*mut u8, *mut c_ulong, *const u8, c_ulong) -> c_int;

impl Zlib {
    fn load() -> Result<Self, String> {
        // SAFETY: loading zlib does nothing else, and it documents these functions so.
        unsafe {
            let library = Library::load(c"libz.so.1", "zlib1g")?;
            Ok(Self {
                crc32: library.get(c"crc32")?,
                bound: library.get(c"compressBound")?,
                compress: library.get(c"compress")?,
                uncompress: library.get(c"uncompress")?,
            })
        }
    }

    fn crc32(self, bytes: &[u8]) -> u64 {
        // SAFETY: so many bytes.
        unsafe { (self.crc32)(0, bytes.as_ptr(), bytes.len() as c_uint) }
    }

    fn convert(self, by: Convert, bytes: &[u8], room: usize) -> Result<Vec<u8>, String> {
        let mut out = vec![0; room];
        let mut len = room as c_ulong;
        // SAFETY: so many bytes, and so much room.
        let result = unsafe { by(out.as_mut_ptr(), &mut len, bytes.as_ptr(), bytes.len() as _) };
        out.truncate(len as usize);
        (result == 0)
            .then_some(out)
            .ok_or_else(|| format!("zlib: error {result}"))
    }

    /// Compresses a file and takes it apart again. Returns the length in between.
    fn there_and_back(self, bytes: &[u8]) -> Result<usize, String> {
        // SAFETY: it only computes.
        let bound = unsafe { (self.bound)(bytes.len() as c_ulong) };
        let small = self.convert(self.compress, bytes, bound as usize)?;
        let back = self.convert(self.uncompress, &small, bytes.len())?;
        if self.crc32(bytes) != self.crc32(&back) {
            return Err("the file has changed".into());
        }
        Ok(small.len())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<String> = env::args().skip(1).collect();
    if paths.is_empty() {
        paths.push("README.md".into());
    }
    let read = |path: &String| fs::read(path).map_err(|error| format!("{path}: {error}"));
    let files: Vec<Vec<u8>> = paths.iter().map(read).collect::<Result<_, _>>()?;
    let zlib = Zlib::load()?;

    // SAFETY: the callbacks use the clock and atomics only.
    let profiler = unsafe { fgraph::register(Profiler::default(), FILTER) }?;
    println!("{}", profiler.report()?);
    let started = Instant::now();
    let job = || -> Result<usize, String> {
        let passes = (0..PASSES).flat_map(|_| &files);
        passes.map(|file| zlib.there_and_back(file)).sum()
    };
    let sizes: Vec<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(job)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(join).collect::<Result<_, _>>()
    })?;
    let wall = started.elapsed();
    let functions = profiler.functions()?;
    let profiler = profiler.unregister()?;

    let names: HashMap<u32, Function> = functions.iter().map(|f| (f.index(), *f)).collect();
    let crc32 = functions.iter().find(|f| f.name().as_str() == "crc32");
    let crc32 = crc32.ok_or("zlib without crc32")?.index() as usize;
    let mut threads = 0;
    for (thread, table) in profiler.tables.into_values() {
        println!("\nThread {thread}:");
        table.print(&names);
        table.check(wall)?;
        let calls = [table.rows[crc32].hits.get(), table.without_row.get()];
        if calls != [(2 * PASSES * files.len()) as u64, 0] {
            return Err(format!("thread {thread} has called crc32 {} times", calls[0]).into());
        }
        threads += 1;
    }
    let before: usize = files.iter().map(Vec::len).sum();
    println!(
        "\n{before} bytes took {} bytes, by {threads} threads",
        sizes[0] / PASSES
    );
    if threads != THREADS {
        return Err(format!("{THREADS} threads have called").into());
    }
    Ok(())
}
