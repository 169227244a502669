//! Recordings, rings and events, one module for each subject, in one binary.

#![cfg(not(loom))]

#[cfg(not(miri))]
mod hostile;
mod recording;
mod rings;
#[cfg(all(target_os = "linux", not(miri)))]
mod shared;
