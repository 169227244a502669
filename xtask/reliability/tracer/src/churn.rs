//! A thread that changes what is traced, all the time: one more user comes and goes, and the filter
//! of another is switched.
//!
//! It runs in the process that was started only. A child of it that is forked keeps these users for
//! good, as nobody is left there to unregister them.

use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};
use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fgraph::{Entry, FgraphOps, Filter, Options, Return};

use crate::record::Count;
use crate::{complain, count};

/// Number of users that it needs.
pub(crate) const USERS: usize = 2;

/// The thread.
#[derive(Debug)]
pub(crate) struct Churn {
    thread: JoinHandle<Result<(), fgraph::Error>>,
    is_over: Arc<AtomicBool>,
    /// Where it runs.
    process: u32,
}

impl Churn {
    /// Starts it, to change what is done with the functions that `filter` selects.
    pub(crate) fn start(filter: String) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        Self {
            thread: thread::spawn(move || churn(&filter, &until)),
            is_over,
            process: process::id(),
        }
    }

    /// Ends it, and waits until its users are gone. In a child, where they are not: `false`.
    pub(crate) fn end(self) -> bool {
        if process::id() != self.process {
            // There is nobody to wait for.
            mem::forget(self.thread);
            return false;
        }
        self.is_over.store(true, Ordering::Relaxed);
        if let Err(error) = self.thread.join().expect("it does not panic") {
            complain(error);
            count(Count::Inactive, 1);
        }
        true
    }
}

fn churn(filter: &str, is_over: &AtomicBool) -> Result<(), fgraph::Error> {
    let register = |user| {
        // SAFETY: the callbacks of `Passing` use atomics, which is allowed wherever a function may
        // be called.
        unsafe { fgraph::register_with(user, filter, &Options::new().allow_no_match()) }
    };
    let stays = register(Passing::default())?;
    while !is_over.load(Ordering::Relaxed) {
        let is_gone = Arc::new(AtomicBool::new(false));
        let comes = register(Passing(Arc::clone(&is_gone)))?;
        // SAFETY: as in `register`.
        unsafe { stays.set_filter(Filter::none()) }?;
        drop(comes);
        is_gone.store(true, Ordering::Relaxed);
        // SAFETY: as in `register`.
        unsafe { stays.set_filter(filter) }?;
    }
    Ok(())
}

/// A user who does not stay to the end of the calls that it accepts; it knows when it is gone.
#[derive(Debug, Default)]
struct Passing(Arc<AtomicBool>);

impl FgraphOps for Passing {
    /// The function's address.
    type Data = usize;

    fn entry(&self, call: &mut Entry<'_, usize>) -> Option<usize> {
        count(Count::Late, u64::from(self.0.load(Ordering::Relaxed)));
        Some(call.function().address())
    }

    fn ret(&self, call: &mut Return<'_, usize>, function: usize) {
        count(Count::Late, u64::from(self.0.load(Ordering::Relaxed)));
        let is_other = call.function().address() != function;
        count(Count::Mismatched, u64::from(is_other));
    }
}
