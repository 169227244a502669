//! A detour for one known signature, by the crate `retour`.

use std::path::PathBuf;
use std::process::Command;

use fgraph_chores::cargo;
use fgraph_needs::Missing;

use super::programs::{PLAIN, Programs, builder};
use super::row::{Kind, Row, failed, measure};

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let built = || -> Result<(PathBuf, PathBuf), Missing> {
        let program = programs.build(PLAIN)?;
        let library = cargo::build_with(&mut builder(), "fgraph-versus-detour");
        Ok((program, library.map_err(failed)?))
    };
    let row = Row::new(
        "retour, GenericDetour",
        Kind::Empty,
        built(),
        |(program, library), calls| {
            let mut command = Command::new(program);
            measure(command.arg(calls.to_string()).env("LD_PRELOAD", library))
        },
    );
    vec![row]
}
