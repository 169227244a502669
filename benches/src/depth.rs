//! Where on the machine stack calls are made.
//!
//! A processor that looks for the store that a load must wait for compares only the low 12 bits of
//! their addresses. So a traced call takes longer when what the trampolines store on the stack and
//! what is read of the thread's state are the same modulo 4 KiB. Which depth of the stack that is
//! is a matter of chance, and different in each process. So the samples are taken at different
//! depths.

use core::hint::black_box;

/// Does `work` at one of several depths of the stack, 512 bytes apart over 4 KiB: that of `sample`.
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
