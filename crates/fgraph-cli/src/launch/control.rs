//! The tracefs files of a running process.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fgraph_protocol::{FileRequest, Line, Reply, Request, STREAM_END, STREAM_HEAD};
use fgraph_trace::ring::{Mode, RingOptions, Rings};
use rustix::fs::{FallocateFlags, fallocate};

use super::guard::Guard;
use super::interrupt::Interrupts;
use super::process::has_ended;
use super::reader::Reader;
use super::socket::{self, Socket};
use super::{attach, guard};
use crate::error::Error;

/// The number of bytes that are read at once.
const BLOCK: usize = 64 << 10;
/// The time that the start of a stream may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two reads of an empty stream.
const NAP: Duration = Duration::from_millis(20);
/// The longest text in one request. A request has room for twice as much, since JSON escapes
/// newlines and quotes.
const MAX_TEXT: usize = 48 << 10;

/// The smallest rings.
const SMALLEST: RingOptions = RingOptions {
    mode: Mode::Drop,
    rings: 1,
    sub_buffers: 2,
    sub_buffer_bytes: 256,
    table_bytes: 4096,
    clock: None,
};

/// A process whose files are read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Controlled(pub(crate) u32);

impl Controlled {
    /// Loads the agent into it, unless another process has.
    pub(crate) fn attach(self) -> Result<(), Error> {
        let request = Request::Control {
            holder: 0,
            rings: 0,
        };
        attach::have(self.0, |_| Ok(request))
    }

    /// Stays attached like [`attach`](Self::attach), until an interrupt, a client's request, or the
    /// end of the process.
    pub(crate) fn hold(self, interrupts: &Interrupts) -> Result<(), Error> {
        let holder = std::process::id();
        let _guard = Guard::start(self.0);
        let mut reader = None;
        attach::have(self.0, |files| {
            // Nothing is written to them: they show the agent that this process exists.
            let (rings, file) = Rings::create_shared(&SMALLEST)?;
            let descriptor = files.share(&file)?;
            let rings = Arc::new(rings);
            reader = Some(Reader::start(&rings));
            Ok(Request::Control {
                holder,
                rings: descriptor,
            })
        })?;
        let socket = Socket::listen(self.0, None);
        let is_stopped = || socket.as_ref().is_some_and(Socket::is_stopped);
        while interrupts.count() == 0 && !is_stopped() && !has_ended(self.0) {
            thread::sleep(NAP);
        }
        let ended = attach::end(self.0, holder);
        drop(reader);
        ended
    }

    /// Returns true if the process exists.
    pub(crate) fn is_there(self) -> bool {
        !has_ended(self.0)
    }

    /// Sends a request to the recorder of the process.
    pub(crate) fn recorder(self, line: &Line) -> Result<String, Error> {
        let none = || {
            Err(self.failed(match has_ended(self.0) {
                true => "there is no such process",
                false => "nothing records it now; `fgraph record -p` would",
            }))
        };
        socket::ask(self.0, line).unwrap_or_else(none)
    }

    /// Ends all tracers, and restores all functions. A process that records or holds it does so
    /// itself.
    pub(crate) fn detach(self) -> Result<(), Error> {
        if let Some(answer) = socket::ask(self.0, &Line::Stop) {
            answer?;
            let until = Instant::now() + PATIENCE;
            // It listens until everything has ended.
            while socket::ask(self.0, &Line::Status).is_some() {
                if Instant::now() >= until {
                    return Err(self.failed("its recorder does not end"));
                }
                thread::sleep(NAP);
            }
            return Ok(());
        }
        attach::have(self.0, |_| Ok(Request::Detach { holder: 0 }))
    }

    /// Waits for the end of a process that has attached to it, and then does its cleanup.
    pub(crate) fn guard(self, holder: u32) -> Result<(), Error> {
        guard::guard(self.0, holder)
    }

    /// Sends a request to the recorder of the process if it has one, otherwise to the agent.
    fn ask(self, request: FileRequest) -> Result<String, Error> {
        let line = Line::File(request.clone());
        // Names and texts that a line cannot have are for the agent.
        let is_line = Line::parse(line.to_string().as_bytes()).as_ref() == Ok(&line);
        let answer = is_line.then(|| socket::ask(self.0, &line));
        if let Some(answer) = answer.flatten() {
            return answer;
        }
        let answer = attach::ask(self.0, |_| Ok(Request::File(request)))?;
        answer.map_err(|why| self.failed(&why))
    }

