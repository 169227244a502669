//! bpftrace, whose programs the kernel runs at uprobes and uretprobes.

use std::process::Command;

use fgraph_needs::BPFTRACE;

use super::programs::{PLAIN, Programs};
use super::row::{Kind, Row, measure};
use super::uprobe::CALLS;

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let found = BPFTRACE.find();
    let found = found.and_then(|bpftrace| Ok((bpftrace, programs.build(PLAIN)?)));
    let row = Row::new(
        "bpftrace, uprobes",
        Kind::Summed,
        found,
        |(bpftrace, program), calls| {
            let path = program.display();
            // The script prints the number of entries and returns at its end.
            let script = format!(
                "uprobe:{path}:leaf {{ @entered[tid] = nsecs; }} \
             uretprobe:{path}:leaf /@entered[tid]/ {{ \
                 @times = hist(nsecs - @entered[tid]); @events += 2; }} \
             END {{ printf(\"%d\\n\", @events); clear(@events); clear(@entered); }}"
            );
            let command_line = format!("{path} {calls}");
            measure(Command::new(bpftrace).args(["-e", &script, "-c", &command_line]))
        },
    );
    vec![row.calls(CALLS)]
}
