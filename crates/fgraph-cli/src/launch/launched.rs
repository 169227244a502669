//! A program that runs with the agent inside, and its end.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fgraph_trace::names::{DescriptionKind, LastState, Names, process_id};
use fgraph_trace::ring::Rings;
use fgraph_tracers::scheduling::Scheduling;

use super::attach::{self, Attached};
use super::counts::{Counts, Drained};
use super::gone::Gone;
use super::interrupt::{self, Interrupts};
use super::library::Library;
use super::plan_cache;
use super::process::has_ended;
use super::reader::Reader;
use super::samples::Samples;
use super::socket::Socket;
use super::switching::{Switching, maps};
use crate::error::Error;
use crate::generated::Generated;
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
    /// The path of the program.
    pub(super) path: String,
    /// Hangs up when the program has ended.
    pub(super) ended: Receiver<()>,
    pub(super) waiter: Option<JoinHandle<io::Result<ExitStatus>>>,
    /// Its exit status.
    pub(super) status: Option<ExitStatus>,
    /// The number of reported programs that cannot be recorded.
    pub(super) refused: usize,
    /// The number of reported programs that are recorded in part.
    pub(super) in_part: usize,
    /// For processes that were already running.
    pub(super) attached: Vec<Attached>,
    /// True if others of these processes cannot be recorded.
    pub(super) is_part: bool,
    /// The sockets for requests, one for each process that can have one.
    pub(super) sockets: Vec<Socket>,
    /// The file for its output, if it must not use the terminal.
    pub(super) output: Option<File>,
    /// Patterns that are checked at the end.
    pub(super) patterns: Vec<Pattern>,
    pub(super) early: Early,
    /// True if no pattern matches a function.
    pub(super) is_unmatched: bool,
    pub(super) samples: Option<Samples>,
    pub(super) scheduling: Option<Scheduling>,
    /// The time at which recording ends.
    pub(super) until: Option<Instant>,
    /// Until recording ends.
    pub(super) switching: Option<Switching>,
    /// True if the recording has the states of processes when it ends.
    pub(super) has_last_states: bool,
    /// Set if names of generated code are wanted.
    pub(super) generated: Option<Generated>,
    /// Both stay as long as the program may execute others. The file is that of the rings.
    pub(super) _library: Option<Library>,
    pub(super) file: Arc<File>,
}

/// The report of patterns that match no function when recording begins.
#[derive(Debug)]
pub(super) struct Early {
    is_quiet: bool,
    looked: Instant,
    /// The time until the next look at the names.
    pause: Duration,
    /// The patterns.
    patterns: Vec<Pattern>,
    /// Searches for similar names, and reports the patterns.
    search: Option<JoinHandle<()>>,
}

impl Early {
    pub(super) fn new() -> Self {
        Self {
            is_quiet: false,
            looked: Instant::now(),
            pause: Duration::from_millis(25),
            patterns: Vec::new(),
            search: None,
        }
    }
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

    /// Returns the process; the first one if there are several.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Returns the process that was started, or those that were already running.
    pub(crate) fn processes(&self) -> Vec<u32> {
        match self.attached.is_empty() {
            true => vec![self.process],
            false => self.attached.iter().map(Attached::process).collect(),
        }
    }

    /// Returns the names of the code that the processes generate, which are looked for from now on.
    pub(crate) fn generated(&mut self) -> Generated {
        let processes = self.processes();
        let generated = self.generated.get_or_insert_default();
        generated.look(processes, true);
        generated.clone()
    }

