//! `fgraph heap`, compared with programs that log their own allocations.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use fgraph_needs::{
    GCC, GXX, JEMALLOC, MIMALLOC, MS_PRINT, Missing, Need, TCMALLOC, TCMALLOC_MINIMAL, needs,
};
use fgraph_trace::event::{self, Extension, Kind};
use fgraph_trace::names::DescriptionKind;
use fgraph_trace::recording::{Drain, Info};
use fgraph_trace::ring::{RingOptions, Rings, Writer};
use serde_json::Value;
use tempfile::TempDir;

const FGRAPH: &str = env!("CARGO_BIN_EXE_fgraph");

/// Compiles a program of `tests/record` in a new folder.
fn compile(compiler: &Path, source: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("program");
    let mut compiler = Command::new(compiler);
    let flags = [
        "-g",
        "-O1",
        "-fno-builtin",
        "-fno-optimize-sibling-calls",
        "-pthread",
    ];
    let compiler = compiler.args(flags).arg("-o").arg(&program);
    let compiler = compiler.arg(format!("tests/record/{source}"));
    assert!(compiler.status().unwrap().success());
    (folder, program)
}

/// Returns the view of `fgraph heap`, which is on the last line.
#[track_caller]
fn view(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(text.lines().next_back().unwrap()).unwrap()
}

/// The sums of a call path, or of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sums {
    live: u64,
    blocks: u64,
    peak: u64,
    allocated: u64,
    calls: u64,
}

type Paths = BTreeMap<(usize, String), Sums>;

/// The blocks of a process, as its log has them.
#[derive(Default)]
struct Process {
    nth: usize,
    blocks: HashMap<u64, (u64, String)>,
    live: u64,
    peak: u64,
}

/// Returns the sums by process, counted in the order of their first lines, and call path. Mappings
/// are apart from blocks, and have no peak.
fn logged(log: &str) -> [Paths; 2] {
    let [mut heap, mut maps] = [Paths::new(), Paths::new()];
    let mut processes: HashMap<&str, Process> = HashMap::new();
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (nth, address) = (processes.len(), number(words[2]));
        let new = Process {
            nth,
            ..Process::default()
        };
        let process = processes.entry(words[0]).or_insert(new);
        let nth = process.nth;
        let size = words.get(3).map_or(0, |size| size.parse().unwrap());
        match words[1] {
            "made" => {
                let path = words[4].to_owned();
                assert!(
                    process
                        .blocks
                        .insert(address, (size, path.clone()))
                        .is_none()
                );
                let sums = heap.entry((nth, path)).or_default();
                sums.live += size;
                sums.blocks += 1;
                sums.allocated += size;
                sums.calls += 1;
                process.live += size;
                if process.live > process.peak {
                    process.peak = process.live;
                    for ((of, _), sums) in &mut heap {
                        if *of == nth {
                            sums.peak = sums.live;
                        }
                    }
                }
            }
            "gone" => {
                if let Some((size, path)) = process.blocks.remove(&address) {
                    let sums = heap.get_mut(&(nth, path)).unwrap();
                    sums.live -= size;
                    sums.blocks -= 1;
                    process.live -= size;
                }
            }
            "mapped" => {
                let sums = maps.entry((nth, words[4].to_owned())).or_default();
                sums.live += size;
                sums.allocated += size;
                sums.calls += 1;
            }
            // There is only one path.
            _ => maps.values_mut().for_each(|sums| sums.live -= size),
        }
    }
    [heap, maps]
}

/// Returns the same sums as `fgraph heap` shows them, by the functions of the program.
fn shown(view: &Value) -> [Paths; 2] {
    let mut all = [Paths::new(), Paths::new()];
    let processes = view["processes"].as_array().unwrap().iter();
    let processes: Vec<u64> = processes
        .map(|it| it["process"].as_u64().unwrap())
        .collect();
    for path in view["paths"].as_array().unwrap() {
        let calls = path["calls"].as_array().unwrap().iter();
        let calls = calls.map(|call| call.as_str().unwrap());
        // The C library's own blocks for threads, and its helpers in calls of the program's.
        if calls.clone().any(|call| call.starts_with("pthread_create")) {
            continue;
        }
        let own = calls.filter_map(|call| call.strip_suffix(" [program]"));
        let own: Vec<&str> = own.filter(|call| *call != "_start").collect();
        if own.is_empty() {
            continue;
        }
        let number = |key: &str| path[key].as_u64().unwrap();
        let nth = processes
            .iter()
            .position(|it| *it == number("process"))
            .unwrap();
        let is_map = path["is_mapping"].as_bool().unwrap();
        let paths = &mut all[usize::from(is_map)];
        let sums = paths.entry((nth, own.join(";"))).or_default();
        sums.live += number("live_bytes");
        sums.allocated += number("allocated_bytes");
        sums.calls += number("allocations");
        if !is_map {
            sums.blocks += number("live_blocks");
            sums.peak += number("peak_bytes");
        }
    }
    all
}

