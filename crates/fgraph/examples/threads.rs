//! A thread checker: functions that only the main thread may call.
//!
//! The program draws the letters of a file on a make-believe canvas, partly from the wrong thread.
//! The user reports each place in the program that does so once, with the thread and its caller.
//!
//!     cargo run --release --example threads -- README.md

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};

use fgraph::{Entry, FgraphOps};

/// Keeps one line for each call site from which another thread than `main` has called.
struct OnlyOn {
    /// The kernel's id of the thread that may call.
    main: u32,
    /// By the address of the call: what was called, by which thread, and how often.
    wrong: Mutex<BTreeMap<usize, (String, String, u64)>>,
}

impl FgraphOps for OnlyOn {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        if call.thread_id() != self.main {
            let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            let row = wrong.entry(call.call_site()).or_insert_with(|| {
                let thread = thread::current();
                let name = thread.name().unwrap_or("?").to_owned();
                (call.function().name().to_string(), name, 0)
            });
            row.2 += 1;
        }
        None
    }
}

mod canvas {
    use super::black_box;

    /// Draws a letter. Only the main thread may.
    #[inline(never)]
    pub(crate) fn draw(letter: char) {
        black_box(letter);
    }

    /// Forgets everything. Only the main thread may.
    #[inline(never)]
    pub(crate) fn clear() {
        black_box(());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "README.md".into());
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let only = OnlyOn {
        main: std::process::id(),
        wrong: Mutex::new(BTreeMap::new()),
    };
    // SAFETY: the callback locks and allocates, which is allowed in the functions of `canvas`: they
    // are called by ordinary code of this program only, and not with the lock held.
    let only = unsafe { fgraph::register(only, "threads::canvas::*") }?;
    canvas::clear();
    text.chars().take(100).for_each(canvas::draw);
    let painter = |range: std::ops::Range<usize>| {
        let letters = text.chars().skip(range.start).take(range.len());
        move || {
            canvas::clear();
            letters.for_each(canvas::draw);
        }
    };
    thread::scope(|scope| -> Result<(), std::io::Error> {
        for (name, range) in [("painter", 0..30), ("helper", 30..50)] {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, painter(range))?;
        }
        Ok(())
    })?;
    let wrong = only.unregister()?.wrong;
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (site, (function, thread, calls)) in &wrong {
        println!("{function} was called {calls} times at {site:#x}, first by the thread {thread}");
    }
    let calls: u64 = wrong.values().map(|row| row.2).sum();
    println!(
        "{calls} calls on the wrong thread, from {} places",
        wrong.len()
    );
    if calls != 52 {
        return Err("50 letters and two clears were drawn by other threads".into());
    }
    Ok(())
}
