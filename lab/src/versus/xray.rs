//! LLVM's XRay: sleds at entries and exits, and one handler for all functions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fgraph_needs::{CLANG, Missing};

use super::programs::{Build, Programs};
use super::row::{BUFFER, Figures, Kind, Row, failed, measure};

const BUILD: Build = Build {
    name: "xray",
    compiler: CLANG,
    function: &["-fxray-instrument", "-fxray-instruction-threshold=1"],
    program: &["-fxray-instrument", "xray.c"],
};

/// Bytes of one of the recorder's buffers, its default.
const BUFFER_SIZE: u64 = 16 << 10;

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let program = CLANG
        .links(&["-fxray-instrument"], "libclang-rt-14-dev")
        .and_then(|()| programs.build(BUILD));
    let run = |program: &PathBuf, calls: u64| {
        let mut command = Command::new(program);
        command.arg(calls.to_string());
        command
    };
    let off = move |program: &PathBuf, calls| measure(run(program, calls).env("XRAY_OFF", "1"));
    let empty = move |program: &PathBuf, calls| measure(&mut run(program, calls));
    let directory = programs.path("xray-logs");
    let recorded = move |program: &PathBuf, calls| record(program, &directory, calls);
    vec![
        Row::new("XRay, not patched", Kind::Off, program.clone(), off),
        Row::new("XRay, empty handler", Kind::Empty, program.clone(), empty),
        Row::new("XRay, FDR mode", Kind::Recorded, program, recorded),
    ]
}

fn record(program: &PathBuf, directory: &PathBuf, calls: u64) -> Result<Figures, Missing> {
    Programs::empty(directory)?;
    let buffers = BUFFER / BUFFER_SIZE;
    // Else it forgets short calls.
    let options = format!("func_duration_threshold_us=0:buffer_max={buffers}");
    let mut figures = measure(
        Command::new(program)
            .arg(calls.to_string())
            .env("XRAY_RECORD", options)
            .env("XRAY_OPTIONS", "xray_logfile_base=xray-logs/")
            .current_dir(directory.parent().unwrap_or(directory)),
    )?;
    let (mut bytes, mut events) = (0, 0);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let log = fs::read(entry.map_err(failed)?.path()).map_err(failed)?;
        bytes += log.len() as u64;
        events += functions(&log);
    }
    figures.bytes = Some(bytes);
    figures.events = Some(events);
    Ok(figures)
}

/// Returns the number of entries and exits in a log: records of 8 bytes behind a header of 32.
/// All others have 16 bytes and an odd first one.
fn functions(log: &[u8]) -> u64 {
    let (mut at, mut functions) = (32, 0);
    while let Some(first) = log.get(at) {
        let is_function = first & 1 == 0;
        functions += u64::from(is_function);
        at += if is_function { 8 } else { 16 };
    }
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_functions_are_counted() {
        let function = [2, 0, 0, 0, 9, 9, 9, 9];
        let metadata = [[1; 8], [0; 8]].concat();
        let log = [&[0; 32][..], &metadata, &function, &function, &metadata].concat();
        assert_eq!(functions(&log), 2);
        assert_eq!(functions(&[]), 0);
    }
}
