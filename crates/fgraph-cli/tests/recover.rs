//! `fgraph recover`, on core files of the kernel and of gdb.

#[path = "support/compiled.rs"]
mod compiled;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use compiled::{FGRAPH, Place};
use fgraph_needs::{CC, GDB, RUSTC, core_files, needs, skip};
use fgraph_trace::ring::{Mode, RingOptions, Rings};

/// Allows core files, in the directory of the program, and executes the words after it.
const CORES: &str = "ulimit -c unlimited; exec \"$@\"";

/// A crashed program, in a directory of its own.
struct Crash {
    place: Place,
    output: Output,
}

impl Crash {
    /// Runs a program under a shell's command.
    fn of(cc: &Path, shell: &str, words: &[&str]) -> Self {
        let place = Place::new(cc, &["crashes"]);
        let output = place.command(&[&["sh", "-c", shell, "sh"], words].concat());
        let output = { output }.output().unwrap();
        Self { place, output }
    }

    /// Records what a part of the program does, without a recorder.
    fn recorded(cc: &Path, what: &str) -> Self {
        let words = [FGRAPH, "record", "--flight", "-q", "--", "./crashes", what];
        Self::of(cc, CORES, &words)
    }

    /// The core file.
    fn core(&self) -> PathBuf {
        let files = fs::read_dir(self.place.path("")).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        let core = files.find(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("core") && !name.ends_with(".data")
        });
        core.unwrap_or_else(|| panic!("there is no core file: {:?}", self.output))
    }

    fn recover(&self, words: &[&str]) -> Recovered {
        let words = [&["--no-config", "recover", "-o", "fgraph.data"], words].concat();
        Recovered(self.place.fgraph(&words))
    }

    fn view(&self, words: &[&str]) -> String {
        let output = self.place.fgraph(words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

struct Recovered(Output);

impl Recovered {
    fn said(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }

    /// Fails unless it has ended with this code and a line with this text.
    fn check(&self, code: i32, text: &str) {
        let said = self.said();
        assert!(
            self.code() == code && said.contains(text),
            "{} {said}",
            self.code()
        );
    }

    /// Fails unless it was refused with one line that has this text.
    fn refused(&self, text: &str) {
        self.check(3, text);
        assert_eq!(self.said().lines().count(), 1, "{}", self.said());
    }
}

#[test]
fn the_calls_before_a_crash_are_in_its_core_file() {
    let cc = needs!(CC.find());
    needs!(core_files());
    let crash = Crash::recorded(&cc, "crash");
    let core = crash.core();
    let core = core.to_str().unwrap();
    let recovered = crash.recover(&[core]);
    recovered.check(0, "ended by SIGSEGV at 0xc");
    recovered.check(0, "main > crash > serve > read_cache");
    let json = crash.view(&["recover", "--json", core]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["signal"], &json["address"]),
        (&11.into(), &12.into())
    );
    let calls = json["recordings"][0]["threads"][0]["calls"].as_array();
    assert_eq!(calls.unwrap().last().unwrap(), "read_cache", "{json}");
    let replay = crash.view(&["replay", "fgraph.data"]);
    let cause = replay.rfind("drop_cache();").unwrap();
    assert_eq!(replay[cause..].matches("read_cache").count(), 1, "{replay}");
    assert_eq!(replay.matches("read_cache").count(), 101, "{replay}");
    let report = crash.view(&["report", "fgraph.data"]);
    assert!(report.contains("serve"), "{report}");
    let info = crash.view(&["info", "fgraph.data"]);
    assert!(info.contains("./crashes crash"), "{info}");
    crash.view(&["dump", "fgraph.data"]);
    crash.view(&["graph", "serve", "fgraph.data"]);
    crash.view(&["export", "chrome", "-o", "x.json", "fgraph.data"]);
    // The program by another path, and another program.
    let copy = crash.place.path("copy");
    fs::copy(crash.place.path("crashes"), &copy).unwrap();
    crash
        .recover(&["--program", "copy", core])
        .check(0, "read_cache");
    let other = crash.recover(&["--program", FGRAPH, core]);
    other.refused("not the program of");
    crash
        .recover(&["--program", "absent", core])
        .refused("absent");
    crash
        .recover(&["--program", "crashes.c", core])
        .check(3, "crashes.c");
    files_that_are_cut_off(&crash, core);
    files_of_other_kinds(&crash, core);
}

/// Shows the rest of the file, or says in a line why there is nothing.
fn files_that_are_cut_off(crash: &Crash, core: &str) {
    let whole = fs::read(core).unwrap();
    let cut = crash.place.path("cut");
    let mut kept = 0;
    for part in 0..40 {
        let len = whole.len() * part / 40;
        fs::write(&cut, &whole[..len]).unwrap();
        let recovered = crash.recover(&["cut"]);
        let said = recovered.said();
        match recovered.code() {
            1 => {
                kept += 1;
                assert!(said.contains("cut off, or not written in full"), "{said}");
            }
            3 => assert_eq!(said.lines().count(), 1, "{said}"),
            _ => panic!("{len}: {said}"),
        }
    }
    assert!(kept > 0);
    for len in [0, 3, 16, 63] {
        fs::write(&cut, &whole[..len]).unwrap();
        crash.recover(&["cut"]).refused("core file");
    }
}

fn files_of_other_kinds(crash: &Crash, core: &str) {
    let mut bytes = fs::read(core).unwrap();
    bytes.truncate(1 << 16);
    let other = crash.place.path("other");
    let refused = |bytes: &[u8], text| {
        fs::write(&other, bytes).unwrap();
        crash.recover(&["other"]).refused(text);
    };
    refused(b"#!/bin/sh\n", "not a core file");
    refused(b"\x28\xb5\x2f\xfd\0\0", "`zstd -d`");
    let mut narrow = bytes.clone();
    (narrow[4], narrow[18]) = (1, 3);
    refused(&narrow, "32 bits");
    bytes[18] = 183;
    refused(&bytes, "another architecture: machine number 183");
    crash
        .recover(&["crashes"])
        .refused("an ELF file, but not a core file");
    crash.recover(&["absent"]).refused("No such file");
    crash.recover(&["."]).refused(". is a directory");
    crash.recover(&["/dev/null"]).refused("not a core file");
    // The core file stays, too.
    let words = ["--no-config", "recover", "-o", core, core];
    let refused = Recovered(crash.place.fgraph(&words));
    refused.check(2, "is the file that is read");
    assert!(fs::read(core).unwrap().starts_with(b"\x7fELF"));
}

#[test]
fn forked_children_and_executed_programs_have_their_own_events() {
    let cc = needs!(CC.find());
    needs!(core_files());
    for (what, code) in [("fork", Some(0)), ("execute", None)] {
        let crash = Crash::recorded(&cc, what);
        assert_eq!(crash.output.status.code(), code, "{:?}", crash.output);
        let core = crash.core();
        let recovered = crash.recover(&[core.to_str().unwrap()]);
        recovered.check(0, "crash > serve > read_cache");
    }
}

#[test]
fn a_core_file_without_events_says_why() {
    let cc = needs!(CC.find());
    needs!(core_files());
    let plain = Crash::of(&cc, CORES, &["./crashes"]);
    let core = plain.core();
    plain
        .recover(&[core.to_str().unwrap()])
        .refused("was not recorded");
    let shell = format!("echo 0x31 >/proc/self/coredump_filter; {CORES}");
    let words = [FGRAPH, "record", "--flight", "--", "./crashes"];
    let filtered = Crash::of(&cc, &shell, &words);
    let said = String::from_utf8_lossy(&filtered.output.stderr).into_owned();
    assert!(
        said.contains("core files leave the events out here"),
        "{said}"
    );
    let core = filtered.core();
    filtered
        .recover(&[core.to_str().unwrap()])
        .refused("coredump_filter");
}

const PANICS: &str = r#"
#[inline(never)]
fn parse(text: &str) -> usize {
    if text.is_empty() {
        panic!("no request is empty");
    }
    if text == "formatted" {
        panic!("{} is no request", text);
    }
    text.len()
}

#[inline(never)]
fn serve(text: &str) -> usize {
    parse(text) + 1
}

fn main() {
    println!("{}", serve(&std::env::args().skip(1).collect::<String>()));
}
"#;

#[test]
fn a_panic_is_marked_with_its_place_and_its_message() {
    let (cc, rustc) = (needs!(CC.find()), needs!(RUSTC.find()));
    let place = Place::new(&cc, &[]);
    fs::write(place.path("app.rs"), PANICS).unwrap();
    // Literals of the first edition take another way.
    for options in [
        ["--edition=2015", "-Cpanic=unwind"],
        ["--edition=2021", "-Cpanic=abort"],
    ] {
        let mut builder = place.command(&[rustc.to_str().unwrap(), "-O", "app.rs"]);
        assert!(builder.args(options).status().unwrap().success());
        for (argument, marks) in [
            ("", &["/* panic at app.rs:5:9: no request is empty */"][..]),
            (
                "formatted",
                &[
                    "/* panic at app.rs:8:9 */",
                    "/* panic: formatted is no request */",
                ],
            ),
        ] {
            let words = [
                "record", "--panics", "-q", "-F", "app::*", "--", "./app", argument,
            ];
            place.fgraph(&words);
            let replay = place.fgraph(&["replay", "--no-cpu"]);
            let replay = String::from_utf8(replay.stdout).unwrap();
            let calls = calls_in(&replay);
            let at = calls.iter().position(|call| *call == "app::parse() {");
            let at = at.unwrap_or_else(|| panic!("{replay}"));
            let found: Vec<_> = calls[at + 1..]
                .iter()
                .take_while(|call| call.starts_with("/*"))
                .copied()
                .collect();
            assert_eq!(found, marks, "{replay}");
        }
    }
}

/// Returns the lines of `fgraph replay`, without times.
fn calls_in(text: &str) -> Vec<&str> {
    let calls = text.lines().filter_map(|line| line.split_once("|  "));
    calls.map(|(_, call)| call.trim()).collect()
}

#[test]
fn gdb_shows_the_calls_before_a_crash_and_of_a_live_process() {
    let (cc, gdb) = (needs!(CC.find()), needs!(GDB.find()));
    needs!(core_files());
    let gdb = gdb.to_str().unwrap();
    let script = Path::new("share/fgraph-gdb.py").canonicalize().unwrap();
    let source = format!("source {}", script.display());
    let command = format!("set fgraph-command {FGRAPH}");
    let gdb = [gdb, "-nx", "-batch", "-ex", &source, "-ex", &command];
    let crash = Crash::recorded(&cc, "crash");
    let core = crash.core();
    let replayed = |crash: &Crash, words: &[&str]| {
        let output = crash.place.command(&[&gdb, words].concat()).output();
        let output = output.unwrap();
        let [out, err] = [output.stdout, output.stderr];
        String::from_utf8_lossy(&[out, err].concat()).into_owned()
    };
    let core = core.to_str().unwrap();
    let of_core = [
        "-ex",
        "frame function serve",
        "-ex",
        "fgraph replay",
        "crashes",
        core,
    ];
    let shown = replayed(&crash, &of_core);
    if shown.contains("Python scripting is not supported") {
        return skip!("this gdb has no Python");
    }
    let lines = calls_in(&shown);
    assert!(lines.contains(&"drop_cache();"), "{shown}");
    assert_eq!(lines.last(), Some(&"serve() {"), "{shown}");
    let shown = replayed(&crash, &["-ex", "fgraph replay 3", "crashes", core]);
    assert_eq!(
        calls_in(&shown),
        ["}", "serve() {", "read_cache() {"],
        "{shown}"
    );

    // gdb shows no frame older than that of `main`.
    let in_main = Crash::recorded(&cc, "main");
    let core = in_main.core();
    let words = ["-ex", "fgraph replay", "crashes", core.to_str().unwrap()];
    let shown = replayed(&in_main, &words);
    assert!(!shown.contains("No recorded call"), "{shown}");
    assert!(calls_in(&shown).contains(&"main() {"), "{shown}");
    let words = [
        &words[..2],
        &["-ex", "show backtrace past-main"],
        &words[2..],
    ]
    .concat();
    let shown = replayed(&in_main, &words);
    assert!(
        shown.contains("past-main is off") || shown.contains("\"main\" is off"),
        "{shown}"
    );

    let mut live =
        crash
            .place
            .command(&[FGRAPH, "record", "--flight", "-q", "--", "./crashes", "run"]);
    let mut live = live.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(live.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let process = live.id().to_string();
    // One call of `handle` has fewer calls below it than that.
    let of_process = [
        "-p",
        &process,
        "-ex",
        "generate-core-file made",
        "-ex",
        "fgraph replay 500",
    ];
    let shown = replayed(&crash, &of_process);
    live.kill().unwrap();
    live.wait().unwrap();
    if !crash.place.path("made").exists() {
        return skip!("gdb may not look into processes here: {shown}");
    }
    assert!(calls_in(&shown).contains(&"handle() {"), "{shown}");
    crash.recover(&["made"]).check(0, "was in");
}

#[test]
fn the_rings_of_a_recorder_that_was_killed_are_recovered() {
    let cc = needs!(CC.find());
    needs!(core_files());
    let place = Place::new(&cc, &["crashes"]);
    let words = [
        "record",
        "-q",
        "--ring",
        "overwrite",
        "-o",
        "x.data",
        "--",
        "./crashes",
        "run",
    ];
    let mut recorder = place.command(&[&["sh", "-c", CORES, "sh", FGRAPH], &words[..]].concat());
    let mut recorder = recorder.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(recorder.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let children = format!("/proc/{0}/task/{0}/children", recorder.id());
    let child = fs::read_to_string(children).unwrap();
    let child = child.trim().to_owned();
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let crash = Crash {
        place,
        output: Command::new("kill")
            .args(["-SEGV", &child])
            .output()
            .unwrap(),
    };
    // The end of its output is the end of the program.
    assert_eq!(lines.count(), 0);
    let core = crash.core();
    let recovered = crash.recover(&[core.to_str().unwrap()]);
    recovered.check(0, "was in");
}

#[test]
fn events_that_made_room_for_newer_ones_are_counted() {
    let cc = needs!(CC.find());
    needs!(core_files());
    let words = ["record", "--flight", "--buffer", "128K", "-q", "--"];
    let program = ["./crashes", "crash", "20000"];
    let crash = Crash::of(&cc, CORES, &[&[FGRAPH], &words[..], &program].concat());
    let core = crash.core();
    let recovered = crash.recover(&[core.to_str().unwrap()]);
    recovered.check(0, "older events had made room for newer ones");
    recovered.check(0, "was in ... > serve > read_cache");
}

#[test]
fn flight_goes_with_what_needs_no_recorder() {
    let refused = |options: &[&str], why: &str| {
        let output = Command::new(FGRAPH)
            .args(["--no-config", "record", "--flight"])
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains(why),
            "{said}"
        );
    };
    refused(&["-p", "1"], "not -p");
    refused(&["--ring", "drop", "--", "true"], "--ring overwrite");
    refused(&["--time", "1s", "--", "true"], "--time");
    refused(&["-o", "x", "--", "true"], "--output");
}

/// A core file that no process has had. Memory that is not written is a hole.
struct Forged {
    place: tempfile::TempDir,
    file: File,
    /// Address, offset and bytes of each part of memory.
    memory: Vec<[u64; 3]>,
    /// Address, end and offset of each part of the rings' file.
    mapped: Vec<[u64; 3]>,
    /// The path of the rings' file, and text at the process's command line.
    texts: [&'static str; 2],
}

/// Where the file of a forged core has memory. Headers and notes are before it.
const MEMORY: u64 = 16 << 20;
/// The address of forged rings.
const ADDRESS: u64 = 0x7000_0000_0000;

impl Forged {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let options = File::options();
        let mut options = { options };
        let options = options.read(true).write(true).create_new(true);
        Self {
            file: options.open(place.path().join("core")).unwrap(),
            place,
            memory: Vec::new(),
            mapped: Vec::new(),
            texts: ["/memfd:fgraph-rings (deleted)", "./forged"],
        }
    }

    /// Writes headers and notes, and recovers. Returns exit code, words and bytes of memory.
    fn recover(&self) -> (Option<i32>, String, u64) {
        let note = |kind: u32, content: &[u8]| {
            let head = [5, content.len() as u32, kind]
                .map(u32::to_le_bytes)
                .concat();
            let mut note = [&head[..], b"CORE\0\0\0\0", content].concat();
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let longs = |numbers: &[u64]| {
            let numbers = numbers.iter().flat_map(|it| it.to_le_bytes());
            numbers.collect::<Vec<u8>>()
        };
        let mut files = longs(&[self.mapped.len() as u64, 1]);
        files.extend(longs(self.mapped.as_flattened()));
        for _ in &self.mapped {
            files.extend(self.texts[0].as_bytes());
            files.push(0);
        }
        let mut process = vec![0; 136];
        process[56..][..self.texts[1].len()].copy_from_slice(self.texts[1].as_bytes());
        let notes = [note(3, &process), note(0x4649_4c45, &files)].concat();
        let count = 1 + self.memory.len() as u64;
        let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
        head.extend(longs(&[0, 64, 0]));
        head.extend([0, 0, 0, 0, 64, 0, 56, 0]);
        head.extend((count as u16).to_le_bytes());
        head.extend([0; 6]);
        let at = 64 + count * 56;
        let segment = |kind: u32, [address, offset, len]: [u64; 3]| {
            let head = [kind.to_le_bytes(), [0; 4]].concat();
            [head, longs(&[offset, address, 0, len, len, 1])].concat()
        };
        head.extend(segment(4, [0, at, notes.len() as u64]));
        let memory = self.memory.iter();
        head.extend(memory.flat_map(|&part| segment(1, part)));
        head.extend(notes);
        assert!((head.len() as u64) < MEMORY && count < 65535);
        self.file.write_all_at(&head, 0).unwrap();
        let mut fgraph = Command::new("timeout");
        let fgraph = fgraph.args(["20", FGRAPH, "--no-config", "recover", "core"]);
        let fgraph = fgraph.current_dir(self.place.path());
        measured(fgraph)
    }

    /// Maps a part of the rings' file at `at`, with bytes of this file from `offset` on.
    fn map(&mut self, at: u64, offset: u64, len: u64) {
        self.memory.push([ADDRESS + at, offset, len]);
        self.mapped.push([ADDRESS + at, ADDRESS + at + len, at]);
    }

    /// Maps the headers of rings.
    fn rings(&mut self, options: &RingOptions, change: impl FnOnce(&mut [u8])) {
        let (_rings, mut source) = Rings::create_shared(options).unwrap();
        let headers = (512 + u64::from(options.rings) * 16) * 8;
        let headers = headers.next_multiple_of(4096);
        let mut bytes = vec![0; headers as usize];
        source.read_exact(&mut bytes).unwrap();
        change(&mut bytes);
        for (page, bytes) in bytes.chunks(4096).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                let at = MEMORY + page as u64 * 4096;
                self.file.write_all_at(bytes, at).unwrap();
            }
        }
        self.map(0, MEMORY, headers);
    }
}

/// Runs a command. Returns its exit code, its words, and the most bytes of memory that it or a
/// child of it has taken.
#[expect(clippy::zombie_processes, reason = "`wait4` waits for it")]
fn measured(command: &mut Command) -> (Option<i32>, String, u64) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the pointers are valid, and nobody else waits for this child.
    let ended = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(ended, child.id() as i32);
    // SAFETY: the kernel has written it, and zeros are valid as well.
    let usage = unsafe { usage.assume_init() };
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    (code, said, usage.ru_maxrss as u64 * 1024)
}

