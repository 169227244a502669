//! `fgraph probe` and `fgraph coverage` on a real program, and on its recording.

use crate::support::busy::Program;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use fgraph_needs::{CC, GENHTML, PYCOBERTURA, PYTHON, needs};
use tempfile::TempDir;

/// Builds the program whose calls are known.
fn build(place: &TempDir, compiler: &Path, debug: &str) -> String {
    let program = place.path().join("probed");
    let mut build = Command::new(compiler);
    build.args([debug, "-O1", "-rdynamic", "-o"]).arg(&program);
    let status = build.arg("tests/record/probed.c").status();
    assert!(status.unwrap().success());
    program.to_str().unwrap().to_owned()
}

/// Returns the exit code and the output of the command.
fn fgraph(place: &TempDir, arguments: &[&str]) -> (i32, String, String) {
    let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = fgraph.args(arguments).current_dir(place.path()).output();
    let output = output.unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    (output.status.code().unwrap(), out, err)
}

/// The words of each line.
fn words(text: &str) -> Vec<String> {
    let lines = text.lines();
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn calls_are_counted_summed_and_printed() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let probe = |arguments: &[&str]| {
        let all = [&["probe", "probed:take"], arguments, &["--", &program]].concat();
        let (code, out, err) = fgraph(&place, &all);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        let mut lines = words(&out);
        // The program's output may come anywhere.
        lines.retain(|line| line != "13");
        lines
    };
    let counted = probe(&[
        "count",
        "count if retval == -1",
        "sum(size) by caller",
        "avg(arg1) if size < 10",
        "min(size)",
        "max(size / 0)",
        "max(size * 2 + 1) by function",
    ]);
    let expected = [
        "count",
        "11",
        "count if retval == -1",
        "6",
        "sum(size) by caller",
        "1000 second [probed]",
        "45 first [probed]",
        "avg(arg1) if size < 10",
        "4",
        "min(size)",
        "0",
        "max(size / 0)",
        "-",
        "max(size * 2 + 1) by function",
        "2001 take [probed]",
    ];
    assert_eq!(counted, expected);
    let texts = probe(&["hist(str(name))", "hist(arg1)"]);
    let expected = [
        "hist(str(name))",
        "11",
        r#""even" 5 ########################################"#,
        r#""odd\u{1b}[2J" 5 ########################################"#,
        r#""large" 1 ########"#,
        "hist(arg1)",
        "11",
        "0 1 ##########",
        "1 1 ##########",
        "2 to 3 2 ####################",
        "4 to 7 4 ########################################",
        "8 to 15 2 ####################",
        "512 to 1023 1 ##########",
    ];
    assert_eq!(texts, expected);
    let printed = probe(&["print if size > 100 && duration > 0"]);
    let [line] = &printed[..] else {
        panic!("{printed:?}");
    };
    assert!(
        line.starts_with(r#"take(name="large", size=1000) = -1, "#),
        "{line}"
    );
}

#[test]
fn lines_are_told_apart_by_several_keys_and_texts_compared() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let actions = [
        "count by str(name), size > 100",
        r#"sum(size) by function if str(name) != "odd\n" && str(name) == "large""#,
        "count by str(absent)",
    ];
    let all = [&["probe", "take"], &actions[..], &["--", &program]].concat();
    let (code, out, err) = fgraph(&place, &all);
    assert_eq!(code, 0, "{err}");
    let lines = words(&out);
    let expected = [
        actions[0],
        r#"5 "even" 0"#,
        r#"5 "odd\u{1b}[2J" 0"#,
        r#"1 "large" 1"#,
        actions[1],
        "1000 take [probed]",
        actions[2],
        "11 ?",
    ];
    assert_eq!(
        lines
            .iter()
            .filter(|line| *line != "13")
            .collect::<Vec<_>>(),
        expected
    );
    let all = ["probe", "take", "hist(duration)", "--", &program];
    let (code, out, _) = fgraph(&place, &all);
    let has_unit = |line: &&str| {
        [" ns ", " us ", " ms "]
            .iter()
            .any(|unit| line.contains(unit))
    };
    let rows = out.lines().filter(|line| line.contains('#'));
    let rows: Vec<&str> = rows.collect();
    assert_eq!(
        (code, rows.iter().filter(|line| has_unit(line)).count()),
        (0, rows.len()),
        "{out}"
    );
}

