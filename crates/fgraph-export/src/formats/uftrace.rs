//! uftrace's directory: a file of records for each thread, and texts that describe them.
//!
//! ```text
//!   record    time (8 bytes), then bits: type 2, more 1, magic 3, depth 10, address 48
//! ```
//!
//! An address is the base of its module (number + 1, times 4 GiB) plus 16 bytes for each function.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fgraph_analysis::calls::{At, Call, Functions, Open, Slot, ThreadId, Visitor, one_line};
use fgraph_trace::names::process_id;

use super::text::Appender;
use crate::names::base_name;
use crate::output::{Output, Trace};

const ENTRY: u64 = 0;
const EXIT: u64 = 1;
const LOST: u64 = 2;
const MAGIC: u64 = 5;
/// Greatest depth: the format has ten bits for it.
const MAX_DEPTH: usize = 1023;
const MODULE_SHIFT: u32 = 32;
const FUNCTION_SHIFT: u32 = 4;
/// Characters of the command line: uftrace reads lines of at most 4,096 bytes.
const MAX_COMMAND: usize = 1000;
/// Bytes that are held in memory for each thread.
const BUFFER: usize = 16 << 10;
/// Name of the only session, 16 hexadecimal digits.
const SESSION: &str = "0000000000000001";

pub(crate) struct Uftrace {
    directory: PathBuf,
    /// Index of the file of each thread.
    threads: Vec<usize>,
    files: Vec<State>,
    /// Index of the file of each id.
    by_id: HashMap<u32, usize>,
}

/// File of all threads with one id: those of the programs that a process has executed.
struct State {
    file: Appender,
    thread: ThreadId,
    depth: usize,
    start: u64,
}

impl State {
    fn record(&mut self, time: u64, kind: u64, address: u64) -> io::Result<()> {
        let word = kind | MAGIC << 3 | (self.depth as u64) << 6 | address << 16;
        let buffer = &mut self.file.buffer;
        buffer.extend_from_slice(&time.to_le_bytes());
        buffer.extend_from_slice(&word.to_le_bytes());
        if buffer.len() >= BUFFER {
            self.file.flush()?;
        }
        Ok(())
    }
}

fn address(functions: &Functions, symbol: Slot) -> u64 {
    let module = functions.module_number(symbol) as u64;
    module_address(module) + offset(symbol)
}

fn module_address(module: u64) -> u64 {
    (module + 1) << MODULE_SHIFT
}

fn offset(symbol: Slot) -> u64 {
    (u64::from(symbol) + 1) << FUNCTION_SHIFT
}

