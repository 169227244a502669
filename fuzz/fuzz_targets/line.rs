//! Reads bytes as what clients send to the socket of a recorder, and as what it answers: what is
//! understood is understood again when it is written, and the input ends.

#![no_main]

use fgraph_protocol::{Answer, Line};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut input = bytes;
    while let Some(line) = Line::read(&mut input).expect("memory can be read") {
        if let Ok(known) = line {
            assert_eq!(Line::parse(known.to_string().as_bytes()), Ok(known));
        }
    }
    if let Ok(answer @ Answer(Ok(_))) = Answer::read(bytes) {
        let again = Answer::read(answer.to_string().as_bytes());
        assert_eq!(again.expect("it is whole"), answer);
    }
});
