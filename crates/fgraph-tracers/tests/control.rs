//! The text files, as the kernel's RFC of 2011 shows them.

use std::ffi::{CStr, CString, c_char, c_int, c_longlong};
use std::fs;
use std::hint::black_box;
use std::io::Read as _;
use std::ptr;
use std::thread;

use fgraph_needs::{CC, TRACEFS, needs};
use fgraph_scenario::{Library, scenario};
use fgraph_tracers::control::Control;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sys_read(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sys_write(n: u64) -> u64 {
    black_box(sys_read(n)) + 2
}

/// The session of the RFC.
const SESSION: &str = include_str!("session.txt");

/// Runs a command as a shell does, with what it prints.
fn run(control: &mut Control, command: &str) -> String {
    let done = if let Some(file) = command.strip_prefix("cat ") {
        control.read(file)
    } else if let Some((text, file)) = command.strip_prefix("echo").unwrap().split_once(" >> ") {
        control.append(file, text).map(|()| String::new())
    } else {
        let (text, file) = command
            .strip_prefix("echo")
            .unwrap()
            .split_once(" > ")
            .unwrap();
        control.write(file, text).map(|()| String::new())
    };
    done.unwrap_or_else(|error| format!("{error}\n"))
}

/// Returns a session's commands and their output.
fn replay(control: &mut Control, session: &str) -> String {
    let commands = session.lines().filter_map(|line| line.strip_prefix("# "));
    commands
        .map(|command| format!("# {command}\n{}", run(control, command)))
        .collect()
}

#[scenario]
fn the_session_of_the_rfc_reads_the_same() {
    let mut control = Control::new();
    assert_eq!(replay(&mut control, SESSION), SESSION);
    sys_write(1);
    let trace = control.read("trace").unwrap();
    assert!(
        trace.contains(": sys_write <-") && !trace.contains("sys_read"),
        "{trace}"
    );
    let profile = control.read("trace_stat/functions").unwrap();
    assert!(
        profile.contains("sys_read") && !profile.contains("sys_write"),
        "{profile}"
    );
    assert_eq!(
        control.read("enabled_functions").unwrap().lines().count(),
        2
    );
    drop(control);
    assert_eq!(fgraph_scenario::patched(), 0);
}

#[scenario]
fn with_one_tracer_the_text_is_the_kernels() {
    let session = "\
# cat current_tracer
nop
# cat set_ftrace_filter
#### all functions enabled ####
# cat set_ftrace_notrace
#### no functions disabled ####
# echo sys_* > set_ftrace_filter
# echo sys_read > set_ftrace_notrace
# echo function_graph > current_tracer
# cat current_tracer
function_graph
# cat set_ftrace_filter
sys_write
# cat set_ftrace_notrace
sys_read
# echo !sys_read >> set_ftrace_notrace
# echo sys_read > set_ftrace_filter
# cat set_ftrace_filter
sys_read
# cat enabled_functions
sys_read (1)
# echo sys_write >> set_ftrace_filter
# cat enabled_functions
sys_read (1)
sys_write (1)
# cat tracing_on
1
# echo 0 > tracing_on
# cat tracing_on
0
# echo nop > current_tracer
# cat function_tracers
";
    let text = replay(&mut Control::new(), session);
    // Functions are listed by address, which is the compiler's choice.
    let swapped = session.replace("sys_read (1)\nsys_write (1)", "sys_write (1)\nsys_read (1)");
    assert!(text == session || text == swapped, "{text}");
}

#[scenario]
fn errors_name_the_wrong_part_and_change_nothing() {
    let session = r#"# echo 1 > function_profile_enabled
# echo sys_read > set_ftrace_filter
# echo sys_write no_such_function > set_ftrace_filter
set_ftrace_filter has no use for 'no_such_function'
# echo !sys_write >> set_ftrace_filter
set_ftrace_filter has no use for '!sys_write'
# echo sys_write:mod: > set_ftrace_filter
set_ftrace_filter has no use for 'sys_write:mod:'
# echo yes > tracing_on
tracing_on cannot be 'yes': 0, 1
# echo wakeup > current_tracer
current_tracer cannot be 'wakeup': function_graph, function, nop
# echo trace > function_tracers
function_tracers cannot be 'trace': reading it shows what it can be
# echo me > set_ftrace_pid
set_ftrace_pid has no use for 'me'
# echo sys_read:jump > set_ftrace_filter
set_ftrace_filter has no use for 'jump'
# echo sys_read:traceoff:often > set_ftrace_filter
set_ftrace_filter has no use for 'often'
# echo sys_read:traceoff no_such_function:traceon > set_ftrace_filter
set_ftrace_filter has no use for 'no_such_function'
# echo !sys_read:traceoff >> set_ftrace_filter
set_ftrace_filter has no use for '!sys_read:traceoff'
# echo no_such_function > set_graph_function
set_graph_function has no use for 'no_such_function'
# echo deep > max_graph_depth
max_graph_depth cannot be 'deep': a number
# echo -1 > tracing_thresh
tracing_thresh cannot be '-1': a number
# echo much > buffer_size_kb
buffer_size_kb cannot be 'much': a number
# echo sundial > trace_clock
trace_clock cannot be 'sundial': reading it shows what it can be
# echo 2 > options/funcgraph-tail
options/funcgraph-tail cannot be '2': 0, 1
# echo 1 > options/no_such_option
there is no file options/no_such_option
# echo funcgraph-tail nonsense > trace_options
trace_options has no use for 'nonsense'
# cat options/funcgraph-tail
0
# echo 2 > snapshot
snapshot cannot be '2': 0, 1
# echo 1 > snapshot
the tracer is off
# cat trace_pipe
the tracer is off
# cat trace_marker
trace_marker cannot be read
# cat per_thread/1/stats
the tracer is off
# cat trace_stat/function1
there is no file trace_stat/function1
# echo 1 > available_tracers
available_tracers cannot be written
# cat no_such_file
there is no file no_such_file
# cat set_ftrace_filter
sys_read
"#;
    assert_eq!(replay(&mut Control::new(), session), session);
    let off = ["trace_marker", "trace_pipe", "trace_stat/functions"];
    for file in Control::new().files() {
        let is_off = off.contains(&&*file);
        assert_eq!(Control::new().read(&file).is_err(), is_off, "{file}");
    }
}

/// The lines above the calls; empty in a text that continues another one.
fn heading(text: &str) -> &str {
    const END: &str = "  |   |   |   |\n";
    text.find(END).map_or("", |at| &text[..at + END.len()])
}

/// The text of calls, without the heading and without the columns before them.
fn calls(text: &str) -> Vec<&str> {
    // The line of a long call may begin with `#` too, so the heading ends with its columns.
    let lines = text[heading(text).len()..].lines();
    lines
        .filter_map(|line| line.split_once("|  "))
        .map(|(_, call)| call)
        .collect()
}

#[scenario]
fn functions_are_taken_out_of_a_list_and_put_back() {
    let session = "\
# echo sys_* > set_ftrace_filter
# echo !sys_w* >> set_ftrace_filter
# cat set_ftrace_filter
sys_read
# echo function > current_tracer
# cat enabled_functions
sys_read (1)
# echo sys_wr* >> set_ftrace_filter
# echo !sys_r* >> set_ftrace_filter
# cat set_ftrace_filter
sys_write
# echo !sys_write >> set_ftrace_filter
# cat set_ftrace_filter
#### all functions enabled ####
# echo getpp*:mod:libc.so* > set_ftrace_filter
# cat set_ftrace_filter
getppid
# echo sys_* > set_ftrace_notrace
# echo !sys_read >> set_ftrace_notrace
# cat set_ftrace_notrace
sys_write
# echo sys_* > set_ftrace_filter
# cat enabled_functions
sys_read (1)
# echo > set_ftrace_notrace
# cat set_ftrace_notrace
#### no functions disabled ####
";
    assert_eq!(replay(&mut Control::new(), session), session);
}

#[scenario]
fn the_shown_columns_can_be_chosen() {
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_*").unwrap();
    control.write("options/funcgraph-retval", "1").unwrap();
    control.write("current_tracer", "function_graph").unwrap();
    sys_write(1);
    let shown = |control: &mut Control| {
        let text = control.read("trace").unwrap();
        calls(&text)
            .iter()
            .map(|call| (*call).to_owned())
            .collect::<Vec<_>>()
    };
    let all = [
        "sys_write() {",
        "  sys_read(); /* ret=0x2 */",
        "} /* sys_write ret=0x4 */",
    ];
    assert_eq!(shown(&mut control), all);
    for (format, end) in [
        ("decimal", "} /* sys_write ret=4 */"),
        ("hex", all[2]),
        ("errno", all[2]),
    ] {
        let option = format!("options/funcgraph-retval-{format}");
        control.write(&option, "1").unwrap();
        assert_eq!(shown(&mut control)[2], end);
        control.write(&option, "0").unwrap();
    }
    control.write("max_graph_depth", "1").unwrap();
    assert_eq!(shown(&mut control), [all[0], all[2]]);
    control.write("max_graph_depth", "0").unwrap();
    control.write("set_graph_function", "sys_read").unwrap();
    assert_eq!(control.read("set_graph_function").unwrap(), "sys_read\n");
    assert_eq!(shown(&mut control), [all[1].trim_start()]);
    control.append("set_graph_function", "!sys_read").unwrap();
    control.write("set_graph_notrace", "sys_r*").unwrap();
    assert_eq!(shown(&mut control), [all[0], all[2]]);
    control.write("set_graph_notrace", "").unwrap();
    control.write("tracing_thresh", "3600000000").unwrap();
    assert_eq!(shown(&mut control), [""; 0]);
    control.write("tracing_thresh", "0").unwrap();
    control
        .write("trace_options", "funcgraph-proc nofuncgraph-cpu")
        .unwrap();
    let text = control.read("trace").unwrap();
    assert!(text.contains("TASK/PID") && !text.contains("CPU"), "{text}");
    let options = control.read("trace_options").unwrap();
    assert!(options.contains("\nnofuncgraph-cpu\n") && options.contains("\nfuncgraph-proc\n"));
    // With arguments it starts anew, as they were not recorded.
    control.write("options/funcgraph-args", "1").unwrap();
    assert_eq!(shown(&mut control), [""; 0]);
    sys_read(7);
    let text = shown(&mut control).join("\n");
    assert!(
        text.starts_with("sys_read(0x7, ") && text.ends_with("ret=0x8 */"),
        "{text}"
    );
}

#[scenario]
fn the_tracer_function_has_a_line_for_each_call() {
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_*").unwrap();
    control.write("current_tracer", "function").unwrap();
    sys_write(1);
    control.write("trace_marker", "half of it\n").unwrap();
    sys_read(1);
    let text = control.read("trace").unwrap();
    let (heading, lines) = text.split_at(text.find("\n ").unwrap() + 1);
    assert!(
        heading.starts_with("# tracer: function\n#\n#           TASK-PID"),
        "{text}"
    );
    let lines: Vec<_> = lines
        .lines()
        .map(|line| line.split_once(": ").unwrap())
        .collect();
    let here = format!("-{:<7} [", fgraph::thread_id());
    assert!(lines.iter().all(|(head, _)| head.contains(&here)), "{text}");
    assert!(lines[0].1.starts_with("sys_write <-"), "{text}");
    assert_eq!(lines[1].1, "sys_read <-sys_write");
    assert_eq!(lines[2].1, "tracing_mark_write: half of it");
    assert!(lines[3].1.starts_with("sys_read <-"), "{text}");
    assert_eq!(lines.len(), 4);
}

#[scenario]
fn a_mark_stands_among_the_calls_of_its_thread() {
    let mut control = Control::new();
    control.write("trace_marker", "to nobody").unwrap();
    control.write("set_ftrace_filter", "sys_*").unwrap();
    control.write("current_tracer", "function_graph").unwrap();
    // Also in a thread that has called nothing yet.
    control.write("trace_marker", "first").unwrap();
    sys_read(1);
    control.write("trace_marker", "second").unwrap();
    control.write("tracing_on", "0").unwrap();
    control.write("trace_marker", "while it is off").unwrap();
    control.write("tracing_on", "1").unwrap();
    let text = control.read("trace").unwrap();
    assert_eq!(calls(&text), ["/* first */", "sys_read();", "/* second */"]);
    // Marks know their processor like calls, so a mark that is first has the columns of a call.
    control.write("trace", "").unwrap();
    sys_read(1);
    let call_first = control.read("trace").unwrap();
    assert_eq!(heading(&text), heading(&call_first));
    control.write("options/markers", "0").unwrap();
    let error = control.write("trace_marker", "none").unwrap_err();
    assert_eq!(error.to_string(), "markers is off");
}

#[scenario]
fn each_call_comes_once_out_of_the_pipe() {
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_read").unwrap();
    control.write("current_tracer", "function_graph").unwrap();
    sys_read(1);
    assert_eq!(calls(&control.read("trace").unwrap()), ["sys_read();"]);
    // The newest events are held back for a millisecond.
    let piped = loop {
        let text = control.read("trace_pipe").unwrap();
        if text.contains("();") {
            break text;
        }
    };
    assert_eq!(calls(&piped), ["sys_read();"]);
    assert_eq!(calls(&control.read("trace_pipe").unwrap()), [""; 0]);
    assert_eq!(calls(&control.read("trace").unwrap()), [""; 0]);
    // A reader that waits ends with the tracer.
    let mut pipe = control.trace_pipe().unwrap();
    let busy = control.trace_pipe().unwrap_err().to_string();
    assert!(
        busy.contains("takes the events out of the rings already"),
        "{busy}"
    );
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    sys_read(2);
    sys_read(3);
    control.write("current_tracer", "nop").unwrap();
    assert_eq!(calls(&reader.join().unwrap()), ["sys_read();"; 2]);
}

#[scenario]
fn a_stalled_reader_delays_no_call_and_every_loss_is_counted() {
    const CALLS: u64 = 200_000;
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_read").unwrap();
    control.write("options/overwrite", "0").unwrap();
    control.write("buffer_size_kb", "128").unwrap();
    control.write("current_tracer", "function").unwrap();
    let mut pipe = control.trace_pipe().unwrap();
    sys_read(0);
    let mut read = vec![0; 1 << 16];
    let mut text = Vec::new();
    let mut next = |text: &mut Vec<u8>| {
        let len = pipe.read(&mut read).unwrap();
        text.extend_from_slice(&read[..len]);
        len
    };
    next(&mut text);
    // Nothing is read until all of these have returned.
    (0..CALLS).for_each(|n| _ = sys_read(n));
    let file = format!("per_thread/{}/stats", fgraph::thread_id());
    let stats = control.read(&file).unwrap();
    let number = |name: &str| -> u64 {
        let rest = stats.split_once(&format!("{name}: ")).unwrap().1;
        rest.lines().next().unwrap().parse().unwrap()
    };
    let dropped = number("dropped events");
    assert_ne!(dropped, 0);
    let written = number("entries") + number("overrun");
    control.write("current_tracer", "nop").unwrap();
    while next(&mut text) != 0 {}
    let text = String::from_utf8(text).unwrap();
    let lost = text.lines().filter_map(|line| {
        let lost = line.split_once("[LOST ")?.1.strip_suffix(" EVENTS]")?;
        lost.parse::<u64>().ok()
    });
    assert_eq!(lost.sum::<u64>(), dropped);
    let lines = text.lines().filter(|line| line.contains(": sys_read <-"));
    // The return of a call whose entry is lost is not recorded, and not counted.
    assert_eq!(lines.count() as u64, written + dropped - (CALLS + 1));
}

#[scenario]
fn functions_without_names_are_shown_by_their_places() {
    const SOURCE: &str = "
            __attribute__((noinline)) static long nameless(long n) {
                __asm__ volatile(\"\" : \"+r\"(n) : : \"memory\"); return n + 1;
            }
            long named(long n) { return nameless(n) + 1; }
        ";
    let options = ["-O1", "-s"];
    let library = needs!(fgraph_scenario::library(
        &CC,
        "nameless.c",
        SOURCE,
        &options
    ));
    // SAFETY: its type.
    let named: extern "C" fn(i64) -> i64 = unsafe { library.get("named") };
    let mut control = Control::new();
    control
        .write("set_ftrace_filter", "*:mod:*nameless*")
        .unwrap();
    control.write("current_tracer", "function_graph").unwrap();
    control.write("function_profile_enabled", "1").unwrap();
    control
        .write("set_ftrace_filter", "*:mod:*nameless*")
        .unwrap();
    assert_eq!(named(1), 3);
    let text = control.read("trace").unwrap();
    let calls = calls(&text);
    assert_eq!((calls[0], calls[2]), ("named() {", "}"), "{text}");
    assert!(
        calls[1].starts_with("  libnameless.so+0x") && calls[1].ends_with("();"),
        "{text}"
    );
    let profile = control.read("trace_stat/functions").unwrap();
    assert!(profile.contains("\nlibnameless.so+0x"), "{profile}");
    control.write("current_tracer", "function").unwrap();
    assert_eq!(named(1), 3);
    let text = control.read("trace").unwrap();
    let lines: Vec<_> = text.lines().skip(4).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[1].contains(": libnameless.so+0x") && lines[1].ends_with(" <-named"),
        "{text}"
    );
}

#[scenario]
fn the_trace_can_be_cleared_and_kept() {
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_*").unwrap();
    control.write("current_tracer", "function_graph").unwrap();
    assert!(
        control
            .read("snapshot")
            .unwrap()
            .contains("Snapshot is freed")
    );
    sys_read(1);
    control.write("snapshot", "1").unwrap();
    control.write("trace", "").unwrap();
    sys_write(1);
    let trace = control.read("trace").unwrap();
    assert_eq!(calls(&trace), ["sys_write() {", "  sys_read();", "}"]);
    for _ in 0..2 {
        assert_eq!(calls(&control.read("snapshot").unwrap()), ["sys_read();"]);
    }
    control.write("snapshot", "0").unwrap();
    assert!(
        control
            .read("snapshot")
            .unwrap()
            .contains("Snapshot is freed")
    );
    // Another clock and another length start anew.
    assert!(control.read("trace_clock").unwrap().contains("mono"));
    control.write("trace_clock", "mono").unwrap();
    assert!(control.read("trace_clock").unwrap().contains("[mono]"));
    assert_eq!(calls(&control.read("trace").unwrap()), [""; 0]);
    assert_eq!(control.read("buffer_size_kb").unwrap(), "512\n");
    control.write("buffer_size_kb", "130").unwrap();
    assert_eq!(control.read("buffer_size_kb").unwrap(), "192\n");
    sys_read(1);
    assert_eq!(calls(&control.read("trace").unwrap()), ["sys_read();"]);
}

#[scenario]
fn functions_have_commands() {
    let mut control = Control::new();
    let session = "\
# echo sys_read > set_ftrace_filter
# echo function_graph > current_tracer
# echo sys_write:traceoff:1 >> set_ftrace_filter
# cat set_ftrace_filter
sys_read
sys_write:traceoff:count=1
";
    assert_eq!(replay(&mut control, session), session);
    sys_read(1);
    // Off before its own call of the other.
    sys_write(1);
    sys_read(1);
    assert_eq!(calls(&control.read("trace").unwrap()), ["sys_read();"]);
    let session = "\
# cat tracing_on
0
# cat set_ftrace_filter
sys_read
sys_write:traceoff:count=0
# echo sys_write:traceon >> set_ftrace_filter
# echo !sys_write:traceoff:0 >> set_ftrace_filter
# cat set_ftrace_filter
sys_read
sys_write:traceon:unlimited
";
    assert_eq!(replay(&mut control, session), session);
    sys_write(1);
    assert_eq!(control.read("tracing_on").unwrap(), "1\n");
    assert_eq!(calls(&control.read("trace").unwrap()), ["sys_read();"; 2]);
    let session = "\
# echo !sys_write:traceon >> set_ftrace_filter
# echo sys_read:snapshot:1 sys_read:stacktrace:1 >> set_ftrace_filter
# echo > trace
# cat set_ftrace_filter
sys_read
sys_read:snapshot:count=1
sys_read:stacktrace:count=1
";
    assert_eq!(replay(&mut control, session), session);
    for n in 0..3 {
        sys_write(n);
    }
    let trace = control.read("trace").unwrap();
    assert_eq!(
        trace.matches("<stack trace>\n => sys_read\n => ").count(),
        1,
        "{trace}"
    );
    assert_eq!(trace.matches("sys_read()").count(), 3, "{trace}");
    // Taken in the first call, so that at most its entry is in it.
    let snapshot = control.read("snapshot").unwrap();
    assert!(
        !snapshot.contains("();") && !snapshot.contains('}'),
        "{snapshot}"
    );
    assert!(
        snapshot.starts_with("# tracer: function_graph"),
        "{snapshot}"
    );
    drop(control);
    assert_eq!(fgraph_scenario::patched(), 0);
}

#[scenario]
fn other_tracers_and_threads_have_files() {
    let mut control = Control::new();
    let session = "\
# cat stack_max_size
0
# echo sys_* > set_ftrace_filter
# echo 1 > stack_tracer_enabled
# echo function_graph > current_tracer
# echo sys_* > set_ftrace_filter
# echo 1 > function_profile_enabled
# echo sys_* > set_ftrace_filter
# cat function_tracers
trace_stack
trace
*trace_profile
";
    assert_eq!(replay(&mut control, session), session);
    let other = thread::spawn(|| {
        sys_write(1);
        fgraph::thread_id()
    });
    let other = other.join().unwrap();
    sys_read(1);
    let here = fgraph::thread_id();
    let bytes: usize = control
        .read("stack_max_size")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(bytes > 0);
    let stack = control.read("stack_trace").unwrap();
    assert!(stack.contains("Location"), "{stack}");
    let profile = control
        .read(&format!("trace_stat/function{other}"))
        .unwrap();
    assert!(profile.contains("sys_write"), "{profile}");
    let profile = control.read(&format!("trace_stat/function{here}")).unwrap();
    assert!(!profile.contains("sys_write"), "{profile}");
    let stats = control.read(&format!("per_thread/{other}/stats")).unwrap();
    assert!(stats.starts_with("entries: 4\noverrun: 0\n"), "{stats}");
    assert!(stats.ends_with("dropped events: 0\n"), "{stats}");
    let files = control.files();
    for file in [
        format!("per_thread/{here}/stats"),
        format!("trace_stat/function{here}"),
    ] {
        assert!(files.contains(&file), "{file}");
        assert!(
            control
                .write(&file, "1")
                .unwrap_err()
                .to_string()
                .ends_with("be written")
        );
    }
    // The profile begins anew, with times that are a function's own.
    control.write("options/graph-time", "0").unwrap();
    sys_write(1);
    let profile = control.read("trace_stat/functions").unwrap();
    let row = profile.lines().find(|line| line.starts_with("sys_write"));
    let words: Vec<_> = row.unwrap().split_whitespace().collect();
    assert_eq!((words[1], words[2]), ("1", words[4]), "{profile}");
    control.write("stack_tracer_enabled", "0").unwrap();
    assert_eq!(control.read("stack_max_size").unwrap(), "0\n");
    assert_eq!(
        control.read("stack_trace").unwrap(),
        "# Stack tracer disabled\n"
    );
}

/// The strings of a list of C's.
///
/// # Safety
///
/// A pointer to pointers to strings, up to one that is null.
unsafe fn strings(list: *mut *mut c_char) -> Vec<String> {
    assert!(!list.is_null());
    // SAFETY: of this function.
    let at = |index| unsafe { *list.add(index) };
    let texts = (0..).map(at).take_while(|text| !text.is_null());
    // SAFETY: as above.
    let string = |text: *mut c_char| unsafe { CStr::from_ptr(text) };
    let own = |text: &CStr| text.to_str().unwrap().to_owned();
    texts.map(|text| own(string(text))).collect()
}

#[scenario]
fn libtracefs_reads_the_files() {
    type File = *const c_char;
    let library = needs!(Library::system(&TRACEFS));
    let directory = fgraph_scenario::directory();
    let mut control = Control::new();
    control.write("set_ftrace_filter", "sys_read").unwrap();
    control.write("current_tracer", "function").unwrap();
    sys_write(1);
    for file in control.files() {
        // Some are only written.
        let Ok(text) = control.read(&file) else {
            continue;
        };
        let path = directory.join(&file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let path = CString::new(directory.to_str().unwrap()).unwrap();
    // SAFETY: their types, as libtracefs declares them; null stands for the directory itself
    // and for any module.
    unsafe {
        let set: unsafe extern "C" fn(File) -> c_int = library.get("tracefs_set_tracing_dir");
        assert_eq!(set(path.as_ptr()), 0);
        let tracers: unsafe extern "C" fn(File) -> *mut *mut c_char =
            library.get("tracefs_tracers");
        let text = control.read("available_tracers").unwrap();
        // It leaves out `nop`.
        let names = text.split_whitespace().filter(|&name| name != "nop");
        let mut expected: Vec<&str> = names.collect();
        let mut found = strings(tracers(path.as_ptr()));
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        let clock: unsafe extern "C" fn(File) -> *mut c_char = library.get("tracefs_get_clock");
        let clock = CStr::from_ptr(clock(ptr::null())).to_str().unwrap();
        let text = control.read("trace_clock").unwrap();
        assert!(text.contains(&format!("[{clock}]")), "{clock}: {text}");
        let is_on: unsafe extern "C" fn(File) -> c_int = library.get("tracefs_trace_is_on");
        assert_eq!(is_on(ptr::null()), 1);
        let number: unsafe extern "C" fn(File, File, *mut c_longlong) -> c_int =
            library.get("tracefs_instance_file_read_number");
        let mut size = 0;
        assert_eq!(
            number(ptr::null(), c"buffer_size_kb".as_ptr(), &mut size),
            0
        );
        let text = control.read("buffer_size_kb").unwrap();
        assert_eq!(size.to_string(), text.trim_end());
        let functions: unsafe extern "C" fn(File, File, *mut *mut *mut c_char) -> c_int =
            library.get("tracefs_filter_functions");
        let mut list = ptr::null_mut();
        assert_eq!(functions(c"sys_*".as_ptr(), ptr::null(), &mut list), 0);
        let found = strings(list);
        assert!(found.iter().any(|name| name == "sys_write"), "{found:?}");
    }
}
