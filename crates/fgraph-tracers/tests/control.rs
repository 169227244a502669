//! The text files, as the kernel's RFC of 2011 shows them.

#[path = "../../fgraph/tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::scenario;
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
const SESSION: &str = "\
# echo function > current_tracer
# cat function_tracers
*trace
# echo 1 > function_profile_enabled
# cat function_tracers
trace
*trace_profile
# cat set_ftrace_filter
[ trace] #### all functions enabled ####
[ trace_profile] #### all functions enabled ####
# echo sys_read > set_ftrace_filter
# cat set_ftrace_filter
[ trace] #### all functions enabled ####
[ trace_profile] sys_read
# echo trace > function_tracers
# cat function_tracers
*trace
trace_profile
# echo sys_write > set_ftrace_filter
# cat set_ftrace_filter
[ trace] sys_write
[ trace_profile] sys_read
";

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

/// What a session prints, with its commands.
fn replay(control: &mut Control, session: &str) -> String {
    let commands = session.lines().filter_map(|line| line.strip_prefix("# "));
    commands
        .map(|command| format!("# {command}\n{}", run(control, command)))
        .collect()
}

#[test]
fn the_session_of_the_rfc_reads_the_same() {
    scenario("the_session_of_the_rfc_reads_the_same", || {
        let mut control = Control::new();
        assert_eq!(replay(&mut control, SESSION), SESSION);
        sys_write(1);
        let trace = control.read("trace").unwrap();
        assert!(
            trace.contains("sys_write();") && !trace.contains("sys_read"),
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
        assert_eq!(common::patched(), 0);
    });
}

#[test]
fn with_one_tracer_the_text_is_the_kernels() {
    scenario("with_one_tracer_the_text_is_the_kernels", || {
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
    });
}

#[test]
fn what_is_wrong_is_named_and_changes_nothing() {
    scenario("what_is_wrong_is_named_and_changes_nothing", || {
        let session = "\
# echo 1 > function_profile_enabled
# echo sys_read > set_ftrace_filter
# echo sys_write no_such_function > set_ftrace_filter
\"no_such_function\" is nothing for set_ftrace_filter
# echo !sys_write >> set_ftrace_filter
\"!sys_write\" is nothing for set_ftrace_filter
# echo sys_write:mod: > set_ftrace_filter
\"sys_write:mod:\" is nothing for set_ftrace_filter
# echo yes > tracing_on
\"yes\" is nothing for tracing_on
# echo wakeup > current_tracer
\"wakeup\" is nothing for current_tracer
# echo trace > function_tracers
\"trace\" is nothing for function_tracers
# echo me > set_ftrace_pid
\"me\" is nothing for set_ftrace_pid
# echo 1 > available_tracers
available_tracers cannot be written
# cat no_such_file
there is no file no_such_file
# cat set_ftrace_filter
sys_read
";
        assert_eq!(replay(&mut Control::new(), session), session);
        assert!(Control::files().all(|file| {
            let is_off = file == "trace_stat/functions";
            Control::new().read(file).is_ok() != is_off
        }));
    });
}
