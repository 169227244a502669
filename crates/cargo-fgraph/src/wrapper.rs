//! Wrapper of the compiler that cargo calls.
//!
//! Cargo runs `cargo-fgraph rustc ARGS`. For a crate of the program the compiler then runs twice:
//!
//! ```text
//!   OUT_DIR/app-0123.fgraph/      gone when the crate is compiled
//!     names.ll                    written by pass one:  its functions
//!     8f0c7be2d34a5961.csv        read by pass two:     those that get a NOP
//! ```
//!
//! The name of the list depends on its content. The command line of pass two therefore determines
//! its output, which a cache of compiled crates between this program and the compiler relies on.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use fgraph::Filter;

use crate::complaints;
use crate::error::Error;
use crate::hash;
use crate::invocation::{self, Crate, Plan};
use crate::select;
use crate::symbols;

/// The first argument that cargo passes to its subcommand.
pub(crate) const NAME: &str = "fgraph";

/// Variable with the selection, as the text of a filter. It is set while this program runs cargo.
pub(crate) const SELECT_VAR: &str = "CARGO_FGRAPH_SELECT";
/// Variable with the user's own wrapper of the compiler.
pub(crate) const INNER_VAR: &str = "CARGO_FGRAPH_INNER_WRAPPER";
/// Variable with the path of a file that exists once the user was told that the target has no NOPs.
pub(crate) const TOLD_VAR: &str = "CARGO_FGRAPH_TOLD";

/// Added by shells to the signal that ended a program, to make an exit code.
const SIGNALLED: i32 = 128;

/// Option that makes LLVM read a list of attributes.
const LIST_OPTION: &str = "llvm-args=--forceattrs-csv-path=";

/// Returns the options that make LLVM read the list in `csv`. Options behind them must not be split
/// at white space.
pub(crate) fn list_options(csv: &Path, optimized: bool) -> Vec<OsString> {
    let mut list = OsString::from(LIST_OPTION);
    list.push(csv);
    let mut options = vec!["-C".into(), list];
    if !optimized {
        // Otherwise the pass runs anyway, and a second run would print each complaint twice.
        options.extend(["-C".into(), "passes=forceattrs".into()]);
    }
    options
}

/// True if cargo has called this program in place of the compiler.
pub(crate) fn is_called(args: &[OsString]) -> bool {
    env::var_os(SELECT_VAR).is_some() && args.first().is_some_and(|arg| arg != NAME)
}

/// Compiles as cargo requests, with NOPs in the selected functions.
pub(crate) fn run(command: &[OsString]) -> Result<ExitCode, Error> {
    let text = |arg: &OsString| arg.to_str().map(String::from);
    let Some((compiler, args)) = command.split_first() else {
        return Err(Error::NoCommand);
    };
    let Some(args) = args.iter().map(text).collect::<Option<Vec<String>>>() else {
        return pass_on(command).map(|never| match never {});
    };
    match invocation::plan(&args) {
        Plan::PassOn => {}
        Plan::OtherTarget(target) => tell_once(&target),
        Plan::TwoPasses(krate) => {
            let work = Work::new(&krate)?;
            match first_pass(compiler, &args, &work)? {
                FirstPass::List(list) => {
                    return second_pass(command, list_options(&list, krate.optimized));
                }
                FirstPass::NothingSelected => {}
                FirstPass::Failed(why) => return without_list(command, &krate.name, &why),
            }
        }
    }
    pass_on(command).map(|never| match never {})
}

/// Becomes the compiler, or the user's own wrapper of it.
fn pass_on(command: &[OsString]) -> Result<Infallible, Error> {
    let mut compiler = compiler(command);
    let error = compiler.exec();
    Err(Error::Start(compiler.get_program().into(), error))
}

/// Returns cargo's call, through the user's own wrapper if there is one.
fn compiler(command: &[OsString]) -> Command {
    let inner = env::var_os(INNER_VAR);
    let mut words = inner.iter().chain(command);
    let mut compiler = Command::new(words.next().map_or(OsStr::new(""), OsString::as_os_str));
    compiler.args(words);
    compiler
}

/// Result of pass one.
enum FirstPass {
    /// The list for pass two.
    List(PathBuf),
    /// No function of the crate gets a NOP.
    NothingSelected,
    /// The compiler failed, with this message.
    Failed(String),
}

