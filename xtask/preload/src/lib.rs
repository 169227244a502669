//! Traces a program that knows nothing of fgraph.
//!
//! `cargo xtask hook` and `cargo xtask ecosystem` preload it. Before the program's `main` it
//! registers users with the filter in `FGRAPH_FILTER`, as many as `FGRAPH_USERS` says, or one; they
//! count. When the program exits they are unregistered, and what they have counted is appended as
//! one JSON object, a line, to the file `FGRAPH_OUT`. Without a filter it does nothing.
//!
//! `FGRAPH_PLANNING_THREADS` says how many threads plan for the first user, and `FGRAPH_PLANS` is a
//! directory where plans are kept.
//!
//! With `FGRAPH_TRACERS` all tracers of `fgraph-tracers` work as well, with the same filter, and
//! what they have seen is in the object.
//!
//! The children that the program forks are traced, and report nothing: putting all functions back
//! and listing them takes longer than most children live. They count in memory that they share with
//! the program, so that its report has their calls too, those that were made until then. Programs
//! that are executed are left alone, unless `FGRAPH_CHILDREN` is set: then they are traced and
//! report as well.
//!
//! # Safety
//!
//! The unsafe code maps memory, hears of forks, puts functions where the dynamic linker looks for
//! those to call when it loads the library and when the program exits, takes the preloading out of
//! the environment while there is one thread only, and reads a clock.

mod tracers;

use std::env;
use std::error;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fgraph::{
    Entry, Error, FgraphOps, FilterReport, Handle, Options, PlanStore, RefusalReason,
    RefusedFunction, RelocateError, Return, SiteInfo, TraceMethod, UnregisterError, Untraced,
};
use tracers::Tracers;

/// Counts on the threads of a program, each in a line of its own for as many threads as there are
/// lines. The processes that the program forks count in lines that they all share.
#[derive(Clone, Copy, Debug)]
struct Count {
    own: &'static Lines,
    forked: &'static Lines,
}

type Lines = [Line; 16];

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    entries: AtomicU64,
    returns: AtomicU64,
}

/// True if this process is a child that the program has forked.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

