//! A program that runs with the agent inside, and its end.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fgraph_trace::names::Names;
use fgraph_trace::ring::Rings;
use fgraph_tracers::scheduling::Scheduling;

use super::attach::{self, Attached};
use super::counts::{Counts, Drained};
use super::gone::Gone;
use super::interrupt::{self, Interrupts};
use super::library::Library;
use super::plan_cache;
use super::reader::Reader;
use super::samples::Samples;
use super::socket::Socket;
use super::switching::Switching;
use crate::error::Error;
use crate::target::Pattern;
use crate::text::escaped;
use crate::unmatched;

/// A program that runs with the agent inside, as our child unless it was already running.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(super) rings: Arc<Rings>,
    /// For a process that was already running, until recording ends.
    pub(super) reader: Option<Reader>,
    pub(super) gone: Gone,
    pub(super) process: u32,
    pub(super) command: Vec<String>,
    /// Hangs up when the program has ended.
    pub(super) ended: Receiver<()>,
    pub(super) waiter: Option<JoinHandle<io::Result<ExitStatus>>>,
    /// Its exit status.
    pub(super) status: Option<ExitStatus>,
    /// The number of reported programs that cannot be recorded.
    pub(super) refused: usize,
    /// The number of reported programs that are recorded in part.
    pub(super) in_part: usize,
    /// For a process that was already running.
    pub(super) attached: Option<Attached>,
    /// The socket for requests.
    pub(super) socket: Option<Socket>,
    /// The file for its output, if it must not use the terminal.
    pub(super) output: Option<File>,
    /// Patterns that were not reported yet.
    pub(super) patterns: Vec<Pattern>,
    pub(super) samples: Option<Samples>,
    pub(super) scheduling: Option<Scheduling>,
    /// Until recording ends.
    pub(super) switching: Option<Switching>,
    /// Both stay as long as the program may execute others.
    pub(super) _library: Option<Library>,
    pub(super) _file: File,
}

impl Launched {
    pub(crate) fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Returns samples of the program, if they were requested and the kernel allows it.
    pub(crate) fn samples(&mut self) -> Option<Samples> {
        self.samples.take()
    }

    /// Returns the states of the program's threads, if they were requested.
    pub(crate) fn scheduling(&mut self) -> Option<Scheduling> {
        self.scheduling.take()
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Returns the command line.
    pub(crate) fn command(&self) -> &[String] {
        &self.command
    }

    /// Returns the environment with which the program was started.
    pub(crate) fn environment(&self) -> Vec<String> {
        match self.is_attached() {
            true => attach::strings(self.process, "environ"),
            false => {
                let variables = std::env::vars_os();
                let text = |text: OsString| text.to_string_lossy().into_owned();
                variables
                    .map(|(name, value)| format!("{}={}", text(name), text(value)))
                    .collect()
            }
        }
    }

    /// Frees the rings of processes that have ended. Call it from time to time.
    pub(crate) fn give_back_rings(&mut self) {
        self.gone.give_back(&self.rings);
    }

    /// Reports the programs that are not recorded, or only in part, each once with the reason.
    pub(crate) fn say_refused(&mut self, names: &Names) {
        let new = names.refused().get(self.refused..).unwrap_or(&[]);
        self.refused += new.len();
        for (program, why) in new {
            let [program, why] = [program, why].map(|text| escaped(text));
            say!("fgraph: {program} is not recorded: {why}");
        }
        let new = names.in_part().get(self.in_part..).unwrap_or(&[]);
        self.in_part += new.len();
        for (program, why) in new {
            let [program, why] = [program, why].map(|text| escaped(text));
            say!("fgraph: {program} is recorded in part: {why}");
        }
    }

    /// Reports the patterns that match inlined functions or none, once; returns true if there are
    /// any. `begun` has the number of calls of each function of a process, if that is known.
    pub(crate) fn say_unmatched(
        &mut self,
        names: &Names,
        begun: Option<&HashMap<(u32, u32), u64>>,
    ) -> bool {
        let patterns = std::mem::take(&mut self.patterns);
        let program = self.command.first().map_or("PROGRAM", String::as_str);
        let texts = unmatched::of_program(&patterns, program, names, begun);
        for text in &texts {
            say!("fgraph: {}", escaped(text));
        }
        !texts.is_empty()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waiter.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the exit status of the program: `None` while it runs, and if it was already running.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        if let Some(waiter) = self.waiter.take_if(|waiter| waiter.is_finished()) {
            self.status = waiter.join().ok().and_then(Result::ok);
        }
        self.status.filter(|_| !self.is_attached())
    }

    /// Waits until the program has ended, but at most for `time`.
    pub(crate) fn wait_for(&self, time: Duration) {
        if self.ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected) {
            // The thread is about to end.
            while !self.has_ended() {
                thread::yield_now();
            }
        }
    }

    /// For a process that was already running: describes the interruption of one of its threads.
    pub(crate) fn pause(&self) -> Option<String> {
        self.attached.as_ref().map(Attached::pause)
    }

