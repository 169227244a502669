//! The programs that are recorded.

use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs, iter};

use fgraph_chores::process::compile;
use fgraph_needs::{CC, GIT, GXX, Missing, Need, PYTHON, SQLITE3};

/// A program with its arguments.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) command: Vec<String>,
    /// Options that say which functions are recorded.
    pub(super) options: &'static [&'static str],
    /// The directory that it runs in.
    pub(super) directory: PathBuf,
}

const JSON: &str = "import json; print(len(json.dumps(list(range(1000000)))))";

const QUERY: &str = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c \
    WHERE x < 500000) SELECT sum(x * 2), count(DISTINCT x % 1000) FROM c;";

const REGEX: &str = "#include <regex>\n#include <string>\n\
    bool has(const std::string &text) {\n\
        return std::regex_search(text, std::regex(\"(a|b)*c[0-9]+\"));\n\
    }\n";

const FIB: &str = "#include <stdio.h>\n\
    __attribute__((noinline)) long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n\
    int main(void) { printf(\"%ld\\n\", fib(35)); return 0; }\n";

const ZLIB: &str = "
import threading, zlib
text = bytes(range(256)) * 64
def work():
    for _ in range(400):
        zlib.decompress(zlib.compress(text, 6))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
";

/// All programs, or what is missing for them, with their names; those that can be built are, in a
/// directory.
pub(super) fn all(directory: &Path) -> io::Result<Vec<(&'static str, Result<Program, Missing>)>> {
    let program = |name, need: Need, arguments: &[&str], options| {
        let program = need.find().map(|file| {
            let arguments = arguments.iter().map(|&word| word.to_owned());
            Program {
                name,
                command: iter::once(file.display().to_string())
                    .chain(arguments)
                    .collect(),
                options,
                directory: directory.to_owned(),
            }
        });
        (name, program)
    };
    fs::write(directory.join("regex.cc"), REGEX)?;
    let mut git = program("git log", GIT, &["log", "--stat", "-n", "300"], &[]);
    if let Ok(git) = &mut git.1 {
        git.directory = env::current_dir()?;
    }
    let mut fib = program("fib(35)", CC, &[], &[]);
    if let Ok(fib) = &mut fib.1 {
        let built = compile(Path::new(&fib.command[0]), directory, ("fib.c", FIB), &[])?;
        fib.command = vec![built.display().to_string()];
    }
    let sqlite: &[&str] = &["-F", ":mod:libsqlite3.so*"];
    let zlib: &[&str] = &["-F", ":mod:libz.so*"];
    Ok(vec![
        program("python json", PYTHON, &["-c", JSON], &[]),
        program("sqlite query", SQLITE3, &[":memory:", QUERY], sqlite),
        git,
        program("g++ regex", GXX, &["-O2", "-c", "regex.cc"], &[]),
        fib,
        program("zlib, 8 threads", PYTHON, &["-c", ZLIB], zlib),
    ])
}
