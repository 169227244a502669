//! Calls of the compiler by cargo.
//!
//! Cargo calls the compiler not only for the crates of the program: it queries the version and
//! properties of targets, checks without generating code, and compiles programs that run during the
//! build. Build scripts call it too, to find its abilities. All these calls are passed on
//! unchanged.

// Long strings: command lines.

use std::path::PathBuf;

use crate::select;

/// Long options without a value. All others have one, behind a `=` or as the next argument.
const LONG_FLAGS: [&str; 4] = ["help", "test", "verbose", "version"];

/// Short options with a value, which may be the rest of the argument or the next one.
const SHORT_WITH_VALUE: [u8; 9] = *b"ACDFLWZlo";

/// Kinds of output of `--emit` that contain code.
const CODE: [&str; 5] = ["asm", "link", "llvm-bc", "llvm-ir", "obj"];

/// Requests of `--print` that do not replace compiling.
const PRINTED_ON_THE_WAY: [&str; 2] = ["link-args", "native-static-libs"];

/// Options that pass one must not have: they set its output files and messages.
const NOT_IN_PASS_ONE: [&str; 9] = [
    "cap-lints",
    "color",
    "diagnostic-width",
    "emit",
    "error-format",
    "json",
    "o",
    "out-dir",
    "print",
];

/// Code generation options that pass one must not have. It generates no code, and its functions do
/// not depend on these.
///
/// They do depend on `debuginfo`, if only a little: with all of it, rustc optimizes less before
/// LLVM gets the crate.
const NO_CODE_IN_PASS_ONE: [&str; 8] = [
    "codegen-units",
    "embed-bitcode",
    "incremental",
    "linker-plugin-lto",
    "lto",
    "save-temps",
    "split-debuginfo",
    "strip",
];

/// Treatment of one call of the compiler.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Call it unchanged.
    PassOn,
    /// Call it unchanged, and report that there are no NOPs for this target.
    OtherTarget(String),
    /// Compile a crate in two passes.
    TwoPasses(Crate),
}

/// Crate to compile.
#[derive(Debug, PartialEq)]
pub(crate) struct Crate {
    /// Name of the crate.
    pub(crate) name: String,
    /// Directory of the artifacts.
    pub(crate) out_dir: PathBuf,
    /// Name of the crate, with cargo's suffix that distinguishes its artifacts from others of that
    /// name.
    pub(crate) stem: String,
    /// True if the compiler optimizes. If not, `forceattrs` is not among LLVM's passes.
    pub(crate) optimized: bool,
}

/// Chooses the treatment of a call of the compiler with these arguments.
pub(crate) fn plan(args: &[String]) -> Plan {
    let mut name = None;
    let mut out_dir = None;
    let mut extra = "";
    let mut target = None;
    let mut cargo_crate = false;
    let mut optimized = false;
    let mut code = false;
    for (item, _) in items(args) {
        match item {
            // The source is read from the standard input, which can be read only once.
            Item::Input("-") => return Plan::PassOn,
            // The arguments are in a file. Cargo does that if they are too long for a command line.
            Item::Input(file) if file.starts_with('@') => return Plan::PassOn,
            Item::Option("crate-type", "proc-macro") => return Plan::PassOn,
            Item::Option("print", what) if !PRINTED_ON_THE_WAY.contains(&before_equals(what)) => {
                return Plan::PassOn;
            }
            Item::Option("crate-name", value) => name = Some(value),
            Item::Option("out-dir", value) => out_dir = Some(value),
            Item::Option("target", value) => target = Some(value),
            Item::Option("emit", kinds) => {
                let kind = |kind: &str| CODE.contains(&before_equals(kind));
                code |= kinds.split(',').any(kind);
            }
            Item::Option("O", _) => optimized = true,
            Item::Option("C", option) => match option.split_once('=') {
                Some(("opt-level", level)) => optimized = level != "0",
                Some(("extra-filename", value)) => extra = value,
                Some(("metadata", _)) => cargo_crate = true,
                _ => {}
            },
            Item::Option(..) | Item::Input(_) => {}
        }
    }
    let (Some(name), Some(out_dir)) = (name, out_dir) else {
        return Plan::PassOn;
    };
    let in_the_build = name.starts_with("build_script_");
    if !cargo_crate || !code || in_the_build || select::is_own_crate(name) {
        return Plan::PassOn;
    }
    match target {
        Some(target) if !target.starts_with("x86_64") => Plan::OtherTarget(target.into()),
        _ => Plan::TwoPasses(Crate {
            name: name.into(),
            out_dir: out_dir.into(),
            stem: format!("{name}{extra}"),
            optimized,
        }),
    }
}

/// Returns the arguments of pass one, without those that set its output.
pub(crate) fn pass_one(args: &[String]) -> Vec<&str> {
    let kept = |item: &Item<'_>| match *item {
        Item::Option("C", option) => !NO_CODE_IN_PASS_ONE.contains(&before_equals(option)),
        Item::Option(name, _) => !NOT_IN_PASS_ONE.contains(&name),
        Item::Input(_) => true,
    };
    items(args)
        .filter(|(item, _)| kept(item))
        .flat_map(|(_, args)| args)
        .map(String::as_str)
        .collect()
}

fn before_equals(text: &str) -> &str {
    text.split_once('=').map_or(text, |(name, _)| name)
}

/// Item of the command line, in one argument or in two.
#[derive(Debug, PartialEq)]
enum Item<'a> {
    /// An option without its dashes, and its value, which is empty if it has none.
    Option(&'a str, &'a str),
    /// A file.
    Input(&'a str),
}

