//! The files that always exist: how each is read and written.

use super::ControlError;
use super::text::Text;
use super::tracers::{ALL, Control, NONE, PROFILE, STACK, TRACE, Words, list};
use crate::profiler::Profiler;
use crate::stack::StackTracer;

/// Returns the text of the file with this name.
pub(super) type Read = fn(&mut Control, &str) -> Result<String, ControlError>;
/// Writes a text to a file.
pub(super) type Write = fn(&mut Control, &Text<'_>) -> Result<(), ControlError>;

/// File that always exists.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: &'static str,
    /// `None` if the file cannot be read.
    pub(super) read: Option<Read>,
    /// `None` if the file cannot be written.
    pub(super) write: Option<Write>,
}

impl File {
    const fn readable(name: &'static str, read: Read) -> Self {
        let (read, write) = (Some(read), None);
        Self { name, read, write }
    }

    const fn both(name: &'static str, read: Read, write: Write) -> Self {
        let (read, write) = (Some(read), Some(write));
        Self { name, read, write }
    }

    /// Returns a file with a value of the settings.
    const fn setting(name: &'static str) -> Self {
        let read: Read = |it, file| it.settings.read(file).ok_or_else(|| no_file(file));
        Self::both(name, read, Control::set)
    }

    /// True if a text that is written here appears in the trace, and changes nothing else.
    pub(super) fn is_marker(&self) -> bool {
        self.name == MARKER
    }
}

const MARKER: &str = "trace_marker";

/// Returns the file with this name.
pub(super) fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

fn no_file(name: &str) -> ControlError {
    ControlError::NoFile(name.to_owned())
}

fn number(number: u64) -> Result<String, ControlError> {
    Ok(format!("{number}\n"))
}

/// All files that always exist, but for the options.
pub(super) static FILES: &[File] = &[
    File::readable("available_filter_functions", |it, _| {
        let sites = fgraph::sites_of(it.no_words().filter()?)?;
        let names = sites.iter().filter(|site| site.how.is_ok());
        Ok(names.map(|site| site.name + "\n").collect())
    }),
    File::readable("available_tracers", |_, _| {
        Ok("function_graph function nop\n".to_owned())
    }),
    File::setting("buffer_size_kb"),
    File::both(
        "current_tracer",
        |it, _| {
            let name = it.recorder().map_or("nop", |(_, name)| name);
            Ok(format!("{name}\n"))
        },
        |it, text| match text.value() {
            "nop" => it.end(TRACE),
            "function" => it.start_trace("function"),
            "function_graph" => it.start_trace("function_graph"),
            _ => Err(text.wrong()),
        },
    ),
    File::readable("enabled_functions", |it, _| it.enabled()),
    File::both(
        "function_profile_enabled",
        |it, _| number(it.profiler().is_some().into()),
        |it, text| {
            let options = it.settings.profiler();
            let start = |filter| Ok(Profiler::start_with(filter, &options)?);
            it.switch(PROFILE, text.is_on()?, start)
        },
    ),
    File::both(
        "function_tracers",
        |it, _| Ok(it.names()),
        |it, text| {
            let chosen = it.tracers.set_default(text.value());
            chosen.map_err(|_| text.wrong())
        },
    ),
    File::setting("max_graph_depth"),
    File::both(
        "set_ftrace_filter",
        |it, _| it.filters(),
        Control::change_words,
    ),
    File::both(
        "set_ftrace_notrace",
        |it, _| it.lists(|words| words.notrace.names(), NONE),
        Control::change_words,
    ),
    File::both(
        "set_ftrace_pid",
        |it, _| {
            let ids = |words: &Words| Ok(words.threads.iter().map(u32::to_string).collect());
            it.lists(ids, "no pid")
        },
        Control::change_words,
    ),
    File::both(
        "set_graph_function",
        |it, _| list(&it.settings.functions, ALL),
        |it, text| text.change(&mut it.settings.functions),
    ),
    File::both(
        "set_graph_notrace",
        |it, _| list(&it.settings.without, NONE),
        |it, text| text.change(&mut it.settings.without),
    ),
    File::both(
        "snapshot",
        |it, _| it.snapshot(),
        |it, text| {
            match (text.is_on()?, it.recorder()) {
                (false, _) => it.commands.snapshots.clear(),
                (true, Some(_)) => it.commands.snapshots.take(),
                (true, None) => return Err(ControlError::Off("the tracer")),
            }
            Ok(())
        },
    ),
    File::both(
        "stack_max_size",
        |it, _| {
            let deepest = it
                .stack()
                .and_then(|stack| stack.deepest().into_iter().next());
            number(deepest.map_or(0, |stack| stack.bytes as u64))
        },
        |it, text| match (text.value(), it.stack()) {
            ("0", Some(stack)) => {
                stack.reset();
                Ok(())
            }
            ("0", None) => Ok(()),
            _ => Err(text.wrong()),
        },
    ),
    File::readable("stack_trace", |it, _| Ok(it.stack_trace())),
    File::both(
        "stack_tracer_enabled",
        |it, _| number(it.stack().is_some().into()),
        |it, text| {
            let start = |filter| Ok(StackTracer::start(filter)?);
            it.switch(STACK, text.is_on()?, start)
        },
    ),
    File::both("trace", |it, _| it.trace(), |it, _| it.forget()),
    File::setting("trace_clock"),
    File {
        name: MARKER,
        read: None,
        write: Some(|it, text| it.mark(text.text)),
    },
    File::setting("trace_options"),
    File::readable("trace_pipe", |it, _| it.drain_pipe()),
    File::readable("trace_stat/functions", |it, _| {
        Ok(it.running_profiler()?.profile().together().to_string())
    }),
    File::both(
        "tracing_on",
        |it, _| number(it.commands.switch.is_on().into()),
        |it, text| {
            it.commands.switch.set(text.is_on()?);
            it.pause();
            Ok(())
        },
    ),
    File::setting("tracing_thresh"),
];
