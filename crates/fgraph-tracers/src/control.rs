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
//! | `current_tracer` | the running tracer | starts one under the name `trace`; `nop` ends it |
//! | `function_profile_enabled` | 0 or 1 | starts or ends the profiler, `trace_profile` |
//! | `stack_tracer_enabled` | 0 or 1 | starts or ends the tracer of stacks, `trace_stack` |
//! | `function_tracers` | the tracers, with the default marked | makes one the default |
//! | `set_ftrace_filter` | the functions of each tracer, and commands | those of the default one |
//! | `set_ftrace_notrace` | functions that are not traced | those that the default one leaves out |
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
//! | `tracing_thresh` | microseconds | only calls of at least this time are shown; 0 for all |
//! | `max_graph_depth` | a number | calls this deep are not shown; 0 for no limit |
//! | `set_graph_function` | functions | only they are shown, with the calls inside them |
//! | `set_graph_notrace` | functions | they are not shown, nor the calls inside them |
//! | `trace_options`, `options/*` | the columns, and if old calls are overwritten | the same |
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
mod files;
mod settings;
mod text;
mod tracers;
mod view;
mod words;

use fgraph::Untraced;

pub use error::ControlError;
use files::{FILES, File, find};
use settings::Settings;
use text::Text;
pub use tracers::Control;
pub use view::TracePipe;

impl Control {
    /// Lists the names of the files. The files of a thread exist while a tracer knows the thread.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        let mut files: Vec<_> = FILES.iter().map(|file| file.name.to_owned()).collect();
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
        match find(file) {
            Some(File { read, .. }) => {
                let read = read.ok_or_else(|| ControlError::WriteOnly(file.to_owned()))?;
                read(self, file)
            }
            None => match self.settings.read(file) {
                Some(text) => Ok(text),
                None => self.read_of_thread(file),
            },
        }
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

    fn change(&mut self, file: &str, text: &str, append: bool) -> Result<(), ControlError> {
        let _untraced = Untraced::new();
        let known = find(file);
        let write = match known {
            Some(known) => known.write,
            None if self.settings.has(file) => Some(Self::set as files::Write),
            None => {
                // The files of a thread can only be read.
                self.read_of_thread(file)?;
                None
            }
        };
        let write = write.ok_or_else(|| ControlError::ReadOnly(file.to_owned()))?;
        write(self, &Text { file, text, append })?;
        if !known.is_some_and(File::is_marker) {
            // Reading `trace_pipe` continues with the files as they are now.
            self.pipe = None;
        }
        Ok(())
    }
}
