//! What is promised, and what shows it.

use fgraph_needs::Need;

use crate::build::Compiler;
use Expect::{Any, Exactly};

/// Scenarios on one subject.
#[derive(Debug)]
pub struct Group {
    /// One word, as on command lines.
    pub name: &'static str,
    /// What the subject is, in a few words.
    pub about: &'static str,
    /// All that is shown.
    pub scenarios: &'static [Scenario],
}

/// One thing that a program may do under tracing.
#[derive(Debug)]
pub struct Scenario {
    /// What happens, in a few words: "a C++ exception is caught twenty frames up".
    pub name: &'static str,
    /// What fgraph promises then, in a short sentence for users.
    pub promise: &'static str,
    /// What shows it.
    pub shown: Shown,
}

impl Scenario {
    /// The name as one word, as tests are named.
    pub fn test(&self) -> String {
        let letters = self.name.to_lowercase().replace("++", "pp");
        let words = letters.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        words.join("_")
    }
}

/// What shows that a promise is kept.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all of them are constants")]
pub enum Shown {
    /// A program that is run untraced and traced.
    By(Hostile),
    /// Tests of other packages.
    Elsewhere(&'static [Elsewhere]),
}

/// A test of another package.
#[derive(Debug)]
pub struct Elsewhere {
    /// Path of the source, from the root of the workspace.
    pub file: &'static str,
    /// The test function.
    pub test: &'static str,
}

/// A program that does something hostile, and what is to be seen of it.
///
/// It is a file of `programs/`, knows nothing of fgraph, always prints the same, and exits with 0
/// when it finds all results right. Functions that are to be traced must not be inlined. Where it
/// lacks something that it needs, a tool for example, it says so on standard error and exits with
/// 77.
#[derive(Debug)]
pub struct Hostile {
    /// Name of the source file.
    pub source: &'static str,
    /// Its arguments, for a source that has several scenarios.
    pub args: &'static [&'static str],
    /// What builds it, each at all levels of optimisation.
    pub compilers: &'static [Compiler],
    /// More arguments for all compilers, which run where the parts are.
    pub flags: &'static [&'static str],
    /// What is built before it, into the same directory.
    pub parts: &'static [Part],
    /// The arguments that link it to what not every machine has, and the Debian package with that.
    pub linked: Option<(&'static [&'static str], &'static str)>,
    /// The tool that it runs itself under.
    pub tool: Option<Need>,
    /// Words of the users' filter beside the one for the program.
    pub filter: &'static str,
    /// Variables of its environment, and of the tracer.
    pub environment: &'static [(&'static str, &'static str)],
    /// Globs of the functions that are traced, where not all of the program are.
    pub functions: &'static [&'static str],
    /// What else is traced.
    pub trace: Trace,
    /// A glob over names of functions that all users take out of their filters and put back, all
    /// the time, so that they are patched while they run. Which of their calls a user is told
    /// cannot be known then.
    pub toggled: Option<&'static str>,
    /// It does the same very often, so one of the [ways](crate::Ways) will do for tests.
    pub is_long: bool,
    /// The reason why the promise cannot always be kept yet. Failures are reported and fail no
    /// test; so is a run without any, which a race may allow.
    pub not_yet: Option<&'static str>,
    /// Users decline one call of three.
    pub declining: bool,
    /// Returns come in reverse order of the entries in each thread.
    pub in_order: bool,
    /// Whether what it writes to standard error is compared, too.
    pub compare_stderr: bool,
    /// The exit code, or else the negative number of the signal that kills it.
    pub end: i32,
    /// Processes that do not come to their end in order, because they are killed or call `_exit`.
    pub unfinished: Expect,
    /// Of each user: entries.
    pub entries: Expect,
    /// Of each user: accepted calls of functions that get entry callbacks only. They count as
    /// skipped.
    pub entry_only: u64,
    /// Of each user: calls of that no return is ever told, and which jumps have left.
    pub skipped: Expect,
    /// Of each user: calls that had not returned when their process or thread was gone.
    pub unreturned: Expect,
    /// Of each user: returns that are unwound.
    pub unwound: Expect,
    /// Calls on stacks that are not a thread's own.
    pub no_shadow_stack: Expect,
    /// Calls for which the shadow stack has no room.
    pub overrun: Expect,
    /// Users who find no room for their data there.
    pub unreserved: Expect,
    /// Calls of threads for which there is no memory.
    pub unattached: Expect,
}

impl Hostile {
    /// What most programs are like: every call returns, by itself or unwound, and it exits with 0.
    pub const DEFAULT: Self = Self {
        source: "",
        args: &[],
        compilers: &[],
        flags: &[],
        parts: &[],
        linked: None,
        tool: None,
        filter: "",
        environment: &[],
        functions: &[],
        trace: Trace::Program,
        toggled: None,
        is_long: false,
        not_yet: None,
        declining: false,
        in_order: true,
        compare_stderr: false,
        end: 0,
        unfinished: Exactly(0),
        entries: Expect::AtLeast(1),
        entry_only: 0,
        skipped: Exactly(0),
        unreturned: Exactly(0),
        unwound: Any,
        no_shadow_stack: Exactly(0),
        overrun: Exactly(0),
        unreserved: Exactly(0),
        unattached: Exactly(0),
    };
}

/// A file that a program is linked to, or loads.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its name: `*.o` is linked to the program, `*.so` is a library.
    pub name: &'static str,
    /// Name of the source file.
    pub source: &'static str,
    /// What builds it, if not what builds the program.
    pub compiler: Option<Compiler>,
    /// More arguments for the compiler.
    pub flags: &'static [&'static str],
}

impl Part {
    /// A part as most are.
    pub const DEFAULT: Self = Self {
        name: "",
        source: "",
        compiler: None,
        flags: &[],
    };
}

/// What is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The functions of the program itself.
    Program,
    /// The same; and at level 2, in runs of their own, everything that is loaded, the C library
    /// included. Of these runs only output, end, data and order are compared: the C library's own
    /// jumps are its affair.
    AlsoEverything,
}

/// How often something is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// So often.
    Exactly(u64),
    /// So often or more often.
    AtLeast(u64),
    /// It cannot be told.
    Any,
}

impl Expect {
    /// Whether `count` is as expected of each of `users`.
    pub(crate) fn is_met(self, count: u64, users: u64) -> bool {
        match self {
            Exactly(expected) => count == expected * users,
            Self::AtLeast(expected) => count >= expected * users,
            Any => true,
        }
    }
}
