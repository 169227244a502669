//! Building kernels, the machine that runs them, and the lines that they print.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::process::{Done, bounded, succeed};

/// The target of kernels.
pub(super) const TARGET: &str = "x86_64-unknown-none";
/// The exit status with which QEMU ends if the kernel says that all is well.
const WELL: i32 = 33;
/// Seconds that the machine may take beside the load.
const SPARE: u32 = 120;

/// Returns true if the compiler has the kernel's target, which rustup adds where it is there.
pub(super) fn has_target() -> bool {
    let mut add = Command::new("rustup");
    if succeed(add.args(["target", "add", TARGET])).is_ok() {
        return true;
    }
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let libraries = succeed(rustc.args(["--print", "target-libdir", "--target", TARGET]));
    libraries.is_ok_and(|path| Path::new(path.trim()).is_dir())
}

/// Builds a kernel with `cargo fgraph`, in the directory that has the settings for the linker.
pub(super) fn build(directory: &Path, builder: &Path, package: &str) -> io::Result<PathBuf> {
    let mut cargo = Command::new(builder);
    cargo.args(["fgraph", "build"]);
    cargo::build_in(directory, &mut cargo, package)
}

/// A machine that runs a kernel.
pub(super) struct Machine<'a> {
    pub(super) qemu: &'a Path,
    /// Seed of the load.
    pub(super) seed: u64,
}

impl Machine<'_> {
    /// Runs a kernel, with interrupts between any two instructions if `steps`.
    pub(super) fn start(&self, kernel: &Path, seconds: u32, steps: bool) -> io::Result<Done> {
        let mut machine = bounded(3 * seconds + SPARE, self.qemu);
        let mut accelerator = "tcg,thread=multi".to_owned();
        if steps {
            match self.has_step_property()? {
                true => accelerator += ",one-insn-per-tb=on",
                false => _ = machine.arg("-singlestep"),
            }
        }
        machine.args(["-accel", &accelerator]);
        machine.args(["-machine", "pc", "-smp", "2", "-m", "128"]);
        machine.args([
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ]);
        machine.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
        // The second time for the symbols.
        machine
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(kernel);
        let settings = format!("seed={} seconds={seconds}", self.seed);
        machine.args(["-append", &settings]);
        Done::of(&mut machine)
    }

    /// Returns true if the accelerator has a property for single instructions, as from 8.1 on.
    fn has_step_property(&self) -> io::Result<bool> {
        let text = succeed(Command::new(self.qemu).arg("--version"))?;
        let version = text
            .split_once("version ")
            .map_or("", |(_, version)| version);
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        Ok(version >= (8, 1))
    }
}

/// Returns true if the kernel has ended the machine and says that all is well. Prints what it says
/// of failures.
pub(super) fn end(done: &Done) -> bool {
    let is_well = done.code == Some(WELL);
    if !is_well {
        let lines: Vec<&str> = done.stdout.lines().collect();
        let first = lines.iter().position(|line| line.starts_with("FAIL"));
        let first = first.unwrap_or(lines.len().saturating_sub(20));
        println!("FAIL: the machine ends with {:?}", done.code);
        println!("{}\n{}", lines[first..].join("\n"), done.stderr);
    }
    is_well
}

/// Prints the first line that differs, and returns true if none does.
pub(super) fn compare(wanted: &[&str], found: &[String]) -> bool {
    let pairs = wanted.iter().zip(found);
    let same = pairs.take_while(|(wanted, found)| *wanted == found).count();
    if same == wanted.len() && same == found.len() {
        println!("{same} lines as expected");
        return true;
    }
    let end = "(the end)";
    println!("FAIL: line {} of the scenes differs", same + 1);
    println!("expected: {}", wanted.get(same).unwrap_or(&end));
    println!("found:    {}", found.get(same).map_or(end, String::as_str));
    false
}

/// Returns the lines to compare: those from the first scene on, without figures of the load and of
/// other measurements, and without the durations of calls.
pub(super) fn scenes(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().skip_while(|line| !line.starts_with("scene: "));
    let compared = lines.filter(|line| !line.starts_with("load: ") && !line.starts_with('~'));
    compared.map(|line| match line.split_once(" |  ") {
        Some((_, call)) => format!("... |  {call}"),
        None => line.trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_durations_are_not_compared() {
        let text = "kernel: boots\nscene: one\n 0)     3     1.234 us    |    f();\n~ 5 ns\n\
            load: calls 5\nscene: two\nit holds: true\n";
        let expected = [
            "scene: one",
            "... |    f();",
            "scene: two",
            "it holds: true",
        ];
        assert!(scenes(text).eq(expected));
        let found: Vec<String> = scenes(text).collect();
        assert!(compare(&expected, &found));
        assert!(!compare(&expected[1..], &found) && !compare(&expected[..3], &found));
    }
}
