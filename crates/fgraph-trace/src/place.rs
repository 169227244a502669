//! Files that are written by name, in directories that other users may change.
//!
//! Another user who may change a directory can plant a link or a file under a name that we are
//! about to write. [`Place::find`] therefore walks the path from one open directory to the next,
//! and follows a link only if no other user can have put it there. [`Place::open`] and [`create`]
//! refuse to write to a file of another user in such a directory.
//!
//! ```text
//!   directory                                     link is followed    known file is written
//!   ours and the system's alone                   yes                 yes
//!   group or all may write to it, ours            if it is ours       if it is ours, with one name
//!   all may write to it and are not held back by  no                  if it is ours, with one name
//!     the sticky bit, or another user's
//! ```
//!
//! A directory is also another user's if one above it is. New files are made in each of them.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

/// The most links of a path, as in the kernel.
const MOST_LINKS: u32 = 40;

/// Returns the id of the user whose rights this process has.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: `geteuid` takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns true for this user, and for the system's.
#[must_use]
pub fn is_trusted(owner: u32) -> bool {
    // A user namespace may show the system's files with an owner other than 0.
    let is_system = || fs::metadata("/").is_ok_and(|root| root.uid() == owner);
    owner == 0 || owner == user() || is_system()
}

fn is_writable(found: &Metadata, by: u32) -> bool {
    found.mode() & by != 0
}

