//! Tracers by text, as tracefs has it: files that are read and written.
//!
//! The files mean what the kernel's do, for the functions of this process. There may be several
//! tracers, each with its own filter, as the RFC of 2011 for the kernel had it: one of them is the
//! default, marked with a `*` in `function_tracers`, and `set_ftrace_filter` is the default one's.
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
//! | file | read | written |
//! |---|---|---|
//! | `available_tracers` | what `current_tracer` takes | |
//! | `current_tracer` | the one at work | starts it under the name `trace`; `nop` ends it |
//! | `function_profile_enabled` | 0 or 1 | starts or ends the profiler, `trace_profile` |
//! | `function_tracers` | the tracers, with the default marked | makes one the default |
//! | `set_ftrace_filter` | the functions of each tracer | those of the default one |
//! | `set_ftrace_notrace` | what is not traced | what the default one does not trace |
//! | `set_ftrace_pid` | threads of the default tracer | their ids, or nothing for all |
//! | `tracing_on` | 0 or 1 | pauses `trace`, or lets it go on |
//! | `enabled_functions` | functions that some tracer watches, with how many do | |
//! | `available_filter_functions` | functions that can be traced | |
//! | `trace` | the calls of `trace`, in the layout of `function_graph` | forgets them |
//! | `trace_stat/functions` | the profile | |

use std::collections::BTreeMap;
use std::{error, fmt};

use fgraph::{Error, Filter, FilterError};
use fgraph_trace::graph::{FunctionGraph, Options};

use crate::Tracer;
use crate::profiler::Profiler;
use crate::recorder::{RecordError, Recorder};

/// The name of the current tracer, among those with filters.
const TRACE: &str = "trace";
/// The name of the profiler.
const PROFILE: &str = "trace_profile";
/// What a filter that selects all functions reads as.
const ALL: &str = "#### all functions enabled ####";
/// The files, and whether they can be written.
const FILES: &[(&str, bool)] = &[
    ("available_filter_functions", false),
    ("available_tracers", false),
    ("current_tracer", true),
    ("enabled_functions", false),
    ("function_profile_enabled", true),
    ("function_tracers", true),
    ("set_ftrace_filter", true),
    ("set_ftrace_notrace", true),
    ("set_ftrace_pid", true),
    ("trace", true),
    ("trace_stat/functions", false),
    ("tracing_on", true),
];

/// The files, and the tracers that they control. Dropping it ends these.
#[derive(Debug, Default)]
pub struct Control {
    /// In the order in which they came.
    tracers: Vec<Entry>,
    /// The place of the default tracer.
    default: usize,
    /// The words of filters that are for a tracer that is not there yet.
    words: Words,
    is_paused: bool,
}

/// A tracer with its filter.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    work: Work,
    words: Words,
}

