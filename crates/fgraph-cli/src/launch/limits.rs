//! Rings within the limits of the processes that have them.

use fgraph_trace::ring::RingOptions;

/// Makes rings smaller until their file is within the limits of this process, and of others.
pub(super) fn fit(mut options: RingOptions, processes: &[u32]) -> RingOptions {
    let most = most(processes);
    while options.file_len().is_ok_and(|len| len > most) {
        let ring = u64::from(options.sub_buffers) * u64::from(options.sub_buffer_bytes);
        let rings = u64::from(options.rings) * ring;
        let halved = match options.table_bytes {
            table if u64::from(table) > rings && table > LEAST_TABLE => &mut options.table_bytes,
            _ if options.sub_buffers > 2 => &mut options.sub_buffers,
            _ if options.rings > 1 => &mut options.rings,
            // Making them fails, with a reason.
            _ => break,
        };
        *halved = halved.div_ceil(2);
    }
    options
}

/// Bytes of names and descriptions that a small program needs.
const LEAST_TABLE: u32 = 64 << 10;

/// The most bytes of the file.
fn most(processes: &[u32]) -> u64 {
    let files = limit(0, libc::RLIMIT_FSIZE);
    let of_each = processes.iter().map(|&it| limit(it, libc::RLIMIT_AS));
    let least = of_each.min().unwrap_or(u64::MAX);
    // While a process maps its first ring, it has the file twice. The rest is left for the program.
    let addresses = limit(0, libc::RLIMIT_AS).min(least) / 8;
    files.min(addresses)
}

/// Returns a limit of a process, of this one for 0; no limit if it is unknown.
fn limit(process: u32, what: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a place for the limit, and none to be set.
    let got = unsafe {
        libc::prlimit(
            process.cast_signed(),
            what,
            std::ptr::null(),
            &raw mut limit,
        )
    };
    match got {
        0 if limit.rlim_cur != libc::RLIM_INFINITY => limit.rlim_cur,
        _ => u64::MAX,
    }
}
