//! The hint of `fgraph record` about time that a program spends in unrecorded libraries.

use std::process::Command;

use fgraph_needs::{CC, needs, skip};
use perf_event::Builder;
use perf_event::events::Software;
use tempfile::TempDir;

#[test]
fn a_library_that_takes_most_of_the_time_is_named() {
    let compiler = needs!(CC.find());
    let mut counter = Builder::new(Software::CPU_CLOCK);
    if counter
        .exclude_kernel(true)
        .exclude_hv(true)
        .build()
        .is_err()
    {
        return skip!("the kernel takes no samples here (kernel.perf_event_paranoid)");
    }
    let place = TempDir::new().unwrap();
    let program = place.path().join("searches");
    let mut build = Command::new(compiler);
    let build = build.args(["-g", "-O1", "-o"]).arg(&program);
    let status = build.arg("tests/record/searches.c").status();
    assert!(status.unwrap().success());
    let said = |options: &[&str], command: &[&str]| {
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        recorder.arg("record").args(options).arg("--").args(command);
        let output = recorder.current_dir(place.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        said
    };
    let program = program.to_str().unwrap();
    let end = "% of the program's time outside the kernel is in libc.so.6, which was not \
               recorded: --libs\n";
    // Programs that a program starts count as well.
    let shell = format!("{program}; true");
    for command in [&[program][..], &["sh", "-c", &shell]] {
        let said = said(&[], command);
        assert!(said.ends_with(end), "{command:?}: {said}");
    }
    for options in [&["--libs"][..], &["-F", "search"], &["--quiet"]] {
        let said = said(options, &[program]);
        assert!(!said.contains("--libs"), "{options:?}: {said}");
    }
}
