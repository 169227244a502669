//! Control of tracers by text, as in tracefs: files that are read and written.
//!
//! The files mean the same as the kernel's, for the functions of this process. There may be several
//! tracers, each with its own filter, as in the RFC of 2011 for the kernel. One of them is the
//! default: `function_tracers` marks it with a `*`, and `set_ftrace_filter` sets its filter.
//!
//! ```
//! use fgraph_tracers::control::Control;
//!
//! let mut control = Control::new();
//! control.write("set_ftrace_filter", "getppid")?;
//! control.write("function_profile_enabled", "1")?;
//! assert_eq!(control.read("function_tracers")?, "*trace_profile\n");
//! assert_eq!(control.read("set_ftrace_filter")?, "getppid\n");
//! # Ok::<(), fgraph_tracers::control::ControlError>(())
//! ```
//!
//! Files that start tracers and select functions:
//!
//! | file | read | written |
//! |---|---|---|
//! | `available_tracers` | the names that `current_tracer` accepts | |
//! | `current_tracer` | the running tracer | starts a tracer under the name `trace`; `nop` ends it
//! |
//! | `function_profile_enabled` | 0 or 1 | starts or ends the profiler, `trace_profile` |
//! | `stack_tracer_enabled` | 0 or 1 | starts or ends the tracer of stacks, `trace_stack` |
//! | `function_tracers` | the tracers, with the default marked | makes one the default |
//! | `set_ftrace_filter` | the functions of each tracer, and commands | those of the default one |
//! | `set_ftrace_notrace` | the functions that are not traced | those that the default one does not
//! trace |
//! | `set_ftrace_pid` | threads of each tracer | those of the default one, or nothing for all |
//! | `enabled_functions` | functions that a tracer watches, and the number of these tracers | |
//! | `available_filter_functions` | functions that can be traced | |
//!
//! Files with the calls of the current tracer:
//!
//! | file | read | written |
//! |---|---|---|
//! | `trace` | the calls, in the layout of the tracer | forgets them |
//! | `trace_pipe` | as `trace`, each call once: see [`trace_pipe`](Control::trace_pipe) | |
//! | `trace_marker` | | a text that stands among the calls of the thread |
//! | `snapshot` | the content of `trace` at some moment | 1 takes a snapshot, 0 frees it |
//! | `tracing_on` | 0 or 1 | pauses or resumes `trace` |
//! | `tracing_thresh` | in microseconds | only calls that take at least this long are shown; 0 for
//! all |
//! | `max_graph_depth` | a number | calls this deep are not shown; 0 for no limit |
//! | `set_graph_function` | functions | only they are shown, with the calls inside them |
//! | `set_graph_notrace` | functions | they are not shown, nor the calls inside them |
//! | `trace_options`, `options/*` | the columns shown, and whether old calls are overwritten |
//! `tail`, `notail` |
//! | `buffer_size_kb` | room for a thread's calls | restarts with another size |
//! | `trace_clock` | the clocks, with the one in use in brackets | restarts with another clock |
//! | `per_thread/ID/stats` | counters of a thread, the kernel's `per_cpu` | |
//!
//! Files with the results of the other tracers:
//!
//! | file | read | written |
//! |---|---|---|
//! | `trace_stat/functions` | the profile of all threads | |
//! | `trace_stat/functionID` | the profile of the thread with this id | |
//! | `stack_max_size` | bytes of the deepest stack | forgets it |
//! | `stack_trace` | the calls on the deepest stack | |
//!
//! # Functions
//!
//! A list of functions consists of the words of a filter, with white space between them. Writing
//! replaces the list, [appending](Control::append) adds to it, and a word that begins with `!`
//! removes functions. `read*:mod:libc*` selects functions of one module.
//!
//! A word with a command does not change the traced functions. It makes each call of its functions
//! do something: `parse*:traceoff` pauses tracing, `traceon` resumes it, `snapshot` takes a
//! snapshot, and `stacktrace` writes the traced calls around the call to the trace. `:3` at the end
//! limits the number of times for each function. `!parse*:traceoff:0` removes a command with such a
//! limit, and `!parse*:traceoff` one without.

mod commands;
mod error;
mod settings;
mod view;
mod words;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fgraph::{Filter, Untraced};
use fgraph_trace::clock::Anchor;
use fgraph_trace::event::What;
use fgraph_trace::graph::{FunctionGraph, Matcher};
use fgraph_trace::{Snapshot, Source};

