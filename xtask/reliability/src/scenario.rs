//! Promises, and the programs and tests that show them.

use fgraph_needs::Need;

use crate::compiler::Compiler;
use Expect::{Any, Exactly};

/// Scenarios on one subject.
#[derive(Debug)]
pub struct Group {
    /// Name in one word, as on command lines.
    pub name: &'static str,
    /// Subject, in a few words.
    pub about: &'static str,
    /// All scenarios of the group.
    pub scenarios: &'static [Scenario],
}

/// Behaviour of a program under tracing.
#[derive(Debug)]
pub struct Scenario {
    /// Behaviour in a few words: "a C++ exception is caught twenty frames up".
    pub name: &'static str,
    /// Promise of fgraph for it, in a short sentence for users.
    pub promise: &'static str,
    /// Program or tests that show it.
    pub shown: Shown,
}

impl Scenario {
    /// Returns the name as one word, for the name of a test.
    pub fn test(&self) -> String {
        let letters = self.name.to_lowercase().replace("++", "pp");
        let words = letters.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        words.join("_")
    }
}

/// Proof that a promise is kept.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all of them are constants")]
pub enum Shown {
    /// Program that is run untraced and traced.
    By(Hostile),
    /// Tests of other packages.
    Elsewhere(&'static [Elsewhere]),
}

/// A test of another package.
#[derive(Debug)]
pub struct Elsewhere {
    /// Path of the source, from the root of the workspace.
    pub file: &'static str,
    /// Name of the test function.
    pub test: &'static str,
}

/// Program that does something hostile, and the expected counts.
///
/// It is a file of `programs/`, knows nothing of fgraph, always prints the same, and exits with 0
/// if it finds all results right. Functions to be traced must not be inlined. If it lacks
/// something, for example a tool, it says so on standard error and exits with 77.
#[derive(Debug)]
pub struct Hostile {
    /// Name of the source file.
    pub source: &'static str,
    /// Arguments of the program, for a source with several scenarios.
    pub args: &'static [&'static str],
    /// Compilers that build it, each at all levels of optimisation.
    pub compilers: &'static [Compiler],
    /// More arguments for all compilers, which run in the directory of the parts.
    pub flags: &'static [&'static str],
    /// Files that are built before it, into the same directory.
    pub parts: &'static [Part],
    /// Arguments that link it to a library that some machines lack, and the library's Debian
    /// package.
    pub linked: Option<(&'static [&'static str], &'static str)>,
    /// Tool that it runs itself under.
    pub tool: Option<Need>,
    /// Words of the users' filter beside the one for the program.
    pub filter: &'static str,
    /// Variables of its environment, and of the tracer.
    pub environment: &'static [(&'static str, &'static str)],
    /// Globs of the functions that are traced, if not all of the program are.
    pub functions: &'static [&'static str],
    /// Further traced code.
    pub trace: Trace,
    /// Glob over names of functions that all users constantly remove from their filters and add
    /// again, so that they are patched while they run. The number of reported calls is then
    /// unknown.
    pub toggled: Option<&'static str>,
    /// True if it repeats the same work very often, so that one of the [ways](crate::Ways) is
    /// enough for tests.
    pub is_long: bool,
    /// Reason why the promise cannot always be kept yet. Failures are then reported but fail no
    /// test. A run without failures is reported too, since a race may allow it.
    pub not_yet: Option<&'static str>,
    /// Users do not want the return of one call of three.
    pub declining: bool,
    /// Returns come in reverse order of the entries in each thread.
    pub in_order: bool,
    /// True if its standard error is compared, too.
    pub compare_stderr: bool,
    /// Exit code, or else the negative number of the signal that kills it.
    pub end: i32,
    /// Number of processes that do not end in order, because they are killed or call `_exit`.
    pub unfinished: Expect,
    /// Number of entries of each user.
    pub entries: Expect,
    /// Number of accepted calls of entry-only functions, for each user. They count as skipped.
    pub entry_only: u64,
    /// Number of calls without any reported return that jumps have left, for each user.
    pub skipped: Expect,
    /// Number of calls that had not returned when their process or thread ended, for each user.
    pub unreturned: Expect,
    /// Number of unwound returns, for each user.
    pub unwound: Expect,
    /// Number of calls on stacks that are not a thread's own.
    pub no_shadow_stack: Expect,
    /// Number of calls for which the shadow stack has no room.
    pub overrun: Expect,
    /// Number of users without room for their data there.
    pub unreserved: Expect,
    /// Number of calls of threads for which there is no memory.
    pub unattached: Expect,
}

impl Hostile {
    /// Defaults of most programs: every call returns, by itself or unwound, and the program exits
    /// with 0.
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

/// Program that differs from most in nothing.
pub(crate) const PLAIN: Hostile = Hostile::DEFAULT;

/// Program of one source that differs from most in nothing else.
pub(crate) const fn program(source: &'static str, compilers: &'static [Compiler]) -> Hostile {
    Hostile {
        source,
        compilers,
        ..PLAIN
    }
}

/// File that a program is linked to, or loads.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name of the file: `*.o` is linked to the program, `*.so` is a library.
    pub name: &'static str,
    /// Name of the source file.
    pub source: &'static str,
    /// Compiler that builds it, if not the program's.
    pub compiler: Option<Compiler>,
    /// More arguments for the compiler.
    pub flags: &'static [&'static str],
}

impl Part {
    /// Defaults of most parts.
    pub const DEFAULT: Self = Self {
        name: "",
        source: "",
        compiler: None,
        flags: &[],
    };
}

/// Traced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The functions of the program itself.
    Program,
    /// The functions of the program; and at level 2, in separate runs, everything that is loaded,
    /// including the C library. Of these runs only output, end, data and order are compared,
    /// because the C library's own jumps leave calls.
    AlsoEverything,
}

/// Expected number of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Exactly this number.
    Exactly(u64),
    /// This number or more.
    AtLeast(u64),
    /// An unknown number.
    Any,
}

impl Expect {
    /// True if `count` is as expected of each of `users`.
    pub(crate) fn is_met(self, count: u64, users: u64) -> bool {
        match self {
            Exactly(expected) => count == expected * users,
            Self::AtLeast(expected) => count >= expected * users,
            Any => true,
        }
    }
}
