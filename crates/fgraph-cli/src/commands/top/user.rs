//! The processes of this user that compute most.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::Duration;

use fgraph_trace::place::user;

/// The command of each process, by its id.
pub(super) type Commands = BTreeMap<u32, String>;

/// The time in which the processes are compared.
const COMPARED: Duration = Duration::from_millis(300);

/// A process, from its `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    command: String,
    parent: u32,
    session: u32,
    /// The number of its terminal; 0 for none.
    terminal: i64,
    /// Clock ticks for which it has run.
    ran: u64,
    /// Clock ticks since the start of the system at which it began.
    began: u64,
    /// True if it has ended.
    is_over: bool,
    /// Device and inode of its program; `None` if that is unknown.
    program: Option<(u64, u64)>,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        // The command may have any character.
        let (id, rest) = stat.split_once(" (")?;
        let (command, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |at: usize| fields.get(at).copied();
        let number = |at: usize| field(at)?.parse::<u64>().ok();
        Some(Self {
            id: id.parse().ok()?,
            command: command.to_owned(),
            parent: number(1)? as u32,
            session: number(3)? as u32,
            terminal: field(4)?.parse().ok()?,
            ran: number(11)?.saturating_add(number(12)?),
            began: number(19)?,
            is_over: matches!(field(0)?, "Z" | "X"),
            program: None,
        })
    }
}

/// Returns the processes of this user.
fn all() -> HashMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all = HashMap::new();
    for entry in entries {
        let path = entry.path();
        let is_ours = fs::read_to_string(path.join("status")).is_ok_and(|it| is_of(&it, user()));
        let stat = fs::read_to_string(path.join("stat"));
        let process = stat.ok().and_then(|stat| Process::parse(&stat));
        if let Some(mut process) = process.filter(|_| is_ours) {
            let program = fs::metadata(path.join("exe"));
            process.program = program.ok().map(|it| (it.dev(), it.ino()));
            all.insert(process.id, process);
        }
    }
    all
}

/// Returns true if a process runs with the rights of this user alone, by its `status`.
fn is_of(status: &str, user: u32) -> bool {
    let mut lines = status.lines();
    let ids = lines.find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id.parse() == Ok(user)))
}

/// Removes what must not be attached to: this command, the processes that it descends from and its
/// own children, commands of the same program, the first process, and those that have ended. Then
/// removes the processes of our terminal and session, and returns their number.
fn leave_out(all: &mut HashMap<u32, Process>, own: u32) -> u64 {
    let Some(this) = all.get(&own).cloned() else {
        return 0;
    };
    let mut related = HashSet::from([own]);
    let mut ancestor = this.parent;
    while ancestor != 0 && related.insert(ancestor) {
        ancestor = all.get(&ancestor).map_or(0, |it| it.parent);
    }
    all.retain(|id, it| {
        let is_same_program = it.program.is_some() && it.program == this.program;
        let is_related = related.contains(id) || it.parent == own;
        *id != 1 && !it.is_over && !is_related && !is_same_program && it.program.is_some()
    });
    let before = all.len();
    all.retain(|_, it| {
        let shares_terminal = this.terminal != 0 && it.terminal == this.terminal;
        it.session != this.session && !shares_terminal
    });
    (before - all.len()) as u64
}

/// Returns the processes that ran longest since `before`, and then those that ran longest at all.
fn sorted(all: HashMap<u32, Process>, before: &HashMap<u32, Process>) -> Vec<Process> {
    let mut all: Vec<Process> = all.into_values().collect();
    all.sort_by_key(|it| {
        let known = before.get(&it.id).filter(|known| known.began == it.began);
        let recent = it.ran - known.map_or(0, |known| known.ran).min(it.ran);
        (std::cmp::Reverse((recent, it.ran)), it.id)
    });
    all
}

/// Returns the processes of this user that compute most, and says how many are left out.
pub(super) fn busiest(most: u16) -> Commands {
    let before = all();
    thread::sleep(COMPARED);
    let mut now = all();
    let ours = leave_out(&mut now, std::process::id());
    let mut sorted = sorted(now, &before);
    let others = sorted.len().saturating_sub(most.into()) as u64;
    sorted.truncate(most.into());
    if ours > 0 {
        say!(
            "fgraph: processes of this terminal or session are left out: {ours}; name them with -p"
        );
    }
    if others > 0 {
        say!("fgraph: processes that compute less are left out: {others}; see --processes");
    }
    sorted.into_iter().map(|it| (it.id, it.command)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, session: u32, terminal: i64, ran: u64) -> (u32, Process) {
        let command = format!("p{id}");
        let program = Some((1, u64::from(id)));
        let process = Process {
            id,
            command,
            parent,
            session,
            terminal,
            ran,
            began: 5,
            is_over: false,
            program,
        };
        (id, process)
    }

    #[test]
    fn a_process_is_read_from_its_stat() {
        let stat = "12 (a) (b) R 3 12 7 34817 12 0 1 2 3 4 50 25 0 0 20 0 1 0 999 0 0";
        let expected = Process {
            command: "a) (b".to_owned(),
            program: None,
            began: 999,
            ..process(12, 3, 7, 34817, 75).1
        };
        assert_eq!(Process::parse(stat), Some(expected));
        for bad in ["", "12 (a", "12 (a) R 3", "x (a) R 1 2 3"] {
            assert_eq!(Process::parse(bad), None);
        }
        assert!(is_of("Name:\tx\nUid:\t5\t5\t5\t5\n", 5));
        assert!(!is_of("Uid:\t5\t0\t0\t0\n", 5) && !is_of("", 5));
    }

    #[test]
    fn this_command_and_its_surroundings_are_left_out() {
        let (init, shell, this, guard) = (1, 10, 20, 21);
        let mut all = HashMap::from([
            process(init, 0, 1, 0, 0),
            process(shell, init, 10, 7, 0),
            process(this, shell, 10, 7, 0),
            process(guard, this, 21, 0, 0),
            // An editor of this terminal, and a daemon that has left its session.
            process(30, shell, 10, 7, 0),
            process(31, 30, 31, 7, 0),
            process(40, init, 40, 0, 0),
            process(41, init, 41, 8, 0),
            process(50, init, 50, 0, 0),
            process(60, init, 60, 0, 0),
            process(70, init, 70, 0, 0),
        ]);
        all.get_mut(&50).unwrap().program = Some((1, this.into()));
        all.get_mut(&60).unwrap().is_over = true;
        all.get_mut(&70).unwrap().program = None;
        assert_eq!(leave_out(&mut all, this), 2);
        let mut left: Vec<u32> = all.into_keys().collect();
        left.sort_unstable();
        assert_eq!(left, [40, 41]);
    }

    #[test]
    fn those_that_compute_most_come_first() {
        let before = HashMap::from([
            process(1, 0, 1, 0, 900),
            process(2, 0, 2, 0, 100),
            process(3, 0, 3, 0, 100),
        ]);
        let mut now = HashMap::from([
            process(1, 0, 1, 0, 901),
            process(2, 0, 2, 0, 130),
            process(3, 0, 3, 0, 40),
            process(4, 0, 4, 0, 20),
        ]);
        // Another process has the number by now.
        now.get_mut(&3).unwrap().began = 6;
        let ids: Vec<u32> = sorted(now, &before).iter().map(|it| it.id).collect();
        assert_eq!(ids, [3, 2, 4, 1]);
    }
}
