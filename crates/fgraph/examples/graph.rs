//! A function graph, as the kernel's `function_graph` tracer draws it: who calls whom, and how
//! long it takes.
//!
//! The job is SQLite's: it counts the words of a text file in a database in memory. The user
//! watches every function of its library, and some of the C library that these call. Its callbacks
//! neither allocate nor lock, so any filter may be given behind the file.
//!
//!     cargo run --release --example graph -- README.md
//!     cargo run --release --example graph -- README.md ':mod:libsqlite3.so.0 :mod:libc.so.6'

mod library;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use std::{env, fs, ptr};

use library::Library;

use fgraph::{Entry, FgraphOps, Function, Return};

const FILTER: &str = ":mod:libsqlite3.so.0 malloc realloc free memcpy strlen";
/// Function that the job calls for each statement.
const EXEC: &str = "sqlite3_exec";
/// Lines of the graph that are printed.
const LINES: usize = 60;

/// An entry, or a return with how long the call took.
#[derive(Clone, Copy)]
struct Event {
    thread: u32,
    function: u32,
    depth: u32,
    /// Duration in nanoseconds; `None` at entry.
    took: Option<u64>,
}

/// Room for one event. The thread that has taken it writes it, others read when all is done.
#[derive(Default)]
struct Slot([AtomicU64; 3]);

