//! The subcommands that show recordings, on good ones and on bad ones.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fgraph_needs::{CC, CHROMIUM, needs, skip};
use fgraph_trace::event::Kind;
use fgraph_trace::text::is_visible;

use crate::support::{
    other_machine, recording, recording_of, recording_of_fib, recording_of_modules,
    recording_with_losses, recording_without,
};

/// The subcommands that take a recording and nothing else.
const VIEWS: [&str; 5] = ["info", "report", "replay", "outliers", "dump"];

fn fgraph(arguments: &[&str], path: &Path) -> Output {
    let directory = path.parent().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(arguments).current_dir(directory);
    command.output().unwrap()
}

/// Returns the output of a subcommand for the recording.
fn text(arguments: &[&str], path: &Path) -> String {
    let output = fgraph(arguments, path);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// A subcommand fails with this code and one line.
#[track_caller]
fn fails(arguments: &[&str], path: &Path, code: i32) -> String {
    let output = fgraph(arguments, path);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {complaint}"
    );
    assert!(complaint.starts_with("fgraph: "), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(
        !complaint.trim_end().contains(char::is_control),
        "{complaint}"
    );
    complaint
}

#[test]
fn info_names_the_recorded_program() {
    let (_directory, path) = recording();
    let text = text(&["info"], &path);
    for line in [
        r"command    program \x1b[1margument",
        "process    100",
        "threads    2",
        "marks      1",
        "lost       0 events",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.contains("calls      42, "), "{text}");
}

#[test]
fn report_counts_calls_and_their_times() {
    let (_directory, path) = recording();
    let text = text(&["report", "--sort", "total"], &path);
    let lines: Vec<&str> = text.lines().collect();
    // 19 calls of 500 ns and one of 5,000,200, and 100 ns behind each.
    let rows = [
        ("3.100 us", "5.013 ms", "1", "main [program]"),
        ("4.000 us", "5.010 ms", "20", "parse [program]"),
        ("5.006 ms", "5.006 ms", "20", "read [program]"),
    ];
    assert_eq!(lines.len(), 5, "{text}");
    for ((own, total, calls, name), line) in rows.iter().zip(&lines[1..]) {
        let begin = line.trim_start().starts_with(own);
        let end = line.ends_with(&format!("{calls}  {name}"));
        assert!(begin && end && line.contains(total), "{text}");
    }
    assert!(
        lines[4]
            .ends_with(r"evil\x1b]0;owned\x07</script>\u{202e}\u{2028}\u{61c}\u{180e} [program]"),
        "{text}"
    );
}

#[test]
fn functions_that_were_switched_off_are_said_and_named() {
    const NAME: &str = r"evil\x1b]0;owned\x07</script>\u{202e}\u{2028}\u{61c}\u{180e} [program]";
    let (_directory, path) = recording_without(&[3, 4]);
    let shown = |view: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = command.arg(view).arg(&path).output().unwrap();
        [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap())
    };
    let [report, said] = shown("report");
    let expected = "fgraph: 2 functions were not recorded for some time, since that cost too much: \
                    see `fgraph info`\n";
    assert_eq!(said, expected);
    assert!(report.contains(&format!("{NAME} (off for ")), "{report}");
    assert!(report.contains("main [program]\n"), "{report}");
    let [info, _] = shown("info");
    assert!(
        info.contains("off        read [program]: from 0 ns on\n"),
        "{info}"
    );
    let line = format!("off        {NAME}: from 0 ns on\n");
    assert!(info.contains(&line), "{info}");
}

