//! Formats system calls like `strace`.

use std::fmt::Write as _;

use fgraph_trace::graph::error_name;
use fgraph_tracers::syscalls::{Piece, SystemCall, known_name};

use super::flags::{self, address, hex};
use super::memory;
use super::signatures::{self, Given, Kind, Memory, Other};

/// A call, as far as its words and memory show it.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// The result; without it the call is in progress.
    pub(super) result: Option<String>,
    pub(super) error: Option<Failure>,
}

/// The error of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) name: String,
    pub(super) text: String,
}

impl Failure {
    fn new(number: i64) -> Self {
        let code = number as i32;
        let text = std::io::Error::from_raw_os_error(code).to_string();
        let end = text.rfind(" (os error").unwrap_or(text.len());
        Self {
            name: error_name(number as u64).unwrap_or_else(|| number.to_string()),
            text: text[..end].to_owned(),
        }
    }
}

impl Decoded {
    pub(super) fn new(call: &SystemCall, most: usize) -> Self {
        let name = name(call.number);
        let all = call.args.iter().map(|word| hex(*word));
        let Some((kinds, given)) = signatures::find(&name) else {
            let (result, error) = outcome(call, Given::Number);
            return Self {
                name,
                arguments: all.collect(),
                result,
                error,
            };
        };
        let kinds = kinds.iter().zip(0..);
        let arguments = kinds.filter_map(|(&kind, nth)| {
            let text = argument(call, kind, nth, most)?;
            Some(text + &path(call, nth))
        });
        let arguments = arguments.collect();
        let (result, error) = outcome(call, given);
        let result = result.map(|result| result + &path(call, call.args.len()));
        Self {
            name,
            arguments,
            result,
            error,
        }
    }

    /// The call with its result: `close(9) = -1 EBADF (Bad file descriptor)`.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}({})", self.name, self.arguments.join(", "));
        if let Some(result) = &self.result {
            write!(text, " = {result}").expect("a text");
        }
        text
    }
}

/// Returns the name of a system call, or its number.
pub(super) fn name(number: u64) -> String {
    known_name(number).map_or_else(|| format!("syscall_{}", hex(number)), str::to_owned)
}

/// Returns true if the kernel's result is an error.
pub(super) fn is_error(result: i64) -> bool {
    (-4095..0).contains(&result)
}

/// Returns the path of the descriptor that an argument is, or the result after the last one, as
/// `</etc/passwd>`; empty if it is not known.
fn path(call: &SystemCall, nth: usize) -> String {
    let mut pieces = call.pieces.iter();
    let Some(piece) = pieces.find(|piece| piece.is_path && piece.arg == nth) else {
        return String::new();
    };
    let (bytes, mark) = match piece.bytes.strip_suffix(b" (deleted)") {
        Some(bytes) => (bytes, "(deleted)"),
        None => (&piece.bytes[..], ""),
    };
    let rest = if piece.is_whole { "" } else { "..." };
    format!("<{}{rest}>{mark}", memory::path(bytes))
}

/// Returns the result in `strace`'s format, and an error.
fn outcome(call: &SystemCall, given: Given) -> (Option<String>, Option<Failure>) {
    let Some((_, result)) = call.end else {
        return (None, None);
    };
    if given == Given::Nothing {
        return (Some("?".to_owned()), None);
    }
    if is_error(result) {
        let failure = Failure::new(-result);
        let text = format!("-1 {} ({})", failure.name, failure.text);
        return (Some(text), Some(failure));
    }
    let number = result as u64;
    let text = match given {
        Given::Number | Given::Nothing => result.to_string(),
        Given::Address => hex(number),
        Given::Octal => octal(number),
        Given::Ready if result == 0 => "0 (Timeout)".to_owned(),
        Given::Ready => {
            let polled = after(call, 0).map(memory::ready);
            polled.map_or(result.to_string(), |ready| format!("{result} ({ready})"))
        }
        Given::Control => match flags::CONTROL.find(call.args[1]) {
            Some("F_GETFL") => format!("{} (flags {})", hex(number), flags::OPEN.text(number)),
            Some("F_GETFD") if result != 0 => {
                let flags = flags::CLOSE_ON_EXEC.text(number);
                format!("{} (flags {flags})", hex(number))
            }
            _ => result.to_string(),
        },
    };
    (Some(text), None)
}