impl Uftrace {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            threads: Vec::new(),
            files: Vec::new(),
            by_id: HashMap::new(),
        }
    }

    fn state(&mut self, at: &At<'_>) -> &mut State {
        &mut self.files[self.threads[at.thread.index]]
    }

    /// Writes the modules and their functions.
    fn write_symbols(&self, trace: &Trace<'_>) -> io::Result<Vec<String>> {
        let functions = trace.functions;
        let mut members: Vec<Vec<Slot>> = vec![Vec::new(); functions.modules().len()];
        for symbol in 0..functions.len() as Slot {
            members[functions.module_number(symbol)].push(symbol);
        }
        let (mut map, mut paths) = (String::new(), Vec::<String>::new());
        let mut taken = HashSet::new();
        for ((module, path), members) in (0..).zip(functions.modules()).zip(members) {
            let mut path = match path.as_str() {
                "" => "unknown".to_owned(),
                path => one_line(path).replace(' ', "_"),
            };
            // Files of symbols are found only by the last part of the path.
            while !taken.insert(base_name(&path).to_owned()) {
                let _ = write!(path, "~{module}");
            }
            let start = module_address(module);
            let last = members.last().map_or(0, |&symbol| offset(symbol));
            let end = start + ((last + 0x1fff) & !0xfff);
            let _ = writeln!(
                map,
                "{start:x}-{end:x} r-xp 00000000 00:00 0                          {path}"
            );
            let mut text = format!("# symbols: {}\n# path name: {path}\n", members.len() + 1);
            for symbol in members {
                let name = one_line(functions.name(symbol));
                let _ = writeln!(text, "{:016x} T {name}", offset(symbol));
            }
            let _ = writeln!(text, "{:016x} ? __func_end", last + (1 << FUNCTION_SHIFT));
            let name = format!("{}.sym", base_name(&path));
            fs::write(self.directory.join(name), text)?;
            paths.push(path);
        }
        map.push_str("7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0                          ");
        map.push_str("[stack]\n");
        fs::write(self.directory.join(format!("sid-{SESSION}.map")), map)?;
        Ok(paths)
    }

    fn write_tasks(&self, trace: &Trace<'_>, program: &str) -> io::Result<()> {
        let mut text = String::new();
        let mut known = HashSet::new();
        let time = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        for state in &self.files {
            let thread = &state.thread;
            let (process, id, start) = (thread.process_id(), thread.id, time(state.start));
            if known.insert(process) {
                let parent = trace.names.process(thread.process);
                let parent = parent.map(|(parent, _)| process_id(parent));
                match parent.filter(|parent| known.contains(parent) && *parent != process) {
                    Some(parent) => {
                        let _ =
                            writeln!(text, "FORK timestamp={start} pid={process} ppid={parent}");
                    }
                    None => {
                        let _ = writeln!(
                            text,
                            "SESS timestamp={} pid={process} sid={SESSION} exename=\"{program}\"\n\
                             TASK timestamp={start} tid={process} pid={process}",
                            time(trace.start)
                        );
                    }
                }
            }
            if id != process {
                let _ = writeln!(text, "TASK timestamp={start} tid={id} pid={process}");
            }
        }
        fs::write(self.directory.join("task.txt"), text)
    }

    fn write_info(&self, trace: &Trace<'_>, program: &str) -> io::Result<()> {
        // Bits of the format for the fields of the texts below.
        const EXE_NAME: u64 = 1 << 0;
        const COMMAND: u64 = 1 << 3;
        const TASKS: u64 = 1 << 7;
        const TASK_SESSION: u64 = 1 << 1;
        const RELATIVE_SYMBOLS: u64 = 1 << 5;
        const MAX_STACK: u64 = 1 << 6;
        let mut info = Vec::new();
        info.extend_from_slice(b"Ftrace!\0");
        info.extend_from_slice(&4_u32.to_le_bytes());
        info.extend_from_slice(&40_u16.to_le_bytes());
        // Little endian, 64 bits.
        info.extend_from_slice(&[1, 2]);
        let features = TASK_SESSION | RELATIVE_SYMBOLS | MAX_STACK;
        info.extend_from_slice(&features.to_le_bytes());
        info.extend_from_slice(&(EXE_NAME | COMMAND | TASKS).to_le_bytes());
        info.extend_from_slice(&(MAX_DEPTH as u16 + 1).to_le_bytes());
        info.extend_from_slice(&[0; 6]);
        let ids = self.files.iter().map(|state| state.thread.id.to_string());
        let ids: Vec<String> = ids.collect();
        let command = trace.command_line().unwrap_or_else(|| "fgraph".to_owned());
        let command: String = command.chars().take(MAX_COMMAND).collect();
        let text = format!(
            "exename:{program}\ncmdline:{command}\ntaskinfo:lines=2\ntaskinfo:nr_tid={}\n\
             taskinfo:tids={}\n",
            ids.len(),
            ids.join(",")
        );
        info.extend_from_slice(text.as_bytes());
        fs::write(self.directory.join("info"), info)
    }
}

impl Visitor for Uftrace {
    type Error = io::Error;

    fn thread(&mut self, at: &At<'_>) -> io::Result<()> {
        let id = at.thread.id;
        let index = *self.by_id.entry(id).or_insert(self.files.len());
        if index == self.files.len() {
            self.files.push(State {
                file: Appender::new(self.directory.join(format!("{id}.dat"))),
                thread: at.thread,
                depth: 0,
                start: at.time,
            });
        }
        self.threads.push(index);
        Ok(())
    }

    fn enter(&mut self, at: &At<'_>, call: &Open) -> io::Result<()> {
        let symbol = call.data;
        let state = self.state(at);
        if state.depth < MAX_DEPTH {
            state.record(at.time, ENTRY, address(at.functions, symbol))?;
        }
        state.depth += 1;
        Ok(())
    }

    fn exit(&mut self, at: &At<'_>, call: &Call) -> io::Result<()> {
        let state = self.state(at);
        state.depth = state.depth.saturating_sub(1);
        if state.depth < MAX_DEPTH {
            state.record(at.time, EXIT, address(at.functions, call.slot))?;
        }
        Ok(())
    }

    fn lost(&mut self, at: &At<'_>, events: u64) -> io::Result<()> {
        let state = self.state(at);
        state.record(at.time, LOST, events & ((1 << 48) - 1))
    }
}

impl Output for Uftrace {
    fn finish(mut self: Box<Self>, trace: &Trace<'_>) -> io::Result<()> {
        for state in &mut self.files {
            state.file.flush()?;
        }
        let paths = self.write_symbols(trace)?;
        let program = trace.program().or(paths.first().map(String::as_str));
        let program = program.unwrap_or("unknown");
        self.write_tasks(trace, program)?;
        self.write_info(trace, program)?;
        fs::write(self.directory.join("default.opts"), "")
    }
}
