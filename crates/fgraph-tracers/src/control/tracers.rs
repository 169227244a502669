//! The tracers that control files start, and the state of the files.

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

use super::ControlError;
use super::commands::Commands;
use super::settings::Settings;
use super::text::Text;
use super::view::{Calls, TracePipe, View, leave_out};
use super::words::{self, Functions};
use crate::Tracer;
use crate::profiler::Profiler;
use crate::recorder::Recorder;
use crate::stack::StackTracer;

/// Name of the current tracer among the tracers with filters.
pub(super) const TRACE: &str = "trace";
/// Name of the profiler.
pub(super) const PROFILE: &str = "trace_profile";
/// Name of the tracer of stacks.
pub(super) const STACK: &str = "trace_stack";
/// Text of a list that selects all functions.
pub(super) const ALL: &str = "all functions enabled";
/// Text of a list that selects no functions.
pub(super) const NONE: &str = "no functions disabled";

/// Time for which a reader of `trace_pipe` waits for calls that were made just before.
const HELD_BACK: Duration = Duration::from_millis(5);

/// The control files, and the tracers that they control. Dropping it ends the tracers.
#[derive(Debug, Default)]
pub struct Control {
    // Dropped before the recorder, which it shares.
    pub(super) commands: Commands,
    /// In the order in which they were started.
    tracers: Vec<Entry>,
    /// Index of the default tracer.
    pub(super) default: usize,
    /// Filter words for a tracer that has not been started yet.
    words: Words,
    pub(super) settings: Settings,
    /// State of reads of `trace_pipe`.
    pub(super) pipe: Option<TracePipe>,
    /// Time in ticks up to which the events of the current recorder have been consumed.
    taken: Arc<AtomicU64>,
}

/// Tracer with its filter.
#[derive(Debug)]
pub(super) struct Entry {
    name: &'static str,
    work: Work,
    words: Words,
}

#[derive(Debug)]
pub(super) enum Work {
    /// The recorder, and the name by which it was started.
    Trace(Arc<Recorder>, &'static str),
    Profile(Profiler),
    Stack(StackTracer),
}

/// Words that were written about functions and threads.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub(super) trace: Functions,
    pub(super) notrace: Functions,
    pub(super) threads: Vec<u32>,
    /// End of a filter that excludes the functions that no tracer may watch.
    never: String,
}

impl Work {
    pub(super) fn tracer(&self) -> &dyn Tracer {
        match self {
            Self::Trace(recorder, _) => &**recorder,
            Self::Profile(profiler) => profiler,
            Self::Stack(stack) => stack,
        }
    }
}

