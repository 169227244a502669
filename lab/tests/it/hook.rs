//! `cargo xtask hook`: whole programs are traced and do what they always do.

use std::process::Command;

#[test]
#[ignore = "rustc and cargo take long when traced: cargo xtask soak"]
fn rustc_and_cargo_work_while_all_their_functions_are_traced() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["hook", "--json"])
        .output()
        .expect("the lab runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text.matches("\"fault\":null").count(), 4, "{text}");
}
