//! Names of code that programs generate, from the files that they write for perf.
//!
//! A JIT writes the names of its functions to one of these files:
//!
//! ```text
//!   /tmp/perf-PID.map   a line for each function: START SIZE NAME, in hexadecimal
//!   jit-PID.dump        records with a head; the program maps a page of it, so /proc/PID/maps
//!                       has its path
//! ```
//!
//! PID is the number that the process has in its own namespace, and the paths are those of its own
//! root. The files are another program's: they are found without leaving that root, must belong to
//! the user of the process or to root, and are read up to [`LONGEST`]. A file that was last written
//! before its process began is one of an earlier process with this number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fgraph_analysis::addresses::module_at;
use fgraph_trace::names::{Description, DescriptionKind, Names, process_id};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::time::{ClockId, clock_gettime};

use crate::text::file_name;

/// The most bytes of a file that are read.
const LONGEST: u64 = 64 << 20;
/// The most functions of a process that are known, and that are written to a recording.
const MOST: usize = 1 << 20;
const MOST_DESCRIBED: usize = 1 << 16;
/// The most bytes of a name.
const LONGEST_NAME: usize = 1024;
/// The most processes whose files are looked for.
const MOST_PROCESSES: usize = 1024;
/// The number of ancestors of a process whose code is searched.
const ANCESTORS: usize = 16;
/// The shortest time between two looks, and the longest.
const PERIODS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// Looking takes one part in this many of a processor's time, unless the period is the longest.
const SHARE: u32 = 100;
/// The clock ticks of `/proc` in a second.
const USER_HZ: u64 = 100;
/// Seconds by which the time of a process's beginning may be too late.
const ROUNDED: u64 = 2;
/// The most bytes of a list of mappings that are searched.
const LONGEST_LIST: u64 = 16 << 20;

/// Finds the names of generated code of processes that run, or that ran when they were looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generated(Arc<Mutex<Processes>>);

#[derive(Debug, Default)]
struct Processes {
    all: HashMap<u32, Process>,
    next: Option<Instant>,
}

/// A function of generated code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GeneratedName {
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// The name, which is hostile text.
    pub(crate) name: String,
    /// The name of the file that has it.
    pub(crate) file: String,
}

impl Generated {
    /// Looks for files of processes, if it is time to do so or if it `must`. A file that was found
    /// can be read after its process has ended.
    pub(crate) fn look(&self, processes: impl IntoIterator<Item = u32>, must: bool) {
        let mut this = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !must && this.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let begin = processor_time();
        for process in processes {
            this.follow(process);
        }
        this.all.values_mut().for_each(Process::look);
        let taken = processor_time().saturating_sub(begin);
        this.next = Some(Instant::now() + (taken * SHARE).clamp(PERIODS[0], PERIODS[1]));
    }

    /// Returns the function that contains an address, of a process or of one that it was forked
    /// from: its memory has the code of that one.
    pub(crate) fn find(&self, names: &Names, process: u32, address: u64) -> Option<GeneratedName> {
        let mut process = process;
        for _ in 0..ANCESTORS {
            if let found @ Some(_) = self.find_in(process, address) {
                return found;
            }
            let (parent, _) = names.process(process)?;
            process = Some(parent).filter(|&it| it != 0 && it != process)?;
        }
        None
    }

    fn find_in(&self, process: u32, address: u64) -> Option<GeneratedName> {
        let mut this = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let process = this.follow(process_id(process))?;
        process.look();
        process.find(address)
    }

