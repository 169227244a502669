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

/// Makes a structure, and a constant of it with the defaults.
macro_rules! defaults {
    ($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $name {
            /// The values of most.
            pub const DEFAULT: Self = Self { $($field: $default,)* };
        }
    };
}

defaults! {
    /// Program that does something hostile, and the expected counts.
    ///
    /// It is a file of `programs/`, knows nothing of fgraph, always prints the same, and exits with
    /// 0 if it finds all results right. Functions to be traced must not be inlined. If it lacks
    /// something, for example a tool, it says so on standard error and exits with 77.
    ///
    /// By default every call returns, by itself or unwound, and the program exits with 0.
    #[derive(Debug)]
    Hostile {
        /// Name of the source file.
        source: &'static str = "",
        /// Arguments of the program, for a source with several scenarios.
        args: &'static [&'static str] = &[],
        /// Compilers that build it, each at all levels of optimisation.
        compilers: &'static [Compiler] = &[],
        /// More arguments for all compilers, which run in the directory of the parts.
        flags: &'static [&'static str] = &[],
        /// Files that are built before it, into the same directory.
        parts: &'static [Part] = &[],
        /// Arguments that link it to a library that some machines lack, and the library's Debian
        /// package.
        linked: Option<(&'static [&'static str], &'static str)> = None,
        /// Tool that it runs itself under.
        tool: Option<Need> = None,
        /// Words of the users' filter beside the one for the program.
        filter: &'static str = "",
        /// Variables of its environment, and of the tracer.
        environment: &'static [(&'static str, &'static str)] = &[],
        /// Globs of the functions that are traced, if not all of the program are.
        functions: &'static [&'static str] = &[],
        /// Code that is traced.
        trace: Trace = Trace::Program,
        /// Glob over names of functions that all users constantly remove from their filters and add
        /// again, so that they are patched while they run. The number of reported calls is then
        /// unknown.
        toggled: Option<&'static str> = None,
        /// True if it repeats the same work very often, so that one of the [ways](crate::Ways) is
        /// enough for tests.
        is_long: bool = false,
        /// Reason why the promise cannot always be kept yet. Failures are then reported but fail no
        /// test. A run without failures is reported too, since a race may allow it.
        not_yet: Option<&'static str> = None,
        /// Users do not want the return of one call of three.
        declining: bool = false,
        /// Returns come in reverse order of the entries in each thread.
        in_order: bool = true,
        /// True if its standard error is compared, too.
        compare_stderr: bool = false,
        /// Exit code, or else the negative number of the signal that kills it.
        end: i32 = 0,
        /// Number of processes that do not end in order, because they are killed or call `_exit`.
        unfinished: Expect = Exactly(0),
        /// Number of entries of each user.
        entries: Expect = Expect::AtLeast(1),
        /// Number of accepted calls of entry-only functions, for each user. They count as skipped.
        entry_only: u64 = 0,
        /// Number of calls without any reported return that jumps have left, for each user.
        skipped: Expect = Exactly(0),
        /// Number of calls that had not returned when their process or thread ended, for each user.
        unreturned: Expect = Exactly(0),
        /// Number of unwound returns, for each user.
        unwound: Expect = Any,
        /// Number of calls on stacks that are not a thread's own.
        no_shadow_stack: Expect = Exactly(0),
        /// Number of calls for which the shadow stack has no room.
        overrun: Expect = Exactly(0),
        /// Number of users without room for their data there.
        unreserved: Expect = Exactly(0),
        /// Number of calls of threads for which there is no memory.
        unattached: Expect = Exactly(0),
    }
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

defaults! {
    /// File that a program is linked to, or loads.
    #[derive(Clone, Copy, Debug)]
    Part {
        /// Name of the file: `*.o` is linked to the program, `*.so` is a library.
        name: &'static str = "",
        /// Name of the source file.
        source: &'static str = "",
        /// Compiler that builds it, if not the program's.
        compiler: Option<Compiler> = None,
        /// More arguments for the compiler.
        flags: &'static [&'static str] = &[],
    }
}

/// Traced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// The functions of the program itself.
    Program,
    /// The functions of the program; and at level 2, in separate runs, everything that is loaded,
    /// including the C library. Only output, end, data and order of these runs are compared,
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
