//! Reads bytes as lines of the socket of a recorder: what is understood is understood again when it
//! is written.

#![no_main]

use fgraph_tracers::agent::Line;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(known) = Line::parse(line) {
            assert_eq!(Line::parse(known.to_string().as_bytes()), Ok(known));
        }
    }
});