    /// Describes the functions to which the stacks of a recording return and that are in no module.
    pub(crate) fn describe(&self, names: &Names) -> Vec<Description> {
        let mut described = Vec::new();
        let (mut seen, mut starts) = (HashSet::new(), HashSet::new());
        for stack in names.descriptions() {
            if stack.kind != DescriptionKind::Stack || described.len() >= MOST_DESCRIBED {
                continue;
            }
            let [process, number, ..] = stack.fields;
            let process = process as u32;
            for address in names.stack(process, number).unwrap_or_default() {
                // A call may be the last instruction of a function.
                let call = address.saturating_sub(1);
                if !seen.insert((process, call))
                    || names.generated(process, call).is_some()
                    || module_at(names, process, call).is_some()
                {
                    continue;
                }
                let Some(found) = self.find(names, process, call) else {
                    continue;
                };
                // One description does for all addresses of a function.
                if starts.insert((process, found.start)) {
                    described.push(Description {
                        kind: DescriptionKind::Generated,
                        fields: [process.into(), found.start, found.size, 0],
                        texts: [found.name, found.file],
                    });
                }
            }
        }
        described
    }
}

impl Processes {
    /// Returns a process, whose files can be looked for even after its end if it runs now.
    fn follow(&mut self, process: u32) -> Option<&mut Process> {
        if !self.all.contains_key(&process) {
            if self.all.len() >= MOST_PROCESSES {
                return None;
            }
            self.all.insert(process, Process::open(process)?);
        }
        self.all.get_mut(&process)
    }
}

/// A process that may generate code.
#[derive(Debug)]
struct Process {
    id: u32,
    /// Its root directory.
    root: File,
    /// The number that it has in its own namespace, and its effective user.
    own_id: u32,
    user: u32,
    /// Seconds since 1970 at which it began.
    began: u64,
    map: Option<Source>,
    dump: Option<Source>,
    code: Code,
}

impl Process {
    fn open(id: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let (own_id, user) = facts(&status)?;
        let began = began(
            &fs::read_to_string(format!("/proc/{id}/stat")).ok()?,
            &fs::read_to_string("/proc/stat").ok()?,
        )?;
        let root = rustix::fs::open(
            format!("/proc/{id}/root"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        Some(Self {
            id,
            root: root.ok()?.into(),
            own_id,
            user,
            began,
            map: None,
            dump: None,
            code: Code::default(),
        })
    }

    /// Looks for files that are not open yet.
    fn look(&mut self) {
        if self.map.is_none() {
            let path = format!("tmp/perf-{}.map", self.own_id);
            self.map = self.file(&path);
        }
        if self.dump.is_none()
            && let Some(path) = self.dump_path()
        {
            self.dump = self.file(&path);
        }
    }

    /// Returns the path of the dump: the process has mapped a page of it as a sign.
    fn dump_path(&self) -> Option<String> {
        let mut list = String::new();
        let file = File::open(format!("/proc/{}/maps", self.id)).ok()?;
        file.take(LONGEST_LIST).read_to_string(&mut list).ok()?;
        let name = format!("/jit-{}.dump", self.own_id);
        let mut lines = list.lines();
        let line = lines.find(|line| line.ends_with(&name))?;
        Some(line[line.find('/')?..].to_owned())
    }

    /// Opens a file below the root of the process, if it may be read.
    fn file(&self, path: &str) -> Option<Source> {
        let path = path.trim_start_matches('/');
        // `NONBLOCK`, because opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.root, path, flags, Mode::empty(), how).ok()?;
        let file = File::from(file);
        let found = file.metadata().ok()?;
        let is_theirs = found.is_file() && (found.uid() == self.user || found.uid() == 0);
        let written = u64::try_from(found.mtime()).unwrap_or(0) + ROUNDED;
        let is_theirs = is_theirs && written >= self.began;
        is_theirs.then(|| Source {
            name: file_name(path).to_owned(),
            file,
            read: 0,
            rest: Vec::new(),
        })
    }

    fn find(&mut self, address: u64) -> Option<GeneratedName> {
        // The newest code is at the end of the files.
        self.read();
        let (start, code) = self.code.at(address)?;
        let source = match code.is_of_dump {
            true => self.dump.as_ref(),
            false => self.map.as_ref(),
        };
        Some(GeneratedName {
            start,
            size: code.end - start,
            name: code.name.clone(),
            file: source?.name.clone(),
        })
    }

    /// Reads the parts of the files that are new.
    fn read(&mut self) {
        if let Some(map) = &mut self.map
            && map.has_more()
        {
            let code = &mut self.code;
            map.read_with(|bytes| read_map(bytes, code));
        }
        if let Some(dump) = &mut self.dump
            && dump.has_more()
        {
            let code = &mut self.code;
            let mut is_begin = dump.read == 0;
            dump.read_with(|bytes| {
                let header = match std::mem::take(&mut is_begin) {
                    true => dump_header(bytes)?,
                    false => 0,
                };
                Some(header + read_dump(bytes.get(header..)?, code))
            });
        }
    }
}

/// Returns the time that this thread has run: how long it waits for a processor costs nobody any.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the number of a process in its own namespace and its effective user, from its `status`.
fn facts(status: &str) -> Option<(u32, u32)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let own_id = field("NSpid:").or_else(|| field("Pid:"))?;
    let own_id = own_id.split_whitespace().next_back()?.parse().ok()?;
    let user = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    Some((own_id, user))
}

/// Returns the second since 1970 in which a process began, from its `stat` and the system's.
fn began(of_process: &str, of_system: &str) -> Option<u64> {
    // The name of the program may have any character.
    let (_, fields) = of_process.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let mut lines = of_system.lines();
    let booted = lines.find_map(|line| line.strip_prefix("btime "))?;
    booted
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_add(ticks / USER_HZ)
}

/// A file with names, which grows.
#[derive(Debug)]
struct Source {
    name: String,
    file: File,
    /// The number of bytes that were read.
    read: u64,
    /// The last of these, which are the beginning of an entry.
    rest: Vec<u8>,
}

impl Source {
    fn has_more(&self) -> bool {
        let len = self.file.metadata().map_or(0, |found| found.len());
        len.min(LONGEST) > self.read
    }