#[test]
fn losses_are_reported_and_calls_around_them_keep_their_durations() {
    let (directory, path) = recording_with_losses();
    let told = "fgraph: 2 events were lost, and with them 2 durations: \
                2 of \\x1b[31mred 100/100, 300 ns to 10.000 us\n";
    for arguments in [&["report"][..], &["graph", "parse"], &["outliers"]] {
        let output = fgraph(arguments, &path);
        assert_eq!(String::from_utf8(output.stderr).unwrap(), told);
    }
    let report = text(&["report", "--sort", "total"], &path);
    let row = |name: &str| {
        let line = report.lines().find(|line| line.contains(name)).unwrap();
        let fields: Vec<&str> = line.split("  ").map(str::trim).collect();
        let fields: Vec<&str> = fields.into_iter().filter(|it| !it.is_empty()).collect();
        // Total, longest, calls and name.
        [2, 7, 8, 9].map(|at| fields[at].to_owned())
    };
    assert_eq!(row("main"), ["1.000 ms", "1.000 ms", "1", "main [program]"]);
    let parse = "parse [program] (1 end missing)";
    assert_eq!(row("parse"), ["9.900 us", "9.900 us", "2", parse]);
    assert_eq!(row("read")[3], "read [program] (1 end missing)");
    let info = text(&["info"], &path);
    let told = "lost       2 events\n           2 of \\x1b[31mred 100/100, 300 ns to 10.000 us\n";
    assert!(info.contains(told), "{info}");
    let output = fgraph(&["export", "csv"], &path);
    let told = String::from_utf8(output.stderr).unwrap();
    let expected = "fgraph: 2 events were lost; the ends of 2 calls are missing";
    assert!(told.lines().any(|line| line == expected), "{told}");
    let rows = fs::read_to_string(directory.path().join("fgraph.csv")).unwrap();
    let lost = rows.lines().filter(|row| row.contains(",missing,"));
    assert_eq!(lost.count(), 2, "{rows}");
}

#[test]
fn report_takes_threads_modules_and_parts() {
    let (_directory, path) = recording();
    let threads = text(&["report", "--by", "thread"], &path);
    assert!(threads.contains(r"\x1b[31mred 100/101"), "{threads}");
    let modules = text(&["report", "--by", "module"], &path);
    assert!(
        modules
            .lines()
            .nth(1)
            .unwrap()
            .ends_with("42  /usr/bin/program"),
        "{modules}"
    );
    // Nothing is known of where the module was loaded.
    let sources = text(&["report", "--by", "source"], &path);
    assert!(
        sources.lines().nth(1).unwrap().ends_with("42  ? [program]"),
        "{sources}"
    );
    let part = text(&["report", "--thread", "101"], &path);
    assert_eq!(part.lines().count(), 2, "{part}");
    let filtered = text(&["report", "-F", "par*", "-F", "!read"], &path);
    assert_eq!(filtered.lines().count(), 2, "{filtered}");
    let first = text(&["report", "-n", "1"], &path);
    assert!(first.ends_with("read [program]\n"), "{first}");
}

#[test]
fn report_diff_shows_the_changes() {
    let (_directory, path) = recording();
    let (other, _) = recording_of(25);
    let old = other.path().join("fgraph.data");
    let old = old.to_str().unwrap();
    let text = text(&["report", "--diff", old, "--sort", "calls"], &path);
    let parse = text
        .lines()
        .find(|line| line.ends_with("parse [program]"))
        .unwrap();
    assert!(parse.contains("20      -5  "), "{text}");
    let (other, _) = recording_of(2_000);
    let old = other.path().join("fgraph.data");
    let less = self::text(&["report", "--diff", old.to_str().unwrap()], &path);
    assert!(less.contains("20  -1,980  "), "{less}");
    let same = self::text(&["report", "--diff", "fgraph.data"], &path);
    assert!(!same.contains(['+', '-']), "{same}");
}

#[test]
fn a_part_without_events_is_said() {
    let (_directory, path) = recording();
    for view in ["report", "replay", "outliers", "dump"] {
        for part in [&["--thread", "1"][..], &["--from", "1h"], &[]] {
            let output = fgraph(&[&[view], part].concat(), &path);
            let said = String::from_utf8_lossy(&output.stderr);
            let text = "no event of fgraph.data is in the part that --thread, --from and --to";
            assert_eq!(said.contains(text), !part.is_empty(), "{view}: {said}");
            assert_eq!(output.status.code(), Some(0), "{view}: {said}");
        }
    }
}

#[test]
fn an_output_never_replaces_the_recording_that_is_read() {
    let (directory, path) = recording();
    let before = fs::read(&path).unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("fgraph.data", &link).unwrap();
    for arguments in [
        &["export", "folded", "-o", "fgraph.data"][..],
        &["export", "csv", "-o", "link"],
        &["diff", "--html", "link", "fgraph.data", "fgraph.data"],
    ] {
        let said = fails(arguments, &path, 2);
        assert!(said.contains("is the file that is read"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), before, "{arguments:?}");
    }
}