#[test]
fn without_debug_information_registers_are_taken() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g0");
    let actions = ["hist(str(arg0)) if arg1 > 100", "sum(arg1)", "sum(size)"];
    let all = [&["probe", "take"], &actions[..], &["--", &program]].concat();
    let (code, out, err) = fgraph(&place, &all);
    let unknown = "fgraph: no call has the argument 'size'; no names are known of those of take: \
                   write arg0 to arg5\n";
    assert_eq!((code, err.as_str()), (0, unknown), "{out}");
    let mut lines = words(&out);
    lines.retain(|line| line != "13");
    let bar = "#".repeat(40);
    let large = format!(r#""large" 1 {bar}"#);
    let expected = [actions[0], "1", &large, actions[1], "1045", actions[2], "0"];
    assert_eq!(lines, expected);
}

#[test]
fn a_recording_is_probed() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let (code, ..) = fgraph(&place, &["record", "--args", "--retval", "--", &program]);
    assert_eq!(code, 0);
    let actions = [
        "sum(size) by caller",
        "count by thread if str(name) == str(retval)",
    ];
    let all = [&["probe", "-i", "fgraph.data", "probed:take"], &actions[..]].concat();
    let (code, out, _) = fgraph(&place, &all);
    let expected = [actions[0], "1000 second", "45 first", actions[1]];
    assert_eq!(
        (code, words(&out)),
        (0, expected.map(str::to_owned).to_vec())
    );
}

/// Calls through the C library, of functions that are not probed, with different stacks.
const NESTED: &str = r#"
    #include <stdlib.h>
    #define SEEN __attribute__((noinline, noipa))
    static volatile int calls;
    SEEN static int inner(int number) { calls++; return number; }
    SEEN static int compare(const void *a, const void *b) { return inner(*(int *)a) - *(int *)b; }
    SEEN static void sorts(int *numbers) { qsort(numbers, 2, sizeof(int), compare); calls++; }
    SEEN static void calls_itself(int depth)
    {
        if (depth > 0)
            calls_itself(depth - 1);
        else
            inner(depth);
        calls++;
    }
    int main(void)
    {
        int numbers[] = {2, 1};
        for (int i = 0; i < 5; i++)
            sorts(numbers);
        calls_itself(2);
        return 0;
    }
"#;

#[test]
fn stacks_of_counted_calls_have_functions_that_are_not_probed() {
    let (place, compiler) = (TempDir::new().unwrap(), needs!(CC.find()));
    let (source, program) = (place.path().join("nested.c"), place.path().join("nested"));
    std::fs::write(&source, NESTED).unwrap();
    let mut build = Command::new(compiler);
    build.args(["-O2", "-fomit-frame-pointer", "-o"]);
    assert!(build.args([&program, &source]).status().unwrap().success());
    let program = program.to_str().unwrap();
    let all = [
        "probe",
        "inner",
        "count by stack",
        "count by thread, stack",
        "--",
        program,
    ];
    let (code, out, err) = fgraph(&place, &all);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let (one, two) = out.split_once("count by thread, stack").unwrap();
    for (part, key) in [(one, ""), (two, " nested")] {
        let lines = words(part);
        let at = |row: &str| lines.iter().position(|line| line.starts_with(row)).unwrap();
        let (sorted, recursive) = (
            &lines[at(&format!("5{key}"))..],
            &lines[at(&format!("1{key}"))..],
        );
        assert_eq!(
            sorted[1..3],
            ["inner [nested]", "compare [nested]"],
            "{out}"
        );
        assert!(sorted[3].ends_with("[libc.so.6]"), "{out}");
        let sorts = sorted
            .iter()
            .position(|line| line == "sorts [nested]")
            .unwrap();
        assert_eq!(sorted[sorts + 1], "main [nested]", "{out}");
        let expected = [
            "inner",
            "calls_itself",
            "calls_itself",
            "calls_itself",
            "main",
        ];
        let expected = expected.map(|name| format!("{name} [nested]"));
        assert_eq!(recursive[1..6], expected, "{out}");
    }
    // A recording has the calls that were recorded.
    let (code, ..) = fgraph(&place, &["record", "--", program]);
    assert_eq!(code, 0);
    let (code, out, _) = fgraph(
        &place,
        &["probe", "-i", "fgraph.data", "inner", "count by stack"],
    );
    let lines = words(&out);
    let expected = ["inner", "compare", "sorts", "main"].map(|name| format!("{name} [nested]"));
    assert_eq!(
        (code, &lines[1][..], &lines[2..6]),
        (0, "5", &expected[..]),
        "{out}"
    );
}

