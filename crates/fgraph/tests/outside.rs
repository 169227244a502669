//! A crate without unsafe code can do nothing undefined with fgraph.
//!
//! `outside/` is such a crate. Each of its programs tries something; a comment `//~ E0133` says
//! which error the compiler must find in that line, `//~^ E0277` in the line before. One program
//! has none, and runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use fgraph::Error;
use fgraph_scenario::{Count, Library, scenario};

/// File, line, and the error's number.
type Errors = BTreeSet<(String, usize, String)>;

/// The errors that the sources want.
fn wanted(programs: &Path) -> Errors {
    let mut wanted = Errors::new();
    for file in fs::read_dir(programs).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        for (index, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if let Some((_, mark)) = line.split_once("//~") {
                // With a `^`, it is of the line before.
                let (line, code) = match mark.strip_prefix("^ ") {
                    Some(code) => (index, code),
                    None => (index + 1, mark.trim_start()),
                };
                wanted.insert((format!("src/bin/{name}"), line, code.to_owned()));
            }
        }
    }
    wanted
}

/// The errors that cargo shows in the short form, `src/bin/writing.rs:13:9: error[E0133]: ...`.
fn found(output: &str) -> Errors {
    let error = |line: &str| {
        let (place, message) = line.split_once(": error")?;
        let mut place = place.splitn(3, ':');
        let (file, line) = (place.next()?, place.next()?.parse().ok()?);
        let code = message
            .strip_prefix('[')
            .and_then(|code| code.split_once(']'));
        let code = code.map_or("no code", |(code, _)| code);
        Some((file.to_owned(), line, code.to_owned()))
    };
    output.lines().filter_map(error).collect()
}

#[test]
fn code_without_unsafe_can_do_no_harm() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside");
    // The same versions as here, which are there already.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, package.join("Cargo.lock")).unwrap();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .args(["--offline", "--message-format=short"])
            .arg("--target-dir")
            .arg(&target)
            .env("CARGO_TERM_COLOR", "never")
            // As where the configuration of this workspace is not found.
            .env("FGRAPH_TESTING", "")
            .current_dir(&package)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // All of it is found without compiling anything, as an editor does.
    let errors = cargo(&["check", "--keep-going"]);
    let programs = package.join("src/bin");
    assert_eq!(found(&errors), wanted(&programs), "{errors}");
    let errors = cargo(&["build", "--bin=harmless"]);
    assert!(found(&errors).is_empty(), "{errors}");

    let output = Command::new(target.join("debug/harmless"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said == "harmless\n",
        "{output:?}"
    );
}

/// Builds the library that has a copy of fgraph of its own, and loads it.
fn plugin() -> Library {
    let outside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/outside");
    let package = outside.join("plugin");
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, package.join("Cargo.lock")).unwrap();
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "--target-dir"])
        .arg(&target)
        .env("FGRAPH_TESTING", "")
        .current_dir(&package)
        .status()
        .unwrap();
    assert!(status.success());
    Library::open(&target.join("debug/libfgraph_plugin.so"))
}

fn register_in(plugin: &Library) -> i32 {
    // SAFETY: its type.
    let register: extern "C" fn() -> i32 = unsafe { plugin.get("plugin_register") };
    register()
}

#[scenario]
fn a_plugin_with_a_copy_of_fgraph_says_that_there_is_one_and_can_be_unloaded() {
    let is_mapped = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        // This copy reads the file, without the right to execute it.
        let is_it = |line: &str| line.contains("libfgraph_plugin.so") && line.contains("r-xp");
        maps.lines().any(is_it)
    };
    let count = fgraph_scenario::register(Count::default(), "getppid").unwrap();
    for calls in 1..=3 {
        let plugin = plugin();
        assert_eq!(register_in(&plugin), 1);
        assert!(is_mapped());
        plugin.close();
        assert!(!is_mapped());
        let _ = std::os::unix::process::parent_id();
        assert_eq!(count.user().both(), (calls, calls));
    }
}

#[scenario]
fn a_program_whose_plugin_traces_already_says_so() {
    let plugin = plugin();
    assert_eq!(register_in(&plugin), 0);
    // The state of a thread makes this copy no earlier one.
    drop(fgraph::Untraced::new());
    let error = fgraph_scenario::register(Count::default(), "getppid").unwrap_err();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    assert_eq!(error, Error::AnotherCopy { version });
    assert_eq!(fgraph::status().map(|status| status.users).ok(), None);
}

