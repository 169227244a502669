//! System calls that the agent makes in a program, also through `fgraph` and the C library. The
//! command refuses a process in which a filter would kill for one of them.

use libc::c_long;

/// Calls that the agent makes in threads of its own only.
pub const OWN_CALLS: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_brk,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getrandom,
    libc::SYS_kill,
    libc::SYS_lseek,
    libc::SYS_membarrier,
    libc::SYS_newfstatat,
    libc::SYS_poll,
    libc::SYS_prlimit64,
    libc::SYS_pwrite64,
    libc::SYS_readlink,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_statx,
    libc::SYS_writev,
];

/// Calls that the agent makes in its own threads and in all threads of the program.
pub const CALLS: &[c_long] = &[
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_ioctl,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_openat,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_process_vm_readv,
    libc::SYS_read,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write,
];