#[test]
fn an_action_that_makes_no_sense_is_refused_with_its_place() {
    let place = TempDir::new().unwrap();
    let (code, out, err) = fgraph(&place, &["probe", "f", "sum(arg0", "--", "true"]);
    let expected = "fgraph: \"sum(arg0\": a ')' is missing, at column 9\n";
    assert_eq!((code, out.as_str(), err.as_str()), (2, "", expected));
    let (code, _, err) = fgraph(&place, &["probe", "f:mod:", "count", "--", "true"]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    let (code, _, err) = fgraph(&place, &["probe", "-i", "absent", "f", "count"]);
    assert_eq!((code, err.lines().count()), (3, 1), "{err}");
}

#[test]
fn calls_without_an_end_are_all_counted() {
    let place = TempDir::new().unwrap();
    let source = place.path().join("looks.c");
    // A function that looks at its return address is traced without returns.
    let text = r#"
        __attribute__((noinline)) void *look(void) {
            __asm__ volatile("");
            return __builtin_return_address(0);
        }
        __attribute__((noinline)) int looks(int n) {
            while (n-- > 0)
                if (!look())
                    return 1;
            return 0;
        }
        int main(void) { return looks(5000) | looks(10); }
    "#;
    std::fs::write(&source, text).unwrap();
    let program = place.path().join("looks");
    let mut build = Command::new(needs!(CC.find()));
    let build = build.args(["-O0", "-o"]).args([&program, &source]);
    assert!(build.status().unwrap().success());
    let program = program.to_str().unwrap();
    for (function, count) in [("look", "5,010"), ("looks:look*", "5,012")] {
        let all = ["probe", function, "count", "--", program];
        let (code, out, err) = fgraph(&place, &all);
        assert_eq!((code, words(&out)[1].as_str()), (0, count), "{err}");
        let (_, _, err) = fgraph(&place, &["record", "-F", function, "--", program]);
        assert!(
            err.starts_with(&format!("fgraph: {count} calls, ")),
            "{err}"
        );
    }
}

#[test]
fn after_a_time_results_are_shown_and_the_program_goes_on() {
    let mut probe = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    probe.args(["probe", "libc:read", "count", "--time", "10ms", "--", "cat"]);
    let probe = probe.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut probe = probe.spawn().unwrap();
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "count");
    assert_eq!(probe.try_wait().unwrap(), None);
    drop(probe.stdin.take());
    assert_eq!(probe.wait().unwrap().code(), Some(0));

    let program = Program::start(&needs!(CC.find()));
    let place = TempDir::new().unwrap();
    let pid = program.child.id().to_string();
    let all = ["probe", "work", "count", "--time", "10ms", "-p", &pid];
    let (code, out, err) = fgraph(&place, &all);
    assert_eq!((code, words(&out)[0].as_str()), (0, "count"), "{err}");
    assert!(program.end().success());
}

#[test]
fn results_so_far_are_shown_while_the_program_goes_on() {
    let mut probe = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    probe.args(["probe", "libc:read", "count", "--interval", "10ms", "--"]);
    let probe = probe.arg("cat").stdin(Stdio::piped());
    let mut probe = probe.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(probe.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let heading = lines.next().unwrap().unwrap();
        assert!(heading.starts_with("after "), "{heading}");
        assert_eq!(lines.next().unwrap().unwrap(), "count");
        lines
            .next()
            .unwrap()
            .unwrap()
            .trim()
            .parse::<u64>()
            .unwrap();
    }
    assert_eq!(probe.try_wait().unwrap(), None);
    drop(probe.stdin.take());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let [.., heading, last] = &rest[..] else {
        panic!("{rest:?}");
    };
    // The read that has found the end.
    assert_eq!((heading.as_str(), last.trim()), ("count", "1"));
    assert_eq!(probe.wait().unwrap().code(), Some(0));
}

