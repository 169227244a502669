//! The settings of the agent in a program: its task, and what it records.

use std::path::PathBuf;

use fgraph::{Filter, FilterError};
use fgraph_trace::names::PYTHON;
use fgraph_tracers::heap::Role;
use fgraph_tracers::probe::fault::Fault;
use fgraph_tracers::threads::Rule;
use serde::{Deserialize, Serialize, Serializer};

use crate::message::{decode, encode};
use crate::own_rings::OwnRings;
use crate::rings_file::RingsFile;

/// Name of the environment variable that holds the settings.
pub const VARIABLE: &str = "FGRAPH_AGENT";

/// Name of the environment variable with the options of AddressSanitizer.
pub const ASAN_VARIABLE: &str = "ASAN_OPTIONS";

/// Option that makes AddressSanitizer accept the agent in front of its own library.
pub const ASAN_OPTION: &str = "verify_asan_link_order=0";

/// Directories in which the system keeps its libraries.
pub const SYSTEM: [&str; 4] = ["/lib/*", "/lib64/*", "/usr/lib/*", "/usr/lib64/*"];
/// Modules that never belong to the program: the kernel's functions, and the agent itself.
pub const NEVER: [&str; 2] = ["[vdso]", "*fgraph-agent*"];

/// Task of the agent in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Tool {
    /// Records calls: see [`recorder`](fgraph_tracers::recorder).
    #[default]
    Record,
    /// Writes a line for each system call, and another when the call begins if `is_loud`: see
    /// [`syscalls`](fgraph_tracers::syscalls). [`Settings::trace`] and
    /// [`notrace`](Settings::notrace) select system calls.
    Syscalls {
        /// True if there is a line when a call begins.
        is_loud: bool,
        /// True if lines have the paths of descriptors.
        has_paths: bool,
    },
    /// Reports the deepest stacks: see [`stack`](fgraph_tracers::stack).
    Stack,
    /// Reports calls on wrong threads: see [`threads`](fgraph_tracers::threads). Each rule has the
    /// words of a filter; the functions in [`Settings`] are ignored.
    Threads(Vec<(Rule, String)>),
    /// Makes calls fail: see [`fault`](fgraph_tracers::probe::fault).
    Inject(Fault),
}

/// Leaves out a path that is not text.
fn path_text<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().and_then(|path| path.to_str()).serialize(to)
}

