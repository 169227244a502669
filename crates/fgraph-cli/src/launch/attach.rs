//! Recording a process that runs already.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fgraph_attach::{Library, Loaded};
use fgraph_trace::ring::{RingOptions, Rings};
use fgraph_tracers::agent::{Reply, Request, Settings};

use super::library::BYTES;
use crate::error::Error;

/// How long the agent may take to patch a program.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer answers are none.
const MAX_REPLY: usize = 64 << 10;

const AGENT: Library<'static> = Library {
    name: "fgraph-agent",
    version: env!("AGENT_HASH"),
    bytes: BYTES,
    entry: c"fgraph_agent_request",
};

/// A process with the agent at work inside.
#[derive(Debug)]
pub(super) struct Attached {
    process: u32,
    /// Whether it still records.
    is_recording: bool,
}

/// The program that a process runs.
pub(super) fn program(process: u32) -> Result<PathBuf, Error> {
    let path = std::fs::read_link(format!("/proc/{process}/exe"));
    path.map_err(|_| refused(process, fgraph_attach::Error::Gone { pid: process }))
}

/// The texts of a file in the folder of a process, each of which ends with a zero: its command line,
/// say.
pub(super) fn strings(process: u32, file: &str) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let words = bytes.split(|&byte| byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn refused(process: u32, error: impl std::error::Error) -> Error {
    let mut why = error.to_string();
    if let Some(source) = error.source() {
        why = format!("{why}: {source}");
    }
    Error::Process { process, why }
}

impl Attached {
    /// Has a process record into rings of its own, which this one reads.
    pub(super) fn start(
        process: u32,
        settings: Settings,
        options: &RingOptions,
    ) -> Result<(Self, Rings, File), Error> {
        let mut made = None;
        ask(process, |files| {
            let (file, rings) = files.create(c"fgraph-rings")?;
            made = Some((Rings::create_in(&file, options)?, file));
            Ok(Request::Attach {
                rings,
                reader: std::process::id(),
                settings,
            })
        })?;
        let (rings, file) = made.expect("asked for above");
        let attached = Self {
            process,
            is_recording: true,
        };
        Ok((attached, rings, file))
    }

    /// Ends recording; the agent stays there, idle.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_recording) {
            return Ok(());
        }
        match ask(self.process, |_| Ok(Request::Detach)) {
            // It took all with it.
            Err(_) if !is_there(self.process) => Ok(()),
            ended => ended.map(drop),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Asks the agent in a process for something, and waits until it has done it.
fn ask(
    process: u32,
    request: impl FnOnce(&mut fgraph_attach::Files<'_, '_>) -> io::Result<Request>,
) -> Result<Loaded, Error> {
    let mut reply = None;
    let loaded = fgraph_attach::load_with(process, &AGENT, |files| {
        let (file, descriptor) = files.create(c"fgraph-reply")?;
        reply = Some(file);
        Ok(request(files)?.to_bytes(descriptor))
    });
    let loaded = loaded.map_err(|error| refused(process, error))?;
    let failed = |why: &str| Error::Process {
        process,
        why: why.to_owned(),
    };
    if loaded.result != 0 {
        return Err(failed(
            "its agent has no room for a thread, or is of another version",
        ));
    }
    let reply = reply.expect("made above");
    let until = Instant::now() + PATIENCE;
    loop {
        let len = reply.metadata().map_or(0, |file| file.len()) as usize;
        let mut bytes = vec![0; len.min(MAX_REPLY)];
        if len > 0
            && reply.read_exact_at(&mut bytes, 0).is_ok()
            && let Some(Reply(answer)) = Reply::parse(&bytes)
        {
            return answer.map(|()| loaded).map_err(|why| failed(&why));
        }
        if !is_there(process) {
            return Err(failed("it has ended"));
        }
        if Instant::now() >= until {
            return Err(failed("its agent does not answer"));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_there(process: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    unsafe { libc::kill(process as i32, 0) == 0 }
}

/// Waits for the end of a process that is not our child, in a thread of its own. The sender is
/// dropped then.
pub(super) fn wait_for_end(
    process: u32,
    sender: mpsc::Sender<()>,
) -> thread::JoinHandle<io::Result<ExitStatus>> {
    thread::spawn(move || {
        let _sender = sender;
        // SAFETY: it only opens.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        if fd >= 0 {
            // SAFETY: just opened.
            let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
            let mut poll = libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry.
            while unsafe { libc::poll(&mut poll, 1, -1) } <= 0 {}
        }
        Ok(ExitStatus::from_raw(0))
    })
}
