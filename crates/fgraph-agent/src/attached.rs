//! What the command asks for once the agent is in a process that runs.
//!
//! The thread that calls [`fgraph_agent_request`] may be anywhere, and is soon to go on: a thread
//! of ours does the work, and ends with it. It blocks all signals but those of faults and traps, as
//! the one does that starts it.
//!
//! # Safety
//!
//! The unsafe code takes over the descriptors that the command has made for the agent, and the
//! bytes that it has put into this process.

use std::error;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::FromRawFd;
use std::slice;
use std::thread;

use fgraph::Untraced;
use fgraph_trace::ring::Rings;
use fgraph_tracers::agent::{Reply, Request, Settings};

use crate::{AGENT, Agent, begin};

/// Has a thread of ours do what is asked for. 0 if it begins; -1 if there can be no thread, or the
/// request is of another version.
///
/// # Safety
///
/// `bytes` must be `len` bytes that are a [`Request`], with descriptors that are to be the agent's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fgraph_agent_request(bytes: *const u8, len: usize) -> i32 {
    let _untraced = Untraced::new();
    // SAFETY: no other thread is in the allocator unless the agent is at work, which this one waits
    // for.
    unsafe { dlmalloc::enable_alloc_after_fork() };
    // SAFETY: as the caller says.
    let bytes = unsafe { slice::from_raw_parts(bytes, len) };
    let Some((request, reply)) = Request::parse(bytes) else {
        return -1;
    };
    // SAFETY: a descriptor that is ours, as the caller says.
    let mut reply = unsafe { File::from_raw_fd(reply as i32) };
    let work = move || {
        let _untraced = Untraced::new();
        let done = carry_out(request).map_err(|error| error.to_string());
        // The command waits no longer than it takes, and asks whether the process is there.
        let _ = reply.write_all(&Reply(done).to_bytes());
    };
    let name = "fgraph-agent".to_owned();
    match thread::Builder::new().name(name).spawn(work) {
        Ok(_) => 0,
        Err(_) => -1,
    }
}

fn carry_out(request: Request) -> Result<(), Box<dyn error::Error>> {
    match request {
        Request::Attach {
            rings,
            reader,
            settings,
        } => {
            // SAFETY: a descriptor that is ours, as the caller of `fgraph_agent_request` says.
            let file = unsafe { File::from_raw_fd(rings as i32) };
            attach(&file, reader, &settings)
        }
        Request::Detach => {
            let agent = AGENT.lock().map_err(|error| error.to_string())?.take();
            drop(agent);
            Ok(())
        }
    }
}

fn attach(file: &File, reader: u32, settings: &Settings) -> Result<(), Box<dyn error::Error>> {
    let mut place = AGENT.lock().map_err(|error| error.to_string())?;
    // Who read this one may have ended without a word.
    drop(place.take_if(|agent| !is_there(agent.reader)));
    if let Some(agent) = &*place {
        return Err(format!("process {} records it already", agent.reader).into());
    }
    *place = Some(Agent {
        tool: begin(settings, Rings::open_shared(file)?)?,
        reader,
        _executed: None,
    });
    Ok(())
}

/// Whether there is a process of this number.
fn is_there(process: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let sent = unsafe { libc::kill(process as i32, 0) } == 0;
    sent || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
