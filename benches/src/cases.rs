//! Users that watch while calls are timed.

use core::fmt;
use core::hint::black_box;
use std::time::{Duration, Instant};

use fgraph::{Counters, Error, Handle, MAX_USERS, Options};

use crate::functions::{Function, NOT_WATCHED, Variant, WATCHED};
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
    /// This many users with empty callbacks, all out of order but the first.
    OutOfOrder(usize),
    /// A user that keeps 16 bytes for each call.
    SixteenBytes,
    /// A user whose callbacks change vector registers.
    Vectors,
    /// One user with empty callbacks, called by a trampoline that replaces the return address.
    Hijacked(Handler),
    /// A function without a NOP. The variant says which compiler it seems to come from: that
    /// decides what its callers may rely on.
    Relocated(Variant, Watched),
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
    /// All cases, each with its name in a table.
    pub const ALL: [(Self, &'static str); 32] = [
        (Self::Plain, "plain"),
        (Self::Off, "site off"),
        (Self::FilteredOut, "filtered out"),
        (Self::Declined, "declined return"),
        (Self::DeclinedBytes(0), "declined, 0 bytes"),
        (Self::DeclinedBytes(8), "declined, 8 bytes"),
        (Self::DeclinedBytes(184), "declined, 184 bytes"),
        (Self::DeclinedBytes(1024), "declined, 1024 bytes"),
        (Self::Disabled, "disabled"),
        (Self::OtherThread, "other threads watched"),
        (Self::Sampled, "sampled, 1 in 100"),
        (Self::PerThread, "declined, per thread"),
        (Self::Errno, "declined, errno set"),
        (Self::Users(1), "1 user"),
        (Self::Users(2), "2 users"),
        (Self::Users(4), "4 users"),
        (Self::Users(MAX_USERS), "16 users"),
        (Self::OutOfOrder(4), "4 users out of order"),
        (Self::OutOfOrder(MAX_USERS), "16 users out of order"),
        (Self::SixteenBytes, "1 user, 16 bytes"),
        (Self::Vectors, "1 user, vector registers"),
        (
            Self::Relocated(Variant::Rust, Watched::Off),
            "relocated Rust, off",
        ),
        (
            Self::Relocated(Variant::Rust, Watched::Declined),
            "relocated Rust, declined",
        ),
        (
            Self::Relocated(Variant::Rust, Watched::OneUser),
            "relocated Rust, 1 user",
        ),
        (
            Self::Relocated(Variant::C, Watched::Off),
            "relocated C, off",
        ),
        (
            Self::Relocated(Variant::C, Watched::Declined),
            "relocated C, declined",
        ),
        (
            Self::Relocated(Variant::C, Watched::OneUser),
            "relocated C, 1 user",
        ),
        (
            Self::Relocated(Variant::Kept, Watched::Off),
            "relied-on C, off",
        ),
        (
            Self::Relocated(Variant::Kept, Watched::Declined),
            "relied-on C, declined",
        ),
        (
            Self::Relocated(Variant::Kept, Watched::OneUser),
            "relied-on C, 1 user",
        ),
        (
            Self::Hijacked(Handler::Balanced),
            "1 user, hijacked, balanced",
        ),
        (Self::Hijacked(Handler::Plain), "1 user, hijacked, plain"),
    ];

    /// Sets the case up, until the returned value is dropped.
    pub fn set_up(self) -> Result<Active, Error> {
        let mut active = Active {
            variant: Variant::Patchable,
            users: Vec::new(),
            hijack: None,
        };
        match self {
            Self::Plain => active.variant = Variant::Plain,
            Self::Off => {}
            Self::FilteredOut => active.users.push(empty(0, NOT_WATCHED)?),
            Self::Declined => active.add(Declining, WATCHED)?,
            Self::DeclinedBytes(0) => active.add(DecliningWords::<0>, WATCHED)?,
            Self::DeclinedBytes(8) => active.add(DecliningWords::<1>, WATCHED)?,
            Self::DeclinedBytes(184) => active.add(DecliningWords::<23>, WATCHED)?,
            Self::DeclinedBytes(_) => active.add(DecliningWords::<128>, WATCHED)?,
            Self::Disabled => {
                let user = watch(Declining, WATCHED)?;
                user.set_enabled(false);
                active.users.push(Box::new(user));
            }
            Self::OtherThread => {
                let user = watch(Declining, WATCHED)?;
                user.set_threads(Some(&[]))?;
                active.users.push(Box::new(user));
            }
            Self::Sampled => {
                let options = Options::new().sample(100);
                let user = crate::register_with(Declining, WATCHED, &options)?;
                active.users.push(Box::new(user));
            }
            Self::PerThread => active.add(Counting::default(), WATCHED)?,
            Self::Errno => active.add(SettingErrno, WATCHED)?,
            Self::Users(users) => {
                for n in 0..users {
                    active.users.push(empty(n, WATCHED)?);
                }
            }
            Self::OutOfOrder(users) => {
                for n in 0..users {
                    // The first has the first slot, so there is none for a lower priority.
                    let priority = if n == 0 { -127 } else { -128 };
                    active.users.push(empty_of(priority, n, WATCHED)?);
                }
            }
            Self::SixteenBytes => active.add(SixteenBytes, WATCHED)?,
            Self::Vectors => active.add(Vectors, WATCHED)?,
            Self::Hijacked(handler) => {
                active.users.push(empty(0, WATCHED)?);
                active.hijack = Some(Hijack::of_the_only_user(handler));
                active.variant = Variant::Hijacked;
            }
            Self::Relocated(variant, watched) => {
                let filter = variant.filter();
                match watched {
                    Watched::Off => drop(empty(0, filter)?),
                    Watched::Declined => active.add(Declining, filter)?,
                    Watched::OneUser => active.users.push(empty(0, filter)?),
                }
                active.variant = variant;
            }
        }
        Ok(active)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(case, _)| case == self);
        f.pad(named.map_or("?", |(_, name)| name))
    }
}

fn watch<T: fgraph::FgraphOps>(ops: T, filter: &str) -> Result<Handle<T>, Error> {
    watch_with(&Options::new(), ops, filter)
}

fn watch_with<T: fgraph::FgraphOps>(
    options: &Options,
    ops: T,
    filter: &str,
) -> Result<Handle<T>, Error> {
    let user = crate::register_with(ops, filter, options)?;
    assert!(
        user.report().unwrap().traced > 0,
        "the functions can be traced"
    );
    Ok(user)
}

/// Registers the user number `n` with empty callbacks.
fn empty(n: usize, filter: &str) -> Result<Box<dyn Watching>, Error> {
    empty_of(0, n, filter)
}

/// Registers such a user with a priority.
fn empty_of(priority: i8, n: usize, filter: &str) -> Result<Box<dyn Watching>, Error> {
    let options = Options::new().priority(priority);
    macro_rules! user {
        ($n:literal) => {
            Box::new(watch_with(&options, Empty::<$n>, filter)?)
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
    users: Vec<Box<dyn Watching>>,
}

impl Active {
    /// Registers a user.
    fn add<T: fgraph::FgraphOps>(&mut self, ops: T, filter: &str) -> Result<(), Error> {
        self.users.push(Box::new(watch(ops, filter)?));
        Ok(())
    }

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
        let counters = self.users.iter().map(|user| user.counters());
        counters
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
