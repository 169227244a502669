//! The libraries that are loaded: C as no person writes it, compiled once.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_chores::process::succeed;

/// Number of functions of each library that is made many times.
const FUNCTIONS: usize = 32;

/// The directory of the libraries, in the target directory.
pub(super) fn directory() -> io::Result<PathBuf> {
    let directory = cargo::workspace().join("target/scale");
    fs::create_dir_all(&directory)?;
    directory.canonicalize()
}

/// A library with so many functions.
pub(super) fn functions(directory: &Path, count: usize) -> io::Result<()> {
    let source = source("scale", count);
    make(directory, &format!("functions-{count}"), &source, &[])
}

/// As many libraries, alike but for their build ids.
pub(super) fn alike(directory: &Path, count: usize) -> io::Result<()> {
    let source = source("scale", FUNCTIONS);
    (0..count).try_for_each(|number| {
        let id = format!("-Wl,--build-id=0x{number:016x}");
        make(directory, &format!("library-{number}"), &source, &[&id])
    })
}

/// The library that is loaded again and again.
pub(super) fn reloaded(directory: &Path) -> io::Result<()> {
    make(directory, "reloaded", &source("reloaded", FUNCTIONS), &[])
}

/// A library with a function of so many names.
pub(super) fn aliases(directory: &Path, count: usize) -> io::Result<()> {
    let mut text = String::from("long scale_0(long a) { return a * 3; }\n");
    for number in 1..count {
        let alias = "__attribute__((alias(\"scale_0\")))";
        writeln!(text, "long scale_{number}(long) {alias};").expect("a string takes all");
    }
    make(directory, &format!("aliases-{count}"), &text, &[])
}

/// A library with as many pages of text, each with a function at its start.
pub(super) fn pages(directory: &Path, count: usize) -> io::Result<()> {
    let text = format!(
        r#"asm(".text\n"
    ".altmacro\n"
    ".macro define name, number\n"
    ".p2align 12\n"
    ".globl exchanged_\\name\\number\n"
    ".type exchanged_\\name\\number, @function\n"
    "exchanged_\\name\\number:\n"
    "leaq (%rdi, %rdi, 2), %rax\n"
    "addq %rdi, %rax\n"
    "ret\n"
    ".size exchanged_\\name\\number, . - exchanged_\\name\\number\n"
    ".endm\n"
    ".set count, 0\n"
    ".rept {count}\n"
    ".if count - count / 20 * 20\n"
    "define , %count\n"
    ".else\n"
    "define twentieth_, %count\n"
    ".endif\n"
    ".set count, count + 1\n"
    ".endr\n"
    ".p2align 12\n"
    ".purgem define\n"
    ".noaltmacro\n");
"#
    );
    make(directory, &format!("exchanged-{count}"), &text, &[])
}

/// A number of functions, of some sizes. Compilers take minutes for very many of them, so the
/// assembler repeats what they would make of one.
fn source(name: &str, count: usize) -> String {
    format!(
        r#"long sum;
asm(".text\n"
    ".altmacro\n"
    ".macro define number\n"
    ".p2align 4\n"
    ".globl {name}_\\number\n"
    ".type {name}_\\number, @function\n"
    "{name}_\\number:\n"
    "movq sum@GOTPCREL(%rip), %rdx\n"
    ".rept \\number - \\number / 5 * 5\n"
    "addq %rdi, (%rdx)\n"
    ".endr\n"
    "leaq \\number(%rdi, %rdi, 2), %rax\n"
    "ret\n"
    ".size {name}_\\number, . - {name}_\\number\n"
    ".endm\n"
    ".set count, 0\n"
    ".rept {count}\n"
    "define %count\n"
    ".set count, count + 1\n"
    ".endr\n"
    ".purgem define\n"
    ".noaltmacro\n");
"#
    )
}

/// Compiles a library, unless it was made of the same text.
fn make(directory: &Path, name: &str, source: &str, flags: &[&str]) -> io::Result<()> {
    let [text, library] = ["c", "so"].map(|kind| directory.join(format!("{name}.{kind}")));
    if library.exists() && fs::read_to_string(&text).is_ok_and(|there| there == source) {
        return Ok(());
    }
    let _ = fs::remove_file(&library);
    fs::write(&text, source)?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC"]).args(flags);
    succeed(cc.arg("-o").args([&library, &text])).map(drop)
}
