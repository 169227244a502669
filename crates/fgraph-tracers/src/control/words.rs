//! Lists of functions, as they are written to files.

use std::collections::BTreeSet;

use fgraph::{Filter, FilterError};

use super::ControlError;

/// Functions that were written to a file: those that the words select, minus exceptions.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    /// Words of filters.
    words: Vec<String>,
    /// Names of functions that were removed since.
    except: BTreeSet<String>,
}

impl Functions {
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the text of a filter that selects the functions; `None` if nothing was written.
    pub(super) fn text(&self) -> Option<String> {
        if self.words.is_empty() {
            return None;
        }
        let except = self.except.iter().map(|name| format!(" !{}", quoted(name)));
        Some(self.words.join(" ") + &except.collect::<String>())
    }

    fn filter(&self) -> Result<Option<Filter>, FilterError> {
        self.text().map(|text| text.parse()).transpose()
    }

    /// Returns the text that excludes the functions from a filter.
    pub(super) fn without(&self) -> Result<String, ControlError> {
        let not = |word: &String| format!(" !{word}");
        if self.except.is_empty() {
            return Ok(self.words.iter().map(not).collect());
        }
        let names = self.names()?;
        Ok(names.iter().map(|name| not(&quoted(name))).collect())
    }

    /// Changes the functions by a text that is written to a file.
    pub(super) fn write(
        &mut self,
        file: &str,
        text: &str,
        append: bool,
    ) -> Result<(), ControlError> {
        let mut changed = match append {
            true => self.clone(),
            false => Self::default(),
        };
        for word in split(text) {
            changed.change(file, word)?;
        }
        *self = changed;
        Ok(())
    }

    /// Returns the names of the functions that can be traced, by address.
    pub(super) fn names(&self) -> Result<Vec<String>, ControlError> {
        match self.filter()? {
            Some(filter) => Ok(traceable(filter)?),
            None => Ok(Vec::new()),
        }
    }

    /// Adds the functions that a word selects, or removes them if the word begins with a `!`.
    pub(super) fn change(&mut self, file: &str, word: &str) -> Result<(), ControlError> {
        let wrong = || ControlError::value(file, wrong_part(word));
        let (is_added, pattern) = match word.strip_prefix('!') {
            Some(pattern) => (false, pattern),
            None => (true, word),
        };
        let filter: Filter = pattern.parse().map_err(|_| wrong())?;
        // A word that selects nothing is most likely a mistake. The kernel refuses it too.
        if fgraph::sites_of(filter.clone())?.is_empty() {
            return Err(wrong());
        }
        // Do not look up the names of a glob for very many functions without need.
        if is_added && !self.except.is_empty() {
            for name in traceable(filter)? {
                self.except.remove(&name);
            }
        } else if !is_added {
            let had = self.words.len();
            self.words.retain(|known| known != pattern);
            if self.words.is_empty() && had != 0 {
                self.clear();
                return Ok(());
            }
            let here: BTreeSet<_> = self.names()?.into_iter().collect();
            let gone: Vec<_> = traceable(filter)?;
            let gone: Vec<_> = gone
                .into_iter()
                .filter(|name| here.contains(name))
                .collect();
            if gone.is_empty() && had == self.words.len() {
                return Err(wrong());
            }
            let is_last = gone.len() == here.len();
            self.except.extend(gone);
            if is_last {
                self.clear();
            }
            return Ok(());
        }
        if !self.words.iter().any(|known| known == pattern) {
            self.words.push(pattern.to_owned());
        }
        Ok(())
    }
}

/// Returns the names of the functions that a filter selects and that can be traced.
fn traceable(filter: Filter) -> Result<Vec<String>, fgraph::Error> {
    let sites = fgraph::sites_of(filter)?;
    let sites = sites.iter().filter(|site| site.how.is_ok());
    Ok(sites.map(|site| site.name).collect())
}

/// Returns the word of a filter that selects the functions of one name.
pub(super) fn quoted(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// Returns the wrong part of a word: the command, if it is an unknown one.
fn wrong_part(word: &str) -> &str {
    match word.rsplit_once(':') {
        Some((function, command))
            if !command.is_empty() && !function.ends_with(':') && !word.contains(":mod:") =>
        {
            command
        }
        _ => word,
    }
}

/// Splits a text into words. White space within matching brackets does not end a word, since names
/// in Rust and C++ contain some.
pub(super) fn split(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = end_of_word(rest);
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

fn end_of_word(text: &str) -> usize {
    let (mut depth, mut before, mut first) = (0_usize, ' ', None);
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' => depth = depth.saturating_sub(1),
            c if c.is_whitespace() => {
                if depth == 0 {
                    return at;
                }
                first = first.or(Some(at));
            }
            _ => {}
        }
        before = c;
    }
    // An opening bracket without its partner is an ordinary character.
    if depth == 0 {
        text.len()
    } else {
        first.unwrap_or(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_white_space_are_one_word() {
        let text = " <a::B as c::D>::e  sys_* operator< f(int, long) g->h\n!x";
        let words = [
            "<a::B as c::D>::e",
            "sys_*",
            "operator<",
            "f(int, long)",
            "g->h",
            "!x",
        ];
        assert_eq!(split(text), words);
        assert!(split(" \n").is_empty());
    }

    #[test]
    fn a_command_that_there_is_not_is_what_is_wrong() {
        assert_eq!(wrong_part("f:jump"), "jump");
        for word in ["f", "a::b", "f:mod:", "f:mod:libx"] {
            assert_eq!(wrong_part(word), word);
        }
    }
}
