//! Stacks with traced frames, as unwinders and debuggers see them.

use std::backtrace::Backtrace;
use std::hint::black_box;
use std::sync::Mutex;

use fgraph_needs::{GDB, needs, skip};
use fgraph_scenario::{Count, bounded, on_main_thread, part, play, scenario, user};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn backtrace_outermost(n: u64) -> u64 {
    black_box(middle(n)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn middle(n: u64) -> u64 {
    black_box(backtrace_innermost(n)) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C-unwind" fn backtrace_innermost(n: u64) -> u64 {
    match n {
        0 => note("body"),
        1 => panic!("in a traced function"),
        // SAFETY: returns at once.
        2 => unsafe { stop_here() },
        _ => {}
    }
    black_box(n) + 1
}

// No site, so that a debugger's breakpoint does not stand in the way.
std::arch::global_asm!(
    ".pushsection .text.stop_here,\"ax\",@progbits",
    ".globl stop_here",
    ".type stop_here,@function",
    "stop_here:",
    ".cfi_startproc",
    "nop",
    "ret",
    ".cfi_endproc",
    ".size stop_here, . - stop_here",
    ".popsection",
);

unsafe extern "C" {
    fn stop_here();
}

static STACKS: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

#[inline(never)]
fn note(place: &'static str) {
    let stack = Backtrace::force_capture().to_string();
    STACKS.lock().unwrap().push((place, stack));
}

/// Calls the traced functions from a function that is not.
#[unsafe(no_mangle)]
#[inline(never)]
fn caller_that_is_not_traced(n: u64) -> u64 {
    black_box(backtrace_outermost(n))
}

/// Checks that all of `functions` are in `stack`, in this order.
fn assert_shows(stack: &str, functions: &[&str]) {
    let mut rest = stack;
    for function in functions {
        let Some(at) = rest.find(function) else {
            panic!("no {function}, or not there, in\n{stack}");
        };
        rest = &rest[at + function.len()..];
    }
}

const CALLERS: [&str; 4] = [
    "backtrace_outermost",
    "caller_that_is_not_traced",
    "test::run_tests",
    "main",
];

#[scenario]
fn backtraces_show_every_real_caller_down_to_main() {
    on_main_thread(|| {
        caller_that_is_not_traced(0);
        let (_, untraced) = STACKS.lock().unwrap().pop().unwrap();
        assert_shows(&untraced, &["backtrace_innermost", "middle"]);
        assert_shows(&untraced, &CALLERS);
        let filter = "backtrace_outermost middle backtrace_innermost";
        let others = [(); 2].map(|()| fgraph_scenario::register(Count::default(), filter).unwrap());
        let _user = fgraph_scenario::register(
            user(
                |call| {
                    note("entry");
                    assert!(call.function().name().to_string().len() > 3);
                    Some(0u64)
                },
                |_, _| note("return"),
            ),
            filter,
        )
        .unwrap();
        assert_eq!(caller_that_is_not_traced(0), 3);
        let stacks = std::mem::take(&mut *STACKS.lock().unwrap());
        let places: Vec<_> = stacks.iter().map(|(place, _)| *place).collect();
        assert_eq!(
            places,
            [
                "entry", "entry", "entry", "body", "return", "return", "return"
            ]
        );
        // From inside a callback of the innermost one or its body `middle` is a caller, and so on.
        for (index, (_, stack)) in stacks.iter().enumerate() {
            assert_shows(stack, &CALLERS[usize::from(index == 0 || index == 6)..]);
            if (2..=4).contains(&index) {
                assert_shows(stack, &["middle", "backtrace_outermost"]);
            }
        }
        assert_shows(
            &stacks[3].1,
            &["backtrace_innermost", "middle", "backtrace_outermost"],
        );
        drop(others);
    });
}

#[scenario]
fn a_panic_in_a_traced_function_shows_every_caller() {
    if part().is_some() {
        on_main_thread(|| {
            let _user = fgraph_scenario::register(
                Count::default(),
                "backtrace_outermost middle backtrace_innermost",
            )
            .unwrap();
            caller_that_is_not_traced(1);
        });
        return;
    }
    let output = bounded(play("panics").env("RUST_BACKTRACE", "1"));
    assert_eq!(output.status.code(), Some(101));
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text
        .split("thread ")
        .find(|part| part.contains("in a traced function"));
    let stack = first.unwrap_or_else(|| panic!("no message in\n{text}"));
    assert_shows(stack, &["backtrace_innermost", "middle"]);
    assert_shows(stack, &CALLERS);
}

#[scenario]
fn gdb_shows_every_caller() {
    if part().is_some() {
        on_main_thread(|| {
            let _user = fgraph_scenario::register(
                Count::default(),
                "backtrace_outermost middle backtrace_innermost",
            )
            .unwrap();
            assert_eq!(caller_that_is_not_traced(2), 5);
        });
        return;
    }
    let gdb = needs!(GDB.find());
    let this = play("runs");
    let mut command = std::process::Command::new(gdb);
    command.args(["-nx", "-batch"]);
    for line in [
        "set debuginfod enabled off",
        "handle SIGUSR1 nostop noprint pass",
        "break stop_here",
    ] {
        command.args(["-ex", line]);
    }
    command.args([
        "-ex", "run", "-ex", "bt", "-ex", "delete", "-ex", "continue", "--args",
    ]);
    command.arg(this.get_program()).args(this.get_args());
    for (key, value) in this.get_envs() {
        command.env(key, value.unwrap());
    }
    let output = bounded(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if !text.contains("Breakpoint 1, ") {
        let refused = ["ptrace", "Operation not permitted", "personality"];
        if refused.iter().any(|word| errors.contains(word)) {
            return skip!("gdb may not run a program here: {errors}");
        }
    }
    let stack = text
        .split("Breakpoint 1, ")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}\n{errors}"));
    assert_shows(
        stack,
        &["#0 ", "stop_here", "backtrace_innermost", "middle"],
    );
    assert_shows(stack, &CALLERS);
    assert!(
        !errors.contains("corrupt") && !stack.contains("corrupt"),
        "{text}\n{errors}"
    );
    assert!(stack.contains("exited normally"), "{text}\n{errors}");
}