#[test]
fn replay_is_the_kernels_function_graph() {
    let (_directory, path) = recording();
    let all = text(&["replay"], &path);
    assert!(all.contains("  0.300 us    |      read();\n"), "{all}");
    assert!(all.contains("              |    parse(0x7) {\n"), "{all}");
    assert!(all.contains("# 5000.000 us |      read();\n"), "{all}");
    let slow = text(&["replay", "-t", "1ms", "--thread", "100"], &path);
    assert_eq!(slow.matches("*/").count(), 4, "{slow}");
    let shallow = text(&["replay", "-D", "1", "--thread", "100"], &path);
    assert!(!shallow.contains("parse"), "{shallow}");
    let reads = text(&["replay", "-F", "read"], &path);
    assert_eq!(reads.matches("read();").count(), 20, "{reads}");
    let without = text(&["replay", "-N", "parse", "--thread", "100"], &path);
    assert!(!without.contains("read"), "{without}");
    let early = text(&["replay", "--to", "1us", "--thread", "100"], &path);
    assert_eq!(early.matches("parse(").count(), 2, "{early}");
    let late = text(&["replay", "--from", "2ms", "--thread", "100"], &path);
    assert_eq!(late.matches("/* read */").count(), 1, "{late}");
}

#[test]
fn graph_shows_callers_and_callees() {
    let (_directory, path) = recording();
    let text = text(&["graph", "parse"], &path);
    let expected = "\
parse: 20 calls, total 5.010 ms, self 4.000 us

       calls         total      %          self  called by
          20      5.010 ms  100.0      4.000 us  main

       calls         total      %          self  calls
          20      5.006 ms   99.9      5.006 ms  read
";
    assert_eq!(text, expected);
    let complaint = fails(&["graph", "absent"], &path, 3);
    let expected = "no function of the recording matches 'absent'; see `fgraph report`";
    assert_eq!(complaint, format!("fgraph: {expected}\n"));
}

#[test]
fn graph_counts_the_time_of_recursive_calls_once() {
    let entries = [0, 100, 200].map(|time| (Kind::Entry, time));
    let returns = [400, 500, 600].map(|time| (Kind::Return, time));
    let (_directory, path) = recording_of_fib(&[entries, returns].concat());
    let text = text(&["graph", "fib", "--depth", "1"], &path);
    let expected = "\
fib: 3 calls, total 600 ns, self 600 ns

       calls         total      %          self  called by
           1        600 ns  100.0        200 ns  (a caller that was not recorded)
           2          0 ns    0.0        400 ns  fib

       calls         total      %          self  calls
";
    assert_eq!(text, expected);
}

#[test]
fn a_call_that_has_not_ended_and_of_which_nothing_came_has_no_time() {
    let (_directory, path) = recording_of_fib(&[(Kind::Entry, 0)]);
    let text = text(&["report"], &path);
    let line = text.lines().last().unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    let expected = [
        "-",
        "0.0",
        "-",
        "-",
        "-",
        "-",
        "-",
        "-",
        "1",
        "fib",
        "[program]",
    ];
    assert_eq!(words, expected);
}

#[test]
fn outliers_are_shown_with_the_calls_inside() {
    let (_directory, path) = recording();
    let text = text(&["outliers"], &path);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("1. parse took 5.000 ms at "), "{text}");
    assert!(
        lines[0].contains("of 20 calls half take at most 5"),
        "{text}"
    );
    assert!(lines[2].ends_with("read"), "{text}");
    assert!(!text.contains("\n2. "), "{text}");
    let two = self::text(&["outliers", "-F", "read", "-n", "2"], &path);
    assert!(two.contains("\n2. read took 300 ns"), "{two}");
}

#[test]
fn views_take_functions_with_their_module_as_record_does() {
    let (_directory, path) = recording();
    for view in [
        &["report", "-F"][..],
        &["replay", "-F"],
        &["replay", "-N"],
        &["outliers", "-F"],
        &["graph"],
    ] {
        let of = |function| text(&[view, &[function]].concat(), &path);
        let expected = of("parse");
        assert_ne!(expected, of("read"), "{view:?}");
        for function in ["program:parse", "program:par*", "parse:mod:program"] {
            // `graph` begins with the pattern.
            let found = of(function).replace(function, "parse");
            assert_eq!(found, expected, "{view:?} {function}");
        }
    }
    let other = fgraph(&["report", "-F", "other:parse"], &path);
    assert_eq!(other.status.code(), Some(3), "{other:?}");
}

