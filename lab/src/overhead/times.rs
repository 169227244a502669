//! The processor time of programs.

use std::fs;
use std::io;
use std::time::Duration;

/// The processor time of a process that has ended, and of those that it has waited for.
pub(super) struct Times {
    pub(super) own: Duration,
    pub(super) children: Duration,
}

impl Times {
    /// Reads the times of a process that was not waited for yet.
    pub(super) fn of(process: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // SAFETY: it only asks.
        let rate = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as f64;
        let time = |at: usize| {
            let ticks = fields.get(at).and_then(|text| text.parse::<u64>().ok());
            Duration::from_secs_f64(ticks.unwrap_or(0) as f64 / rate)
        };
        // User and system time, which are the 14th field and the next ones.
        Ok(Self {
            own: time(11) + time(12),
            children: time(13) + time(14),
        })
    }
}

/// Waits until a child has ended, and leaves it to be waited for once more.
pub(super) fn wait_without_reaping(child: u32) -> io::Result<()> {
    // SAFETY: zeros are such a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: it writes to the local.
    match unsafe { libc::waitid(libc::P_PID, child, &mut info, options) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
