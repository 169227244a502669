//! Depth of the machine stack at which calls are made.
//!
//! When a processor searches for a store that a load must wait for, it compares only the low 12
//! bits of their addresses. A traced call therefore takes longer if the trampolines' stores to the
//! stack and their loads of the thread's state are equal modulo 4 KiB. The depth at which that
//! happens is chance, and different in each process. So the samples are taken at different depths.

use core::hint::black_box;

/// Does `work` at one of several depths of the stack, 512 bytes apart over 4 KiB, which `sample`
/// chooses.
pub fn at<R>(sample: usize, work: impl FnOnce() -> R) -> R {
    match sample % 8 {
        0 => below::<64, R>(work),
        1 => below::<576, R>(work),
        2 => below::<1088, R>(work),
        3 => below::<1600, R>(work),
        4 => below::<2112, R>(work),
        5 => below::<2624, R>(work),
        6 => below::<3136, R>(work),
        _ => below::<3648, R>(work),
    }
}

/// Does `work` with `N` more bytes of the stack in use.
#[inline(never)]
fn below<const N: usize, R>(work: impl FnOnce() -> R) -> R {
    let bytes = black_box([0u8; N]);
    let result = work();
    black_box(&bytes);
    result
}