#[derive(Debug)]
enum Work {
    /// The recorder, and the name that it was asked for by.
    Trace(Recorder, &'static str),
    Profile(Profiler),
}

/// What was written about functions and threads.
#[derive(Clone, Debug, Default)]
struct Words {
    trace: Vec<String>,
    notrace: Vec<String>,
    threads: Vec<u32>,
}

impl Work {
    fn tracer(&self) -> &dyn Tracer {
        match self {
            Self::Trace(recorder, _) => recorder,
            Self::Profile(profiler) => profiler,
        }
    }
}

impl Words {
    fn filter(&self) -> Result<Filter, FilterError> {
        let words = self.trace.iter().cloned();
        let not = self.notrace.iter().map(|word| format!("!{word}"));
        let words: Vec<_> = words.chain(not).collect();
        if words.is_empty() {
            return Ok(Filter::all());
        }
        words.join(" ").parse()
    }
}

impl Control {
    /// Without tracers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The names of the files.
    pub fn files() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// The text of a file.
    ///
    /// # Errors
    ///
    /// [`NoFile`](ControlError::NoFile), and what fgraph says.
    pub fn read(&self, file: &str) -> Result<String, ControlError> {
        let text = match file {
            "available_tracers" => "function_graph function nop\n".to_owned(),
            "current_tracer" => match self.find(TRACE).map(|place| &self.tracers[place].work) {
                Some(Work::Trace(_, name)) => format!("{name}\n"),
                _ => "nop\n".to_owned(),
            },
            "function_profile_enabled" => format!("{}\n", u8::from(self.find(PROFILE).is_some())),
            "function_tracers" => self.names(),
            "set_ftrace_filter" => self.filters()?,
            "set_ftrace_notrace" => {
                self.lists(|words| words.notrace.clone(), "no functions disabled")
            }
            "set_ftrace_pid" => {
                let ids = |words: &Words| words.threads.iter().map(u32::to_string).collect();
                self.lists(ids, "no pid")
            }
            "tracing_on" => format!("{}\n", u8::from(!self.is_paused)),
            "enabled_functions" => self.enabled()?,
            "available_filter_functions" => {
                let sites = fgraph::sites()?;
                let names = sites.iter().filter(|site| site.how.is_ok());
                names.map(|site| site.name + "\n").collect()
            }
            "trace" => self.trace()?,
            "trace_stat/functions" => {
                let place = self
                    .find(PROFILE)
                    .ok_or(ControlError::Off("the profiler"))?;
                match &self.tracers[place].work {
                    Work::Profile(profiler) => profiler.profile().together().to_string(),
                    Work::Trace(..) => String::new(),
                }
            }
            _ => return Err(ControlError::NoFile(file.to_owned())),
        };
        Ok(text)
    }

    /// Writes to a file, in the place of what was there: `echo text > file`.
    ///
    /// # Errors
    ///
    /// [`NoFile`](ControlError::NoFile), [`ReadOnly`](ControlError::ReadOnly), and what is wrong
    /// with the text, of which [`Value`](ControlError::Value) names the part. Nothing is changed
    /// then.
    pub fn write(&mut self, file: &str, text: &str) -> Result<(), ControlError> {
        self.change(file, text, false)
    }

    /// Adds to a file: `echo text >> file`. For files without a list this is the same as
    /// [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub fn append(&mut self, file: &str, text: &str) -> Result<(), ControlError> {
        self.change(file, text, true)
    }

    fn change(&mut self, file: &str, text: &str, append: bool) -> Result<(), ControlError> {
        let known = FILES.iter().find(|(name, _)| *name == file);
        let &(file, can_write) = known.ok_or_else(|| ControlError::NoFile(file.to_owned()))?;
        if !can_write {
            return Err(ControlError::ReadOnly(file));
        }
        let text = text.trim();
        let wrong = || ControlError::Value {
            file,
            part: text.to_owned(),
        };
        let is_on = || match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(wrong()),
        };
        match file {
            "current_tracer" => match text {
                "nop" => self.end(TRACE),
                "function" => self.start_trace("function")?,
                "function_graph" => self.start_trace("function_graph")?,
                _ => return Err(wrong()),
            },
            "function_profile_enabled" => match (is_on()?, self.find(PROFILE)) {
                (true, None) => {
                    let words = self.new_words();
                    let profiler = Profiler::start(words.filter()?)?;
                    self.begin(PROFILE, Work::Profile(profiler), words);
                }
                (true, Some(_)) => {}
                (false, _) => self.end(PROFILE),
            },
            "function_tracers" => self.default = self.find(text).ok_or_else(wrong)?,
            "tracing_on" => {
                self.is_paused = !is_on()?;
                self.pause();
            }
            "trace" => {
                if let Some(Entry {
                    work: Work::Trace(_, name),
                    ..
                }) = self.find(TRACE).map(|place| &self.tracers[place])
                {
                    let name = *name;
                    self.restart_trace(name)?;
                }
            }
            _ => {
                let mut words = self.default_words().clone();
                words.change(file, text, append)?;
                self.set_words(file, words)?;
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.tracers.iter().position(|entry| entry.name == name)
    }

    /// The words of a tracer that is to be started: the first one gets those that were written
    /// before.
    fn new_words(&self) -> Words {
        match self.tracers.is_empty() {
            true => self.words.clone(),
            false => Words::default(),
        }
    }

    fn default_words(&self) -> &Words {
        let entry = self.tracers.get(self.default);
        entry.map_or(&self.words, |entry| &entry.words)
    }

    fn begin(&mut self, name: &'static str, work: Work, words: Words) {
        self.tracers.push(Entry { name, work, words });
        self.default = self.tracers.len() - 1;
        self.pause();
    }

    fn end(&mut self, name: &str) {
        let Some(place) = self.find(name) else { return };
        let entry = self.tracers.remove(place);
        if self.tracers.is_empty() {
            self.words = entry.words;
        }
        if self.default == place {
            self.default = self.tracers.len().saturating_sub(1);
        } else if self.default > place {
            self.default -= 1;
        }
    }

    fn start_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        if let Some(place) = self.find(TRACE) {
            if let Work::Trace(_, current) = &mut self.tracers[place].work {
                *current = name;
            }
            return Ok(());
        }
        let words = self.new_words();
        let recorder = Recorder::start(words.filter()?)?;
        self.begin(TRACE, Work::Trace(recorder, name), words);
        Ok(())
    }

