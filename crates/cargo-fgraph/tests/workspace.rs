//! Builds a small workspace with `cargo fgraph` and looks at what comes out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::support::{Workspace, run, stderr};
use fgraph_x86_64::nop;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

const FILES: [(&str, &str); 6] = [
    (
        "Cargo.toml",
        r#"
[workspace]
members = ["app", "dep"]
resolver = "3"
[profile.thin]
inherits = "release"
lto = "thin"
[profile.fat]
inherits = "release"
lto = "fat"
"#,
    ),
    (
        "app/Cargo.toml",
        r#"
[package]
name = "app"
version = "0.1.0"
edition = "2024"
[dependencies]
dep = { path = "../dep" }
"#,
    ),
    (
        "app/build.rs",
        "fn main() { println!(\"cargo::rerun-if-changed=build.rs\"); }",
    ),
    (
        "app/src/main.rs",
        r#"
use std::hint::black_box;
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let add = |n: usize| n + words.len();
    // A call through a pointer cannot be inlined.
    let add: &dyn Fn(usize) -> usize = black_box(&add);
    let sum = add(dep::repeat(&words).len()) + dep::plain(1) + dep::dep_exported(2) as usize;
    black_box(sum);
    match words.first().map(String::as_str) {
        Some("abort") => std::process::abort(),
        Some(code) => std::process::exit(code.parse().unwrap()),
        None => {}
    }
}
#[test]
fn fails_on_demand() {
    assert!(std::env::var_os("FAIL").is_none());
}
"#,
    ),
    (
        "dep/Cargo.toml",
        "[package]\nname = \"dep\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    ),
    (
        "dep/src/lib.rs",
        r#"
use std::hint::black_box;
/// ```
/// assert_eq!(dep::plain(1), 2);
/// ```
#[inline(never)]
pub fn plain(n: usize) -> usize {
    let add: &dyn Fn(usize) -> usize = black_box(&|m| m + 1);
    add(n)
}
#[inline(never)]
pub fn repeat<T: Clone>(list: &[T]) -> Vec<T> {
    [list, list].concat()
}
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn dep_exported(n: u32) -> u32 {
    black_box(n) * 2
}
fn never_called() {}
"#,
    ),
];

/// Functions that must be there: plain, a closure, generic over crates, and without mangling.
const EXPECTED: [&str; 6] = [
    "app::main",
    "app::main::{{closure}}",
    "dep::plain",
    "dep::plain::{{closure}}",
    "dep::repeat",
    "dep_exported",
];

/// Builds in the given profile and reads the program.
fn build(workspace: &Workspace, profile: &str, select: &[&str]) -> BTreeMap<String, Entry> {
    let mut args: Vec<_> = select.iter().flat_map(|glob| ["--select", glob]).collect();
    args.extend(["build", "--profile", profile]);
    let built = run(workspace.fgraph(&args));
    assert!(built.status.success(), "{}", stderr(&built));
    assert_eq!(stderr(&built).matches("does not exist").count(), 0);
    let dir = stderr(&built)
        .lines()
        .find_map(|line| Some(line.split_once("building in ")?.1.to_owned()))
        .unwrap();
    let profile = if profile == "dev" { "debug" } else { profile };
    functions(&Path::new(&dir).join(profile).join("app"))
}

/// Entry of a function in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    nop: bool,
    listed: bool,
}

const PREPARED: Entry = Entry {
    nop: true,
    listed: true,
};
const PLAIN: Entry = Entry {
    nop: false,
    listed: false,
};

/// The functions of a program by their names, without what they are generic over.
fn functions(program: &Path) -> BTreeMap<String, Entry> {
    let bytes = fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let list = file.section_by_name("__patchable_function_entries");
    let list = list.map_or(0..0, |list| list.address()..list.address() + list.size());
    let listed: Vec<u64> = file
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .filter(|(at, _)| list.contains(at))
        .map(|(_, relocation)| relocation.addend() as u64)
        .collect();
    assert_eq!(listed.len() as u64 * 8, list.end - list.start);
    let mut functions = BTreeMap::new();
    for symbol in file
        .symbols()
        .filter(|s| s.kind() == SymbolKind::Text && s.size() > 0)
    {
        let section = file
            .section_by_index(symbol.section_index().unwrap())
            .unwrap();
        let offset = (symbol.address() - section.address()) as usize;
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name().unwrap()));
        // The path of a generic function is enough: v0 also says what it is generic over.
        let name = name
            .split("::<")
            .next()
            .unwrap()
            .replace("{closure#0}", "{{closure}}");
        let entry = Entry {
            nop: nop::find(&section.data().unwrap()[offset..]).is_ok(),
            listed: listed.contains(&symbol.address()),
        };
        functions.insert(name, entry);
    }
    functions
}

