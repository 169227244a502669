//! Tools: their arguments, the schemas of these, and the command line that they make.

use std::ffi::OsString;

use serde_json::{Map, Value, json};

use crate::text::escaped;

/// A tool that clients call.
#[derive(Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) does: Does,
    /// Groups of arguments.
    pub(super) arguments: &'static [&'static [Argument]],
}

/// The act of a tool.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    /// Shows a view of a recording, or of a program or process if there is none.
    View(View),
    /// Shows the lines of a view, one object on each.
    Lines(&'static str),
    /// Records a program or a process.
    Record,
    /// Changes a program or a process while it runs.
    Inject,
    /// Lists recordings.
    List,
    /// Removes a recording.
    Forget,
}

/// A subcommand with `--json`.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) command: &'static str,
    /// The path of the list with the rows.
    pub(super) rows: &'static [&'static str],
    /// The option for the number of rows, if the subcommand leaves rows out.
    pub(super) count: Option<&'static str>,
}

/// An argument of a tool.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) name: &'static str,
    kind: Kind,
    to: To,
    is_required: bool,
    about: &'static str,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A recording, by its handle or path.
    Recording,
    /// Several of them.
    Recordings,
    Text,
    Texts,
    Number(u64, u64),
    Flag,
    Choice(&'static [&'static str]),
}

/// The place of an argument in the command line.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// An option with the value, such as `--filter`.
    Option(&'static str),
    /// An option that stands alone, such as `--all`.
    Flag(&'static str),
    /// A value at its place.
    Place,
    /// A value behind `--`.
    Last,
    /// The server uses it.
    Server,
}

pub(super) const fn argument(
    name: &'static str,
    kind: Kind,
    to: To,
    about: &'static str,
) -> Argument {
    Argument {
        name,
        kind,
        to,
        is_required: false,
        about,
    }
}

impl Argument {
    pub(super) const fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Recording | Kind::Text => json!({ "type": "string" }),
            Kind::Texts | Kind::Recordings => {
                json!({ "type": "array", "items": { "type": "string" } })
            }
            Kind::Number(least, most) => {
                json!({ "type": "integer", "minimum": least, "maximum": most })
            }
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Choice(all) => json!({ "type": "string", "enum": all }),
        };
        schema["description"] = self.about.into();
        schema
    }

    /// Returns the texts of a value, after a check of its type.
    fn texts(&self, value: &Value) -> Result<Vec<String>, String> {
        let wrong = |expected: String| format!("{} is {expected}", self.name);
        let text = |value: &Value| match value.as_str() {
            Some(text) if text.contains('\0') => {
                Err(wrong("a text without a zero byte".to_owned()))
            }
            Some(text) => Ok(text.to_owned()),
            None => Err(wrong("a text".to_owned())),
        };
        match (self.kind, value) {
            (Kind::Recording | Kind::Text, value) => Ok(vec![text(value)?]),
            (Kind::Texts | Kind::Recordings, Value::Array(all)) => all.iter().map(text).collect(),
            (Kind::Texts | Kind::Recordings, _) => Err(wrong("a list of texts".to_owned())),
            (Kind::Number(least, most), value) => match value.as_u64() {
                Some(number) if (least..=most).contains(&number) => Ok(vec![number.to_string()]),
                _ => Err(wrong(format!("an integer from {least} to {most}"))),
            },
            (Kind::Flag, Value::Bool(true)) => Ok(vec![String::new()]),
            (Kind::Flag, Value::Bool(false)) => Ok(Vec::new()),
            (Kind::Flag, _) => Err(wrong("true or false".to_owned())),
            (Kind::Choice(all), value) => match value.as_str().filter(|text| all.contains(text)) {
                Some(text) => Ok(vec![text.to_owned()]),
                None => Err(wrong(format!("one of {}", all.join(", ")))),
            },
        }
    }
}

/// The parts of a command line, and the values that the server uses.
#[derive(Debug, Default)]
pub(super) struct Line {
    options: Vec<OsString>,
    places: Vec<OsString>,
    last: Vec<OsString>,
    has_last: bool,
    server: Vec<(&'static str, Vec<String>)>,
    /// The paths of recordings.
    pub(super) recordings: Vec<std::path::PathBuf>,
}

impl Line {
    /// Returns the value of an argument that the server uses.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let (_, texts) = self.server.iter().find(|(of, _)| *of == name)?;
        texts.first().map(String::as_str)
    }

    /// Returns the number of an argument that the server uses.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    /// Returns the program and its arguments.
    pub(super) fn program(&self) -> String {
        let words: Vec<_> = self
            .last
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        escaped(&words.join(" ")).into_owned()
    }

    /// Returns the arguments of the command. No value can be taken for an option.
    pub(super) fn arguments(&self, command: &str, options: &[String]) -> Vec<OsString> {
        let mut all = vec![command.into()];
        all.extend(options.iter().map(OsString::from));
        all.extend(self.options.iter().cloned());
        // Paths of recordings are absolute. Some subcommands have a program behind `--`.
        if !self.has_last && self.places.iter().any(is_option) {
            all.push("--".into());
        }
        all.extend(self.places.iter().cloned());
        if !self.last.is_empty() {
            all.push("--".into());
            all.extend(self.last.iter().cloned());
        }
        all
    }
}

/// Returns true if a word would be taken for an option.
fn is_option(word: &OsString) -> bool {
    word.as_encoded_bytes().first() == Some(&b'-')
}

