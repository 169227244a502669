//! The layers of our crates.

use super::layers::{Exception, Layers};

/// From top to bottom; each layer uses only those below it.
pub(super) const LAYERS: &[Layers] = &[
    Layers {
        source: "crates/fgraph/src",
        layers: &[
            "api",
            "control",
            "patching",
            "sites",
            "code",
            "unwinding",
            "process",
            "threads",
            "os",
            "report",
            "arch",
        ],
        apart: &[("process", "threads")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-cli/src",
        layers: &[
            "main",
            "config",
            "commands",
            "launch",
            "tree",
            "places",
            "sources",
            "debuginfod",
            "calls",
            "stats",
            "input",
            "table",
            "screen",
            "output",
            "error",
            "action",
            "target",
            "text",
        ],
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-tracers/src",
        layers: &[
            "agent", "control", "locks", "outliers", "probe", "profiler", "recorder", "stack",
            "syscalls", "threads", "trigger", "watchdog", "registry", "tracer", "support",
        ],
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-export/src",
        layers: &["formats", "stacks", "calls", "symbols", "spool"],
        apart: &[("stacks", "spool"), ("calls", "spool")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-trace/src",
        layers: &[
            "graph",
            "recording",
            "live",
            "source",
            "ring",
            "names",
            "values",
            "event",
            "clock",
            "primitive",
            "system_call",
        ],
        apart: &[("graph", "recording"), ("graph", "live")],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-x86_64/src",
        layers: &["trampoline", "patch", "analyze", "emit", "cpu"],
        apart: &[],
        exceptions: &[],
    },
    Layers {
        source: "crates/fgraph-core/src",
        layers: &[
            "dispatch",
            "stop",
            "fgraph",
            "users",
            "regs",
            "thread",
            "stacks",
            "site",
            "callers",
            "snapshot",
            "primitive",
        ],
        apart: &[],
        exceptions: &[
            except(
                "users/registration.rs",
                "dispatch",
                "a user's entry function ends by jumping to the next user's",
            ),
            except(
                "users/short.rs",
                "dispatch",
                "a panic and a lack of room are dealt with in one place",
            ),
        ],
    },
];

const fn except(from: &'static str, to: &'static str, why: &'static str) -> Exception {
    Exception { from, to, why }
}
