//! Rows of the scale benchmark: things in growing number, and the measured work.

use core::ffi::{CStr, c_int, c_void};
use core::hint::black_box;
use core::mem;
use std::error::Error;
use std::ffi::CString;
use std::fs;
use std::path::PathBuf;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use fgraph::Handle;
use fgraph_bench::functions::{Function, Variant};
use fgraph_bench::processor_time;
use fgraph_bench::tracers::Tracer;
use fgraph_bench::users::Declining;

type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// Functions of the libraries that stay loaded.
const STAYING: &str = "scale_*";
/// Functions of the library that is loaded again and again.
const RELOADED: &str = "reloaded_*";
/// One of the functions that `RELOADED` selects.
const CALLED: &CStr = c"reloaded_0";

/// Functions of every twentieth page of the library with one on each page, and all of them.
const TWENTIETH: &str = "exchanged_twentieth_*";
const EACH: &str = "exchanged_*";

/// Number of libraries that are loaded one by one when that is timed.
const LOADED: usize = 21;
/// Number of times that a library is loaded and unloaded when that is timed.
const RELOADS: usize = 101;
/// Number of times when memory counts, after the same number for warming up.
const COUNTED_RELOADS: usize = 300;
/// Number of frames that are unwound.
const FRAMES: usize = 20;
/// Number of times that they are unwound.
const UNWINDINGS: usize = 400;
/// Number of timed threads.
const THREADS: usize = 256;
/// Number of threads that have ended before memory is counted.
const ENDED: usize = 1_000;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;
const PAGE: usize = 4096;

/// Environment of the measurement.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) size: usize,
    pub(crate) is_traced: bool,
    /// Directory of the libraries.
    pub(crate) directory: PathBuf,
}