/// Selects the calls of a program that are recorded, and the rings that they go to.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Task of the agent.
    pub tool: Tool,
    /// File in which programs find the rings.
    pub rings: RingsFile,
    /// The size of rings that each program makes for itself, if there is no recorder to read them.
    /// They keep the newest events.
    pub own_rings: Option<OwnRings>,
    /// Number of programs that the process has executed since the first one.
    pub executed: u32,
    /// True if forked processes and executed programs are recorded too.
    pub follow: bool,
    /// Words of filters. Each adds functions. Without any, all functions of the program's
    /// own file are recorded, and those of libraries outside the system's directories.
    pub trace: Vec<String>,
    /// Words of filters. Each removes functions.
    pub notrace: Vec<String>,
    /// True if the system's libraries are recorded too when `trace` is empty.
    pub libraries: bool,
    /// Calls nested this deep in recorded calls are left out; 0 for no limit.
    pub depth: usize,
    /// Number of arguments that are recorded: 0 to 6.
    pub arguments: usize,
    /// Words of filters: only the arguments of these functions are recorded in words. Without any,
    /// those of all functions are.
    pub arguments_of: Vec<String>,
    /// True if results are recorded.
    pub result: bool,
    /// Words of filters: only these functions and the calls inside them are recorded. Without any,
    /// all calls are.
    pub within: Vec<String>,
    /// Words of filters: functions that are recorded in addition to the others.
    pub also: Vec<String>,
    /// Calls that are reported to readers.
    pub triggers: Vec<Trigger>,
    /// Only calls that take at least this many nanoseconds are recorded, with the calls around
    /// them.
    pub threshold: u64,
    /// Functions that are called more often than this in a second are no longer recorded; 0 for no
    /// limit. See [`Options::max_rate`](fgraph_tracers::recorder::Options::max_rate).
    pub max_rate: u32,
    /// True if arguments and results are recorded by their types, where debug information has
    /// these.
    pub types: bool,
    /// With `types`, the arguments and results whose texts are recorded: see
    /// [`Options::texts`](fgraph_tracers::recorder::Options::texts).
    pub texts: Vec<String>,
    /// With `types`, values behind arguments that are recorded: see
    /// [`Options::paths`](fgraph_tracers::recorder::Options::paths).
    pub paths: Vec<String>,
    /// True if the return address of each call is recorded.
    pub callers: bool,
    /// True if the return addresses of the calls around each call are recorded: see
    /// [`Options::stack`](fgraph_tracers::recorder::Options::stack).
    pub stacks: bool,
    /// True if only allocators' functions are recorded: see
    /// [`Options::allocations`](fgraph_tracers::recorder::Options::allocations).
    pub allocations: bool,
    /// Words of a filter, and the argument with the size, of each further function that allocates.
    pub allocating: Vec<(String, u8)>,
    /// Words of a filter, and the argument with the address, of each further function that frees.
    pub freeing: Vec<(String, u8)>,
    /// True if only the first call of each function is recorded, without its return.
    pub once: bool,
    /// True if the functions of a Python interpreter are recorded too.
    pub python: bool,
    /// True if calls of Python's coroutines have the address of their frame as an argument, and
    /// results: 1 if they are suspended, 0 if they have ended.
    pub coroutines: bool,
    /// True if panics of Rust are marked among the calls.
    pub panics: bool,
    /// Number of threads that plan how to trace the recorded functions: see
    /// [`planning_threads`](fgraph::Options::planning_threads). Use one for a program that has one
    /// thread; 0 also stands for one.
    pub planning_threads: u32,
    /// Directory in which plans of modules are kept, if they are: see
    /// [`PlanDirectory`](crate::PlanDirectory).
    #[serde(serialize_with = "path_text")]
    pub plans: Option<PathBuf>,
    /// Number of filters of system calls that the recorder has. A program with more of them does
    /// not wait for the recorder. See [`filters`](crate::filters).
    pub filters: u32,
}

/// Calls that are reported to readers, see [`trigger`](fgraph_tracers::trigger).
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// Word of a filter.
    pub functions: String,
    /// Nanoseconds that a call must take at least; 0 to report all calls when they begin.
    pub least: u64,
}

impl Settings {
    /// Returns the value of [`VARIABLE`].
    ///
    /// ```
    /// use fgraph_protocol::Settings;
    ///
    /// let settings = Settings {
    ///     trace: vec!["parser::*".to_owned()],
    ///     depth: 5,
    ///     ..Settings::default()
    /// };
    /// assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
    /// ```
    #[must_use]
    pub fn to_value(&self) -> String {
        encode(self)
    }

