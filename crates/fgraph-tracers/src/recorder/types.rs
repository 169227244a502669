//! Types of the recorded functions.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

use fgraph::{Function, function_at};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::ring::Rings;

use super::shapes::{Absent, Compiled, Wanted};
use crate::support::by_function::ByFunction;

/// Programs of each function; null for one without types.
#[derive(Debug)]
pub(super) struct Types {
    by_function: ByFunction<AtomicPtr<Compiled>>,
    wanted: Wanted,
}

impl Types {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            by_function: ByFunction::new(),
            wanted,
        }
    }

    /// Returns the function's programs, if it has some.
    #[inline]
    pub(super) fn of(&self, function: Function) -> Option<&Compiled> {
        // Acquire: the programs, and their layout in the rings, are visible.
        let compiled = self.by_function.of(function)?.load(Ordering::Acquire);
        // SAFETY: null, or a value that lives as long as `self`.
        unsafe { compiled.as_ref() }
    }

    /// Finds the types of functions of the process with this number and describes them, until the
    /// time limit.
    pub(super) fn learn(
        &self,
        functions: &[Function],
        rings: &Rings,
        process: u32,
        until: Option<Instant>,
    ) {
        for &function in functions {
            if until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
            self.learn_one(function, rings, process);
        }
    }

    fn learn_one(&self, function: Function, rings: &Rings, process: u32) -> Option<()> {
        let place = self.by_function.of(function)?;
        if !place.load(Ordering::Relaxed).is_null() {
            return None;
        }
        let symbol = function_at(function.address());
        let fields = [process.into(), function.index().into(), 0, 0];
        let (behind, absent) = self.wanted.behind(symbol);
        for Absent { path, why, names } in absent {
            let lines = [&[why][..], &names].concat().join("\n");
            rings.describe(DescriptionKind::NoValue, fields, [&path, &lines]);
        }
        let known = symbol.and_then(|symbol| symbol.signature());
        let signature = self.wanted.with_texts(known)?;
        let compiled = Compiled::new(&signature, &behind, &self.wanted)?;
        let texts = [compiled.layout.to_string(), signature.to_string()];
        let texts = [texts[0].as_str(), texts[1].as_str()];
        if !rings.describe(DescriptionKind::Types, fields, texts) {
            return None;
        }
        let ours = Box::into_raw(Box::new(compiled));
        // Release: pairs with the load in `of`.
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        let stored = place.compare_exchange(ptr::null_mut(), ours, release, relaxed);
        if stored.is_err() {
            // SAFETY: the box was just made, and no other thread knows it.
            drop(unsafe { Box::from_raw(ours) });
        }
        Some(())
    }
}

impl Drop for Types {
    fn drop(&mut self) {
        for place in self.by_function.iter() {
            let compiled = place.swap(ptr::null_mut(), Ordering::Acquire);
            if !compiled.is_null() {
                // SAFETY: the pointer came from a box in `learn_one`; references to it end with
                // `self`.
                drop(unsafe { Box::from_raw(compiled) });
            }
        }
    }
}
