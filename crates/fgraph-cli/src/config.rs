//! The file of defaults: values for options that are not on the command line.
//!
//! Its values become the defaults of clap's options, so the command line takes precedence.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use fgraph_trace::place::is_trusted;
use toml_edit::{Document, Item, TableLike, Value};

use crate::commands::Cli;
use crate::error::Error;
use crate::text::escaped;
use crate::usage;

/// The variable that names another file; empty for none.
const VARIABLE: &str = "FGRAPH_CONFIG";
/// The longest file that is read, in bytes.
const MAX: u64 = 1 << 20;

/// Parses the command line, with the defaults of the file. An error in the command line ends the
/// process.
pub(crate) fn parse() -> Result<Cli, Error> {
    let mut command = Cli::command();
    let mut matches = matches(&command);
    if !matches.get_flag("no_config")
        && let Some(path) = path()
    {
        let Some(text) = read(&path)? else {
            return finish(&mut command, &mut matches);
        };
        command = with_defaults(command, &text).map_err(|Wrong { at, why }| Error::Config {
            line: 1 + text[..at.min(text.len())].matches('\n').count(),
            path,
            why,
        })?;
        matches = self::matches(&command);
    }
    finish(&mut command, &mut matches)
}

fn finish(command: &mut Command, matches: &mut ArgMatches) -> Result<Cli, Error> {
    let cli = Cli::from_arg_matches_mut(matches);
    Ok(cli.unwrap_or_else(|error| usage::exit(&error.format(command), command)))
}

/// The arguments of this process.
fn matches(command: &Command) -> ArgMatches {
    let matches = command.clone().try_get_matches();
    matches.unwrap_or_else(|error| usage::exit(&error, command))
}

/// Returns the path of the file, if there is one.
fn path() -> Option<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return (!path.is_empty()).then(|| path.into());
    }
    default_path(env::var_os("XDG_CONFIG_HOME"), env::var_os("HOME"))
}

/// Returns the path of the file if no variable names it.
fn default_path(config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|it| it.is_absolute());
    let config = absolute(config).or_else(|| Some(absolute(home)?.join(".config")))?;
    Some(config.join("fgraph/config"))
}

/// Returns the text of the file; `None` if there is none at the default path, or none that may be
/// read. After `su`, the home may be another user's, who must not control this process.
fn read(path: &Path) -> Result<Option<String>, Error> {
    let failed = |error| Error::Input {
        path: path.to_owned(),
        error,
    };
    let is_default = env::var_os(VARIABLE).is_none();
    let file = match File::open(path) {
        Err(error) if is_default => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(None),
            io::ErrorKind::PermissionDenied => {
                let why = failed(error).message().unwrap_or_default();
                say!("fgraph: {why}; it is ignored");
                return Ok(None);
            }
            _ => return Err(failed(error)),
        },
        file => file.map_err(failed)?,
    };
    let owner = file.metadata().map_err(failed)?.uid();
    if is_default && !is_trusted(owner) {
        let path = path.display().to_string();
        let path = escaped(&path);
        say!("fgraph: {path} belongs to user {owner}; it is ignored");
        return Ok(None);
    }
    let mut text = String::new();
    let read = file.take(MAX + 1).read_to_string(&mut text);
    read.map_err(failed)?;
    if text.len() as u64 > MAX {
        return Err(failed(io::Error::other("it is longer than 1 MiB")));
    }
    Ok(Some(text))
}

/// An error in the file.
#[derive(Debug)]
struct Wrong {
    /// The byte of the error.
    at: usize,
    why: String,
}

impl Wrong {
    fn new(at: Option<Range<usize>>, why: impl Into<String>) -> Self {
        Self {
            at: at.map_or(0, |at| at.start),
            why: why.into(),
        }
    }
}

/// Returns a command whose options have the defaults of a text.
fn with_defaults(mut command: Command, text: &str) -> Result<Command, Wrong> {
    let document = Document::parse(text).map_err(|error| {
        let why = error.message().lines().collect::<Vec<_>>().join("; ");
        Wrong::new(error.span(), why)
    })?;
    let table = document.as_table();
    for (name, item) in table.iter() {
        let at = table.key(name).and_then(|key| key.span());
        let Some(options) = item.as_table_like() else {
            command = with_default(command, name, item, at)?;
            continue;
        };
        if command.find_subcommand(name).is_none() {
            return Err(Wrong::new(at, format!("there is no subcommand {name}")));
        }
        let mut result = Ok(());
        command = command.mut_subcommand(name, |subcommand| {
            match with_table(subcommand.clone(), options) {
                Ok(changed) => changed,
                Err(wrong) => {
                    result = Err(wrong);
                    subcommand
                }
            }
        });
        result?;
    }
    Ok(command)
}

fn with_table(mut command: Command, options: &dyn TableLike) -> Result<Command, Wrong> {
    for (name, item) in options.iter() {
        let key = options.get_key_value(name);
        let at = key.and_then(|(key, _)| key.span());
        command = with_default(command, name, item, at)?;
    }
    Ok(command)
}

