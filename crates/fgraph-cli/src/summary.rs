//! Summaries: results of passes over whole recordings, kept for the next view of the recording.
//!
//! A pass over hundreds of millions of calls takes half a minute, and its result is small. A view
//! that has taken longer than a second writes the result to the user's cache directory:
//!
//! ```text
//!   fgraph/summaries/         this user's, with no rights for others
//!     0123456789abcdef        a summary: JSON in a gzip file, whose checksum finds damage
//!     .0123456789abcdef.42    a summary that process 42 is writing
//! ```
//!
//! The next view uses a summary only if its key is the same: the state of the recording's file, the
//! file of this command, the names that the view shows, and the question. Otherwise the view reads
//! the recording again, which takes longer; nothing else changes. `FGRAPH_SUMMARIES=none` keeps and
//! uses none, and `FGRAPH_SUMMARIES=all` also keeps those of short passes.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fgraph_trace::names::Names;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::caches::caches;
use crate::directory::{self, Own};

/// The variable that says which summaries are kept.
const VARIABLE: &str = "FGRAPH_SUMMARIES";
/// The directory of summaries in that of our caches.
const SUMMARIES: &str = "summaries";
/// A pass that took less time is done again.
const SHORT: Duration = Duration::from_secs(1);
/// The most bytes of a summary's file.
const LONGEST: u64 = 16 << 20;
/// The most bytes of a summary that is unpacked.
const LONGEST_UNPACKED: u64 = 1 << 30;
/// The most bytes of all summaries.
const MOST: u64 = 64 << 20;
/// Longer than writing any summary takes.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);
/// The time between a change of a file and the next one whose time differs for certain: kernels
/// take the time from their clock ticks. Some file systems store whole seconds, even ones.
const TICK: Duration = Duration::from_millis(20);
const COARSE_TICK: Duration = Duration::from_secs(3);
/// The least bytes of a recording that takes longer than a tick to read.
const LARGE: u64 = 1 << 20;

/// The state of a file. A file that was changed or replaced has another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct FileState {
    device: u64,
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// Returns true if any change from `now` on gives the file another state.
    fn is_settled(&self, now: SystemTime) -> bool {
        let (Ok(seconds), Ok(nanoseconds)) =
            (u64::try_from(self.changed.0), u64::try_from(self.changed.1))
        else {
            return false;
        };
        let tick = if nanoseconds == 0 { COARSE_TICK } else { TICK };
        let changed = Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds);
        let settled = SystemTime::UNIX_EPOCH.checked_add(changed + tick);
        settled.is_some_and(|settled| settled < now)
    }
}

/// An open file, and its state when it was opened.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    file: Arc<File>,
    state: FileState,
}

impl Opened {
    /// Looks at a file that was just opened. Returns `None` for one that is no file on a disk, or
    /// whose next change might not be noticed. Waits a clock tick for a large file that was written
    /// just now.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let state = || {
            let now = SystemTime::now();
            let found = file.metadata().ok().filter(Metadata::is_file)?;
            let state = FileState::of(&found);
            Some((state.is_settled(now), state))
        };
        let (mut is_settled, mut known) = state()?;
        if !is_settled && known.len >= LARGE {
            thread::sleep(TICK);
            (is_settled, known) = state()?;
        }
        let state = is_settled.then_some(known)?;
        let file = Arc::new(file.try_clone().ok()?);
        Some(Self { file, state })
    }

    fn is_unchanged(&self) -> bool {
        let found = self.file.metadata();
        found.is_ok_and(|found| FileState::of(&found) == self.state)
    }
}

/// The facts on which a result depends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    recording: FileState,
    command: FileState,
    /// Hash of the descriptions that the view shows.
    names: u64,
    /// The view and its options, in JSON.
    question: String,
}

/// A summary in its file.
#[derive(Debug, Serialize, Deserialize)]
struct Kept<T> {
    key: Key,
    result: T,
}

/// The place of the summary for one question about a recording.
#[derive(Debug)]
pub(crate) struct Summary {
    caches: PathBuf,
    opened: Opened,
    key: Key,
    name: OsString,
    least: Duration,
}

impl Summary {
    /// Returns the place for a question about a recording: the view, and all options on which the
    /// result of its pass depends. Returns `None` if there can be no summary.
    pub(crate) fn of(opened: &Opened, names: &Names, question: &impl Serialize) -> Option<Self> {
        let least = match env::var_os(VARIABLE) {
            Some(which) if which == "none" => return None,
            Some(which) if which == "all" => Duration::ZERO,
            _ => SHORT,
        };
        Self::in_caches(&caches()?, least, opened, names, question)
    }