#[test]
fn calls_too_deep_to_be_seen_are_reported() {
    let place = TempDir::new().unwrap();
    let source = place.path().join("deep.c");
    let text = r"
        __attribute__((noinline)) int deep(int n) { return n ? 1 + deep(n - 1) : 0; }
        int main(void) { return deep(5000) != 5000 || deep(9) != 9; }
    ";
    std::fs::write(&source, text).unwrap();
    let program = place.path().join("deep");
    let mut build = Command::new(needs!(CC.find()));
    let build = build.args(["-O0", "-o"]).args([&program, &source]);
    assert!(build.status().unwrap().success());
    let program = program.to_str().unwrap();
    let (code, out, err) = fgraph(&place, &["probe", "deep:deep", "count", "--", program]);
    assert_eq!((code, words(&out)[1].as_str()), (0, "4,105"));
    let expected = "fgraph: 4,095 calls inside one another, the most that are seen: 1 x\n";
    assert_eq!(err, expected);
}

#[test]
fn coverage_lists_functions_that_were_never_called() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let options = ["-F", "take", "-F", "first", "-F", "never", "--uncalled"];
    let more = ["--by", "source", "--lcov", "found.info", "--", &program];
    let all = [&["coverage"], &options[..], &more[..]].concat();
    let (code, out, err) = fgraph(&place, &all);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let lines = words(&out);
    let has = |wanted: &str| lines.iter().any(|line| line.starts_with(wanted));
    assert!(
        has("2 3 66.7 ") && has("2 3 66.7 all") && has("never "),
        "{out}"
    );
    assert!(!has("take ") && out.contains("record/probed.c:"), "{out}");
    let (_, few, _) = fgraph(
        &place,
        &[&["coverage", "-n", "0"], &options[..], &more[..]].concat(),
    );
    assert!(
        !few.contains("never ") && words(&few).iter().any(|it| it == "2 3 66.7 all"),
        "{few}"
    );
    let info = std::fs::read_to_string(place.path().join("found.info")).unwrap();
    for line in [
        "FNDA:1,take",
        "FNDA:1,first",
        "FNDA:0,never",
        "FNF:3",
        "FNH:2",
    ] {
        assert!(info.lines().any(|it| it == line), "{info}");
    }
}

#[test]
fn readers_of_coverage_take_its_files() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let run = |kind, file| {
        let options = ["-F", "take", "-F", "first", "-F", "never", kind, file];
        let all = [&["coverage"], &options[..], &["--", &program]].concat();
        let (code, out, err) = fgraph(&place, &all);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        place.path().join(file)
    };
    let drcov = drcov::from_file(run("--drcov", "found.drcov")).unwrap();
    assert_eq!(drcov.modules.len(), 1);
    assert_eq!(drcov.modules[0].path, program);
    let blocks = drcov.basic_blocks.iter();
    let blocks = blocks.map(|block| (block.module_id, block.size));
    assert_eq!(blocks.collect::<Vec<_>>(), [(0, 1); 2]);
    let is_inside = |start: u32| u64::from(start) < drcov.modules[0].end;
    assert!(
        drcov
            .basic_blocks
            .iter()
            .all(|block| is_inside(block.start))
    );

    let mut genhtml = Command::new(needs!(GENHTML.find()));
    let info = run("--lcov", "found.info");
    let pages = place.path().join("pages");
    let output = genhtml.arg(info).arg("-o").arg(pages).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("66.7% (2 of 3 functions)"), "{text}");

    let python = needs!(PYTHON.find());
    needs!(PYCOBERTURA.import());
    let script = "import pycobertura, sys
read = pycobertura.Cobertura(sys.argv[1])
print(read.total_statements(), read.total_hits(), *read.files())";
    let mut python = Command::new(python);
    let xml = run("--cobertura", "found.xml");
    let output = python.args(["-c", script]).arg(xml).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let file = format!("{}/tests/record/probed.c", env!("CARGO_MANIFEST_DIR"));
    assert_eq!(text.trim_end(), format!("3 2 {}", &file[1..]));
}

/// Builds the program with inlined functions.
fn build_inlined(place: &TempDir, compiler: &Path, debug: &str) -> String {
    let program = place.path().join("inlined");
    let mut build = Command::new(compiler);
    build.args([debug, "-O2", "-o"]).arg(&program);
    let status = build.arg("tests/record/inlined.c").status();
    assert!(status.unwrap().success());
    program.to_str().unwrap().to_owned()
}