/// Returns memory that was copied when the call returned.
fn after(call: &SystemCall, arg: usize) -> Option<&Piece> {
    let mut pieces = call.pieces.iter();
    pieces.find(|piece| piece.arg == arg && piece.is_after)
}

fn octal(number: u64) -> String {
    match number {
        0 => "000".to_owned(),
        number => format!("{:0>3}", format!("0{number:o}")),
    }
}

/// Returns an argument, unless the call ignores it.
fn argument(call: &SystemCall, kind: Kind, nth: usize, most: usize) -> Option<String> {
    let word = call.args.get(nth).copied()?;
    let (low, int) = (word & u64::from(u32::MAX), word as i32);
    Some(match kind {
        Kind::Int => int.to_string(),
        Kind::Long => (word as i64).to_string(),
        Kind::Unsigned => low.to_string(),
        Kind::Size => word.to_string(),
        Kind::Octal => octal(low),
        Kind::Hex => hex(word),
        Kind::Address => address(word),
        Kind::Dir if int == libc::AT_FDCWD => "AT_FDCWD".to_owned(),
        Kind::Dir => int.to_string(),
        Kind::Choice(names) => names.text(low),
        Kind::Flags(names) => names.text(low),
        Kind::LongFlags(names) => {
            // The signal at its end, of `clone`.
            let (flags, signal) = (word & !0xff, word & 0xff);
            match (flags, signal) {
                (0, signal) => flags::signal(signal),
                (flags, 0) => names.text(flags),
                (flags, signal) => format!("{}|{}", names.text(flags), flags::signal(signal)),
            }
        }
        Kind::Signal => flags::signal(low),
        Kind::Memory(shape) => pointed(call, shape, nth, most),
        Kind::Of(other) => return dependent(call, other, nth),
    })
}

/// Returns the memory to which an argument points; without it the address.
fn pointed(call: &SystemCall, shape: Memory, nth: usize, most: usize) -> String {
    let word = call.args[nth];
    let mut pieces = call.pieces.iter();
    let found = pieces.find(|piece| piece.arg == nth && piece.buffer.is_none() && !piece.is_path);
    if shape == Memory::Environment {
        return address(word);
    }
    let Some(piece) = found else {
        return address(word);
    };
    let text = match shape {
        Memory::Length => memory::lengths(call, nth),
        Memory::Buffers => memory::buffers(call, nth, most),
        Memory::OptionValue => memory::option(call, piece),
        shape => memory::text(shape, piece, most),
    };
    text.unwrap_or_else(|| address(word))
}