    fn in_caches(
        caches: &Path,
        least: Duration,
        opened: &Opened,
        names: &Names,
        question: &impl Serialize,
    ) -> Option<Self> {
        let question = serde_json::to_string(question).ok()?;
        let command = File::open("/proc/self/exe").ok()?.metadata().ok()?;
        let mut hasher = DefaultHasher::new();
        names.descriptions().hash(&mut hasher);
        let names = hasher.finish();
        // A recording that was changed has another summary in the place of the earlier one.
        let mut hasher = DefaultHasher::new();
        let recording = &opened.state;
        (recording.device, recording.inode, &question).hash(&mut hasher);
        Some(Self {
            caches: caches.to_owned(),
            opened: opened.clone(),
            key: Key {
                recording: recording.clone(),
                command: FileState::of(&command),
                names,
                question,
            },
            name: format!("{:016x}", hasher.finish()).into(),
            least,
        })
    }

    /// Returns the result of an earlier pass.
    pub(crate) fn find<T: DeserializeOwned>(&self) -> Option<T> {
        let directory = directory_in(&self.caches)?;
        let (file, packed) = directory.read(&self.name, LONGEST).ok()?;
        let mut unpacked = Vec::new();
        let unpacker = GzDecoder::new(&packed[..]).take(LONGEST_UNPACKED);
        // It fails at a wrong checksum.
        { unpacker }.read_to_end(&mut unpacked).ok()?;
        let kept: Kept<T> = serde_json::from_slice(&unpacked).ok()?;
        (kept.key == self.key && self.opened.is_unchanged()).then_some(())?;
        // The summary that was unused for the longest time is removed first.
        let _ = file.set_modified(SystemTime::now());
        Some(kept.result)
    }

    /// Keeps the result of a pass that began at a time, if the next view would wait for it.
    pub(crate) fn keep<T: Serialize>(&self, begun: Instant, result: &T) {
        if begun.elapsed() >= self.least {
            // A view needs no summary.
            let _ = self.write(result);
        }
    }

    fn write<T: Serialize>(&self, result: &T) -> io::Result<()> {
        let kept = Kept {
            key: self.key.clone(),
            result,
        };
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(&serde_json::to_vec(&kept)?)?;
        let packed = packer.finish()?;
        if packed.len() as u64 > LONGEST || !self.opened.is_unchanged() {
            return Ok(());
        }
        let made = directory::in_caches(&self.caches).and_then(|it| directory::own(&it, SUMMARIES));
        let directory = made.and_then(|_| directory_in(&self.caches));
        let directory = directory.ok_or(io::ErrorKind::PermissionDenied)?;
        trim(
            &directory,
            MOST.saturating_sub(packed.len() as u64),
            SystemTime::now(),
        );
        directory.write(&self.name, &packed)
    }
}

/// Returns the directory of summaries, if it is this user's alone.
fn directory_in(caches: &Path) -> Option<Own> {
    Own::find(caches, directory::CACHES)?.inside(SUMMARIES.as_ref())
}

/// A file of the directory.
#[derive(Debug)]
struct Entry {
    name: OsString,
    len: u64,
    used: SystemTime,
}

/// Returns the files that [`Summary::keep`] names; a file of another program is not ours to remove.
fn entries(directory: &Own) -> Vec<Entry> {
    let names = directory.names().into_iter().filter(|it| is_name(it));
    let entry = |name: OsString| {
        let found = directory.file(&name)?;
        Some(Entry {
            len: found.len(),
            used: found.modified().ok()?,
            name,
        })
    };
    names.filter_map(entry).collect()
}

/// Returns true for the name of a summary, or of one that is being written.
fn is_name(name: &OsStr) -> bool {
    let is_key = |key: &str| {
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        key.len() == 16 && key.bytes().all(is_digit)
    };
    let Some(name) = name.to_str() else {
        return false;
    };
    match name.strip_prefix('.') {
        Some(new) => new
            .split_once('.')
            .is_some_and(|(key, process)| is_key(key) && process.parse::<u32>().is_ok()),
        None => is_key(name),
    }
}

/// Removes the least recently used summaries until the rest fits, and incomplete files.
fn trim(directory: &Own, most: u64, now: SystemTime) {
    let mut all = entries(directory);
    all.sort_by_key(|entry| entry.used);
    let mut len: u64 = all.iter().map(|entry| entry.len).sum();
    for entry in all {
        let age = now.duration_since(entry.used).unwrap_or_default();
        let is_incomplete = entry.name.as_encoded_bytes().starts_with(b".");
        let is_left = is_incomplete && age > LONGEST_WRITE;
        if is_left || len > most && !is_incomplete {
            let _ = directory.remove(&entry.name);
            len -= entry.len;
        }
    }
}

