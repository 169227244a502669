//! The trampolines' services from the world around them: a process of Linux, or a kernel.
//!
//! | service | process | kernel |
//! |---|---|---|
//! | nothing interrupts the making of a state | signals are blocked | interrupts are disabled |
//! | the running thread is that of its state | by the kernel's thread id | always |
//! | unwinders | libgcc, or another one | none |
//! | cancellation | the C library's | none |
//!
//! Both files have the same items, and the target chooses one.

#[cfg_attr(target_os = "none", path = "host/kernel.rs")]
#[cfg_attr(not(target_os = "none"), path = "host/process.rs")]
#[macro_use]
mod chosen;

pub(super) use chosen::*;