/// More than `recover` takes for any small core file.
const LITTLE: u64 = 160 << 20;

/// One ring with sub-buffers of 1 MiB; `opened` of them were opened.
fn one_ring(opened: u64) -> (RingOptions, impl FnOnce(&mut [u8])) {
    let options = RingOptions {
        mode: Mode::Overwrite,
        rings: 1,
        sub_buffers: 4096,
        sub_buffer_bytes: 1 << 20,
        table_bytes: 4096,
        clock: None,
    };
    let open = move |bytes: &mut [u8]| {
        // Rings that were taken, the owner of the first, and its opened sub-buffers.
        for (word, value) in [(32, 1), (512, 1), (513, opened)] {
            bytes[word * 8..][..8].copy_from_slice(&u64::to_le_bytes(value));
        }
    };
    (options, open)
}

/// The places of the sub-buffers of [`one_ring`] in the rings' file.
fn sub_buffers(count: u64) -> impl Iterator<Item = u64> {
    // Headers and the table, and the places of the sub-buffers.
    let first = (512 + 16) * 8;
    let first = u64::next_multiple_of(first, 4096) + 4096 + 4096 * 8;
    (0..count).map(move |n| first + (n << 20))
}

#[test]
fn memory_that_shares_bytes_in_the_file_is_read_once() {
    let mut core = Forged::new();
    let (options, open) = one_ring(3000);
    core.rings(&options, open);
    let bytes = MEMORY + (16 << 20);
    core.file.write_all_at(&[0xff; 1 << 20], bytes).unwrap();
    for at in sub_buffers(3000) {
        core.map(at, bytes, 1 << 20);
    }
    let (code, said, memory) = core.recover();
    assert!(memory < LITTLE, "{memory}");
    assert!(
        code == Some(1) && said.contains("are missing"),
        "{code:?} {said}"
    );
}