/// Returns the number of summaries, and the sum of their lengths.
pub(crate) fn count() -> (u64, u64) {
    let directory = caches().and_then(|caches| directory_in(&caches));
    let all = directory.map_or_else(Vec::new, |directory| entries(&directory));
    (all.len() as u64, all.iter().map(|it| it.len).sum())
}

/// Removes all summaries.
///
/// # Errors
///
/// Fails with the path of a file that cannot be removed.
pub(crate) fn clear() -> Result<(), (PathBuf, io::Error)> {
    let Some(directory) = caches().and_then(|caches| directory_in(&caches)) else {
        return Ok(());
    };
    for entry in entries(&directory) {
        let removed = directory.remove(&entry.name);
        removed.map_err(|error| (directory.path().join(&entry.name), error))?;
    }
    Ok(())
}

/// Counts of calls in a summary.
pub(crate) mod of_stats {
    use fgraph_analysis::stats::Stats;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(stats: &Stats, to: S) -> Result<S::Ok, S::Error> {
        stats.to_numbers().serialize(to)
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Stats, D::Error> {
        let numbers = Vec::<u64>::deserialize(from)?;
        Stats::of_numbers(&numbers).ok_or_else(|| D::Error::custom("no counts of calls"))
    }
}

/// Missing events in a summary.
pub(crate) mod of_losses {
    use fgraph_analysis::losses::{Loss, Losses};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Each = ((u32, u32), (u64, u64, u64));

    pub(crate) fn serialize<S: Serializer>(losses: &Losses, to: S) -> Result<S::Ok, S::Error> {
        let each = |(&thread, loss): (&(u32, u32), &Loss)| {
            let each: Each = (thread, (loss.events, loss.from, loss.to));
            each
        };
        let threads: Vec<Each> = losses.threads.iter().map(each).collect();
        (losses.calls, threads).serialize(to)
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Losses, D::Error> {
        let (calls, threads) = <(u64, Vec<Each>)>::deserialize(from)?;
        let mut losses = Losses::default();
        losses.calls = calls;
        for (thread, (events, from, to)) in threads {
            losses.threads.insert(thread, Loss { events, from, to });
        }
        Ok(losses)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fgraph_trace::names::{Description, DescriptionKind};

    use super::*;

    const RESULT: [u64; 3] = [1, 2, 3];

    /// A cache directory, and a recording beside it.
    struct Place {
        folder: tempfile::TempDir,
        names: Names,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("recording"), "content").unwrap();
            thread::sleep(2 * TICK);
            let names = Names::new(9);
            Self { folder, names }
        }

        fn opened(&self) -> Opened {
            let file = File::open(self.folder.path().join("recording")).unwrap();
            Opened::of(&file).unwrap()
        }

        fn summary(&self, opened: &Opened, question: &str) -> Summary {
            let caches = self.folder.path().join("caches");
            Summary::in_caches(&caches, Duration::ZERO, opened, &self.names, &question).unwrap()
        }

        fn keep(&self, question: &str) -> PathBuf {
            let opened = self.opened();
            let summary = self.summary(&opened, question);
            summary.keep(Instant::now(), &RESULT);
            let directory = self.folder.path().join("caches/fgraph/summaries");
            directory.join(&summary.name)
        }

        fn find(&self, question: &str) -> Option<[u64; 3]> {
            self.summary(&self.opened(), question).find()
        }
    }

    #[test]
    fn a_summary_is_found_for_its_question_and_names_alone() {
        let mut place = Place::new();
        assert_eq!(place.find("report"), None);
        place.keep("report");
        assert_eq!(place.find("report"), Some(RESULT));
        assert_eq!(place.find("graph"), None);
        place.names.add(Description {
            kind: DescriptionKind::Thread,
            fields: [9, 9, 0, 0],
            texts: ["other".to_owned(), String::new()],
        });
        assert_eq!(place.find("report"), None);
    }

    #[test]
    fn a_recording_that_was_changed_or_replaced_has_no_summary() {
        let place = Place::new();
        let path = place.folder.path().join("recording");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        place.keep("report");
        // The same length and time of modification.
        fs::write(&path, "CONTENT").unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(modified)
            .unwrap();
        thread::sleep(2 * TICK);
        assert_eq!(place.find("report"), None);
        place.keep("report");
        assert_eq!(place.find("report"), Some(RESULT));
        let new = place.folder.path().join("new");
        fs::copy(&path, &new).unwrap();
        fs::rename(&new, &path).unwrap();
        thread::sleep(2 * TICK);
        assert_eq!(place.find("report"), None);
    }

