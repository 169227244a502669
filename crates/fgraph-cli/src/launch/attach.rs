//! Attaches to a running process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fgraph_attach::{Files, Library, Loaded};
use fgraph_protocol::{CALLS, OWN_CALLS, Reply, Request, Settings};
use fgraph_symbols::mapping::Mapping;
use fgraph_trace::ring::{RingOptions, Rings};
use fgraph_tracers::syscalls::known_name;
use rustix::fs::{FlockOperation, flock};

use super::guard::Guard;
use super::library::{BYTES, HASH};
use super::memory_limits;
use super::process::{has_ended, is_ending, wait_until_gone};
use super::reader::Reader;
use crate::error::{Error, without_number};
use crate::text::time;

/// The time that the agent may take to patch a program.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time between searches for threads that block the signals of patching, until the agent
/// replies.
const NEW_THREADS: Duration = Duration::from_millis(50);

/// The time to wait for other commands that attach.
const TURN: Duration = Duration::from_secs(10);

/// The memory of a program with the agent inside. It is gone when the process executes another
/// program, which no id shows.
#[derive(Debug)]
struct Image {
    memory: File,
    /// The address of the agent.
    agent: u64,
}

impl Image {
    /// Returns `None` if the agent is not there.
    fn of(process: u32) -> io::Result<Option<Self>> {
        let memory = File::open(format!("/proc/{process}/mem"))?;
        let name = format!("fgraph-agent-{HASH}");
        let maps = std::fs::read(format!("/proc/{process}/maps"))?;
        let is_agent =
            |it: &Mapping<'_>| it.path.windows(name.len()).any(|it| it == name.as_bytes());
        let agent = Mapping::all(&maps).find(is_agent);
        let agent = agent.map(|mapping| mapping.range.start);
        Ok(agent.map(|agent| Self { memory, agent }))
    }

    fn is_there(&self) -> bool {
        let read = self.memory.read_at(&mut [0], self.agent);
        read.is_ok_and(|len| len == 1)
    }
}

/// A process with a working agent inside.
#[derive(Debug)]
pub(super) struct Attached {
    process: u32,
    /// The program; `None` if it was gone at once.
    image: Option<Image>,
    /// Set while it records.
    work: Option<(Guard, Arc<Reader>)>,
    loaded: Loaded,
}

/// The rings of one recording, with their reader and their file.
#[derive(Clone, Debug)]
pub(super) struct SharedRings {
    reader: Arc<Reader>,
    pub(super) rings: Arc<Rings>,
    pub(super) file: Arc<File>,
}

impl SharedRings {
    fn create(options: &RingOptions) -> io::Result<Self> {
        let (rings, file) = Rings::create_shared(options)?;
        let rings = Arc::new(rings);
        Ok(Self {
            reader: Arc::new(Reader::start(&rings)),
            rings,
            file: Arc::new(file),
        })
    }
}

/// Returns the program of a process.
pub(super) fn program(process: u32) -> Result<PathBuf, Error> {
    fgraph_attach::check(process).map_err(|error| refused(process, error))?;
    let path = std::fs::read_link(format!("/proc/{process}/exe"));
    path.map_err(|_| refused(process, fgraph_attach::Error::Gone { pid: process }))
}

/// Returns the strings in a file of a process's directory, such as its command line; each ends with
/// a zero.
pub(super) fn strings(process: u32, file: &str) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let words = bytes.split(|&byte| byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn refused(process: u32, error: impl std::error::Error) -> Error {
    // The message names the process.
    let said = error.to_string();
    let why = match said.strip_prefix(&format!("process {process} ")) {
        Some(rest) => format!("it {rest}"),
        None => said.replace(&format!("no process {process}"), "no such process"),
    };
    let why = match error.source() {
        Some(source) => format!("{why}: {}", without_number(&source.to_string())),
        None => why,
    };
    Error::Process { process, why }
}

impl Attached {
    /// Makes a process record into rings, which this process reads. They are made if there are none
    /// yet.
    pub(super) fn start(
        process: u32,
        settings: Settings,
        options: &RingOptions,
        shared: &mut Option<SharedRings>,
    ) -> Result<Self, Error> {
        if let Ok(None) = Image::of(process) {
            memory_limits::check(process)?;
        }
        let guard = Guard::start(process);
        let mut reader = None;
        let loaded = hold(process, |files| {
            let rings = match shared {
                Some(rings) => rings,
                // The process gets the file when its length can no longer change.
                None => shared.insert(SharedRings::create(options)?),
            };
            let descriptor = files.share(&rings.file)?;
            reader = Some(Arc::clone(&rings.reader));
            Ok(Request::Attach {
                rings: descriptor,
                reader: std::process::id(),
                settings: Box::new(settings),
            })
        });
        let loaded = loaded.map_err(memory_limits::explained)?;
        let reader = reader.expect("asked for above");
        Ok(Self {
            process,
            image: Image::of(process).ok().flatten(),
            work: Some((guard, reader)),
            loaded,
        })
    }

    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// Describes the interruption of a thread of the process.
    pub(super) fn pause(&self) -> String {
        let Loaded {
            thread,
            paused,
            interrupted,
            ..
        } = &self.loaded;
        let time = time(paused.as_nanos() as u64);
        let text = format!("thread {thread} was stopped for {time}");
        match interrupted {
            Some(call) => match known_name(*call as u64) {
                Some(name) => format!("{text}; its {name} was interrupted (EINTR)"),
                None => format!("{text}; its system call {call} was interrupted (EINTR)"),
            },
            None => text,
        }
    }

    /// Returns true if the process runs another program by now, without the agent.
    pub(super) fn has_executed(&self) -> bool {
        !self.image.as_ref().is_some_and(Image::is_there) && !is_ending(self.process)
    }

    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.process)
    }

    /// Ends recording; the agent stays there, idle. If that fails, the guard keeps trying.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        // The last of the readers is dropped afterwards.
        let Some((guard, _reader)) = self.work.take() else {
            return Ok(());
        };
        let ended = end(self.process, std::process::id());
        if ended.is_err() {
            guard.take_over();
        }
        ended
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Ends the work that process `holder` has started in the agent of a process.
pub(super) fn end(process: u32, holder: u32) -> Result<(), Error> {
    if let Ok(None) = Image::of(process) {
        // It has executed another program, which is not changed.
        return Ok(());
    }
    match have(process, |_| Ok(Request::Detach { holder })) {
        // All of it ended together with the process.
        Err(_) if is_ending(process) => Ok(()),
        ended => ended,
    }
}