    /// Parses a value of [`VARIABLE`]. `None` if it is of another version, or is no value that the
    /// variable can have.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        decode(value)
    }

    /// Returns the filter of `trace` and `notrace`, whatever the program; `None` if both are empty.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn asked(&self) -> Result<Option<Filter>, FilterError> {
        if self.trace.is_empty() && self.notrace.is_empty() {
            return Ok(None);
        }
        let notrace = self.notrace.iter().map(|word| format!("!{word}"));
        let words: Vec<String> = self.trace.iter().cloned().chain(notrace).collect();
        words.join(" ").parse().map(Some)
    }

    /// Returns the functions that words of a filter select, except those of the agent and the
    /// kernel.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn selected(words: &str) -> Result<Filter, FilterError> {
        let never = NEVER.map(|module| format!("!:mod:{module}"));
        format!("{words} {}", never.join(" ")).parse()
    }

    /// Returns the functions that are recorded of a program, given the path of its file.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn filter(&self, program: &str) -> Result<Filter, FilterError> {
        self.filter_beside(program, None)
    }

    /// Same as [`filter`](Self::filter), for a program with an interpreter, whose functions are
    /// recorded only if `trace` selects them: given the path of the module that has it.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn filter_beside(
        &self,
        program: &str,
        interpreter: Option<&str>,
    ) -> Result<Filter, FilterError> {
        let never = NEVER.iter().map(|module| format!("!:mod:{module}"));
        let notrace = self.notrace.iter().map(|word| format!("!{word}"));
        let mut except: Vec<String> = never.chain(notrace).collect();
        if let Some(interpreter) = interpreter.filter(|_| self.trace.is_empty()) {
            except.push(format!("!:mod:{}", quoted(interpreter)));
        }
        let except = except.join(" ");
        let mut filter = if !self.trace.is_empty() {
            format!("{} {except}", self.trace.join(" "))
        } else if self.libraries {
            format!("* {except}")
        } else {
            let system = SYSTEM.map(|module| format!("!:mod:{module}")).join(" ");
            let program = quoted(program);
            format!("* {system} {except} + :mod:{program} {except}")
        };
        let triggers = self.triggers.iter().map(|trigger| &trigger.functions);
        for word in self.within.iter().chain(&self.also).chain(triggers) {
            filter = format!("{filter} + {word} {except}");
        }
        filter.parse()
    }

    /// Returns the functions of Python that are recorded: those that words of `trace` with the
    /// module [`PYTHON`] select, or all if there is no such word, without those of `notrace`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn python_filter(&self) -> Result<Filter, FilterError> {
        let is_python = |word: &&String| word.ends_with(&format!(":mod:{PYTHON}"));
        let mut words: Vec<String> = self.trace.iter().filter(is_python).cloned().collect();
        if words.is_empty() {
            words.push("*".to_owned());
        }
        words.extend(self.notrace.iter().map(|word| format!("!{word}")));
        words.join(" ").parse()
    }

    /// Returns the functions inside which calls are recorded; `None` for all calls.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn within(&self) -> Result<Option<Filter>, FilterError> {
        Self::filter_of(&self.within)
    }

    /// Returns the filter of `arguments_of`; `None` if it is empty.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn arguments_of(&self) -> Result<Option<Filter>, FilterError> {
        Self::filter_of(&self.arguments_of)
    }

    /// Returns the further functions of allocators.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn allocators(&self) -> Result<Vec<(Filter, Role)>, FilterError> {
        let roles = |all: &[(String, u8)], of: fn(u8) -> Role| {
            let each = all
                .iter()
                .map(|(words, argument)| Ok((words.parse()?, of(*argument))));
            each.collect::<Result<Vec<_>, FilterError>>()
        };
        let mut all = roles(&self.allocating, Role::allocating)?;
        all.extend(roles(&self.freeing, Role::freeing)?);
        Ok(all)
    }

    fn filter_of(words: &[String]) -> Result<Option<Filter>, FilterError> {
        match words.is_empty() {
            true => Ok(None),
            false => words.join(" ").parse().map(Some),
        }
    }
}

/// Returns a path as a word of a filter, with no special characters.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let quote = |c: char| [(!is_plain(c)).then_some('\\'), Some(c)];
    path.chars().flat_map(quote).flatten().collect()
}

#[cfg(test)]
mod tests {
    use fgraph::FunctionFacts;

    use super::*;

    #[test]
    fn tools_come_back_as_they_were() {
        for tool in [
            Tool::Record,
            Tool::Syscalls {
                is_loud: false,
                has_paths: true,
            },
            Tool::Stack,
            Tool::Threads(vec![
                (Rule::MainOnly, "ui_*".to_owned()),
                (Rule::WorkerOnly, "read write".to_owned()),
            ]),
            Tool::Inject(Fault::skip(-1).errno(2).every(100)),
        ] {
            let settings = Settings {
                tool,
                ..Settings::default()
            };
            assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
        }
    }

    #[test]
    fn values_of_a_variable_have_no_zero_byte() {
        let settings = Settings {
            trace: vec!["a\0b".to_owned()],
            ..Settings::default()
        };
        let value = settings.to_value();
        assert!(!value.contains('\0'));
        assert_eq!(Settings::parse(&value), Some(settings));
        let plain = Settings::default().to_value();
        assert_eq!(Settings::parse(&plain.replace("fgraph", "f\0raph")), None);
    }