#[test]
fn dump_has_a_line_for_each_event() {
    let (_directory, path) = recording();
    let text = text(&["dump"], &path);
    assert_eq!(text.lines().count(), 85, "{text}");
    assert!(text.contains("[-] entry   parse 0x7\n"), "{text}");
    assert!(
        text.contains(r"mark    half\x1b[2J\ndone\u{202e}\u{2028}\u{61c}\u{200b}"),
        "{text}"
    );
    assert!(text.contains("unwound evil"), "{text}");
}

#[test]
fn lists_have_the_requested_number_of_lines() {
    let (_directory, path) = recording();
    let callees = |lines: &str| {
        let all = text(&["graph", "main", "-n", lines], &path);
        let (_, callees) = all.split_once(" calls\n").unwrap();
        let names = callees.lines().map(|line| line.split_whitespace().last());
        names
            .map(Option::unwrap_or_default)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(callees("9"), ["parse", "read"]);
    assert_eq!(callees("1"), ["parse"]);
    assert!(callees("0").is_empty());
    let graph = text(&["graph", "main", "-n", "1", "--json"], &path);
    assert!(
        graph.contains("parse") && !graph.contains("\"read\""),
        "{graph}"
    );
    let lines = |words: &[&str]| text(words, &path).lines().count();
    for (lines_wanted, count) in [("0", 0), ("3", 3), ("1000", 85)] {
        assert_eq!(lines(&["dump", "-n", lines_wanted]), count);
        assert_eq!(lines(&["dump", "--json", "-n", lines_wanted]), count);
    }
    let probe = ["probe", "-i", "fgraph.data", "*", "count by function", "-n"];
    let rows = |count| text(&[&probe[..], &[count]].concat(), &path);
    assert_eq!(rows("1").lines().count(), 2, "{}", rows("1"));
    assert!(rows("9").lines().count() > 2, "{}", rows("9"));
    let json = text(&[&probe[..], &["1", "--json"]].concat(), &path);
    assert_eq!(json.matches("\"key\"").count(), 1, "{json}");
}

#[test]
fn rules_come_from_standard_input_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    command.args(["threads", "--rules", "-", "--", "true"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"# nothing\nhello\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("-: line 2: ") && complaint.contains("a rule is a line"),
        "{complaint}"
    );
}

#[test]
fn exports_are_written_to_the_requested_place() {
    let (directory, path) = recording();
    let formats = [
        "perfetto",
        "chrome",
        "firefox",
        "speedscope",
        "folded",
        "pprof",
        "callgrind",
        "uftrace",
        "ctf",
        "csv",
    ];
    for format in formats {
        let out = directory.path().join(format);
        text(&["export", format, "-o", out.to_str().unwrap()], &path);
        assert!(out.exists(), "{format}");
    }
    let folded = text(&["export", "folded", "-o", "-"], &path);
    assert!(folded.contains("main;parse;read 5005700"), "{folded}");
    text(&["export", "csv"], &path);
    assert!(directory.path().join("fgraph.csv").exists());
    fails(&["export", "ctf", "-o", "-"], &path, 2);
    let complaint = fails(&["export", "csv", "-o", "absent/x.csv"], &path, 4);
    assert_eq!(
        complaint,
        "fgraph: absent/x.csv cannot be made: there is no directory absent\n"
    );
    let output = fgraph(&["export", "perfeto"], &path);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("'perfeto'") && complaint.contains("a similar value exists: 'perfetto'"),
        "{complaint}"
    );
    // Where the whole workspace is built at once, other packages may have asked for pictures.
    let output = fgraph(&["export", "svg"], &path);
    let picture = directory.path().join("fgraph.svg");
    if output.status.success() {
        assert!(fs::read_to_string(picture).unwrap().contains("<svg"));
    } else {
        let complaint = fails(&["export", "svg"], &path, 2);
        assert!(complaint.contains("--features svg"), "{complaint}");
        assert!(!picture.exists() && !cfg!(feature = "svg"));
    }
    for format in ["parquet", "otlp"] {
        let output = fgraph(&["export", format], &path);
        let file = directory.path().join(format!("fgraph.{format}"));
        if output.status.success() {
            let bytes = fs::read(file).unwrap();
            // The machine is that of the recording.
            assert!(bytes.windows(4).any(|it| it == b"host"), "{format}");
        } else {
            let complaint = fails(&["export", format], &path, 2);
            assert!(complaint.contains("--features fleet"), "{complaint}");
            assert!(!file.exists() && !cfg!(feature = "fleet"));
        }
    }
}

