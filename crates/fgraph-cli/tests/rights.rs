//! Another user reaches none of these: the library that programs load, the rings, the socket, and
//! files that root writes.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fgraph_needs::{needs, skip};
use fgraph_trace::ring::{RingOptions, Rings};
use tempfile::TempDir;

/// Another user, who has no rights.
const NOBODY: u32 = 65534;

/// A new directory, which belongs to us.
fn folder(mode: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
    folder
}

/// Gives a file or directory to another user.
fn give_away(path: &Path) -> Result<(), String> {
    let given = chown(path, Some(NOBODY), None);
    given.map_err(|error| format!("no right to give files to another user: {error}"))
}

/// Records a command, with a directory for what is there at run time.
fn recorder(runtime: &Path, recording: &Path, command: &[&str]) -> Command {
    let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    fgraph.args(["record", "-q", "-o"]).arg(recording);
    fgraph.arg("--").args(command);
    fgraph.env("XDG_RUNTIME_DIR", runtime);
    fgraph
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the paths of the agents that a program has loaded, by its memory maps.
fn agents(maps: &[u8]) -> Vec<String> {
    let maps = String::from_utf8_lossy(maps);
    let lines = maps.lines().filter(|line| line.contains("fgraph-agent"));
    let paths = lines.map(|line| line[line.find('/').unwrap()..].to_owned());
    paths.collect()
}

#[test]
fn the_library_is_not_in_a_directory_that_another_user_can_replace() {
    let (place, theirs) = (folder(0o755), folder(0o755));
    // As `su` and `sudo -E` leave the variables: of the user that was before.
    needs!(give_away(theirs.path()));
    let recording = place.path().join("fgraph.data");
    let output = recorder(theirs.path(), &recording, &["cat", "/proc/self/maps"])
        .env("TMPDIR", theirs.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let agents = agents(&output.stdout);
    assert!(!agents.is_empty());
    for agent in agents {
        assert!(!Path::new(&agent).starts_with(theirs.path()), "{agent}");
    }
    let left = fs::read_dir(theirs.path()).unwrap();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_file_that_is_not_the_agent_is_replaced_before_a_program_loads_it() {
    let (place, runtime) = (folder(0o755), folder(0o700));
    let recording = place.path().join("fgraph.data");
    let record = || {
        let mut recorder = recorder(runtime.path(), &recording, &["cat", "/proc/self/maps"]);
        recorder.output().unwrap()
    };
    let output = record();
    let library = PathBuf::from(agents(&output.stdout).swap_remove(0));
    assert!(library.starts_with(runtime.path()), "{library:?}");
    let agent = fs::read(&library).unwrap();
    let mut other = agent.clone();
    other[agent.len() / 2..].fill(0);
    fs::write(&library, other).unwrap();
    let output = record();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!agents(&output.stdout).is_empty());
    assert!(fs::read(&library).unwrap() == agent);
}

/// A program that waits, under a recorder.
struct Waiting {
    recorder: Child,
    program: u32,
    _place: TempDir,
    runtime: TempDir,
}

impl Waiting {
    fn start() -> Self {
        let (place, runtime) = (folder(0o755), folder(0o700));
        let recording = place.path().join("fgraph.data");
        let mut recorder = recorder(
            runtime.path(),
            &recording,
            &["sh", "-c", "echo $$; read it"],
        );
        let pipes = recorder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut recorder = pipes.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(recorder.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        Self {
            recorder,
            program: line.trim_end().parse().unwrap(),
            _place: place,
            runtime,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // The program ends with its input.
        drop(self.recorder.stdin.take());
        let _ = self.recorder.wait();
    }
}

#[test]
fn rings_of_a_process_that_has_the_recorders_number_by_now_are_not_written() {
    let waiting = Waiting::start();
    let environment = fs::read(format!("/proc/{}/environ", waiting.program)).unwrap();
    let variables = environment.split(|&byte| byte == 0);
    let variables = variables.filter_map(|it| str::from_utf8(it).ok()?.split_once('='));
    let (rings, file) = Rings::create_shared(&RingOptions::default()).unwrap();
    let theirs = format!("/proc/{}/fd/", waiting.recorder.id());
    let ours = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut program = Command::new("true");
    for (name, value) in variables {
        let value = match value.split_once(&theirs) {
            None => value.to_owned(),
            Some((before, rest)) => {
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{before}{ours}{rest}")
            }
        };
        program.env(name, value);
    }
    let output = program.output().unwrap();
    assert!(output.status.success());
    assert_eq!((rings.ring_count(), said(&output).as_str()), (0, ""));
    assert!(rings.names().descriptions().is_empty());
}

/// Connects as another user does.
fn connect_as(user: u32, socket: &Path) -> std::io::Result<UnixStream> {
    // SAFETY: system calls, which change the rights of this thread only.
    let set = |user: u32| unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
    assert_eq!(set(user), 0);
    let client = UnixStream::connect(socket);
    // SAFETY: it only asks.
    assert_eq!(set(unsafe { libc::getuid() }), 0);
    client
}

#[test]
fn a_client_of_another_user_is_refused() {
    // SAFETY: it only asks.
    if unsafe { libc::geteuid() } != 0 {
        return skip!("only root can connect as another user");
    }
    let waiting = Waiting::start();
    let directory = waiting.runtime.path().join("fgraph");
    let socket = directory.join(format!("{}.socket", waiting.program));
    let until = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(10));
    }
    // The directory keeps others out.
    let kept_out = connect_as(NOBODY, &socket).unwrap_err();
    assert_eq!(kept_out.kind(), std::io::ErrorKind::PermissionDenied);
    // The socket does too, however its rights are.
    for path in [waiting.runtime.path(), &directory] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let client = connect_as(NOBODY, &socket).unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    assert_eq!(answer, "error this is another user's\n");
}

#[test]
fn no_file_is_removed_through_another_users_home() {
    // Each part of the path to the plans in turn is a link to a private directory of ours.
    for link in [
        ".cache",
        ".cache/fgraph",
        ".cache/fgraph/plans",
        ".cache/fgraph/plans/b",
    ] {
        let (place, runtime, home, ours) =
            (folder(0o755), folder(0o700), folder(0o755), folder(0o700));
        needs!(give_away(home.path()));
        let below = ".cache/fgraph/plans/b".strip_prefix(link).unwrap();
        let secrets = ours.path().join(below.trim_start_matches('/'));
        fs::create_dir_all(&secrets).unwrap();
        let mode = Permissions::from_mode(0o700);
        fs::set_permissions(&secrets, mode).unwrap();
        let keys = secrets.join("authorized_keys");
        let old = fs::File::create(&keys).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let link = home.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(ours.path(), &link).unwrap();
        let own = |command: &mut Command| {
            let command = command
                .env("HOME", home.path())
                .env_remove("XDG_CACHE_HOME");
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
            assert!(keys.exists(), "{link:?}");
        };
        let recording = place.path().join("fgraph.data");
        own(&mut recorder(runtime.path(), &recording, &["true"]));
        own(Command::new(env!("CARGO_BIN_EXE_fgraph")).args(["cache", "clear"]));
    }
}

#[test]
fn another_users_home_gets_no_cache() {
    let (place, runtime, home) = (folder(0o755), folder(0o700), folder(0o755));
    needs!(give_away(home.path()));
    let recording = place.path().join("fgraph.data");
    let mut fgraph = recorder(runtime.path(), &recording, &["true"]);
    let fgraph = fgraph.env("HOME", home.path()).env_remove("XDG_CACHE_HOME");
    let output = fgraph.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    fgraph.args(["report", "--debuginfod"]).arg(&recording);
    fgraph.env("HOME", home.path());
    fgraph.env_remove("XDG_CACHE_HOME");
    fgraph.env_remove("DEBUGINFOD_CACHE_PATH");
    let output = fgraph
        .env("DEBUGINFOD_URLS", "http://127.0.0.1:9/")
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// Returns commands that write to a file or directory in `directory`, each with its path. The
/// first ones stand for all.
fn outputs(directory: &Path, source: &Path) -> Vec<(PathBuf, Command)> {
    let in_place = |name: &str| directory.join(name);
    let fgraph = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
        command.args(words);
        command
    };
    let with = |mut command: Command, option: &str, name: &str, rest: &[&str]| {
        command.arg(option).arg(in_place(name)).args(rest);
        (in_place(name), command)
    };
    let export = |format: &str| {
        let mut command = fgraph(&["export", format]);
        command.arg(source);
        with(command, "-o", format, &[])
    };
    let ring = ["record", "-q", "--ring", "overwrite"];
    let mut all = vec![
        with(fgraph(&["record", "-q"]), "-o", "record", &["--", "true"]),
        export("csv"),
        export("html"),
        export("uftrace"),
        export("ctf"),
        with(fgraph(&ring), "-o", "overwrite", &["--", "true"]),
        with(fgraph(&["syscalls"]), "-o", "syscalls", &["--", "true"]),
        with(fgraph(&["coverage"]), "--lcov", "lcov", &["--", "true"]),
    ];
    let mut diff = fgraph(&["diff"]);
    diff.args([source, source]);
    all.push(with(diff, "--html", "diff", &[]));
    let inject = || fgraph(&["inject", "--campaign", "write"]);
    all.push(with(inject(), "--junit", "junit", &["--", "echo"]));
    all.push(with(inject(), "--state", "state", &["--", "echo"]));
    all
}

/// Enough of [`outputs`] to see how a directory is treated: a recording and an export.
const SOME: usize = 2;

/// A recording for views.
fn recording_of_ours() -> (TempDir, PathBuf) {
    let (place, runtime) = (folder(0o700), folder(0o700));
    let recording = place.path().join("source.data");
    let output = recorder(runtime.path(), &recording, &["true"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    (place, recording)
}

#[test]
fn no_output_follows_a_link_that_another_user_has_planted() {
    let (_place, source) = recording_of_ours();
    let ours = folder(0o700);
    // All may write to the first, not even held back by the sticky bit; the second is another
    // user's, and so is the one above the third.
    for (mode, is_given, below, count) in [
        (0o777, false, "", SOME),
        (0o1777, false, "", SOME),
        (0o755, true, "", usize::MAX),
        (0o755, true, "below", SOME),
    ] {
        let theirs = folder(mode);
        let directory = theirs.path().join(below);
        fs::create_dir_all(&directory).unwrap();
        if is_given {
            needs!(give_away(theirs.path()));
        }
        for (path, mut command) in outputs(&directory, &source).into_iter().take(count) {
            let target = ours.path().join("target");
            let is_directory = path.ends_with("uftrace") || path.ends_with("ctf");
            match is_directory {
                true => fs::create_dir(&target).unwrap(),
                false => fs::write(&target, "ours").unwrap(),
            }
            symlink(&target, &path).unwrap();
            needs!(lchown(&path, Some(NOBODY), None).map_err(|it| it.to_string()));
            let output = command.output().unwrap();
            let words = said(&output);
            assert!(
                words.contains(" is a link of user 65534, in a directory that others may change"),
                "{path:?} {mode:o}: {words}"
            );
            assert_eq!(output.status.code(), Some(4), "{path:?}: {words}");
            if is_directory {
                assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
                fs::remove_dir(&target).unwrap();
            } else {
                assert_eq!(fs::read(&target).unwrap(), b"ours");
                fs::remove_file(&target).unwrap();
            }
            // Without the link, the directory is no obstacle.
            fs::remove_file(&path).unwrap();
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{path:?}: {}", said(&output));
            assert!(path.exists(), "{path:?}");
        }
    }
}

#[test]
fn a_file_that_another_user_has_put_into_a_shared_directory_is_not_written() {
    let (_place, source) = recording_of_ours();
    for (mode, is_given) in [
        (0o1777, false),
        (0o777, false),
        (0o775, false),
        (0o755, true),
    ] {
        let theirs = folder(mode);
        if is_given {
            needs!(give_away(theirs.path()));
        }
        for (path, mut command) in outputs(theirs.path(), &source).into_iter().take(SOME) {
            fs::write(&path, "theirs").unwrap();
            needs!(give_away(&path));
            let output = command.output().unwrap();
            let expected = format!(
                "fgraph: {}: it belongs to user {NOBODY}, in a directory that others may change",
                path.display()
            );
            let said = said(&output);
            assert!(said.contains(&expected), "{said}");
            assert_eq!(output.status.code(), Some(4), "{path:?}");
            assert_eq!(fs::read(&path).unwrap(), b"theirs");
        }
    }
    // Nobody else can have put a file into a directory of ours.
    let ours = folder(0o755);
    let path = ours.path().join("fgraph.data");
    fs::write(&path, "").unwrap();
    needs!(give_away(&path));
    let output = recorder(ours.path(), &path, &["true"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
}

#[test]
fn outputs_go_where_nobody_else_has_chosen() {
    let (place, source) = recording_of_ours();
    let ours = folder(0o755);
    for (path, mut command) in outputs(ours.path(), &source) {
        if path.ends_with("junit") {
            break;
        }
        // A link of ours, to a file that is missing at first.
        let target = place.path().join(path.file_name().unwrap());
        symlink(&target, &path).unwrap();
        for _ in 0..2 {
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{path:?}: {}", said(&output));
            assert!(path.is_symlink() && target.exists(), "{path:?}");
            if target.is_dir() {
                fs::remove_dir_all(&target).unwrap();
            }
        }
    }
    let export = |to: &str| {
        let mut shell = Command::new("sh");
        let script = format!("\"$0\" export csv \"$1\" -o {to}");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_fgraph")]);
        let output = shell.arg(&source).current_dir(ours.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{to}: {}", said(&output));
        output.stdout.len()
    };
    let len = export("-");
    assert!(len > 0);
    assert_eq!(export("/dev/stdout | cat"), len);
    assert_eq!(export("/dev/fd/3 3>&1 | cat"), len);
    assert_eq!(export("/dev/null"), 0);
    export("/dev/stdout > file");
    let file = |name: &str| fs::metadata(ours.path().join(name)).unwrap().len() as usize;
    assert_eq!(file("file"), len);
    export("./relative");
    assert_eq!(file("relative"), len);
    let mut shell = Command::new("sh");
    let script = "mkfifo pipe; \"$0\" export csv \"$1\" -o pipe >&2 & cat pipe; wait";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_fgraph")]);
    let output = shell.arg(&source).current_dir(ours.path()).output();
    assert_eq!(output.unwrap().stdout.len(), len);
}

#[test]
fn a_new_recording_can_be_read_by_its_user_only() {
    let (place, runtime) = (folder(0o755), folder(0o700));
    let recording = place.path().join("fgraph.data");
    let output = recorder(runtime.path(), &recording, &["true"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert_eq!(fs::metadata(&recording).unwrap().mode() & 0o777, 0o600);
    // One that was there keeps its mode.
    fs::set_permissions(&recording, Permissions::from_mode(0o644)).unwrap();
    let output = recorder(runtime.path(), &recording, &["true"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert_eq!(fs::metadata(&recording).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn defaults_of_another_user_are_passed_over() {
    let (home, runtime) = (folder(0o755), folder(0o700));
    let config = home.path().join(".config/fgraph/config");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let theirs = home.path().join("theirs");
    fs::write(&config, format!("record.output = '{}'", theirs.display())).unwrap();
    needs!(give_away(&config));
    let mut fgraph = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = fgraph
        .args(["record", "-q", "--", "true"])
        .current_dir(home.path())
        .env("XDG_RUNTIME_DIR", runtime.path())
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("FGRAPH_CONFIG")
        .output()
        .unwrap();
    let expected = format!(
        "fgraph: {} belongs to user {NOBODY}; it is ignored\n",
        config.display()
    );
    assert_eq!((output.status.code(), said(&output)), (Some(0), expected));
    assert!(!theirs.exists() && home.path().join("fgraph.data").exists());
}

#[test]
fn programs_are_recorded_where_memory_files_cannot_be_executed() {
    let (place, runtime) = (folder(0o755), folder(0o700));
    let recording = place.path().join("fgraph.data");
    let inside = |script: &str| {
        let mut shell = Command::new("unshare");
        let script = format!("echo 2 > /proc/sys/vm/memfd_noexec && {script}");
        shell.args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script]);
        shell.env("XDG_RUNTIME_DIR", runtime.path());
        shell
    };
    if !inside("true").output().is_ok_and(|it| it.status.success()) {
        return skip!("no right to set vm.memfd_noexec in a PID namespace, or no unshare");
    }
    let command = recorder(runtime.path(), &recording, &["cat", "/proc/self/maps"]);
    let mut shell = inside("exec \"$0\" \"$@\"");
    let shell = shell.arg(command.get_program()).args(command.get_args());
    let output = shell.output().unwrap();
    assert_eq!(
        (output.status.code(), said(&output).as_str()),
        (Some(0), "")
    );
    assert!(!agents(&output.stdout).is_empty());

    fs::remove_file(&recording).unwrap();
    let script = "{ while :; do :; done & } && \"$0\" record -q --time 200ms -o \"$1\" -p $!; \
                  code=$?; grep fgraph-agent /proc/$!/maps; kill $!; exit $code";
    let mut shell = inside(script);
    let shell = shell.arg(command.get_program()).arg(&recording);
    let output = shell.output().unwrap();
    assert_eq!(
        (output.status.code(), said(&output).as_str()),
        (Some(0), "")
    );
    assert!(!agents(&output.stdout).is_empty());
    assert!(recording.exists());
}

#[test]
fn directories_that_allow_no_execution_are_named() {
    let place = folder(0o755);
    let fgraph = env!("CARGO_BIN_EXE_fgraph");
    let record = |mounts: &[&str]| {
        let mount =
            |directory: &&str| format!("mount -t tmpfs -o noexec,mode=1777 none {directory}");
        let mounts: Vec<String> = mounts.iter().map(mount).collect();
        let script = format!(
            "{} && exec \"$0\" record -o /dev/null true",
            mounts.join(" && ")
        );
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", &script, fgraph]);
        shell
            .env("TMPDIR", place.path())
            .env("HOME", "/nowhere")
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_RUNTIME_DIR");
        shell.output()
    };
    let temporary = place.path().to_str().unwrap();
    // The command itself may be there.
    if fgraph.starts_with("/tmp/") || fgraph.starts_with("/var/tmp/") {
        return skip!("the command is in a directory for temporary files");
    }
    let runtime = format!("/run/user/{}", fs::metadata(place.path()).unwrap().uid());
    let mut all = vec![temporary, "/tmp", "/var/tmp"];
    if Path::new(&runtime).exists() {
        all.push(&runtime);
    }
    let Some(found) = record(&all[..1]).ok().filter(|it| it.status.success()) else {
        return skip!("no right to mount file systems, or no unshare");
    };
    assert!(said(&found).contains(" call"), "{}", said(&found));
    let output = record(&all).unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(
        said.contains("tried ") && said.contains("set TMPDIR"),
        "{said}"
    );
    assert!(said.contains("/var/tmp: mounted noexec"), "{said}");
}
