//! The answers of `fgraph_analysis` about the own process.

use fgraph_scenario::scenario;

#[path = "../examples/answers.rs"]
mod example;

#[scenario]
fn a_program_answers_questions_about_itself() {
    example::main().unwrap();
}
