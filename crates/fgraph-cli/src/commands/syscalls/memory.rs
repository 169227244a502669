//! Formats memory to which system calls point, like `strace`.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use fgraph_tracers::syscalls::{Piece, SystemCall};

use super::flags::{self, address, hex};
use super::signatures::Memory;

/// Reads numbers from memory.
struct Bytes<'b>(&'b [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, at: usize) -> Option<u64> {
        Some(u16::from_le_bytes(self.array(at)?).into())
    }

    fn u32(&self, at: usize) -> Option<u64> {
        Some(u32::from_le_bytes(self.array(at)?).into())
    }

    fn i32(&self, at: usize) -> Option<i32> {
        Some(i32::from_le_bytes(self.array(at)?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.array(at)?))
    }

    fn i64(&self, at: usize) -> Option<i64> {
        Some(i64::from_le_bytes(self.array(at)?))
    }
}

/// Returns text in quotes with C escapes, followed by dots if it continues.
pub(super) fn quoted(bytes: &[u8], is_whole: bool) -> String {
    let mut text = String::from("\"");
    escape(bytes, "", &mut text);
    text.push('"');
    if !is_whole {
        text.push_str("...");
    }
    text
}

/// Returns the path of a descriptor with C escapes.
pub(super) fn path(bytes: &[u8]) -> String {
    let mut text = String::new();
    escape(bytes, "<>", &mut text);
    text
}

/// Adds text with C escapes, also of some other characters.
fn escape(bytes: &[u8], others: &str, text: &mut String) {
    for (nth, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', byte.into()]),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            0x0b => text.push_str("\\v"),
            0x0c => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            b' '..=b'~' if !others.contains(char::from(byte)) => text.push(byte.into()),
            byte => {
                // A digit after it would be read as a part of the number.
                let next = bytes.get(nth + 1);
                let is_digit = next.is_some_and(|next| (b'0'..=b'7').contains(next));
                let width = if is_digit { 3 } else { 1 };
                write!(text, "\\{byte:0width$o}").expect("a text");
            }
        }
    }
}

/// Returns at most `most` bytes of data.
fn data(piece: &Piece, most: usize) -> String {
    let few = piece.bytes.get(..most).unwrap_or(&piece.bytes);
    quoted(few, piece.is_whole && few.len() == piece.bytes.len())
}

