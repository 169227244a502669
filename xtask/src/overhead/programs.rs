//! The programs that are recorded.

use std::io;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::process::{compile, is_there};

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

/// A program that is not here, and how to get it.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) name: &'static str,
    pub(super) why: String,
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

/// All programs; those that can be built are, in a directory.
pub(super) fn all(directory: &Path) -> io::Result<Vec<Result<Program, Missing>>> {
    let program = |name, file: &str, arguments: &[&str], options, package| {
        let command = [&[file], arguments].concat();
        match is_there(file) {
            true => Ok(Program {
                name,
                command: command.iter().map(|&word| word.to_owned()).collect(),
                options,
                directory: directory.to_owned(),
            }),
            false => Err(Missing {
                name,
                why: format!("no {file} (apt-get install {package})"),
            }),
        }
    };
    let sqlite: &[&str] = &["-F", ":mod:libsqlite3.so*"];
    let zlib: &[&str] = &["-F", ":mod:libz.so*"];
    fs::write(directory.join("regex.cc"), REGEX)?;
    let log = ["log", "--stat", "-n", "300"];
    let mut git = program("git log", "git", &log, &[], "git");
    if let Ok(git) = &mut git {
        git.directory = env::current_dir()?;
    }
    let mut fib = program("fib(35)", "cc", &[], &[], "gcc");
    if let Ok(fib) = &mut fib {
        let built = compile(Path::new("cc"), directory, ("fib.c", FIB), &[])?;
        fib.command = vec![built.display().to_string()];
    }
    Ok(vec![
        program("python json", "python3", &["-c", JSON], &[], "python3"),
        program(
            "sqlite query",
            "sqlite3",
            &[":memory:", QUERY],
            sqlite,
            "sqlite3",
        ),
        git,
        program("g++ regex", "g++", &["-O2", "-c", "regex.cc"], &[], "g++"),
        fib,
        program("zlib, 8 threads", "python3", &["-c", ZLIB], zlib, "python3"),
    ])
}
