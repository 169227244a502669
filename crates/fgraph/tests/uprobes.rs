//! Uprobes in traced functions. The kernel writes their breakpoints, and writes the first byte that
//! the file has when they go.

use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use fgraph::Handle;
use fgraph_needs::{Missing, needs};
use fgraph_scenario::{Count, code, is_patched, overwrite, plain, scenario, traceable};

// Begins with an instruction of several bytes.
plain!(
    "displaced",
    "lea rax, [rdi + 1]",
    "add rax, 1",
    "nop",
    "ret"
);
// With a NOP.
traceable!("padded", "lea rax, [rdi + 2]", "ret");

unsafe extern "C" {
    safe fn displaced(n: u64) -> u64;
    safe fn padded(n: u64) -> u64;
}

const BOTH: [*const (); 2] = [displaced as *const (), padded as *const ()];
const INT3: u8 = 0xcc;

fn count() -> Handle<Count> {
    fgraph_scenario::register(Count::default(), "displaced padded").unwrap()
}

fn call_both() {
    assert_eq!(black_box(displaced(5)), 7);
    assert_eq!(black_box(padded(5)), 7);
}

fn bytes() -> [[u8; 5]; 2] {
    BOTH.map(code)
}

/// A uprobe, until it is dropped.
struct Uprobe(OwnedFd);

impl Uprobe {
    /// Makes a uprobe at a function of this program, for the calling thread.
    fn at(function: *const ()) -> Result<Self, Missing> {
        let kind = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")
            .map_err(|error| Missing::new(format_args!("no uprobes: {error}")))?;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let offset = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let offset = rest.split(' ').nth(1)?;
            let address = function.addr() as u64;
            (hex(from)..hex(to))
                .contains(&address)
                .then(|| address - hex(from) + hex(offset))
        });
        let path = c"/proc/self/exe";
        // `perf_event_attr` of <linux/perf_event.h>: type and size, path and offset.
        let mut attributes = [0u64; 16];
        attributes[0] = kind.trim().parse::<u64>().unwrap() | 128 << 32;
        attributes[7] = path.as_ptr().addr() as u64;
        attributes[8] = offset.unwrap();
        // SAFETY: the kernel reads the attributes and the path.
        let file = unsafe {
            let (thread, any, none, flags) = (0, -1, -1, 8u64);
            let number = libc::SYS_perf_event_open;
            libc::syscall(number, attributes.as_ptr(), thread, any, none, flags)
        };
        if file < 0 {
            let error = io::Error::last_os_error();
            return Err(Missing::new(format_args!("uprobes are forbidden: {error}")));
        }
        // SAFETY: just opened.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(file as i32) }))
    }

    /// Returns its number of hits.
    fn hits(&self) -> u64 {
        let mut hits = 0u64;
        // SAFETY: a live local of that size.
        let read = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut hits).cast(), 8) };
        assert_eq!(read, 8);
        hits
    }
}

#[scenario]
fn functions_are_traced_again_when_their_uprobes_are_gone() {
    let original = bytes();
    let user = count();
    let patched = bytes();
    for (function, original) in BOTH.iter().zip(original) {
        overwrite(function.addr(), &original[..1]);
    }
    assert_ne!(bytes(), patched);
    fgraph::status().unwrap();
    assert_eq!(bytes(), patched);
    call_both();
    assert_eq!(user.user().both(), (2, 2));
}

#[scenario]
fn functions_are_whole_when_they_are_put_back_after_their_uprobes_are_gone() {
    let original = bytes();
    let user = count();
    for (function, original) in BOTH.iter().zip(original) {
        overwrite(function.addr(), &original[..1]);
    }
    drop(user);
    assert_eq!(bytes(), original);
    call_both();
}

#[scenario]
fn functions_are_whole_when_their_uprobes_go_after_they_are_put_back() {
    let original = bytes();
    let user = count();
    for function in BOTH {
        overwrite(function.addr(), &[INT3]);
    }
    drop(user);
    for (function, original) in BOTH.iter().zip(original) {
        assert_eq!(code::<1>(*function), [INT3]);
        overwrite(function.addr(), &original[..1]);
    }
    assert_eq!(bytes(), original);
    call_both();
    let user = count();
    call_both();
    assert_eq!(user.user().both(), (2, 2));
}

#[scenario]
fn traced_functions_with_uprobes_run_as_without() {
    let original = bytes();
    let user = count();
    let uprobes = BOTH.map(Uprobe::at);
    let uprobes = needs!(uprobes.into_iter().collect::<Result<Vec<_>, _>>());
    for _ in 0..100 {
        call_both();
    }
    // The kernel comes first, and goes on behind the first instruction.
    assert_eq!(user.user().both(), (0, 0));
    for uprobe in &uprobes {
        assert_eq!(uprobe.hits(), 100);
    }
    drop(uprobes);
    fgraph::status().unwrap();
    assert!(BOTH.into_iter().all(is_patched));
    call_both();
    assert_eq!(user.user().both(), (2, 2));
    drop(user);
    assert_eq!(bytes(), original);
    call_both();
}

#[scenario]
fn functions_with_uprobes_are_not_traced() {
    let uprobe = needs!(Uprobe::at(BOTH[0]));
    let user = count();
    assert_eq!(user.report().unwrap().refused.len(), 1);
    call_both();
    assert_eq!(user.user().both(), (1, 1));
    assert_eq!(uprobe.hits(), 1);
    drop(uprobe);
    call_both();
    assert_eq!(user.user().both(), (2, 2));
}