    #[test]
    fn a_recording_that_changes_during_the_pass_gets_no_summary() {
        let place = Place::new();
        let opened = place.opened();
        let summary = place.summary(&opened, "report");
        fs::write(place.folder.path().join("recording"), "CONTENT").unwrap();
        summary.keep(Instant::now(), &RESULT);
        assert_eq!(summary.find::<[u64; 3]>(), None);
        // Its next change might have the same time, unless a tick passes first.
        let large = place.folder.path().join("large");
        fs::write(&large, vec![0; LARGE as usize]).unwrap();
        let large = File::open(large).unwrap();
        let is_fine = large.metadata().unwrap().ctime_nsec() != 0;
        assert!(Opened::of(&large).is_some() || !is_fine);
        let file = File::open(place.folder.path().join("recording")).unwrap();
        let state = FileState::of(&file.metadata().unwrap());
        let (seconds, nanoseconds) = state.changed;
        let changed = Duration::new(seconds as u64, nanoseconds as u32);
        let changed = SystemTime::UNIX_EPOCH + changed;
        assert!(!state.is_settled(changed + TICK / 2));
        assert!(state.is_settled(changed + 2 * TICK) || nanoseconds == 0);
        let coarse = FileState {
            changed: (seconds, 0),
            ..state
        };
        assert!(
            !coarse.is_settled(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds as u64 + 2))
        );
    }

    #[test]
    fn short_passes_leave_no_summary() {
        let place = Place::new();
        let opened = place.opened();
        let mut summary = place.summary(&opened, "report");
        summary.least = SHORT;
        summary.keep(Instant::now(), &RESULT);
        assert_eq!(summary.find::<[u64; 3]>(), None);
        let long_ago = Instant::now().checked_sub(SHORT).unwrap();
        summary.keep(long_ago, &RESULT);
        assert_eq!(summary.find(), Some(RESULT));
    }

    #[test]
    fn a_damaged_or_foreign_summary_is_not_used() {
        let place = Place::new();
        let path = place.keep("report");
        let other = place.keep("graph");
        let whole = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
        damaged.push(fs::read(&other).unwrap());
        damaged.push(b"{}".to_vec());
        for bytes in damaged {
            fs::write(&path, &bytes).unwrap();
            assert_eq!(place.find("report"), None, "{bytes:?}");
        }
        for at in 0..8 * whole.len() {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            // The header of a gzip file has fields that say nothing of its content, and the last
            // byte before its checksum has bits that are not used.
            let found = place.find("report");
            assert!(found.is_none() || found == Some(RESULT), "{at}");
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(place.find("report"), Some(RESULT));
        let aside = place.folder.path().join("aside");
        fs::hard_link(&path, &aside).unwrap();
        assert_eq!(place.find("report"), None);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&aside, &path).unwrap();
        assert_eq!(place.find("report"), None);
        // The next pass replaces it.
        place.keep("report");
        assert_eq!(place.find("report"), Some(RESULT));
    }

    #[test]
    fn a_summary_of_another_build_of_the_command_is_not_used() {
        let place = Place::new();
        let opened = place.opened();
        let mut summary = place.summary(&opened, "report");
        summary.key.command.inode += 1;
        summary.keep(Instant::now(), &RESULT);
        assert_eq!(summary.find(), Some(RESULT));
        assert_eq!(place.find("report"), None);
    }

    #[test]
    fn the_summaries_that_were_used_last_are_kept() {
        let place = Place::new();
        let paths: Vec<PathBuf> = ["a", "b", "c"].map(|it| place.keep(it)).into();
        let directory = directory_in(&place.folder.path().join("caches")).unwrap();
        let now = SystemTime::now();
        let age = |path: &Path, seconds| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(now - Duration::from_secs(seconds))
                .unwrap();
        };
        for (path, seconds) in paths.iter().zip([20, 30, 10]) {
            age(path, seconds);
        }
        let parent = paths[0].parent().unwrap();
        for name in [".0123456789abcdef.1", "notes", "0123456789ABCDEF"] {
            fs::write(parent.join(name), "text").unwrap();
            age(&parent.join(name), 7200);
        }
        fs::write(parent.join(".0123456789abcdef.2"), "").unwrap();
        let len = |path: &PathBuf| fs::metadata(path).unwrap().len();
        trim(&directory, len(&paths[0]) + len(&paths[2]), now);
        let mut left = directory.names();
        left.sort();
        let mut expected: Vec<OsString> = [&paths[0], &paths[2]]
            .map(|path| path.file_name().unwrap().to_owned())
            .into();
        expected.extend([".0123456789abcdef.2", "notes", "0123456789ABCDEF"].map(Into::into));
        expected.sort();
        assert_eq!(left, expected);
    }
}
