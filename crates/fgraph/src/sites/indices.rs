//! The numbers of functions.
//!
//! A function keeps its number for good, and it is never given to another one, so that what is kept
//! of functions may be an array. A file that is loaded again, at whatever address, is known by its
//! build id, and gets the numbers back that its functions had; unless a copy of the same file is
//! loaded, whose functions are others.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// There are no more functions with a number than this.
pub(crate) const MAX_FUNCTIONS: u32 = 1 << 24;

/// How many functions have a number.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// How many functions have a number: all numbers are less.
pub(crate) fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// The numbers that were given.
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
    /// Addresses in the file, in order, and the numbers of the functions there.
    functions: Vec<(u64, u32)>,
    is_loaded: &'static AtomicBool,
}

/// The numbers of the functions of one module while they are given.
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

    /// For the functions of a module that has been loaded from a file of this build id, and what
    /// says whether it is loaded; without an id they are new ones. That is what `known` is, if
    /// other functions of the module have numbers.
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
    /// The number of the function at an address in the file; `None` if there are no more.
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
        // Never less: those of tests are apart.
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