    /// Returns the numbers of the processes, as `-p` takes them.
    pub(crate) fn numbers(&self) -> String {
        let all = self.processes();
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        all.join(",")
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

    /// Reports patterns that match no function only when recording ends.
    pub(crate) fn be_quiet(&mut self) {
        self.early.is_quiet = true;
    }

    /// Frees the rings of processes that have ended, and reports patterns that match no function
    /// when recording begins. Call it from time to time.
    pub(crate) fn look(&mut self) {
        self.gone.give_back(&self.rings);
        if let Some(generated) = &self.generated {
            generated.look(self.processes(), false);
        }
        let early = &mut self.early;
        // A screen has no place for messages.
        let has_place = self.output.is_none() && !self.patterns.is_empty();
        if !has_place
            || early.is_quiet
            || early.search.is_some()
            || early.looked.elapsed() < early.pause
        {
            return;
        }
        (early.looked, early.pause) = (Instant::now(), early.pause * 2);
        let names = self.rings.names();
        let patterns = unmatched::at_first(&self.patterns, &names);
        if patterns.is_empty() {
            return;
        }
        self.early.patterns.clone_from(&patterns);
        let program = self.program().to_owned();
        // Reading symbols takes longer than the rings have room for events.
        self.early.search = Some(thread::spawn(move || {
            let found = unmatched::of_program(&patterns, &program, &names, None, true);
            for text in found.messages {
                say!("fgraph: {}", escaped(&text));
            }
        }));
    }

    /// Returns the name of the program. A running process may have written over its command line.
    fn program(&self) -> &str {
        match self.is_attached() {
            true => &self.path,
            false => self.command.first().map_or("PROGRAM", String::as_str),
        }
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

    /// Reports the patterns that match inlined functions or none, unless it was done before;
    /// returns true if there are any. `begun` has the number of calls of each function of a
    /// process, if that is known.
    pub(crate) fn say_unmatched(
        &mut self,
        names: &Names,
        begun: Option<&HashMap<(u32, u32), u64>>,
    ) -> bool {
        let mut patterns = std::mem::take(&mut self.patterns);
        let said = std::mem::take(&mut self.early.patterns);
        let _ = self.early.search.take().map(JoinHandle::join);
        patterns.retain(|pattern| !said.contains(pattern));
        let find = |patterns: &[Pattern]| {
            unmatched::of_program(patterns, self.program(), names, begun, false)
        };
        // A library with the functions may have been loaded since.
        let is_still = find(&said).is_all;
        let found = find(&patterns);
        let is_none_of_said = is_still || said.is_empty();
        let is_none_of_others = found.is_all || patterns.is_empty();
        let is_any = !said.is_empty() || !patterns.is_empty();
        self.is_unmatched |= is_any && is_none_of_said && is_none_of_others;
        for text in &found.messages {
            say!("fgraph: {}", escaped(text));
        }
        is_still || !found.messages.is_empty()
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

    /// For processes that were already running: describes the interruption of a thread of each.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = String> {
        self.attached.iter().map(Attached::pause)
    }

    /// Returns true if it was already running, and continues when recording ends.
    pub(crate) fn is_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Returns true if recording is over: the program has ended, its time is over, or there were
    /// enough interrupts.
    pub(crate) fn is_over(&self, interrupts: &Interrupts) -> bool {
        let enough = if self.is_attached() { 0 } else { 1 };
        let is_asked = interrupts.count() > enough || self.is_stopped();
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        self.has_ended() || is_asked || is_late || self.has_executed()
    }

    /// Returns true if no process that was already running is recorded any more: each has executed
    /// another program, without the agent, or has ended.
    fn has_executed(&self) -> bool {
        let mut all = self.attached.iter();
        self.is_attached() && all.all(|it| it.has_executed() || it.has_ended())
    }

    /// Returns the part that switches functions off, if there is one.
    pub(crate) fn switching(&mut self) -> Option<&mut Switching> {
        self.switching.as_mut()
    }

    /// Ends recording: no more events are written to the rings.
    pub(crate) fn stop(&mut self) {
        self.switching = None;
        if self.has_last_states {
            self.describe_last_states();
        }
        if let Err(error) = self.detach() {
            // The recording is worth more than the error.
            say!("fgraph: {}", error.message().unwrap_or_default());
        }
        self.finish();
    }

    /// Describes the state of each process, as far as it is known and its agent has not told it.
    fn describe_last_states(&mut self) {
        self.gone.give_back(&self.rings);
        let inode = self.file.metadata().map_or(0, |file| file.ino());
        let names = self.rings.names();
        let all = names.descriptions().iter();
        let all = all.filter(|it| it.kind == DescriptionKind::Process);
        let all: HashSet<u32> = all.map(|it| it.fields[0] as u32).collect();
        for process in all.into_iter().filter(|it| names.last_state(*it).is_none()) {
            let id = process_id(process);
            let state = match id == self.process && !self.is_attached() && self.has_ended() {
                true => match self.status().and_then(|status| status.signal()) {
                    Some(signal) => LastState::Killed {
                        signal: signal as u32,
                    },
                    None => LastState::Ended,
                },
                false if self.gone.has(id) => LastState::Ended,
                // It has executed a program without the agent, or its id is of another namespace.
                false if has_ended(id) || !maps(id, inode) => continue,
                false => LastState::Running,
            };
            if let Some(fields) = state.to_fields(process) {
                let rings = &self.rings;
                rings.describe(DescriptionKind::LastState, fields, ["", ""]);
            }
        }
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
        self.sockets.iter().any(Socket::is_stopped)
    }

    /// Passes the progress of recording to the clients of the socket; returns true if one wants a
    /// snapshot.
    pub(crate) fn tell(&self, drained: Drained) -> bool {
        let mut takes_snapshot = false;
        for socket in &self.sockets {
            socket.set_drained(drained);
            takes_snapshot |= socket.takes_snapshot();
        }
        takes_snapshot
    }

    /// For processes that continue: ends the agent's work there, so that all their events are in
    /// the rings.
    fn detach(&mut self) -> Result<(), Error> {
        if self.is_attached() {
            let ended = self.attached.iter_mut().map(Attached::end);
            // All of them end, whatever one's failure is.
            let failed: Vec<Error> = ended.filter_map(Result::err).collect();
            return failed.into_iter().next().map_or(Ok(()), Err);
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
        for attached in self.attached.iter().filter(|it| it.has_executed()) {
            let process = attached.process();
            say!("fgraph: process {process} has executed another program, which is not recorded");
        }
        let detached = self.detach();
        self.finish();
        // Recording is over.
        self.sockets.clear();
        plan_cache::trim();
        let names = self.rings.names();
        self.say_refused(&names);
        self.say_unmatched(&names, None);
        let is_empty = Counts::of(&self.rings, Drained::default()).calls == 0;
        let (is_refused, is_unmatched) = (self.refused > 0, self.is_unmatched);
        let (is_attached, is_part) = (self.is_attached(), self.is_part);
        let is_left = interrupts.count() > 1;
        let status = match is_attached || is_left {
            true => None,
            false => self.wait(),
        };
        result.and(detached)?;
        if is_refused && is_empty {
            return Err(Error::Refused);
        }
        if is_unmatched && is_empty {
            return Err(Error::Unmatched);
        }
        if is_part {
            return Ok(Error::Refused.exit_code());
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
