//! `cargo xtask attach-test` finds nothing wrong.

use std::process::Command;

#[test]
#[ignore = "builds the command: cargo xtask soak"]
fn a_few_cycles_find_nothing_wrong() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["attach-test", "--cycles", "12"])
        .output()
        .expect("the lab runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for line in ["cycles 12", "recorders killed 1", "failures 0"] {
        assert!(text.lines().any(|known| known == line), "{text}");
    }
    assert!(
        text.contains("first event with 100 threads after "),
        "{text}"
    );
}