/// Splits a command line into items and their arguments.
fn items(args: &[String]) -> impl Iterator<Item = (Item<'_>, &[String])> {
    let mut rest = args;
    std::iter::from_fn(move || {
        let (first, next) = rest.split_first()?;
        let (item, len) = match next.first() {
            Some(next) => item(first, next),
            None => (item(first, "").0, 1),
        };
        let (used, behind) = rest.split_at(len);
        rest = behind;
        Some((item, used))
    })
}

/// Parses `arg`, with the argument `next` if needed, and returns the number of arguments used.
fn item<'a>(arg: &'a str, next: &'a str) -> (Item<'a>, usize) {
    if let Some(long) = arg.strip_prefix("--") {
        return match long.split_once('=') {
            Some((name, value)) => (Item::Option(codegen(name), value), 1),
            None if LONG_FLAGS.contains(&long) => (Item::Option(long, ""), 1),
            None => (Item::Option(codegen(long), next), 2),
        };
    }
    match arg.as_bytes() {
        [b'-', short, rest @ ..] if short.is_ascii() => {
            let name = &arg[1..2];
            match (SHORT_WITH_VALUE.contains(short), rest) {
                (true, []) => (Item::Option(name, next), 2),
                (true, _) => (Item::Option(name, &arg[2..]), 1),
                (false, _) => (Item::Option(name, ""), 1),
            }
        }
        _ => (Item::Input(arg), 1),
    }
}

/// Returns the short name of the one option that has two.
fn codegen(name: &str) -> &str {
    if name == "codegen" { "C" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo's call for a library.
    const LIBRARY: &str = "--crate-name app --edition=2024 src/lib.rs --error-format=json \
        --json=artifacts --crate-type lib --emit=dep-info,metadata,link -C opt-level=3 \
        -C embed-bitcode=no -C debuginfo=2 --cfg feature=\"std\" -C metadata=01 \
        -C extra-filename=-02 --out-dir /t/deps -C incremental=/t/inc -L dependency=/t/deps \
        --extern dep=/t/libdep.rmeta --cap-lints allow";

    fn args(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    fn plan_of(line: &str) -> Plan {
        plan(&args(line))
    }

    fn library() -> Crate {
        Crate {
            name: "app".into(),
            out_dir: "/t/deps".into(),
            stem: "app-02".into(),
            optimized: true,
        }
    }

    #[test]
    fn a_crate_is_compiled_in_two_passes() {
        assert_eq!(plan_of(LIBRARY), Plan::TwoPasses(library()));
        let tests = LIBRARY.replace("--crate-type lib", "--test");
        assert_eq!(plan_of(&tests), Plan::TwoPasses(library()));
        let x86 = format!("{LIBRARY} --target x86_64-unknown-linux-musl");
        assert_eq!(plan_of(&x86), Plan::TwoPasses(library()));
    }

    #[test]
    fn the_last_optimization_level_counts() {
        for (options, optimized) in [
            ("-C opt-level=0", false),
            ("-Copt-level=0", false),
            ("--codegen opt-level=0", false),
            ("--codegen=opt-level=0", false),
            ("-C opt-level=0 -O", true),
            ("-C opt-level=0 -C opt-level=s", true),
        ] {
            let expected = Crate {
                optimized,
                ..library()
            };
            let plan = plan_of(&format!("{LIBRARY} {options}"));
            assert_eq!(plan, Plan::TwoPasses(expected), "{options}");
        }
    }

    #[test]
    fn calls_for_other_crates_are_passed_on_unchanged() {
        for line in [
            "",
            "-vV",
            "-",
            "- --crate-name ___ --print=file-names --crate-type bin",
            // The probe of a build script.
            "--crate-name probe --crate-type=lib --out-dir /o --emit=llvm-ir src/probe.rs",
        ] {
            assert_eq!(plan_of(line), Plan::PassOn, "{line}");
        }
        for (from, to) in [
            ("dep-info,metadata,link", "dep-info,metadata"),
            ("--crate-type lib", "--crate-type proc-macro"),
            ("--crate-name app", "--crate-name build_script_build"),
            ("--crate-name app", "--crate-name fgraph_core"),
            ("src/lib.rs", "-"),
            ("src/lib.rs", "src/lib.rs --print cfg"),
        ] {
            assert_eq!(plan_of(&LIBRARY.replace(from, to)), Plan::PassOn, "{to}");
        }
    }

    #[test]
    fn other_targets_are_told_apart() {
        let line = format!("{LIBRARY} --target=aarch64-unknown-linux-gnu");
        let expected = Plan::OtherTarget("aarch64-unknown-linux-gnu".into());
        assert_eq!(plan_of(&line), expected);
    }

    #[test]
    fn pass_one_is_told_nothing_about_its_output() {
        let line = format!("{LIBRARY} -g -o x -Clto=fat --codegen=strip=symbols -Zx --test -l a");
        let expected = "--crate-name app --edition=2024 src/lib.rs --crate-type lib \
            -C opt-level=3 -C debuginfo=2 --cfg feature=\"std\" -C metadata=01 -C extra-filename=-02 \
            -L dependency=/t/deps --extern dep=/t/libdep.rmeta -g -Zx --test -l a";
        assert_eq!(pass_one(&args(&line)), args(expected));
    }

    #[test]
    fn odd_arguments_do_no_harm() {
        assert_eq!(item("-é", ""), (Item::Input("-é"), 1));
        assert_eq!(item("--", "x"), (Item::Option("", "x"), 2));
        assert_eq!(pass_one(&args("-C")), ["-C"]);
        assert_eq!(pass_one(&args("--emit")), [""; 0]);
    }
}
