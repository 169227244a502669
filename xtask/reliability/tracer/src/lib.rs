//! Traces a hostile program, and checks all that users are told.
//!
//! The runner preloads it. Before the program's `main` it registers users, and at the program's end
//! it unregisters them. Their callbacks change every register that they may, and all that they see
//! is counted in a file that the runner reads. The environment sets it up:
//!
//! | variable | meaning |
//! |---|---|
//! | `FGRAPH_RECORD` | the file, as long as the record; nothing is done without it |
//! | `FGRAPH_PROGRAM` | path of the program: others that it executes are left alone |
//! | `FGRAPH_FILTER` | the filter of all users |
//! | `FGRAPH_USERS` | how many, 1 to 16 |
//! | `FGRAPH_SITES` | set: counts how the program's functions are traced; takes a while |
//! | `FGRAPH_DECLINE` | set: each user declines one call of three |
//! | `FGRAPH_TOGGLE` | a glob: functions that go out of all filters and come back all the time |
//! | `FGRAPH_UNORDERED` | set: returns may come in any order |
//! | `FGRAPH_SHADOW` | bytes of a thread's shadow stack, 16 MiB if not set |
//! | `FGRAPH_SLOW` | microseconds that the first user sleeps in each of its callbacks |
//! | `FGRAPH_CHURN` | set: other users come and go all the time, and filters change |
//!
//! Children that the program forks are traced as well; they and programs that it executes count in
//! the same file.
//!
//! # Safety
//!
//! The unsafe code puts functions where the dynamic linker looks for those to call when it loads
//! the library and when the program exits, maps the record, which is never unmapped, and reads the
//! program's text, which is mapped.

mod churn;
#[path = "../../../../crates/fgraph/tests/common/clobber.rs"]
mod clobber;
#[path = "../../src/record.rs"]
pub mod record;
mod text;
mod thread;
mod toggle;
mod user;

use std::env;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use fgraph::{FgraphOps, Handle, Options, TraceMethod, UserStatus};

use churn::Churn;
use record::{Count, Record};
use user::User;

/// Deep recursion has room with 16 users.
const SHADOW_STACK: usize = 16 << 20;

static RECORD: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// Adds to a count of the record, which is mapped.
fn count(count: Count, more: u64) {
    // SAFETY: mapped before the first user is registered, and never unmapped.
    unsafe { &*RECORD.load(Ordering::Relaxed) }.add(count, more);
}

/// The users, while they are registered, and what the program's text was before.
struct Tracing {
    users: Vec<Box<dyn Registered>>,
    churn: Option<Churn>,
    text: u64,
}

static TRACING: Mutex<Option<Tracing>> = Mutex::new(None);

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    let Ok(record) = env::var("FGRAPH_RECORD") else {
        return;
    };
    if env::current_exe().ok() != env::var_os("FGRAPH_PROGRAM").map(PathBuf::from) {
        return;
    }
    match map(&record).map_err(Into::into).and_then(|()| trace()) {
        Ok(tracing) => {
            *TRACING.lock().expect("nothing panics") = Some(tracing);
            toggle::start();
        }
        Err(error) => {
            complain(error);
            process::abort();
        }
    }
}

/// Says what went wrong. A run that goes wrong is shown with what it says.
fn complain(error: impl fmt::Display) {
    eprintln!("fgraph-reliability-tracer: {error}");
}

/// Maps the record.
fn map(path: &str) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    // SAFETY: maps fresh memory. The file is as long as the record, and its words are atomics.
    let record = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size_of::<Record>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if record == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    RECORD.store(record.cast(), Ordering::Relaxed);
    Ok(())
}

/// Registers the users.
fn trace() -> Result<Tracing, Box<dyn std::error::Error>> {
    let number = |name| env::var(name).ok()?.parse::<usize>().ok();
    let is_set = |name| env::var_os(name).is_some();
    user::DECLINE.store(is_set("FGRAPH_DECLINE"), Ordering::Relaxed);
    user::IN_ORDER.store(!is_set("FGRAPH_UNORDERED"), Ordering::Relaxed);
    user::SLEEP.store(number("FGRAPH_SLOW").unwrap_or(0) as u64, Ordering::Relaxed);
    fgraph::set_shadow_stack_size(number("FGRAPH_SHADOW").unwrap_or(SHADOW_STACK));
    // SAFETY: the function stays, and may run in a child.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    let filter = env::var("FGRAPH_FILTER")?;
    let text = text::checksum();
    let churns = is_set("FGRAPH_CHURN");
    let most = if churns {
        fgraph::MAX_USERS - churn::USERS
    } else {
        fgraph::MAX_USERS
    };
    let users = (0..number("FGRAPH_USERS").unwrap_or(1).min(most))
        .map(|id| register(id as u64, &filter))
        .collect::<Result<_, _>>()?;
    if is_set("FGRAPH_SITES") {
        count_sites()?;
    }
    count(Count::Processes, 1);
    Ok(Tracing {
        users,
        churn: churns.then(|| Churn::start(filter)),
        text,
    })
}

