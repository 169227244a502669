//! `cargo xtask coverage` counts what there is.

use std::process::{Command, Output};

fn coverage(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("coverage")
        .args(args)
        .output()
        .expect("the lab runs")
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("valid text")
}

#[test]
fn libraries_are_found_by_name_and_their_resolvers_are_not_counted() {
    let text = text(coverage(&["libc.so.6"]));
    let row = text.lines().nth(1).expect("a line for each binary");
    let cells: Vec<&str> = row.split_whitespace().collect();
    let [
        name,
        functions,
        unnamed,
        nops,
        relocated,
        _,
        refused,
        _,
        _,
        resolvers,
        _,
    ] = cells[..]
    else {
        panic!("{row}");
    };
    let number = |cell: &str| cell.parse::<usize>().expect("a number");
    assert_eq!((name, nops), ("libc.so.6", "0"));
    assert_eq!(number(functions), number(relocated) + number(refused));
    assert!(number(resolvers) > 10, "{row}");
    // Many have no name where its debug file is missing; that these are refused is no fault, nor is
    // it of the few that run where all signals are blocked.
    let is_blocked = |line: &&str| line.contains("refused: runs in threads that block");
    let blocked = text.lines().find(is_blocked).expect("there are some");
    let blocked = number(blocked.split_whitespace().next().expect("a number"));
    let named = number(functions) - number(unnamed) - blocked;
    assert!(number(relocated) * 1000 > named * 995, "{row}");
}

#[test]
fn every_refused_function_can_be_listed() {
    let binary = env!("CARGO_BIN_EXE_lab");
    let text = text(coverage(&[binary, "--all", "--json"]));
    let number = |name: &str| {
        let (_, rest) = text.split_once(&format!("\"{name}\":")).expect("is there");
        let digits = rest.split([',', '}']).next().expect("there is a first");
        digits.parse::<usize>().expect("a number")
    };
    let (_, reasons) = text.split_once("\"reasons\":").expect("is there");
    let counts = reasons.split("\"count\":").skip(1);
    let count = |rest: &str| rest.split(',').next()?.parse::<usize>().ok();
    assert_eq!(counts.filter_map(count).sum::<usize>(), number("refused"));
    assert!(number("functions") > 1000);
    assert!(text.trim_end().lines().count() == 1);
}

#[test]
fn a_file_that_is_no_binary_is_an_error() {
    for name in ["no-such-library.so.7", "./Cargo.toml", "/no/such/file"] {
        assert_eq!(coverage(&[name]).status.code(), Some(2), "{name}");
    }
}
