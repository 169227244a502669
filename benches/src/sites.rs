//! Functions to patch, and timing of patching.
//!
//! There are 20,000 of them, 32 bytes apart, each with a NOP and a row in
//! `__patchable_function_entries`, as a compiler makes them.

use core::arch::global_asm;
use std::time::{Duration, Instant};

use fgraph::{Error, Handle};

use crate::functions::BYSTANDER;
use crate::users::Declining;

/// Number of functions to patch.
pub const SITES: usize = 20_000;

global_asm!(
    ".pushsection .text.fgraph_bench_sites, \"ax\", @progbits",
    ".altmacro",
    ".macro fgraph_bench_define_site number",
    ".p2align 5",
    ".type fgraph_bench_site_\\number, @function",
    "fgraph_bench_site_\\number:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
    "lea rax, [rdi + 1]",
    "ret",
    ".size fgraph_bench_site_\\number, . - fgraph_bench_site_\\number",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, fgraph_bench_sites",
    ".quad fgraph_bench_site_\\number",
    ".popsection",
    ".endm",
    ".p2align 12",
    ".globl fgraph_bench_sites",
    ".hidden fgraph_bench_sites",
    "fgraph_bench_sites:",
    ".set fgraph_bench_number, 0",
    ".rept {sites}",
    "fgraph_bench_define_site %fgraph_bench_number",
    ".set fgraph_bench_number, fgraph_bench_number + 1",
    ".endr",
    ".purgem fgraph_bench_define_site",
    ".noaltmacro",
    ".popsection",
    sites = const SITES,
);

unsafe extern "C" {
    #[link_name = "fgraph_bench_sites"]
    safe fn first_site(a: u64) -> u64;
}

/// Keeps the functions in the program.
#[used]
static KEPT: extern "C" fn(u64) -> u64 = first_site;

/// Functions that are patched at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// One site.
    One,
    /// A thousand sites.
    Thousand,
    /// All sites.
    All,
}

impl Batch {
    /// All batches.
    pub const ALL: [Self; 3] = [Self::One, Self::Thousand, Self::All];

    /// Returns the number of its functions.
    pub const fn sites(self) -> usize {
        match self {
            Self::One => 1,
            Self::Thousand => 1_000,
            Self::All => SITES,
        }
    }

    const fn filter(self) -> &'static str {
        match self {
            Self::One => "fgraph_bench_site_19999",
            Self::Thousand => "fgraph_bench_site_19???",
            Self::All => "fgraph_bench_site_*",
        }
    }

    /// Registers a user of the batch.
    ///
    /// # Panics
    ///
    /// Panics if not all functions of the batch are traced then.
    pub fn register(self) -> Result<Handle<Declining>, Error> {
        let user = crate::register(Declining, self.filter())?;
        assert_eq!(user.report()?.traced, self.sites());
        Ok(user)
    }

    /// Times registering and unregistering a user whose functions are patched for it, and one that
    /// finds them patched.
    pub fn time(self) -> Result<Times, Error> {
        let [register, unregister] = self.time_after(BYSTANDER)?;
        let [register_again, unregister_again] = self.time_after(self.filter())?;
        Ok(Times {
            register,
            register_again,
            unregister,
            unregister_again,
        })
    }

    /// Times a user while another one with filter `other` is registered.
    fn time_after(self, other: &str) -> Result<[Duration; 2], Error> {
        let _other = crate::register(Declining, other)?;
        let (user, register) = timed(|| crate::register(Declining, self.filter()));
        let user = user?;
        assert_eq!(user.report()?.traced, self.sites());
        let (_, unregister) = timed(|| user.unregister());
        Ok([register, unregister])
    }
}

fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Times of registering and unregistering users.
///
/// The user that finds its functions patched causes all other work too: it takes a slot, compares
/// the name of each function, and sets its bits. The difference is therefore the patching.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// `register` of a user whose functions are patched for it.
    pub register: Duration,
    /// `register` of a user that finds its functions patched.
    pub register_again: Duration,
    /// `unregister` of a user whose functions no other user watches.
    pub unregister: Duration,
    /// `unregister` of a user whose functions another user watches.
    pub unregister_again: Duration,
}

impl Times {
    /// Longer than any measurement.
    pub const MAX: Self = Self {
        register: Duration::MAX,
        register_again: Duration::MAX,
        unregister: Duration::MAX,
        unregister_again: Duration::MAX,
    };

    /// Returns the shorter of each time.
    pub fn min(self, other: Self) -> Self {
        Self {
            register: self.register.min(other.register),
            register_again: self.register_again.min(other.register_again),
            unregister: self.unregister.min(other.unregister),
            unregister_again: self.unregister_again.min(other.unregister_again),
        }
    }

    /// Returns the time of patching alone.
    pub fn patch(self) -> Duration {
        self.register.saturating_sub(self.register_again)
    }

    /// Returns the time of unpatching alone.
    pub fn unpatch(self) -> Duration {
        self.unregister.saturating_sub(self.unregister_again)
    }
}
