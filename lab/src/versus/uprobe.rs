//! The kernel's uprobes and uretprobes, which count.

use std::process::Command;

use fgraph_needs::{CC, CLANG, Need};

use super::programs::{Build, Programs};
use super::row::{Kind, Row, measure};

const fn build(name: &'static str, compiler: Need, function: &'static [&'static str]) -> Build {
    Build {
        name,
        compiler,
        function,
        program: &["uprobe.c"],
    }
}

const PLAIN: Build = build("uprobe-plain", CC, &[]);
/// Some kernels make a call of a NOP of five bytes.
const NOP: Build = build("uprobe-nop", CLANG, &["-fpatchable-function-entry=5"]);

/// Each call may take tens of microseconds.
pub(super) const CALLS: u64 = 20_000;

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let row = |name, build, events| {
        let program = programs.build(build);
        let row = Row::new(name, Kind::Empty, program, move |program, calls| {
            let mut command = Command::new(program);
            command.arg(calls.to_string());
            measure(command.env("UPROBE", if events == 2 { "return" } else { "entry" }))
        });
        Row {
            events,
            ..row.calls(CALLS)
        }
    };
    vec![
        row("uprobe", PLAIN, 1),
        row("uprobe and uretprobe", PLAIN, 2),
        row("uprobe, NOP", NOP, 1),
        row("uprobe and uretprobe, NOP", NOP, 2),
    ]
}
