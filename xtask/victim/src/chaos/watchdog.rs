//! The act that each thread is in, which is printed when the program hangs or crashes.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, mem, process, thread};

use crate::workers;

/// Names of the acts.
static NAMES: OnceLock<Vec<&str>> = OnceLock::new();

/// Threads that are watched.
pub(crate) const MAX_ACTORS: usize = 64;
/// An act takes less than that.
const PATIENCE: Duration = Duration::from_secs(30);

/// The act of each thread plus one, and how many it has begun; 0: none.
static DOING: [AtomicU64; MAX_ACTORS] = [const { AtomicU64::new(0) }; MAX_ACTORS];
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// State of all threads together.
static ROUND: AtomicU64 = AtomicU64::new(0);

/// Thread `number` begins its `count`-th act.
pub(crate) fn begin(number: usize, act: usize, count: u64) {
    DOING[number].store(count << 8 | (act as u64 + 1), Ordering::Relaxed);
}

/// Thread `number` is in no act.
pub(crate) fn end(number: usize) {
    DOING[number].store(0, Ordering::Relaxed);
}

/// A round begins.
pub(crate) fn begin_round(round: u64) {
    ROUND.store(round, Ordering::Relaxed);
}

/// Watches until [`stop`].
pub(crate) fn start(names: Vec<&'static str>) -> io::Result<()> {
    NAMES.get_or_init(|| names);
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        // SAFETY: zeros are an empty set. The handler is of the kind that the flags ask for.
        unsafe { workers::handle(signal, on_crash as *const () as usize, flags, mem::zeroed()) }?;
    }
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(watch)
        .map(drop)
}

/// Nothing is watched any more.
pub(crate) fn stop() {
    IS_OVER.store(true, Ordering::Relaxed);
}

fn watch() {
    let now = || {
        let doing = DOING.each_ref().map(|doing| doing.load(Ordering::Relaxed));
        (ROUND.load(Ordering::Relaxed), doing)
    };
    let (mut last, mut since) = (now(), Instant::now());
    while !IS_OVER.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(200));
        let doing = now();
        // Each one has to go on.
        let hangs = |number: usize| doing.1[number] != 0 && doing.1[number] == last.1[number];
        let is_stuck = doing.0 == last.0 && (doing == last || (0..MAX_ACTORS).any(hangs));
        if !is_stuck {
            (last, since) = (doing, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("nothing has gone on for {} s", PATIENCE.as_secs());
            process::abort();
        }
    }
}

extern "C" fn on_crash(
    signal: libc::c_int,
    info: *const libc::siginfo_t,
    context: *const libc::ucontext_t,
) {
    // SAFETY: the kernel's.
    let (at, address) = unsafe {
        let registers = &(*context).uc_mcontext.gregs;
        (registers[libc::REG_RIP as usize], (*info).si_addr())
    };
    let mut text = Text {
        bytes: [0; 4096],
        len: 0,
    };
    let _ = fmt::write(
        &mut text,
        format_args!("signal {signal} at {at:#x}, address {address:p}\n{Acts}"),
    );
    // SAFETY: bytes of ours. The signal, at its default now, comes again, or is sent again.
    unsafe {
        libc::write(2, text.bytes.as_ptr().cast(), text.len);
        libc::raise(signal);
    }
}

/// Act of each thread, a line each.
struct Acts;

impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "round {}", ROUND.load(Ordering::Relaxed))?;
        for (number, doing) in DOING.iter().enumerate() {
            let doing = doing.load(Ordering::Relaxed);
            if let Some(act) = (doing & 0xff).checked_sub(1) {
                let name = NAMES.get().and_then(|names| names.get(act as usize));
                let name = name.unwrap_or(&"?");
                writeln!(f, "thread {number}: act {}, {name}", doing >> 8)?;
            }
        }
        Ok(())
    }
}

/// Text without memory from the allocator.
struct Text {
    bytes: [u8; 4096],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
