//! Reads bytes as a recording: no bytes may make that panic, or take long.

#![no_main]

use std::io::Cursor;

use fgraph_trace::Recording;
use fgraph_trace::graph::{FunctionGraph, Options, ResultFormat};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut recording) = Recording::read(Cursor::new(bytes)) {
        let mut graph = FunctionGraph::new(Options {
            arguments: true,
            result: Some(ResultFormat::Kernel),
            ..Options::default()
        });
        let _ = graph.write_all(&mut recording, &mut std::io::sink());
    }
});
