//! `cargo xtask spawn-test` finds nothing wrong.

use std::process::Command;

#[test]
#[ignore = "builds the command: cargo xtask soak"]
fn children_of_each_program_survive() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["spawn-test", "--children", "500"])
        .output()
        .expect("the lab runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for start in ["inside ", "posix_spawn ", "vfork ", "failures 0"] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
}