/// Formats memory of an argument; `None` if it is too short.
pub(super) fn text(shape: Memory, piece: &Piece, most: usize) -> Option<String> {
    let bytes = Bytes(&piece.bytes);
    Some(match shape {
        Memory::Path => {
            let text = piece.bytes.strip_suffix(b"\0").unwrap_or(&piece.bytes);
            quoted(text, piece.is_whole)
        }
        Memory::Data => data(piece, most),
        Memory::Bytes => {
            let few = piece.bytes.get(..most).unwrap_or(&piece.bytes);
            let digits = few.iter().map(|byte| format!("\\x{byte:02x}"));
            let digits: String = digits.collect();
            let is_whole = piece.is_whole && few.len() == piece.bytes.len();
            format!("\"{digits}\"{}", if is_whole { "" } else { "..." })
        }
        Memory::Texts => {
            let texts = piece.bytes.split_inclusive(|byte| *byte == 0);
            let texts = texts.map(|text| quoted(text.strip_suffix(b"\0").unwrap_or(text), true));
            let mut texts: Vec<String> = texts.collect();
            if !piece.is_whole {
                texts.push("...".to_owned());
            }
            format!("[{}]", texts.join(", "))
        }
        Memory::Stat => {
            let (mode, device, size) = (bytes.u32(24)?, bytes.u64(40)?, bytes.i64(48)?);
            file(mode, device, &size.to_string(), "st_")
        }
        Memory::Statx => {
            let mask = flags::STATX_MASK.text(bytes.u32(0)?);
            let (attributes, size) = (hex(bytes.u64(8)?), bytes.u64(40)?);
            let mode = mode(bytes.u16(28)?);
            format!(
                "{{stx_mask={mask}, stx_attributes={attributes}, stx_mode={mode}, \
                 stx_size={size}, ...}}"
            )
        }
        Memory::Time => time(&bytes, 0, "nsec")?,
        Memory::Times => {
            let one = |at| match bytes.i64(at + 8)? {
                libc::UTIME_NOW => Some("UTIME_NOW".to_owned()),
                libc::UTIME_OMIT => Some("UTIME_OMIT".to_owned()),
                _ => time(&bytes, at, "nsec"),
            };
            format!("[{}, {}]", one(0)?, one(16)?)
        }
        Memory::TimerTime => interval(&bytes, "nsec")?,
        Memory::IntervalTime => interval(&bytes, "usec")?,
        Memory::Pair => format!("[{}, {}]", bytes.i32(0)?, bytes.i32(4)?),
        Memory::Polled => {
            let polled = piece.bytes.chunks_exact(8).map(Bytes);
            let polled = polled.map(|one| {
                let fd = one.i32(0)?;
                if fd < 0 {
                    return Some(format!("{{fd={fd}}}"));
                }
                let events = flags::POLL.text(one.u16(4)?);
                Some(format!("{{fd={fd}, events={events}}}"))
            });
            list(polled.collect::<Option<_>>()?, piece.is_whole)
        }
        Memory::Epoll => epoll(&bytes)?,
        Memory::EpollList => {
            let events = piece.bytes.chunks_exact(12);
            let events = events.map(|one| epoll(&Bytes(one)));
            list(events.collect::<Option<_>>()?, piece.is_whole)
        }
        Memory::Socket => socket(&piece.bytes)?,
        Memory::Limits => {
            let (soft, hard) = (limit(bytes.u64(0)?), limit(bytes.u64(8)?));
            format!("{{rlim_cur={soft}, rlim_max={hard}}}")
        }
        Memory::Status => status(bytes.i32(0)?),
        Memory::SignalInfo => {
            let (pid, uid) = (bytes.i32(12)?, bytes.u32(16)?);
            let code = match bytes.i32(8)? {
                libc::CLD_EXITED => "CLD_EXITED",
                libc::CLD_KILLED => "CLD_KILLED",
                libc::CLD_DUMPED => "CLD_DUMPED",
                libc::CLD_TRAPPED => "CLD_TRAPPED",
                libc::CLD_STOPPED => "CLD_STOPPED",
                libc::CLD_CONTINUED => "CLD_CONTINUED",
                _ => return None,
            };
            let given = bytes.u32(24)?;
            let status = match code {
                "CLD_EXITED" => given.to_string(),
                _ => flags::signal(given),
            };
            format!(
                "{{si_signo=SIGCHLD, si_code={code}, si_pid={pid}, si_uid={uid}, \
                 si_status={status}, ...}}"
            )
        }
        Memory::System => {
            let field = |at: usize| {
                let field = piece.bytes.get(at..at + 65)?;
                let text = field.split(|byte| *byte == 0).next()?;
                Some(quoted(text, true))
            };
            format!("{{sysname={}, nodename={}, ...}}", field(0)?, field(65)?)
        }
        Memory::SignalSet => signals(bytes.u64(0)?),
        Memory::SignalAction => action(&bytes)?,
        Memory::Processors => {
            let bits = (0..8 * piece.bytes.len()).filter(|bit| {
                let byte = piece.bytes.get(bit / 8);
                byte.is_some_and(|byte| byte >> (bit % 8) & 1 != 0)
            });
            let bits: Vec<String> = bits.map(|bit| bit.to_string()).collect();
            format!("[{}]", bits.join(" "))
        }
        Memory::Environment | Memory::Length | Memory::Buffers | Memory::OptionValue => {
            return None;
        }
    })
}

fn list(mut parts: Vec<String>, is_whole: bool) -> String {
    if !is_whole {
        parts.push("...".to_owned());
    }
    format!("[{}]", parts.join(", "))
}

/// Formats ready descriptors, with their events.
pub(super) fn ready(piece: &Piece) -> String {
    let polled = piece.bytes.chunks_exact(8).map(Bytes);
    let polled = polled.filter_map(|one| {
        let (fd, events) = (one.i32(0)?, one.u16(6)?);
        let events = (events != 0).then(|| flags::POLL.text(events))?;
        Some(format!("{{fd={fd}, revents={events}}}"))
    });
    list(polled.collect(), piece.is_whole)
}