use crate::Tracer;
use crate::profiler::Profiler;
use crate::recorder::Recorder;
use crate::stack::StackTracer;
use commands::Commands;
pub use error::ControlError;
use settings::Settings;
pub use view::TracePipe;
use view::{Calls, View, leave_out};
use words::Functions;

/// Name of the current tracer among the tracers with filters.
const TRACE: &str = "trace";
/// Name of the profiler.
const PROFILE: &str = "trace_profile";
/// Name of the tracer of stacks.
const STACK: &str = "trace_stack";
/// Text of a list that selects all functions.
const ALL: &str = "all functions enabled";
/// Text of a list that selects no functions.
const NONE: &str = "no functions disabled";

/// Ways in which a file can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Both,
}

/// Files that always exist, without the options.
const FILES: &[(&str, Access)] = &[
    ("available_filter_functions", Access::Read),
    ("available_tracers", Access::Read),
    ("buffer_size_kb", Access::Both),
    ("current_tracer", Access::Both),
    ("enabled_functions", Access::Read),
    ("function_profile_enabled", Access::Both),
    ("function_tracers", Access::Both),
    ("max_graph_depth", Access::Both),
    ("set_ftrace_filter", Access::Both),
    ("set_ftrace_notrace", Access::Both),
    ("set_ftrace_pid", Access::Both),
    ("set_graph_function", Access::Both),
    ("set_graph_notrace", Access::Both),
    ("snapshot", Access::Both),
    ("stack_max_size", Access::Both),
    ("stack_trace", Access::Read),
    ("stack_tracer_enabled", Access::Both),
    ("trace", Access::Both),
    ("trace_clock", Access::Both),
    ("trace_marker", Access::Write),
    ("trace_options", Access::Both),
    ("trace_pipe", Access::Read),
    ("trace_stat/functions", Access::Read),
    ("tracing_on", Access::Both),
    ("tracing_thresh", Access::Both),
];

/// Time for which a reader of `trace_pipe` waits for calls that were made just before.
const HELD_BACK: Duration = Duration::from_millis(5);

/// The control files, and the tracers that they control. Dropping it ends the tracers.
#[derive(Debug, Default)]
pub struct Control {
    // Dropped before the recorder, which it shares.
    commands: Commands,
    /// In the order in which they were started.
    tracers: Vec<Entry>,
    /// Index of the default tracer.
    default: usize,
    /// Filter words for a tracer that has not been started yet.
    words: Words,
    settings: Settings,
    /// State of reads of `trace_pipe`.
    pipe: Option<TracePipe>,
    /// Time in ticks up to which the events of the current recorder have been consumed.
    taken: Arc<AtomicU64>,
}

/// Tracer with its filter.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    work: Work,
    words: Words,
}

#[derive(Debug)]
enum Work {
    /// The recorder, and the name by which it was started.
    Trace(Arc<Recorder>, &'static str),
    Profile(Profiler),
    Stack(StackTracer),
}

/// Words that were written about functions and threads.
#[derive(Clone, Debug, Default)]
struct Words {
    trace: Functions,
    notrace: Functions,
    threads: Vec<u32>,
    /// End of a filter that excludes the functions that no tracer may watch.
    never: String,
}

impl Work {
    fn tracer(&self) -> &dyn Tracer {
        match self {
            Self::Trace(recorder, _) => &**recorder,
            Self::Profile(profiler) => profiler,
            Self::Stack(stack) => stack,
        }
    }
}

impl Words {
    fn filter(&self) -> Result<Filter, ControlError> {
        let all = self.trace.text().unwrap_or_else(|| "*".to_owned());
        let text = all + &self.notrace.without()? + &self.never;
        match &*text {
            "*" => Ok(Filter::all()),
            text => Ok(text.parse()?),
        }
    }
}

impl Control {
    /// Creates control files without tracers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates control files without tracers. None of the tracers will watch functions of these
    /// modules, which are globs as for `:mod:` in filters.
    #[must_use]
    pub fn without_modules(modules: &[&str]) -> Self {
        let never = modules.iter().map(|module| format!(" !:mod:{module}"));
        let words = Words {
            never: never.collect(),
            ..Words::default()
        };
        Self {
            words,
            ..Self::default()
        }
    }

    /// True while there is no tracer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tracers.is_empty()
    }