#[test]
fn a_page_shows_names_as_text_only() {
    let (directory, path) = recording();
    text(&["export", "html"], &path);
    let page = fs::read_to_string(directory.path().join("fgraph.html")).unwrap();
    // The page's own three scripts end, and nothing that a name says.
    assert_eq!(page.matches("</script>").count(), 3);
    assert!(
        page.contains(r"owned\\x07\u003c/script>"),
        "{}",
        &page[..200]
    );
    let browser = needs!(CHROMIUM.find());
    let url = format!("file://{}", directory.path().join("fgraph.html").display());
    for (tab, shown) in [
        ("functions", "parse"),
        ("outliers", "parse"),
        ("flame", "42 calls"),
        ("timeline", "2 threads"),
    ] {
        let mut command = Command::new(&browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        command.args(["--virtual-time-budget=5000", "--window-size=1000,700"]);
        let profile = format!(
            "--user-data-dir={}",
            directory.path().join("browser").display()
        );
        let output = command
            .arg(profile)
            .arg(format!("{url}#{tab}"))
            .output()
            .unwrap();
        let page = String::from_utf8_lossy(&output.stdout);
        assert!(page.contains("data-ready=\"yes\""), "{tab}: {page}");
        assert!(page.contains(shown), "{tab}: {page}");
    }
}

#[test]
fn completions_and_manual_pages_know_every_subcommand() {
    let (directory, path) = recording();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            text(&["completions", shell], &path).contains("outliers"),
            "{shell}"
        );
    }
    assert!(text(&["completions", "bash"], &path).contains("speedscope"));
    assert!(text(&["man"], &path).contains("fgraph\\-outliers"));
    text(&["man", "pages"], &path);
    for view in VIEWS {
        let page = directory.path().join(format!("pages/fgraph-{view}.1"));
        assert!(fs::read_to_string(page).unwrap().contains("FILE"), "{view}");
    }
}

#[test]
fn files_that_are_no_recording_are_reported_in_one_line() {
    let (directory, path) = recording();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(directory.path().join(name), bytes).unwrap();
    };
    write("empty", b"");
    write("text", b"this is a text, and no recording at all");
    let mut newer = fs::read(&path).unwrap();
    newer[8] = 9;
    write("newer", &newer);
    for view in VIEWS {
        for (name, why) in [
            ("absent", "No such file or directory"),
            ("empty", "not an fgraph recording"),
            ("text", "not an fgraph recording"),
            (
                "newer",
                "a recording of version 9 with features 0x0; a newer fgraph reads it",
            ),
        ] {
            let complaint = fails(&[view, name], &path, 3);
            assert_eq!(complaint, format!("fgraph: {name}: {why}\n"), "{view}");
        }
        let complaint = fails(&[view, "."], &path, 3);
        assert_eq!(complaint, "fgraph: . is a directory\n", "{view}");
    }
}

#[test]
fn a_directory_without_a_recording_says_how_to_make_one() {
    let (directory, _) = recording();
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for view in VIEWS {
        let complaint = fails(&[view], &empty.join("fgraph.data"), 3);
        let expected = "fgraph: no fgraph.data here; run `fgraph record` first\n";
        assert_eq!(complaint, expected, "{view}");
    }
    for (view, option) in [
        (&["heap"][..], "--heap"),
        (&["tasks"], "--tasks"),
        (&["why", "-F", "work"], "--waits"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.arg("--no-config").args(view).current_dir(&empty);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("fgraph: no fgraph.data here; run `fgraph record {option}` first\n");
        assert_eq!((output.status.code(), &*said), (Some(3), &*expected));
    }
}

#[test]
fn options_that_would_be_ignored_are_refused() {
    let (_directory, path) = recording();
    for arguments in [
        &["heap", "-p", "1", "old.data"][..],
        &["heap", "old.data", "--", "true"],
        &["heap", "--growth", "1s", "--", "true"],
        &["tasks", "-p", "1", "old.data"],
        &["tasks", "old.data", "--", "true"],
        &["tasks", "--await", "--", "true"],
        &["why", "-F", "work", "-p", "1", "old.data"],
        &["why", "-F", "work", "--last", "work"],
        &["why", "-F", "work", "--every", "2s", "--", "true"],
    ] {
        let output = fgraph(arguments, &path);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains("cannot be used with"),
            "{arguments:?}: {said}"
        );
    }
    let said = fails(&["functions", "-p", "4194305"], &path, 3);
    let expected = "fgraph: process 4194305 cannot be read: there is no such process\n";
    assert_eq!(said, expected);
}