    #[test]
    fn plans_in_a_directory_whose_path_is_not_text_are_not_kept() {
        use std::os::unix::ffi::OsStringExt;
        let path = std::ffi::OsString::from_vec(b"/tmp/\xff".to_vec());
        let settings = Settings {
            plans: Some(path.into()),
            ..Settings::default()
        };
        let value = settings.to_value();
        assert_eq!(Settings::parse(&value), Some(Settings::default()));
    }

    #[test]
    fn settings_come_back_as_they_were() {
        let settings = Settings {
            tool: Tool::Syscalls {
                is_loud: true,
                has_paths: false,
            },
            rings: RingsFile {
                path: "/proc/1/fd/5".into(),
                device: 1,
                inode: u64::MAX,
            },
            own_rings: Some(OwnRings {
                rings: 3,
                sub_buffers: 4,
                sub_buffer_bytes: 4096,
                table_bytes: 65536,
            }),
            executed: 3,
            follow: true,
            trace: vec!["a b".to_owned(), "<T as U>::f".to_owned()],
            notrace: vec!["*::fmt".to_owned()],
            libraries: true,
            depth: 7,
            arguments: 2,
            arguments_of: vec!["read:mod:libc.so*".to_owned()],
            result: true,
            within: vec!["parse*".to_owned(), "lex".to_owned()],
            also: vec!["read".to_owned()],
            triggers: vec![Trigger {
                functions: "<T as U>::f".to_owned(),
                least: 7,
            }],
            threshold: 1000,
            max_rate: 500,
            types: true,
            texts: vec!["arg0".to_owned(), "path".to_owned()],
            paths: vec!["arg0->size".to_owned()],
            callers: true,
            stacks: true,
            allocations: true,
            allocating: vec![("pool_alloc".to_owned(), 1)],
            freeing: vec![("pool_free".to_owned(), 0)],
            once: true,
            python: true,
            coroutines: true,
            panics: true,
            planning_threads: 2,
            plans: Some("/home/a b/.cache/fgraph".into()),
            filters: 2,
        };
        assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
        let plain = Settings::default();
        assert_eq!(Settings::parse(&plain.to_value()), Some(plain));
        let value = Settings::default().to_value();
        for bad in [
            "",
            "fgraph 2 ",
            "fgraph 2 {}",
            &value.replace("fgraph 2", "fgraph 1"),
            &value.replace("\"depth\":0", "\"depth\":-1"),
            &value.replace("\"depth\"", "\"x\":1,\"depth\""),
        ] {
            assert_eq!(Settings::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_program_and_what_is_not_the_systems_is_recorded() {
        let program = "/usr/lib/gcc/a program [1]*";
        let selected = |settings: &Settings, name, module| {
            let filter = settings.filter(program).unwrap();
            filter.matches(&FunctionFacts::new(&[name], module))
        };
        let mut settings = Settings {
            notrace: vec!["hot*".to_owned()],
            ..Settings::default()
        };
        for (name, module, is_selected) in [
            ("main", program, true),
            ("hot_one", program, false),
            ("main", "/usr/lib/gcc/a program [1]xyz", false),
            ("malloc", "/lib/x86_64-linux-gnu/libc.so.6", false),
            ("f", "/opt/app/lib/libapp.so", true),
            ("hot", "/opt/app/lib/libapp.so", false),
            ("f", "/run/user/1/fgraph/fgraph-agent-12.so", false),
            ("__vdso_time", "[vdso]", false),
        ] {
            assert_eq!(selected(&settings, name, module), is_selected, "{module}");
        }
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        settings.libraries = true;
        assert!(selected(&settings, "malloc", libc));
        settings.libraries = false;
        settings.within = vec!["mall*".to_owned()];
        assert!(selected(&settings, "malloc", libc));
        assert!(selected(&settings, "main", program));
        settings.within = Vec::new();
        settings.trace = vec!["mall*".to_owned()];
        assert!(selected(&settings, "malloc", libc));
        assert!(!selected(&settings, "main", program));
    }
}
