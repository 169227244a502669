//! The directory in which plans of modules are kept.
//!
//! The recorder makes the directory and passes its path to the agent; agents read and write plans.
//! Each build of the agent has a directory of its own, since another build makes other plans.
//!
//! ```text
//!   plans/                   this user's, with no rights for others
//!     <build of the agent>/
//!       libc.so.6-<key>      a plan
//!       .<key>.<process>     a plan that is being written
//! ```
//!
//! The agent does not use a directory or file that breaks these rules. It then makes plans anew,
//! which takes longer; nothing else changes.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use fgraph::PlanStore;

use crate::sandbox::filters;

/// Bytes of the longest plan.
const LONGEST: u64 = 1 << 28;

/// Directory of plans for one build of the agent.
#[derive(Clone, Debug)]
pub struct PlanDirectory {
    path: PathBuf,
}

impl PlanDirectory {
    /// Opens the directory at a path. `None` if it is missing or not this user's, if others have
    /// rights in it, or in a sandbox.
    #[must_use]
    pub fn open(path: &Path) -> Option<Self> {
        is_free().then_some(())?;
        let found = fs::symlink_metadata(path).ok()?;
        let is_ours = found.is_dir() && found.mode() & 0o077 == 0 && found.uid() == user();
        is_ours.then(|| Self {
            path: path.to_owned(),
        })
    }

    /// Returns the module's file that the name of a plan names, or `None` for a name that this
    /// directory does not give. The inner value is `None` for a plan that is being written or was
    /// left incomplete.
    #[must_use]
    pub fn module_of(name: &OsStr) -> Option<Option<String>> {
        let is_key = |key: &str| {
            let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            key.len() == 32 && key.bytes().all(is_digit)
        };
        let name = name.to_str()?;
        if let Some(new) = name.strip_prefix('.') {
            let (key, process) = new.split_once('.')?;
            let is_process = process.parse::<u32>().is_ok();
            return (is_key(key) && is_process).then_some(None);
        }
        let (module, key) = name.rsplit_once('-')?;
        (is_key(key) && plain(module) == module).then(|| Some(module.to_owned()))
    }

    fn file(&self, module: &str, key: u128) -> PathBuf {
        self.path.join(format!("{}-{key:032x}", plain(module)))
    }

    fn read(&self, module: &str, key: u128) -> io::Result<Vec<u8>> {
        let mut options = OpenOptions::new();
        // `O_NONBLOCK`, because opening a pipe would wait for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let path = self.file(module, key);
        let mut file = options.read(true).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        let is_ours = found.is_file() && found.uid() == user() && found.nlink() == 1;
        if !is_ours || found.len() > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut plan = Vec::with_capacity(found.len() as usize);
        Read::by_ref(&mut file)
            .take(LONGEST)
            .read_to_end(&mut plan)?;
        // The plan that was unused for the longest time is removed first. Let the kernel set the
        // time: the program may have forbidden this thread to read the clock. SAFETY: the
        // descriptor is open, and `futimens` accepts null for the times.
        unsafe { libc::futimens(file.as_raw_fd(), ptr::null()) };
        Ok(plan)
    }

