//! Paths to values in memory, as programmers write them: `account->owner.name`, `*count`.

use std::fmt;
use std::str::FromStr;

/// A path from a parameter of a function to a value.
///
/// ```
/// # use fgraph_symbols as fgraph;
/// use fgraph::signature::ValuePath;
///
/// let path: ValuePath = "arg0->owner.name".parse().unwrap();
/// assert_eq!(path.to_string(), "arg0->owner.name");
/// assert!("arg0".parse::<ValuePath>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ValuePath {
    /// The name of the parameter, or `arg0` and so on by its position.
    pub parameter: String,
    /// The steps; there is at least one.
    pub steps: Vec<Step>,
}

/// A step of a [`ValuePath`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// To the value at an address.
    Follow,
    /// To a member of a structure.
    Member(String),
}

/// The error for a text that is no [`ValuePath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePathError;

impl fmt::Display for ValuePathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value behind an address is written *name or name->member.member")
    }
}

impl std::error::Error for ValuePathError {}

/// The most steps of a path.
const MAX_STEPS: usize = 16;

impl FromStr for ValuePath {
    type Err = ValuePathError;

    fn from_str(text: &str) -> Result<Self, ValuePathError> {
        let rest = text.trim_start_matches('*');
        let stars = text.len() - rest.len();
        let end = |text: &str| text.find(['.', '-']).unwrap_or(text.len());
        let is_name = |name: &str| {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            !name.is_empty() && name.chars().all(is_part)
        };
        let (parameter, mut rest) = rest.split_at(end(rest));
        let mut steps = Vec::new();
        let mut all_are_names = is_name(parameter);
        while !rest.is_empty() {
            let behind = match rest.strip_prefix("->") {
                Some(behind) => {
                    steps.push(Step::Follow);
                    behind
                }
                None => rest.strip_prefix('.').ok_or(ValuePathError)?,
            };
            let (member, next) = behind.split_at(end(behind));
            all_are_names &= is_name(member);
            steps.push(Step::Member(member.to_owned()));
            rest = next;
        }
        // A star binds less tightly than the steps after it.
        steps.extend((0..stars).map(|_| Step::Follow));
        if !all_are_names || steps.is_empty() || steps.len() > MAX_STEPS {
            return Err(ValuePathError);
        }
        Ok(Self {
            parameter: parameter.to_owned(),
            steps,
        })
    }
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.steps.iter().rposition(|step| *step != Step::Follow);
        let (steps, stars) = self.steps.split_at(last.map_or(0, |last| last + 1));
        for _ in stars {
            f.write_str("*")?;
        }
        f.write_str(&self.parameter)?;
        let mut is_followed = false;
        for step in steps {
            match step {
                Step::Follow => is_followed = true,
                Step::Member(name) => {
                    let sign = if is_followed { "->" } else { "." };
                    write!(f, "{sign}{name}")?;
                    is_followed = false;
                }
            }
        }
        Ok(())
    }
}

/// The reason that a [`ValuePath`] leads to no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoValue {
    /// The reason.
    pub why: String,
    /// Known names, if the requested one does not exist.
    pub names: Vec<String>,
}

impl NoValue {
    #[cfg(feature = "dwarf")]
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            names: Vec::new(),
        }
    }

    /// The reason for a function without debug information.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            why: "there is no debug information of the function".to_owned(),
            names: Vec::new(),
        }
    }
}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for NoValue {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_they_are_read() {
        for text in [
            "*p",
            "**p",
            "p->x",
            "p.x",
            "p->x.y->z",
            "*p->x",
            "*arg0->größe",
        ] {
            let path: ValuePath = text.parse().unwrap();
            assert_eq!(path.to_string(), text);
        }
        let path: ValuePath = "*p->x".parse().unwrap();
        let member = Step::Member("x".to_owned());
        assert_eq!(path.steps, [Step::Follow, member, Step::Follow]);
        for text in [
            "", "*", "p", "p->", "->x", "p-x", "p..x", "p->x y", "p->x*", "p[0]",
        ] {
            assert_eq!(text.parse::<ValuePath>(), Err(ValuePathError), "{text}");
        }
        let long = format!("p{}", "->x".repeat(MAX_STEPS));
        assert_eq!(long.parse::<ValuePath>(), Err(ValuePathError));
    }
}