    /// Reads what is new. `parse` takes it with the rest of earlier bytes, and returns the number
    /// of bytes of whole entries; `None` if the file is none of its kind, which is not read again.
    fn read_with(&mut self, mut parse: impl FnMut(&[u8]) -> Option<usize>) {
        let mut bytes = std::mem::take(&mut self.rest);
        let before = bytes.len();
        let new = self.read_new(&mut bytes);
        self.read += (bytes.len() - before) as u64;
        match new.ok().and_then(|()| parse(&bytes)) {
            Some(whole) => self.rest = bytes.split_off(whole.min(bytes.len())),
            None => self.read = LONGEST,
        }
    }

    fn read_new(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.read))?;
        file.take(LONGEST - self.read).read_to_end(bytes)?;
        Ok(())
    }
}

/// Generated code that is known, by address.
#[derive(Debug, Default)]
struct Code {
    functions: BTreeMap<u64, Function>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    end: u64,
    name: String,
    is_of_dump: bool,
}

impl Code {
    /// Adds a function, in place of older ones that it overlaps.
    fn add(&mut self, start: u64, size: u64, name: &[u8], is_of_dump: bool) {
        let Some(end) = start.checked_add(size.max(1)) else {
            return;
        };
        while let Some((&before, _)) = self.before(end).filter(|(_, it)| it.end > start) {
            self.functions.remove(&before);
        }
        if self.functions.len() < MOST {
            let name = &name[..name.len().min(LONGEST_NAME)];
            let name = String::from_utf8_lossy(name).into_owned();
            let function = Function {
                end,
                name,
                is_of_dump,
            };
            self.functions.insert(start, function);
        }
    }

    /// Returns the last function that begins before an address.
    fn before(&self, end: u64) -> Option<(&u64, &Function)> {
        self.functions.range(..end).next_back()
    }

    fn at(&self, address: u64) -> Option<(u64, &Function)> {
        let (&start, function) = self.before(address.checked_add(1)?)?;
        (address < function.end).then_some((start, function))
    }