    /// Starts the trace anew with what is written about functions, without the calls until now.
    fn restart_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        let Some(place) = self.find(TRACE) else {
            return Ok(());
        };
        let recorder = Recorder::start(self.tracers[place].words.filter()?)?;
        self.tracers[place].work = Work::Trace(recorder, name);
        self.pause();
        Ok(())
    }

    fn pause(&self) {
        if let Some(place) = self.find(TRACE) {
            self.tracers[place]
                .work
                .tracer()
                .set_enabled(!self.is_paused);
        }
    }

    /// Gives the default tracer other words.
    fn set_words(&mut self, file: &'static str, words: Words) -> Result<(), ControlError> {
        let filter = words.filter()?;
        // A word that selects nothing is most likely a mistake: the kernel refuses it, too.
        let report = |word: &String| -> Result<(), ControlError> {
            if fgraph::sites_of(word.as_str())?.is_empty() {
                return Err(ControlError::Value {
                    file,
                    part: word.clone(),
                });
            }
            Ok(())
        };
        let known = self.default_words().clone();
        let is_new = |word: &&String| !known.trace.contains(word);
        words.trace.iter().filter(is_new).try_for_each(report)?;
        let Some(entry) = self.tracers.get_mut(self.default) else {
            self.words = words;
            return Ok(());
        };
        let tracer = entry.work.tracer();
        if words.threads != known.threads {
            let ids = &*words.threads;
            tracer.set_threads((!ids.is_empty()).then_some(ids))?;
        }
        tracer.set_filter(filter)?;
        entry.words = words;
        Ok(())
    }

    fn names(&self) -> String {
        let names = self.tracers.iter().enumerate();
        let mark = |place| if place == self.default { "*" } else { "" };
        names
            .map(|(place, entry)| format!("{}{}\n", mark(place), entry.name))
            .collect()
    }

    /// Lines of each tracer, with its name where there are several.
    fn of_each(
        &self,
        lines: impl Fn(&Words, Option<&Entry>) -> Result<Vec<String>, ControlError>,
    ) -> Result<String, ControlError> {
        let mut text = String::new();
        match &*self.tracers {
            [] => text.extend(
                lines(&self.words, None)?
                    .iter()
                    .map(|line| format!("{line}\n")),
            ),
            [entry] => {
                let lines = lines(&entry.words, Some(entry))?;
                text.extend(lines.iter().map(|line| format!("{line}\n")));
            }
            several => {
                for entry in several {
                    let lines = lines(&entry.words, Some(entry))?;
                    let name = entry.name;
                    text.extend(lines.iter().map(|line| format!("[ {name}] {line}\n")));
                }
            }
        }
        Ok(text)
    }

    fn filters(&self) -> Result<String, ControlError> {
        self.of_each(|words, entry| match entry {
            _ if words.trace.is_empty() => Ok(vec![ALL.to_owned()]),
            None => Ok(words.trace.clone()),
            Some(entry) => {
                let functions = entry.work.tracer().functions()?;
                Ok(functions.iter().map(|f| f.name().to_string()).collect())
            }
        })
    }

    fn lists(&self, of: impl Fn(&Words) -> Vec<String>, none: &str) -> String {
        let text = self.of_each(|words, _| match of(words) {
            empty if empty.is_empty() => Ok(vec![format!("#### {none} ####")]),
            list => Ok(list),
        });
        text.unwrap_or_default()
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

    fn trace(&self) -> Result<String, ControlError> {
        let Some(Work::Trace(recorder, _)) = self.find(TRACE).map(|at| &self.tracers[at].work)
        else {
            return Ok("# tracer: nop\n".to_owned());
        };
        let mut snapshot = recorder.snapshot();
        let mut text = Vec::new();
        let written = FunctionGraph::new(Options::default()).write_all(&mut snapshot, &mut text);
        written.map_err(|error| ControlError::Trace(error.to_string()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Words {
    /// Changes a list as the text says that is written to its file.
    fn change(&mut self, file: &'static str, text: &str, append: bool) -> Result<(), ControlError> {
        if file == "set_ftrace_pid" {
            let ids = text.split_whitespace().map(|word| {
                word.parse().map_err(|_| ControlError::Value {
                    file,
                    part: word.to_owned(),
                })
            });
            let ids: Vec<u32> = ids.collect::<Result<_, _>>()?;
            if !append {
                self.threads.clear();
            }
            self.threads.extend(ids);
            return Ok(());
        }
        let list = match file {
            "set_ftrace_notrace" => &mut self.notrace,
            _ => &mut self.trace,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        if !append && !words.iter().any(|word| word.starts_with('!')) {
            list.clear();
        }
        for word in words {
            let wrong = || ControlError::Value {
                file,
                part: word.to_owned(),
            };
            match word.strip_prefix('!') {
                Some(removed) => {
                    let before = list.len();
                    list.retain(|known| known != removed);
                    if list.len() == before {
                        return Err(wrong());
                    }
                }
                None => {
                    let _: Filter = word.parse().map_err(|_| wrong())?;
                    list.push(word.to_owned());
                }
            }
        }
        Ok(())
    }
}

/// Why a file was not read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// There is no file of this name.
    NoFile(String),
    /// The file cannot be written.
    ReadOnly(&'static str),
    /// A part of what was written is wrong, or selects nothing.
    Value {
        /// The file.
        file: &'static str,
        /// The part.
        part: String,
    },
    /// What the file tells of is not at work.
    Off(&'static str),
    /// The trace could not be written as text.
    Trace(String),
    /// What the recorder says.
    Record(RecordError),
    /// What fgraph says.
    Fgraph(Error),
}

impl From<Error> for ControlError {
    fn from(error: Error) -> Self {
        Self::Fgraph(error)
    }
}

impl From<FilterError> for ControlError {
    fn from(error: FilterError) -> Self {
        Self::Fgraph(error.into())
    }
}

impl From<RecordError> for ControlError {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile(file) => write!(f, "there is no file {file}"),
            Self::ReadOnly(file) => write!(f, "{file} cannot be written"),
            Self::Value { file, part } => write!(f, "{part:?} is nothing for {file}"),
            Self::Off(what) => write!(f, "{what} is off"),
            Self::Trace(why) => write!(f, "the trace cannot be written: {why}"),
            Self::Record(error) => error.fmt(f),
            Self::Fgraph(error) => error.fmt(f),
        }
    }
}

impl error::Error for ControlError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Record(error) => error.source(),
            Self::Fgraph(error) => error.source(),
            _ => None,
        }
    }
}
