//! The cache of plans: fgraph's analysis of files of programs and libraries, so that the next
//! program that loads them starts faster.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fgraph_tracers::agent::{KeptPlan, PlanDirectory};

use super::directory;
use super::library::HASH;
use crate::caches::caches;

/// The most bytes that are kept.
const MOST: u64 = 256 << 20;

/// Longer than writing any plan takes.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);

/// Returns the directory for the plans that our agent makes, and makes it if it does not exist.
/// Returns `None` if no directory can be this user's alone.
pub(crate) fn directory() -> Option<PathBuf> {
    directory_in(&caches()?)
}

fn directory_in(caches: &Path) -> Option<PathBuf> {
    let plans = directory::own(&directory::in_caches(caches)?, "plans")?;
    directory::own(&plans, HASH)
}

/// Returns all plans that are kept, including those of other builds.
pub(crate) fn plans() -> Vec<KeptPlan> {
    caches().map_or_else(Vec::new, |caches| plans_in(&caches))
}

fn plans_in(caches: &Path) -> Vec<KeptPlan> {
    let Ok(builds) = fs::read_dir(caches.join("fgraph/plans")) else {
        return Vec::new();
    };
    let builds = builds.filter_map(|build| PlanDirectory::open(&build.ok()?.path()));
    builds
        .flat_map(|build| build.plans().unwrap_or_default())
        .collect()
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
            let _ = fs::remove_file(&plan.path);
            len -= plan.len;
        }
    }
}

/// Removes a plan, and its directory if that is empty then.
pub(crate) fn remove(plan: &KeptPlan) -> std::io::Result<()> {
    fs::remove_file(&plan.path)?;
    let _ = plan.path.parent().map(fs::remove_dir);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        for (name, age) in [(".old.1", 7200), (".new.2", 0)] {
            fs::write(directory.join(name), [0; 100]).unwrap();
            let file = fs::File::open(directory.join(name)).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        }
        let left = || {
            let mut names: Vec<_> = plans_in(folder.path())
                .iter()
                .map(|plan| {
                    plan.path
                        .file_name()
                        .unwrap()
                        .to_string_lossy()
                        .into_owned()
                })
                .collect();
            names.sort();
            names
        };
        let plan = |key: u32| format!("libc.so.6-{key:032x}");
        trim_to(300, plans_in(folder.path()), now);
        assert_eq!(left(), [".new.2".to_owned(), plan(0), plan(1)]);
        for plan in plans_in(folder.path()) {
            remove(&plan).unwrap();
        }
        assert!(!directory.exists());
    }
}
