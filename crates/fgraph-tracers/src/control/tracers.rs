//! The tracers that control files start, and the state of the files.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
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
use crate::registry::Registry;
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
    pub(super) tracers: Registry,
    /// Filter words of each tracer, by its name.
    words: HashMap<&'static str, Words>,
    /// Filter words for a tracer that has not been started yet.
    new_words: Words,
    /// Name by which the current tracer was started.
    trace: &'static str,
    pub(super) settings: Settings,
    /// State of reads of `trace_pipe`.
    pub(super) pipe: Option<TracePipe>,
    /// Time in ticks up to which the events of the current recorder have been consumed.
    taken: Arc<AtomicU64>,
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
        let new_words = Words {
            never: never.collect(),
            ..Words::default()
        };
        Self {
            new_words,
            ..Self::default()
        }
    }

    /// True while there is no tracer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.words.is_empty()
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

    /// Returns the recorder, and the name by which it was started.
    pub(super) fn recorder(&self) -> Option<(Arc<Recorder>, &'static str)> {
        Some((self.tracers.share(TRACE)?, self.trace))
    }

    pub(super) fn profiler(&self) -> Option<&Profiler> {
        self.tracers.get_as(PROFILE)
    }

    pub(super) fn running_profiler(&self) -> Result<&Profiler, ControlError> {
        self.profiler().ok_or(ControlError::Off("the profiler"))
    }

    pub(super) fn stack(&self) -> Option<&StackTracer> {
        self.tracers.get_as(STACK)
    }

    pub(super) fn no_words(&self) -> Words {
        Words {
            never: self.new_words.never.clone(),
            ..Words::default()
        }
    }

    /// Returns the words of the default tracer, which the first tracer gets if there is none.
    fn default_words(&self) -> &Words {
        let default = self.tracers.default_name();
        let words = default.and_then(|name| self.words.get(name));
        words.unwrap_or(&self.new_words)
    }

    fn default_words_mut(&mut self) -> &mut Words {
        let default = self.tracers.default_name();
        let words = default.and_then(|name| self.words.get_mut(name));
        words.unwrap_or(&mut self.new_words)
    }

    /// Returns the default tracer.
    fn default_tracer(&self) -> Option<&dyn Tracer> {
        self.tracers.get(self.tracers.default_name()?)
    }

    /// Starts or ends a tracer of a kind that exists once.
    pub(super) fn switch<T: Tracer + Any>(
        &mut self,
        name: &'static str,
        on: bool,
        start: impl FnOnce(Filter) -> Result<T, ControlError>,
    ) -> Result<(), ControlError> {
        match (on, self.words.contains_key(name)) {
            (true, false) => self.begin(name, start),
            (true, true) => Ok(()),
            (false, _) => self.end(name),
        }
    }

    /// Starts a tracer, in the place of the one of this name if there is one.
    fn begin<T: Tracer + Any>(
        &mut self,
        name: &'static str,
        start: impl FnOnce(Filter) -> Result<T, ControlError>,
    ) -> Result<(), ControlError> {
        let words = match self.words.get(name) {
            Some(words) => words.clone(),
            None if self.is_idle() => self.new_words.clone(),
            None => self.no_words(),
        };
        let tracer = start(words.filter()?)?;
        if !words.threads.is_empty() {
            tracer.set_threads(Some(&words.threads))?;
        }
        self.leave(name);
        self.words.insert(name, words);
        self.tracers.put(name, tracer);
        Ok(())
    }

    pub(super) fn end(&mut self, name: &str) -> Result<(), ControlError> {
        let Some(words) = self.words.remove(name) else {
            return Ok(());
        };
        if self.is_idle() {
            self.new_words = words;
        }
        self.leave(name);
        // It ends here.
        let _ = self.tracers.unregister(name);
        match name {
            TRACE => self.commands.start(None),
            _ => Ok(()),
        }
    }

    /// Stops the uses of a tracer that is about to end.
    fn leave(&mut self, name: &str) {
        if name != TRACE {
            return;
        }
        self.commands.stop();
        self.pipe = None;
        if let Some((recorder, _)) = self.recorder() {
            // Readers that wait for more text see the end.
            recorder.rings().finish();
        }
    }

    pub(super) fn start_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        match self.recorder() {
            Some((_, running)) if running == name => Ok(()),
            _ => self.renew_trace(name),
        }
    }

    /// Restarts the trace, if there is one, without the calls so far.
    fn restart_trace(&mut self) -> Result<(), ControlError> {
        match self.recorder() {
            Some((_, name)) => self.renew_trace(name),
            None => Ok(()),
        }
    }

    fn renew_trace(&mut self, name: &'static str) -> Result<(), ControlError> {
        let options = self.settings.recorder(name);
        self.begin(TRACE, |filter| Ok(Recorder::start_with(filter, &options)?))?;
        self.trace = name;
        self.taken = Arc::default();
        self.pause();
        let recorder = self.tracers.share(TRACE);
        let trace = recorder.as_ref().map(|recorder| (recorder, &self.taken));
        self.commands.start(trace)
    }

    /// Restarts the profiler, if there is one, without the calls so far.
    fn restart_profile(&mut self) -> Result<(), ControlError> {
        let options = self.settings.profiler();
        match self.profiler() {
            Some(_) => self.begin(PROFILE, |filter| {
                Ok(Profiler::start_with(filter, &options)?)
            }),
            None => Ok(()),
        }
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
                    && let Some(tracer) = self.default_tracer()
                {
                    let ids = &*words.threads;
                    tracer.set_threads((!ids.is_empty()).then_some(ids))?;
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
                let recorder = self.tracers.share(TRACE);
                let trace = recorder.as_ref().map(|recorder| (recorder, &self.taken));
                self.commands.change(file, &commands, trace)?;
            }
        }
        if let Some(tracer) = self.default_tracer() {
            tracer.set_filter(words.filter()?)?;
        }
        *self.default_words_mut() = words;
        Ok(())
    }

    pub(super) fn names(&self) -> String {
        let default = self.tracers.default_name();
        let mark = |name| if default == Some(name) { "*" } else { "" };
        let names = self.tracers.names();
        names
            .map(|name| format!("{}{name}\n", mark(name)))
            .collect()
    }

    /// Returns the lines of each tracer, with the tracer's name where there are several.
    pub(super) fn of_each(
        &self,
        lines: impl Fn(&Words, Option<&dyn Tracer>) -> Result<Vec<String>, ControlError>,
    ) -> Result<String, ControlError> {
        let mut text = String::new();
        let names: Vec<_> = self.tracers.names().collect();
        let of = |name| lines(&self.words[name], self.tracers.get(name));
        let entries: Vec<_> = match &*names {
            [] => vec![(String::new(), lines(&self.new_words, None)?)],
            [name] => vec![(String::new(), of(name)?)],
            several => several
                .iter()
                .map(|name| Ok((format!("[ {name}] "), of(name)?)))
                .collect::<Result<_, ControlError>>()?,
        };
        for (name, lines) in entries {
            text.extend(lines.iter().map(|line| format!("{name}{line}\n")));
        }
        Ok(text)
    }

    pub(super) fn filters(&self) -> Result<String, ControlError> {
        let text = self.of_each(|words, tracer| match tracer {
            _ if words.trace.is_empty() => Ok(vec![format!("#### {ALL} ####")]),
            None => words.trace.names(),
            Some(tracer) => {
                let functions = tracer.functions()?;
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
        for tracer in self
            .tracers
            .names()
            .filter_map(|name| self.tracers.get(name))
        {
            for function in tracer.functions()? {
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
    Ok(Some(Box::new(move |name, _| names.contains(name))))
}