/// The functions of the two crates of the workspace.
fn own(functions: &BTreeMap<String, Entry>) -> impl Iterator<Item = (&str, Entry)> {
    let own = |name: &str| name.starts_with("app::") || name.starts_with("dep");
    let named = functions.iter().map(|(name, entry)| (&**name, *entry));
    named.filter(move |(name, _)| own(name))
}

#[test]
fn every_function_has_a_nop_in_every_profile() {
    let workspace = Workspace::new("profiles", &FILES);
    for profile in ["dev", "release", "thin", "fat"] {
        let functions = build(&workspace, profile, &[]);
        for name in EXPECTED {
            assert_eq!(
                functions.get(name),
                Some(&PREPARED),
                "{profile} {name} {functions:#?}"
            );
        }
        for (name, entry) in own(&functions) {
            assert_eq!(entry, PREPARED, "{profile} {name}");
        }
        // Generic code of the standard library is compiled here, its other code is not.
        let prepared = |entry: &&Entry| **entry == PREPARED;
        assert!(functions.values().filter(prepared).count() > EXPECTED.len());
        assert!(functions.values().any(|entry| *entry == PLAIN));
    }
    // Nothing is left of the lists, nor was anything built where cargo builds as a rule.
    let deps = fs::read_dir(workspace.0.join("target/fgraph/v1-all/debug/deps")).unwrap();
    let names: Vec<_> = deps.map(|file| file.unwrap().file_name()).collect();
    assert!(
        !names
            .iter()
            .any(|name| name.to_string_lossy().contains("fgraph")),
        "{names:?}"
    );
    assert!(!workspace.0.join("target/debug").exists());
}

#[test]
fn build_scripts_and_macros_have_no_nops() {
    let workspace = Workspace::new("build-script", &FILES);
    build(&workspace, "dev", &[]);
    let mut scripts = 0;
    let build = workspace.0.join("target/fgraph/v1-all/debug/build");
    for dir in fs::read_dir(build).unwrap() {
        let script = dir.unwrap().path().join("build-script-build");
        if script.exists() {
            scripts += 1;
            assert!(functions(&script).values().all(|entry| *entry == PLAIN));
        }
    }
    assert_eq!(scripts, 1);
}

