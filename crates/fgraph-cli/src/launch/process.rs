//! The ends of processes that need not be children of this one.

use std::io;
use std::os::fd::OwnedFd;

use fgraph_protocol::is_there;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Time within which a process that has freed its memory has ended.
const SOON: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Opens a descriptor of a process, which refers to that process even when its id is reused.
/// Kernels have them since 5.3.
pub(super) fn descriptor(process: u32) -> io::Result<OwnedFd> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    let process = process.ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(process, PidfdFlags::empty())?)
}

/// Returns true if the last thread of a process has ended, even if its parent has not waited for
/// it. Without descriptors of processes, only the parent's wait counts.
pub(super) fn has_ended(process: u32) -> bool {
    match descriptor(process) {
        Ok(fd) => is_readable(&fd, Some(&Timespec::default())),
        Err(_) => !is_there(process),
    }
}

/// Returns true if a process has ended, or frees its memory to end soon. A process has no program
/// then; one whose main thread alone has ended has none either, and goes on.
pub(super) fn is_ending(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe"));
    let has_none = program.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match descriptor(process) {
        Ok(fd) if has_none => is_readable(&fd, Some(&SOON)),
        _ => has_ended(process),
    }
}

/// Waits for the end of a process, without consuming its exit status. Without descriptors of
/// processes it returns at once.
pub(super) fn wait_until_gone(process: u32) {
    if let Ok(fd) = descriptor(process) {
        while !is_readable(&fd, None) {}
    }
}

/// Waits for this time, or without a limit, until the process of a descriptor has ended. Returns
/// true if it has.
fn is_readable(fd: &OwnedFd, time: Option<&Timespec>) -> bool {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut polled, time).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_nobody_waits_for_has_ended() {
        let mut child = Command::new("cat");
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let process = child.id();
        assert!(!has_ended(process) && !has_ended(1) && !is_ending(process));
        drop(child.stdin.take());
        wait_until_gone(process);
        assert!(has_ended(process) && is_ending(process) && is_there(process));
        child.wait().unwrap();
        assert!(has_ended(process) && is_ending(process) && has_ended(0));
    }
}