    fn failed(self, why: &str) -> Error {
        Error::Nothing(format!("process {}: {why}", self.0))
    }

    /// Returns the names of the files, in lines.
    pub(crate) fn list(self) -> Result<String, Error> {
        self.ask(FileRequest::List)
    }

    /// Returns the text of a file.
    pub(crate) fn read(self, file: &str) -> Result<String, Error> {
        let file = file.to_owned();
        self.ask(FileRequest::Read { file })
    }

    /// Writes to a file.
    pub(crate) fn write(self, file: &str, text: &str, append: bool) -> Result<(), Error> {
        if text.len() + file.len() > MAX_TEXT {
            let why = "more than 48 KiB of text cannot be written at once".to_owned();
            return Err(Error::Usage(why));
        }
        let request = FileRequest::Write {
            file: file.to_owned(),
            text: text.to_owned(),
            append,
        };
        self.ask(request).map(drop)
    }

    /// Passes on the text of `trace_pipe` as it comes, until there is no more or an interrupt.
    pub(crate) fn stream(
        self,
        interrupts: &Interrupts,
        mut show: impl FnMut(&str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let process = self.0;
        let (file, _) = attach::send(process, |_| Ok(Request::Stream))?;
        let mut stream = Stream {
            file,
            at: STREAM_HEAD,
        };
        let until = Instant::now() + PATIENCE;
        let kind = loop {
            if let [kind, ..] = *stream.read(1) {
                break kind;
            }
            attach::check_answers(process, until)?;
            thread::sleep(Duration::from_millis(1));
        };
        let is_done = kind == Reply::DONE;
        let (mut pending, mut error) = (Vec::new(), String::new());
        while interrupts.count() == 0 {
            let block = stream.read(BLOCK);
            pending.extend_from_slice(&block);
            let is_last = pending.pop_if(|byte| *byte == 0).is_some();
            let text = take_text(&mut pending, is_last);
            match is_done {
                true => show(&text)?,
                false => error.push_str(&text),
            }
            if is_last || error.len() > BLOCK {
                break;
            }
            if block.is_empty() {
                if has_ended(process) {
                    break;
                }
                thread::sleep(NAP);
            }
        }
        match is_done {
            true => Ok(()),
            false => Err(self.failed(&error)),
        }
    }
}

/// Takes the complete characters out of the bytes of a text.
fn take_text(bytes: &mut Vec<u8>, is_last: bool) -> String {
    let end = match str::from_utf8(bytes) {
        // The start of a character whose rest is to come.
        Err(error) if error.error_len().is_none() && !is_last => error.valid_up_to(),
        _ => bytes.len(),
    };
    let rest = bytes.split_off(end);
    String::from_utf8_lossy(&std::mem::replace(bytes, rest)).into_owned()
}

/// The file of a growing reply. Dropping it ends the reply.
#[derive(Debug)]
struct Stream {
    file: File,
    /// The offset up to which it was read.
    at: u64,
}

impl Stream {
    /// Returns the new content, at most `most` bytes.
    fn read(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let len = self.file.read_at(&mut bytes, self.at).unwrap_or(0);
        bytes.truncate(len);
        if len == 0 {
            return bytes;
        }
        self.at += len as u64;
        self.say(self.at);
        // Bytes that were read need no memory any more.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&self.file, flags, STREAM_HEAD, self.at - STREAM_HEAD);
        bytes
    }

    fn say(&self, word: u64) {
        // An agent that cannot be told sees that the lock is gone.
        let _ = self.file.write_all_at(&word.to_ne_bytes(), 0);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.say(STREAM_END);
    }
}

#[cfg(test)]
mod tests {
    use super::take_text;

    #[test]
    fn characters_come_whole() {
        let mut bytes = "ab€".as_bytes()[..4].to_vec();
        assert_eq!(take_text(&mut bytes, false), "ab");
        bytes.push(0xac);
        assert_eq!(take_text(&mut bytes, false), "€");
        bytes.extend([b'a', 0xe2]);
        assert_eq!(take_text(&mut bytes, true), "a\u{fffd}");
        assert_eq!(take_text(&mut bytes, true), "");
    }
}
