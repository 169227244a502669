//! `fgraph probe` on values behind arguments: members of structures, and what addresses lead to.

use std::path::Path;
use std::process::Command;

use fgraph_needs::{CC, GXX, needs};
use tempfile::TempDir;

/// Builds a program of `tests/record`.
fn build(place: &TempDir, compiler: &Path, source: &str, options: &[&str]) -> String {
    let program = place.path().join("members");
    let mut build = Command::new(compiler);
    let build = build.args(options).arg("-o").arg(&program);
    let status = build.arg(format!("tests/record/{source}")).status();
    assert!(status.unwrap().success());
    program.to_str().unwrap().to_owned()
}

/// The lines of results, and what is said beside them. The program ends well.
fn probe(program: &str, function: &str, actions: &[&str]) -> (Vec<String>, String) {
    let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let fgraph = fgraph.arg("probe").arg(function).args(actions);
    let output = fgraph.args(["--", program]).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert_eq!(output.status.code(), Some(0), "{err}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    // The last line is the program's.
    let lines = out.lines().map(words);
    (
        lines
            .filter(|line| line.parse::<i64>().is_err() || actions.is_empty())
            .collect(),
        err,
    )
}

#[test]
fn members_and_targets_of_addresses_are_values() {
    let place = TempDir::new().unwrap();
    let compiler = needs!(CC.find());
    for level in ["-O0", "-O2"] {
        let program = build(&place, &compiler, "members.c", &["-g", "-w", level]);
        let (lines, said) = probe(
            &program,
            "deposit",
            &[
                "count by account->balance",
                "count by str(arg0->owner.name)",
                "count by str(account->next->owner.town)",
                "count by *count",
                "count by account->owner.age if account->balance > 0",
            ],
        );
        assert_eq!(said, "");
        let expected = [
            "count by account->balance",
            "2 ?",
            "1 -5",
            "1 70",
            "count by str(arg0->owner.name)",
            "2 ?",
            "1 \"first\"",
            "1 \"second\"",
            "count by str(account->next->owner.town)",
            "3 ?",
            "1 \"Rome\"",
            "count by *count",
            "3 ?",
            "1 3",
            "count by account->owner.age if account->balance > 0",
            "1 33",
        ];
        assert_eq!(lines, expected);
    }
}

#[test]
fn members_of_bases_and_behind_references_are_values() {
    let place = TempDir::new().unwrap();
    let program = build(&place, &needs!(GXX.find()), "members.cc", &["-g", "-O1"]);
    let actions = [
        "count by this->id, str(this->name)",
        "count by str(this->nick), str(this->inner->name)",
    ];
    let (lines, said) = probe(&program, "Shape::area", &actions);
    assert_eq!(said, "");
    let expected = [
        "count by this->id, str(this->name)",
        "1 4 \"small\"",
        "1 5 \"a name that is longer than the others\"",
        "count by str(this->nick), str(this->inner->name)",
        "1 \"big\" \"small\"",
        "1 ? ?",
    ];
    assert_eq!(lines, expected);
    let (lines, said) = probe(&program, "look", &["count by shape.id, place->id"]);
    assert_eq!((lines[1].as_str(), said.as_str()), ("1 5 4", ""));
}

#[test]
fn misspelt_members_are_errors_with_suggestions() {
    let place = TempDir::new().unwrap();
    let program = build(
        &place,
        &needs!(CC.find()),
        "members.c",
        &["-g", "-w", "-O1"],
    );
    for (path, why) in [
        (
            "account->ballance",
            "'account' has no member 'ballance'; did you mean balance?",
        ),
        (
            "account->owner.x",
            "'owner' has no member 'x'; there are name, town, age",
        ),
        (
            "account->owner",
            "it is a whole struct owner: name a member; there are name, town, age",
        ),
        (
            "account->next.balance",
            "is an address: write -> before 'balance'",
        ),
        ("account->balance->x", "account.balance is no address"),
        (
            "account->flags",
            "'flags' of 'account' is not at a fixed byte",
        ),
        (
            "acount->flags",
            "the function has no argument 'acount'; did you mean account or amount or count?",
        ),
        (
            "hidden->x",
            "debug information has no members of 'opaque' here",
        ),
        ("*amount", "amount is no address"),
        ("**count", "count is no address"),
        (
            "arg9->x",
            "the function has no argument 'arg9'; there are account, count, hidden",
        ),
    ] {
        let (_, said) = probe(&program, "deposit", &[&format!("max({path})")]);
        let start = format!("fgraph: '{path}' of deposit: ");
        assert!(said.starts_with(&start) && said.contains(why), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let stripped = build(&place, &needs!(CC.find()), "members.c", &["-w", "-O1"]);
    let (_, said) = probe(&stripped, "deposit", &["max(*arg0)"]);
    assert!(
        said.contains("there is no debug information of the function"),
        "{said}"
    );
}
