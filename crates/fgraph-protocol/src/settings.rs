//! The settings of the agent in a program: its task, and what it records.

use std::path::PathBuf;

use fgraph::{Filter, FilterError};
use fgraph_tracers::probe::fault::Fault;
use fgraph_tracers::threads::Rule;
use serde::{Deserialize, Serialize, Serializer};

use crate::heap::HeapFunctions;
use crate::message::{decode, encode};
use crate::own_rings::OwnRings;
use crate::rings_file::RingsFile;
use crate::values::CallValues;
use crate::which::{NEVER, WhichCalls};

/// Name of the environment variable that holds the settings.
pub const VARIABLE: &str = "FGRAPH_AGENT";

/// Name of the environment variable with the options of AddressSanitizer.
pub const ASAN_VARIABLE: &str = "ASAN_OPTIONS";

/// Option that makes AddressSanitizer accept the agent in front of its own library.
pub const ASAN_OPTION: &str = "verify_asan_link_order=0";

/// Directories in which the system keeps its libraries.
pub const SYSTEM: [&str; 4] = ["/lib/*", "/lib64/*", "/usr/lib/*", "/usr/lib64/*"];

/// Task of the agent in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Tool {
    /// Records calls: see [`recorder`](fgraph_tracers::recorder).
    #[default]
    Record,
    /// Writes a line for each system call, and another when the call begins if `is_loud`: see
    /// [`syscalls`](fgraph_tracers::syscalls). [`WhichCalls::trace`] and
    /// [`notrace`](WhichCalls::notrace) select system calls.
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

/// Rings that the events of a program go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RingsPlace {
    /// Rings of the recorder, which programs find in this file.
    Shared(RingsFile),
    /// Rings that each program makes for itself, because no recorder reads them. They keep the
    /// newest events.
    Own(OwnRings),
}

impl Default for RingsPlace {
    fn default() -> Self {
        Self::Shared(RingsFile::default())
    }
}

impl RingsPlace {
    /// Returns the file of the recorder's rings, if there is a recorder.
    #[must_use]
    pub fn file(&self) -> Option<&RingsFile> {
        match self {
            Self::Shared(file) => Some(file),
            Self::Own(_) => None,
        }
    }
}

/// Functions of interpreters and marks of runtimes, recorded among the calls of machine code.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Languages {
    /// True if the functions of a Python interpreter are recorded too.
    pub python: bool,
    /// True if calls of Python's coroutines have the address of their frame as an argument, and
    /// results: 1 if they are suspended, 0 if they have ended.
    pub coroutines: bool,
    /// True if panics of Rust are marked among the calls.
    pub panics: bool,
}

/// Settings that concern the whole process, whatever is recorded of it.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSettings {
    /// Number of programs that the process has executed since the first one.
    pub executed: u32,
    /// True if forked processes and executed programs are recorded too.
    pub follow: bool,
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

/// Leaves out a path that is not text.
fn path_text<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().and_then(|path| path.to_str()).serialize(to)
}