/// Counts how the program's functions are traced.
fn count_sites() -> Result<(), Box<dyn std::error::Error>> {
    let program = env::var("FGRAPH_PROGRAM")?;
    let name = program.rsplit('/').next().unwrap_or(&program);
    let sites = fgraph::sites_of(format!(":mod:{name}").as_str())?;
    for site in sites.iter().filter(|site| site.module == program) {
        match site.how {
            Ok(TraceMethod::Nop) => count(Count::Nops, 1),
            Ok(TraceMethod::Relocated) => count(Count::Relocated, 1),
            _ => (),
        }
    }
    Ok(())
}

/// Registers user `id`, whose data has a size that its neighbours' have not.
fn register(id: u64, filter: &str) -> Result<Box<dyn Registered>, fgraph::Error> {
    fn boxed<const N: usize>(id: u64, filter: &str) -> Result<Box<dyn Registered>, fgraph::Error> {
        // SAFETY: a user's callbacks use atomics, memory that is there and the clock, which is
        // allowed wherever a function may be called.
        Ok(Box::new(unsafe {
            fgraph::register_with(User::<N>(id), filter, &Options::new().allow_no_match())
        }?))
    }
    match id {
        1 => boxed::<0>(id, filter),
        4 => boxed::<128>(id, filter),
        _ => match id % 3 {
            0 => boxed::<25>(id, filter),
            1 => boxed::<3>(id, filter),
            _ => boxed::<1>(id, filter),
        },
    }
}

/// A user of whatever type.
trait Registered: Send {
    fn is_active(&self) -> bool;
    fn set_filter(&self, filter: &str) -> Result<(), fgraph::Error>;
    /// Unregisters it and says how many of its entries never returned.
    fn leave(self: Box<Self>) -> u64;
}

impl<const N: usize> Registered for Handle<User<N>>
where
    User<N>: FgraphOps,
{
    fn is_active(&self) -> bool {
        self.status() == UserStatus::Active
    }

    fn set_filter(&self, filter: &str) -> Result<(), fgraph::Error> {
        // SAFETY: as in `register`.
        unsafe { Handle::set_filter(self, filter) }.map(|_| ())
    }

    fn leave(self: Box<Self>) -> u64 {
        let lost = if N == 0 { 0 } else { self.counters().lost };
        // A user that stays registered shows as patched functions.
        drop(self);
        lost
    }
}

/// Runs in the child of a fork.
extern "C" fn forked() {
    count(Count::Processes, 1);
    count(Count::Inherited, thread::depth());
}

extern "C" fn end() {
    let Some(tracing) = TRACING.lock().expect("nothing panics").take() else {
        return;
    };
    count(Count::Live, thread::depth());
    let is_alone = tracing.churn.is_none_or(Churn::end);
    for user in &tracing.users {
        count(Count::Inactive, u64::from(!user.is_active()));
    }
    let lost = tracing.users.into_iter().map(Registered::leave).sum();
    user::GONE.store(true, Ordering::Relaxed);
    count(Count::Lost, lost);
    match fgraph::status() {
        Ok(status) => {
            count(
                Count::Missed,
                status.counters.missed + status.counters.internal,
            );
            count(Count::Overrun, status.counters.overrun);
            count(Count::Unreserved, status.counters.unreserved);
            count(Count::NoShadowStack, status.counters.no_shadow_stack);
            count(Count::Unattached, status.unattached);
            count(Count::Stopped, u64::from(status.stopped.is_some()));
            if let Some(stop) = status.stopped {
                complain(stop);
            }
        }
        Err(error) => complain(error),
    }
    // Others stay in the child of a process with a churn.
    if !is_alone && let Err(error) = fgraph::stop() {
        complain(error);
    }
    match fgraph::status() {
        Ok(status) => count(Count::Unrestored, status.patched as u64),
        Err(error) => complain(error),
    }
    let is_same = text::checksum() == tracing.text;
    count(Count::Unrestored, u64::from(!is_same));
    count(Count::Finished, 1);
}