/// Runs the program that logs its allocations under a command with these words, and compares.
#[track_caller]
fn compare(words: &[&str], then: &[&str]) {
    let (folder, program) = compile(&needs!(GCC.find()), "heap.c");
    let mut command = Command::new(FGRAPH);
    let command = command.args(words).arg("--").arg(&program).arg("log");
    let mut output = command.current_dir(folder.path()).output().unwrap();
    if !then.is_empty() {
        assert!(output.status.success(), "{output:?}");
        let mut command = Command::new(FGRAPH);
        output = command
            .args(then)
            .current_dir(folder.path())
            .output()
            .unwrap();
    }
    let view = view(&output);
    assert_eq!(view["lost"]["events"], 0);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let (expected, found) = (logged(&log), shown(&view));
    for (expected, found) in expected.iter().zip(&found) {
        assert!(!expected.is_empty());
        for (path, sums) in expected {
            assert_eq!(found.get(path), Some(sums), "{path:?}");
        }
        assert_eq!(expected.len(), found.len());
    }
    // It ends by `_exit`, which only its parent sees.
    assert_eq!(view["processes"][0]["end"], "ended");
    // The child frees its parent's blocks.
    let child = &view["processes"][1]["heap"];
    assert!(child["unknown_frees"].as_u64().unwrap() > 0, "{child}");
    assert!(view["processes"][0]["heap"]["failed"].as_u64().unwrap() > 0);
}

#[test]
fn all_sums_are_those_that_the_program_logs() {
    compare(&["heap", "--json", "-n", "100000"], &[]);
}

#[test]
fn a_recording_has_the_same_sums() {
    let then = ["heap", "--json", "-n", "100000"];
    compare(&["record", "--heap", "--quiet"], &then);
}

#[test]
fn a_recording_without_arguments_is_refused() {
    let (folder, program) = compile(&needs!(GCC.find()), "pool.c");
    let recording = folder.path().join("fgraph.data");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["record", "-q", "-F", "libc:malloc", "-o"]);
    let output = command.arg(&recording).arg(&program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for options in [&["heap"][..], &["heap", "--json"]] {
        let mut command = Command::new(FGRAPH);
        let output = command.args(options).arg(&recording).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("record again, with --heap"), "{said}");
    }
}

#[test]
fn a_block_belongs_to_the_outermost_function() {
    let (folder, program) = compile(&needs!(GXX.find()), "heap.cpp");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--json", "--"]).arg(&program);
    let output = command.current_dir(folder.path()).output().unwrap();
    let view = view(&output);
    let paths = view["paths"].as_array().unwrap().iter();
    let paths = paths.map(|path| {
        let number = |key: &str| path[key].as_u64().unwrap();
        let allocator = path["allocator"].as_str().unwrap().to_owned();
        let call = path["calls"][0].as_str().unwrap_or_default().to_owned();
        (
            call,
            (allocator, number("live_bytes"), number("allocations")),
        )
    });
    let paths: HashMap<_, _> = paths.collect();
    let of = |call: &str, allocator: &str, live: u64, calls: u64| {
        let known = paths.get(&format!("{call} [program]"));
        assert_eq!(
            known,
            Some(&(allocator.to_owned(), live, calls)),
            "{paths:?}"
        );
    };
    of("one", "operator new", 0, 100);
    of("many", "operator new[]", 70 * 50, 100);
    of("aligned", "operator new", 0, 100);
    // The handler of `new` frees it.
    of("reserve", "malloc", 0, 1);
}

