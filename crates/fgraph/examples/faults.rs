//! Fault injection: every second `open` of a file fails with ENOENT, and the program copes or not.
//!
//! The program counts the lines of the files that it is given, each twice. Nothing in `count_lines`
//! knows that it is watched.
//!
//!     cargo run --release --example faults -- README.md Cargo.toml

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io};

use fgraph::{Entry, FgraphOps};

/// Makes one of `every` calls fail with `errno`, like a system call: the result is -1.
struct Fails {
    errno: i32,
    every: u64,
    calls: AtomicU64,
    injected: AtomicU64,
}

impl FgraphOps for Fails {
    type Data = ();

    fn entry(&self, call: &mut Entry<'_, ()>) -> Option<()> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if number.is_multiple_of(self.every) {
            // SAFETY: the functions that `main` selects return an `int`, and their callers must
            // expect them to fail.
            let mut writer = unsafe { call.rewrite() };
            if writer.skip(-1).is_ok() {
                writer.set_errno(self.errno);
                self.injected.fetch_add(1, Ordering::Relaxed);
            }
        }
        None
    }
}

fn count_lines(path: &str) -> io::Result<usize> {
    Ok(fs::read_to_string(path)?.lines().count())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<String> = env::args().skip(1).collect();
    if paths.is_empty() {
        paths = ["README.md", "Cargo.toml"].map(str::to_owned).to_vec();
    }
    let fails = Fails {
        errno: libc::ENOENT,
        every: 2,
        calls: AtomicU64::new(0),
        injected: AtomicU64::new(0),
    };
    // SAFETY: the callback uses atomics, which is allowed wherever `open` may be called.
    let fails = unsafe { fgraph::register(fails, "open open64") }?;
    for path in &paths {
        for attempt in ["first", "second"] {
            match count_lines(path) {
                Ok(lines) => println!("{path}, {attempt} time: {lines} lines"),
                Err(error) => println!("{path}, {attempt} time: {error}"),
            }
        }
    }
    let fails = fails.unregister()?;
    let [calls, injected] = [fails.calls, fails.injected].map(AtomicU64::into_inner);
    println!("{injected} of {calls} opens were made to fail");
    for path in &paths {
        count_lines(path)?;
    }
    println!("without the user all files are there");
    if injected == 0 {
        return Err("nothing was injected".into());
    }
    Ok(())
}
