//! Reads bytes as an ELF file: no bytes may make that panic, or take long.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fgraph::testing::read_elf(bytes));