/// Makes the agent in a process do something, and waits until it has finished.
pub(super) fn have(
    process: u32,
    request: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Request>,
) -> Result<(), Error> {
    hold(process, request).map(drop)
}

/// Does the same as [`have`], and returns the result of loading the agent.
fn hold(
    process: u32,
    request: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Request>,
) -> Result<Loaded, Error> {
    let (answer, loaded) = exchange(process, request)?;
    match answer {
        Ok(_) => Ok(loaded),
        Err(why) => Err(Error::Process { process, why }),
    }
}

/// Sends a request to the agent in a process, and waits for its reply: a text, or the reason that
/// there is none.
pub(super) fn ask(
    process: u32,
    request: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Request>,
) -> Result<Result<String, String>, Error> {
    exchange(process, request).map(|(answer, _)| answer)
}

fn exchange(
    process: u32,
    request: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Request>,
) -> Result<(Result<String, String>, Loaded), Error> {
    let (reply, loaded) = send(process, request)?;
    let until = Instant::now() + PATIENCE;
    let mut looked = Instant::now();
    loop {
        let len = reply.metadata().map_or(0, |file| file.len());
        let mut last = [1];
        let is_whole = len
            .checked_sub(1)
            .is_some_and(|at| reply.read_exact_at(&mut last, at).is_ok() && last == [0]);
        if is_whole {
            let mut bytes = vec![0; Reply::MAX.min(len as usize)];
            let answer = reply.read_exact_at(&mut bytes, 0).ok();
            let answer = answer.and_then(|()| Reply::parse(&bytes));
            let Reply(answer) = answer.ok_or_else(|| silent(process))?;
            return Ok((answer, loaded));
        }
        check_answers(process, until)?;
        if looked.elapsed() >= NEW_THREADS {
            // The agent waits for threads that were made meanwhile.
            let _ = fgraph_attach::unblock_traps(process);
            looked = Instant::now();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a request to the agent in a process. It replies in the file.
pub(super) fn send(
    process: u32,
    request: impl FnOnce(&mut Files<'_, '_>) -> io::Result<Request>,
) -> Result<(File, Loaded), Error> {
    let _turn = turn(process);
    // If that fails, so does the next step, and reports the reason.
    let _ = fgraph_attach::unblock_traps(process);
    let mut reply = None;
    let agent = Library {
        name: "fgraph-agent",
        version: HASH,
        bytes: &BYTES,
        entry: c"fgraph_agent_request",
        calls: OWN_CALLS,
        calls_elsewhere: CALLS,
    };
    let loaded = fgraph_attach::load_with(process, &agent, |files| {
        let (file, descriptor) = files.create(c"fgraph-reply")?;
        // While this is locked, the agent knows that a process waits for it.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        reply = Some(file);
        Ok(request(files)?.to_bytes(descriptor))
    });
    let loaded = loaded.map_err(|error| refused(process, error))?;
    match reply {
        Some(reply) if loaded.result == 0 => Ok((reply, loaded)),
        _ => Err(Error::Process {
            process,
            why: "its agent has no room for a thread, or is of another version".to_owned(),
        }),
    }
}

/// Waits until no other command attaches to a process: two at once cannot. The wait for one that
/// does not finish is limited.
fn turn(process: u32) -> Option<File> {
    let turn = File::open(format!("/proc/{process}")).ok()?;
    let until = Instant::now() + TURN;
    while flock(&turn, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < until
    {
        thread::sleep(Duration::from_millis(1));
    }
    Some(turn)
}

/// Fails if no reply can be expected any more.
pub(super) fn check_answers(process: u32, until: Instant) -> Result<(), Error> {
    if has_ended(process) {
        let why = "it has ended".to_owned();
        return Err(Error::Process { process, why });
    }
    if Instant::now() >= until {
        return Err(silent(process));
    }
    Ok(())
}

fn silent(process: u32) -> Error {
    let why = "its agent does not answer".to_owned();
    Error::Process { process, why }
}

/// Waits for the end of processes that are not our children, in a separate thread. The sender is
/// dropped then.
pub(super) fn wait_for_end(
    processes: Vec<u32>,
    sender: mpsc::Sender<()>,
) -> thread::JoinHandle<io::Result<ExitStatus>> {
    thread::spawn(move || {
        let _sender = sender;
        processes.into_iter().for_each(wait_until_gone);
        Ok(ExitStatus::from_raw(0))
    })
}
