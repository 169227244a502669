//! Errors in command lines in plain words: clap passes on the standard library's messages about
//! numbers.

mod foreign;

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use clap::error::{ContextKind, ErrorKind};
use clap::{Command, Error};

/// Messages of the standard library, with their replacements.
const PLAIN: [(&str, &str); 6] = [
    ("invalid digit found in string", WHOLE),
    (
        "number would be zero for non-zero type",
        "a number from 1 on is expected",
    ),
    ("cannot parse integer from empty string", WHOLE),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    ("invalid float literal", "a number is expected"),
    (
        "cannot parse float from empty string",
        "a number is expected",
    ),
];
const WHOLE: &str = "a whole number is expected";

/// Reports an error in the command line, or shows the requested help, and ends the process.
pub(crate) fn exit(error: &Error, command: &Command) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    let text = match io::stderr().is_terminal() {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    let mut text = plain(&text);
    let is_without_program = error.kind() == ErrorKind::MissingRequiredArgument
        && error
            .get(ContextKind::InvalidArg)
            .is_some_and(|missing| missing.to_string().contains("<COMMAND>"));
    let subcommand = env::args()
        .skip(1)
        .find_map(|word| command.find_subcommand(word));
    if is_without_program {
        let mut arguments = subcommand.into_iter().flat_map(Command::get_arguments);
        let process = match arguments.any(|it| it.get_id() == "pid") {
            true => ", or -p PID names a process that runs",
            false => "",
        };
        insert_tip(
            &mut text,
            &format!("the program comes behind `--`{process}"),
        );
    }
    if let Some(tip) = subcommand.and_then(|it| tip_of_option(error, it)) {
        insert_tip(&mut text, &tip);
    }
    let _ = io::stderr().write_all(text.as_bytes());
    std::process::exit(error.exit_code());
}

/// Adds a tip before the usage.
fn insert_tip(text: &mut String, tip: &str) {
    let at = text.find("\nUsage").map_or(text.len(), |at| at + 1);
    text.insert_str(at, &format!("  tip: {tip}\n\n"));
}

/// Returns a sentence about an unknown option of a subcommand that another tool has.
fn tip_of_option(error: &Error, subcommand: &Command) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let option = error.get(ContextKind::InvalidArg)?.to_string();
    foreign::tip(subcommand.get_name(), &option)
}

/// Returns a message in plain words.
fn plain(text: &str) -> String {
    let lines = text.split_inclusive('\n').map(|line| {
        let known = PLAIN.iter().find(|(known, _)| line.contains(known));
        match known {
            Some((known, plain)) => line.replace(known, plain),
            None => in_range(line).unwrap_or_else(|| line.to_owned()),
        }
    });
    lines.collect()
}

/// Returns a line about a number that is not in a range.
fn in_range(line: &str) -> Option<String> {
    let (before, range) = line.trim_end().rsplit_once(" is not in ")?;
    let (start, _) = before.rsplit_once(": ")?;
    let (first, last) = range.split_once("..")?;
    let last = last.trim_start_matches('=');
    let end = match last.parse::<u64>() {
        Ok(last) if last < u32::MAX.into() => format!("to {last}"),
        _ => "on".to_owned(),
    };
    Some(format!(
        "{start}: a number from {first} {end} is expected\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_asked_for_in_plain_words() {
        let value = "error: invalid value 'x' for '--lines <N>': ";
        for (text, expected) in [
            (
                "invalid digit found in string",
                "a whole number is expected",
            ),
            (
                "0 is not in 1..=4294967295",
                "a number from 1 on is expected",
            ),
            ("200 is not in 1..=64", "a number from 1 to 64 is expected"),
            ("a size is a number", "a size is a number"),
        ] {
            let text = plain(&format!("{value}{text}\n\nFor more information\n"));
            assert_eq!(text, format!("{value}{expected}\n\nFor more information\n"));
        }
    }
}
