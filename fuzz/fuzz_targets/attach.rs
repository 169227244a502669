//! Reads bytes as what a process holds and says when a library is loaded into it: no bytes may make
//! that panic, or take long.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fgraph_attach::testing::read_process(bytes));