impl Words {
    pub(super) fn filter(&self) -> Result<Filter, ControlError> {
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

    /// Sets a value of the settings.
    pub(super) fn set(&mut self, text: &Text<'_>) -> Result<(), ControlError> {
        let before = self.settings.clone();
        let mut done = match self.settings.write(text.file, text.value())? {
            true => self.restart_trace(),
            false => Ok(()),
        };
        if done.is_ok() && self.settings.profiler() != before.profiler() {
            done = self.restart_profile();
        }
        if done.is_err() {
            self.settings = before;
        }
        done
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.tracers.iter().position(|entry| entry.name == name)
    }

    pub(super) fn recorder(&self) -> Option<(&Arc<Recorder>, &'static str)> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Trace(recorder, name) => Some((recorder, *name)),
            _ => None,
        })
    }

    pub(super) fn profiler(&self) -> Option<&Profiler> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Profile(profiler) => Some(profiler),
            _ => None,
        })
    }

    pub(super) fn running_profiler(&self) -> Result<&Profiler, ControlError> {
        self.profiler().ok_or(ControlError::Off("the profiler"))
    }

    pub(super) fn stack(&self) -> Option<&StackTracer> {
        self.tracers.iter().find_map(|entry| match &entry.work {
            Work::Stack(stack) => Some(stack),
            _ => None,
        })
    }

    /// Returns the words for a tracer that is about to start. The first tracer gets the words that
    /// were written before.
    pub(super) fn new_words(&self) -> Words {
        match self.tracers.is_empty() {
            true => self.words.clone(),
            false => self.no_words(),
        }
    }

    pub(super) fn no_words(&self) -> Words {
        Words {
            never: self.words.never.clone(),
            ..Words::default()
        }
    }

    pub(super) fn default_words(&self) -> &Words {
        let entry = self.tracers.get(self.default);
        entry.map_or(&self.words, |entry| &entry.words)
    }

    /// Starts or ends a tracer of a kind that exists once.
    pub(super) fn switch(
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

    pub(super) fn begin(
        &mut self,
        name: &'static str,
        work: Work,
        words: Words,
    ) -> Result<(), ControlError> {
        let threads = &*words.threads;
        if !threads.is_empty() {
            work.tracer().set_threads(Some(threads))?;
        }
        self.tracers.push(Entry { name, work, words });
        self.default = self.tracers.len() - 1;
        Ok(())
    }

    pub(super) fn end(&mut self, name: &str) -> Result<(), ControlError> {
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

    pub(super) fn start_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
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

    pub(super) fn new_recorder(
        &self,
        words: &Words,
        name: &str,
    ) -> Result<Arc<Recorder>, ControlError> {
        let options = self.settings.recorder(name);
        Ok(Arc::new(Recorder::start_with(words.filter()?, &options)?))
    }

    /// Restarts the trace, if there is one, without the calls so far.
    pub(super) fn restart_trace(&mut self) -> Result<(), ControlError> {
        match self.recorder() {
            Some((_, name)) => self.replace_trace(name),
            None => Ok(()),
        }
    }

    /// Restarts the profiler, if there is one, without the calls so far.
    pub(super) fn restart_profile(&mut self) -> Result<(), ControlError> {
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

    pub(super) fn replace_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
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

    pub(super) fn started(&mut self, recorder: &Arc<Recorder>) -> Result<(), ControlError> {
        self.taken = Arc::default();
        self.pause();
        self.commands.start(Some((recorder, &self.taken)))
    }

    pub(super) fn pause(&self) {
        if let Some((recorder, _)) = self.recorder() {
            recorder.set_enabled(self.commands.switch.is_on());
        }
    }

    /// Discards the calls so far.
    pub(super) fn forget(&mut self) -> Result<(), ControlError> {
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

    pub(super) fn mark(&mut self, text: &str) -> Result<(), ControlError> {
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

    pub(super) fn change_words(&mut self, text: &Text<'_>) -> Result<(), ControlError> {
        let (file, text, append) = (text.file, text.value(), text.append);
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

    pub(super) fn names(&self) -> String {
        let names = self.tracers.iter().enumerate();
        let mark = |place| if place == self.default { "*" } else { "" };
        names
            .map(|(place, entry)| format!("{}{}\n", mark(place), entry.name))
            .collect()
    }

    /// Returns the lines of each tracer, with the tracer's name where there are several.
    pub(super) fn of_each(
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

    pub(super) fn filters(&self) -> Result<String, ControlError> {
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

    pub(super) fn lists(
        &self,
        of: impl Fn(&Words) -> Result<Vec<String>, ControlError>,
        none: &str,
    ) -> Result<String, ControlError> {
        self.of_each(|words, _| match of(words)? {
            empty if empty.is_empty() => Ok(vec![format!("#### {none} ####")]),
            list => Ok(list),
        })
    }

    pub(super) fn enabled(&self) -> Result<String, ControlError> {
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

    pub(super) fn view(&self, name: &str) -> Result<View, ControlError> {
        if name == "function" {
            return Ok(View::Calls(Calls::default()));
        }
        let mut options = self.settings.graph();
        options.functions = matcher(&self.settings.functions)?;
        options.without = matcher(&self.settings.without)?;
        Ok(View::Graph(FunctionGraph::new(options)))
    }

    pub(super) fn trace(&self) -> Result<String, ControlError> {
        let Some((recorder, name)) = self.recorder() else {
            return Ok("# tracer: nop\n".to_owned());
        };
        let mut snapshot = recorder.snapshot();
        leave_out(&mut snapshot, &self.taken)?;
        self.text(name, snapshot)
    }

    pub(super) fn snapshot(&self) -> Result<String, ControlError> {
        let name = self.recorder().map_or("function_graph", |(_, name)| name);
        match self.commands.snapshots.get() {
            Some(snapshot) => self.text(name, snapshot),
            None => Ok("# tracer: nop\n#\n# * Snapshot is freed *\n#\n".to_owned()),
        }
    }

    pub(super) fn text(&self, name: &str, mut events: Snapshot) -> Result<String, ControlError> {
        let (mut view, mut text) = (self.view(name)?, String::new());
        while view.write_event(&mut events, &mut text)? {}
        Ok(text)
    }

    pub(super) fn drain_pipe(&mut self) -> Result<String, ControlError> {
        let mut pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => self.trace_pipe()?,
        };
        let text = pipe.drain(HELD_BACK)?;
        self.pipe = Some(pipe);
        Ok(text)
    }

    pub(super) fn stack_trace(&self) -> String {
        match self.stack() {
            None => "# Stack tracer disabled\n".to_owned(),
            Some(stack) => match stack.deepest().first() {
                Some(deepest) => deepest.to_string(),
                None => String::new(),
            },
        }
    }

    pub(super) fn read_of_thread(&self, file: &str) -> Result<String, ControlError> {
        let no_file = || ControlError::NoFile(file.to_owned());
        let thread = |text: &str| text.parse::<u32>().map_err(|_| no_file());
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
    pub(super) fn stats(
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

pub(super) fn list(functions: &Functions, none: &str) -> Result<String, ControlError> {
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
