//! Documentation of the scenarios: `docs/reliability.md`, and a table in README.md.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use fgraph_chores::cargo::workspace;

use crate::scenario::{Group, Shown};
use crate::scenarios::GROUPS;

/// Start of the table in README.md.
const BEGIN: &str = "<!-- reliability -->\n";
/// End of the table.
const END: &str = "<!-- /reliability -->\n";

/// Writes both files if they differ from the scenarios.
///
/// # Errors
///
/// Fails if a file cannot be read or written, or README.md has no place for the table.
pub fn write() -> io::Result<()> {
    fs::write(path("docs/reliability.md"), page())?;
    let readme = path("README.md");
    let text = fs::read_to_string(&readme)?;
    let text = with_table(&text).ok_or_else(|| io::Error::other("README.md has no markers"))?;
    fs::write(readme, text)
}

fn path(name: &str) -> PathBuf {
    workspace().join(name)
}

/// Returns README.md with the table in its place; `None` if it has none.
fn with_table(text: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", table()))
}

/// Returns the table of groups, with their subjects.
fn table() -> String {
    let mut text = String::from("| group | what it is about | scenarios |\n|---|---|---|\n");
    for group in GROUPS {
        let Group {
            name,
            about,
            scenarios,
        } = group;
        let _ = writeln!(text, "| {name} | {about} | {} |", scenarios.len());
    }
    text
}

/// Returns the page with all scenarios.
fn page() -> String {
    let mut text = String::from(HEAD);
    for group in GROUPS {
        section(&mut text, group);
    }
    text
}

const HEAD: &str = "\
# What a program may do under tracing

*Written by `cargo xtask reliability --write` from the scenarios in
`xtask/reliability/src/scenarios/`.*

Read this page to find out if fgraph may run in a program that does unusual things. Look the
behaviour up in the first column. The second column says what fgraph guarantees for it, and the
third one names the program or the test that shows it.

Each program of `xtask/reliability/programs/` is built by the compilers given, with optimisation
levels 0 to 3, with NOPs (by clang and rustc) and without. It runs untraced, and with 1 and 16 users
of all its functions. It must print the same and end in the same way. In every run, these hold, too:

- Each user gets the return of each entry that it accepted, once, in reverse order, with its own
  data; calls that never return are counted.
- No callback runs after `unregister`, and the text is the original again then.

    cargo xtask reliability                                  all scenarios
    cargo xtask reliability jumps                            those of a group
    cargo test -p fgraph-reliability --test scenarios        all, in fewer builds

";

fn section(text: &mut String, group: &Group) {
    let _ = writeln!(text, "## {}: {}\n", group.name, group.about);
    if group.scenarios.is_empty() {
        text.push_str("None yet.\n\n");
        return;
    }
    text.push_str("| what happens | what is promised | what shows it |\n|---|---|---|\n");
    for scenario in group.scenarios {
        let mut promise = scenario.promise.to_owned();
        let shown = match &scenario.shown {
            Shown::By(program) => {
                if let Some(reason) = program.not_yet {
                    let _ = write!(promise, " **Not always yet:** {reason}.");
                }
                let compilers: Vec<&str> = program
                    .compilers
                    .iter()
                    .map(|it| it.need().name())
                    .collect();
                let args = program.args.iter().map(|arg| format!(" {arg}"));
                let command = program.source.to_owned() + &args.collect::<String>();
                format!("`{command}` ({})", compilers.join(", "))
            }
            Shown::Elsewhere(tests) => {
                let test = |test: &crate::Elsewhere| format!("`{}` of {}", test.test, test.file);
                tests.iter().map(test).collect::<Vec<_>>().join(", ")
            }
        };
        let _ = writeln!(text, "| {} | {promise} | {shown} |", scenario.name);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: &str = "`cargo xtask reliability --write` writes it";

    #[test]
    fn the_page_is_what_the_scenarios_give() {
        let text = fs::read_to_string(path("docs/reliability.md")).unwrap();
        assert!(text == page(), "docs/reliability.md is old: {HINT}");
    }

    #[test]
    fn the_table_of_the_readme_is_what_the_scenarios_give() {
        let text = fs::read_to_string(path("README.md")).unwrap();
        assert!(with_table(&text) == Some(text), "README.md is old: {HINT}");
    }
}
