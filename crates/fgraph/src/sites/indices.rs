//! The indices of functions.
//!
//! A function keeps its index permanently, and an index is never given to another function, so data
//! about functions can be kept in an array. A file that is loaded again, at any address, is
//! recognized by its build id, and its functions get their indices back. The exception is a copy of
//! a loaded file, whose functions get new ones.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The most functions that can have an index. In recordings the indices from here to 2^24 are for
/// functions of interpreted languages.
pub(crate) const MAX_FUNCTIONS: u32 = 15 << 20;

/// The number of functions with an index.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns the number of functions with an index: all indices are less.
pub(crate) fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// The indices in use.
#[derive(Debug)]
pub(crate) struct Indices {
    next: u32,
    limit: u32,
    files: Vec<File>,
}

/// A file whose functions have numbers.
#[derive(Debug)]
struct File {
    build_id: Box<[u8]>,
    /// Addresses in the file, in order, with the indices of the functions there.
    functions: Vec<(u64, u32)>,
    is_loaded: &'static AtomicBool,
}

/// The indices of one module's functions, while they are assigned.
#[derive(Debug)]
pub(crate) struct OfModule<'a> {
    next: &'a mut u32,
    limit: u32,
    known: Option<&'a mut File>,
    new: Vec<(u64, u32)>,
}

impl Indices {
    pub(crate) const fn new() -> Self {
        Self {
            next: 0,
            limit: MAX_FUNCTIONS,
            files: Vec::new(),
        }
    }

    /// Prepares the indices of a module's functions, by the build id of its file and the flag that
    /// says if it is loaded. Without an id they are new. `known` is the flag if other functions of
    /// the module have indices.
    pub(crate) fn of(
        &mut self,
        build_id: Option<&[u8]>,
        known: Option<&'static AtomicBool>,
    ) -> (OfModule<'_>, Option<&'static AtomicBool>) {
        let place = build_id.map(|id| {
            let is_free = |file: &File| match known {
                Some(known) => ptr::eq(file.is_loaded, known),
                None => *file.build_id == *id && !file.is_loaded.load(Ordering::Relaxed),
            };
            self.files.iter().position(is_free).unwrap_or_else(|| {
                self.files.push(File {
                    build_id: id.into(),
                    functions: Vec::new(),
                    is_loaded: Box::leak(Box::new(AtomicBool::new(false))),
                });
                self.files.len() - 1
            })
        });
        let known = place.map(|place| &mut self.files[place]);
        let is_loaded = known.as_ref().map(|file| file.is_loaded);
        if let Some(is_loaded) = is_loaded {
            is_loaded.store(true, Ordering::Relaxed);
        }
        let of_module = OfModule {
            next: &mut self.next,
            limit: self.limit,
            known,
            new: Vec::new(),
        };
        (of_module, is_loaded)
    }
}

impl OfModule<'_> {
    /// Returns the index of the function at an address in the file; `None` if all are in use.
    pub(crate) fn get(&mut self, address: u64) -> Option<u32> {
        let known = self.known.as_ref().map_or(&[][..], |file| &file.functions);
        if let Ok(place) = known.binary_search_by_key(&address, |&(address, _)| address) {
            return Some(known[place].1);
        }
        let index = *self.next;
        if index >= self.limit {
            return None;
        }
        *self.next += 1;
        self.new.push((address, index));
        Some(index)
    }
}

impl Drop for OfModule<'_> {
    fn drop(&mut self) {
        if let Some(file) = &mut self.known {
            file.functions.append(&mut self.new);
            file.functions.sort_unstable();
            file.functions.shrink_to_fit();
        }
        // Never less: indices in tests are separate.
        COUNT.fetch_max(*self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(indices: &mut Indices, id: Option<&[u8]>, addresses: &[u64]) -> Vec<Option<u32>> {
        let (mut numbers, _) = indices.of(id, None);
        addresses.iter().map(|&at| numbers.get(at)).collect()
    }

    #[test]
    fn a_file_that_comes_back_gets_its_numbers_back() {
        let mut indices = Indices::new();
        let some = |numbers: &[u32]| numbers.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(given(&mut indices, Some(b"a"), &[8, 24]), some(&[0, 1]));
        assert_eq!(given(&mut indices, None, &[8]), some(&[2]));
        // A copy, while the first one is still loaded.
        assert_eq!(given(&mut indices, Some(b"a"), &[8, 24]), some(&[3, 4]));
        indices.files[0].is_loaded.store(false, Ordering::Relaxed);
        assert_eq!(
            given(&mut indices, Some(b"a"), &[24, 16, 8]),
            some(&[1, 5, 0])
        );
        indices.files[0].is_loaded.store(false, Ordering::Relaxed);
        assert_eq!(given(&mut indices, Some(b"a"), &[16]), some(&[5]));
        assert_eq!(given(&mut indices, None, &[8]), some(&[6]));
    }

    #[test]
    fn functions_of_a_file_may_get_their_numbers_one_after_the_other() {
        let mut indices = Indices::new();
        let (mut numbers, known) = indices.of(Some(b"a"), None);
        assert_eq!(numbers.get(8), Some(0));
        drop(numbers);
        let (mut numbers, again) = indices.of(Some(b"a"), known);
        assert_eq!((numbers.get(24), numbers.get(8)), (Some(1), Some(0)));
        drop(numbers);
        assert!(ptr::eq(known.unwrap(), again.unwrap()));
        again.unwrap().store(false, Ordering::Relaxed);
        let all = given(&mut indices, Some(b"a"), &[8, 24]);
        assert_eq!(all, [Some(0), Some(1)]);
    }

    #[test]
    fn numbers_run_out() {
        let mut indices = Indices {
            limit: 2,
            ..Indices::new()
        };
        assert_eq!(
            given(&mut indices, None, &[1, 2, 3]),
            [Some(0), Some(1), None]
        );
        assert_eq!(given(&mut indices, Some(b"a"), &[1]), [None]);
    }
}
