//! The cache of plans.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgraph_needs::skip;
use tempfile::TempDir;

/// A directory with a cache in it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fgraph(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env_remove("FGRAPH_CONFIG")
            .current_dir(self.path())
            .args(arguments);
        command.output().unwrap()
    }

    /// Records `true` with all libraries. Returns the functions that were called.
    fn record(&self, options: &[&str]) -> BTreeSet<String> {
        let fixed = ["record", "-q", "--libs"];
        let arguments = [&fixed, options, &["--", "/bin/true"]].concat();
        let recorded = self.fgraph(&arguments);
        assert!(recorded.status.success(), "{recorded:?}");
        assert!(recorded.stderr.is_empty(), "{recorded:?}");
        self.called("fgraph.data")
    }

    /// The functions of `true` that two recordings have: a function that waits for a lock is
    /// called in some runs only.
    fn record_twice(&self, options: &[&str]) -> BTreeSet<String> {
        &self.record(options) & &self.record(options)
    }

    /// The functions that were called in a recording, each with its module.
    fn called(&self, recording: &str) -> BTreeSet<String> {
        let report = self.fgraph(&["report", recording]);
        assert!(report.status.success(), "{report:?}");
        let text = String::from_utf8(report.stdout).unwrap();
        let name = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[words.len().saturating_sub(2)..].join(" ")
        };
        text.lines().map(name).collect()
    }

    /// The files of the cache, with what is in them.
    fn plans(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let Ok(builds) = fs::read_dir(self.path().join("cache/fgraph/plans")) else {
            return BTreeMap::new();
        };
        let plans = builds.flat_map(|build| fs::read_dir(build.unwrap().path()).unwrap());
        let plans = plans.map(|plan| plan.unwrap().path());
        plans
            .map(|plan| (plan.clone(), fs::read(&plan).unwrap_or_default()))
            .collect()
    }
}

/// Asserts that each of some functions was called.
#[track_caller]
fn assert_misses_none(expected: &BTreeSet<String>, called: &BTreeSet<String>, run: &str) {
    let missing: Vec<_> = expected.difference(called).collect();
    assert!(missing.is_empty(), "{run}: {missing:?} of {expected:?}");
}

