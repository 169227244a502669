//! The cache of plans: fgraph's analysis of files of programs and libraries, so that the next
//! program that loads them starts faster.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use fgraph_protocol::PlanDirectory;

use super::library::HASH;
use crate::caches::caches;
use crate::directory::{self, Own};

/// The most bytes that are kept.
const MOST: u64 = 256 << 20;

/// Longer than writing any plan takes.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);

/// The directory of plans in that of our caches.
const PLANS: &str = "plans";

/// A plan that is kept.
#[derive(Clone, Debug)]
pub(crate) struct KeptPlan {
    plans: Rc<Own>,
    build: Rc<Own>,
    name: OsString,
    /// The name of the module's file; `None` for a plan that is being written or was left
    /// incomplete.
    pub(crate) module: Option<String>,
    /// Bytes of the file.
    pub(crate) len: u64,
    /// The time at which the plan was last used.
    pub(crate) used: SystemTime,
}

impl KeptPlan {
    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.build.path().join(&self.name)
    }

    /// Removes the plan, and its directory if that is empty then.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.build.remove(&self.name)?;
        let name = self.build.path().file_name();
        let _ = name.map(|name| self.plans.remove_directory(name));
        Ok(())
    }
}

/// Returns the directory for the plans that our agent makes, and makes it if it does not exist.
/// Returns `None` if no directory can be this user's alone.
pub(crate) fn directory() -> Option<PathBuf> {
    directory_in(&caches()?)
}

fn directory_in(caches: &Path) -> Option<PathBuf> {
    let plans = directory::own(&directory::in_caches(caches)?, PLANS)?;
    directory::own(&plans, HASH)
}

/// Returns all plans that are kept, including those of other builds. There are none in directories
/// that others have rights in.
pub(crate) fn plans() -> Vec<KeptPlan> {
    caches().map_or_else(Vec::new, |caches| plans_in(&caches))
}

fn plans_in(caches: &Path) -> Vec<KeptPlan> {
    let plans = Own::find(caches, directory::CACHES);
    let Some(plans) = plans.and_then(|ours| ours.inside(PLANS.as_ref())) else {
        return Vec::new();
    };
    let plans = Rc::new(plans);
    let mut all = Vec::new();
    for build in plans.names().into_iter().filter(|name| is_of_build(name)) {
        let build = plans.inside(&build).map(Rc::new);
        for (build, name) in build
            .iter()
            .flat_map(|it| it.names().into_iter().map(move |name| (it, name)))
        {
            // Only names that we give: a file of another program is not ours to remove.
            let Some(module) = PlanDirectory::module_of(&name) else {
                continue;
            };
            let Some((len, used)) = build
                .file(&name)
                .and_then(|it| Some((it.len(), it.modified().ok()?)))
            else {
                continue;
            };
            all.push(KeptPlan {
                plans: plans.clone(),
                build: build.clone(),
                name,
                module,
                len,
                used,
            });
        }
    }
    all
}

/// Returns true for the name of a build of the agent.
fn is_of_build(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == HASH.len() && name.iter().all(u8::is_ascii_hexdigit)
}

/// Removes the least recently used plans, until the rest fits.
pub(super) fn trim() {
    let now = SystemTime::now();
    trim_to(MOST, plans(), now);
}

fn trim_to(most: u64, mut plans: Vec<KeptPlan>, now: SystemTime) {
    let is_left = |plan: &KeptPlan| {
        let age = now.duration_since(plan.used).unwrap_or_default();
        plan.module.is_none() && age > LONGEST_WRITE
    };
    // Incomplete files go first.
    plans.sort_by_key(|plan| (!is_left(plan), plan.used));
    let mut len: u64 = plans.iter().map(|plan| plan.len).sum();
    for plan in plans {
        if len > most || is_left(&plan) {
            // Another process may have removed it.
            let _ = plan.build.remove(&plan.name);
            len -= plan.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use fgraph::PlanStore as _;

    use super::*;

    #[test]
    fn the_plans_that_were_used_last_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let directory = directory_in(folder.path()).unwrap();
        let mode = fs::metadata(&directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let store = PlanDirectory::open(&directory).unwrap();
        let now = SystemTime::now();
        for key in 0..4_u32 {
            store.save("libc.so.6", key.into(), &[0; 100]);
            let plan = directory.join(format!("libc.so.6-{key:032x}"));
            let file = fs::File::open(&plan).unwrap();
            file.set_modified(now - Duration::from_secs(10_000 * u64::from(key)))
                .unwrap();
        }
        let begun = |key: u32, process: u32| format!(".{key:032x}.{process}");
        let foreign = ["authorized_keys", ".old.1", "notes-1", "libc.so.6-0g"].map(str::to_owned);
        let begun = [(begun(1, 1), 7200), (begun(2, 2), 0)];
        for (name, age) in begun
            .iter()
            .chain(&foreign.clone().map(|name| (name, 7200)))
        {
            fs::write(directory.join(name), [0; 100]).unwrap();
            let file = fs::File::open(directory.join(name)).unwrap();
            file.set_modified(now - Duration::from_secs(*age)).unwrap();
        }
        let left = || {
            let names = plans_in(folder.path()).into_iter();
            let names = names.map(|plan| plan.name.into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        let plan = |key: u32| format!("libc.so.6-{key:032x}");
        trim_to(300, plans_in(folder.path()), now);
        assert_eq!(left(), [begun[1].0.clone(), plan(0), plan(1)]);
        for plan in plans_in(folder.path()) {
            plan.remove().unwrap();
        }
        for name in foreign {
            fs::remove_file(directory.join(name)).unwrap();
        }
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn plans_are_looked_for_only_where_nobody_else_has_rights() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let name = format!("libc.so.6-{:032x}", 1);
        let save = |caches: &Path| {
            let directory = directory_in(caches).unwrap();
            PlanDirectory::open(&directory)
                .unwrap()
                .save("libc.so.6", 1, b"plan");
            directory
        };
        let theirs = save(other.path());
        save(folder.path());
        let count = || plans_in(folder.path()).len();
        assert_eq!(count(), 1);
        // Each part of the path in turn is a link to files with our names.
        for (part, to) in [
            ("fgraph/plans".into(), other.path().join("fgraph/plans")),
            ("fgraph".into(), other.path().join("fgraph")),
            (format!("fgraph/plans/{HASH}"), theirs.clone()),
            (format!("fgraph/plans/{HASH}/{name}"), theirs.join(&name)),
        ] {
            let path = folder.path().join(part);
            let aside = folder.path().join("aside");
            fs::rename(&path, &aside).unwrap();
            symlink(&to, &path).unwrap();
            assert_eq!(count(), 0, "{path:?}");
            fs::remove_file(&path).unwrap();
            fs::rename(&aside, &path).unwrap();
            assert_eq!(count(), 1);
        }
        // A link to where the caches are is ours to make.
        let link = other.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert_eq!(plans_in(&link).len(), 1);
        fs::set_permissions(folder.path().join("fgraph"), Permissions::from_mode(0o750)).unwrap();
        assert_eq!(count(), 0);
    }
}
