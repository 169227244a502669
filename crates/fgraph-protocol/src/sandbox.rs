//! Counts the filters of system calls that a process has.

use std::fs;

/// Returns the number of seccomp filters of the calling thread; `None` if the kernel does not
/// report it. A process inherits the filters of its parent.
#[must_use]
pub fn filters() -> Option<u32> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u32>().ok()
    };
    match value("Seccomp:") {
        None | Some(0) => Some(0),
        // Kernels before Linux 5.9 do not count the filters.
        Some(_) => value("Seccomp_filters:"),
    }
}
