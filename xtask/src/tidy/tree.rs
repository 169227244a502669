//! The files of the repository, as the rules look at them.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use fgraph_chores::process::succeed;

/// A file and its text.
#[derive(Debug)]
pub(super) struct File {
    /// From the repository's root, with slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(super) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    pub(super) fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding {
            line,
            ..Finding::of(&self.path, what)
        }
    }
}

/// For each line of Markdown, whether it is in a fenced block, or begins or ends one.
pub(super) fn fenced(markdown: &str) -> impl Iterator<Item = bool> {
    let mut fenced = false;
    markdown.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        fenced || is_fence
    })
}

/// Returns true if the rules look into the file at `path`.
fn is_read(path: &str) -> bool {
    let ends = [
        ".rs", ".md", ".toml", ".c", ".cc", ".cpp", ".h", ".js", ".html", ".py", ".sh", ".yml",
        "Makefile",
    ];
    path.starts_with(".ci/") || ends.iter().any(|end| path.ends_with(end))
}

/// Files of the repository, by path.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
    /// Paths of files whose text is of no interest.
    pub(super) others: Vec<String>,
}

impl Tree {
    /// Reads what git knows of the repository at `root`, and what it would add.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others"]);
        let list = succeed(git.arg("--exclude-standard").current_dir(root))?;
        let mut tree = Self::default();
        for path in list.split_terminator('\0') {
            let place = root.join(path);
            if !place.is_file() {
                continue; // Deleted, and git has not been told yet.
            }
            if is_read(path) {
                let text = fs::read_to_string(&place)
                    .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
                tree.files.push(File {
                    path: path.to_owned(),
                    text,
                });
            } else {
                tree.others.push(path.to_owned());
            }
        }
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The paths of all files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let files = self.files.iter().map(|file| &file.path);
        files.chain(&self.others).map(String::as_str)
    }

    #[cfg(test)]
    pub(super) fn made(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        Self {
            files: files.iter().map(file).collect(),
            others: Vec::new(),
        }
    }
}

/// A rule that a line breaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) what: String,
}

impl Finding {
    /// One about a whole file, or a folder.
    pub(super) fn of(path: &str, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line: 1,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}