#[test]
fn holes_take_no_memory() {
    let mut core = Forged::new();
    let (options, open) = one_ring(3000);
    core.rings(&options, open);
    let start = MEMORY + (16 << 20);
    core.file.set_len(start + (3000 << 20)).unwrap();
    for (n, at) in sub_buffers(3000).enumerate() {
        core.map(at, start + ((n as u64) << 20), 1 << 20);
    }
    let (code, said, memory) = core.recover();
    assert!(
        memory < LITTLE && code == Some(0),
        "{memory} {code:?} {said}"
    );
    // Each says that all of it has events.
    for n in 0..3000 {
        let used = start + (n << 20) + 15 * 8;
        core.file.write_all_at(&[0xff; 8], used).unwrap();
    }
    let (code, said, memory) = core.recover();
    assert!(memory < LITTLE, "{memory}");
    assert!(
        code == Some(3) && said.contains("they take more than the file has"),
        "{code:?} {said}"
    );
}

#[test]
fn a_table_of_names_without_bytes_takes_no_memory() {
    let mut core = Forged::new();
    let options = RingOptions {
        rings: 1,
        table_bytes: 1 << 30,
        ..RingOptions::default()
    };
    core.rings(&options, |bytes| {
        bytes[48 * 8..][..8].copy_from_slice(&u64::to_le_bytes((1 << 27) - 1));
    });
    let headers = u64::next_multiple_of((512 + 16) * 8, 4096);
    let start = MEMORY + (16 << 20);
    core.file.set_len(start + (1 << 30)).unwrap();
    core.map(headers, start, 1 << 30);
    let (code, said, memory) = core.recover();
    assert!(memory < LITTLE, "{memory}");
    assert!(
        code == Some(3) && said.contains("they take more than the file has"),
        "{code:?} {said}"
    );
}