impl Count {
    fn new() -> io::Result<Self> {
        let (len, protection) = (size_of::<[Lines; 2]>(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped for good, zero, and aligned to a page.
        let [own, forked] = unsafe { &*mapped.cast::<[Lines; 2]>() };
        Ok(Self { own, forked })
    }

    fn line(&self, thread: u32) -> &Line {
        let lines = if IS_FORKED.load(Ordering::Relaxed) {
            self.forked
        } else {
            self.own
        };
        &lines[thread as usize % lines.len()]
    }
}

fn sum(lines: &Lines, counter: impl Fn(&Line) -> &AtomicU64) -> u64 {
    let count = |line| counter(line).load(Ordering::Relaxed);
    lines.iter().map(count).sum()
}

extern "C" fn in_child() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

impl FgraphOps for Count {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let line = self.line(call.thread_id());
        line.entries.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    fn ret(&self, call: &mut Return<'_, ()>, _data: ()) {
        let line = self.line(call.thread_id());
        line.returns.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of untraceable functions that are shown with their reasons.
const REFUSED_SHOWN: usize = 10;

/// The users, while they are registered.
#[derive(Debug)]
struct Tracing {
    users: Vec<Handle<Count>>,
    tracers: Option<Tracers>,
    /// The process that has registered them.
    process: u32,
    /// The file to report to. Programs clear their environment.
    out: PathBuf,
    /// Time of registering the first one: on the clock, and of the processor.
    registered_in: [Duration; 2],
    /// Report of the filter then.
    report: FilterReport,
}

static TRACING: Mutex<Option<Tracing>> = Mutex::new(None);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    let Ok(filter) = env::var("FGRAPH_FILTER") else {
        return;
    };
    if env::var_os("FGRAPH_CHILDREN").is_none() {
        // SAFETY: the program has no other thread yet.
        unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
    }
    let users = env::var("FGRAPH_USERS").ok().and_then(|n| n.parse().ok());
    let out = env::var_os("FGRAPH_OUT").unwrap_or_default();
    match trace(&filter, users.unwrap_or(1), out.into()) {
        Ok(tracing) => *TRACING.lock().expect("nothing panics") = Some(tracing),
        Err(error) => {
            eprintln!("fgraph-preload-test: {error}");
            process::abort();
        }
    }
}

fn trace(filter: &str, users: usize, out: PathBuf) -> Result<Tracing, Box<dyn error::Error>> {
    // All begin with the same call.
    let _untraced = Untraced::new();
    let (start, used) = (Instant::now(), processor_time());
    let mut options = Options::new().allow_no_match();
    if let Ok(threads) = env::var("FGRAPH_PLANNING_THREADS") {
        options = options.planning_threads(threads.parse()?);
    }
    if let Some(plans) = env::var_os("FGRAPH_PLANS") {
        let plans = Arc::new(Plans(plans.into()));
        // SAFETY: whoever sets the variable has the directory for this build of the library alone.
        unsafe { fgraph::set_plan_store(Some(plans)) };
    }
    let register = || {
        let count = Count::new()?;
        // SAFETY: the callbacks of `Count` add to atomics, which is allowed wherever a function may
        // be called.
        unsafe { fgraph::register_with(count, filter, &options) }
            .map_err(|error| Box::from(Error::from(error)))
    };
    // SAFETY: the function sets a flag.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    let first = register()?;
    let registered_in = [start.elapsed(), processor_time() - used];
    let report = first.report()?;
    let mut users: Vec<_> = (1..users)
        .map(|_| register())
        .collect::<Result<_, Box<dyn error::Error>>>()?;
    users.insert(0, first);
    let tracers = env::var_os("FGRAPH_TRACERS").map(|_| Tracers::start(filter));
    Ok(Tracing {
        users,
        tracers: tracers.transpose()?,
        process: process::id(),
        out,
        registered_in,
        report,
    })
}

/// The plans in a directory.
#[derive(Debug)]
struct Plans(PathBuf);

// SAFETY: the files have the contents that were saved, as nobody else writes to the directory.
unsafe impl PlanStore for Plans {
    fn load(&self, _module: &str, key: u128) -> Option<Vec<u8>> {
        fs::read(self.0.join(format!("{key:032x}"))).ok()
    }

    fn save(&self, _module: &str, key: u128, plan: &[u8]) {
        // Without it the next program plans anew.
        let _ = fs::write(self.0.join(format!("{key:032x}")), plan);
    }
}

/// Returns the processor time that this process has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live local. The clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

extern "C" fn end() {
    let mut tracing = TRACING.lock().expect("nothing panics");
    let Some(tracing) = tracing.take_if(|tracing| tracing.process == process::id()) else {
        return;
    };
    if let Err(error) = report(tracing) {
        eprintln!("fgraph-preload-test: {error}");
    }
}

/// Unregisters the users and writes down what they have counted, all together.
fn report(tracing: Tracing) -> Result<(), Box<dyn error::Error>> {
    let FilterReport {
        traced, refused, ..
    } = tracing.report;
    // All end with the same call.
    let untraced = Untraced::new();
    let seen = tracing.tracers.map_or(Ok(Vec::new()), Tracers::end)?;
    let (mut entries, mut returns, mut forked) = (0, 0, [0; 2]);
    for user in tracing.users {
        let count = user.unregister().map_err(UnregisterError::into_error)?;
        entries += sum(count.own, |line| &line.entries);
        returns += sum(count.own, |line| &line.returns);
        forked[0] += sum(count.forked, |line| &line.entries);
        forked[1] += sum(count.forked, |line| &line.returns);
    }
    drop(untraced);
    let status = fgraph::status()?;
    let (nops, relocated) = program()?;
    let figures = [
        ("pid", u64::from(process::id())),
        ("traced", traced as u64),
        ("refused", refused.len() as u64),
        ("nops", nops),
        ("relocated", relocated),
        ("register_us", tracing.registered_in[0].as_micros() as u64),
        (
            "register_cpu_us",
            tracing.registered_in[1].as_micros() as u64,
        ),
        ("entries", entries),
        ("returns", returns),
        ("forked_entries", forked[0]),
        ("forked_returns", forked[1]),
        ("missed", status.counters.missed + status.counters.internal),
        ("overrun", status.counters.overrun),
        ("unreserved", status.counters.unreserved),
        ("lost", status.counters.lost),
        ("no_shadow_stack", status.counters.no_shadow_stack),
        ("unattached", status.unattached),
        ("patched", status.patched as u64),
        ("stopped", u64::from(status.stopped.is_some())),
    ];
    let figures = figures.into_iter().chain(seen);
    let members: Vec<_> = figures
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    // The quoted form of printable text in Rust is that in JSON.
    let shown = refused.iter().take(REFUSED_SHOWN);
    let reasons: Vec<String> = shown.map(|one| format!("{:?}", one.to_string())).collect();
    let refusals: Vec<String> = refused.iter().filter_map(unexpected).collect();
    let line = format!(
        "{{{},\"reasons\":[{}],\"refusals\":[{}]}}\n",
        members.join(","),
        reasons.join(","),
        refusals.join(",")
    );
    let mut file = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(tracing.out)?;
    // At once, as others may write to it.
    file.write_all(line.as_bytes())?;
    Ok(())
}

/// Functions of the program itself that have a NOP, and that are relocated.
fn program() -> Result<(u64, u64), Box<dyn error::Error>> {
    let path = env::current_exe()?;
    let sites = fgraph::sites()?;
    let count = |how| {
        let is_meant = |site: &SiteInfo| site.how == Ok(how) && Path::new(&site.module) == path;
        sites.iter().filter(is_meant).count() as u64
    };
    Ok((count(TraceMethod::Nop), count(TraceMethod::Relocated)))
}

/// Returns a refusal as a string of JSON, unless its kind is expected: functions that are listed
/// with a reason, that are shorter than a jump, or that call others before there is room for one.
fn unexpected(refused: &RefusedFunction) -> Option<String> {
    use RelocateError::{Returns, TooShort};

    let is_expected = matches!(
        refused.reason,
        RefusalReason::Notrace(_)
            | RefusalReason::Resolver
            | RefusalReason::Displace(TooShort { .. } | Returns { .. })
    );
    // JSON escapes a name as Rust does.
    (!is_expected).then(|| format!("{:?}", refused.to_string()))
}
