//! Users that watch while calls are timed.

use core::fmt;
use core::hint::black_box;
use std::time::{Duration, Instant};

use fgraph::{Counters, Error, Handle, MAX_USERS, Options};

use crate::functions::{
    Function, NOT_WATCHED, Variant, WATCHED, WATCHED_C, WATCHED_KEPT, WATCHED_RUST,
};
use crate::hijack::{Handler, Hijack};
use crate::users::{
    Counting, Declining, DecliningWords, Empty, SettingErrno, SixteenBytes, Vectors, with_constant,
};

/// Users that watch a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// None, and there is no NOP.
    Plain,
    /// None: the NOP runs.
    Off,
    /// A user watches a neighbour; its filter excludes the function.
    FilteredOut,
    /// A user that does not want the return.
    Declined,
    /// A user that does not want the return and whose data has this many bytes.
    DeclinedBytes(usize),
    /// Same as `Declined`, while the user is disabled.
    Disabled,
    /// Same as `Declined`, while the user watches no thread.
    OtherThread,
    /// Same as `Declined`, for a user that gets one call of 100.
    Sampled,
    /// A user that does not want the return and counts calls in storage per thread.
    PerThread,
    /// A user that does not want the return and sets `errno`.
    Errno,
    /// This many users with empty callbacks.
    Users(usize),
    /// A user that keeps 16 bytes for each call.
    SixteenBytes,
    /// A user whose callbacks change vector registers.
    Vectors,
    /// One user with empty callbacks, called by a trampoline that replaces the return address.
    Hijacked(Handler),
    /// A function without a NOP.
    Relocated(Compiler, Watched),
}

/// Compiler that a function without a NOP seems to come from, which decides what its callers may
/// rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// rustc: callers rely on the ABI only.
    Rust,
    /// gcc, whose callers might rely on more, but none does.
    C,
    /// gcc, and one caller relies on a register that the function leaves alone.
    Kept,
}

impl Compiler {
    const fn filter(self) -> &'static str {
        match self {
            Self::Rust => WATCHED_RUST,
            Self::C => WATCHED_C,
            Self::Kept => WATCHED_KEPT,
        }
    }

    const fn variant(self) -> Variant {
        match self {
            Self::Rust => Variant::Rust,
            Self::C => Variant::C,
            Self::Kept => Variant::Kept,
        }
    }
}

/// Users that watch a function without a NOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// None any more: its first instructions are restored.
    Off,
    /// A user that does not want the return.
    Declined,
    /// One user with empty callbacks.
    OneUser,
}

impl Case {
    /// All cases.
    pub const ALL: [Self; 30] = [
        Self::Plain,
        Self::Off,
        Self::FilteredOut,
        Self::Declined,
        Self::DeclinedBytes(0),
        Self::DeclinedBytes(8),
        Self::DeclinedBytes(184),
        Self::DeclinedBytes(1024),
        Self::Disabled,
        Self::OtherThread,
        Self::Sampled,
        Self::PerThread,
        Self::Errno,
        Self::Users(1),
        Self::Users(2),
        Self::Users(4),
        Self::Users(MAX_USERS),
        Self::SixteenBytes,
        Self::Vectors,
        Self::Relocated(Compiler::Rust, Watched::Off),
        Self::Relocated(Compiler::Rust, Watched::Declined),
        Self::Relocated(Compiler::Rust, Watched::OneUser),
        Self::Relocated(Compiler::C, Watched::Off),
        Self::Relocated(Compiler::C, Watched::Declined),
        Self::Relocated(Compiler::C, Watched::OneUser),
        Self::Relocated(Compiler::Kept, Watched::Off),
        Self::Relocated(Compiler::Kept, Watched::Declined),
        Self::Relocated(Compiler::Kept, Watched::OneUser),
        Self::Hijacked(Handler::Balanced),
        Self::Hijacked(Handler::Plain),
    ];