/// Runs a program with an allocator in place of the C library's, and compares its sums.
fn check_preloaded(allocator: &Need) -> Result<(), Missing> {
    let (_folder, program) = compile(&GCC.find()?, "allocates.c");
    let name = allocator.find()?;
    // The dynamic linker says if it does not find it.
    let plain = Command::new(&program).env("LD_PRELOAD", &name).output();
    if !plain.unwrap().stderr.is_empty() {
        return Err(allocator.missing());
    }
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--json", "--"]).arg(&program);
    let view = view(&command.env("LD_PRELOAD", &name).output().unwrap());
    let paths = view["paths"].as_array().unwrap().iter();
    let found: BTreeMap<_, _> = paths
        .filter_map(|path| {
            let call = path["calls"][0].as_str()?.strip_suffix(" [program]")?;
            let number = |key: &str| path[key].as_u64().unwrap();
            let sums = (number("live_bytes"), number("allocated_bytes"));
            Some((call, (sums, number("allocations"))))
        })
        .collect();
    let expected = [
        ("keep", ((5000, 5000), 50)),
        ("use", ((0, 1500), 50)),
        ("grow", ((500, 12750), 50)),
        ("aligned", ((3200, 3200), 50)),
    ];
    assert_eq!(found, BTreeMap::from(expected));
    let heap = &view["processes"][0]["heap"];
    assert_eq!(
        (&heap["unknown_frees"], &heap["unseen_frees"]),
        (&0.into(), &0.into())
    );
    Ok(())
}

#[test]
fn blocks_of_tcmalloc_are_seen() {
    needs!(check_preloaded(&TCMALLOC));
}

#[test]
fn blocks_of_the_small_tcmalloc_are_seen() {
    needs!(check_preloaded(&TCMALLOC_MINIMAL));
}

#[test]
fn blocks_of_jemalloc_are_seen() {
    needs!(check_preloaded(&JEMALLOC));
}

#[test]
fn blocks_of_mimalloc_are_seen() {
    needs!(check_preloaded(&MIMALLOC));
}

/// The functions of the program `pool.c`.
const POOL: [&str; 4] = ["--alloc", "pool_alloc(arg1)", "--free", "pool_free(arg2)"];

#[test]
fn functions_of_own_allocators_can_be_named() {
    let (_folder, program) = compile(&needs!(GCC.find()), "pool.c");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--json"]).args(POOL).arg("--");
    check_pool(&view(&command.arg(&program).output().unwrap()));
}

#[test]
fn a_recording_has_the_blocks_of_own_allocators() {
    let (folder, program) = compile(&needs!(GCC.find()), "pool.c");
    let recording = folder.path().join("fgraph.data");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["record", "--heap", "--quiet", "-o"]);
    let command = command.arg(&recording).args(POOL).arg("--").arg(&program);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--json"]).arg(&recording);
    check_pool(&view(&command.output().unwrap()));
}

/// Checks the view of the program `pool.c`.
#[track_caller]
fn check_pool(view: &Value) {
    assert_eq!(view["processes"][0]["end"], "exited");
    let heap = &view["processes"][0]["heap"];
    assert_eq!(heap["unknown_frees"], 0, "{heap}");
    let paths = view["paths"].as_array().unwrap().iter();
    let paths = paths.filter(|path| path["allocator"] == "pool_alloc");
    let paths = paths.map(|path| {
        let call = path["calls"][0].as_str().unwrap();
        let number = |key: &str| path[key].as_u64().unwrap();
        (call, (number("live_bytes"), number("allocations")))
    });
    let paths: HashMap<_, _> = paths.collect();
    let expected = [("keep [program]", (2400, 100)), ("use [program]", (0, 100))];
    assert_eq!(paths, HashMap::from(expected));
    // The pool's memory belongs to the call that took it.
    let all = view["paths"].as_array().unwrap().iter();
    let mut all = all.map(|path| &path["calls"][0]);
    assert!(all.all(|call| call != "pool_alloc [program]"));
}

#[test]
fn a_wrong_name_of_an_allocator_is_told() {
    let run = |words: &[&str]| {
        let mut command = Command::new(FGRAPH);
        let output = command.arg("heap").args(words).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run(&["--alloc", "pool_alloc", "--", "true"]);
    assert!(said.contains("pool_alloc(arg1)"), "{said}");
    let said = run(&["--alloc", "pool_alloc(arg6)", "--", "true"]);
    assert!(said.contains("arg0 to arg5"), "{said}");
    let said = run(&["--free", "pool_free(arg0)"]);
    assert!(said.contains("need a program"), "{said}");
    let mut command = Command::new(FGRAPH);
    let output = command.args(["record", "--free", "pool_free(arg0)", "true"]);
    let output = output.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("need --heap"), "{said}");
}