fn dependent(call: &SystemCall, other: Other, nth: usize) -> Option<String> {
    let word = call.args[nth];
    let (low, int) = (word & u64::from(u32::MAX), word as i32);
    let before = |places: usize| call.args[nth - places] & u64::from(u32::MAX);
    Some(match other {
        Other::OpenMode => {
            let flags = before(1);
            let temporary = libc::O_TMPFILE as u64;
            if flags & libc::O_CREAT as u64 == 0 && flags & temporary != temporary {
                return None;
            }
            octal(low)
        }
        Other::SocketProtocol => match before(2) as i32 {
            libc::AF_INET | libc::AF_INET6 => flags::PROTOCOL.text(low),
            libc::AF_NETLINK => flags::NETLINK.text(low),
            _ => int.to_string(),
        },
        Other::SocketOption => match before(1) as i32 {
            libc::SOL_SOCKET => flags::OPTION.text(low),
            libc::IPPROTO_TCP => flags::TCP_OPTION.text(low),
            _ => hex(low),
        },
        Other::Request => match flags::REQUEST.find(low) {
            Some(name) => name.to_owned(),
            None => request(low),
        },
        Other::Control => match flags::CONTROL.find(before(1)) {
            Some(
                "F_GETFD" | "F_GETFL" | "F_GETOWN" | "F_GETSIG" | "F_GETLEASE" | "F_GETPIPE_SZ"
                | "F_GET_SEALS",
            ) => return None,
            Some("F_SETFD") => flags::CLOSE_ON_EXEC.text(low),
            Some("F_SETFL") => flags::OPEN.text(low),
            Some("F_DUPFD" | "F_DUPFD_CLOEXEC" | "F_SETOWN" | "F_SETPIPE_SZ") => int.to_string(),
            Some("F_SETSIG") => flags::signal(low),
            _ => address(word),
        },
        Other::NewAddress => match before(1) & libc::MREMAP_FIXED as u64 {
            0 => return None,
            _ => address(word),
        },
        Other::ProcessValue => match call.args[0] as i32 {
            libc::PR_GET_DUMPABLE | libc::PR_GET_KEEPCAPS | libc::PR_GET_TIMERSLACK => return None,
            libc::PR_SET_DUMPABLE if word == 0 => "SUID_DUMP_DISABLE".to_owned(),
            libc::PR_SET_DUMPABLE if word == 1 => "SUID_DUMP_USER".to_owned(),
            libc::PR_SET_PDEATHSIG => flags::signal(word),
            libc::PR_SET_NO_NEW_PRIVS | libc::PR_SET_CHILD_SUBREAPER => word.to_string(),
            libc::PR_SET_NAME => pointed(call, Memory::Path, 1, 0),
            _ => hex(word),
        },
        Other::ProcessRest => match call.args[0] as i32 {
            libc::PR_GET_DUMPABLE
            | libc::PR_SET_DUMPABLE
            | libc::PR_GET_KEEPCAPS
            | libc::PR_SET_KEEPCAPS
            | libc::PR_GET_TIMERSLACK
            | libc::PR_SET_TIMERSLACK
            | libc::PR_GET_PDEATHSIG
            | libc::PR_SET_PDEATHSIG
            | libc::PR_GET_NAME
            | libc::PR_SET_NAME => return None,
            _ => hex(word),
        },
        Other::FutexTime | Other::FutexAddress | Other::FutexValue => {
            return futex(call, other, word);
        }
    })
}

/// Returns an argument of `futex`; few operations take all.
fn futex(call: &SystemCall, other: Other, word: u64) -> Option<String> {
    let operation = call.args[1] as i32 & libc::FUTEX_CMD_MASK;
    let time = || pointed(call, Memory::Time, 3, 0);
    match (operation, other) {
        (libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI, Other::FutexTime) => {
            Some(time())
        }
        (libc::FUTEX_WAIT_BITSET, Other::FutexAddress) => Some(address(word)),
        (libc::FUTEX_WAIT_BITSET | libc::FUTEX_WAKE_BITSET, Other::FutexValue) => {
            match word as u32 {
                u32::MAX => Some("FUTEX_BITSET_MATCH_ANY".to_owned()),
                bits => Some(hex(bits.into())),
            }
        }
        (libc::FUTEX_WAKE_BITSET, _) => Some(address(word)),
        (libc::FUTEX_REQUEUE, Other::FutexTime) => Some((word as u32).to_string()),
        (libc::FUTEX_REQUEUE, Other::FutexAddress) => Some(address(word)),
        (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_WAKE_OP, other) => Some(match other {
            Other::FutexTime => (word as u32).to_string(),
            Other::FutexAddress => address(word),
            _ => hex(word & u64::from(u32::MAX)),
        }),
        _ => None,
    }
}

/// Returns an unknown request of `ioctl`, by its parts.
fn request(number: u64) -> String {
    let direction = match number >> 30 {
        0 => "_IOC_NONE",
        1 => "_IOC_WRITE",
        2 => "_IOC_READ",
        _ => "_IOC_READ|_IOC_WRITE",
    };
    let [size, kind, nth] = [number >> 16 & 0x3fff, number >> 8 & 0xff, number & 0xff].map(hex);
    format!("_IOC({direction}, {kind}, {nth}, {size})")
}