#[test]
fn a_missing_directory_for_temporary_files_is_named() {
    for arguments in [
        &["why", "-F", "main", "--", "true"][..],
        &["tasks", "--", "true"],
        &["inject", "--campaign", "libc:close", "--", "true"],
        &["mcp"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(arguments).env("TMPDIR", "/no/such");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = "fgraph: /no/such: no temporary file can be made there: ";
        assert!(said.starts_with(expected), "{arguments:?}: {said}");
        assert!(
            said.ends_with("; TMPDIR names another directory\n"),
            "{said}"
        );
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {said}");
    }
}

#[test]
fn a_process_is_expected_by_its_number() {
    let (_directory, path) = recording();
    for arguments in [&["record", "-p", "abc"][..], &["attach", "abc"]] {
        let output = fgraph(arguments, &path);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(
            complaint.contains("a process number is expected"),
            "{complaint}"
        );
    }
}

#[test]
fn a_recording_that_is_cut_short_or_damaged_is_shown_as_far_as_it_goes() {
    let (directory, path) = recording();
    let whole = fs::read(&path).unwrap();
    let broken = directory.path().join("broken");
    let places = (0..whole.len()).step_by(whole.len() / 12 + 1);
    for place in places {
        let cut = whole[..place].to_vec();
        let mut damaged = whole.clone();
        for byte in damaged.iter_mut().skip(place).take(8) {
            *byte ^= 0xa5;
        }
        for (bytes, view) in [(cut, "replay"), (damaged, "report")] {
            fs::write(&broken, bytes).unwrap();
            let output = fgraph(&[view, "broken"], &path);
            let complaint = String::from_utf8(output.stderr).unwrap();
            let code = output.status.code();
            assert!(
                code == Some(1) || code == Some(3),
                "{view} {place}: {complaint}"
            );
            let last = complaint.lines().last().unwrap_or_default();
            assert!(
                last.starts_with("fgraph: broken"),
                "{view} {place}: {complaint}"
            );
        }
    }
    // Without its end, all that was recorded is there.
    let cut = whole[..whole.len() - 28].to_vec();
    fs::write(&broken, cut).unwrap();
    for view in [
        &["info", "broken"][..],
        &["report", "broken"],
        &["report", "--diff", "fgraph.data", "broken"],
        &["graph", "parse", "broken"],
        &["outliers", "broken"],
        &["replay", "broken"],
        &["dump", "broken"],
        &["export", "folded", "broken", "-o", "folded"],
        &["probe", "-i", "broken", "parse", "count"],
    ] {
        let output = fgraph(view, &path);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{view:?}: {complaint}");
        assert!(
            complaint.contains("broken has no end"),
            "{view:?}: {complaint}"
        );
        assert!(!output.stdout.is_empty() || view[0] == "export", "{view:?}");
    }
}

#[test]
fn names_that_are_lost_are_not_made_up() {
    let (directory, path) = recording();
    let mut bytes = fs::read(&path).unwrap();
    // The block with the descriptions is the second one.
    let is_description = |at: &usize| bytes[*at..].starts_with(b"FGBK\x02");
    let at = (0..bytes.len()).find(is_description).unwrap();
    bytes[at + 24] ^= 0xff;
    fs::write(directory.path().join("broken"), bytes).unwrap();
    let output = fgraph(&["report", "broken"], &path);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(shown.contains("<lost name 2>"), "{shown}");
}

/// Returns true for a character that a terminal interprets, or that hides or reverses others.
fn is_obeyed(character: char) -> bool {
    let is_hidden = "\u{202e}\u{2028}\u{2029}\u{61c}\u{180e}\u{200b}\u{2066}".contains(character);
    character != '\n' && (character.is_control() || is_hidden || !is_visible(character))
}

#[test]
fn no_text_export_has_what_a_terminal_obeys() {
    let (directory, path) = recording();
    for format in ["folded", "callgrind", "csv", "uftrace", "ctf", "html"] {
        let output = fgraph(&["export", format, "-o", format], &path);
        assert!(output.status.success(), "{output:?}");
        let out = directory.path().join(format);
        let files = match fs::read_dir(&out) {
            Ok(files) => files.map(|file| file.unwrap().path()).collect(),
            Err(_) => vec![out],
        };
        let texts = files
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok());
        let texts: Vec<_> = texts.collect();
        assert!(texts.iter().any(|text| text.contains("evil")), "{format}");
        for text in texts.iter().filter(|text| !text.contains('\0')) {
            assert!(!text.contains(is_obeyed), "{format}: {text:?}");
        }
    }
}

