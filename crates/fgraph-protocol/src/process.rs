//! Tells whether a process exists.

use std::io;

/// True if a process with this id exists, even if this one may not signal it.
#[must_use]
pub fn is_there(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().filter(|&process| process > 0) else {
        return false;
    };
    // SAFETY: `kill` reads no memory, and signal 0 is never delivered.
    let sent = unsafe { libc::kill(process, 0) } == 0;
    sent || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_was_waited_for() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(is_there(child.id()) && is_there(std::process::id()) && is_there(1));
        child.wait().unwrap();
        assert!(!is_there(child.id()) && !is_there(0) && !is_there(u32::MAX));
    }
}