/// Gives an option a default.
fn with_default(
    command: Command,
    name: &str,
    item: &Item,
    at: Option<Range<usize>>,
) -> Result<Command, Wrong> {
    let is_it = |arg: &&Arg| {
        let is_ours = !["help", "version", "no-config"].contains(&name);
        arg.get_long() == Some(name) && is_ours && !arg.is_hide_set() && !arg.is_required_set()
    };
    let Some(arg) = command.get_arguments().find(is_it) else {
        let command = command.get_name();
        let why = match command {
            _ if name.starts_with('-') => {
                format!("'{name}' is no key: write the option's name without dashes")
            }
            "fgraph" => format!("there is no option --{name} of all subcommands"),
            _ => format!("{command} has no option --{name} with a default"),
        };
        return Err(Wrong::new(at, why));
    };
    let wrong = |why: &str| Wrong::new(at.clone(), format!("{name} is {why}"));
    let values = match (arg.get_action(), item.as_value()) {
        (ArgAction::SetTrue, Some(Value::Boolean(value))) => vec![value.value().to_string()],
        (ArgAction::SetTrue, _) => return Err(wrong("true or false")),
        (ArgAction::Append, Some(Value::Array(all))) => {
            let texts: Option<Vec<String>> = all.iter().map(text).collect();
            texts.ok_or_else(|| wrong("a list of texts or numbers"))?
        }
        (_, value) => {
            let text = value.and_then(text);
            vec![text.ok_or_else(|| wrong("a text or a number"))?]
        }
    };
    if !matches!(arg.get_action(), ArgAction::SetTrue) {
        for value in &values {
            check(arg, name, value).map_err(|why| Wrong::new(at.clone(), why))?;
        }
    }
    let id = arg.get_id().clone();
    Ok(command.mut_arg(id, |arg| arg.default_values(values)))
}

/// Returns a value as it would be on a command line.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        _ => None,
    }
}

/// Checks a value of an option with clap.
fn check(arg: &Arg, name: &str, value: &str) -> Result<(), String> {
    let names = arg.get_value_names().unwrap_or_default().to_vec();
    let option = Arg::new("option")
        .long(name.to_owned())
        .value_names(names)
        .num_args(1)
        .value_parser(arg.get_value_parser().clone());
    let command = Command::new("fgraph").no_binary_name(true).arg(option);
    let matches = command.try_get_matches_from([format!("--{name}={value}")]);
    matches.map(drop).map_err(|error| {
        let text = error.to_string();
        let lines = text.lines().take_while(|line| !line.is_empty());
        let lines: Vec<&str> = lines.map(str::trim).collect();
        let text = lines.join(" ");
        text.trim_start_matches("error: ").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Patterns;

    fn functions(text: &str, line: &[&str]) -> Vec<String> {
        let command = with_defaults(Cli::command(), text).unwrap();
        let matches = command.get_matches_from(line);
        let record = matches.subcommand_matches("record").unwrap();
        let found = record.get_many::<Patterns>("functions").unwrap_or_default();
        let patterns = found.flat_map(|patterns| &patterns.0);
        patterns.map(|pattern| pattern.text.clone()).collect()
    }

    #[test]
    fn a_list_of_the_command_line_takes_the_place_of_the_files() {
        let text = "[record]\nfunction = ['a', \"b:mod:c\"]\npid = 5\n";
        let line = ["fgraph", "record", "-F", "x", "program"];
        assert_eq!(functions(text, &line), ["x"]);
        let line = ["fgraph", "record", "program"];
        assert_eq!(functions(text, &line), ["a", "b:mod:c"]);
        assert_eq!(functions("record.function = 'one'", &line), ["one"]);
    }

    #[test]
    fn errors_are_reported_with_their_place() {
        for (text, at, why) in [
            ("a = ", 4, ""),
            (
                "\ncolor = 'loud'",
                1,
                "invalid value 'loud' for '--color <WHEN>'",
            ),
            (
                "colour = 1",
                0,
                "there is no option --colour of all subcommands",
            ),
            ("color = [1]", 0, "color is a text or a number"),
            ("[recrod]", 1, "there is no subcommand recrod"),
            (
                "[record]\nmax = 1",
                9,
                "record has no option --max with a default",
            ),
            (
                "[record]\nmax-rate = 0",
                9,
                "invalid value '0' for '--max-rate <N>'",
            ),
            ("[record]\nlibs = 1", 9, "libs is true or false"),
            (
                "[record]\nfunction = [[1]]",
                9,
                "function is a list of texts or numbers",
            ),
            (
                "[record]\ncommand = 'x'",
                9,
                "record has no option --command",
            ),
            ("[detach]\nguard = 1", 9, "detach has no option --guard"),
            ("no-config = true", 0, "there is no option --no-config"),
            ("[record]\nhelp = true", 9, "record has no option --help"),
            (
                "[record]\n'--libs' = true",
                9,
                "'--libs' is no key: write the option's name without dashes",
            ),
            ("[[record]]", 2, ""),
        ] {
            let wrong = with_defaults(Cli::command(), text).unwrap_err();
            assert_eq!(wrong.at, at, "{text}: {wrong:?}");
            assert!(wrong.why.starts_with(why), "{text}: {wrong:?}");
            assert!(!wrong.why.contains('\n'), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn the_file_is_where_others_of_its_kind_are() {
        let path = |config: Option<&str>, home: Option<&str>| {
            let path = default_path(config.map(Into::into), home.map(Into::into));
            path.map(|path| path.display().to_string())
        };
        let there = |path: &str| Some(path.to_owned());
        assert_eq!(path(Some("/c"), Some("/h")), there("/c/fgraph/config"));
        for config in [None, Some(""), Some("relative")] {
            assert_eq!(path(config, Some("/h")), there("/h/.config/fgraph/config"));
        }
        assert_eq!(path(None, Some("")), None);
        assert_eq!(path(None, None), None);
    }
}