/// Returns the length that a call was given and the one that it returns, if they differ.
pub(super) fn lengths(call: &SystemCall, nth: usize) -> Option<String> {
    let pieces = call.pieces.iter().filter(|piece| piece.arg == nth);
    let lengths = pieces.map(|piece| Bytes(&piece.bytes).u32(0));
    let mut lengths = lengths.collect::<Option<Vec<u64>>>()?;
    lengths.dedup();
    let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
    Some(format!("[{}]", lengths.join(" => ")))
}

/// Formats buffers with their data.
pub(super) fn buffers(call: &SystemCall, nth: usize, most: usize) -> Option<String> {
    let of = |wanted: Option<usize>| {
        let mut pieces = call.pieces.iter();
        pieces.find(|piece| piece.arg == nth && piece.buffer == wanted)
    };
    let vectors = of(None)?;
    let all = vectors.bytes.chunks_exact(16).map(Bytes).enumerate();
    let all = all.map(|(index, vector)| {
        let (base, len) = (vector.u64(0)?, vector.u64(8)?);
        let base = match of(Some(index)) {
            Some(piece) => data(piece, most),
            None => address(base),
        };
        Some(format!("{{iov_base={base}, iov_len={len}}}"))
    });
    Some(list(all.collect::<Option<_>>()?, vectors.is_whole))
}

/// Formats the value of a socket option.
pub(super) fn option(call: &SystemCall, piece: &Piece) -> Option<String> {
    let bytes = Bytes(&piece.bytes);
    let (level, option) = (call.args[1] as i32, call.args[2] as i32);
    Some(match (level, option, piece.bytes.len()) {
        (libc::SOL_SOCKET, libc::SO_LINGER, 8) => {
            let (on, time) = (bytes.i32(0)?, bytes.i32(4)?);
            format!("{{l_onoff={on}, l_linger={time}}}")
        }
        (_, _, 4) => format!("[{}]", bytes.i32(0)?),
        _ => data(piece, usize::MAX),
    })
}

fn mode(mode: u64) -> String {
    let kind = match mode as libc::mode_t & libc::S_IFMT {
        libc::S_IFREG => "S_IFREG",
        libc::S_IFDIR => "S_IFDIR",
        libc::S_IFLNK => "S_IFLNK",
        libc::S_IFCHR => "S_IFCHR",
        libc::S_IFBLK => "S_IFBLK",
        libc::S_IFIFO => "S_IFIFO",
        libc::S_IFSOCK => "S_IFSOCK",
        _ => return format!("{mode:#o}"),
    };
    let mut text = kind.to_owned();
    for (name, bit) in [
        ("S_ISUID", 0o4000),
        ("S_ISGID", 0o2000),
        ("S_ISVTX", 0o1000),
    ] {
        if mode & bit != 0 {
            write!(text, "|{name}").expect("a text");
        }
    }
    write!(text, "|0{:03o}", mode & 0o777).expect("a text");
    text
}

fn file(bits: u64, device: u64, size: &str, prefix: &str) -> String {
    let kind = bits as libc::mode_t & libc::S_IFMT;
    let what = match kind {
        libc::S_IFCHR | libc::S_IFBLK => {
            let [major, minor] = [libc::major(device), libc::minor(device)];
            let [major, minor] = [major, minor].map(|it| hex(it.into()));
            format!("{prefix}rdev=makedev({major}, {minor})")
        }
        _ => format!("{prefix}size={size}"),
    };
    format!("{{{prefix}mode={}, {what}, ...}}", mode(bits))
}

fn time(bytes: &Bytes<'_>, at: usize, part: &str) -> Option<String> {
    let (seconds, rest) = (bytes.i64(at)?, bytes.i64(at + 8)?);
    Some(format!("{{tv_sec={seconds}, tv_{part}={rest}}}"))
}

fn interval(bytes: &Bytes<'_>, part: &str) -> Option<String> {
    let (interval, first) = (time(bytes, 0, part)?, time(bytes, 16, part)?);
    Some(format!("{{it_interval={interval}, it_value={first}}}"))
}

fn epoll(bytes: &Bytes<'_>) -> Option<String> {
    let events = flags::EPOLL_EVENTS.text(bytes.u32(0)?);
    let (low, data) = (bytes.u32(4)?, bytes.u64(4)?);
    Some(format!(
        "{{events={events}, data={{u32={low}, u64={data}}}}}"
    ))
}

