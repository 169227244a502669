//! Gum's Interceptor, which Frida attaches.

use std::process::Command;

use fgraph_needs::{FRIDA, PYTHON};

use super::programs::{PLAIN, Programs};
use super::row::{Kind, Row, measure};

pub(super) fn rows(programs: &Programs) -> Vec<Row> {
    let script = programs.path("gum.py");
    let found = FRIDA.import().and_then(|()| PYTHON.find());
    let found = found.and_then(|python| Ok((python, programs.build(PLAIN)?)));
    let row = Row::new(
        "Frida Gum, empty listener",
        Kind::Empty,
        found,
        move |(python, program), calls| {
            let mut command = Command::new(python);
            measure(command.arg(&script).arg(program).arg(calls.to_string()))
        },
    );
    vec![row]
}
