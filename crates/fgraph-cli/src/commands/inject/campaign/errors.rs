//! The errors with which calls fail in a campaign.

use fgraph_symbols::filter::{Filter, FunctionFacts};
use fgraph_trace::graph::{error_name, error_number};
use fgraph_tracers::probe::fault::Fault;

use crate::error::Error;
use crate::target::{Patterns, parse_patterns};

/// The usual error of functions: their names, the result, and the error in `errno`.
///
/// Names are without leading underscores and without endings such as `64`. Functions of streams
/// that also set the stream's error flag are left out, because programs look at the flag.
#[rustfmt::skip]
const TABLE: &[(&str, i64, &str)] = &[
    // Files are opened, and directories read.
    ("open openat creat mkstemp mkostemp mkstemps mkdtemp access faccessat stat lstat fstatat \
      newfstatat statx xstat lxstat fxstatat readlink readlinkat chdir fchdir unlink unlinkat \
      rmdir shm_open", -1, "EACCES"),
    ("fopen freopen fdopen opendir fdopendir tmpfile realpath", 0, "EACCES"),
    ("fstat fxstat statfs fstatfs lseek", -1, "EIO"),
    ("readdir", 0, "EIO"),
    ("getcwd", 0, "ENOENT"),
    // Data is read and written.
    ("read pread readv preadv preadv2", -1, "EIO"),
    ("write pwrite writev pwritev pwritev2 sendfile copy_file_range splice", -1, "ENOSPC"),
    ("fallocate ftruncate truncate rename renameat renameat2 link linkat symlink symlinkat mkdir \
      mkdirat mknod mkfifo setxattr fsetxattr", -1, "ENOSPC"),
    ("posix_fallocate", 28, ""),
    ("fsync fdatasync syncfs msync sync_file_range", -1, "EIO"),
    ("close fclose pclose closedir", RUNS, "EIO"),
    ("fflush", -1, "ENOSPC"),
    ("chmod fchmod fchmodat chown fchown lchown fchownat utimes futimes utimensat futimens kill \
      setuid setgid seteuid setegid setresuid setresgid setgroups", -1, "EPERM"),
    ("flock lockf fcntl", -1, "ENOLCK"),
    ("ioctl", -1, "EIO"),
    // Memory is allocated.
    ("malloc calloc realloc reallocarray memalign aligned_alloc valloc strdup strndup", 0,
      "ENOMEM"),
    ("posix_memalign", 12, ""),
    ("mmap mremap mprotect madvise brk setenv unsetenv putenv asprintf vasprintf", -1, "ENOMEM"),
    // Processes and threads are made.
    ("fork clone execve execv execvp execvpe execl posix_openpt", -1, "EAGAIN"),
    ("posix_spawn posix_spawnp pthread_create", 11, ""),
    ("wait waitpid waitid wait3 wait4", -1, "ECHILD"),
    ("popen", 0, "EAGAIN"),
    ("dlopen", 0, ""),
    ("getrandom getentropy", -1, "EAGAIN"),
    // Descriptors are made.
    ("pipe pipe2 dup dup2 dup3 eventfd timerfd_create signalfd inotify_init inotify_init1 \
      epoll_create epoll_create1 memfd_create socket socketpair", -1, "EMFILE"),
    ("inotify_add_watch epoll_ctl", -1, "ENOSPC"),
    ("poll ppoll select pselect epoll_wait epoll_pwait nanosleep sem_wait", -1, "EINTR"),
    // Connections.
    ("connect", -1, "ECONNREFUSED"),
    ("bind listen", -1, "EADDRINUSE"),
    ("accept accept4", -1, "ECONNABORTED"),
    ("send sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg", -1, "ECONNRESET"),
    ("setsockopt getsockopt getsockname getpeername shutdown", -1, "ENOTCONN"),
    ("getaddrinfo", -3, ""),
];

/// The result of functions that run although they fail: -1.
const RUNS: i64 = i64::MIN;

/// The error with which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    result: i64,
    /// The error in `errno`, or 0.
    errno: i32,
    /// True if the function runs, and only its result is another.
    runs: bool,
}

impl Failure {
    /// Returns the usual error of a function.
    fn usual(name: &str) -> Option<Self> {
        let plain = plain(name);
        let mut rows = TABLE.iter();
        let (_, result, errno) =
            rows.find(|(names, ..)| names.split_whitespace().any(|known| known == plain))?;
        Some(Self {
            result: if *result == RUNS { -1 } else { *result },
            errno: number(errno).unwrap_or(0),
            runs: *result == RUNS,
        })
    }

    /// Parses `-1/EIO`, or a result without an error.
    fn parse(text: &str) -> Option<Self> {
        let (result, errno) = text.split_once('/').unwrap_or((text, ""));
        Some(Self {
            result: result.parse().ok()?,
            errno: if errno.is_empty() { 0 } else { number(errno)? },
            runs: false,
        })
    }

    /// Returns the rule that makes a call fail.
    pub(super) fn fault(self) -> Fault {
        let fault = match self.runs {
            true => Fault::result(self.result),
            false => Fault::skip(self.result),
        };
        match self.errno {
            0 => fault,
            errno => fault.errno(errno),
        }
    }
}

