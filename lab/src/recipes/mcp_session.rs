//! A hash table with its slow entries in one bucket, found over `fgraph mcp`.

use fgraph_needs::{GCC, PYTHON};

use super::page::Recipe;

pub(super) const RECIPE: Recipe = Recipe {
    name: "mcp-session",
    needs: &[GCC, PYTHON],
    names_cause,
};

/// Returns true if the slowest calls are those for photos, and one bucket has all of them.
fn names_cause(output: &str) -> bool {
    let first_row = |function: &str| {
        let question = format!("> probe {{\"recording\": \"r1\", \"function\": \"{function}\"");
        let (_, answer) = output.split_once(&question)?;
        let (_, rows) = answer.split_once("\"rows\":[")?;
        rows.split('}').next()
    };
    let is_photo = first_row("find").is_some_and(|row| row.contains(".jpg"));
    let fullest = first_row("bucket_of").unwrap_or_default();
    is_photo && fullest.contains("{\"calls\":600,\"key\":[\"2559\"]")
}
