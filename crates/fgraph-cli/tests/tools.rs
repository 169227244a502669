//! The subcommands that look at one thing in a real program.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fgraph_needs::{CC, STRACE, needs};
use tempfile::TempDir;

/// A directory with `tests/record/tools.c` as a program.
struct Place(TempDir);

impl Place {
    fn new(cc: &Path) -> Self {
        let place = Self(TempDir::new().unwrap());
        let mut builder = Command::new(cc);
        builder.args(["-g", "-O1", "-pthread", "-o"]);
        builder.arg(place.program()).arg("tests/record/tools.c");
        assert!(builder.status().unwrap().success());
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.path("tools")
    }

    /// A subcommand with options, on the program that does something.
    fn tool(&self, words: &[&str], what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(words).arg("--").arg(self.program()).arg(what);
        command
    }

    /// Returns the output of a subcommand, its errors, and both with its status.
    fn run(&self, words: &[&str], what: &str) -> (String, String, Output) {
        let output = self.tool(words, what).output().unwrap();
        let [out, err] =
            [&output.stdout, &output.stderr].map(|it| String::from_utf8(it.clone()).unwrap());
        (out, err, output)
    }
}

/// A line of `fgraph syscalls --raw`.
#[derive(Debug)]
struct Call {
    process: u32,
    name: String,
    result: i64,
    data: String,
}

impl Call {
    fn parse(line: &str) -> Self {
        let (head, rest) = line.split_once("):(").unwrap();
        let (_, name) = head.split_once('(').unwrap();
        let word = |name: &str| {
            let (_, rest) = rest.split_once(name).unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        let result = word(" ret: 0x");
        Self {
            process: word(" proc: ").parse().unwrap(),
            name: name.trim().to_owned(),
            result: u64::from_str_radix(&result, 16).unwrap() as i64,
            data: rest.split_once(" data: ").unwrap().1.to_owned(),
        }
    }
}

/// Calls of `strace`, by process: the name, and the result if it is a number.
fn traced(folder: &Path) -> Vec<Vec<(String, Option<i64>)>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    // The parent's first.
    files.sort_by_key(|path| fs::read_to_string(path).unwrap().contains("/forked"));
    let calls = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let calls = text.lines().filter_map(|line| {
            let (name, rest) = line.split_once('(')?;
            let (_, result) = rest.rsplit_once(" = ")?;
            let result = result.split(' ').next()?.parse().ok();
            let is_own = ["/no/such\\n", "/executed\""];
            let is_own = is_own.iter().any(|it| line.contains(it));
            Some((name.to_owned(), result, is_own))
        });
        let calls: Vec<_> = calls.collect();
        // Calls of the dynamic linker are not seen.
        let mut seen = Vec::new();
        let mut is_linking = path == &files[0];
        for (name, result, is_own) in calls {
            is_linking &= !is_own;
            if !is_linking {
                is_linking = name == "execve";
                seen.push((name, result));
            }
        }
        seen
    };
    files.iter().map(calls).collect()
}

#[test]
fn system_calls_are_the_same_as_in_strace() {
    let place = Place::new(&needs!(CC.find()));
    let (out, said, output) = place.run(&["syscalls", "--raw"], "calls");
    assert_eq!((output.status.code(), &said[..]), (Some(3), ""));
    let lines = out.lines().filter(|line| *line != "hello");
    let calls: Vec<_> = lines.map(Call::parse).collect();
    assert_eq!(calls[0].data, "/no/such\\nfile");
    assert_eq!(
        (&calls[3].name[..], &calls[3].data[..]),
        ("write", "hello\\n")
    );
    let mut processes: Vec<u32> = Vec::new();
    let mut found: HashMap<u32, Vec<&Call>> = HashMap::new();
    for call in &calls {
        if !processes.contains(&call.process) {
            processes.push(call.process);
        }
        found.entry(call.process).or_default().push(call);
    }
    let strace = needs!(STRACE.find());
    let folder = place.path("strace");
    fs::create_dir(&folder).unwrap();
    let mut command = Command::new(strace);
    command.args(["-ff", "-o"]).arg(folder.join("of"));
    let status = command.arg(place.program()).arg("calls").status().unwrap();
    assert_eq!(status.code(), Some(3));
    let expected = traced(&folder);
    assert_eq!(expected.len(), processes.len());
    for (process, mut expected) in processes.iter().zip(expected) {
        // The C library makes these on its own.
        expected.retain(|(name, _)| !["clone", "set_robust_list"].contains(&&name[..]));
        let found = &found[process];
        let names: Vec<_> = found.iter().map(|call| &call.name).collect();
        let expected_names: Vec<_> = expected.iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected_names);
        for (call, (name, result)) in found.iter().zip(&expected) {
            let is_same = match result {
                // Numbers of processes are other ones.
                _ if ["getpid", "wait4"].contains(&&name[..]) => call.result > 0,
                Some(-1) => call.result < 0,
                Some(result) => call.result == *result,
                None => true,
            };
            assert!(is_same, "{call:?} {result:?}");
        }
    }
}

