//! What the `fgraph` command tells the agent, the library that it preloads into programs.
//!
//! The command makes rings in shared memory, and starts the program with the agent and these
//! [`Settings`] in its environment. The agent takes both out again before the program's `main`, and
//! puts them back for programs that this one executes.
//!
//! In a process that runs already the agent is sent [`Request`]s, and writes a [`Reply`] to each.

mod line;
mod request;

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use fgraph::{Filter, FilterError};

pub use line::{Line, LineError};
pub use request::{Reply, Request, STREAM_END, STREAM_HEAD};

/// The variable that holds the settings.
pub const VARIABLE: &str = "FGRAPH_AGENT";

/// What a variable begins with whose settings this version knows.
const VERSION: &str = "fgraph 1";
/// Stands between the fields, `name=value`, and is in none of them.
const SEPARATOR: char = '\x1f';

/// Where the system keeps its libraries.
const SYSTEM: [&str; 4] = ["/lib/*", "/lib64/*", "/usr/lib/*", "/usr/lib64/*"];
/// Modules that never are the program's: the kernel's functions, and the agent itself.
pub const NEVER: [&str; 2] = ["[vdso]", "*fgraph-agent*"];

/// What is recorded of a program, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// A path by which programs can open the rings.
    pub rings: PathBuf,
    /// How many programs the process has executed since it was the first one.
    pub executed: u32,
    /// Whether forked processes and executed programs are recorded as well.
    pub follow: bool,
    /// Words of filters, of which each adds functions. Without any these are all functions of the
    /// program's own file and of libraries outside of the system's directories.
    pub trace: Vec<String>,
    /// Words of filters, of which each takes functions away.
    pub notrace: Vec<String>,
    /// Whether the system's libraries are recorded too where `trace` is empty.
    pub libraries: bool,
    /// Calls inside this many recorded ones are left out; 0 is no limit.
    pub depth: usize,
    /// How many arguments are recorded: 0 to 6.
    pub arguments: usize,
    /// Whether results are recorded.
    pub result: bool,
    /// Words of filters: only these functions are recorded, and what is called inside them. Without
    /// any it is all.
    pub within: Vec<String>,
    /// Only calls that take so many nanoseconds are recorded, and those that they are inside of.
    pub threshold: u64,
    /// Whether what is recorded of arguments and results goes by their types, where debug
    /// information tells these.
    pub types: bool,
}

impl Settings {
    /// The value of [`VARIABLE`].
    ///
    /// ```
    /// use fgraph_tracers::agent::Settings;
    ///
    /// let settings = Settings {
    ///     rings: "/proc/77/fd/3".into(),
    ///     trace: vec!["parser::*".to_owned()],
    ///     depth: 5,
    ///     ..Settings::default()
    /// };
    /// assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
    /// ```
    #[must_use]
    pub fn to_value(&self) -> String {
        let mut fields = vec![VERSION.to_owned()];
        let mut field = |name: &str, value: &dyn Display| {
            let field = format!("{name}={value}");
            fields.push(field.replace([SEPARATOR, '\0'], " "));
        };
        field("rings", &self.rings.display());
        field("executed", &self.executed);
        field("follow", &self.follow);
        for word in &self.trace {
            field("trace", word);
        }
        for word in &self.notrace {
            field("notrace", word);
        }
        field("libraries", &self.libraries);
        field("depth", &self.depth);
        field("arguments", &self.arguments);
        field("result", &self.result);
        for word in &self.within {
            field("within", word);
        }
        field("threshold", &self.threshold);
        field("types", &self.types);
        fields.join(&SEPARATOR.to_string())
    }

    /// The settings that a value of [`VARIABLE`] has; `None` if it is of another version.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut fields = value.split(SEPARATOR);
        (fields.next()? == VERSION).then_some(())?;
        let mut settings = Self::default();
        for field in fields {
            let (name, value) = field.split_once('=')?;
            match name {
                "rings" => settings.rings = value.into(),
                "executed" => settings.executed = value.parse().ok()?,
                "follow" => settings.follow = value.parse().ok()?,
                "trace" => settings.trace.push(value.to_owned()),
                "notrace" => settings.notrace.push(value.to_owned()),
                "libraries" => settings.libraries = value.parse().ok()?,
                "depth" => settings.depth = value.parse().ok()?,
                "arguments" => settings.arguments = value.parse().ok()?,
                "result" => settings.result = value.parse().ok()?,
                "within" => settings.within.push(value.to_owned()),
                "threshold" => settings.threshold = value.parse().ok()?,
                "types" => settings.types = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(settings)
    }

    /// The process that `rings` is of, by its path; 0 if that does not say.
    #[must_use]
    pub fn reader(&self) -> u32 {
        let mut parts = self.rings.iter().skip(2).map(|part| part.to_str());
        let process = parts.next().flatten().and_then(|part| part.parse().ok());
        process.unwrap_or(0)
    }

    /// The functions that are recorded of a program, by the path of its file.
    ///
    /// # Errors
    ///
    /// What is wrong with one of the words.
    pub fn filter(&self, program: &str) -> Result<Filter, FilterError> {
        let never = NEVER.iter().map(|module| format!("!:mod:{module}"));
        let notrace = self.notrace.iter().map(|word| format!("!{word}"));
        let except: Vec<String> = never.chain(notrace).collect();
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
        if !self.within.is_empty() {
            filter = format!("{filter} + {} {except}", self.within.join(" "));
        }
        filter.parse()
    }

    /// The functions inside of which calls are recorded; `None` for all calls.
    ///
    /// # Errors
    ///
    /// What is wrong with one of the words.
    pub fn within(&self) -> Result<Option<Filter>, FilterError> {
        match self.within.is_empty() {
            true => Ok(None),
            false => self.within.join(" ").parse().map(Some),
        }
    }
}

/// A path as a word of a filter, in which nothing is special.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let quote = |c: char| [(!is_plain(c)).then_some('\\'), Some(c)];
    path.chars().flat_map(quote).flatten().collect()
}

/// Whether there is a process of this number, be it one that may be sent no signal.
#[must_use]
pub fn is_there(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().filter(|&process| process > 0) else {
        return false;
    };
    // SAFETY: signal 0 is not sent.
    let sent = unsafe { libc::kill(process, 0) } == 0;
    sent || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use fgraph::FunctionFacts;

    use super::*;

    #[test]
    fn a_process_is_there_until_it_was_waited_for() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(is_there(child.id()) && is_there(std::process::id()) && is_there(1));
        child.wait().unwrap();
        assert!(!is_there(child.id()) && !is_there(0) && !is_there(u32::MAX));
    }

    #[test]
    fn settings_come_back_as_they_were() {
        let settings = Settings {
            rings: "/proc/1/fd/5".into(),
            executed: 3,
            follow: true,
            trace: vec!["a b".to_owned(), "<T as U>::f".to_owned()],
            notrace: vec!["*::fmt".to_owned()],
            libraries: true,
            depth: 7,
            arguments: 2,
            result: true,
            within: vec!["parse*".to_owned(), "lex".to_owned()],
            threshold: 1000,
            types: true,
        };
        assert_eq!(Settings::parse(&settings.to_value()), Some(settings));
        let plain = Settings::default();
        assert_eq!(Settings::parse(&plain.to_value()), Some(plain));
        for bad in ["", "fgraph 2", "fgraph 1\x1fdepth", "fgraph 1\x1fx=1"] {
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