/// Writes the list of the functions that get a NOP.
fn first_pass(compiler: &OsStr, args: &[String], work: &Work) -> Result<FirstPass, Error> {
    let ir = work.file("names.ll");
    let mut emit = OsString::from("--emit=llvm-ir=");
    emit.push(&ir);
    let output = Command::new(compiler)
        .args(invocation::pass_one(args))
        .args([
            "--cap-lints=allow",
            "-Ccodegen-units=1",
            "-Cno-prepopulate-passes",
        ])
        .arg(emit)
        .arg("--out-dir")
        .arg(&work.dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::Start(compiler.into(), error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into();
        return Ok(FirstPass::Failed(said));
    }
    let read = || symbols::defined(BufReader::new(File::open(&ir)?));
    let symbols = read().map_err(|error| Error::File(ir.clone(), error))?;
    let filter = filter()?;
    let list = symbols::list(&symbols, |symbol| select::wants(&filter, symbol));
    if list.is_empty() {
        return Ok(FirstPass::NothingSelected);
    }
    let csv = work.file(&format!("{}.csv", hash::hex(&list)));
    match fs::write(&csv, list) {
        Ok(()) => Ok(FirstPass::List(csv)),
        Err(error) => Err(Error::File(csv, error)),
    }
}

fn filter() -> Result<Filter, Error> {
    match env::var(SELECT_VAR) {
        Ok(text) => text.parse().map_err(Error::Select),
        Err(_) => Ok(Filter::all()),
    }
}

/// Compiles the crate with the list.
fn second_pass(command: &[OsString], options: Vec<OsString>) -> Result<ExitCode, Error> {
    let start = |error| Error::Start(command[0].clone().into(), error);
    let mut child = compiler(command)
        .args(options)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    if let Some(stderr) = child.stderr.take() {
        // An error here loses messages only.
        let _ = complaints::drop_from(BufReader::new(stderr), io::stderr().lock());
    }
    Ok(exit_code(child.wait().map_err(start)?))
}

/// Compiles the crate unchanged, since pass one failed. As a rule this fails too, and the user sees
/// the errors once.
fn without_list(command: &[OsString], name: &str, why: &str) -> Result<ExitCode, Error> {
    let status = compiler(command)
        .status()
        .map_err(|error| Error::Start(command[0].clone().into(), error))?;
    if status.success() {
        eprintln!(
            "cargo-fgraph: the functions of crate `{name}` get no NOPs, pass one says:\n{why}"
        );
    }
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| {
        let signal = status.signal().unwrap_or_default();
        eprintln!("cargo-fgraph: the compiler was killed by signal {signal}");
        SIGNALLED + signal
    });
    // Exit codes have eight bits.
    ExitCode::from(code as u8)
}

/// Reports that there are no NOPs for a target, unless another process of this build has.
fn tell_once(target: &str) {
    let first = |told| OpenOptions::new().write(true).create_new(true).open(told);
    if env::var_os(TOLD_VAR).is_some_and(|told| first(told).is_ok()) {
        eprintln!(
            "cargo-fgraph: functions for {target} get no NOPs, only those for x86_64 can be traced"
        );
    }
}

/// Directory that exists while a crate is compiled.
struct Work {
    dir: PathBuf,
}

impl Work {
    fn new(krate: &Crate) -> Result<Self, Error> {
        let dir = krate.out_dir.join(format!("{}.fgraph", krate.stem));
        match fs::create_dir_all(&dir) {
            Ok(()) => Ok(Self { dir }),
            Err(error) => Err(Error::File(dir, error)),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A directory that cannot be removed now is removed with the target directory.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_becomes_the_code_that_a_shell_gives() {
        assert_eq!(exit_code(ExitStatus::from_raw(9)), ExitCode::from(137));
        assert_eq!(
            exit_code(ExitStatus::from_raw(101 << 8)),
            ExitCode::from(101)
        );
    }

    #[test]
    fn a_work_directory_is_gone_in_the_end() {
        let krate = Crate {
            name: "x".into(),
            out_dir: env::temp_dir(),
            stem: format!("cargo-fgraph-{}", std::process::id()),
            optimized: false,
        };
        let work = Work::new(&krate).unwrap();
        fs::write(work.file("f"), "").unwrap();
        let dir = work.dir.clone();
        drop(work);
        assert!(!dir.exists());
    }
}
