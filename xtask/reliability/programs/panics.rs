//! Rust panics. The first argument says what is done, the second how many frames lie between the
//! panic and where it is caught.

use std::hint::black_box;
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

#[inline(never)]
fn leaf(sum: &AtomicU32) {
    sum.fetch_add(1, Ordering::Relaxed);
}

/// Panics at the bottom.
#[inline(never)]
fn dive(frames: u32) -> u32 {
    if frames == 0 {
        panic!("bottom");
    }
    black_box(dive(frames - 1)) + 1
}

#[inline(never)]
fn caught(frames: u32) -> bool {
    let thrown = panic::catch_unwind(|| dive(frames)).unwrap_err();
    thrown.downcast_ref::<&str>() == Some(&"bottom")
}

/// The same many times, which must not use anything up.
#[inline(never)]
fn again(frames: u32) -> bool {
    (0..300).all(|_| caught(frames))
}

/// Every frame catches and goes on with the panic.
#[inline(never)]
fn relay(frames: u32, sum: &AtomicU32) -> u32 {
    let below = AssertUnwindSafe(|| match frames {
        0 => dive(0),
        _ => relay(frames - 1, sum),
    });
    match panic::catch_unwind(below) {
        Ok(result) => black_box(result) + 1,
        Err(thrown) => {
            leaf(sum);
            panic::resume_unwind(thrown)
        }
    }
}

#[inline(never)]
fn rethrown(frames: u32) -> bool {
    let sum = AtomicU32::new(0);
    panic::catch_unwind(AssertUnwindSafe(|| relay(frames, &sum))).is_err()
        && sum.into_inner() == frames + 1
}

/// Calls functions when it is dropped, which may panic for themselves.
struct Guard<'a>(u32, &'a AtomicU32);

impl Drop for Guard<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        leaf(self.1);
        if self.0 % 5 == 0 && caught(2) {
            leaf(self.1);
        }
    }
}

#[inline(never)]
fn guarded(frames: u32, sum: &AtomicU32) -> u32 {
    let _guard = Guard(frames, sum);
    if frames == 0 {
        panic!("bottom");
    }
    black_box(guarded(frames - 1, sum)) + 1
}

#[inline(never)]
fn destructors(frames: u32) -> bool {
    let sum = AtomicU32::new(0);
    panic::catch_unwind(AssertUnwindSafe(|| guarded(frames, &sum))).is_err()
        && sum.into_inner() == frames + 1 + frames / 5 + 1
}

/// Caught half way up; the frames above return.
#[inline(never)]
fn half(frames: u32, level: u32) -> u32 {
    if frames == 0 {
        panic!("bottom");
    }
    let below = if frames == level {
        panic::catch_unwind(|| half(frames - 1, level)).unwrap_or(100)
    } else {
        half(frames - 1, level)
    };
    black_box(below) + 1
}

/// Ends a thread.
#[inline(never)]
fn joined(frames: u32) -> bool {
    let thread = thread::spawn(move || dive(frames));
    thread.join().is_err() && thread::scope(|scope| scope.spawn(|| caught(frames)).join().unwrap())
}

/// Panics while a panic drops it: that ends the process.
struct Bomb;

impl Drop for Bomb {
    #[inline(never)]
    fn drop(&mut self) {
        black_box(dive(1));
    }
}

#[inline(never)]
fn with_bomb(frames: u32) -> u32 {
    let _bomb = Bomb;
    black_box(dive(frames)) + 1
}

fn main() -> ExitCode {
    // The default one prints a number that the kernel chooses.
    panic::set_hook(Box::new(|info| {
        let location = info.location().unwrap();
        let _ = writeln!(std::io::stderr(), "panic in line {}", location.line());
    }));
    let args: Vec<String> = std::env::args().collect();
    let frames: u32 = args[2].parse().unwrap();
    let is_right = match args[1].as_str() {
        "caught" => caught(frames),
        "again" => again(frames),
        "rethrown" => rethrown(frames),
        "destructors" => destructors(frames),
        "half" => half(frames, frames / 2) == 101 + frames - frames / 2,
        "joined" => joined(frames),
        "abort" => dive(frames) == 0,
        "bomb" => with_bomb(frames) == 0,
        _ => false,
    };
    println!("{}: {is_right}", args[1]);
    ExitCode::from(u8::from(!is_right))
}