    /// Moves a function to another address.
    fn shift(&mut self, from: u64, to: u64, size: u64) {
        if let Some(moved) = self.functions.remove(&from) {
            self.add(to, size, moved.name.as_bytes(), moved.is_of_dump);
        }
    }
}

/// Reads the whole lines of a map; returns the number of their bytes.
fn read_map(bytes: &[u8], code: &mut Code) -> Option<usize> {
    let whole = bytes
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    for line in bytes[..whole].split(|&byte| byte == b'\n') {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let mut number = || {
            let word = str::from_utf8(words.next()?).ok()?;
            u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
        };
        if let (Some(start), Some(size)) = (number(), number())
            && let Some(name) = words.next().filter(|name| !name.is_empty())
        {
            code.add(start, size, name, false);
        }
    }
    Some(whole)
}

/// "JiTD" of a machine with our order of bytes.
const MAGIC: u32 = 0x4a69_5444;
/// Bytes of the head of a record: kind, length, time.
const RECORD: usize = 16;
/// Kinds of records: a function, and its move to another address.
const LOAD: u32 = 0;
const MOVE: u32 = 1;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_ne_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_ne_bytes)
}

/// Returns the length of the header of a jitdump file; `None` if it is none.
fn dump_header(bytes: &[u8]) -> Option<usize> {
    let is_dump = word(bytes, 0)? == MAGIC && word(bytes, 4)? == 1;
    let len = word(bytes, 8)? as usize;
    (is_dump && (40..4096).contains(&len)).then_some(len)
}