#[test]
fn system_calls_go_to_a_file() {
    let place = Place::new(&needs!(CC.find()));
    let file = place.path("calls");
    let name = file.to_str().unwrap();
    let (out, ..) = place.run(&["syscalls", "--loud", "-F", "openat", "-o", name], "calls");
    assert_eq!(out, "hello\n");
    let text = fs::read_to_string(&file).unwrap();
    let starts = ["ENTER ", "EXIT ", "ENTER ", "EXIT "];
    assert_eq!(text.lines().count(), starts.len(), "{text}");
    for (line, start) in text.lines().zip(starts) {
        assert!(
            line.starts_with(start) && line.contains(" openat(AT_FDCWD, "),
            "{line}"
        );
    }
    for nothing in [
        &["-F", "malloc"][..],
        &["-N", "*"],
        &["-F", "access", "-F", "acces"],
    ] {
        let words = [&["syscalls"], nothing].concat();
        let (_, said, output) = place.run(&words, "calls");
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1));
    }
    let (_, _, output) = place.run(&["syscalls", "-o", "/no/such/file"], "calls");
    assert_eq!(output.status.code(), Some(4));
    let (out, ..) = place.run(&["syscalls", "--no-follow", "-F", "access"], "calls");
    assert_eq!(out, "hello\n");
}

