//! Limits on the memory of a process (`setrlimit`), which attaching to it may exceed.

use std::fs;

use crate::error::Error;
use crate::text::size;

/// Bytes that the agent takes with a filter of some functions: itself, its threads and the rings.
const ROOM: u64 = 32 << 20;

/// Name of a limit in `/proc/PID/limits`, of what it limits in `/proc/PID/status`, and for
/// `setrlimit` and `prlimit`.
const LIMITS: [(&str, &str, &str, &str); 2] = [
    ("Max address space", "VmSize:", "RLIMIT_AS", "as"),
    ("Max data size", "VmData:", "RLIMIT_DATA", "data"),
];

/// Words in messages about missing memory, of the kernel, the dynamic linker and the agent.
const SHORT: [&str; 6] = [
    "Cannot allocate memory",
    "Resource temporarily unavailable",
    "failed to map segment",
    "cannot allocate",
    "out of memory",
    "no room for",
];

/// Says which limit leaves less memory than `room`, and what to do.
fn tight(process: u32, limits: &str, status: &str, room: u64) -> Option<String> {
    LIMITS.iter().find_map(|(limit, used, name, option)| {
        let field = |text: &str, name: &str| {
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let limit = field(limits, limit)?;
        let left = limit.saturating_sub(1024 * field(status, used)?);
        (left < room).then(|| {
            format!(
                "its memory is limited to {} ({name}), and {} are left: raise the limit with \
                 `prlimit --pid {process} --{option}=unlimited`",
                size(limit),
                size(left)
            )
        })
    })
}

fn tight_now(process: u32, room: u64) -> Option<String> {
    let [limits, status] = ["limits", "status"]
        .map(|file| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default());
    tight(process, &limits, &status, room)
}

/// Refuses a process without room for the agent: the agent could not report that there.
pub(super) fn check(process: u32) -> Result<(), Error> {
    match tight_now(process, ROOM) {
        Some(why) => Err(Error::Process { process, why }),
        None => Ok(()),
    }
}

/// Adds the limit to an error that it may have caused.
pub(super) fn explained(error: Error) -> Error {
    match error {
        Error::Process { process, why } if SHORT.iter().any(|word| why.contains(word)) => {
            let why = match tight_now(process, u64::MAX) {
                Some(limit) => format!("{why}; {limit}"),
                None => why,
            };
            Error::Process { process, why }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_leaves_too_little_is_named() {
        let limits = |space: &str, data: &str| {
            format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax data size  {data}  unlimited  bytes\n\
                 Max address space  {space}  {space}  bytes\n"
            )
        };
        let status = "VmSize:\t    1024 kB\nVmData:\t     512 kB\n";
        let tight = |space, data| tight(7, &limits(space, data), status, 4 << 20);
        assert_eq!(tight("unlimited", "unlimited"), None);
        assert_eq!(tight("5242880", "4718592"), None);
        let expected = "its memory is limited to 4.0 MiB (RLIMIT_AS), and 3.0 MiB are left: \
                        raise the limit with `prlimit --pid 7 --as=unlimited`";
        assert_eq!(tight("4194304", "4194304").as_deref(), Some(expected));
        let data = tight("unlimited", "0").unwrap();
        assert!(data.contains("(RLIMIT_DATA), and 0 B are left"), "{data}");
    }
}