#[test]
fn plans_are_kept_listed_and_cleared() {
    let place = Place::new();
    let first = place.record_twice(&[]);
    let kept = place.plans();
    let names: Vec<_> = kept.keys().map(|path| path.file_name().unwrap()).collect();
    let has = |module| {
        names
            .iter()
            .any(|name| name.to_str().unwrap().starts_with(module))
    };
    assert!(has("true-") && has("libc.so.6-"), "{names:?}");
    assert_misses_none(&first, &place.record(&[]), "kept");
    assert_eq!(place.plans(), kept);
    let list = place.fgraph(&["cache"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("libc.so.6"), "{list}");
    assert!(list.contains(&format!("{} plans, ", kept.len())), "{list}");
    assert!(place.fgraph(&["cache", "clear"]).status.success());
    assert_eq!(place.plans().len(), 0);
    let list = place.fgraph(&["cache", "list"]);
    assert_eq!(String::from_utf8_lossy(&list.stdout), "0 plans, 0 B\n");
}

#[test]
fn without_a_cache_nothing_is_kept_and_the_recording_is_the_same() {
    let place = Place::new();
    let without = place.record_twice(&["--no-cache"]);
    assert_eq!(place.plans().len(), 0);
    assert_misses_none(&without, &place.record(&[]), "with a cache");
    // Where the cache cannot be.
    fs::remove_dir_all(place.path().join("cache")).unwrap();
    fs::write(place.path().join("cache"), "").unwrap();
    assert_misses_none(&without, &place.record(&[]), "without a directory");
}

/// Damages the file at a path, which has a plan.
type Damage<'a> = dyn Fn(&Path, &[u8]) + 'a;

#[test]
fn plans_that_are_damaged_are_made_anew() {
    let place = Place::new();
    let expected = place.record_twice(&[]);
    let kept = place.plans();
    let other = place.path().join("other");
    let damages: [(&str, &Damage<'_>); 6] = [
        ("cut", &|path, plan| {
            fs::write(path, &plan[..plan.len() / 2]).unwrap()
        }),
        ("empty", &|path, _| fs::write(path, "").unwrap()),
        ("flipped", &|path, plan| {
            let mut flipped = plan.to_vec();
            let middle = flipped.len() / 2;
            flipped[middle] ^= 1;
            fs::write(path, flipped).unwrap();
        }),
        ("foreign", &|path, _| {
            let foreign = kept.iter().find(|(other, _)| *other != path).unwrap().1;
            fs::write(path, foreign).unwrap();
        }),
        ("link", &|path, plan| {
            fs::write(&other, plan).unwrap();
            fs::remove_file(path).unwrap();
            symlink(&other, path).unwrap();
        }),
        ("linked", &|path, plan| {
            fs::remove_file(path).unwrap();
            let _ = fs::remove_file(&other);
            fs::write(&other, plan).unwrap();
            fs::hard_link(&other, path).unwrap();
        }),
    ];
    for (what, damage) in damages {
        kept.iter().for_each(|(path, plan)| damage(path, plan));
        assert_misses_none(&expected, &place.record(&[]), what);
        assert_eq!(place.plans(), kept, "{what}");
        let is_file = |path: &PathBuf| fs::symlink_metadata(path).unwrap().is_file();
        assert!(kept.keys().all(is_file), "{what}");
    }
}

#[test]
fn a_program_that_may_not_write_long_files_goes_on() {
    let place = Place::new();
    let script = "ulimit -f 0; exec /bin/true";
    let recorded = place.fgraph(&["record", "-q", "--libs", "--", "sh", "-c", script]);
    assert!(recorded.status.success(), "{recorded:?}");
    let names = place.plans();
    let of_true = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("true-")
    };
    assert!(
        !names.is_empty() && !names.keys().any(of_true),
        "{:?}",
        names.keys()
    );
}

/// Records `true` twice with a cache in a file system of 64 KiB, and lists what is there then.
const ON_A_SMALL_DISK: &str = r#"
mount -t tmpfs -o size=64k none "$1" || exit 77
export XDG_CACHE_HOME="$1"
"$2" record -q --libs -o first.data -- /bin/true &&
    "$2" record -q --libs -o second.data -- /bin/true &&
    find "$1" -type f -printf '%s %f\n'
"#;

#[test]
fn a_full_disk_costs_only_kept_plans() {
    let place = Place::new();
    let expected = place.record_twice(&[]);
    let needed: usize = place.plans().values().map(Vec::len).sum();
    assert!(needed > 64 << 10, "{needed}");
    let disk = place.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount"])
        .args(["sh", "-c", ON_A_SMALL_DISK, "sh"])
        .arg(&disk)
        .arg(env!("CARGO_BIN_EXE_fgraph"))
        .env_remove("FGRAPH_CONFIG")
        .current_dir(place.path());
    let recorded = match command.output() {
        Ok(recorded) if recorded.status.code() != Some(77) => recorded,
        _ => return skip!("no right to mount in a namespace (unprivileged user namespaces)"),
    };
    let said = String::from_utf8_lossy(&recorded.stderr);
    if !recorded.status.success() && said.starts_with("unshare: ") {
        return skip!("no user namespace (unprivileged user namespaces): {said}");
    }
    assert!(recorded.status.success() && said.is_empty(), "{recorded:?}");
    for recording in ["first.data", "second.data"] {
        assert_misses_none(&expected, &place.called(recording), recording);
    }
    let files = String::from_utf8_lossy(&recorded.stdout);
    let files: Vec<_> = files.lines().filter_map(|it| it.split_once(' ')).collect();
    // The plans that had room are there as a whole, and nothing that was begun.
    for (len, name) in &files {
        let mut plans = place.plans().into_iter();
        let plan = plans.find(|(path, _)| path.file_name().unwrap() == *name);
        let plan = plan.unwrap_or_else(|| panic!("{files:?}")).1;
        assert_eq!(plan.len().to_string(), *len, "{name}");
    }
    assert!(files.len() < place.plans().len(), "{files:?}");
}
