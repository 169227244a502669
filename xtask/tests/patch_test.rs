//! `cargo xtask patch-test` finds nothing wrong, and would find it if something were.
//!
//! That a thread meets the place where a step is left out is luck, which a longer run helps: only a
//! soak relies on it. `without_breakpoints_within_a_thread_would_be_lost` of
//! `crates/fgraph/tests/preempted.rs` leads a thread there.

use std::process::{Command, Output};

fn patch_test(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("patch-test")
        .args(args)
        .output()
        .expect("xtask runs")
}

/// A member of the only JSON object that was printed.
fn member<'a>(output: &'a Output, name: &str) -> &'a str {
    let text = str::from_utf8(&output.stdout)
        .expect("valid text")
        .trim_end();
    assert!(
        text.starts_with('{') && text.ends_with('}') && text.lines().count() == 1,
        "not one object: {text}"
    );
    let (_, rest) = text
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("no {name} in {text}"));
    rest.split([',', '}'])
        .next()
        .expect("there is always a first")
}

fn number(output: &Output, name: &str) -> u64 {
    member(output, name).parse().expect("a number")
}

#[test]
#[ignore = "builds the victim: cargo xtask soak"]
fn a_short_run_finds_nothing_wrong() {
    let output = patch_test(&["--seconds", "3", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}\n{errors}");
    assert_eq!(number(&output, "failures"), 0);
    assert_eq!(member(&output, "crash"), "null");
    for name in [
        "site_patches",
        "calls",
        "signals",
        "traps",
        "returned",
        "short_threads",
    ] {
        assert_ne!(number(&output, name), 0, "{name}");
    }
    assert_eq!(number(&output, "users_at_once"), 16);
    assert_eq!(
        number(&output, "registrations"),
        number(&output, "unregistrations")
    );
    assert_eq!(
        number(&output, "accepted"),
        number(&output, "returned") + number(&output, "in_flight")
    );
}

#[test]
#[ignore = "builds the victim: cargo xtask soak"]
fn a_short_run_without_nops_finds_nothing_wrong() {
    let output = patch_test(&["--relocated", "--seconds", "5", "--json"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}\n{errors}");
    assert_eq!(number(&output, "failures"), 0);
    for name in ["site_patches", "calls", "signals", "traps", "returned"] {
        assert_ne!(number(&output, name), 0, "{name}");
    }
}

#[test]
#[ignore = "builds the victim and needs luck: cargo xtask soak"]
fn without_nops_leaving_out_any_trap_is_noticed() {
    for steps in ["trap", "inner"] {
        let args = ["--relocated", "--leave-out", steps, "--seconds", "120"];
        let output = patch_test(&[&args[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{steps}: {output:?}");
        assert_ne!(number(&output, "failures"), 0);
    }
}

#[test]
#[ignore = "builds the victim: cargo xtask soak"]
fn everything_hostile_at_once_finds_nothing_wrong() {
    for kind in ["--nops", "--relocated"] {
        let args = [
            "--chaos",
            kind,
            "--seconds",
            "5",
            "--threads",
            "4",
            "--seed",
            "1",
        ];
        let output = patch_test(&[&args[..], &["--json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}\n{errors}");
        assert_eq!(number(&output, "failures"), 0);
        for name in ["site_patches", "signals", "traps", "returned", "lost"] {
            assert_ne!(number(&output, name), 0, "{name}");
        }
    }
}

#[test]
#[ignore = "builds the victim: cargo xtask soak"]
fn tracers_that_are_switched_in_chaos_miss_nothing() {
    for kind in ["--nops", "--relocated"] {
        let args = ["--chaos", kind, "--tracers", "--seconds", "10", "--json"];
        let output = patch_test(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}\n{errors}");
        assert_eq!(number(&output, "failures"), 0);
        for name in ["tracers_switched", "calls_for_tracers", "events_recorded"] {
            assert_ne!(number(&output, name), 0, "{name}");
        }
    }
}

#[test]
#[ignore = "builds the victim and needs luck: cargo xtask soak"]
fn in_chaos_leaving_out_any_trap_is_noticed() {
    for (kind, steps) in [("--nops", "trap"), ("--relocated", "inner")] {
        let args = ["--chaos", kind, "--leave-out", steps, "--seconds", "120"];
        let output = patch_test(&[&args[..], &["--json"]].concat());
        assert_eq!(output.status.code(), Some(1), "{steps}: {output:?}");
        assert_ne!(number(&output, "failures"), 0);
    }
}

#[test]
#[ignore = "builds the victim and needs luck: cargo xtask soak"]
fn leaving_the_trap_out_is_noticed() {
    // As a rule within a second or two; the more often sites change, the sooner.
    let output = patch_test(&["--leave-out", "trap", "--seconds", "60", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_ne!(number(&output, "failures"), 0);
}

#[test]
fn unsupported_options_of_the_victim_are_refused() {
    for args in [["--users", "17"], ["--sites", "0"], ["--sites", "4097"]] {
        assert_eq!(patch_test(&args).status.code(), Some(2), "{args:?}");
    }
}