#[test]
fn functions_that_a_filter_names_and_that_are_inlined_are_said() {
    let place = TempDir::new().unwrap();
    let compiler = needs!(CC.find());
    let program = build_inlined(&place, &compiler, "-g");
    let said = |arguments: &[&str]| {
        let (code, out, err) = fgraph(&place, &[arguments, &["--", &program]].concat());
        let expected = match arguments {
            [.., "hidden" | "libc:get" | "crate:get"] => 126,
            _ => 0,
        };
        assert_eq!(code, expected, "{out}{err}");
        let lines = err.lines().filter(|line| line.contains("inlined at"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let get = "fgraph: get is inlined at 3 places, where no call can be seen: \
               in one at inlined.c:14, one at inlined.c:15, two at inlined.c:20";
    let hidden = "fgraph: hidden is inlined at 1 place, where no call can be seen: \
                  in one at inlined.c:15";
    assert_eq!(
        said(&["record", "-F", "get hidden two"]),
        [format!("{get}; 2 calls of its own"), hidden.to_owned()]
    );
    assert_eq!(said(&["probe", "inlined:get", "count"]), [get]);
    assert_eq!(said(&["top", "-F", "hidden"]), [hidden]);
    // Globs name no function, and other modules have no such function.
    for filter in ["*", "g*", "libc:get", "two", ":mod:inlined", "crate:get"] {
        assert_eq!(said(&["record", "-F", filter]), [""; 0], "{filter}");
    }

    let functions = |arguments: &[&str]| fgraph(&place, &[&["functions"], arguments].concat());
    let (code, out, _) = functions(&[&program, "get", "hidden"]);
    let lines = words(&out);
    assert_eq!(code, 0);
    let has = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
    for (end, count) in [
        ("get(key: int) -> int relocated", 1),
        ("get inlined in one at inlined.c:14", 1),
        ("get inlined in one at inlined.c:15", 1),
        ("get inlined in two at inlined.c:20", 1),
        ("hidden inlined in one at inlined.c:15", 1),
        ("inlined at 4 places, where no call can be seen", 1),
    ] {
        assert_eq!(has(end), count, "{end}: {out}");
    }
    let (code, out, _) = functions(&[&program, "hidden", "--json"]);
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    let inlined = &view["inlined"][0];
    assert_eq!(code, 0);
    assert_eq!(view["functions"].as_array().unwrap().len(), 0);
    assert_eq!(
        (&inlined["caller"], &inlined["line"]),
        (&"one".into(), &15.into())
    );

    // Without debug information, only the function's absence is known.
    let program = build_inlined(&place, &compiler, "-g0");
    let (_, _, err) = fgraph(&place, &["record", "-F", "hidden", "--", &program]);
    assert!(err.contains("no function matches 'hidden'"), "{err}");
    assert!(!err.contains("inlined at"), "{err}");
}

/// The lines about patterns that match nothing.
fn unmatched(err: &str) -> Vec<&str> {
    err.lines()
        .filter(|line| line.contains("no function"))
        .collect()
}

#[test]
fn patterns_that_match_nothing_are_named() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(CC.find()), "-g");
    let near = "fgraph: no function matches 'takke'; did you mean take [probed]?";
    for (command, expected) in [
        (&["record", "-F", "takke", "-F", "take"][..], 0),
        (&["record", "-F", "take takke"], 0),
        (&["record", "--also", "takke"], 0),
        (&["record", "--trigger", "slow:takke>1ms"], 0),
        (&["record", "-F", "takke"], 126),
        (&["record", "--quiet", "--graph-function", "takke"], 126),
        (&["probe", "takke", "count"], 126),
        (&["inject", "takke", "result=0"], 126),
        (&["live", "-F", "takke"], 126),
        (&["top", "-F", "takke"], 126),
        (&["watch", "-F", "takke"], 126),
        (&["stack", "-F", "takke"], 126),
        (&["coverage", "-F", "takke"], 126),
        (&["tasks", "-F", "takke"], 126),
    ] {
        let (code, out, err) = fgraph(&place, &[command, &["--", &program]].concat());
        assert_eq!(code, expected, "{command:?}: {out}{err}");
        let is_near = |line: &&str| line.starts_with(near);
        assert_eq!(err.lines().filter(is_near).count(), 1, "{command:?}: {err}");
    }
    let record = |patterns: &[&str]| {
        let options: Vec<&str> = patterns.iter().flat_map(|it| ["-F", it]).collect();
        let all = [&["record"], &options[..], &["--", &program]].concat();
        let (_, _, err) = fgraph(&place, &all);
        err
    };
    let err = record(&["libc:takke", "take"]);
    assert_eq!(unmatched(&err).len(), 1, "{err}");
    let err = record(&["nothing_like_it"]);
    let advice = format!("'nothing_like_it'; see `fgraph functions {program}`");
    assert!(err.contains(&advice), "{err}");
    assert!(!err.contains("was called"), "{err}");
    // Functions that nothing calls, by all of their names.
    let err = record(&["probed:never", "n?ver", "__libc_system", "probed*"]);
    assert_eq!(unmatched(&err), [""; 0], "{err}");
    assert!(
        err.contains("none of the selected functions was called"),
        "{err}"
    );
    // Several words are several patterns.
    let err = record(&["probed:take probed:first"]);
    assert!(err.starts_with("fgraph: 12 calls"), "{err}");
    for view in [
        &["report", "-F", "takke"][..],
        &["report", "--diff", "fgraph.data", "-F", "takke"],
        &["why", "-F", "takke"],
        &["outliers", "-F", "takke"],
        &["replay", "-F", "takke"],
        &["probe", "-i", "fgraph.data", "takke", "count"],
        &["graph", "takke"],
    ] {
        let (code, _, err) = fgraph(&place, view);
        let expected = "fgraph: no function of the recording matches 'takke'; did you mean take";
        assert!(err.contains(expected), "{view:?}: {err}");
        assert_eq!(code, 3, "{view:?}: {err}");
    }
}

#[test]
fn patterns_that_match_nothing_are_named_while_the_program_runs() {
    let place = TempDir::new().unwrap();
    let rules = place.path().join("rules");
    std::fs::write(&rules, "main: nothing_like_it").unwrap();
    let rules = rules.to_str().unwrap();
    for command in [
        &["record", "-F", "nothing_like_it"][..],
        &["record", "--ring", "overwrite", "-F", "nothing_like_it"],
        &["top", "-F", "nothing_like_it"],
        &["inject", "nothing_like_it", "result=0"],
        &["threads", "--rules", rules],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fgraph"))
            .arg("--no-config")
            .args(command)
            .args(["--", "cat"])
            .current_dir(place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        let line = lines.find(|line| line.contains("'nothing_like_it'"));
        let line = line.unwrap_or_else(|| panic!("{command:?}"));
        assert!(line.contains("loaded later"), "{command:?}: {line}");
        // It ends with its input.
        drop(child.stdin.take());
        assert_eq!(lines.filter(|it| *it == line).count(), 0, "{command:?}");
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(126), "{command:?}");
    }
}

#[test]
fn arguments_that_no_call_has_are_named_at_the_end() {
    let place = TempDir::new().unwrap();
    let compiler = needs!(CC.find());
    for (debug, known) in [
        ("-g", "take has name, size"),
        (
            "-g0",
            "no names are known of those of take: write arg0 to arg5",
        ),
    ] {
        let program = build(&place, &compiler, debug);
        let command = [
            "probe",
            "take",
            "sum(nosuch)",
            "count if arg7 > 0",
            "--",
            &program,
        ];
        let (code, _, err) = fgraph(&place, &command);
        let line = |name: &str| format!("fgraph: no call has the argument '{name}'; {known}\n");
        assert_eq!((code, err), (0, line("arg7") + &line("nosuch")));
    }
}

#[test]
fn patterns_without_a_name_are_refused() {
    let place = TempDir::new().unwrap();
    for command in [
        &["record", "-F", "", "--", "true"][..],
        &["record", "-N", " ", "--", "true"],
        &["record", "--trigger", "call: ", "--", "true"],
        &["probe", "", "count", "--", "true"],
        &["inject", "", "result=0", "--", "true"],
    ] {
        let (code, _, err) = fgraph(&place, command);
        assert_eq!(code, 2, "{command:?}: {err}");
        assert!(err.contains("the name of a function is expected"), "{err}");
    }
}