    /// Sets the case up, until the returned value is dropped.
    pub fn set_up(self) -> Result<Active, Error> {
        let mut active = Active {
            variant: Variant::Patchable,
            empty: Vec::new(),
            declining: None,
            sixteen_bytes: None,
            hijack: None,
        };
        match self {
            Self::Plain => active.variant = Variant::Plain,
            Self::Off => {}
            Self::FilteredOut => active.empty.push(empty(0, NOT_WATCHED)?),
            Self::Declined => active.declining = Some(watch(Declining, WATCHED)?),
            Self::DeclinedBytes(bytes) => active.empty.push(match bytes {
                0 => Box::new(watch(DecliningWords::<0>, WATCHED)?),
                8 => Box::new(watch(DecliningWords::<1>, WATCHED)?),
                184 => Box::new(watch(DecliningWords::<23>, WATCHED)?),
                _ => Box::new(watch(DecliningWords::<128>, WATCHED)?),
            }),
            Self::Disabled => {
                let user = watch(Declining, WATCHED)?;
                user.set_enabled(false);
                active.declining = Some(user);
            }
            Self::OtherThread => {
                let user = watch(Declining, WATCHED)?;
                user.set_threads(Some(&[]))?;
                active.declining = Some(user);
            }
            Self::Sampled => {
                let options = Options::new().sample(100);
                active.declining = Some(crate::register_with(Declining, WATCHED, &options)?);
            }
            Self::PerThread => active
                .empty
                .push(Box::new(watch(Counting::default(), WATCHED)?)),
            Self::Errno => active.empty.push(Box::new(watch(SettingErrno, WATCHED)?)),
            Self::Users(users) => {
                for n in 0..users {
                    active.empty.push(empty(n, WATCHED)?);
                }
            }
            Self::SixteenBytes => active.sixteen_bytes = Some(watch(SixteenBytes, WATCHED)?),
            Self::Vectors => active.empty.push(Box::new(watch(Vectors, WATCHED)?)),
            Self::Hijacked(handler) => {
                active.empty.push(empty(0, WATCHED)?);
                active.hijack = Some(Hijack::of_the_only_user(handler));
                active.variant = Variant::Hijacked;
            }
            Self::Relocated(compiler, watched) => {
                let filter = compiler.filter();
                match watched {
                    Watched::Off => drop(empty(0, filter)?),
                    Watched::Declined => active.declining = Some(watch(Declining, filter)?),
                    Watched::OneUser => active.empty.push(empty(0, filter)?),
                }
                active.variant = compiler.variant();
            }
        }
        Ok(active)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Off => "site off",
            Self::FilteredOut => "filtered out",
            Self::Declined => "declined return",
            Self::DeclinedBytes(0) => "declined, 0 bytes",
            Self::DeclinedBytes(8) => "declined, 8 bytes",
            Self::DeclinedBytes(184) => "declined, 184 bytes",
            Self::DeclinedBytes(_) => "declined, 1024 bytes",
            Self::Disabled => "disabled",
            Self::OtherThread => "other threads watched",
            Self::Sampled => "sampled, 1 in 100",
            Self::PerThread => "declined, per thread",
            Self::Errno => "declined, errno set",
            Self::Users(1) => "1 user",
            Self::Users(2) => "2 users",
            Self::Users(4) => "4 users",
            Self::Users(_) => "16 users",
            Self::SixteenBytes => "1 user, 16 bytes",
            Self::Vectors => "1 user, vector registers",
            Self::Hijacked(Handler::Balanced) => "1 user, hijacked, balanced",
            Self::Hijacked(Handler::Plain) => "1 user, hijacked, plain",
            Self::Relocated(Compiler::Rust, Watched::Off) => "relocated Rust, off",
            Self::Relocated(Compiler::Rust, Watched::Declined) => "relocated Rust, declined",
            Self::Relocated(Compiler::Rust, Watched::OneUser) => "relocated Rust, 1 user",
            Self::Relocated(Compiler::C, Watched::Off) => "relocated C, off",
            Self::Relocated(Compiler::C, Watched::Declined) => "relocated C, declined",
            Self::Relocated(Compiler::C, Watched::OneUser) => "relocated C, 1 user",
            Self::Relocated(Compiler::Kept, Watched::Off) => "relied-on C, off",
            Self::Relocated(Compiler::Kept, Watched::Declined) => "relied-on C, declined",
            Self::Relocated(Compiler::Kept, Watched::OneUser) => "relied-on C, 1 user",
        })
    }
}

fn watch<T: fgraph::FgraphOps>(ops: T, filter: &str) -> Result<Handle<T>, Error> {
    let user = crate::register(ops, filter)?;
    assert!(
        user.report().unwrap().traced > 0,
        "the functions can be traced"
    );
    Ok(user)
}

/// Registers the user number `n` with empty callbacks.
fn empty(n: usize, filter: &str) -> Result<Box<dyn Watching>, Error> {
    macro_rules! user {
        ($n:literal) => {
            Box::new(watch(Empty::<$n>, filter)?)
        };
    }
    Ok(with_constant!(n, user))
}

/// A handle of some user.
trait Watching: fmt::Debug {
    fn counters(&self) -> Counters;
}

impl<T: fgraph::FgraphOps> Watching for Handle<T> {
    fn counters(&self) -> Counters {
        self.counters()
    }
}

/// Case that is set up.
#[derive(Debug)]
pub struct Active {
    variant: Variant,
    // Dropped before its user.
    hijack: Option<Hijack>,
    empty: Vec<Box<dyn Watching>>,
    declining: Option<Handle<Declining>>,
    sixteen_bytes: Option<Handle<SixteenBytes>>,
}

impl Active {
    /// Returns the variant of the functions that is called.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Times `calls` calls.
    pub fn time(&self, function: Function, calls: u64) -> Duration {
        time(function, self.variant, calls)
    }

    /// Returns the number of calls that should have been traced and were not. A figure counts only
    /// if this is 0.
    pub fn not_traced(&self) -> u64 {
        let empty = self.empty.iter().map(|user| user.counters());
        let declining = self.declining.iter().map(Handle::counters);
        let sixteen_bytes = self.sixteen_bytes.iter().map(Handle::counters);
        empty
            .chain(declining)
            .chain(sixteen_bytes)
            .map(|of| {
                of.missed + of.internal + of.overrun + of.unreserved + of.lost + of.no_shadow_stack
            })
            .sum()
    }
}

/// Times `calls` calls of a variant of `function`.
pub fn time(function: Function, variant: Variant, calls: u64) -> Duration {
    let start = Instant::now();
    black_box(function.run(variant, calls));
    start.elapsed()
}
