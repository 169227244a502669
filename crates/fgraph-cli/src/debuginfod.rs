//! Debug files from debuginfod servers, by build id, in the cache that elfutils uses.
//!
//! `debuginfod-find` fetches them if it is installed, otherwise curl does. A file from a server is
//! used only if it has the requested build id.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, Once, PoisonError};

use fgraph_symbols::lines;

use crate::caches::caches;
use crate::directory;

/// The option of subcommands that may use servers.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Debuginfod {
    /// Fetch debug files of stripped programs and libraries from the servers in DEBUGINFOD_URLS,
    /// for names of functions and source lines; the servers learn the build ids
    #[arg(long)]
    debuginfod: bool,
}

/// Files that were requested; `None` while no server may be used.
static ASKED: Mutex<Option<HashMap<String, Option<PathBuf>>>> = Mutex::new(None);

impl Debuginfod {
    /// Allows [`debug_file`] to use servers, if that is requested; returns true if it is.
    pub(crate) fn allow(self) -> bool {
        if self.debuginfod {
            if servers().is_empty() {
                say!("fgraph: DEBUGINFOD_URLS names no server");
            }
            let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
            asked.get_or_insert_default();
        }
        self.debuginfod
    }
}

/// Returns the debug file of a build, if servers may be used and one has it.
pub(crate) fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = asked.as_mut()?;
    let is_id = (2..=64).contains(&build_id.len());
    let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let find = || {
        let found = find(&id, build_id);
        if found.is_none() && !servers().is_empty() {
            say!("fgraph: no debug file of build {id} could be fetched");
        }
        found
    };
    is_id.then(|| asked.entry(id.clone()).or_insert_with(find).clone())?
}

fn find(id: &str, build_id: &[u8]) -> Option<PathBuf> {
    let Some(cache) = cache() else {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            say!(
                "fgraph: no debug file is used: others can change the caches in XDG_CACHE_HOME \
                 or HOME; name a directory in {CACHE}"
            );
        });
        return None;
    };
    let directory = cache.join(id);
    let path = directory.join("debuginfo");
    if is_of_build(&path, build_id) {
        return Some(path);
    }
    if servers().is_empty() {
        return None;
    }
    match find_by_elfutils(id, &cache) {
        Ok(found) => return found.filter(|path| is_of_build(path, build_id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => return None,
    }
    directory::make(&directory)?;
    for server in servers() {
        let url = format!("{}/buildid/{id}/debuginfo", server.trim_end_matches('/'));
        let fetched = fetch(&url, &directory);
        let fetched = fetched.inspect_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                say!("fgraph: --debuginfod takes debuginfod-find or curl, which are missing");
            }
        });
        if let Ok(Some(file)) = fetched
            && is_of_build(file.path(), build_id)
        {
            return file.persist(&path).is_ok().then_some(path);
        }
    }
    // Removed if nothing else is in it.
    let _ = fs::remove_dir(&directory);
    None
}

fn servers() -> Vec<String> {
    let all = env::var("DEBUGINFOD_URLS").unwrap_or_default();
    let all = all.split_whitespace();
    let is_web = |url: &&str| url.starts_with("https://") || url.starts_with("http://");
    all.filter(is_web).map(str::to_owned).collect()
}

/// The variable with the directory in which elfutils keeps fetched files.
const CACHE: &str = "DEBUGINFOD_CACHE_PATH";

/// Returns the directory in which elfutils keeps fetched files, or one of ours if others can change
/// that. Returns `None` if others can change each of them.
fn cache() -> Option<PathBuf> {
    let given = env::var_os(CACHE).map(PathBuf::from);
    let path = match given.filter(|path| path.is_absolute()) {
        Some(path) => path,
        None => {
            let caches = caches()?;
            directory::make(&caches);
            caches.join("debuginfod_client")
        }
    };
    let ours = || directory::own(&directory::in_caches(&caches()?)?, "debuginfod");
    directory::make(&path).or_else(ours)
}

/// Returns the size of the largest file that is accepted.
fn most() -> u64 {
    const MOST: u64 = 2 << 30;
    let asked = env::var("DEBUGINFOD_MAXSIZE").ok();
    let asked = asked.and_then(|size| size.trim().parse().ok());
    asked.filter(|&size| size > 0).unwrap_or(MOST).min(MOST)
}

/// The seconds that a file may take.
const PATIENCE: &str = "600";

fn find_by_elfutils(id: &str, cache: &Path) -> io::Result<Option<PathBuf>> {
    let mut command = Command::new("debuginfod-find");
    command
        .args(["debuginfo", id])
        .env(CACHE, cache)
        .env("DEBUGINFOD_MAXSIZE", most().to_string())
        .env("DEBUGINFOD_MAXTIME", PATIENCE);
    let output = command.stdin(Stdio::null()).output()?;
    let path = String::from_utf8(output.stdout).unwrap_or_default();
    let path = output.status.success().then(|| path.trim_end().into());
    Ok(path)
}

/// Fetches an address into a temporary file; `None` if there is nothing, or too much.
fn fetch(url: &str, directory: &Path) -> io::Result<Option<tempfile::NamedTempFile>> {
    let mut command = Command::new("curl");
    command
        // Without the user's own options.
        .args(["--disable", "--silent", "--fail", "--location"])
        .args(["--proto", "=http,https", "--proto-redir", "=http,https"])
        .args(["--max-redirs", "5", "--connect-timeout", "20"])
        .args(["--max-time", PATIENCE, "--", url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn()?;
    let copied = child.stdout.take().map(|out| {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let len = io::copy(&mut out.take(most() + 1), &mut file)?;
        Ok::<_, io::Error>((len <= most()).then_some(file))
    });
    let copied = copied.unwrap_or(Ok(None));
    if !matches!(copied, Ok(Some(_))) {
        // It has ended already, or is of no use.
        let _ = child.kill();
    }
    let status = child.wait()?;
    copied.map(|file| file.filter(|_| status.success()))
}

fn is_of_build(path: &Path, build_id: &[u8]) -> bool {
    let id = File::open(path).ok().map(BufReader::new);
    id.and_then(lines::build_id).as_deref() == Some(build_id)
}
