//! Every scenario is a test: `cargo test -p fgraph-reliability --test scenarios unwinding` runs a
//! group, at some levels of optimisation; `cargo xtask reliability` runs all.

use std::process::ExitCode;
use std::sync::Arc;

use fgraph_needs::skip;
use fgraph_reliability::{Figures, GROUPS, Tools, Ways, missing_compilers, run};
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let tools = match Tools::build() {
        Ok(tools) => Arc::new(tools),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if !arguments.list {
        for missing in missing_compilers() {
            skip("scenarios, as built by one more compiler", missing);
        }
    }
    let mut trials = Vec::new();
    for group in GROUPS {
        for scenario in group.scenarios {
            let tools = Arc::clone(&tools);
            let name = format!("{}::{}", group.name, scenario.test());
            let test = format!("scenarios::{name}");
            trials.push(Trial::test(name, move || {
                let Figures {
                    failures,
                    not_yet,
                    skipped,
                    ..
                } = run(&tools, group, scenario, Ways::Some);
                if let Some(outcome) = not_yet {
                    eprintln!("{test} {outcome}");
                }
                for missing in skipped {
                    skip(&test, missing);
                }
                if failures.is_empty() {
                    Ok(())
                } else {
                    Err(failures.join("\n\n").into())
                }
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