    /// Lists the names of the files. The files of a thread exist while a tracer knows the thread.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let mut files: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        files.extend(Settings::files());
        if let Some((recorder, _)) = self.recorder() {
            let mut threads: Vec<_> = recorder.rings().counts().map(|ring| ring.thread).collect();
            threads.sort_unstable();
            threads.dedup();
            files.extend(
                threads
                    .iter()
                    .map(|thread| format!("per_thread/{thread}/stats")),
            );
        }
        if let Some(profiler) = self.profiler() {
            let profile = profiler.profile();
            let threads = profile.threads.iter();
            files.extend(threads.map(|thread| format!("trace_stat/function{}", thread.thread)));
        }
        files.sort();
        files
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// [`NoFile`](ControlError::NoFile), [`WriteOnly`](ControlError::WriteOnly), and the errors of
    /// fgraph.
    pub fn read(&mut self, file: &str) -> Result<String, ControlError> {
        // Reading is not the program's own work, so leave it out of traces.
        let _untraced = Untraced::new();
        let number = |number: u64| format!("{number}\n");
        let text = match file {
            "available_tracers" => "function_graph function nop\n".to_owned(),
            "current_tracer" => match self.recorder() {
                Some((_, name)) => format!("{name}\n"),
                None => "nop\n".to_owned(),
            },
            "function_profile_enabled" => number(self.find(PROFILE).is_some().into()),
            "stack_tracer_enabled" => number(self.find(STACK).is_some().into()),
            "function_tracers" => self.names(),
            "set_ftrace_filter" => self.filters()?,
            "set_ftrace_notrace" => self.lists(|words| words.notrace.names(), NONE)?,
            "set_ftrace_pid" => {
                let ids = |words: &Words| Ok(words.threads.iter().map(u32::to_string).collect());
                self.lists(ids, "no pid")?
            }
            "set_graph_function" => list(&self.settings.functions, ALL)?,
            "set_graph_notrace" => list(&self.settings.without, NONE)?,
            "tracing_on" => number(self.commands.switch.is_on().into()),
            "enabled_functions" => self.enabled()?,
            "available_filter_functions" => {
                let sites = fgraph::sites_of(self.no_words().filter()?)?;
                let names = sites.iter().filter(|site| site.how.is_ok());
                names.map(|site| site.name + "\n").collect()
            }
            "trace" => self.trace()?,
            "trace_pipe" => self.drain_pipe()?,
            "snapshot" => self.snapshot()?,
            "stack_max_size" => {
                let deepest = self
                    .stack()
                    .and_then(|stack| stack.deepest().into_iter().next());
                number(deepest.map_or(0, |stack| stack.bytes as u64))
            }
            "stack_trace" => self.stack_trace(),
            "trace_stat/functions" => self.running_profiler()?.profile().together().to_string(),
            _ => match self.settings.read(file) {
                Some(text) => text,
                None => self.read_of_thread(file)?,
            },
        };
        Ok(text)
    }

    /// Replaces the text of a file: `echo text > file`.
    ///
    /// # Errors
    ///
    /// [`NoFile`](ControlError::NoFile), [`ReadOnly`](ControlError::ReadOnly), and errors in the
    /// text, whose wrong part [`Value`](ControlError::Value) names. After an error nothing has
    /// changed.
    pub fn write(&mut self, file: &str, text: &str) -> Result<(), ControlError> {
        self.change(file, text, false)
    }

    /// Appends to a file: `echo text >> file`. For files without a list this is the same as
    /// [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// Same as for [`write`](Self::write).
    pub fn append(&mut self, file: &str, text: &str) -> Result<(), ControlError> {
        self.change(file, text, true)
    }

    /// Returns a reader that waits for the text of the current tracer. Text that it has read is no
    /// longer in `trace`. It ends with the tracer, and when the tracer restarts.
    ///
    /// Reading the file `trace_pipe` is the same without waiting.
    ///
    /// # Errors
    ///
    /// [`Off`](ControlError::Off) without a current tracer, [`Busy`](ControlError::Busy) if there
    /// already is such a reader.
    pub fn trace_pipe(&mut self) -> Result<TracePipe, ControlError> {
        let _untraced = Untraced::new();
        self.pipe = None;
        let (recorder, name) = self.recorder().ok_or(ControlError::Off("the tracer"))?;
        let view = self.view(name)?;
        Ok(TracePipe::new(
            recorder.consume()?,
            view,
            self.taken.clone(),
        ))
    }