/// Reads whole records of a jitdump file; returns the number of their bytes.
fn read_dump(bytes: &[u8], code: &mut Code) -> usize {
    let mut at = 0;
    while let Some(len) = word(bytes, at + 4) {
        let len = len as usize;
        let Some(record) = bytes
            .get(at..at.saturating_add(len))
            .filter(|_| len >= RECORD)
        else {
            // A damaged length leads nowhere: the rest is read again with what follows.
            break;
        };
        at += len;
        match word(record, 0) {
            // After the head: process, thread, address of the memory, of the code, its size, its
            // number; then the name, a zero, and the code.
            Some(LOAD) => {
                let numbers = long(record, RECORD + 16).zip(long(record, RECORD + 24));
                let name = record.get(RECORD + 40..).unwrap_or_default();
                let end = name.iter().position(|&byte| byte == 0);
                if let (Some((start, size)), Some(end)) = (numbers, end) {
                    code.add(start, size, &name[..end], true);
                }
            }
            // Process, thread, address of the memory, old and new address, size, number.
            Some(MOVE) => {
                let numbers = [16, 24, 32].map(|field| long(record, RECORD + field));
                if let [Some(from), Some(to), Some(size)] = numbers {
                    code.shift(from, to, size);
                }
            }
            _ => {}
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn found(code: &Code, address: u64) -> Option<(u64, &str)> {
        let (start, function) = code.at(address)?;
        Some((start, &function.name))
    }

    #[test]
    fn lines_of_a_map_are_functions() {
        let mut code = Code::default();
        let text =
            b"1000 10 py::f:/a b.py\n0x2000 0x8 g\nno line\n\n3000 zz h\n4000 4 \n5000 0 i\n60";
        let whole = read_map(text, &mut code).unwrap();
        assert_eq!(whole, text.len() - 2);
        assert_eq!(found(&code, 0xfff), None);
        assert_eq!(found(&code, 0x1000), Some((0x1000, "py::f:/a b.py")));
        assert_eq!(found(&code, 0x100f), Some((0x1000, "py::f:/a b.py")));
        assert_eq!(found(&code, 0x1010), None);
        assert_eq!(found(&code, 0x2007), Some((0x2000, "g")));
        assert_eq!(found(&code, 0x5000), Some((0x5000, "i")));
        assert_eq!(code.functions.len(), 3);
    }

    #[test]
    fn newer_code_replaces_the_older_code_that_it_overlaps() {
        let mut code = Code::default();
        for (start, size, name) in [
            (100, 50, "a"),
            (150, 10, "b"),
            (140, 15, "c"),
            (400, 10, "d"),
            (0, 1000, "e"),
            (500, 10, "f"),
            (u64::MAX, 5, "too long"),
        ] {
            code.add(start, size, name.as_bytes(), false);
            if name == "d" {
                let names = [120, 145, 158, 405].map(|address| found(&code, address));
                assert_eq!(names, [None, Some((140, "c")), None, Some((400, "d"))]);
            }
        }
        assert_eq!(found(&code, 505), Some((500, "f")));
        assert_eq!(code.functions.len(), 1);
        code.add(1, 1, &[b'x'; 5000], false);
        assert_eq!(found(&code, 1).unwrap().1.len(), LONGEST_NAME);
    }

    fn record(kind: u32, numbers: &[u64], rest: &[u8]) -> Vec<u8> {
        let len = RECORD + 8 + 8 * numbers.len() + rest.len();
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((len as u32).to_ne_bytes());
        bytes.extend([0; 16]);
        numbers.iter().for_each(|it| bytes.extend(it.to_ne_bytes()));
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn records_of_a_dump_are_functions() {
        let mut dump = record(LOAD, &[0, 0x1000, 0x10, 1], b"f\0code");
        dump.extend(record(LOAD, &[0, 0x2000, 0x10, 2], b"g\0code"));
        dump.extend(record(9, &[], b"unknown"));
        dump.extend(record(MOVE, &[0, 0x1000, 0x3000, 0x10, 1], b""));
        let whole = dump.len();
        dump.extend(&record(LOAD, &[0, 0x4000, 0x10, 3], b"h\0")[..20]);
        let mut code = Code::default();
        assert_eq!(read_dump(&dump, &mut code), whole);
        let names = [0x1008, 0x2008, 0x3008, 0x4000].map(|address| found(&code, address));
        let expected = [None, Some((0x2000, "g")), Some((0x3000, "f")), None];
        assert_eq!(names, expected);
        assert_eq!(dump_header(&dump), None);
        let header: Vec<u8> = [MAGIC, 1, 40, 62, 0, 1, 0, 0, 0, 0]
            .iter()
            .flat_map(|it| it.to_ne_bytes())
            .collect();
        assert_eq!(dump_header(&header), Some(40));
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let mut bytes = record(LOAD, &[0, 0x1000, 0x10, 1], b"f\0code");
        bytes.extend(b"1000 10 f\n");
        for at in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            let mut code = Code::default();
            assert!(read_dump(&flipped, &mut code) <= flipped.len());
            assert!(read_map(&flipped, &mut code).unwrap() <= flipped.len());
            _ = dump_header(&flipped);
        }
    }

    #[test]
    fn facts_of_a_process_are_read() {
        let status = "Name:\tx\nPid:\t900\nUid:\t1\t2\t3\t4\nNSpid:\t900\t7\n";
        assert_eq!(facts(status), Some((7, 2)));
        assert_eq!(facts("Pid:\t900\nUid:\t1\t2\t3\t4\n"), Some((900, 2)));
        assert_eq!(facts(""), None);
        let stat = "9 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 250 20 21";
        assert_eq!(began(stat, "cpu 1\nbtime 1000\n"), Some(1002));
        assert_eq!(began("", "btime 1000"), None);
    }

    #[test]
    fn a_file_of_an_earlier_process_is_not_read() {
        let (_folder, mut process, path) = process_with_map();
        let set = |seconds| {
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(time).unwrap();
        };
        set(process.began - 10);
        process.look();
        assert!(process.map.is_none());
        set(process.began);
        process.look();
        assert!(process.map.is_some());
    }

    /// A process whose root is a directory.
    fn process(root: &Path) -> Process {
        let mut process = Process::open(std::process::id()).unwrap();
        process.root = File::open(root).unwrap();
        process
    }

    /// Makes a process with a map of one function, and returns the path of the map.
    fn process_with_map() -> (tempfile::TempDir, Process, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let process = process(folder.path());
        let name = format!("tmp/perf-{}.map", process.own_id);
        let path = folder.path().join(name);
        fs::write(&path, "1000 10 f\n").unwrap();
        (folder, process, path)
    }

    #[test]
    fn files_are_found_below_the_root_alone_and_read_as_they_grow() {
        let folder = tempfile::tempdir().unwrap();
        let tmp = folder.path().join("tmp");
        fs::create_dir(&tmp).unwrap();
        let mut process = process(folder.path());
        let name = format!("perf-{}.map", process.own_id);
        let outside = folder.path().join("outside");
        fs::write(&outside, "1000 10 f\n").unwrap();
        // A link is not followed.
        symlink(&outside, tmp.join(&name)).unwrap();
        process.look();
        assert!(process.map.is_none());
        fs::remove_file(tmp.join(&name)).unwrap();
        let mut file = File::create(tmp.join(&name)).unwrap();
        process.look();
        assert_eq!(process.find(0x1001), None);
        write!(file, "1000 10 f\n2000 1").unwrap();
        assert_eq!(process.find(0x2001), None);
        let expected = GeneratedName {
            start: 0x1000,
            size: 0x10,
            name: "f".to_owned(),
            file: name.clone(),
        };
        assert_eq!(process.find(0x1001), Some(expected));
        writeln!(file, "0 g").unwrap();
        fs::remove_file(tmp.join(&name)).unwrap();
        assert_eq!(process.find(0x2001).unwrap().name, "g");
        // Nor is a directory on the way that leads out.
        fs::remove_dir(&tmp).unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(&name), "1000 10 f\n").unwrap();
        symlink(other.path(), &tmp).unwrap();
        process.map = None;
        process.look();
        assert!(process.map.is_none());
    }

    #[test]
    fn a_forked_child_has_the_code_of_its_parent() {
        let (_folder, parent, _) = process_with_map();
        let id = parent.id;
        let generated = Generated::default();
        generated.0.lock().unwrap().all.insert(id, parent);
        // No process has this number.
        let child = (1 << 22) - 1;
        let mut names = Names::new(id);
        assert!(generated.find(&names, child, 0x1001).is_none());
        for (process, parent) in [(child, id), (id, 0)] {
            names.add(Description {
                kind: DescriptionKind::Process,
                fields: [process.into(), parent.into(), 0, 0],
                texts: Default::default(),
            });
        }
        assert_eq!(generated.find(&names, child, 0x1001).unwrap().name, "f");
        assert!(generated.find(&names, child, 0x2000).is_none());
        // Stacks of the child alone need the name.
        let text: Vec<u8> = fgraph_trace::names::packed_address(0x1002).into();
        names.add(Description {
            kind: DescriptionKind::Stack,
            fields: [child.into(), 1, 0, 0],
            texts: [String::from_utf8(text).unwrap(), String::new()],
        });
        let [described] = &generated.describe(&names)[..] else {
            panic!("one function");
        };
        assert_eq!(described.fields, [child.into(), 0x1000, 0x10, 0]);
        names.add(described.clone());
        assert!(generated.describe(&names).is_empty());
    }

    #[test]
    fn a_file_of_another_user_is_not_read() {
        let (_folder, mut process, path) = process_with_map();
        if let Err(error) = std::os::unix::fs::chown(&path, Some(65534), None) {
            return fgraph_needs::skip!("no right to give a file to another user: {error}");
        }
        process.look();
        assert!(process.map.is_none());
        process.user = 65534;
        process.look();
        assert!(process.map.is_some());
    }
}
