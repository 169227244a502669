//! The layers of our crates.

use super::layers::{Exception, Layers};

/// From top to bottom; each layer uses only those below it.
pub(super) const LAYERS: &[Layers] = &[
    Layers {
        source: "crates/fgraph/src",
        layers: "api control patching sites code unwinding process threads os report arch",
        apart: &[("process", "threads")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-cli/src",
        layers: "main config commands launch waiting unmatched inlined places awaits generated \
                 sources debuginfod off input losses overhead json table screen output error \
                 action target python text summary caches directory usage",
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-tracers/src",
        layers: "control locks outliers probe profiler recorder stack syscalls threads \
                 trigger watchdog registry tracer scheduling heap support",
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-protocol/src",
        layers: "request settings values heap which line file_request rings_file own_rings \
                 message plans sandbox process calls",
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-analysis/src",
        layers: "why tasks outliers heap waits locks thread overhead runtimes tree calls losses \
                 addresses stats numbers step python pairs text",
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-export/src",
        layers: "formats stacks states output names spool place directory",
        apart: &[("stacks", "spool"), ("output", "spool")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-trace/src",
        layers: "graph recording live source ring names schedule values pairing event clock \
                 histogram place text primitive system_call",
        apart: &[("graph", "recording"), ("graph", "live")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-x86_64/src",
        layers: "trampoline patch analyze emit saved_call clock cpu",
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-core/src",
        layers: "dispatch stop fgraph users regs thread stacks site callers snapshot primitive",
        apart: &[],
        exceptions: &[
            except(
                "users/registration.rs",
                "dispatch",
                "a user's entry function ends by jumping to the next user's",
            ),
            except(
                "users/fast_path.rs",
                "dispatch",
                "a panic and a lack of room are dealt with in one place",
            ),
        ],
    },
    Layers {
        source: "examples/kernel/src",
        layers: "main scenes start users interrupts work trace queue tasks barrier apic symbols \
                 heap memory boot clock machine serial cpu port",
        apart: &[],
        exceptions: &[],
    },
];

const fn except(from: &'static str, to: &'static str, why: &'static str) -> Exception {
    Exception { from, to, why }
}

/// Files that use each other in a circle, and did when the rule was made: a folder, and the files
/// below it without their extension. The list only shrinks.
#[rustfmt::skip]
pub(super) const CIRCLES: &[(&str, &str)] = &[
    ("benches/src", "functions hijack"),
    ("crates/fgraph-agent/src", "attached controlled"),
    ("crates/fgraph-attach/src", "helper lib"),
    ("crates/fgraph-cli/src", "commands commands/completions commands/man"),
    ("crates/fgraph-cli/src", "commands/record commands/record/flight"),
    ("crates/fgraph-cli/src", "commands/top commands/top/view"),
    ("crates/fgraph-cli/src", "launch/attach launch/guard"),
    // Dispatch calls the users' callbacks, whose writes and panics act on dispatch.
    (
        "crates/fgraph-core/src",
        "dispatch dispatch/enter dispatch/housekeeping dispatch/leave dispatch/library \
         dispatch/lost dispatch/ordered dispatch/unwind fgraph stop users/call users/fast_path \
         users/ops users/registration users/replacement users/write",
    ),
    // A stack has frames, and its first frame names the stack.
    ("crates/fgraph-core/src", "stacks/frame stacks/machine stacks/shadow"),
    // A thread's state has the lists, and their functions take the thread.
    ("crates/fgraph-core/src", "thread/parents thread/state"),
    ("crates/fgraph-symbols/src", "filter filter/index filter/live filter/matcher"),
    ("crates/fgraph-symbols/src", "signature/dwarf signature/dwarf/location"),
    ("crates/fgraph-trace/src", "recording recording/drain recording/read recording/write"),
    (
        "crates/fgraph-trace/src",
        "ring ring/layout ring/memory ring/memory/mapped ring/read ring/table ring/write",
    ),
    ("crates/fgraph-trace/src", "values values/write"),
    ("crates/fgraph-tracers/src", "locks locks/orders"),
    ("crates/fgraph-tracers/src", "probe probe/alone probe/mux"),
    ("crates/fgraph-tracers/src", "profiler profiler/callbacks profiler/table"),
    (
        "crates/fgraph-tracers/src",
        "recorder recorder/allocations recorder/held recorder/record recorder/to_file",
    ),
    // The unwind information names the personality routine, which knows the code's addresses.
    ("crates/fgraph-x86_64/src", "trampoline/body trampoline/personality"),
    // The thread that releases the lock dispatches the events, which may have to take the lock
    // again.
    ("crates/fgraph/src", "control control/fork control/library_events control/users"),
    ("xtask/reliability/tracer/src", "churn lib toggle user"),
    ("xtask/victim/src", "chaos/jumps chaos/ledger chaos/libraries chaos/signals"),
    ("xtask/victim/src", "formula functions"),
];