#[test]
fn many_modules_take_linear_time() {
    let (_directory, path) = recording_of_modules(40_000);
    for arguments in [
        &["info"][..],
        &["report", "--by", "source"],
        &["diff", "fgraph.data", "fgraph.data"],
        &["export", "uftrace", "-o", "uftrace"],
    ] {
        // Seconds of a processor's time; quadratic time is far more.
        let mut limited = Command::new("sh");
        let script = "ulimit -t 20 && exec \"$0\" \"$@\"";
        limited.args(["-c", script, env!("CARGO_BIN_EXE_fgraph")]);
        let limited = limited.args(arguments).current_dir(path.parent().unwrap());
        let output = limited.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
    }
}

#[test]
fn nothing_that_a_terminal_obeys_is_printed() {
    let (_directory, path) = recording();
    let views = VIEWS.iter().map(|view| vec![*view]);
    let more = [
        vec!["graph", "*"],
        vec!["replay", "--proc"],
        vec!["report", "--by", "thread"],
    ];
    for arguments in views.chain(more) {
        let text = text(&arguments, &path);
        assert!(!text.contains(is_obeyed), "{arguments:?}: {text:?}");
    }
}

#[test]
fn colours_are_for_those_who_ask() {
    let (_directory, path) = recording();
    assert!(text(&["report", "--color", "always"], &path).contains("\x1b[1m"));
    assert!(!text(&["report"], &path).contains('\x1b'));
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let (_directory, path) = recording_of(50_000);
    for view in ["replay", "dump"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args([view]).arg(&path);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{view}");
        assert!(output.stderr.is_empty(), "{view}: {output:?}");
    }
}

#[test]
fn without_a_reader_every_view_is_quiet() {
    let (directory, _path) = recording();
    let views = VIEWS.iter().map(|view| vec![*view]);
    let more = [
        &["graph", "*"][..],
        &["probe", "-i", "fgraph.data", "*", "count", "print"],
        &["top", "--", "true"],
        &["live", "--libs", "--", "true"],
        &["watch", "--", "true"],
        &["syscalls", "--", "true"],
        &["locks", "--", "true"],
        &["stack", "--", "true"],
        &["coverage", "--", "true"],
        &["functions", "/bin/true"],
        &["man"],
        &["completions", "bash"],
        &["--help"],
    ];
    for arguments in views.chain(more.map(<[_]>::to_vec)) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(&arguments).current_dir(directory.path());
        let output = command.stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_recording_of_another_machine_is_shown_with_a_line_of_missing_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fgraph.data");
    other_machine(&path);
    let line = "fgraph: fgraph.data: not as recorded: /absent/program is missing, \
                /bin/sh is of another build\n";
    let views = VIEWS.iter().map(|view| vec![*view]);
    let more = [
        &["graph", "*"][..],
        &["report", "--by", "source"],
        &["probe", "-i", "fgraph.data", "*", "count by caller"],
        &["export", "chrome"],
        &["export", "callgrind"],
        &["export", "html"],
    ];
    for arguments in views.chain(more.map(<[_]>::to_vec)) {
        let output = fgraph(&arguments, &path);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        if ["report", "replay"].contains(&arguments[0]) {
            assert_eq!(said, line, "{arguments:?}");
        }
        assert!(said.lines().count() <= 1, "{arguments:?}: {said}");
    }
    let info = text(&["info"], &path);
    assert!(info.contains("/absent/program is missing"), "{info}");
}

#[test]
fn a_full_disk_is_reported() {
    let (_directory, path) = recording();
    let Ok(mut full) = File::options().write(true).open("/dev/full") else {
        panic!("this machine has no /dev/full");
    };
    assert!(full.write(b"x").is_err());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command
        .arg("report")
        .arg(&path)
        .stdout(full)
        .output()
        .unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{complaint}");
    let expected = "fgraph: the output cannot be written: No space left on device\n";
    assert_eq!(complaint, expected);
}