/// Settings of the agent in a program: its task, the recorded calls and values, and the rings that
/// they go to.
///
/// It is exhaustive, since callers write it as a literal: a new field breaks them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Task of the agent.
    pub tool: Tool,
    /// Functions and calls that are recorded.
    pub which: WhichCalls,
    /// Values that are recorded of each call.
    pub values: CallValues,
    /// Further functions of allocators, if only these functions are recorded: see
    /// [`Options::allocations`](fgraph_tracers::recorder::Options::allocations).
    pub heap: Option<HeapFunctions>,
    /// Functions of interpreters and marks of runtimes.
    pub languages: Languages,
    /// Calls that are reported to readers.
    pub triggers: Vec<Trigger>,
    /// Rings for the events.
    pub rings: RingsPlace,
    /// Settings for the whole process.
    pub process: ProcessSettings,
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
    /// use fgraph_protocol::{Settings, WhichCalls};
    ///
    /// let which = WhichCalls {
    ///     trace: vec!["parser::*".to_owned()],
    ///     depth: 5,
    ///     ..WhichCalls::default()
    /// };
    /// let settings = Settings {
    ///     which,
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

    /// Returns the functions that are recorded of a program, given the path of its file.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn filter(&self, program: &str) -> Result<Filter, FilterError> {
        self.filter_beside(program, None)
    }

    /// Same as [`filter`](Self::filter), for a program with an interpreter, whose functions are
    /// recorded only if `which.trace` selects them: given the path of the module that has it.
    ///
    /// # Errors
    ///
    /// Says what is wrong with one of the words.
    pub fn filter_beside(
        &self,
        program: &str,
        interpreter: Option<&str>,
    ) -> Result<Filter, FilterError> {
        let which = &self.which;
        let never = NEVER.iter().map(|module| format!("!:mod:{module}"));
        let mut except: Vec<String> = never.chain(which.removing()).collect();
        if let Some(interpreter) = interpreter.filter(|_| which.trace.is_empty()) {
            except.push(format!("!:mod:{}", quoted(interpreter)));
        }
        let except = except.join(" ");
        let mut filter = if !which.trace.is_empty() {
            format!("{} {except}", which.trace.join(" "))
        } else if which.libraries {
            format!("* {except}")
        } else {
            let system = SYSTEM.map(|module| format!("!:mod:{module}")).join(" ");
            let program = quoted(program);
            format!("* {system} {except} + :mod:{program} {except}")
        };
        let triggers = self.triggers.iter().map(|trigger| &trigger.functions);
        for word in which.within.iter().chain(&which.also).chain(triggers) {
            filter = format!("{filter} + {word} {except}");
        }
        filter.parse()
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
        let mut settings = Settings::default();
        settings.which.trace = vec!["a\0b".to_owned()];
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
        let mut settings = Settings::default();
        settings.process.plans = Some(path.into());
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
            which: WhichCalls {
                trace: vec!["a b".to_owned(), "<T as U>::f".to_owned()],
                notrace: vec!["*::fmt".to_owned()],
                libraries: true,
                also: vec!["read".to_owned()],
                within: vec!["parse*".to_owned(), "lex".to_owned()],
                depth: 7,
                threshold: 1000,
                max_rate: 500,
                once: true,
            },
            values: CallValues {
                arguments: 2,
                arguments_of: vec!["read:mod:libc.so*".to_owned()],
                result: true,
                types: true,
                texts: vec!["arg0".to_owned(), "path".to_owned()],
                paths: vec!["arg0->size".to_owned()],
                callers: true,
                stacks: true,
            },
            heap: Some(HeapFunctions {
                allocating: vec![("pool_alloc".to_owned(), 1)],
                freeing: vec![("pool_free".to_owned(), 0)],
            }),
            languages: Languages {
                python: true,
                coroutines: true,
                panics: true,
            },
            triggers: vec![Trigger {
                functions: "<T as U>::f".to_owned(),
                least: 7,
            }],
            rings: RingsPlace::Own(OwnRings {
                rings: 3,
                sub_buffers: 4,
                sub_buffer_bytes: 4096,
                table_bytes: 65536,
            }),
            process: ProcessSettings {
                executed: 3,
                follow: true,
                planning_threads: 2,
                plans: Some("/home/a b/.cache/fgraph".into()),
                filters: 2,
            },
        };
        assert_eq!(
            Settings::parse(&settings.to_value()).as_ref(),
            Some(&settings)
        );
        let shared = RingsFile {
            path: "/proc/1/fd/5".into(),
            device: 1,
            inode: u64::MAX,
        };
        let settings = Settings {
            rings: RingsPlace::Shared(shared),
            ..settings
        };
        assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
        let plain = Settings::default();
        assert_eq!(Settings::parse(&plain.to_value()), Some(plain));
        let value = Settings::default().to_value();
        for bad in [
            "",
            "fgraph 3 ",
            "fgraph 3 {}",
            &value.replace("fgraph 3", "fgraph 2"),
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
        let mut settings = Settings::default();
        settings.which.notrace = vec!["hot*".to_owned()];
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
        settings.which.libraries = true;
        assert!(selected(&settings, "malloc", libc));
        settings.which.libraries = false;
        settings.which.within = vec!["mall*".to_owned()];
        assert!(selected(&settings, "malloc", libc));
        assert!(selected(&settings, "main", program));
        settings.which.within = Vec::new();
        settings.which.trace = vec!["mall*".to_owned()];
        assert!(selected(&settings, "malloc", libc));
        assert!(!selected(&settings, "main", program));
    }
}
