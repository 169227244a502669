//! Names of system calls, by their numbers on x86-64.

use syscalls::Sysno;

/// Returns the name of a system call, if it is known.
#[must_use]
pub fn known_name(number: u64) -> Option<&'static str> {
    let call = Sysno::new(usize::try_from(number).ok()?);
    call.map(|call| call.name())
}

/// Returns the name of a system call; `?` if it is not known.
pub(super) fn name(number: u64) -> &'static str {
    known_name(number).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_that_the_c_library_knows() {
        for (number, expected) in [
            (libc::SYS_read, "read"),
            (libc::SYS_openat, "openat"),
            (libc::SYS_statx, "statx"),
            (libc::SYS_rseq, "rseq"),
            (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
            (libc::SYS_openat2, "openat2"),
            (400, "?"),
            (-1, "?"),
        ] {
            assert_eq!(name(number as u64), expected);
        }
    }
}
