//! Watches the function `leaf` of the program that it is preloaded into, as its peers do.
//!
//! `FGRAPH_WATCH` says who watches: `empty`, `count`, `ring`, `file` or `profiler`, or `off` for a
//! user that is gone; `FGRAPH_HOW` how the function must be traced, `FGRAPH_OUT` which file is
//! written to, and `FGRAPH_BUFFER` how many bytes may wait for that. When the program exits, it
//! prints how many entries and returns are known of.
//!
//! Where code lies can make a call a fifth slower, by chance: the processor takes one branch for
//! another. `FGRAPH_PAD`, when this is built, shifts the code by so many bytes.
//!
//! # Safety
//!
//! The unsafe code puts functions where the dynamic linker looks for those to call when it loads
//! the library and when the program exits.

use std::arch::naked_asm;
use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fgraph::{Entry, FgraphOps, Handle, PerThread, Return, UnregisterError};
use fgraph_trace::event::What;
use fgraph_trace::ring::{Mode, RingOptions};
use fgraph_trace::{Recording, Source as _};
use fgraph_tracers::profiler::Profiler;
use fgraph_tracers::recorder::{FileRecorder, Options, Recorder};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const FUNCTION: &str = "leaf";

/// Wants every return and does nothing.
#[derive(Debug)]
struct Empty;

impl FgraphOps for Empty {
    type Data = ();

    fn entry(&self, _call: &mut Entry<'_, ()>) -> Option<()> {
        Some(())
    }

    fn ret(&self, _call: &mut Return<'_, ()>, _data: ()) {}
}

/// Wants no return, and counts calls.
#[derive(Debug, Default)]
struct Counting(PerThread<AtomicU64>);

impl FgraphOps for Counting {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let calls = call.per_thread(&self.0)?;
        // Only its own thread writes to it.
        calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        None
    }
}

/// Ends a watcher, and returns the number of events that are known of, if any should be.
type End = Box<dyn FnOnce() -> Result<Option<u64>> + Send>;

/// The bytes by which the code is shifted.
const PAD: usize = match option_env!("FGRAPH_PAD") {
    None => 0,
    Some(text) => match usize::from_str_radix(text, 10) {
        Ok(bytes) => bytes,
        Err(_) => panic!("FGRAPH_PAD is no number"),
    },
};

/// Is never called.
#[unsafe(naked)]
extern "C" fn pad() {
    naked_asm!(".skip {pad}", "ud2", pad = const PAD)
}

#[used]
static KEEP_PAD: extern "C" fn() = pad;

static WATCHER: Mutex<Option<End>> = Mutex::new(None);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    match watch() {
        Ok(end) => *WATCHER.lock().expect("nothing panics") = Some(end),
        Err(error) => {
            eprintln!("fgraph-versus: {error}");
            process::exit(1);
        }
    }
}

/// Registers a user whose callbacks are allowed everywhere.
fn register<T: FgraphOps>(user: T) -> Result<Handle<T>> {
    // SAFETY: the callbacks do nothing, or count.
    Ok(unsafe { fgraph::register(user, FUNCTION) }.map_err(|failed| failed.error)?)
}

fn unregister<T: FgraphOps>(handle: Handle<T>) -> Result<T> {
    Ok(handle.unregister().map_err(UnregisterError::into_error)?)
}

/// Begins to watch.
fn watch() -> Result<End> {
    let end: End = match env::var("FGRAPH_WATCH")?.as_str() {
        "empty" => {
            let handle = register(Empty)?;
            Box::new(|| unregister(handle).map(|_| None))
        }
        "off" => {
            unregister(register(Empty)?)?;
            Box::new(|| Ok(None))
        }
        "count" => {
            let handle = register(Counting::default())?;
            Box::new(|| {
                let counting = unregister(handle)?;
                let each = counting.0.iter();
                let calls = each.map(|(_, calls)| calls.load(Ordering::Relaxed));
                Ok(Some(calls.sum()))
            })
        }
        "ring" => {
            let options = Options {
                rings: RingOptions {
                    mode: Mode::Overwrite,
                    ..RingOptions::default()
                },
                ..Options::default()
            };
            let recorder = Recorder::start_with(FUNCTION, &options)?;
            // The oldest are meant to be overwritten.
            Box::new(|| Ok(recorder.finish().map(|_| None)?))
        }
        "file" => {
            let path = PathBuf::from(env::var_os("FGRAPH_OUT").ok_or("FGRAPH_OUT names no file")?);
            let bytes: u32 = env::var("FGRAPH_BUFFER")?.parse()?;
            let rings = RingOptions::default();
            let sub_buffers = bytes / rings.sub_buffer_bytes;
            let options = Options {
                rings: RingOptions {
                    sub_buffers,
                    ..rings
                },
                ..Options::default()
            };
            let recorder = FileRecorder::start(&path, FUNCTION, &options)?;
            Box::new(move || {
                recorder.finish()?;
                recorded(&path).map(Some)
            })
        }
        "profiler" => {
            let profiler = Profiler::start(FUNCTION)?;
            Box::new(|| {
                let profile = profiler.finish()?.together();
                Ok(Some(profile.of(FUNCTION).map_or(0, |row| 2 * row.hits)))
            })
        }
        other => return Err(format!("FGRAPH_WATCH is {other}").into()),
    };
    let how = env::var("FGRAPH_HOW")?;
    let sites = fgraph::sites()?;
    let site = sites.iter().find(|site| site.name == FUNCTION);
    match site.ok_or("the program has no function to watch")?.how {
        Ok(method) if method.to_string() == how => Ok(end),
        ref other => Err(format!("{FUNCTION} is {other:?}, not {how}").into()),
    }
}

extern "C" fn end() {
    let end = WATCHER.lock().expect("nothing panics").take();
    match end.map_or(Ok(None), |end| end()) {
        Ok(None) => {}
        Ok(Some(events)) => println!("{events}"),
        Err(error) => eprintln!("fgraph-versus: {error}"),
    }
}

/// Returns the number of entries and returns in a recording.
fn recorded(path: &Path) -> Result<u64> {
    let mut recording = Recording::open(path)?;
    let mut events = 0;
    while let Some(event) = recording.next()? {
        events += u64::from(matches!(
            event.what,
            What::Entry { .. } | What::Return { .. }
        ));
    }
    Ok(events)
}