/// Measures nanoseconds or bytes of a row of `cargo xtask scale`, whose table says what each is.
pub(crate) fn measure(row: &str, place: &Place) -> Result<u64> {
    match row {
        "reload-functions" => {
            place.open(&format!("functions-{}.so", place.size))?;
            let _user = place.trace(STAYING)?;
            place.reload()
        }
        "reload-libraries" => {
            place.open_libraries()?;
            let _user = place.trace(STAYING)?;
            place.reload()
        }
        "load-libraries" => {
            let _user = place.trace_what_comes(STAYING)?;
            place.open_libraries()?;
            place.load()
        }
        "reload-memory" => {
            place.open_libraries()?;
            let _user = place.trace(&format!("{STAYING},{RELOADED}"))?;
            place.reload_memory()
        }
        "unwind" => {
            place.open_libraries()?;
            let _user = place.trace(STAYING)?;
            Ok(unwind())
        }
        "threads" => {
            let called = place.called()?;
            let _user = place.trace(RELOADED)?;
            for _ in 0..place.size {
                spawn(move || {
                    called(1);
                    loop {
                        thread::park();
                    }
                })?;
            }
            first_hits(called)
        }
        "mappings" => {
            let called = place.called()?;
            let _user = place.trace(RELOADED)?;
            (0..place.size).try_for_each(map)?;
            first_hits(called)
        }
        "aliases" => place.hook(&format!("aliases-{}.so", place.size)),
        "hook" => {
            let all = place.hook(&format!("functions-{}.so", place.size))?;
            Ok(all / place.size as u64)
        }
        "exchange-twentieth" => place.exchange(TWENTIETH),
        "exchange-all" => place.exchange(EACH),
        "ended-probe" => place.ended(Tracer::SharedProbe),
        row => {
            let name = row.strip_prefix("ended-").unwrap_or_default();
            let tracer = Tracer::ALL.into_iter().find(|(_, known)| *known == name);
            place.ended(tracer.ok_or("no such row")?.0)
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Place {
    /// Traces, if the command line says so.
    fn trace(&self, filter: &str) -> Result<Option<Handle<Declining>>> {
        let user = self.trace_what_comes(filter)?;
        if let Some(user) = &user
            && user.report()?.traced == 0
        {
            return Err("nothing is traced".into());
        }
        Ok(user)
    }

    /// Traces functions of libraries that are not loaded yet.
    fn trace_what_comes(&self, filter: &str) -> Result<Option<Handle<Declining>>> {
        let user = self
            .is_traced
            .then(|| fgraph_bench::register(Declining, filter));
        Ok(user.transpose()?)
    }

    fn open(&self, name: &str) -> Result<*mut c_void> {
        open(&self.path(name)?)
    }

    fn path(&self, name: &str) -> Result<CString> {
        let path = self
            .directory
            .join(name)
            .into_os_string()
            .into_encoded_bytes();
        Ok(CString::new(path)?)
    }

    fn open_libraries(&self) -> Result<()> {
        (0..self.size).try_for_each(|number| self.open(&format!("library-{number}.so")).map(drop))
    }

    /// Measures tracing the functions of a library when all others are known.
    fn hook(&self, name: &str) -> Result<u64> {
        let known = fgraph_bench::register(Declining, STAYING)?;
        drop(known);
        self.open(name)?;
        let start = Instant::now();
        let _user = self.trace(STAYING)?;
        Ok(nanoseconds(start.elapsed()))
    }

    /// Returns a function that does nothing but return.
    fn called(&self) -> Result<extern "C" fn(i64) -> i64> {
        let library = self.open("reloaded.so")?;
        // SAFETY: the handle is open, and the name ends with a zero byte.
        let function = unsafe { libc::dlsym(library, CALLED.as_ptr()) };
        if function.is_null() {
            return Err("the library does not have its function".into());
        }
        // SAFETY: the source says that it is a function of this type.
        Ok(unsafe { mem::transmute::<*mut c_void, extern "C" fn(i64) -> i64>(function) })
    }

    /// Returns the shortest time of `dlopen` and `dlclose`.
    fn reload(&self) -> Result<u64> {
        let path = self.path("reloaded.so")?;
        let mut shortest = Duration::MAX;
        for _ in 0..RELOADS {
            let start = Instant::now();
            reload(&path)?;
            shortest = shortest.min(start.elapsed());
        }
        Ok(nanoseconds(shortest))
    }

    /// Returns the median time of `dlopen` for libraries that were not loaded before.
    fn load(&self) -> Result<u64> {
        let mut times = Vec::new();
        for number in self.size..self.size + LOADED {
            let path = self.path(&format!("library-{number}.so"))?;
            let start = Instant::now();
            open(&path)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(nanoseconds(times[LOADED / 2]))
    }

    /// Returns the longest time for which text is moved at once, when functions that `filter`
    /// selects are traced and untraced. All their pages are in memory.
    fn exchange(&self, filter: &str) -> Result<u64> {
        let library = self.open(&format!("exchanged-{}.so", self.size))?;
        // SAFETY: the handle is open, and the name ends with a zero byte.
        let first = unsafe { libc::dlsym(library, c"exchanged_twentieth_0".as_ptr()) };
        if first.is_null() {
            return Err("the library does not have its first function".into());
        }
        // In a process with one thread text is not exchanged.
        spawn(|| {
            loop {
                thread::park();
            }
        })?;
        for page in 0..self.size {
            // SAFETY: each page of the library has a function.
            black_box(unsafe { first.cast::<u8>().add(page * PAGE).read_volatile() });
        }
        drop(self.trace(filter)?);
        Ok(nanoseconds(fgraph::status()?.longest_exchange))
    }

    /// Returns the bytes that threads which come and go under a tracer leave behind.
    fn ended(&self, tracer: Tracer) -> Result<u64> {
        let _tracer = self.is_traced.then(|| tracer.set_up()).transpose()?;
        come_and_go(ENDED)?;
        let before = resident()?;
        come_and_go(self.size)?;
        Ok(resident()?.saturating_sub(before))
    }

    /// Returns the bytes that repeated `dlopen` and `dlclose` leave behind.
    fn reload_memory(&self) -> Result<u64> {
        let path = self.path("reloaded.so")?;
        let all = || (0..COUNTED_RELOADS).try_for_each(|_| reload(&path));
        all()?;
        let before = resident()?;
        all()?;
        Ok(resident()?.saturating_sub(before))
    }
}

fn open(path: &CStr) -> Result<*mut c_void> {
    // SAFETY: the libraries have no constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(format!("{path:?} cannot be loaded").into());
    }
    Ok(library)
}

fn reload(path: &CStr) -> Result<()> {
    let library = open(path)?;
    // SAFETY: the handle is open, and nothing of the library is used.
    unsafe { libc::dlclose(library) };
    Ok(())
}

/// Returns the bytes of memory without a file.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes
        .ok_or("the kernel does not say RssAnon")?
        .parse::<u64>()?
        << 10)
}

/// Makes a mapping that is not merged with the previous one.
fn map(number: usize) -> Result<()> {
    let rights = if number.is_multiple_of(2) {
        libc::PROT_READ
    } else {
        libc::PROT_NONE
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let mapped = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}

/// Returns the time of a new thread's first call, on average of threads that run one after the
/// other. It is processor time, since all of them count.
fn first_hits(called: extern "C" fn(i64) -> i64) -> Result<u64> {
    let mut sum = 0;
    for _ in 0..THREADS {
        let thread = spawn(move || {
            let start = processor_time();
            called(1);
            processor_time() - start
        })?;
        sum += thread.join().map_err(|_| "a thread panicked")?;
    }
    Ok(sum / THREADS as u64)
}

/// Makes this number of threads call a traced function, one after the other.
fn come_and_go(threads: usize) -> Result<()> {
    for _ in 0..threads {
        let thread = spawn(|| Function::Leaf.run(Variant::Patchable, 1))?;
        thread.join().map_err(|_| "a thread panicked")?;
    }
    Ok(())
}

fn spawn<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> std::io::Result<thread::JoinHandle<R>> {
    Builder::new().stack_size(STACK).spawn(work)
}

/// The shortest time that it takes to unwind [`FRAMES`] frames.
fn unwind() -> u64 {
    let shortest = (0..UNWINDINGS).map(|_| at_depth(FRAMES));
    nanoseconds(shortest.min().unwrap_or_default())
}

#[inline(never)]
fn at_depth(depth: usize) -> Duration {
    if depth != 0 {
        return black_box(at_depth(black_box(depth - 1)));
    }
    let mut left = FRAMES;
    let start = Instant::now();
    // SAFETY: the callback is called with the address of `left`.
    unsafe { _Unwind_Backtrace(count, (&raw mut left).cast()) };
    start.elapsed()
}

extern "C" fn count(_context: *mut c_void, left: *mut c_void) -> c_int {
    const NO_REASON: c_int = 0;
    const END_OF_STACK: c_int = 5;
    // SAFETY: the address of the `left` in `at_depth`.
    let left = unsafe { &mut *left.cast::<usize>() };
    *left -= 1;
    if *left == 0 { END_OF_STACK } else { NO_REASON }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        callback: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
}