#[test]
fn system_calls_of_a_process_that_runs_are_shown() {
    let place = Place::new(&needs!(CC.find()));
    let mut program = Command::new(place.program());
    let mut program = program.arg("ticks").stdin(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command.args(["syscalls", "--raw", "-F", "access", "-p"]);
    let command = command.arg(program.id().to_string()).stdout(Stdio::piped());
    let mut shown = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(shown.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(shown.wait().unwrap().success());
    assert_eq!(Call::parse(line.trim_end()).data, "/ticked");
}

#[test]
fn system_calls_of_a_process_that_runs_are_counted() {
    let place = Place::new(&needs!(CC.find()));
    let mut program = Command::new(place.program());
    let mut program = program.arg("ticks").stdin(Stdio::piped()).spawn().unwrap();
    let table = |time: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(["syscalls", "-c", "--time", time, "-p"]);
        let output = command.arg(program.id().to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // A busy machine takes long to come to the next tick.
    let mut tables = ["200ms", "2s", "20s"].iter().map(|time| table(time));
    let found = tables.find(|table| table.lines().any(|line| line.ends_with("  access")));
    let found = found.expect("a tick");
    assert!(found.trim_end().ends_with("  total"), "{found}");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn system_calls_of_the_agents_threads_are_not_shown() {
    let place = Place::new(&needs!(CC.find()));
    let mut program = Command::new(place.program());
    let mut program = program.arg("ticks").stdin(Stdio::piped()).spawn().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let command = command.args(["syscalls", "-p", &program.id().to_string()]);
    let mut shown = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(shown.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("access(") {
        assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
    }
    // SAFETY: a system call. The process is a child, and was not waited for.
    assert_eq!(unsafe { libc::kill(shown.id() as i32, libc::SIGINT) }, 0);
    out.read_to_string(&mut text).unwrap();
    assert!(shown.wait().unwrap().success());
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    let own = [" poll(", " access("].map(|call| format!("{}{call}", program.id()));
    let other = text
        .lines()
        .find(|line| !own.iter().any(|own| line.starts_with(own)));
    assert_eq!(other, None, "{text}");
}

#[test]
fn a_slow_call_is_shown_while_it_runs_and_when_it_ends() {
    let place = Place::new(&needs!(CC.find()));
    let mut command = place.tool(
        &["watch", "--limit", "1ms", "-F", "around", "-F", "slow"],
        "slow",
    );
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line
    };
    // Only now it may end.
    let mut line = next();
    if line.starts_with("around ") {
        // Before `slow` was late itself.
        line = next();
    }
    assert!(line.starts_with("slow [tools] has run for "), "{line}");
    let stack = line.split_once(": ").unwrap().1;
    let names = stack
        .split(" > ")
        .map(|call| call.split(' ').next().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["around", "slow"], "{line}");
    drop(watch.stdin.take());
    let line = next();
    assert!(line.starts_with("slow [tools] took "), "{line}");
    assert!(watch.wait().unwrap().success());
    let (out, ..) = place.run(&["watch", "--limit", "1min"], "locks");
    assert_eq!(out, "");
}

#[test]
fn injected_faults_are_returned_and_counted() {
    let place = Place::new(&needs!(CC.find()));
    let inject = |words: &[&str], more: &[&str]| {
        let words = [&["inject"], words].concat();
        let mut command = place.tool(&words, "opens");
        let output = command.args(more).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (out, said.trim_end().to_owned())
    };
    let (out, said) = inject(&["libc:open*", "errno=ENOENT", "every=10"], &[]);
    assert_eq!(out, "10 failed\n");
    assert!(
        said.starts_with("fgraph: 10 calls changed: 10 of open"),
        "{said}"
    );
    let (out, said) = inject(&["libc:open*", "result=-1", "every=10", "count=3"], &[]);
    assert_eq!(out, "3 failed\n");
    assert!(said.starts_with("fgraph: 3 calls changed"), "{said}");
    let probability = ["libc:open*", "errno=EIO", "probability=0.5", "seed=7"];
    let (first, said) = inject(&probability, &[]);
    let number = first.split(' ').next().unwrap();
    assert!(
        said.starts_with(&format!("fgraph: {number} calls changed")),
        "{said} {first}"
    );
    assert_eq!(
        inject(&probability, &[]).0,
        first,
        "the same seed, other calls"
    );
    let (out, said) = inject(&["libc:open*", "errno=ENOENT", "nth=100"], &[]);
    assert_eq!(out, "1 failed\n", "{said}");
    let (out, said) = inject(&["libc:open*", "errno=ENOENT", "after=90"], &[]);
    let failed: u64 = out.split(' ').next().unwrap().parse().unwrap();
    assert!((1..100).contains(&failed), "{out}{said}");
    // A call that waits has its own result, and counts.
    let since = Instant::now();
    let (out, said) = inject(&["libc:open*", "delay=10ms..11ms", "count=20"], &[]);
    assert_eq!(out, "0 failed\n");
    assert!(said.starts_with("fgraph: 20 calls changed"), "{said}");
    assert!(since.elapsed() >= Duration::from_millis(200));
    // Killed, and counted all the same.
    let (_, said) = inject(&["libc:open*", "errno=ENOENT", "every=4"], &["killed"]);
    assert!(said.starts_with("fgraph: 25 calls changed"), "{said}");
    let wrong = [
        &["libc:open*", "often"][..],
        &["a:mod:", "skip"],
        &["libc:open*", "skip", "from="],
    ];
    for wrong in wrong {
        let (out, said) = inject(wrong, &[]);
        assert_eq!((&out[..], said.lines().count()), ("", 1), "{said}");
    }
}

#[test]
fn calls_fail_that_are_made_inside_a_function() {
    let place = Place::new(&needs!(CC.find()));
    // The failures in 10 rounds: of `opens_directly` as ones, of `reads_comm` inside another
    // function as hundreds, of `reads_comm` by itself as ten thousands.
    for (how, expected) in [
        (&["result=-1", "from=opens_directly"][..], "10"),
        (&["errno=EIO", "from=opens_directly"], "10"),
        (&["errno=EIO", "from=opens_through_another"], "1000"),
        (&["errno=EIO", "from=reads_comm"], "101000"),
        (&["errno=EIO", "from=opens_*", "nth=3"], "1"),
        (
            &["errno=EIO", "from=opens_directly", "from=reads_comm"],
            "101010",
        ),
        (&["result=-1", "from=main"], "101010"),
    ] {
        let words = [&["inject", "libc:open*"], how].concat();
        let (out, said, _) = place.run(&words, "opens from");
        assert_eq!(out.trim_end(), expected, "{how:?}: {said}");
    }
    let (out, said, _) = place.run(
        &["inject", "libc:open*", "skip", "from=nosuch"],
        "opens from",
    );
    assert_eq!(out, "0\n");
    assert!(said.contains("nosuch"), "{said}");
}

/// Makes many calls of few bytes, faster than they can be shown.
const BUSY: &str = r#"
    #include <stdlib.h>
    #include <unistd.h>
    __attribute__((noinline, noipa)) int asks(void) { return access("/no/such", F_OK); }
    int main(void)
    {
        for (int i = 0; i < 60000; i++)
            asks();
        return 0;
    }
"#;

#[test]
fn no_call_of_a_program_that_is_started_is_missing() {
    let (place, compiler) = (TempDir::new().unwrap(), needs!(CC.find()));
    let (source, program) = (place.path().join("busy.c"), place.path().join("busy"));
    fs::write(&source, BUSY).unwrap();
    let mut build = Command::new(compiler);
    assert!(
        build
            .args(["-g", "-o"])
            .args([&program, &source])
            .status()
            .unwrap()
            .success()
    );
    let run = |words: &[&str]| {
        let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = fgraph.args(words).arg("--").arg(&program).output().unwrap();
        let [out, said] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        assert!(said.is_empty(), "{said}");
        out
    };
    let calls = run(&["syscalls"])
        .matches("access(\"/no/such\", F_OK) = -1 ENOENT")
        .count();
    assert_eq!(calls, 60_000);
    let out = run(&["probe", "asks", "count", "count if retval < 0"]);
    let counts: Vec<_> = out
        .lines()
        .map(str::trim)
        .filter(|it| it.starts_with('6'))
        .collect();
    assert_eq!(counts, ["60,000", "60,000"], "{out}");
}

#[test]
fn orders_of_locks_that_can_deadlock_are_shown() {
    let place = Place::new(&needs!(CC.find()));
    let (out, said, output) = place.run(&["locks"], "locks");
    assert!(output.status.success() && said.is_empty(), "{said}");
    let inversions: Vec<_> = out
        .lines()
        .filter(|it| it.starts_with("inversion: "))
        .collect();
    assert_eq!(inversions.len(), 1, "{out}");
    let (last, before) = inversions[0].split_once("; but ").unwrap();
    assert_eq!(last.matches(" backwards+0x").count(), 2, "{last}");
    assert_eq!(before.matches(" forwards+0x").count(), 2, "{before}");
    assert!(
        last.starts_with("inversion: first [tools] was taken by "),
        "{last}"
    );
    assert!(last.contains(" with second [tools] of "), "{last}");
    assert!(!out.contains("fgraph-agent"), "{out}");
    let (held, waited) = out.split_once("0 locks waited for").unwrap();
    let ours = held.lines().skip_while(|line| !line.ends_with(" held"));
    let ours = ours.filter(|line| line.contains("wards+0x"));
    assert!(ours.count() >= 2, "{out}");
    // The threads run one after the other.
    assert!(!waited.contains("wards+0x"), "{out}");
}

/// A thread waits for a lock that another one has taken, in functions of their own.
const WAITS: &str = r#"
    #include <pthread.h>
    #include <unistd.h>
    #define SEEN __attribute__((noinline, noipa))
    static struct { long number; pthread_mutex_t lock; } shared = { 1, PTHREAD_MUTEX_INITIALIZER };
    static volatile int has_taken;
    SEEN static void takes(void)
    {
        pthread_mutex_lock(&shared.lock);
        has_taken = 1;
        /* The C library's value for a lock that a thread waits for. */
        while (__atomic_load_n(&shared.lock.__data.__lock, __ATOMIC_RELAXED) != 2)
            usleep(1000);
        /* So that it waits for longer than the first call of a function takes. */
        usleep(300000);
        pthread_mutex_unlock(&shared.lock);
    }
    SEEN static void *keeps(void *unused) { takes(); has_taken = 2; return unused; }
    SEEN static void asks(void)
    {
        pthread_mutex_lock(&shared.lock);
        pthread_mutex_unlock(&shared.lock);
    }
    int main(void)
    {
        pthread_t thread;
        pthread_create(&thread, 0, keeps, 0);
        while (!has_taken)
            usleep(1000);
        asks();
        pthread_join(thread, 0);
        return 0;
    }
"#;

#[test]
fn a_wait_for_a_lock_has_its_name_and_the_stack_of_the_thread_that_holds_it() {
    let (place, compiler) = (TempDir::new().unwrap(), needs!(CC.find()));
    let (source, program) = (place.path().join("waits.c"), place.path().join("waits"));
    fs::write(&source, WAITS).unwrap();
    let mut build = Command::new(compiler);
    build.args(["-O2", "-fomit-frame-pointer", "-pthread", "-o"]);
    build.args([&program, &source]);
    assert!(build.status().unwrap().success());
    let run = |words: &[&str]| {
        let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        let output = fgraph
            .arg("locks")
            .args(words)
            .arg("--")
            .arg(&program)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let out = run(&["--json", "--stacks"]);
    let view: serde_json::Value = serde_json::from_str(&out).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let starts = |value: &serde_json::Value, expected: &str| {
        assert!(text(value).starts_with(expected), "{out}");
    };
    let waited = &view["waited"][0];
    assert_eq!(text(&waited["name"]), "shared+0x8 [waits]");
    starts(&waited["at"], "asks+0x");
    starts(&waited["stack"][0], "main+0x");
    starts(&waited["holder"]["at"], "takes+0x");
    starts(&waited["holder"]["stack"][0], "keeps+0x");
    assert_ne!(
        waited["holder"]["thread"]["thread"],
        view["held"][0]["process"]
    );
    starts(&view["held"][0]["at"], "takes+0x");
    let out = run(&[]);
    let waited = out.split("1 lock waited for\n").nth(1).unwrap();
    let lines: Vec<&str> = waited.lines().skip(1).take(2).collect();
    assert!(lines[0].contains("  shared+0x8 [waits]  asks+0x"), "{out}");
    assert!(lines[1].starts_with("    held by waits "), "{out}");
    assert!(lines[1].contains(" at takes+0x"), "{out}");
    // With debug information the field has its name.
    assert!(build.arg("-g").status().unwrap().success());
    let out = run(&[]);
    assert!(out.contains("  shared.lock [waits]  asks+0x"), "{out}");
}

#[test]
fn json_has_the_locks_and_their_orders() {
    let place = Place::new(&needs!(CC.find()));
    let (out, said, output) = place.run(&["locks", "--json", "-n", "2"], "locks");
    assert!(output.status.success() && said.is_empty(), "{said}");
    let view = out.lines().next_back().unwrap();
    let view: serde_json::Value = serde_json::from_str(view).unwrap();
    let orders = view["inversions"][0]["orders"].as_array().unwrap();
    let [last, before] = &orders[..] else {
        panic!("{out}");
    };
    assert_eq!(
        [&last["taken"], &last["held"]],
        [&before["held"], &before["taken"]]
    );
    assert!(
        last["taken_at"]
            .as_str()
            .unwrap()
            .starts_with("backwards+0x"),
        "{out}"
    );
    let locks = view["held"].as_array().unwrap();
    assert_eq!(locks.len(), 2, "{out}");
    let longest = |nth: usize| locks[nth]["longest_ns"].as_u64().unwrap();
    assert!(longest(0) >= longest(1) && longest(1) > 0, "{out}");
    assert!(view["held_locks"].as_u64().unwrap() > 2, "{out}");
    // The threads run one after the other.
    assert_eq!(view["waited_locks"], 0, "{out}");
}

#[test]
fn the_deepest_stack_of_each_thread_is_shown() {
    let place = Place::new(&needs!(CC.find()));
    let words = ["stack", "-F", "deep", "-F", "leaf", "-F", "main"];
    let (out, said, output) = place.run(&words, "deep");
    assert!(output.status.success() && said.is_empty(), "{said}");
    let mut stacks: Vec<_> = out.split("\n\n").collect();
    assert_eq!(stacks.len(), 2, "{out}");
    stacks.sort_by_key(|stack| stack.contains(" main [tools]"));
    for (stack, depth, is_main) in [(stacks[0], 9, false), (stacks[1], 3, true)] {
        let calls: Vec<_> = stack.lines().skip(3).collect();
        let of = |name: &str| calls.iter().filter(|it| it.ends_with(name)).count();
        assert_eq!(of(" leaf [tools]"), 1, "{stack}");
        assert_eq!(of(" deep [tools]"), depth, "{stack}");
        assert_eq!(of(" main [tools]"), usize::from(is_main), "{stack}");
        // The calls in between have more than their 4 KiB each.
        for call in &calls[1..depth] {
            let size: usize = call.split_whitespace().nth(2).unwrap().parse().unwrap();
            assert!((4096..8192).contains(&size), "{stack}");
        }
    }
}

#[test]
fn stacks_say_that_older_calls_are_not_known() {
    let place = Place::new(&needs!(CC.find()));
    let words = ["stack", "-F", "deep", "-F", "leaf", "-F", "main"];
    let (out, said, output) = place.run(&words, "deeper");
    assert!(output.status.success() && said.is_empty(), "{said}");
    let older = "(older calls are not reported; the last size includes theirs)";
    assert_eq!(out.matches(older).count(), 1, "{out}");
    assert!(
        out.trim_end().ends_with(older) && !out.contains(" main "),
        "{out}"
    );
    let words = ["stack", "--json", "-F", "deep", "-F", "leaf", "-F", "main"];
    for (what, has_older) in [("deeper", true), ("deep", false)] {
        let (out, _, _) = place.run(&words, what);
        let view: serde_json::Value = serde_json::from_str(&out).unwrap();
        for thread in view["threads"].as_array().unwrap() {
            assert_eq!(thread["has_older"], has_older, "{out}");
        }
    }
    let (out, _, _) = place.run(&["stack", "-F", "deep", "-F", "leaf"], "deep");
    assert!(!out.contains("older calls"), "{out}");
}

#[test]
fn calls_on_wrong_threads_are_shown_once_for_each_place() {
    let place = Place::new(&needs!(CC.find()));
    let rules = place.path("rules");
    let name = rules.to_str().unwrap().to_owned();
    fs::write(&rules, "# rules\nmain: of_main\nworker: tools:of_workers\n").unwrap();
    let (out, said, output) = place.run(&["threads", "--rules", &name], "threads");
    assert!(output.status.success() && said.is_empty(), "{said}");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    let first = "of_main [tools] is the main thread's, called by tools ";
    assert!(
        lines[0].starts_with(first) && lines[0].contains(" at works+0x"),
        "{out}"
    );
    assert!(
        lines[0].contains(", rightly by tools ") && lines[0].contains(" at main+0x"),
        "{out}"
    );
    let second = "of_workers [tools] is not the main thread's, called by tools ";
    assert!(
        lines[1].starts_with(second) && lines[1].contains(" at main+0x"),
        "{out}"
    );
    fs::write(&rules, "main: f\nmian: f\n").unwrap();
    let (_, said, output) = place.run(&["threads", "--rules", &name], "threads");
    assert_eq!(output.status.code(), Some(2));
    let expected =
        format!("fgraph: {name}: line 2: the thread \"mian\" is neither main nor worker\n");
    assert_eq!(said, expected);
}