/// Parses the examples of the documentation in `file`: the number of the first line, the words
/// behind the fence, and the lines.
fn examples(file: &Path) -> Vec<(usize, String, Vec<String>)> {
    let text = fs::read_to_string(file).unwrap();
    let mut examples: Vec<(usize, String, Vec<String>)> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let Some(line) = line.strip_prefix("///").or(line.strip_prefix("//!")) else {
            is_open = false;
            continue;
        };
        let line = line.strip_prefix(' ').unwrap_or(line);
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(words) => {
                is_open = true;
                examples.push((number, words.to_owned(), Vec::new()));
            }
            None if is_open => examples.last_mut().unwrap().2.push(line.to_owned()),
            None => {}
        }
    }
    let is_rust = |words: &String| !words.contains("text");
    examples.retain(|(_, words, _)| is_rust(words));
    examples
}

/// Finds the sources of an inner crate whose items `fgraph` exports.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, into),
            false => into.push(path),
        }
    }
}

/// The documentation of `fgraph` includes that of inner crates. Their doctests know these crates by
/// their own names, which lines say that readers do not see.
#[test]
fn examples_of_inner_crates_compile_with_fgraph_alone() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![
        crates.join("fgraph-symbols/src/filter.rs"),
        crates.join("fgraph-symbols/src/filter/facts.rs"),
        crates.join("fgraph-symbols/src/signature.rs"),
    ];
    sources(&crates.join("fgraph-core/src"), &mut files);
    sources(&crates.join("fgraph-symbols/src/signature"), &mut files);
    files.sort();
    let inner = ["fgraph_core", "fgraph_symbols"];
    let mut code = String::new();
    let mut named = Vec::new();
    let mut count = 0;
    for file in &files {
        for (number, words, lines) in examples(file) {
            // `split` is for the command, and not exported.
            let is_inner = |line: &&String| inner.iter().any(|name| line.contains(name));
            let is_seen =
                |line: &&String| !line.starts_with('#') && !line.contains("filter::split");
            let place = format!("{}:{number}", file.display());
            if let Some(line) = lines.iter().find(|line| is_seen(line) && is_inner(line)) {
                named.push(format!("{place}: {line}"));
            }
            let is_split = lines.iter().any(|line| line.contains("filter::split"));
            if words.contains("compile_fail") || is_split {
                continue;
            }
            count += 1;
            let result = match lines.iter().any(|line| line.contains("Ok::<")) {
                true => " -> Result<(), impl core::fmt::Debug>",
                false => "",
            };
            code +=
                &format!("\n// {place}\n#[allow(dead_code)]\nfn example_{count}(){result} {{\n");
            for line in &lines {
                let line = line.strip_prefix("# ").unwrap_or(line);
                let alias = inner.iter().any(|name| {
                    line.starts_with(&format!("use {name}")) && line.ends_with("as fgraph;")
                });
                if !alias && line != "#" {
                    let line = line.replace("fgraph_symbols::filter::", "fgraph::");
                    let line = line.replace("fgraph_symbols::", "fgraph::");
                    code += &line.replace("fgraph_core::", "fgraph::");
                }
                code.push('\n');
            }
            code += "}\n";
        }
    }
    assert!(named.is_empty(), "{named:#?}");
    assert!(count > 20, "{count}");

    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples");
    fs::create_dir_all(package.join("src")).unwrap();
    let lock = crates.join("../Cargo.lock");
    if lock.exists() {
        fs::copy(lock, package.join("Cargo.lock")).unwrap();
    }
    let fgraph = fs::canonicalize(crates.join("fgraph")).unwrap();
    let manifest = format!(
        "[package]\nname = \"examples\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nfgraph = {{ path = {fgraph:?}, features = [\"dwarf\"] }}\n\
         regex = \"*\"\n\n[workspace]\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("src/lib.rs"), code).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--message-format=short"])
        .arg("--target-dir")
        // The other test's, which has compiled the same crates.
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"))
        .env("CARGO_TERM_COLOR", "never")
        .env("FGRAPH_TESTING", "")
        .current_dir(&package)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
