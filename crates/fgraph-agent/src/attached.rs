//! Requests of the command to the agent in a running process.
//!
//! The command waits for the thread that calls [`fgraph_agent_request`]. That thread starts another
//! one, which does the work and ends with it. The new thread blocks all signals but those of faults
//! and traps and the C library's own, as does the thread that starts it.
//!
//! # Safety
//!
//! The unsafe code takes over the descriptors that the command has made for the agent, and the
//! bytes that it has put into this process.

use std::error;
use std::fs::File;
use std::io::Write as _;
use std::mem;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use fgraph::Untraced;
use fgraph_protocol::{Reply, Request, Settings};
use fgraph_trace::ring::Rings;
use fgraph_tracers::recorder::Switches;

use crate::allocator;
use crate::controlled;
use crate::reason::reason;
use crate::thread_changes::ThreadChanges;
use crate::{AGENT, Agent, Reader, begin, keep_plans};

pub(crate) type Failed = Box<dyn error::Error>;

/// Number of checks for the end of another request, and the interval between them. The clock is not
/// read, because the program may have changes that.
const LOOKS: u32 = 2000;
const NAP: Duration = Duration::from_millis(1);

/// The thread that did the work of the last request; 0 before.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Starts a thread of the agent for a request. Returns 0 if it starts; -1 if there can be no
/// thread, or the request is of another version.
///
/// # Safety
///
/// `bytes` must be `len` bytes with a [`Request`], whose descriptors become the agent's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fgraph_agent_request(bytes: *const u8, len: usize) -> i32 {
    let _untraced = Untraced::new();
    allocator::survive_forks();
    // SAFETY: the bytes are valid for `len`, as the caller says.
    let bytes = unsafe { slice::from_raw_parts(bytes, len) };
    let Some((request, reply)) = Request::parse(bytes) else {
        return -1;
    };
    // SAFETY: the descriptor becomes the agent's, as the caller says.
    let mut reply = unsafe { File::from_raw_fd(reply as i32) };
    let work = move || {
        // The calls with which this thread ends are the agent's own too.
        mem::forget(Untraced::new());
        let slack: libc::c_ulong = 1;
        // Each signal of the C library that interrupts a sleep makes it longer by this time.
        // SAFETY: it only sets a number of this thread's.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack) };
        await_end_of_last();
        let done = match request {
            Request::Stream => return controlled::stream(&reply),
            request => carry_out(request).map_err(|error| reason(&*error)),
        };
        // SAFETY: a system call.
        LAST.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        // The command waits only as long as this takes, and checks that the process exists.
        let _ = reply.write_all(&Reply(done).to_bytes());
    };
    let name = "fgraph-agent".to_owned();
    match thread::Builder::new().name(name).spawn(work) {
        Ok(_) => 0,
        Err(_) => -1,
    }
}

/// Waits until the thread that did the work of the last request has ended. It ends with all signals
/// blocked, and a trap would kill the process where text is written in place.
fn await_end_of_last() {
    let task = format!("/proc/self/task/{}", LAST.load(Ordering::Relaxed));
    for _ in 0..LOOKS {
        if !Path::new(&task).exists() {
            break;
        }
        thread::sleep(NAP);
    }
}

fn carry_out(request: Request) -> Result<String, Failed> {
    match request {
        Request::Attach {
            rings,
            reader,
            settings,
        } => {
            // SAFETY: the descriptor is the agent's, as the caller of `fgraph_agent_request` says.
            let file = unsafe { File::from_raw_fd(rings as i32) };
            attach(&file, reader, &settings).inspect_err(|_| {
                // Some functions may have got their jump before the failure.
                let _ = fgraph::restore_functions();
            })?;
        }
        Request::Control { holder: 0, .. } => control(None)?,
        Request::Control { holder, rings } => {
            // SAFETY: the descriptor is the agent's, as the caller of `fgraph_agent_request` says.
            let file = unsafe { File::from_raw_fd(rings as i32) };
            let rings = Arc::new(Rings::open_shared(&file)?);
            let process = holder;
            control(Some(Reader { rings, process }))?;
        }
        Request::Switch(switches) => switch(&switches)?,
        Request::Detach { holder } => detach(holder)?,
        Request::File(request) => return controlled::get()?.carry_out(request),
        Request::Stream => {}
    }
    Ok(String::new())
}

/// Locks a mutex, unless a thread has panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Failed> {
    mutex.lock().map_err(|error| error.to_string().into())
}

fn attach(file: &File, reader: u32, settings: &Settings) -> Result<(), Failed> {
    let mut place = lock(&AGENT)?;
    end_left(&mut place)?;
    let rings = Arc::new(Rings::open_shared(file)?);
    keep_plans(settings);
    let changes = ThreadChanges::watch(Some(Arc::clone(&rings)), settings.process.executed).ok();
    let (tool, triggers) = begin(settings, &rings)?;
    let agent = Agent {
        tool,
        triggers,
        reader: Reader {
            rings,
            process: reader,
        },
        tells_end: settings.heap.is_some().then_some(settings.process.executed),
        _executed: None,
        _changes: changes,
    };
    // Its guard may have run before this thread had a processor, and does not run again.
    if !agent.reader.is_there() {
        return Err(format!("process {reader}, which records it, has ended").into());
    }
    *place = Some(agent);
    Ok(())
}

/// Switches recording of functions off or on.
fn switch(switches: &Switches) -> Result<(), Failed> {
    // In a child that was forked meanwhile, the thread that had the lock does not exist.
    let place = (0..LOOKS).find_map(|look| {
        if look > 0 {
            thread::sleep(NAP);
        }
        AGENT.try_lock().ok()
    });
    let place = place.ok_or("another request is not done")?;
    let recorder = place.as_ref().and_then(|agent| agent.tool.recorder());
    let recorder = recorder.ok_or("its calls are not recorded")?;
    // SAFETY: the command names functions whose calls were recorded.
    Ok(unsafe { recorder.switch(switches) }?)
}

/// Ends the work of an agent whose reader has died; an error if the reader is alive.
fn end_left(place: &mut Option<Agent>) -> Result<(), Failed> {
    if let Some(agent) = &*place
        && agent.reader.is_there()
    {
        let process = agent.reader.process;
        return Err(format!("process {process} records it already").into());
    }
    drop(place.take());
    Ok(())
}

fn control(holder: Option<Reader>) -> Result<(), Failed> {
    end_left(&mut *lock(&AGENT)?)?;
    let mut control = controlled::get()?;
    if holder.is_some() {
        control.check()?;
        control.holder = holder;
    }
    Ok(())
}

fn detach(holder: u32) -> Result<(), Failed> {
    let mut control = controlled::get()?;
    let mut place = lock(&AGENT)?;
    if holder == 0 {
        control.check()?;
        end_left(&mut place)?;
    }
    if holder == control.holder() || holder == 0 {
        // Dropping it unpatches the functions of its tracers.
        drop(mem::take(&mut *control));
    }
    drop(place.take_if(|agent| agent.reader.process == holder));
    allocator::give_up();
    let restored = fgraph::restore_functions();
    Ok(
        restored
            .map_err(|error| format!("functions cannot be restored yet: {}", reason(&error)))?,
    )
}
