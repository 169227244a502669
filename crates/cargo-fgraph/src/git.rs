//! The repository of a workspace, and a commit of it in a directory of its own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;

/// Variables by which git's own programs, such as a hook, say which repository is theirs. The
/// repositories of worktrees are others.
pub(crate) const VARIABLES: [&str; 5] = [
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
];

/// Gets the root of a repository and its future worktree.
pub(crate) type Announce<'a> = dyn FnMut(&Path, &Path) -> Result<(), Error> + 'a;

/// Mode of a submodule in a tree.
const SUBMODULE: &[u8] = b"160000";

/// The repository of a directory.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The root of its files.
    pub(crate) root: PathBuf,
    /// The path of the directory below the root.
    pub(crate) prefix: PathBuf,
}

impl Repository {
    /// Finds the repository of a directory; an empty path is the current one.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or no git.
    pub(crate) fn of(directory: &Path) -> Result<Self, Error> {
        let directory = match directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => directory,
        };
        let found = git(directory, ["rev-parse", "--show-toplevel", "--show-prefix"]);
        let found = found.map_err(|error| match error {
            Error::Git(said) => Error::NoRepository(said),
            error => error,
        })?;
        let mut lines = found.split(|&byte| byte == b'\n').map(OsStr::from_bytes);
        let mut path = || PathBuf::from(lines.next().unwrap_or_default());
        Ok(Self {
            root: path(),
            prefix: path(),
        })
    }

    /// Returns the id of a commit.
    ///
    /// # Errors
    ///
    /// Fails if `base` names none.
    pub(crate) fn commit(&self, base: &OsStr) -> Result<String, Error> {
        let mut name = base.to_owned();
        name.push("^{commit}");
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
        let arguments = arguments.map(OsString::from).into_iter().chain([name]);
        let found = git(&self.root, arguments).map_err(|error| match error {
            Error::Git(_) => Error::NoCommit(base.to_string_lossy().into()),
            error => error,
        })?;
        Ok(String::from_utf8_lossy(&found).trim().to_owned())
    }

    /// Puts a commit and its submodules into the directory `tree`. Passes the roots of repositories
    /// and their worktrees to `announce`, before they are there.
    ///
    /// # Errors
    ///
    /// Fails if git or `announce` does, or if the commit of a submodule is not here.
    pub(crate) fn check_out(
        &self,
        commit: &str,
        tree: &Path,
        announce: &mut Announce<'_>,
    ) -> Result<(), Error> {
        add(&self.root, commit, tree, announce)
    }

    /// Returns the paths of submodules with changes that are not committed.
    ///
    /// # Errors
    ///
    /// Fails if git does.
    pub(crate) fn dirty_submodules(&self) -> Result<Vec<String>, Error> {
        let status = git(
            &self.root,
            [
                "status",
                "--porcelain=v2",
                "--ignore-submodules=none",
                "--untracked-files=no",
            ],
        )?;
        let status = String::from_utf8_lossy(&status);
        Ok(status.lines().filter_map(dirty_submodule).collect())
    }
}

/// Returns the path of the submodule in a line of git's status, if it is dirty.
fn dirty_submodule(line: &str) -> Option<String> {
    let mut fields = line.splitn(9, ' ');
    let is_change = fields.next() == Some("1");
    // A submodule, whether its commit is another one, and whether its files have changed.
    let state = fields.nth(1)?;
    let is_dirty = state.starts_with('S') && state.contains(['M', 'U']);
    (is_change && is_dirty).then(|| fields.last().map(str::to_owned))?
}

/// Adds a worktree with a commit of the repository at `root`, and those of its submodules. They
/// are the submodules' own worktrees, for which nothing has to be fetched.
fn add(root: &Path, commit: &str, tree: &Path, announce: &mut Announce<'_>) -> Result<(), Error> {
    announce(root, tree)?;
    // Hooks are for people who work in it.
    let arguments = [
        "-c",
        "core.hooksPath=/dev/null",
        "worktree",
        "add",
        "--quiet",
        "--force",
        "--detach",
    ];
    let arguments = arguments.into_iter().map(OsStr::new);
    git(
        root,
        arguments.chain([tree.as_os_str(), OsStr::new(commit)]),
    )?;
    let entries = git(tree, ["ls-files", "--stage", "-z"])?;
    for entry in entries.split(|&byte| byte == 0) {
        // `160000 COMMIT 0<tab>PATH`
        let Some(tab) = entry.iter().position(|&byte| byte == b'\t') else {
            continue;
        };
        let (facts, path) = (
            &entry[..tab],
            Path::new(OsStr::from_bytes(&entry[tab + 1..])),
        );
        let mut facts = facts.split(|&byte| byte == b' ');
        let submodule = root.join(path);
        // One without a repository is not used now, and need not be there.
        if facts.next() != Some(SUBMODULE) || !submodule.join(".git").exists() {
            continue;
        }
        let wanted = String::from_utf8_lossy(facts.next().unwrap_or_default()).into_owned();
        let object = format!("{wanted}^{{commit}}");
        if git(&submodule, ["cat-file", "-e", &object]).is_err() {
            return Err(Error::Submodule {
                path: path.to_owned(),
                commit: wanted,
            });
        }
        add(&submodule, &wanted, &tree.join(path), announce)?;
    }
    Ok(())
}

/// Removes the worktree `tree` of the repository at `root`, if there is one.
pub(crate) fn remove(root: &Path, tree: &Path) {
    let arguments = ["worktree", "remove", "--force", "--force"].map(OsStr::new);
    // Git complains where there is none.
    let _ = git(root, arguments.into_iter().chain([tree.as_os_str()]));
    let _ = fs::remove_dir_all(tree);
}

/// Runs git and returns its output.
fn git(
    directory: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<Vec<u8>, Error> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(arguments);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    let output = command.output();
    let output = output.map_err(|error| Error::Start("git".into(), error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Git(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submodules_with_changes_are_found_in_gits_status() {
        let dirty = "1 .M S.M. 160000 160000 160000 1234 1234 libs/my dep";
        assert_eq!(dirty_submodule(dirty), Some("libs/my dep".to_owned()));
        let untracked = "1 .M S..U 160000 160000 160000 1234 1234 dep";
        assert_eq!(dirty_submodule(untracked), Some("dep".to_owned()));
        for other in [
            "",
            "? file",
            "1 .M N... 100644 100644 100644 1234 1234 src/main.rs",
            // Another commit of it is checked out.
            "1 .M SC.. 160000 160000 160000 1234 1234 dep",
        ] {
            assert_eq!(dirty_submodule(other), None, "{other}");
        }
    }
}
