//! Explains why values in an expression never existed.

use std::collections::HashSet;

use fgraph_trace::names::{DescriptionKind, Names};

use crate::action::Input;
use crate::unmatched::near;

/// The most names that are listed.
const LISTED: usize = 12;

/// Arguments that no call has had.
#[derive(Debug)]
pub(super) struct Missing<'m> {
    pub(super) inputs: &'m HashSet<Input>,
    /// A function that was called; empty if there is none.
    pub(super) function: &'m str,
    /// Names of its parameters.
    pub(super) parameters: &'m [String],
    pub(super) from_recording: bool,
}

impl Missing<'_> {
    /// Returns a message for each argument.
    pub(super) fn messages(&self, names: &Names) -> Vec<String> {
        let mut inputs: Vec<&Input> = self.inputs.iter().collect();
        inputs.sort_unstable_by_key(|input| input.name());
        let messages = inputs.into_iter().flat_map(|input| match input {
            Input::Behind(path) => self.behind(path, names),
            _ if self.function.is_empty() => Vec::new(),
            input => vec![self.argument(&input.name())],
        });
        messages.collect()
    }

    fn argument(&self, name: &str) -> String {
        let (function, parameters) = (self.function, self.parameters);
        let known = match parameters.is_empty() {
            true => format!("no names are known of those of {function}: write arg0 to arg5"),
            false => format!("{function} has {}", parameters.join(", ")),
        };
        format!("no call has the argument '{name}'; {known}")
    }

    fn behind(&self, path: &str, names: &Names) -> Vec<String> {
        if self.from_recording {
            return vec![format!(
                "'{path}' is not in the recording: what an address leads to is read while the \
                 program runs"
            )];
        }
        let mut messages = Vec::new();
        for description in names.descriptions() {
            let [of, lines] = &description.texts;
            if description.kind != DescriptionKind::NoValue || of != path {
                continue;
            }
            let [process, function, ..] = description.fields.map(|field| field as u32);
            let function = names.function(process, function);
            let function = function.map_or("the function", |known| known.name.as_str());
            let mut lines = lines.lines();
            let why = lines.next().unwrap_or_default();
            let hint = hint(path, why, &lines.collect::<Vec<_>>());
            let message = format!("'{path}' of {function}: {why}{hint}");
            if !messages.contains(&message) {
                messages.push(message);
            }
        }
        messages
    }
}

/// Returns similar names.
fn hint(path: &str, why: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    // The wrong name is the last one in quotes.
    let wrong = why.rsplit('\'').nth(1).unwrap_or(path);
    let near = near(wrong, names);
    if !near.is_empty() {
        return format!("; did you mean {}?", near.join(" or "));
    }
    let listed = names.get(..LISTED).unwrap_or(names).join(", ");
    let more = if names.len() > LISTED { ", ..." } else { "" };
    format!("; there are {listed}{more}")
}

#[cfg(test)]
mod tests {
    use fgraph_trace::names::Description;

    use super::*;

    #[test]
    fn a_wrong_member_is_named_with_those_like_it() {
        let mut names = Names::new(1);
        for lines in [
            "'account' has no member 'ballance'\nid\nbalance\nowner",
            "'account' has no member 'ballance'\nid\nbalance\nowner",
            "'account' has no member 'x'\nid\nbalance\nowner",
            "there is no debug information of the function",
        ] {
            names.add(Description {
                kind: DescriptionKind::NoValue,
                fields: [1, 7, 0, 0],
                texts: ["a->x".to_owned(), lines.to_owned()],
            });
        }
        let inputs = HashSet::from([Input::Behind("a->x".to_owned())]);
        let missing = |from_recording| Missing {
            inputs: &inputs,
            function: "",
            parameters: &[],
            from_recording,
        };
        let start = "'a->x' of the function: ";
        let expected = [
            "'account' has no member 'ballance'; did you mean balance?",
            "'account' has no member 'x'; there are id, balance, owner",
            "there is no debug information of the function",
        ];
        let expected = expected.map(|end| format!("{start}{end}"));
        assert_eq!(missing(false).messages(&names), expected);
        let [message] = &missing(true).messages(&names)[..] else {
            panic!("one message");
        };
        assert!(message.contains("is not in the recording"), "{message}");
    }
}