#[test]
fn rings_without_number_take_little_memory() {
    let mut core = Forged::new();
    let options = RingOptions {
        rings: 65536,
        ..RingOptions::default()
    };
    core.rings(&options, |_| ());
    let mut header = [0; 4096];
    core.file.read_exact_at(&mut header, MEMORY).unwrap();
    let len = core.memory[0][2];
    core.file.set_len(MEMORY + 3000 * len).unwrap();
    for n in 1..3000 {
        core.file.write_all_at(&header, MEMORY + n * len).unwrap();
        core.memory
            .push([ADDRESS + (n << 32), MEMORY + n * len, len]);
        core.mapped
            .push([ADDRESS + (n << 32), ADDRESS + (n << 32) + len, 0]);
    }
    let (code, said, memory) = core.recover();
    assert!(memory < LITTLE, "{memory}");
    assert!(
        code == Some(0) && said.contains("other rings in it cannot be read"),
        "{code:?} {said}"
    );
}

#[test]
fn notes_without_bytes_take_little_memory() {
    let core = Forged::new();
    core.recover();
    // A list of ten million files, in the hole of a longer note.
    let bytes = 10_000_000 * 25;
    let start = MEMORY + (16 << 20);
    let mut note = [5, 16 + bytes, 0x4649_4c45].map(u32::to_le_bytes).concat();
    note.extend(b"CORE\0\0\0\0");
    note.extend([10_000_000_u64, 1].map(u64::to_le_bytes).as_flattened());
    core.file.write_all_at(&note, start).unwrap();
    let len = note.len() as u64 + u64::from(bytes);
    core.file.set_len(start + len).unwrap();
    let segment = [start, 0, 0, len, len, 1].map(u64::to_le_bytes).concat();
    core.file.write_all_at(&segment, 64 + 8).unwrap();
    let mut fgraph = Command::new("timeout");
    let fgraph = fgraph.args(["20", FGRAPH, "--no-config", "recover", "core"]);
    let (code, said, memory) = measured(fgraph.current_dir(core.place.path()));
    assert!(
        memory < LITTLE && code == Some(3),
        "{memory} {code:?} {said}"
    );
}

#[test]
fn a_core_file_writes_no_escape_sequences_to_the_terminal() {
    let mut core = Forged::new();
    core.texts[1] = "./a\x1b]0;owned\x07\u{202e}\u{2028}";
    let (options, open) = one_ring(0);
    core.rings(&options, open);
    let (code, said, _) = core.recover();
    assert!(code == Some(0), "{code:?} {said}");
    let is_shown = |c: char| c == '\n' || !c.is_control() && !"\u{202e}\u{2028}".contains(c);
    assert!(
        said.chars().all(is_shown) && said.contains("owned"),
        "{said:?}"
    );
}