#[test]
fn growth_of_a_process_is_that_of_the_paths_that_keep_blocks() {
    let (_folder, program) = compile(&needs!(GCC.find()), "grows.c");
    let mut program = Command::new(program);
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(program.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    let mut command = Command::new(FGRAPH);
    let pid = program.id().to_string();
    let words = ["heap", "--json", "--growth", "1s", "-p", &pid];
    let output = command.args(words).output();
    program.kill().unwrap();
    program.wait().unwrap();
    let view = view(&output.unwrap());
    assert_eq!(
        (&view["lost"]["events"], &view["is_attached"]),
        (&0.into(), &true.into())
    );
    assert_eq!(view["processes"][0]["end"], "running");
    let paths = view["paths"].as_array().unwrap();
    let of = |call: &str| {
        let call = format!("{call} [program]");
        paths
            .iter()
            .find(|path| path["calls"][0] == call.as_str())
            .unwrap()
    };
    let number = |path: &Value, key: &str| path[key].as_u64().unwrap();
    let growth = |path: &Value| {
        let parts = path["growth_bytes"].as_array().unwrap().iter();
        parts.map(|part| part.as_i64().unwrap()).sum::<i64>()
    };
    let (keep, used) = (of("keep"), of("use"));
    let calls = number(keep, "allocations");
    assert!(calls > 0);
    assert_eq!(number(keep, "live_bytes"), 100 * calls);
    assert_eq!(growth(keep), 100 * calls as i64);
    assert_eq!(number(keep, "live_blocks"), calls);
    // One may be in use at the end.
    assert!(growth(used) <= 30, "{used}");
    // Its blocks from before.
    assert!(
        view["processes"][0]["heap"]["unknown_frees"]
            .as_u64()
            .unwrap()
            + 1
            >= calls
    );
}

#[test]
fn exports_have_the_bytes_of_paths() {
    let (folder, program) = compile(&needs!(GXX.find()), "heap.cpp");
    let export = |format: &str, to: &str| {
        let mut command = Command::new(FGRAPH);
        let command = command.args(["heap", "--sort", "allocated", "--export", format]);
        let command = command.args(["-o", to, "--"]).arg(&program);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let folded = export("folded", "-");
    for line in [
        ";main;many;operator new[] 7000",
        ";main;one;operator new 400",
    ] {
        let is_there = |it: &str| it.starts_with("program;") && it.ends_with(line);
        assert!(folded.lines().any(is_there), "{folded}");
    }
    export("html", "heap.html");
    let page = fs::read_to_string(folder.path().join("heap.html")).unwrap();
    assert!(page.contains(r#""weight":["allocated","bytes"]"#));
    if cfg!(feature = "svg") {
        export("svg", "heap.svg");
        let picture = fs::read_to_string(folder.path().join("heap.svg")).unwrap();
        for frame in ["<title>many (7,000 ", "<title>operator new[] (7,000 "] {
            assert!(picture.contains(&format!("{frame}bytes, ")), "{frame}");
        }
    }
    export("pprof", "heap.pb.gz");
    assert!(
        fs::metadata(folder.path().join("heap.pb.gz"))
            .unwrap()
            .len()
            > 0
    );
}

#[test]
fn a_program_without_a_known_allocator_is_told() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(FGRAPH);
    let command = command.args(["record", "--quiet", "-F", "getppid", "--", "true"]);
    assert!(
        command
            .current_dir(folder.path())
            .status()
            .unwrap()
            .success()
    );
    for options in [&["heap"][..], &["heap", "--json"]] {
        let mut command = Command::new(FGRAPH);
        let command = command.args(options).current_dir(folder.path());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains("has no call of a known allocator; `fgraph record --heap` records"),
            "{said}"
        );
    }
}

/// Makes a recording with an event of an allocator's function. Its words come after the first one.
fn recording_of(name: &str, words: &[u64]) -> (TempDir, PathBuf) {
    const PROCESS: u32 = 4711;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("fgraph.data");
    let rings = Arc::new(Rings::create(&RingOptions::default()).unwrap());
    let fields = [PROCESS.into(), 1, 0x1000, 16];
    rings.describe(
        DescriptionKind::Function,
        fields,
        [name, "/usr/bin/program"],
    );
    let info = Info {
        process: PROCESS,
        ..Info::default()
    };
    let mut drain = Drain::new(rings.clone(), File::create(&path).unwrap(), &info).unwrap();
    let writer = Writer::new();
    let ring = rings.take(PROCESS, PROCESS, |_, _| false).unwrap();
    let event = [&[event::call(Kind::Entry, 1)], words].concat();
    // SAFETY: this thread alone uses the writer, the rings outlive it, and it has the ring alone.
    unsafe {
        writer.attach(&rings, ring);
        assert!(writer.write(&rings, &event, rings.clock().first().ticks + 5, None));
    }
    rings.finish();
    while drain.drain().unwrap() > 0 {}
    drain.finish().unwrap();
    (folder, path)
}

#[test]
fn blocks_in_an_unknown_form_are_told() {
    let head = event::extension(Extension::Arguments, 2);
    let whole = event::extension(Extension::EntryOnly, 0);
    let stack = [event::extension(Extension::Stack, 1), 0x1234];
    // The extension 200, with one word.
    let later = [15 | 200 << 4 | 1 << 12, 7];
    let heap = |name: &str, words: &[u64]| {
        let (_folder, path) = recording_of(name, words);
        let run = |options: &[&str]| {
            let mut command = Command::new(FGRAPH);
            command
                .arg("heap")
                .args(options)
                .arg(&path)
                .output()
                .unwrap()
        };
        let output = run(&["--json"]);
        let view: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let unknown = view
            .as_ref()
            .map(|view| view["unknown_calls"].as_u64().unwrap());
        let live = view.map(|view| view["processes"][0]["heap"]["live_bytes"].as_u64());
        let said = String::from_utf8(run(&[]).stderr).unwrap();
        (unknown, live.flatten(), said)
    };
    let (unknown, live, said) = heap("malloc", &[head, 100, 0x5000, whole]);
    assert_eq!((unknown, live), (Some(0), Some(100)));
    assert_eq!(said, "");
    // More about a block than is known: its size is.
    let words = [&[head, 100, 0x5000][..], &later, &[whole]].concat();
    let (unknown, live, said) = heap("malloc", &words);
    assert_eq!((unknown, live), (Some(1), Some(100)));
    let why = "fgraph: 1 call of allocators ";
    assert!(
        said.starts_with(why) && said.contains("a later one"),
        "{said}"
    );
    // Other words than size and address.
    let head = event::extension(Extension::Arguments, 3);
    let (unknown, live, said) = heap("malloc", &[head, 1, 100, 0x5000, whole]);
    assert_eq!((unknown, live), (Some(1), None), "{said}");
    assert!(said.starts_with(why), "{said}");
    // A call with two events in one.
    let (unknown, live, said) = heap("realloc", &[head, 1, 100, 0x5000, whole]);
    assert_eq!((unknown, live), (Some(1), None), "{said}");
    assert!(said.starts_with(why), "{said}");
    // A function that later versions know.
    let words = [&[head, 1, 100, 0x5000][..], &stack, &[whole]].concat();
    let (unknown, _, said) = heap("newest_malloc", &words);
    assert_eq!(unknown, None);
    assert!(said.starts_with(why), "{said}");
}

#[test]
fn calls_whose_results_are_not_seen_are_told() {
    let folder = TempDir::new().unwrap();
    let [source, program] = ["program.c", "program"].map(|name| folder.path().join(name));
    // The symbol is that of coroutines that copy the machine stack: functions have entries only.
    let text = "#include <stdlib.h>
void slp_switch(void) {}
int main(void) {
    void *volatile block = malloc(100);
    block = realloc(block, 200);
    free(block);
    block = calloc(3, 4);
    return 7;
}
";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new(needs!(GCC.find()));
    let compiler = compiler.args(["-rdynamic", "-fno-builtin", "-o"]);
    assert!(
        compiler
            .arg(&program)
            .arg(&source)
            .status()
            .unwrap()
            .success()
    );
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let mut command = Command::new(FGRAPH);
    let shown = command.args(["heap", "--"]).arg(&program).output().unwrap();
    assert_eq!(shown.status.code(), Some(7));
    let why = "fgraph: the results of 3 calls of allocators were not seen";
    assert!(said(&shown).starts_with(why), "{}", said(&shown));
    assert!(!said(&shown).contains("a later one"), "{}", said(&shown));
    // The same of a recording.
    let recording = folder.path().join("fgraph.data");
    let mut command = Command::new(FGRAPH);
    let command = command.args(["record", "--heap", "-q", "-o"]);
    let recorded = command.arg(&recording).arg("--").arg(&program).output();
    assert_eq!(recorded.unwrap().status.code(), Some(7));
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--json"]).arg(&recording);
    let view = command.output().unwrap();
    let view: Value = serde_json::from_slice(&view.stdout).unwrap();
    assert_eq!(view["calls_without_end"], 3);
    assert_eq!(view["unknown_calls"], 0);
    assert_eq!(view["processes"][0]["heap"]["live_blocks"], 0);
}

#[test]
fn blocks_at_the_end_of_a_program_are_apart_from_live_ones() {
    let (_folder, program) = compile(&needs!(GCC.find()), "pool.c");
    let shown = |options: &[&str], command: &[&str]| {
        let mut fgraph = Command::new(FGRAPH);
        let fgraph = fgraph.arg("heap").args(options).arg("--").args(command);
        String::from_utf8(fgraph.output().unwrap().stdout).unwrap()
    };
    let program = program.to_str().unwrap();
    let text = shown(&[], &[program]);
    let heading = "heap: 1.0 MiB in 1 block never freed before the program ended, ";
    assert!(text.starts_with(heading), "{text}");
    let mut lines = text.lines();
    assert!(
        lines.any(|line| line.starts_with("never freed  blocks")),
        "{text}"
    );
    let text = shown(&["--time", "300ms"], &["sleep", "2"]);
    assert!(text.contains(" blocks when recording ended, "), "{text}");
    assert!(
        text.lines()
            .any(|line| line.trim_start().starts_with("live  blocks")),
        "{text}"
    );
    let ends = |command: &[&str]| {
        let text = shown(&["--json"], command);
        let view: Value = serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
        let processes = view["processes"].as_array().unwrap().iter();
        let ends = processes.map(|it| (it["end"].clone(), it["signal"].clone()));
        ends.collect::<Vec<_>>()
    };
    let killed = ends(&["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed, [("killed".into(), 9.into())]);
    let executed = ends(&["sh", "-c", "exec ls -d /"]);
    let expected = [
        ("executed".into(), Value::Null),
        ("exited".into(), Value::Null),
    ];
    assert_eq!(executed, expected);
}

/// A snapshot of massif's format: time, bytes, kind, and the lines of its tree with depth, number
/// of children, bytes and text.
type Snapshot = (u64, u64, String, Vec<(usize, usize, u64, String)>);

/// Reads massif's format; also returns the unit of time.
fn read_massif(path: &Path) -> (String, Vec<Snapshot>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("desc: "));
    assert!(lines.next().unwrap().starts_with("cmd: "));
    let unit = lines.next().unwrap().strip_prefix("time_unit: ").unwrap();
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for line in lines.filter(|line| !line.starts_with('#')) {
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| !key.contains(':')) {
            if key == "snapshot" {
                assert_eq!(value.parse(), Ok(snapshots.len()));
                snapshots.push(Snapshot::default());
                continue;
            }
            let newest = snapshots.last_mut().unwrap();
            match key {
                "time" => newest.0 = value.parse().unwrap(),
                "mem_heap_B" => newest.1 = value.parse().unwrap(),
                "heap_tree" => newest.2 = value.to_owned(),
                _ => assert_eq!(value, "0", "{key}"),
            }
            continue;
        }
        let node = line.trim_start();
        let (children, rest) = node.strip_prefix('n').unwrap().split_once(": ").unwrap();
        let (bytes, label) = rest.split_once(' ').unwrap();
        let (children, bytes) = (children.parse().unwrap(), bytes.parse().unwrap());
        let depth = line.len() - node.len();
        let node = (depth, children, bytes, label.to_owned());
        snapshots.last_mut().unwrap().3.push(node);
    }
    (unit.to_owned(), snapshots)
}

#[test]
fn massif_has_the_numbers_of_the_view() {
    let (folder, program) = compile(&needs!(GCC.find()), "heap.c");
    let fgraph = |words: &[&str]| {
        let mut command = Command::new(FGRAPH);
        let output = command.args(words).current_dir(folder.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    };
    let program = program.to_str().unwrap();
    fgraph(&["record", "--heap", "-q", "--", program, "log"]);
    let view = view(&fgraph(&["heap", "--json", "-n", "100000"]));
    fgraph(&["heap", "--export", "massif", "-o", "massif.out"]);
    for (nth, process) in view["processes"].as_array().unwrap().iter().enumerate() {
        let id = &process["process"];
        let name = match nth {
            0 => "massif.out".to_owned(),
            _ => format!("massif.out.{id}"),
        };
        let (unit, snapshots) = read_massif(&folder.path().join(name));
        assert!((3..=104).contains(&snapshots.len()), "{}", snapshots.len());
        assert!(snapshots.is_sorted_by_key(|it| it.0));
        assert_eq!((snapshots[0].0, snapshots[0].1), (0, 0));
        let heap = &process["heap"];
        let number = |key: &str| heap[key].as_u64().unwrap();
        let last = snapshots.last().unwrap();
        let peak = snapshots.iter().find(|it| it.2 == "peak").unwrap();
        let most = snapshots.iter().map(|it| it.1).max();
        assert_eq!((peak.1, most), (number("peak_bytes"), Some(peak.1)));
        assert_eq!(last.1, number("live_bytes"));
        let time = match &unit[..] {
            "B" => 2 * number("allocated_bytes") - number("live_bytes"),
            _ => last.0,
        };
        assert_eq!(last.0, time);
        if unit == "ms" {
            assert_eq!(peak.0, number("peak_at_ns") / 1_000_000);
        }
        for (snapshot, key) in [(peak, "peak_bytes"), (last, "live_bytes")] {
            let tree = &snapshot.3;
            assert_eq!((tree[0].0, tree[0].2), (0, snapshot.1));
            for (at, (depth, children, bytes, label)) in tree.iter().enumerate() {
                let inside = tree[at + 1..].iter().take_while(|it| it.0 > *depth);
                let inside: Vec<_> = inside.filter(|it| it.0 == depth + 1).collect();
                assert_eq!(inside.len(), *children, "{label}");
                let sum: u64 = inside.iter().map(|it| it.2).sum();
                assert!(sum <= *bytes && (*depth > 0 || sum == *bytes), "{label}");
            }
            let mut innermost: BTreeMap<String, u64> = BTreeMap::new();
            for (.., bytes, label) in tree.iter().filter(|it| it.0 == 1) {
                let (address, call) = label.split_once(": ").unwrap();
                assert!(address.starts_with("0x"), "{label}");
                if let Some((function, _)) = call.split_once(" (heap.c:") {
                    *innermost.entry(function.to_owned()).or_default() += bytes;
                }
            }
            let mut expected: BTreeMap<String, u64> = BTreeMap::new();
            for path in view["paths"].as_array().unwrap() {
                let call = path["calls"][0].as_str().unwrap_or_default();
                let bytes = path[key].as_u64().unwrap();
                if let Some(function) = call.strip_suffix(" [program]")
                    && path["process"] == *id
                    && path["is_mapping"] == false
                    && bytes > 0
                {
                    *expected.entry(function.to_owned()).or_default() += bytes;
                }
            }
            assert!(!expected.is_empty());
            assert_eq!(innermost, expected, "{key}");
        }
    }
}

#[test]
fn ms_print_shows_the_heap_over_time() {
    let (folder, program) = compile(&needs!(GCC.find()), "pool.c");
    let ms_print = needs!(MS_PRINT.find());
    let mut command = Command::new(FGRAPH);
    let command = command.args(["heap", "--export", "massif", "-o", "massif.out", "--"]);
    let output = command.arg(&program).current_dir(folder.path()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = folder.path().join("massif.out");
    let (_, snapshots) = read_massif(&path);
    let output = Command::new(ms_print).arg(&path).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        format!("Command:            {}", program.display()),
        format!("Number of snapshots: {}", snapshots.len()),
        format!(" Detailed snapshots: [{} (peak)]", snapshots.len() - 1),
        "->100.00% (1,048,576B) 0x".to_owned(),
        ": main (pool.c:".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[test]
fn massif_refuses_options_that_it_would_ignore() {
    for option in [&["--sort", "peak"][..], &["--functions"]] {
        let mut command = Command::new(FGRAPH);
        let command = command.args(["heap", "--export", "massif"]).args(option);
        let output = command.args(["--", "true"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("takes neither --sort nor --functions"),
            "{said}"
        );
    }
}
