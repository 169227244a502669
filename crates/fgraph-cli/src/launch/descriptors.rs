//! The open files, pipes and connections of a program's processes, from `/proc`; and the names of
//! threads that were renamed after their first call.
//!
//! They are read again and again while the program runs, so those that are closed soon have no
//! name.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use fgraph_trace::clock::{Anchor, Clock};
use fgraph_trace::names::{Description, DescriptionKind, Names, process_id};

/// The shortest time between two looks, and the longest.
const PERIODS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// Looking takes one part in this many of a processor's time, unless the period is the longest.
const SHARE: u32 = 50;
/// The most descriptors of a process that are named.
const MOST: usize = 4096;
/// The state of a socket that listens, in the kernel's tables.
const LISTENS: &str = "0A";

/// The descriptors that are known, and the processes to look at.
#[derive(Debug)]
pub(crate) struct Descriptors {
    processes: Vec<u32>,
    /// The number of descriptions that were searched for processes.
    searched: usize,
    /// The target of each descriptor's link, by process and number, and true if it has a name.
    known: HashMap<(u32, u32), (String, bool)>,
    /// The name of each thread.
    threads: HashMap<u32, String>,
    next: Instant,
}

impl Descriptors {
    /// Makes it for processes, and for their children once they are described.
    pub(crate) fn of(processes: &[u32]) -> Self {
        Self {
            processes: processes.to_owned(),
            searched: 0,
            known: HashMap::new(),
            threads: HashMap::new(),
            next: Instant::now(),
        }
    }

    /// Returns the names of descriptors that are new, if it is time to look or if it `must`.
    pub(crate) fn look(&mut self, names: &Names, clock: Clock, must: bool) -> Vec<Description> {
        let begin = Instant::now();
        if begin < self.next && !must {
            return Vec::new();
        }
        let new = names.descriptions().get(self.searched..).unwrap_or(&[]);
        self.searched += new.len();
        for description in new {
            let process = process_id(description.fields[0] as u32);
            let is_process = description.kind == DescriptionKind::Process;
            if is_process && !self.processes.contains(&process) {
                self.processes.push(process);
            }
        }
        let now = Anchor::now(clock.kind()).ticks;
        let mut found = Vec::new();
        for process in std::mem::take(&mut self.processes) {
            if self.look_at(process, now, &mut found) {
                self.processes.push(process);
                self.look_at_threads(process, now, &mut found);
            }
        }
        self.next = begin + (begin.elapsed() * SHARE).clamp(PERIODS[0], PERIODS[1]);
        found
    }

    /// Looks at one process; returns false if it is gone.
    fn look_at(&mut self, process: u32, now: u64, found: &mut Vec<Description>) -> bool {
        let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else {
            return false;
        };
        let mut open = Vec::new();
        for entry in entries.flatten().take(MOST) {
            let number: Option<u32> = entry.file_name().to_str().and_then(|it| it.parse().ok());
            if let (Some(number), Ok(target)) = (number, fs::read_link(entry.path())) {
                open.push((number, target.to_string_lossy().into_owned()));
            }
        }
        let numbers: HashSet<u32> = open.iter().map(|(number, _)| *number).collect();
        self.known
            .retain(|(of, number), _| *of != process || numbers.contains(number));
        let mut sockets = None;
        for (number, target) in &open {
            let known = self.known.get(&(process, *number));
            if known.is_some_and(|(known, is_named)| known == target && *is_named) {
                continue;
            }
            let name = match inode(target, "socket:[") {
                Some(inode) => {
                    let sockets = sockets.get_or_insert_with(|| Sockets::read(process));
                    sockets.name(inode)
                }
                None if target.starts_with("pipe:[") => Some(pipe(*number, target, &open)),
                None => Some(target.clone()),
            };
            self.known
                .insert((process, *number), (target.clone(), name.is_some()));
            found.extend(name.map(|name| Description {
                kind: DescriptionKind::Descriptor,
                fields: [process.into(), (*number).into(), now, 0],
                texts: [name, String::new()],
            }));
        }
        true
    }

    /// Looks at the names of a process's threads.
    fn look_at_threads(&mut self, process: u32, now: u64, found: &mut Vec<Description>) {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let thread: Option<u32> = task.file_name().to_str().and_then(|it| it.parse().ok());
            let name = fs::read_to_string(task.path().join("comm"));
            let (Some(thread), Ok(name)) = (thread, name) else {
                continue;
            };
            let name = name.trim_end_matches('\n').to_owned();
            if self.threads.get(&thread) == Some(&name) {
                continue;
            }
            self.threads.insert(thread, name.clone());
            found.push(Description {
                kind: DescriptionKind::Thread,
                fields: [process.into(), thread.into(), now, 0],
                texts: [name, String::new()],
            });
        }
    }
}

