//! Call paths: numbers for a call and the calls around it that are the same in each run of a
//! program, wherever its modules are loaded.
//!
//! A place in code is the name of its module's file and the distance from the module's start. The
//! table of modules is read in callbacks, which neither allocate nor lock:
//!
//! ```text
//!   | first address | end | number of the name |   one row for each module, the newest last
//! ```

use std::fs;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgraph::LibraryEvent;
use serde::{Deserialize, Serialize};

use crate::support::mapped::Mapped;
use crate::support::sink::modules::modules;

/// Most return addresses of a call path.
pub(super) const DEPTH: usize = 64;
/// Most modules that are distinguished, including those that were unloaded.
const MODULES: usize = 1024;
/// Most call paths whose calls are counted.
const PATHS: usize = 1 << 16;
/// Places in which a call path may be.
const TRIES: usize = 64;

/// Call path: a function, and where the calls around it return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CallPath {
    /// Number of the function.
    pub function: u64,
    /// Number of the return addresses together.
    pub callers: u64,
}

/// Modules of the process.
#[derive(Debug)]
pub(super) struct Modules {
    /// First address, end, and number of the name.
    rows: Mapped<[[AtomicU64; 3]; MODULES]>,
    len: AtomicUsize,
}

impl Modules {
    /// Reads the loaded modules; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        let this = Self {
            rows: Mapped::new()?,
            len: AtomicUsize::new(0),
        };
        let maps = fs::read("/proc/self/maps").unwrap_or_default();
        for (path, (start, end)) in modules(&maps) {
            this.add(&path, start, end);
        }
        Some(this)
    }

    /// Adds or removes a library. Events come one after another.
    pub(super) fn library(&self, event: &LibraryEvent<'_>) {
        let [start, end] = [event.range.start, event.range.end].map(|it| it as u64);
        if event.is_loaded {
            self.add(event.path.as_bytes(), start, end);
            return;
        }
        for [first, behind, _] in self.known() {
            if first.load(Ordering::Relaxed) == start {
                behind.store(0, Ordering::Relaxed);
            }
        }
    }

    fn add(&self, path: &[u8], start: u64, end: u64) {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let number = |number, &byte: &u8| mix(number, byte.into());
        let name = name.iter().fold(0, number);
        let len = self.len.load(Ordering::Relaxed);
        let Some(row) = self.rows.get(len) else {
            return;
        };
        for (to, value) in row.iter().zip([start, end, name]) {
            to.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the load in `known`.
        self.len.store(len + 1, Ordering::Release);
    }

    fn known(&self) -> &[[AtomicU64; 3]] {
        let len = self.len.load(Ordering::Acquire);
        self.rows.get(..len).unwrap_or_default()
    }

    /// Returns the number of a place in code. Places of no module are one place.
    pub(super) fn place(&self, address: usize) -> u64 {
        let address = address as u64;
        let numbers = self.known().iter().rev().map(|row| {
            let [start, end, name] = row.each_ref().map(|word| word.load(Ordering::Relaxed));
            let is_inside = (start..end).contains(&address);
            is_inside.then(|| mix(name, address - start))
        });
        numbers.flatten().next().unwrap_or(0)
    }

    /// Returns the number of return addresses together.
    pub(super) fn callers(&self, addresses: &[usize]) -> u64 {
        let number = |number, &address: &usize| mix(number, self.place(address));
        addresses.iter().fold(0, number)
    }
}

/// Call paths that were met, with the number of calls of each.
#[derive(Debug)]
pub(super) struct Met(Mapped<[[AtomicU64; 2]; PATHS]>);

impl Met {
    /// Creates an empty table; `None` without memory.
    pub(super) fn new() -> Option<Self> {
        Mapped::new().map(Self)
    }

    /// Counts a call. Returns the number of calls of the path before it; 0 if there is no room.
    pub(super) fn count(&self, path: CallPath) -> u64 {
        // 0 is a free place.
        let key = mix(path.function, path.callers) | 1;
        for at in 0..TRIES {
            let [known, calls] = &self.0[(key as usize / 2 + at) % PATHS];
            // Relaxed: the words are the only data.
            let taken = known.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() || taken == Err(key) {
                return calls.fetch_add(1, Ordering::Relaxed);
            }
        }
        0
    }
}

/// Mixes a value into a number (SplitMix64).
pub(super) fn mix(number: u64, value: u64) -> u64 {
    let gamma = 0x9e37_79b9_7f4a_7c15_u64;
    let mut z = number.wrapping_add(value.wrapping_add(1).wrapping_mul(gamma));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(libraries: &[(&str, u64)]) -> Modules {
        let modules = Modules {
            rows: Mapped::new().unwrap(),
            len: AtomicUsize::new(0),
        };
        for &(path, start) in libraries {
            modules.add(path.as_bytes(), start, start + 0x1000);
        }
        modules
    }

    #[test]
    fn places_have_the_same_numbers_wherever_modules_are_loaded() {
        let one = with(&[("/lib/libc.so.6", 0x1000), ("/tmp/1/program", 0x10000)]);
        let other = with(&[("/tmp/2/program", 0x50000), ("/lib/libc.so.6", 0x7000)]);
        assert_eq!(
            one.callers(&[0x1100, 0x10200]),
            other.callers(&[0x7100, 0x50200])
        );
        assert_ne!(
            one.callers(&[0x1100, 0x10200]),
            one.callers(&[0x10200, 0x1100])
        );
        assert_ne!(one.place(0x1100), one.place(0x10100));
        assert_eq!((one.place(0x900), one.place(0x2000)), (0, 0));
    }

    #[test]
    fn an_unloaded_library_has_no_places() {
        let modules = with(&[("/lib/libm.so.6", 0x1000)]);
        let event = |is_loaded, path| LibraryEvent::new(is_loaded, path, 0x1000..0x2000, 0);
        let place = modules.place(0x1100);
        modules.library(&event(false, "/lib/libm.so.6"));
        assert_eq!(modules.place(0x1100), 0);
        modules.library(&event(true, "/usr/lib/libm.so.6"));
        assert_eq!(modules.place(0x1100), place);
    }

    #[test]
    fn calls_are_counted_for_each_path() {
        let met = Met::new().unwrap();
        let path = |callers| CallPath {
            function: 1,
            callers,
        };
        for nth in 0..3 {
            assert_eq!((met.count(path(1)), met.count(path(2))), (nth, nth));
        }
    }
}