/// Opens a directory, to reach its entries; fails if the path is that of a link.
///
/// # Errors
///
/// Fails if there is no directory, and with errors of the system.
pub fn open_directory(path: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Returns the path of a directory without links, if no other user can make it lead elsewhere.
///
/// Each directory of the path must belong to the system or to this user, and others must be unable
/// to rename or remove its entries. After `su` or `sudo -E`, variables may name directories of
/// another user, which fail this.
#[must_use]
pub fn secure(directory: &Path) -> Option<PathBuf> {
    let mut walk = Walk::begin(directory).ok()?;
    walk.follow(directory, false).ok()?;
    let is_secure = !walk.is_replaceable && !walk.has_group;
    is_secure.then(|| fs::read_link(entry(&walk.directory, OsStr::new(""))).ok())?
}

/// Name in an open directory.
#[derive(Debug)]
pub struct Place {
    directory: File,
    name: OsString,
    /// True if others may have put there what has the name.
    is_shared: bool,
    /// True if the name is that of an open file in `/proc`, which is no path.
    is_open_file: bool,
    /// True if the path is that of a directory, because a slash ends it.
    ends_with_slash: bool,
}

/// Directories on the way to a [`Place`].
struct Walk {
    directory: File,
    /// True if others can replace entries of one of them.
    is_replaceable: bool,
    /// True if others can put entries into the last one, or replace one on the way.
    is_shared: bool,
    /// True once the group of a directory on the way can replace its entries.
    has_group: bool,
    /// True once others cannot enter a directory on the way, and so reach nothing below it.
    is_private: bool,
}

impl Walk {
    fn from_root() -> io::Result<Self> {
        let mut this = Self {
            directory: open_directory(Path::new("/"))?,
            is_replaceable: false,
            is_shared: false,
            has_group: false,
            is_private: false,
        };
        this.look()?;
        Ok(this)
    }

    fn from_here() -> io::Result<Self> {
        let directory = open_directory(Path::new("."))?;
        let walk = || {
            let mut walk = Self::from_root()?;
            for part in env::current_dir()?.components() {
                if let Component::Normal(name) = part {
                    walk.enter(name)?;
                }
            }
            Ok::<_, io::Error>(walk)
        };
        // The directories above may be out of reach.
        let unknown = Self {
            directory: directory.try_clone()?,
            is_replaceable: true,
            is_shared: true,
            has_group: true,
            is_private: false,
        };
        Ok(Self {
            directory,
            ..walk().unwrap_or(unknown)
        })
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        self.directory = open_directory(&entry(&self.directory, name))?;
        self.look()
    }

    /// Begins where a path does.
    fn begin(path: &Path) -> io::Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if !Path::new("/proc/self/fd").exists() {
            return Err(io::Error::other("/proc is not mounted"));
        }
        match path.is_absolute() {
            true => Self::from_root(),
            false => Self::from_here(),
        }
    }

    /// Enters the directories of a path and of links in it, except the last name if it is to be
    /// left. Returns that name, and true if it is that of an open file in `/proc`.
    fn follow(&mut self, path: &Path, leaves_last: bool) -> io::Result<Option<(OsString, bool)>> {
        let mut rest = VecDeque::new();
        put_before(&mut rest, path);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            let is_left = leaves_last && rest.is_empty();
            let here = entry(&self.directory, &name);
            // A last name may be missing.
            let link = fs::symlink_metadata(&here)
                .ok()
                .filter(Metadata::is_symlink);
            if let Some(link) = &link {
                self.check_link(&name, link)?;
                if is_left && self.is_in_proc() {
                    return Ok(Some((name, true)));
                }
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = fs::read_link(&here)?;
                put_before(&mut rest, &target);
                if target.is_absolute() {
                    *self = Self::from_root()?;
                }
            } else if is_left {
                return Ok(Some((name, false)));
            } else {
                self.enter(&name)?;
            }
        }
        Ok(None)
    }

    /// Looks who can change the directory.
    fn look(&mut self) -> io::Result<()> {
        let found = self.directory.metadata()?;
        self.is_private |= is_trusted(found.uid()) && found.mode() & 0o011 == 0;
        if self.is_private {
            self.is_shared = self.is_replaceable || self.has_group;
            return Ok(());
        }
        let is_free = found.mode() & libc::S_ISVTX == 0;
        self.is_replaceable |=
            !is_trusted(found.uid()) || is_free && is_writable(&found, libc::S_IWOTH);
        self.is_shared = self.is_replaceable
            || self.has_group
            || is_writable(&found, libc::S_IWGRP | libc::S_IWOTH);
        self.has_group |= is_free && is_writable(&found, libc::S_IWGRP);
        Ok(())
    }

    /// Fails if another user may have put a link into the directory.
    fn check_link(&self, name: &OsStr, link: &Metadata) -> io::Result<()> {
        let owner = link.uid();
        let name = name.display();
        let why = match is_trusted(owner) {
            true if !self.is_replaceable => return Ok(()),
            true => format!("{name} is a link, in a directory that others may change"),
            false if !self.is_shared => return Ok(()),
            false => {
                format!("{name} is a link of user {owner}, in a directory that others may change")
            }
        };
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// True if the directory is below `/proc`, whose links to open files are no paths.
    fn is_in_proc(&self) -> bool {
        let device = |found: io::Result<Metadata>| found.ok().map(|found| found.dev());
        device(self.directory.metadata()) == device(fs::metadata("/proc/self"))
    }
}

/// Returns a path of an entry that stays the same when the directory is renamed, and is valid as
/// long as the directory is open.
#[must_use]
pub fn entry(directory: &File, name: &OsStr) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    // The path of the directory itself is that of a link, and must not end with a slash.
    if !name.is_empty() {
        path.push(name);
    }
    path
}

