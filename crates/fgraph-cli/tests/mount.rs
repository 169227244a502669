//! `fgraph mount`: `cat` and `echo` on the files of a process that runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::busy::Program;
use fgraph_needs::{CC, needs};

/// Writes to a file as `echo text > file` of a shell does, or `>>`.
fn echo(text: &str, append: bool, file: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = match append {
        true => options.append(true).open(file)?,
        false => options.write(true).truncate(true).open(file)?,
    };
    file.write_all(format!("{text}\n").as_bytes())
}

#[test]
fn files_are_read_and_written_as_the_kernels() {
    let cc = needs!(CC.find());
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return fgraph_needs::skip!(
            "no /dev/fuse (modprobe fuse; in containers --device): {error}"
        );
    }
    let program = Program::start(&cc);
    let text = program.text();
    let folder = tempfile::tempdir().unwrap();
    let pid = &*program.child.id().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let mounts = command.args(["mount", "-p", pid]).arg(folder.path());
    let mut mounts = mounts.stderr(Stdio::piped()).spawn().unwrap();
    let file = |name: &str| folder.path().join(name);
    let until = Instant::now() + Duration::from_secs(60);
    while !file("current_tracer").exists() {
        if mounts.try_wait().unwrap().is_some() {
            let output = mounts.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            return fgraph_needs::skip!("mounting takes rights (root, or fuse3): {said}");
        }
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(20));
    }
    let cat = |name: &str| fs::read_to_string(file(name)).unwrap();
    assert_eq!(cat("current_tracer"), "nop\n");
    echo("sys_read", false, &file("set_ftrace_filter")).unwrap();
    echo("sys_write", true, &file("set_ftrace_filter")).unwrap();
    let mut filter: Vec<String> = cat("set_ftrace_filter")
        .lines()
        .map(str::to_owned)
        .collect();
    filter.sort();
    assert_eq!(filter, ["sys_read", "sys_write"]);
    echo("function", false, &file("current_tracer")).unwrap();
    assert_eq!(cat("current_tracer"), "function\n");
    assert!(cat("trace").contains(": sys_read <-"));
    let refused = echo("jump", false, &file("current_tracer")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    let missing = fs::read(file("nothing")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    let listed = fs::read_dir(file("options")).unwrap();
    assert!(listed.count() > 5);
    // SAFETY: a signal to our child.
    unsafe { libc::kill(mounts.id() as i32, libc::SIGINT) };
    assert_eq!(mounts.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let detach = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .args(["detach", pid])
        .status();
    assert!(detach.unwrap().success());
    assert_eq!(program.changed(&text), None);
    assert_eq!(program.end().code(), Some(0));
}