impl Slot {
    fn write(&self, event: Event) {
        let words = [
            u64::from(event.thread) << 32 | u64::from(event.function),
            event.depth.into(),
            event.took.map_or(0, |took| took + 1),
        ];
        for (to, word) in self.0.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Event {
        let [who, depth, took] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        Event {
            thread: (who >> 32) as u32,
            function: who as u32,
            depth: depth as u32,
            took: took.checked_sub(1),
        }
    }
}

/// Records who calls whom.
struct Graph {
    events: Box<[Slot]>,
    /// Number of events, including those that found no room.
    count: AtomicUsize,
}

/// Data that a call carries from entry to return.
#[derive(Clone, Copy)]
struct Call {
    entered: Instant,
    depth: u32,
}

impl Graph {
    fn new(events: usize) -> Self {
        Self {
            events: (0..events).map(|_| Slot::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }

    fn record(&self, event: Event) {
        let index = self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.events.get(index) {
            slot.write(event);
        }
    }

    /// The events of each thread, in order.
    ///
    /// # Errors
    ///
    /// If there was no room for all.
    fn by_thread(&self) -> Result<BTreeMap<u32, Vec<Event>>, Box<dyn Error>> {
        let count = self.count.load(Ordering::Relaxed);
        let events = self.events.get(..count).ok_or_else(|| {
            let room = self.events.len();
            format!("{count} events, and room for {room}")
        })?;
        let mut threads: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
        for event in events.iter().map(Slot::read) {
            threads.entry(event.thread).or_default().push(event);
        }
        Ok(threads)
    }
}

impl FgraphOps for Graph {
    type Data = Call;

    fn entry(&self, call: &mut Entry<'_, Call>) -> Option<Call> {
        let depth = call.parent_data().map_or(0, |parent| parent.depth + 1);
        self.record(Event {
            thread: call.thread_id(),
            function: call.function().index(),
            depth,
            took: None,
        });
        let entered = Instant::now();
        Some(Call { entered, depth })
    }

    fn ret(&self, call: &mut Return<'_, Call>, data: Call) {
        let took = data.entered.elapsed().as_nanos() as u64;
        self.record(Event {
            thread: call.thread_id(),
            function: call.function().index(),
            depth: data.depth,
            took: Some(took),
        });
    }
}

/// Prints the first events of a thread. The columns, and the marks of long calls, are the kernel's.
fn print(events: &[Event], names: &HashMap<u32, Function>) {
    let mut events = events.iter().peekable();
    for _ in 0..LINES {
        let Some(event) = events.next() else { return };
        let name = names[&event.function].name();
        let (thread, indent) = (event.thread, 2 * event.depth as usize);
        let is_leaf = |next: &&Event| next.took.is_some() && next.depth == event.depth;
        let (took, text) = match event.took {
            Some(took) => (Some(took), format!("}} /* {name} */")),
            None => match events.next_if(is_leaf) {
                Some(next) => (next.took, format!("{name}();")),
                None => (None, format!("{name}() {{")),
            },
        };
        let took = took.map_or(String::new(), |took| {
            let mark = match took {
                100_000_000.. => '@',
                10_000_000.. => '*',
                1_000_000.. => '#',
                100_000.. => '!',
                10_000.. => '+',
                _ => ' ',
            };
            format!("{mark} {:.3} us", took as f64 / 1e3)
        });
        println!("{thread:>7}) {took:<13} |  {:indent$}{text}", "");
    }
    println!("        ... {} more events", events.count());
}

/// Checks that calls are nested, and that no call took less time than the calls in it. Returns how
/// often each function was called, not counting the calls in another call of it.
fn check(events: &[Event]) -> Result<HashMap<u32, usize>, Box<dyn Error>> {
    let mut counts = HashMap::new();
    // The calls that go on, each with the time of those in it.
    let mut open: Vec<(u32, u64)> = Vec::new();
    for event in events {
        let Some(took) = event.took else {
            if event.depth as usize != open.len() {
                return Err(format!("depth {} in {} calls", event.depth, open.len()).into());
            }
            if open.iter().all(|&(around, _)| around != event.function) {
                *counts.entry(event.function).or_default() += 1;
            }
            open.push((event.function, 0));
            continue;
        };
        let (function, inside) = open.pop().ok_or("a return without an entry")?;
        if function != event.function || event.depth as usize != open.len() {
            return Err("a return of another call than the innermost".into());
        }
        if inside > took {
            return Err(format!("{inside} ns within a call of {took} ns").into());
        }
        if let Some((_, around)) = open.last_mut() {
            *around += took;
        }
    }
    if !open.is_empty() {
        return Err(format!("{} calls have not returned", open.len()).into());
    }
    Ok(counts)
}

/// The C interface of SQLite, as far as the job needs it.
struct Sqlite {
    open: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    exec: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        Option<Row>,
        *mut c_void,
        *mut *mut c_char,
    ) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

type Row = extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

/// Prints the columns of a row.
extern "C" fn show(
    _: *mut c_void,
    count: c_int,
    values: *mut *mut c_char,
    _: *mut *mut c_char,
) -> c_int {
    for at in 0..count as usize {
        // SAFETY: SQLite gives so many strings, none of them null in this job.
        let value = unsafe { CStr::from_ptr(*values.add(at)) };
        print!("{:>12}", value.to_string_lossy());
    }
    println!();
    0
}

impl Sqlite {
    fn load() -> Result<Self, String> {
        // SAFETY: loading SQLite does nothing else, and it documents these functions so.
        unsafe {
            let library = Library::load(c"libsqlite3.so.0", "libsqlite3-0")?;
            Ok(Self {
                open: library.get(c"sqlite3_open")?,
                exec: library.get(c"sqlite3_exec")?,
                close: library.get(c"sqlite3_close")?,
            })
        }
    }

    /// Runs statements on a new database.
    fn run(&self, statements: &[CString]) -> Result<(), Box<dyn Error>> {
        let mut database = ptr::null_mut();
        // SAFETY: a name, and a place for the database, which is closed at the end.
        let results: Vec<c_int> = unsafe {
            let opened = (self.open)(c":memory:".as_ptr(), &mut database);
            let run = |sql: &CString| {
                (self.exec)(
                    database,
                    sql.as_ptr(),
                    Some(show),
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
            let ran = statements.iter().map(run);
            let results = std::iter::once(opened).chain(ran).collect();
            (self.close)(database);
            results
        };
        match results.iter().position(|&result| result != 0) {
            Some(at) => Err(format!("SQLite: error {} at step {at}", results[at]).into()),
            None => Ok(()),
        }
    }
}

/// The statements that count the words of a text.
fn statements(text: &str) -> Result<Vec<CString>, Box<dyn Error>> {
    let words = text.split(|c: char| !c.is_ascii_alphabetic());
    let words = words.filter(|word| word.len() > 3).take(200);
    let insert = words.map(|word| format!("insert into words values ('{word}')"));
    let first = "create table words (word text)".to_owned();
    let last =
        "select word, count(*) from words group by word order by 2 desc, 1 limit 3".to_owned();
    let all = [first].into_iter().chain(insert).chain([last]);
    Ok(all.map(CString::new).collect::<Result<_, _>>()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "README.md".into());
    let filter = arguments.next().unwrap_or_else(|| FILTER.into());
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let statements = statements(&text)?;
    let sqlite = Sqlite::load()?;

    // SAFETY: the callbacks use the clock and memory of their own only, with atomics.
    let graph = unsafe { fgraph::register(Graph::new(1 << 21), &filter) }?;
    sqlite.run(&statements)?;
    let (report, functions) = (graph.report()?, graph.functions()?);
    let graph = graph.unregister()?;

    let names: HashMap<u32, Function> = functions.iter().map(|f| (f.index(), *f)).collect();
    let threads = graph.by_thread()?;
    println!("\n{report}\n\n# tracer: function_graph\n#");
    println!("#  TID     DURATION           FUNCTION CALLS");
    println!("#   |       |   |              |   |   |   |");
    let exec = functions.iter().find(|f| f.name().as_str() == EXEC);
    let mut execs = 0;
    for events in threads.values() {
        print(events, &names);
        let counts = check(events)?;
        execs += exec.map_or(0, |exec| counts.get(&exec.index()).copied().unwrap_or(0));
    }
    let (events, statements) = (graph.count.into_inner(), statements.len());
    println!("{events} events, {execs} calls of {EXEC} for {statements} statements");
    if exec.is_some() && execs != statements {
        return Err("each statement takes one call".into());
    }
    Ok(())
}