/// Writes it as it is parsed.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.result)?;
        match self.errno {
            0 => Ok(()),
            errno => match error_name(errno as u64) {
                Some(name) => write!(f, "/{name}"),
                None => write!(f, "/{errno}"),
            },
        }
    }
}

/// Returns true if a `=` after this text belongs to the name of an operator of C++.
fn is_operator(text: &str) -> bool {
    text.ends_with(['=', '<', '>', '!']) || text.ends_with("operator")
}

fn number(errno: &str) -> Option<i32> {
    let known = || error_number(errno).and_then(|number| number.try_into().ok());
    errno.parse().ok().or_else(known)
}

/// Returns the name of a function as the table has it.
fn plain(name: &str) -> &str {
    let name = name.trim_start_matches("__libc_");
    let name = name.trim_start_matches("_IO_").trim_start_matches('_');
    let name = name.split('@').next().unwrap_or(name);
    let endings = ["_nocancel", "_chk", "64"];
    endings.iter().fold(name, |name, ending| {
        name.strip_suffix(ending).unwrap_or(name)
    })
}

/// Functions whose calls fail, and the error if it is given.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) patterns: Patterns,
    failure: Option<Failure>,
    filter: Filter,
}

impl Failing {
    /// Parses functions, with an error after them: `libc:write`, or `frob=-1/EIO`.
    pub(super) fn parse(word: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Usage(format!("{word:?}: {why}"));
        let (functions, failure) = match word.rsplit_once('=') {
            // Names of C++ have the sign, too.
            Some((functions, text)) if !is_operator(functions) => {
                let failure = Failure::parse(text).ok_or_else(|| {
                    wrong("an error is a result, or a result and a name: -1/EIO, 0/ENOMEM".into())
                })?;
                (functions, Some(failure))
            }
            Some((functions, text)) if Failure::parse(text).is_some() => {
                (functions, Failure::parse(text))
            }
            _ => (word, None),
        };
        let patterns = parse_patterns(functions).map_err(wrong)?;
        let words: Vec<String> = patterns.words().collect();
        let filter = words.join(" ").parse();
        Ok(Self {
            patterns,
            failure,
            filter: filter.map_err(|error| wrong(format!("{error}")))?,
        })
    }
}

/// Returns the error with which a function fails: the given one, otherwise the usual one.
pub(super) fn failure_of(failing: &[Failing], name: &str, module: &str) -> Option<Failure> {
    let plain = plain(name);
    let more = [format!("{plain}64"), format!("__{plain}")];
    let facts = [name, plain, &more[0], &more[1]];
    let facts = FunctionFacts::new(&facts, module);
    let given = failing
        .iter()
        .filter(|failing| failing.failure.is_some() && failing.filter.matches(&facts));
    let given = given.filter_map(|failing| failing.failure).next();
    given.or_else(|| Failure::usual(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_table_is_there_once_with_an_error_that_exists() {
        let mut seen = std::collections::HashSet::new();
        for (names, _, errno) in TABLE {
            assert!(errno.is_empty() || number(errno).is_some(), "{errno}");
            for name in names.split_whitespace() {
                assert!(seen.insert(name), "{name}");
                assert_eq!(plain(name), name);
            }
        }
    }

    #[test]
    fn functions_fail_with_the_given_error_or_the_usual_one() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        let failing = |words: &[&str]| -> Vec<Failing> {
            let parsed = words.iter().map(|word| Failing::parse(word).unwrap());
            parsed.collect()
        };
        let shown = |words: &[&str], name, module| {
            let failure = failure_of(&failing(words), name, module);
            failure.map(|failure| failure.to_string())
        };
        for (words, name, expected) in [
            (&["libc:open*"][..], "open64", Some("-1/EACCES")),
            (&["libc:open*"], "__open64_nocancel", Some("-1/EACCES")),
            (&["libc:open=-1/EPERM"], "open64", Some("-1/EPERM")),
            (&["libc:open=-1/EPERM", "write"], "write", Some("-1/ENOSPC")),
            (&["malloc"], "malloc", Some("0/ENOMEM")),
            (&["fclose"], "_IO_fclose", Some("-1/EIO")),
            (&["frob"], "frob", None),
            (&["frob=7"], "frob", Some("7")),
            (&["operator==", "operator===0"], "operator==", Some("0")),
        ] {
            assert_eq!(shown(words, name, libc).as_deref(), expected, "{name}");
        }
        for bad in ["open=", "open=EIO", "open=-1/ENOSUCH", "=0", "a:mod:=1"] {
            assert!(matches!(Failing::parse(bad), Err(Error::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn a_function_that_closes_a_descriptor_runs() {
        let close = Failure::usual("close").unwrap();
        assert_eq!(close.fault(), Fault::result(-1).errno(5));
        assert_eq!(
            Failure::usual("read").unwrap().fault(),
            Fault::skip(-1).errno(5)
        );
        assert_eq!(Failure::usual("dlopen").unwrap().fault(), Fault::skip(0));
    }
}