/// Returns the number in the target of a link.
fn inode(target: &str, before: &str) -> Option<u64> {
    target.strip_prefix(before)?.strip_suffix(']')?.parse().ok()
}

/// Names a pipe by the descriptors of its other end, if these are in the same process.
fn pipe(number: u32, target: &str, open: &[(u32, String)]) -> String {
    let others = open.iter().filter(|(of, it)| it == target && *of != number);
    let others: Vec<String> = others.map(|(of, _)| of.to_string()).collect();
    match &others[..] {
        [] => target.to_owned(),
        [one] => format!("the pipe of descriptors {number} and {one}"),
        more => format!("the pipe of descriptors {number}, {}", more.join(", ")),
    }
}

/// The names of sockets, by inode.
#[derive(Debug, Default)]
struct Sockets(HashMap<u64, String>);

impl Sockets {
    /// Reads the sockets in the network namespace of a process.
    fn read(process: u32) -> Self {
        let mut all = HashMap::new();
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let text = fs::read_to_string(format!("/proc/{process}/net/{table}"));
            add_connections(&text.unwrap_or_default(), &mut all);
        }
        let text = fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace().skip(6);
            let inode = fields.next().and_then(|it| it.parse().ok());
            let name = match fields.next() {
                Some(path) => format!("the socket {path}"),
                None => "a socket of this machine".to_owned(),
            };
            all.extend(inode.map(|inode| (inode, name)));
        }
        Self(all)
    }

    fn name(&self, inode: u64) -> Option<String> {
        self.0.get(&inode).cloned()
    }
}

/// Adds the connections of one of the kernel's tables.
fn add_connections(text: &str, all: &mut HashMap<u64, String>) {
    let mut lines = Vec::new();
    let mut listening = HashSet::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, peer, state, _, _, _, _, _, inode, ..] = fields[..] else {
            continue;
        };
        let places = address(local).zip(address(peer));
        if let (Some((local, peer)), Ok(inode)) = (places, inode.parse()) {
            if state == LISTENS {
                listening.insert(local.port());
            }
            lines.push((local, peer, inode));
        }
    }
    for (local, peer, inode) in lines {
        let name = match (peer.port(), listening.contains(&local.port())) {
            (0, _) => format!("the socket at {local}"),
            // The port of a client tells nothing.
            (_, true) => format!("a client of {local}"),
            (_, false) => format!("the connection to {peer}"),
        };
        all.insert(inode, name);
    }
}

/// Parses an address of the kernel's tables: hexadecimal words of the processor, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use fgraph_trace::clock::ClockKind;

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1
   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000 0 0 12 1
   2: 0100007F:D431 0100007F:2329 01 00000000:00000000 00:00000000 00000000 0 0 13 1
   3: broken
";

    #[test]
    fn connections_are_named_by_their_server() {
        let mut all = HashMap::new();
        add_connections(TABLE, &mut all);
        assert_eq!(all[&11], "the socket at 127.0.0.1:8080");
        assert_eq!(all[&12], "a client of 127.0.0.1:8080");
        assert_eq!(all[&13], "the connection to 127.0.0.1:9001");
        assert_eq!(all.len(), 3);
        let mapped = address("0000000000000000FFFF00000100007F:0050");
        assert_eq!(mapped, "127.0.0.1:80".parse().ok());
        assert_eq!(address("01:50"), None);
    }

    #[test]
    fn open_files_of_a_process_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let process = std::process::id();
        let mut descriptors = Descriptors::of(&[process]);
        let clock = Clock::start(ClockKind::of_this_machine());
        let names = Names::new(process);
        let found = descriptors.look(&names, clock, true);
        let name = |fd: &dyn std::os::fd::AsRawFd| {
            let number = fd.as_raw_fd() as u64;
            let found = found.iter().find(|it| it.fields[1] == number);
            found.map(|it| it.texts[0].clone())
        };
        assert_eq!(name(&file).as_deref(), file.path().to_str());
        let pipe = name(&reader).unwrap();
        assert!(pipe.starts_with("the pipe of descriptors "), "{pipe}");
        assert!(name(&writer).is_some());
    }
}
