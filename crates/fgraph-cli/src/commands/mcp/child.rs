//! Runs this command as a child, with limits.
//!
//! A child for each call keeps a crash, memory and standard output of a view away from the server.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Ends a child early, from another thread.
#[derive(Debug, Default)]
pub(super) struct Stop {
    // Relaxed: no other data depends on it.
    is_set: AtomicBool,
}

impl Stop {
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }
}

/// The way to end a child before its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndBy {
    /// It only reads.
    Kill,
    /// It is attached to a process, which goes on.
    Interrupt,
    /// It has started a program, which ends with it.
    Terminate,
}

/// The part of standard output that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// All of it. A child that writes more bytes is ended.
    All(usize),
    /// The first lines. A child is ended when it has written them.
    Lines(usize, usize),
    /// The last bytes.
    Last(usize),
}

/// A command line, and its limits.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) arguments: Vec<OsString>,
    /// The directory in which it runs, if that is not the server's.
    pub(super) directory: Option<PathBuf>,
    /// The time after which it is ended.
    pub(super) time: Duration,
    pub(super) end_by: EndBy,
    pub(super) keep: Keep,
}

/// The reason for which a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Itself,
    /// Its time was over.
    Time,
    /// It was stopped.
    Stopped,
    /// It has written as much as was wanted, or allowed.
    Full,
}

/// A child that has ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) status: ExitStatus,
    pub(super) ended: Ended,
    pub(super) output: Vec<u8>,
    /// The end of standard error.
    pub(super) said: Vec<u8>,
}

/// The bytes of standard error that are kept.
const SAID: usize = 64 << 10;
/// The time that a program has to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time that a recorder has to write its end.
const WRITING: Duration = Duration::from_secs(20);
/// The longest time between two looks at a child.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes that a thread reads from a pipe.
#[derive(Debug)]
struct Kept {
    keep: Keep,
    bytes: Mutex<Vec<u8>>,
    is_full: AtomicBool,
    is_over: AtomicBool,
}

impl Kept {
    /// Starts to read a pipe. The thread may outlive the child: others may have the pipe.
    fn start(mut pipe: impl Read + Send + 'static, keep: Keep) -> Arc<Self> {
        let kept = Arc::new(Self {
            keep,
            bytes: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let this = Arc::clone(&kept);
        thread::spawn(move || {
            let mut block = vec![0; 1 << 16];
            loop {
                match pipe.read(&mut block) {
                    Ok(0) => break,
                    Ok(len) => this.add(&block[..len]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            this.is_over.store(true, Ordering::Release);
        });
        kept
    }

    fn add(&self, new: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let most = match self.keep {
            Keep::All(most) | Keep::Lines(_, most) => most,
            Keep::Last(most) => {
                bytes.extend_from_slice(new);
                if bytes.len() > 2 * most {
                    let from = bytes.len() - most;
                    bytes.drain(..from);
                }
                return;
            }
        };
        let fits = new.len().min(most - bytes.len());
        bytes.extend_from_slice(&new[..fits]);
        let is_enough = match self.keep {
            Keep::Lines(lines, _) => memchr::memchr_iter(b'\n', &bytes).nth(lines).is_some(),
            _ => false,
        };
        if fits < new.len() || is_enough {
            self.is_full.store(true, Ordering::Relaxed);
        }
    }

    fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Returns the bytes, once the pipe is closed, or some time after the child has ended.
    fn take(&self) -> Vec<u8> {
        let began = Instant::now();
        while !self.is_over.load(Ordering::Acquire) && began.elapsed() < Duration::from_millis(300)
        {
            thread::sleep(Duration::from_millis(1));
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *bytes)
    }
}

/// Ends a child that is ended early, by and by.
#[derive(Debug)]
struct Ending {
    end_by: EndBy,
    /// The number of signals that were sent, and the time of the last one.
    steps: u32,
    last: Instant,
}

impl Ending {
    fn start(child: Pid, end_by: EndBy) -> Self {
        match end_by {
            EndBy::Kill => kill_all(child),
            EndBy::Interrupt => _ = kill_process(child, Signal::INT),
            EndBy::Terminate => _ = kill_process(child, Signal::TERM),
        }
        Self {
            end_by,
            steps: 1,
            last: Instant::now(),
        }
    }

    /// Sends the next signal, once its time has come.
    fn step(&mut self, child: Pid) {
        let patience = match (self.end_by, self.steps) {
            (EndBy::Terminate, 1) => PATIENCE,
            _ => WRITING,
        };
        if self.last.elapsed() < patience {
            return;
        }
        match (self.end_by, self.steps) {
            (EndBy::Terminate, 1) => children(child)
                .into_iter()
                .for_each(|program| _ = kill_process(program, Signal::KILL)),
            _ => kill_all(child),
        }
        self.steps += 1;
        self.last = Instant::now();
    }
}

fn kill_all(child: Pid) {
    // The child leads a group of its own, and is not waited for yet, so its number is its own.
    let _ = kill_process_group(child, Signal::KILL);
}

/// Returns the processes that a process has started.
fn children(of: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero()));
    let threads = threads.into_iter().flatten().flatten();
    let texts =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let texts: Vec<String> = texts.collect();
    let numbers = texts.iter().flat_map(|text| text.split_ascii_whitespace());
    let pids = numbers.filter_map(|number| Pid::from_raw(number.parse().ok()?));
    pids.collect()
}

impl Work {
    /// Runs it. `tick` is called now and then.
    pub(super) fn run(self, stop: &Stop, mut tick: impl FnMut(Duration)) -> io::Result<Done> {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("fgraph")
            .arg("--no-config")
            .args(&self.arguments);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let command = command.stdin(Stdio::null()).process_group(0);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pid = Pid::from_child(&child);
        let output = child.stdout.take().map(|pipe| Kept::start(pipe, self.keep));
        let said = child
            .stderr
            .take()
            .map(|pipe| Kept::start(pipe, Keep::Last(SAID)));
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        let mut ending: Option<(Ended, Ending)> = None;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if let Some((_, ending)) = &mut ending {
                ending.step(pid);
            } else {
                let why = if stop.is_set() {
                    Some((Ended::Stopped, self.end_by))
                } else if began.elapsed() >= self.time {
                    Some((Ended::Time, self.end_by))
                } else if output.as_ref().is_some_and(|output| output.is_full()) {
                    Some((Ended::Full, EndBy::Kill))
                } else {
                    None
                };
                ending = why.map(|(ended, end_by)| (ended, Ending::start(pid, end_by)));
            }
            tick(began.elapsed());
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        };
        let output = output.map(|output| (output.take(), output.is_full()));
        let (output, is_full) = output.unwrap_or_default();
        Ok(Done {
            status,
            ended: match ending {
                Some((ended, _)) => ended,
                None if is_full => Ended::Full,
                None => Ended::Itself,
            },
            output,
            said: said.map_or_else(Vec::new, |said| said.take()),
        })
    }
}