#[test]
fn failed_output_of_messages_changes_no_exit_code() {
    let (_directory, path) = recording();
    for (arguments, code) in [
        (["report", "absent"], 3),
        (["export", "csv"], 0),
        (["graph", "absent"], 3),
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(arguments).current_dir(path.parent().unwrap());
        let output = command.stderr(full).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn functions_are_listed_with_how_they_are_traced() {
    let compiler = needs!(CC.find());
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libtyped.so");
    let mut build = Command::new(compiler);
    let build = build.args(["-g", "-O1", "-shared", "-fPIC", "-o"]);
    let build = build.arg(&library).arg("tests/record/typed.c");
    assert!(build.status().unwrap().success());
    let shown = |arguments: &[&str]| {
        let fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"))
            .arg("functions")
            .args(arguments)
            .output()
            .unwrap();
        let [out, err] = [fgraph.stdout, fgraph.stderr].map(|it| String::from_utf8(it).unwrap());
        (fgraph.status.code().unwrap(), out, err)
    };
    let path = library.to_str().unwrap();
    let (_, listed, _) = shown(&[path]);
    let paint = "paint(name: const char *, times: int) -> enum color  relocated\n";
    assert!(
        listed.contains(paint) && listed.contains(" can be traced: "),
        "{listed}"
    );
    let (_, listed, _) = shown(&[path, "pai*"]);
    assert!(
        listed.contains("\n1 of 1 functions can be traced: 100.00 %\n"),
        "{listed}"
    );
    let (code, _, said) = shown(&[path, "absent"]);
    assert_eq!(
        (code, said.as_str()),
        (3, "fgraph: no function matches absent\n")
    );
    let (code, _, said) = shown(&["tests/record/typed.c"]);
    assert_eq!((code, said.lines().count()), (3, 1), "{said}");
    let (code, _, said) = shown(&["-p", "4194304"]);
    assert_eq!((code, said.lines().count()), (3, 1), "{said}");
    let (_, listed, _) = shown(&["-p", &std::process::id().to_string(), "malloc"]);
    assert!(
        listed.contains("libc.so.6\n") && listed.contains("  malloc"),
        "{listed}"
    );
}

#[test]
fn a_wrong_command_line_is_said_in_plain_words() {
    let (directory, path) = recording();
    for name in ["file", "full"] {
        fs::create_dir_all(directory.path().join("full")).unwrap();
        fs::write(directory.path().join("full").join(name), "").unwrap();
    }
    fs::write(directory.path().join("rules"), "hello").unwrap();
    for (arguments, said) in [
        (
            &["report", "-n", "abc"][..],
            "'--lines <N>': a whole number is expected\n",
        ),
        (
            &["record", "--depth", "0", "--", "true"],
            ": a number from 1 on is expected\n",
        ),
        (
            &["inject", "--campaign", "--jobs", "0", "read", "--", "true"],
            "'--jobs <N>': a number from 1 on is expected\n",
        ),
        (
            &["outliers", "-n", "0"],
            ": a number from 1 on is expected\n",
        ),
        (
            &["outliers", "--least", "200"],
            ": a percentage is a number from 0 to 100\n",
        ),
        (
            &["record"],
            "tip: the program comes behind `--`, or -p PID names a process that runs\n",
        ),
        (
            &["export", "ctf", "-o", "rules"],
            "rules: it is a file, and ctf is a directory\n",
        ),
        (
            &["export", "ctf", "-o", "full"],
            "full: there are files in it, and ctf takes all of it\n",
        ),
        (
            &["functions", "rules"],
            "rules: not a program or library (no ELF file)\n",
        ),
        (
            &["threads", "--rules", "rules", "--", "true"],
            "a rule is a line such as `main: draw_*`",
        ),
        (
            &["syscalls", "-F", "opennat", "--", "true"],
            "'opennat'; did you mean openat?\n",
        ),
        (
            &["ctl", "99999999", "status"],
            "process 99999999: there is no such process\n",
        ),
        (
            &["inject", "open", "errno=ENO", "--", "true"],
            "no error has this name; one is ENOENT\n",
        ),
        (&["man", "rules"], "rules: not a directory\n"),
    ] {
        let output = fgraph(arguments, &path);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains(said), "{arguments:?}: {complaint}");
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn functions_of_a_static_program_are_not_taken_for_those_of_ghc() {
    let compiler = needs!(CC.find());
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("main.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let program = place.path().join("main");
    let mut build = Command::new(compiler);
    let build = build.args(["-static", "-o"]).arg(&program).arg(&source);
    if !build.output().unwrap().status.success() {
        return skip!("no static C library (apt-get install libc6-dev)");
    }
    let listed = text(&["functions", program.to_str().unwrap()], &program);
    assert!(
        listed.contains("  main  ") && !listed.contains("GHC"),
        "{listed}"
    );
}
