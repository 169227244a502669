//! The files of tracefs, for a running process.
//!
//! # Safety
//!
//! The unsafe code makes system calls.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use fgraph_protocol::{FileRequest, NEVER, Reply, STREAM_END, STREAM_HEAD};
use fgraph_tracers::control::{Control, TracePipe};

use crate::Reader;
use crate::attached::{Failed, lock};
use crate::reason::reason;
use crate::thread_changes::ThreadChanges;

/// Most bytes of text that wait to be read.
const AHEAD: u64 = 4 << 20;
/// Interval of waits for calls, and for room.
const NAP: Duration = Duration::from_millis(20);

/// Tracers that are controlled by text.
#[derive(Debug, Default)]
pub(crate) struct Controlled {
    /// Made at its first use.
    control: Option<Control>,
    /// Exists while a tracer does, if the C library's functions can be watched.
    changes: Option<ThreadChanges>,
    /// Process with which this ends, if it ends with one.
    pub(crate) holder: Option<Reader>,
}

static CONTROLLED: Mutex<Controlled> = Mutex::new(Controlled {
    control: None,
    changes: None,
    holder: None,
});

/// Locks the tracers of this process.
pub(crate) fn get() -> Result<MutexGuard<'static, Controlled>, Failed> {
    lock(&CONTROLLED)
}

impl Controlled {
    fn control(&mut self) -> &mut Control {
        self.control
            .get_or_insert_with(|| Control::without_modules(&NEVER))
    }

    /// Fails if a process holds the tracers.
    pub(crate) fn check(&self) -> Result<(), Failed> {
        match &self.holder {
            Some(holder) if holder.is_there() => {
                let process = holder.process;
                Err(format!("process {process} is attached to it already").into())
            }
            _ => Ok(()),
        }
    }

    /// Returns the process that holds the tracers, or has held them; 0 if none has.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.as_ref().map_or(0, |holder| holder.process)
    }

    pub(crate) fn carry_out(&mut self, request: FileRequest) -> Result<String, Failed> {
        match request {
            FileRequest::List => {
                let files = self.control().files();
                Ok(files.into_iter().map(|file| file + "\n").collect())
            }
            FileRequest::Read { file } => Ok(self.control().read(&file)?),
            FileRequest::Write { file, text, append } => {
                self.write(&file, &text, append)?;
                Ok(String::new())
            }
        }
    }

    fn write(&mut self, file: &str, text: &str, append: bool) -> Result<(), Failed> {
        // A write may start a tracer, which reads clocks from then on.
        if self.changes.is_none() {
            self.changes = ThreadChanges::watch(None, 0).ok();
        }
        let control = self.control();
        let written = match append {
            true => control.append(file, text),
            false => control.write(file, text),
        };
        if control.is_idle() {
            self.changes = None;
        }
        Ok(written?)
    }
}

/// Writes the trace to a file until the tracer ends, or the reading command does.
pub(crate) fn stream(file: &File) {
    let pipe = get().and_then(|mut controlled| Ok(controlled.control().trace_pipe()?));
    let mut out = Stream {
        file,
        len: STREAM_HEAD,
    };
    // If nothing can be written, nobody reads.
    let _ = match pipe {
        Ok(pipe) => out.copy(pipe),
        Err(error) => out.write(&Reply(Err(reason(&*error))).to_bytes()),
    };
}

struct Stream<'a> {
    file: &'a File,
    /// Number of bytes in the file.
    len: u64,
}

impl Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn copy(&mut self, mut pipe: TracePipe) -> io::Result<()> {
        self.write(&[Reply::DONE])?;
        while let Some(read) = self.read_by_command() {
            if self.len - read.min(self.len) > AHEAD {
                thread::sleep(NAP);
                continue;
            }
            match pipe.next_text(NAP).map_err(io::Error::other)? {
                Some(text) => self.write(text.replace('\0', " ").as_bytes())?,
                None => return self.write(&[0]),
            }
        }
        Ok(())
    }

    /// Returns the offset up to which the command has read; `None` if it wants no more or has
    /// ended.
    fn read_by_command(&self) -> Option<u64> {
        let mut head = [0; STREAM_HEAD as usize];
        self.file.read_exact_at(&mut head, 0).ok()?;
        let read = u64::from_ne_bytes(head);
        // SAFETY: `flock` only locks.
        let is_free = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        (read != STREAM_END && is_free != 0).then_some(read)
    }
}