    /// Returns true if it was already running, and continues when recording ends.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Returns true if recording is over: the program has ended, or there were enough interrupts.
    pub(crate) fn is_over(&self, interrupts: &Interrupts) -> bool {
        let enough = if self.is_attached() { 0 } else { 1 };
        let is_asked = interrupts.count() > enough || self.is_stopped();
        self.has_ended() || is_asked || self.has_executed()
    }

    /// Returns true if it was already running and has executed another program, without the agent.
    fn has_executed(&self) -> bool {
        self.attached.as_ref().is_some_and(Attached::has_executed)
    }

    /// Returns the part that switches functions off, if there is one.
    pub(crate) fn switching(&mut self) -> Option<&mut Switching> {
        self.switching.as_mut()
    }

    /// Ends recording: no more events are written to the rings.
    pub(crate) fn stop(&mut self) {
        self.switching = None;
        if let Err(error) = self.detach() {
            // The recording is worth more than the error.
            say!("fgraph: {}", error.message().unwrap_or_default());
        }
        self.finish();
    }

    /// Announces that no more is read. Programs that are executed from now on do not load the
    /// agent.
    fn finish(&mut self) {
        self.rings.finish();
        self.reader = None;
    }

    /// Sends a signal to the program that is kept off the terminal, as the terminal would, and to
    /// its children.
    pub(crate) fn signal(&self, signal: i32) {
        if self.output.is_some() && !self.has_ended() {
            // SAFETY: system calls.
            unsafe {
                libc::kill(-(self.process as i32), signal);
                libc::kill(-(self.process as i32), libc::SIGCONT);
            }
        }
    }

    /// Prints the output of the program that is kept off the terminal.
    pub(crate) fn print_output(&self) -> Result<(), Error> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        let (mut out, mut bytes, mut at) = (io::stdout().lock(), vec![0; 1 << 16], 0);
        loop {
            // The file position belongs to the program.
            let len = output.read_at(&mut bytes, at).map_err(Error::Output)?;
            if len == 0 {
                return out.flush().map_err(Error::Output);
            }
            out.write_all(&bytes[..len]).map_err(Error::Output)?;
            at += len as u64;
        }
    }

    /// Returns true if a client of the socket wants recording to end.
    fn is_stopped(&self) -> bool {
        self.socket.as_ref().is_some_and(Socket::is_stopped)
    }

    /// Passes the progress of recording to the clients of the socket; returns true if one wants a
    /// snapshot.
    pub(crate) fn tell(&self, drained: Drained) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        socket.set_drained(drained);
        socket.takes_snapshot()
    }

    /// For a process that continues: ends the agent's work there, so that all its events are in the
    /// rings.
    fn detach(&mut self) -> Result<(), Error> {
        if let Some(attached) = &mut self.attached {
            return attached.end();
        }
        match self.is_stopped() && !self.has_ended() {
            true => attach::end(self.process, std::process::id()),
            false => Ok(()),
        }
    }

    /// Returns the program's exit code, unless it was already running or was interrupted twice:
    /// then it continues. If a signal has ended it, the code is that of `end_by`, which may end
    /// this process like it. If `result` is an error, the program is still waited for. Fails if
    /// nothing could be recorded.
    pub(crate) fn end(
        mut self,
        interrupts: &Interrupts,
        result: Result<(), Error>,
        end_by: fn(i32) -> ExitCode,
    ) -> Result<ExitCode, Error> {
        if self.has_executed() && !self.has_ended() {
            let process = self.process;
            say!("fgraph: process {process} has executed another program, which is not recorded");
        }
        let detached = self.detach();
        self.finish();
        // Recording is over.
        self.socket = None;
        plan_cache::trim();
        let names = self.rings.names();
        self.say_refused(&names);
        self.say_unmatched(&names, None);
        let is_refused = self.refused > 0 && Counts::of(&self.rings, Drained::default()).calls == 0;
        let (is_attached, is_left) = (self.is_attached(), interrupts.count() > 1);
        let status = match is_attached || is_left {
            true => None,
            false => self.wait(),
        };
        result.and(detached)?;
        if is_refused {
            return Err(Error::Refused);
        }
        if is_attached {
            return Ok(ExitCode::SUCCESS);
        }
        if is_left {
            return Ok(interrupt::code_of(interrupts.newest()));
        }
        match status.and_then(|status| status.signal()) {
            Some(signal) => Ok(end_by(signal)),
            None => {
                let code = status.and_then(|status| status.code());
                Ok(ExitCode::from(code.unwrap_or(1) as u8))
            }
        }
    }

    /// Waits until the program has ended, and returns its exit status, if known. All resources of
    /// recording are freed then.
    fn wait(mut self) -> Option<ExitStatus> {
        if let Some(waiter) = self.waiter.take() {
            self.status = waiter.join().ok().and_then(Result::ok);
        }
        self.status
    }
}