impl Place {
    /// Finds the directory that has, or would have, the file at a path.
    ///
    /// # Errors
    ///
    /// Fails if a directory is missing or inaccessible, and with
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) if another user may have put a link
    /// there that the path leads through.
    pub fn find(path: &Path) -> io::Result<Self> {
        let mut walk = Walk::begin(path)?;
        let found = walk.follow(path, true)?;
        let (name, is_open_file) = found.ok_or(io::ErrorKind::IsADirectory)?;
        Ok(Self {
            is_shared: walk.is_shared,
            directory: walk.directory,
            name,
            is_open_file,
            ends_with_slash: path.as_os_str().as_bytes().ends_with(b"/"),
        })
    }

    /// Returns a path of the place that leads through no link but the kernel's to the open
    /// directory. It is valid as long as this value lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        entry(&self.directory, &self.name)
    }

    /// Returns a path of the directory, which is valid as long as this value lives.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        entry(&self.directory, OsStr::new(""))
    }

    /// Returns true if the path leads to a file that this process has open, such as `/dev/stdout`.
    #[must_use]
    pub fn is_open_file(&self) -> bool {
        self.is_open_file
    }

    /// Returns the file that has the name; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Fails with [`PermissionDenied`](io::ErrorKind::PermissionDenied) if another user may have
    /// put it there, and with errors of the system.
    pub fn known(&self) -> io::Result<Option<Metadata>> {
        let found = match self.is_open_file {
            true => fs::metadata(self.path()),
            false => fs::symlink_metadata(self.path()),
        };
        match found {
            Ok(found) => self.check(&found).map(|()| Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fails if another user may have put a file there.
    fn check(&self, found: &Metadata) -> io::Result<()> {
        if !self.is_shared || self.is_open_file {
            return Ok(());
        }
        let owner = found.uid();
        let why = match is_trusted(owner) {
            true if found.is_symlink() => "it is a link".to_owned(),
            // Another user may have given a file of ours this name.
            true if found.is_file() && found.nlink() > 1 => "it has another name".to_owned(),
            true => return Ok(()),
            false => format!("it belongs to user {owner}"),
        };
        let why = format!("{why}, in a directory that others may change");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Opens the file, which keeps its content, or makes it; returns true if it was made. `options`
    /// has the access and the mode.
    ///
    /// # Errors
    ///
    /// Fails with [`PermissionDenied`](io::ErrorKind::PermissionDenied) if another user may have
    /// put the file there, and with errors of the system.
    pub fn open(&self, options: &OpenOptions) -> io::Result<(File, bool)> {
        if self.ends_with_slash {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let path = self.path();
        // Opening another user's pipe would wait.
        if self.known()?.is_none() {
            match options.clone().create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok((made?, true)),
            }
        }
        let mut options = options.clone();
        if !self.is_open_file {
            options.custom_flags(libc::O_NOFOLLOW);
        }
        let file = options.open(path)?;
        self.check(&file.metadata()?)?;
        Ok((file, false))
    }

    /// Removes the name.
    ///
    /// # Errors
    ///
    /// Fails with errors of the system.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(self.path())
    }
}

/// Puts the names of a path in front of others.
fn put_before(rest: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => rest.push_front(name.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

/// Opens the file at a path for writing, empties it if it can be emptied, or makes it with a mode.
///
/// # Errors
///
/// Fails like [`Place::find`] and [`Place::open`].
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let (file, _) = Place::find(path)?.open(File::options().write(true).mode(mode))?;
    empty(&file)?;
    Ok(file)
}

/// Empties a file, if it is one that can be emptied.
///
/// # Errors
///
/// Fails with errors of the system.
pub fn empty(file: &File) -> io::Result<()> {
    match file.metadata()?.is_file() {
        true => file.set_len(0),
        false => Ok(()),
    }
}

/// Writes a file, which others may read unless the user's mask forbids that.
///
/// # Errors
///
/// Fails like [`create`], and with errors of writing.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    create(path, 0o666)?.write_all(content.as_ref())
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A new directory that others may enter.
    fn folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        folder
    }

    fn written(path: &Path) -> Result<(), io::ErrorKind> {
        write(path, "new").map_err(|error| error.kind())
    }

    const REFUSED: Result<(), io::ErrorKind> = Err(io::ErrorKind::PermissionDenied);

    #[test]
    fn links_of_ours_are_followed_where_others_cannot_have_made_them() {
        let target = folder(0o700);
        let target = target.path().join("target");
        for (mode, is_followed) in [
            (0o755, true),
            (0o775, true),
            (0o1777, true),
            (0o777, false),
            (0o757, false),
        ] {
            let place = folder(mode);
            let link = place.path().join("link");
            symlink(&target, &link).unwrap();
            let expected = if is_followed { Ok(()) } else { REFUSED };
            assert_eq!(written(&link), expected, "{mode:o}");
            assert_eq!(target.exists(), is_followed);
            let _ = fs::remove_file(&target);
            // A link to a directory on the way is one as well.
            fs::create_dir(&target).unwrap();
            assert_eq!(written(&link.join("file")), expected, "{mode:o}");
            fs::remove_dir_all(&target).unwrap();
        }
    }

    #[test]
    fn others_reach_nothing_below_a_private_directory() {
        let place = folder(0o700);
        let inner = place.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o777)).unwrap();
        let [file, link] = ["file", "link"].map(|name| inner.join(name));
        symlink(&file, &link).unwrap();
        assert_eq!(written(&link), Ok(()));
        fs::hard_link(&file, inner.join("second")).unwrap();
        assert_eq!(written(&file), Ok(()));
        assert_eq!(secure(&inner), Some(inner.clone()));
        fs::set_permissions(place.path(), Permissions::from_mode(0o711)).unwrap();
        assert_eq!(secure(&inner), None);
        assert_eq!(written(&link), REFUSED);
    }

    #[test]
    fn a_file_that_may_have_its_name_from_another_user_is_not_written() {
        let (place, other) = (folder(0o1777), folder(0o700));
        let [file, second] = [place.path().join("file"), other.path().join("second")];
        assert_eq!(written(&file), Ok(()));
        assert_eq!(written(&file), Ok(()));
        fs::write(&second, "long content").unwrap();
        fs::remove_file(&file).unwrap();
        fs::hard_link(&second, &file).unwrap();
        assert_eq!(written(&file), REFUSED);
        assert_eq!(fs::read(&second).unwrap(), b"long content");
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(written(&file), Ok(()));
    }

    #[test]
    fn a_link_that_appears_between_two_looks_is_not_followed() {
        let (place, other) = (folder(0o1777), folder(0o700));
        let [file, target] = [place.path().join("file"), other.path().join("target")];
        let found = Place::find(&file).unwrap();
        symlink(&target, &file).unwrap();
        assert!(found.open(File::options().write(true)).is_err());
        // The directory that was looked at stays the one that is meant.
        fs::remove_file(&file).unwrap();
        let aside = place.path().with_extension("aside");
        fs::rename(place.path(), &aside).unwrap();
        symlink(other.path(), place.path()).unwrap();
        assert!(found.open(File::options().write(true)).unwrap().1);
        assert!(aside.join("file").exists() && !target.exists());
        fs::remove_file(place.path()).unwrap();
        fs::rename(aside, place.path()).unwrap();
    }

    #[test]
    fn paths_that_name_no_file_fail_as_they_do_elsewhere() {
        let place = folder(0o755);
        let kind = |path: &Path| written(path).unwrap_err();
        assert_eq!(kind(Path::new("")), io::ErrorKind::NotFound);
        assert_eq!(kind(Path::new("/")), io::ErrorKind::IsADirectory);
        assert_eq!(kind(place.path()), io::ErrorKind::IsADirectory);
        assert_eq!(kind(Path::new("..")), io::ErrorKind::IsADirectory);
        let inside = |name: &str| place.path().join(name);
        assert_eq!(kind(&inside("new/")), io::ErrorKind::IsADirectory);
        assert_eq!(kind(&inside("absent/file")), io::ErrorKind::NotFound);
        assert_eq!(written(&inside("file")), Ok(()));
        assert_eq!(kind(&inside("file/file")), io::ErrorKind::NotADirectory);
        symlink("loop", inside("loop")).unwrap();
        let error = write(&inside("loop"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    }
}