#[test]
fn another_selection_is_another_build() {
    let workspace = Workspace::new("select", &FILES);
    let prepared = |select: &[&str]| {
        let functions = build(&workspace, "dev", select);
        let prepared = own(&functions).filter(|(_, entry)| *entry == PREPARED);
        prepared
            .map(|(name, _)| name.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(prepared(&["dep::pl??n"]), ["dep::plain"]);
    assert_eq!(prepared(&["dep::*", "!dep::plain*"]), ["dep::repeat"]);
    assert_eq!(prepared(&["dep::pl??n"]), ["dep::plain"]);
    assert!(prepared(&[]).len() >= EXPECTED.len());
}

#[test]
fn diagnostics_are_cargos_own() {
    let workspace = Workspace::new("errors", &FILES);
    let built = run(workspace.fgraph(&["build"]));
    let text = stderr(&built);
    assert!(built.status.success());
    assert_eq!(
        text.matches("function `never_called` is never used")
            .count(),
        1,
        "{text}"
    );

    workspace.write("dep/src/lib.rs", "pub fn broken() -> u8 { \"text\" }");
    let built = run(workspace.fgraph(&["build"]));
    let text = stderr(&built);
    assert_eq!(built.status.code(), Some(101));
    assert_eq!(text.matches("error[E0308]").count(), 1, "{text}");
    assert!(!text.contains("no NOPs"), "{text}");
}

#[test]
fn cargos_end_is_ours() {
    let workspace = Workspace::new("exit", &FILES);
    let code = |args: &[&str]| run(workspace.fgraph(args)).status.code();
    assert_eq!(code(&["run"]), Some(0));
    assert_eq!(code(&["run", "--", "42"]), Some(42));
    let aborted = run(workspace.fgraph(&["run", "--", "abort"])).status;
    assert_eq!(aborted.signal(), Some(6), "{aborted:?}");
    assert_eq!(code(&["test"]), Some(0));
    let mut failing = workspace.fgraph(&["test"]);
    failing.env("FAIL", "1");
    assert_eq!(run(failing).status.code(), Some(101));
    assert_eq!(code(&["check"]), Some(101));
    assert_eq!(
        code(&["build", "--manifest-path", "no/Cargo.toml"]),
        Some(101)
    );
    assert_eq!(code(&["build", "--no-such-option"]), Some(1));
}

#[test]
fn the_users_own_wrapper_is_called() {
    let workspace = Workspace::new("wrapper", &FILES);
    let wrapper = workspace.script("wrapper", "echo \"$@\" >> log\nexec \"$@\"");
    let mut command = workspace.fgraph(&["build"]);
    command.env("RUSTC_WRAPPER", wrapper);
    assert!(run(command).status.success());
    let log = fs::read_to_string(workspace.0.join("log")).unwrap();
    let calls = |name: &str| {
        let name = format!("--crate-name {name} ");
        log.lines().filter(|line| line.contains(&name)).count()
    };
    assert_eq!([calls("app"), calls("dep")], [1, 1], "{log}");
}

#[test]
fn a_target_directory_of_the_users_is_taken() {
    let workspace = Workspace::new("target", &FILES);
    assert!(
        run(workspace.fgraph(&["build", "--target-dir", "a"]))
            .status
            .success()
    );
    let mut command = workspace.fgraph(&["build"]);
    command.env("CARGO_TARGET_DIR", "b");
    assert!(run(command).status.success());
    workspace.write(
        ".cargo/config.toml",
        "[build]\ntarget-dir = \"c\"\nbuild-dir = \"d\"",
    );
    assert!(run(workspace.fgraph(&["build"])).status.success());
    for dir in ["a", "b", "c"] {
        let program = workspace.0.join(dir).join("fgraph/v1-all/debug/app");
        assert_eq!(functions(&program)["app::main"], PREPARED, "{dir}");
    }
    assert!(!workspace.0.join("d").exists());

    let built = run(workspace.fgraph(&["build", "--target-dir", "with space"]));
    assert_eq!(built.status.code(), Some(101));
    assert!(stderr(&built).contains("white space"), "{}", stderr(&built));
}

#[test]
fn programs_run_under_the_command() {
    let workspace = Workspace::new("under", &FILES);
    let fgraph = workspace.script(
        "fgraph.sh",
        r#"printf '%s\n' "$@" >> "$(dirname "$0")/asked"
while [ "$1" != -- ]; do shift; done
shift; exec "$@""#,
    );
    let asked = |args: &[&str]| {
        let mut command = workspace.fgraph(args);
        let output = command.env("FGRAPH", &fgraph).output().unwrap();
        let asked = fs::read_to_string(workspace.0.join("asked")).unwrap_or_default();
        let _ = fs::remove_file(workspace.0.join("asked"));
        (output, asked)
    };
    let (output, own) = asked(&["live", "--with=--retval", "-p", "app", "--", "7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let own: Vec<&str> = own.lines().collect();
    for word in [
        "live",
        "-Fcrate:app|build_script_build|dep",
        "--retval",
        "7",
    ] {
        assert!(own.contains(&word), "{word}: {own:?}");
    }
    // Nothing is built twice.
    for profile in [&["-v"][..], &["-v", "--release"]] {
        let again = |args: &[&str]| run(workspace.fgraph(&[args, profile].concat()));
        assert!(again(&["build"]).status.success());
        let mut command = workspace.fgraph(&[&["record", "run"], profile].concat());
        let output = command.env("FGRAPH", &fgraph).output().unwrap();
        let said = stderr(&output);
        assert!(
            said.contains("Fresh app") && !said.contains("Compiling"),
            "{said}"
        );
    }
    let _ = fs::remove_file(workspace.0.join("asked"));
    let (output, all) = asked(&["--deps", "record", "test", "--all-targets"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!all.contains("-F"), "{all}");
    let recordings = all
        .lines()
        .filter(|line| line.starts_with("fgraph.") && line.ends_with(".data"));
    let recordings: std::collections::BTreeSet<&str> = recordings.collect();
    assert_eq!(recordings.len(), 2, "{all}");
    assert!(
        !workspace
            .fgraph(&["record", "build"])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_compiler_without_the_option_is_refused() {
    let workspace = Workspace::new("probe", &FILES);
    let deaf = "for arg; do case $arg in llvm-args=*) arg=opt-level=0;; esac; \
                set -- \"$@\" \"$arg\"; shift; done; exec rustc \"$@\"";
    let old = "case $* in *llvm-args*) echo 'Unknown command line argument' >&2; exit 1;; esac; \
               exec rustc \"$@\"";
    for (script, missing) in [
        (deaf, "no section __patchable_function_entries"),
        (old, "Unknown command line argument"),
    ] {
        let mut command = workspace.fgraph(&["build"]);
        command.env("RUSTC", workspace.script("compiler", script));
        let built = run(command);
        let text = stderr(&built);
        assert_eq!(built.status.code(), Some(101));
        assert!(
            text.contains("rustc 1.") && text.contains(missing),
            "{text}"
        );
    }
}