    fn write(&self, module: &str, key: u128, plan: &[u8]) -> io::Result<()> {
        let new = self
            .path
            .join(format!(".{key:032x}.{}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let written = file.write_all(plan);
        let done = written.and_then(|()| fs::rename(&new, self.file(module, key)));
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done
    }
}

// SAFETY: only `save` writes to the files, and each build has its own directory. The methods call
// nothing but the standard library.
unsafe impl PlanStore for PlanDirectory {
    fn load(&self, module: &str, key: u128) -> Option<Vec<u8>> {
        is_free().then(|| self.read(module, key).ok())?
    }

    fn save(&self, module: &str, key: u128, plan: &[u8]) {
        if is_free() && may_write(plan.len() as u64) {
            let _ = self.write(module, key, plan);
        }
    }
}

/// Returns the part of a module's file name that can start the name of a plan.
fn plain(module: &str) -> String {
    const LONGEST: usize = 64;
    let name = Path::new(module).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let chars = name.chars().take(LONGEST);
    let name: String = chars.map(|c| if is_plain(c) { c } else { '_' }).collect();
    // A file with a name that begins with a dot is being written.
    name.trim_start_matches('.').to_owned()
}

fn user() -> u32 {
    // SAFETY: `geteuid` takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// True if the process is in no sandbox that may kill it for a system call.
fn is_free() -> bool {
    filters() == Some(0)
}

/// True if this process may write a file of this many bytes. Writing a longer one raises a signal
/// that ends the process.
fn may_write(len: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `getrlimit` writes to a valid `rlimit`.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    got == 0 && len <= limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const KEY: u128 = 0x0123_4567_89ab_cdef;
    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

    fn directory() -> (tempfile::TempDir, PlanDirectory) {
        let folder = tempfile::tempdir().unwrap();
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(folder.path(), private).unwrap();
        let directory = PlanDirectory::open(folder.path()).unwrap();
        (folder, directory)
    }

    #[test]
    fn a_plan_that_was_saved_is_found_by_its_key() {
        let (_folder, plans) = directory();
        assert_eq!(plans.load(LIBC, KEY), None);
        plans.save(LIBC, KEY, b"one");
        plans.save(LIBC, KEY, b"two");
        assert_eq!(plans.load(LIBC, KEY).as_deref(), Some(&b"two"[..]));
        assert_eq!(plans.load(LIBC, KEY + 1), None);
        plans.save("/tmp/..a b/.-x\n", KEY, b"three");
        assert_eq!(
            plans.load("/tmp/..a b/.-x\n", KEY).as_deref(),
            Some(&b"three"[..])
        );
        let names = fs::read_dir(plans.path).unwrap();
        let names = names.map(|it| it.unwrap().file_name());
        let mut modules: Vec<_> = names.map(|it| PlanDirectory::module_of(&it)).collect();
        modules.sort();
        assert_eq!(
            modules,
            ["-x_", "libc.so.6"].map(|name| Some(Some(name.to_owned())))
        );
    }

    #[test]
    fn only_names_of_plans_name_a_module() {
        let module = |name: &str| PlanDirectory::module_of(OsStr::new(name));
        let key = format!("{KEY:032x}");
        assert_eq!(
            module(&format!("libc.so.6-{key}")),
            Some(Some("libc.so.6".into()))
        );
        assert_eq!(module(&format!(".{key}.4711")), Some(None));
        for other in [
            "authorized_keys".to_owned(),
            ".bashrc".to_owned(),
            key.clone(),
            format!(".{key}"),
            format!(".{key}.x"),
            format!(".x-{key}"),
            format!("a b-{key}"),
            format!("libc-{}", key.to_uppercase()),
            format!("libc-{key}0"),
        ] {
            assert_eq!(module(&other), None, "{other}");
        }
    }

    #[test]
    fn a_directory_that_others_have_rights_in_is_not_used() {
        let (folder, _) = directory();
        for mode in [0o755, 0o770, 0o701] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(PlanDirectory::open(folder.path()).is_none(), "{mode:o}");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(PlanDirectory::open(&link).is_none());
        assert!(PlanDirectory::open(&folder.path().join("absent")).is_none());
    }

    #[test]
    fn a_plan_that_is_a_link_or_has_one_is_not_used() {
        let (folder, plans) = directory();
        plans.save(LIBC, KEY, b"plan");
        let file = plans.file(LIBC, KEY);
        let other = folder.path().join("other");
        fs::hard_link(&file, &other).unwrap();
        assert_eq!(plans.load(LIBC, KEY), None);
        fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        assert_eq!(plans.load(LIBC, KEY), None);
        // Saving replaces the link, and leaves its target alone.
        plans.save(LIBC, KEY, b"new");
        assert_eq!(plans.load(LIBC, KEY).as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::read(&other).unwrap(), b"plan");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(plans.load(LIBC, KEY), None);
        plans.save(LIBC, KEY, b"no place");
        let left = fs::read_dir(plans.path).unwrap();
        let mut left = left.map(|it| PlanDirectory::module_of(&it.unwrap().file_name()));
        // Nothing that was begun is left.
        assert!(left.all(|module| module != Some(None)));
    }

    #[test]
    fn two_writers_of_a_plan_leave_a_whole_one() {
        let (_folder, plans) = directory();
        let texts = [vec![1; 1 << 20], vec![2; 1 << 20]];
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..20).for_each(|_| plans.save(LIBC, KEY, text)));
            }
            for _ in 0..100 {
                let found = plans.load(LIBC, KEY);
                assert!(found.is_none_or(|found| texts.contains(&found)));
            }
        });
        assert!(texts.contains(&plans.load(LIBC, KEY).unwrap()));
    }
}