impl Tool {
    fn all(&self) -> impl Iterator<Item = &'static Argument> {
        self.arguments.iter().flat_map(|group| group.iter())
    }

    /// Returns true if it has an argument of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.all().any(|argument| argument.name == name)
    }

    /// Describes it, as `tools/list` does.
    pub(super) fn describe(&self) -> Value {
        let properties: Map<String, Value> = self
            .all()
            .map(|argument| (argument.name.to_owned(), argument.schema()))
            .collect();
        let required = self.all().filter(|argument| argument.is_required);
        let required: Vec<&str> = required.map(|argument| argument.name).collect();
        let mut schema = json!({
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
        });
        if !required.is_empty() {
            schema["required"] = required.into();
        }
        let is_view = matches!(self.does, Does::View(_) | Does::Lines(_) | Does::List);
        let runs = self.has("program");
        json!({
            "name": self.name,
            "description": self.about,
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": is_view && !runs,
                "destructiveHint": matches!(self.does, Does::Inject | Does::Forget) || runs,
                "openWorldHint": runs,
            },
        })
    }

    /// Makes the command line of a call; or says what is wrong with its arguments. `find` returns
    /// the path of a recording.
    pub(super) fn line(
        &self,
        values: &Map<String, Value>,
        find: impl Fn(&str) -> Result<std::path::PathBuf, String>,
    ) -> Result<Line, String> {
        let is_known = |name: &&String| self.all().any(|argument| argument.name == **name);
        if let Some(unknown) = values.keys().find(|name| !is_known(name)) {
            let names: Vec<&str> = self.all().map(|argument| argument.name).collect();
            let (name, names) = (self.name, names.join(", "));
            let unknown = escaped(unknown);
            return Err(format!(
                "{name} has no argument '{unknown}': it has {names}"
            ));
        }
        let mut line = Line {
            has_last: self.all().any(|argument| matches!(argument.to, To::Last)),
            ..Line::default()
        };
        for argument in self.all() {
            let value = values.get(argument.name).filter(|value| !value.is_null());
            let Some(value) = value else {
                if argument.is_required {
                    return Err(format!(
                        "{} takes {}: {}",
                        self.name, argument.name, argument.about
                    ));
                }
                continue;
            };
            let texts = argument.texts(value)?;
            if matches!(argument.to, To::Server) {
                line.server.push((argument.name, texts));
                continue;
            }
            for text in texts {
                let value = match argument.kind {
                    Kind::Recording | Kind::Recordings => {
                        let path = find(&text)?;
                        line.recordings.push(path.clone());
                        path.into_os_string()
                    }
                    _ => text.into(),
                };
                match argument.to {
                    To::Option(option) => {
                        let mut word = OsString::from(option);
                        word.push("=");
                        word.push(value);
                        line.options.push(word);
                    }
                    To::Flag(flag) => line.options.push(flag.into()),
                    To::Place => {
                        if line.has_last && is_option(&value) {
                            return Err(format!("{} must not begin with '-'", argument.name));
                        }
                        line.places.push(value);
                    }
                    To::Last => line.last.push(value),
                    To::Server => {}
                }
            }
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: Tool = Tool {
        name: "tool",
        about: "",
        does: Does::List,
        arguments: &[&[
            argument("recording", Kind::Recording, To::Place, "the recording").required(),
            argument("filters", Kind::Texts, To::Option("--filter"), ""),
            argument("depth", Kind::Number(1, 20), To::Option("--depth"), ""),
            argument("all", Kind::Flag, To::Flag("--all"), ""),
            argument("by", Kind::Choice(&["a", "b"]), To::Option("--by"), ""),
            argument("name", Kind::Text, To::Place, ""),
        ]],
    };

    fn line(values: Value) -> Result<Vec<OsString>, String> {
        let find = |text: &str| Ok(format!("/{text}").into());
        let line = TOOL.line(values.as_object().unwrap(), find)?;
        Ok(line.arguments("view", &["--json".to_owned()]))
    }

    #[test]
    fn no_value_is_taken_for_an_option() {
        let values = json!({
            "recording": "-r", "filters": ["--all", "-x"], "depth": 3, "all": true, "by": "a",
        });
        let options = [
            "--filter=--all",
            "--filter=-x",
            "--depth=3",
            "--all",
            "--by=a",
        ];
        let expected = [&["view", "--json"], &options[..], &["/-r"]].concat();
        assert_eq!(line(values).unwrap(), expected);
        let values = json!({ "recording": "r", "all": false, "depth": null, "name": "-x" });
        assert_eq!(line(values).unwrap(), ["view", "--json", "--", "/r", "-x"]);
    }

    #[test]
    fn wrong_arguments_are_explained() {
        for (values, why) in [
            (json!({}), "tool takes recording: the recording"),
            (json!({ "recording": 1 }), "recording is a text"),
            (
                json!({ "recording": "\0" }),
                "recording is a text without a zero byte",
            ),
            (
                json!({ "recording": "r", "depth": 99 }),
                "depth is an integer from 1 to 20",
            ),
            (
                json!({ "recording": "r", "depth": -1 }),
                "depth is an integer from 1 to 20",
            ),
            (
                json!({ "recording": "r", "filters": "x" }),
                "filters is a list of texts",
            ),
            (
                json!({ "recording": "r", "all": "yes" }),
                "all is true or false",
            ),
            (json!({ "recording": "r", "by": "c" }), "by is one of a, b"),
            (
                json!({ "recording": "r", "output": "/etc" }),
                "tool has no argument 'output': it has recording, filters, depth, all, by, \
                 name",
            ),
        ] {
            assert_eq!(line(values), Err(why.to_owned()));
        }
    }
}