    fn change(&mut self, file: &str, text: &str, append: bool) -> Result<(), ControlError> {
        let _untraced = Untraced::new();
        let known = FILES.iter().find(|(name, _)| *name == file);
        match known {
            Some((_, Access::Read)) => return Err(ControlError::ReadOnly(file.to_owned())),
            None if !self.settings.has(file) => {
                // The files of a thread can only be read.
                self.read_of_thread(file)?;
                return Err(ControlError::ReadOnly(file.to_owned()));
            }
            _ => {}
        }
        if file == "trace_marker" {
            return self.mark(text);
        }
        let text = text.trim();
        let wrong = || ControlError::value(file, text);
        let is_on = || match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(wrong()),
        };
        match file {
            "current_tracer" => match text {
                "nop" => self.end(TRACE)?,
                "function" => self.start_trace("function")?,
                "function_graph" => self.start_trace("function_graph")?,
                _ => return Err(wrong()),
            },
            "function_profile_enabled" => {
                let options = self.settings.profiler();
                let start = |filter| Ok(Work::Profile(Profiler::start_with(filter, &options)?));
                self.switch(PROFILE, is_on()?, start)?;
            }
            "stack_tracer_enabled" => {
                let start = |filter| Ok(Work::Stack(StackTracer::start(filter)?));
                self.switch(STACK, is_on()?, start)?;
            }
            "function_tracers" => self.default = self.find(text).ok_or_else(wrong)?,
            "tracing_on" => {
                self.commands.switch.set(is_on()?);
                self.pause();
            }
            "trace" => self.forget()?,
            "snapshot" => match (text, self.recorder()) {
                ("0", _) => self.commands.snapshots.clear(),
                ("1", Some(_)) => self.commands.snapshots.take(),
                ("1", None) => return Err(ControlError::Off("the tracer")),
                _ => return Err(wrong()),
            },
            "stack_max_size" => {
                if text != "0" {
                    return Err(wrong());
                }
                if let Some(stack) = self.stack() {
                    stack.reset();
                }
            }
            "set_graph_function" => self.settings.functions.write(file, text, append)?,
            "set_graph_notrace" => self.settings.without.write(file, text, append)?,
            "set_ftrace_filter" | "set_ftrace_notrace" | "set_ftrace_pid" => {
                self.change_words(file, text, append)?;
            }
            _ => {
                let before = self.settings.clone();
                let mut done = match self.settings.write(file, text)? {
                    true => self.restart_trace(),
                    false => Ok(()),
                };
                if done.is_ok() && self.settings.profiler() != before.profiler() {
                    done = self.restart_profile();
                }
                if let Err(error) = done {
                    self.settings = before;
                    return Err(error);
                }
            }
        }
        // Reading `trace_pipe` continues with the files as they are now.
        self.pipe = None;
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.tracers.iter().position(|entry| entry.name == name)
    }

    fn recorder(&self) -> Option<(&Arc<Recorder>, &'static str)> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Trace(recorder, name) => Some((recorder, *name)),
            _ => None,
        })
    }

    fn profiler(&self) -> Option<&Profiler> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Profile(profiler) => Some(profiler),
            _ => None,
        })
    }

    fn running_profiler(&self) -> Result<&Profiler, ControlError> {
        self.profiler().ok_or(ControlError::Off("the profiler"))
    }

    fn stack(&self) -> Option<&StackTracer> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Stack(stack) => Some(stack),
            _ => None,
        })
    }

    /// Returns the words for a tracer that is about to start. The first tracer gets the words that
    /// were written before.
    fn new_words(&self) -> Words {
        match self.tracers.is_empty() {
            true => self.words.clone(),
            false => self.no_words(),
        }
    }

    fn no_words(&self) -> Words {
        Words {
            never: self.words.never.clone(),
            ..Words::default()
        }
    }

    fn default_words(&self) -> &Words {
        let entry = self.tracers.get(self.default);
        entry.map_or(&self.words, |entry| &entry.words)
    }

    /// Starts or ends a tracer of a kind that exists once.
    fn switch(
        &mut self,
        name: &'static str,
        on: bool,
        start: impl FnOnce(Filter) -> Result<Work, ControlError>,
    ) -> Result<(), ControlError> {
        match (on, self.find(name)) {
            (true, None) => {
                let words = self.new_words();
                let work = start(words.filter()?)?;
                self.begin(name, work, words)
            }
            (true, Some(_)) => Ok(()),
            (false, _) => self.end(name),
        }
    }

    fn begin(&mut self, name: &'static str, work: Work, words: Words) -> Result<(), ControlError> {
        let threads = &*words.threads;
        if !threads.is_empty() {
            work.tracer().set_threads(Some(threads))?;
        }
        self.tracers.push(Entry { name, work, words });
        self.default = self.tracers.len() - 1;
        Ok(())
    }

    fn end(&mut self, name: &str) -> Result<(), ControlError> {
        let Some(place) = self.find(name) else {
            return Ok(());
        };
        if name == TRACE {
            self.commands.stop();
            self.pipe = None;
        }
        let entry = self.tracers.remove(place);
        if self.tracers.is_empty() {
            self.words = entry.words;
        }
        if self.default == place {
            self.default = self.tracers.len().saturating_sub(1);
        } else if self.default > place {
            self.default -= 1;
        }
        if name == TRACE {
            if let Work::Trace(recorder, _) = &entry.work {
                // Readers that wait for more text see the end.
                recorder.rings().finish();
            }
            drop(entry.work);
            self.commands.start(None)?;
        }
        Ok(())
    }

    fn start_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        match self.recorder() {
            Some((_, running)) if running == name => return Ok(()),
            Some(_) => return self.replace_trace(name),
            None => {}
        }
        let words = self.new_words();
        let recorder = self.new_recorder(&words, name)?;
        self.begin(TRACE, Work::Trace(recorder.clone(), name), words)?;
        self.started(&recorder)
    }

    fn new_recorder(&self, words: &Words, name: &str) -> Result<Arc<Recorder>, ControlError> {
        let options = self.settings.recorder(name);
        Ok(Arc::new(Recorder::start_with(words.filter()?, &options)?))
    }

    /// Restarts the trace, if there is one, without the calls so far.
    fn restart_trace(&mut self) -> Result<(), ControlError> {
        match self.recorder() {
            Some((_, name)) => self.replace_trace(name),
            None => Ok(()),
        }
    }

    /// Restarts the profiler, if there is one, without the calls so far.
    fn restart_profile(&mut self) -> Result<(), ControlError> {
        let Some(place) = self.find(PROFILE) else {
            return Ok(());
        };
        let words = &self.tracers[place].words;
        let profiler = Profiler::start_with(words.filter()?, &self.settings.profiler())?;
        if !words.threads.is_empty() {
            profiler.set_threads(Some(&words.threads))?;
        }
        self.tracers[place].work = Work::Profile(profiler);
        Ok(())
    }

    fn replace_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        let Some(place) = self.find(TRACE) else {
            return Ok(());
        };
        let words = &self.tracers[place].words;
        let recorder = self.new_recorder(words, name)?;
        if !words.threads.is_empty() {
            recorder.set_threads(Some(&words.threads))?;
        }
        self.commands.stop();
        self.pipe = None;
        if let Some((before, _)) = self.recorder() {
            before.rings().finish();
        }
        self.tracers[place].work = Work::Trace(recorder.clone(), name);
        self.started(&recorder)
    }

    fn started(&mut self, recorder: &Arc<Recorder>) -> Result<(), ControlError> {
        self.taken = Arc::default();
        self.pause();
        self.commands.start(Some((recorder, &self.taken)))
    }

    fn pause(&self) {
        if let Some((recorder, _)) = self.recorder() {
            recorder.set_enabled(self.commands.switch.is_on());
        }
    }

    /// Discards the calls so far.
    fn forget(&mut self) -> Result<(), ControlError> {
        self.pipe = None;
        let Some((recorder, _)) = self.recorder() else {
            return Ok(());
        };
        // If another reader is consuming them, it makes room too.
        if let Ok(mut live) = recorder.consume() {
            while live.next()?.is_some() {}
        }
        let now = recorder.rings().clock().kind().now();
        self.taken.fetch_max(now, Ordering::Relaxed);
        Ok(())
    }

    fn mark(&mut self, text: &str) -> Result<(), ControlError> {
        if !self.settings.is_on("markers") {
            return Err(ControlError::Off("markers"));
        }
        let Some((recorder, _)) = self.recorder() else {
            return Ok(());
        };
        if !self.commands.switch.is_on() {
            return Ok(());
        }
        match recorder.mark(text) {
            true => Ok(()),
            false => Err(ControlError::Lost),
        }
    }

    fn change_words(&mut self, file: &str, text: &str, append: bool) -> Result<(), ControlError> {
        let known = self.default_words();
        let mut words = known.clone();
        match file {
            "set_ftrace_pid" => {
                let id = |word: &str| word.parse().map_err(|_| ControlError::value(file, word));
                let ids: Vec<u32> = text.split_whitespace().map(id).collect::<Result<_, _>>()?;
                if !append {
                    words.threads.clear();
                }
                words.threads.extend(ids);
                if words.threads != known.threads
                    && let Some(entry) = self.tracers.get(self.default)
                {
                    let ids = &*words.threads;
                    let ids = (!ids.is_empty()).then_some(ids);
                    entry.work.tracer().set_threads(ids)?;
                }
            }
            "set_ftrace_notrace" => {
                words.notrace.write(file, text, append)?;
            }
            _ => {
                if !append {
                    words.trace.clear();
                }
                let mut commands = Vec::new();
                for word in words::split(text) {
                    match Commands::is_command(file, word)? {
                        true => commands.push(word),
                        false => words.trace.change(file, word)?,
                    }
                }
                words.filter()?;
                let recorder = self.recorder().map(|(recorder, _)| recorder.clone());
                let trace = recorder.as_ref().map(|recorder| (recorder, &self.taken));
                self.commands.change(file, &commands, trace)?;
            }
        }
        match self.tracers.get_mut(self.default) {
            Some(entry) => {
                entry.work.tracer().set_filter(words.filter()?)?;
                entry.words = words;
            }
            None => self.words = words,
        }
        Ok(())
    }

    fn names(&self) -> String {
        let names = self.tracers.iter().enumerate();
        let mark = |place| if place == self.default { "*" } else { "" };
        names
            .map(|(place, entry)| format!("{}{}\n", mark(place), entry.name))
            .collect()
    }

    /// Returns the lines of each tracer, with the tracer's name where there are several.
    fn of_each(
        &self,
        lines: impl Fn(&Words, Option<&Entry>) -> Result<Vec<String>, ControlError>,
    ) -> Result<String, ControlError> {
        let mut text = String::new();
        let entries: Vec<_> = match &*self.tracers {
            [] => vec![(String::new(), lines(&self.words, None)?)],
            [entry] => vec![(String::new(), lines(&entry.words, Some(entry))?)],
            several => several
                .iter()
                .map(|entry| {
                    let lines = lines(&entry.words, Some(entry))?;
                    Ok((format!("[ {}] ", entry.name), lines))
                })
                .collect::<Result<_, ControlError>>()?,
        };
        for (name, lines) in entries {
            text.extend(lines.iter().map(|line| format!("{name}{line}\n")));
        }
        Ok(text)
    }

    fn filters(&self) -> Result<String, ControlError> {
        let text = self.of_each(|words, entry| match entry {
            _ if words.trace.is_empty() => Ok(vec![format!("#### {ALL} ####")]),
            None => words.trace.names(),
            Some(entry) => {
                let functions = entry.work.tracer().functions()?;
                Ok(functions.iter().map(|f| f.name().to_string()).collect())
            }
        })?;
        let commands = self.commands.lines().map(|line| line + "\n");
        Ok(text + &commands.collect::<String>())
    }

    fn lists(
        &self,
        of: impl Fn(&Words) -> Result<Vec<String>, ControlError>,
        none: &str,
    ) -> Result<String, ControlError> {
        self.of_each(|words, _| match of(words)? {
            empty if empty.is_empty() => Ok(vec![format!("#### {none} ####")]),
            list => Ok(list),
        })
    }

    fn enabled(&self) -> Result<String, ControlError> {
        let mut watched: BTreeMap<usize, (&str, usize)> = BTreeMap::new();
        for entry in &self.tracers {
            for function in entry.work.tracer().functions()? {
                let name = function.name().as_str();
                watched.entry(function.address()).or_insert((name, 0)).1 += 1;
            }
        }
        let lines = watched.values();
        Ok(lines
            .map(|(name, users)| format!("{name} ({users})\n"))
            .collect())
    }

    fn view(&self, name: &str) -> Result<View, ControlError> {
        if name == "function" {
            return Ok(View::Calls(Calls::default()));
        }
        let mut options = self.settings.graph();
        options.functions = matcher(&self.settings.functions)?;
        options.without = matcher(&self.settings.without)?;
        Ok(View::Graph(FunctionGraph::new(options)))
    }

    fn trace(&self) -> Result<String, ControlError> {
        let Some((recorder, name)) = self.recorder() else {
            return Ok("# tracer: nop\n".to_owned());
        };
        let mut snapshot = recorder.snapshot();
        leave_out(&mut snapshot, &self.taken)?;
        self.text(name, snapshot)
    }

    fn snapshot(&self) -> Result<String, ControlError> {
        let name = self.recorder().map_or("function_graph", |(_, name)| name);
        match self.commands.snapshots.get() {
            Some(snapshot) => self.text(name, snapshot),
            None => Ok("# tracer: nop\n#\n# * Snapshot is freed *\n#\n".to_owned()),
        }
    }

    fn text(&self, name: &str, mut events: Snapshot) -> Result<String, ControlError> {
        let (mut view, mut text) = (self.view(name)?, String::new());
        while view.write_event(&mut events, &mut text)? {}
        Ok(text)
    }

    fn drain_pipe(&mut self) -> Result<String, ControlError> {
        let mut pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => self.trace_pipe()?,
        };
        let text = pipe.drain(HELD_BACK)?;
        self.pipe = Some(pipe);
        Ok(text)
    }

    fn stack_trace(&self) -> String {
        match self.stack() {
            None => "# Stack tracer disabled\n".to_owned(),
            Some(stack) => match stack.deepest().first() {
                Some(deepest) => deepest.to_string(),
                None => String::new(),
            },
        }
    }

    fn read_of_thread(&self, file: &str) -> Result<String, ControlError> {
        let no_file = || ControlError::NoFile(file.to_owned());
        let thread = |text: &str| text.parse::<u32>().map_err(|_| no_file());
        if let Some(access) = FILES.iter().find(|(name, _)| *name == file)
            && access.1 == Access::Write
        {
            return Err(ControlError::WriteOnly(file.to_owned()));
        }
        if let Some(id) = file.strip_prefix("trace_stat/function") {
            let id = thread(id)?;
            let profile = self.running_profiler()?.profile();
            let profile = profile.threads.iter().find(|profile| profile.thread == id);
            return Ok(profile.ok_or_else(no_file)?.to_string());
        }
        let id = file.strip_prefix("per_thread/");
        let id = id.and_then(|file| file.strip_suffix("/stats"));
        self.stats(thread(id.ok_or_else(no_file)?)?, no_file)
    }

    /// Returns the counters of a thread's ring, like the kernel's counters of a processor's.
    fn stats(
        &self,
        thread: u32,
        no_file: impl FnOnce() -> ControlError,
    ) -> Result<String, ControlError> {
        let (recorder, _) = self.recorder().ok_or(ControlError::Off("the tracer"))?;
        let rings = recorder.rings();
        let ours = rings.counts().filter(|ring| ring.thread == thread);
        let ours = ours.map(|ring| [ring.written, ring.dropped]);
        let sum = ours.reduce(|[a, b], [c, d]| [a + c, b + d]);
        let [written, dropped] = sum.ok_or_else(no_file)?;
        let mut snapshot = recorder.snapshot();
        let (mut entries, mut oldest) = (0, None);
        while let Some(event) = snapshot.next()? {
            if event.thread == thread && !matches!(event.what, What::Lost { .. }) {
                entries += 1;
                oldest = oldest.or(Some(event.time));
            }
        }
        let clock = snapshot.clock();
        let overrun = written.saturating_sub(entries);
        let time = |ticks| clock.timestamp(ticks);
        let mut text = format!("entries: {entries}\noverrun: {overrun}\n");
        let _ = writeln!(text, "oldest event ts: {}", time(oldest.unwrap_or(0)));
        let _ = writeln!(text, "now ts: {}", time(Anchor::now(clock.kind()).ticks));
        let _ = writeln!(text, "dropped events: {dropped}");
        Ok(text)
    }
}

fn list(functions: &Functions, none: &str) -> Result<String, ControlError> {
    match functions.is_empty() {
        true => Ok(format!("#### {none} ####\n")),
        false => Ok(functions.names()?.join("\n") + "\n"),
    }
}

/// Returns a test for the names of the functions; `None` if there is no list.
fn matcher(functions: &Functions) -> Result<Option<Matcher>, ControlError> {
    if functions.is_empty() {
        return Ok(None);
    }
    let names: HashSet<_> = functions.names()?.into_iter().collect();
    Ok(Some(Box::new(move |name| names.contains(name))))
}
