//! Programs that a chore runs.

use std::io;
use std::process::Command;

/// Runs a command and returns what it prints. Fails with the last line that it prints if it fails.
pub(crate) fn succeed(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        return Ok(out);
    }
    let last = |text: &str| {
        text.lines()
            .rfind(|line| !line.is_empty())
            .map(str::to_owned)
    };
    let reason = last(&err).or_else(|| last(&out)).unwrap_or_default();
    let program = command.get_program().display();
    Err(io::Error::other(format!(
        "{program}: {}: {reason}",
        output.status
    )))
}