fn socket(bytes: &[u8]) -> Option<String> {
    let words = Bytes(bytes);
    let family = words.u16(0)?;
    let name = flags::FAMILY.text(family);
    let port = || Some(u16::from_be_bytes(words.array(2)?));
    let more = match family as i32 {
        libc::AF_UNIX => {
            let path = bytes.get(2..)?;
            match path {
                [] => String::new(),
                [0, name @ ..] => format!(", sun_path=@{}", quoted(name, true)),
                path => {
                    let path = path.split(|byte| *byte == 0).next()?;
                    format!(", sun_path={}", quoted(path, true))
                }
            }
        }
        libc::AF_INET => {
            let host = Ipv4Addr::from(words.array::<4>(4)?);
            format!(
                ", sin_port=htons({}), sin_addr=inet_addr(\"{host}\")",
                port()?
            )
        }
        libc::AF_INET6 => {
            let host = Ipv6Addr::from(words.array::<16>(8)?);
            let (flow, scope) = (u32::from_be_bytes(words.array(4)?), words.u32(24)?);
            format!(
                ", sin6_port=htons({}), sin6_flowinfo=htonl({flow}), \
                 inet_pton(AF_INET6, \"{host}\", &sin6_addr), sin6_scope_id={scope}",
                port()?
            )
        }
        libc::AF_NETLINK => {
            let (port, groups) = (words.i32(4)?, words.u32(8)?);
            format!(", nl_pid={port}, nl_groups={groups:08x}")
        }
        _ => format!(", sa_data={}", quoted(bytes.get(2..)?, true)),
    };
    Some(format!("{{sa_family={name}{more}}}"))
}

fn limit(value: u64) -> String {
    match value {
        u64::MAX => "RLIM64_INFINITY".to_owned(),
        value if value > 1024 && value.is_multiple_of(1024) => format!("{}*1024", value / 1024),
        value => value.to_string(),
    }
}

fn status(status: i32) -> String {
    if libc::WIFEXITED(status) {
        let code = libc::WEXITSTATUS(status);
        return format!("[{{WIFEXITED(s) && WEXITSTATUS(s) == {code}}}]");
    }
    if libc::WIFSIGNALED(status) {
        let signal = flags::signal(libc::WTERMSIG(status) as u64);
        let core = if libc::WCOREDUMP(status) {
            " && WCOREDUMP(s)"
        } else {
            ""
        };
        return format!("[{{WIFSIGNALED(s) && WTERMSIG(s) == {signal}{core}}}]");
    }
    if libc::WIFSTOPPED(status) {
        let signal = flags::signal(libc::WSTOPSIG(status) as u64);
        return format!("[{{WIFSTOPPED(s) && WSTOPSIG(s) == {signal}}}]");
    }
    if libc::WIFCONTINUED(status) {
        return "[{WIFCONTINUED(s)}]".to_owned();
    }
    format!("[{status}]")
}

/// Formats a set of signals; of most signals, those that are missing.
fn signals(set: u64) -> String {
    let is_inverted = set.count_ones() > 32;
    let shown = if is_inverted { !set } else { set };
    let names = (1..=64).filter(|signal| shown >> (signal - 1) & 1 != 0);
    let names = names.map(|number| {
        let name = flags::signal(number);
        name.strip_prefix("SIG").unwrap_or(&name).to_owned()
    });
    let names: Vec<String> = names.collect();
    format!(
        "{}[{}]",
        if is_inverted { "~" } else { "" },
        names.join(" ")
    )
}

fn action(bytes: &Bytes<'_>) -> Option<String> {
    let handler = match bytes.u64(0)? {
        0 => "SIG_DFL".to_owned(),
        1 => "SIG_IGN".to_owned(),
        handler => hex(handler),
    };
    let flags = bytes.u64(8)?;
    let (names, mask) = (flags::ACTION.text(flags), signals(bytes.u64(24)?));
    let restorer = match flags & 0x400_0000 {
        0 => String::new(),
        _ => format!(", sa_restorer={}", address(bytes.u64(16)?)),
    };
    Some(format!(
        "{{sa_handler={handler}, sa_mask={mask}, sa_flags={names}{restorer}}}"
    ))
}
