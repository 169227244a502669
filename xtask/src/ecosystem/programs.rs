//! Other programs behave the same while all their functions are traced.
//!
//! Each is run by a shell script, once untraced, then with one and with sixteen users. The command
//! behind `$TRACE` is traced, with all processes that it starts. The output and the end of the
//! script must be the same.
//!
//! The calls are those of all processes, for each user; a process that ends without the C library,
//! like Go's, does not report them. The cost of one call is shown too, for all users together. If
//! there are few calls, this is mostly the cost of restoring the functions, and of forking and
//! ending processes with a copy of all that.

// Long strings: rows of tables, and files.

use std::borrow::Cow;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Done, LIMIT, ROW, Tools, bounded_by};
use crate::json;
use crate::report::grouped;

/// Numbers of users that trace a program, one run after the other.
const USERS: [u32; 2] = [1, 16];

/// Program that the machine may have.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: Cow<'static, str>,
    /// Debian packages that have it, or another source.
    pub(super) from: &'static str,
    /// Commands that the script needs.
    pub(super) needs: &'static [&'static str],
    /// File that the script finds in its directory: name and content.
    pub(super) file: Option<(&'static str, &'static str)>,
    /// Script that is run; `$TRACE` stands before the traced command.
    pub(super) script: Cow<'static, str>,
}

/// Missing command of the machine, and the packages that have it.
pub(super) type Missing = (&'static str, &'static str);

pub(super) const fn program(
    name: &'static str,
    from: &'static str,
    needs: &'static [&'static str],
    script: &'static str,
) -> Program {
    Program {
        name: Cow::Borrowed(name),
        from,
        needs,
        file: None,
        script: Cow::Borrowed(script),
    }
}

/// Returns a postgres server with its queries.
fn postgres(name: &'static str, needs: &'static [&'static str], work: &str) -> Program {
    let script = format!(
        "rm -rf d; mkdir d; chmod 777 .; chown nobody d; \
         as() {{ su nobody -s /bin/sh -c \"$1\"; }}; \
         as \"initdb -D $PWD/d -A trust -U a\" > init; \
         as \"$TRACE postgres -D $PWD/d -k $PWD/d -c listen_addresses=\" 2> log & \
         until psql -h $PWD/d -U a postgres -c 'select 1' > ready 2>&1; do sleep 0.2; \
         [ $((n = n + 1)) -lt 300 ] || exit 1; done; \
         {work}; kill -INT $(head -1 d/postmaster.pid); wait"
    );
    Program {
        script: script.into(),
        ..program(name, "postgresql", needs, "")
    }
}

/// Returns a module of CPython's tests. Its output contains times.
fn cpython_test(module: &str) -> Program {
    Program {
        name: format!("python3 test_{module}").into(),
        script: format!("$P; $TRACE $P -m test -q test_{module} > log 2>&1; echo $?").into(),
        ..program(
            "",
            "libpython3-testsuite",
            &["python3", "python3 -m test.test_bisect"],
            "",
        )
    }
}

/// Finds the interpreter itself, which the command of that name may only start; that of a virtual
/// environment by its path there.
pub(super) const PYTHON: &str = "P=$(python3 -c 'import sys; print(sys.executable)')";

/// Modules of CPython's tests that take at most seconds.
const CPYTHON_TESTS: [&str; 24] = [
    "array",
    "binascii",
    "bisect",
    "complex",
    "context",
    "contextlib",
    "coroutines",
    "ctypes",
    "deque",
    "descr",
    "dict",
    "float",
    "fork1",
    "functools",
    "generators",
    "hashlib",
    "list",
    "mmap",
    "raise",
    "select",
    "sqlite3",
    "struct",
    "thread",
    "zlib",
];

/// All of them.
fn all() -> Vec<Program> {
    let mut all = programs();
    all.extend(CPYTHON_TESTS.map(cpython_test));
    all
}

/// Those that are programs, by name.
fn programs() -> Vec<Program> {
    vec![
        program(
            "bash",
            "bash",
            &["bash"],
            "$TRACE bash -c 'for i in 1 2 3; do echo $(echo $((i * i))); done; : | cat'",
        ),
        program(
            "clang",
            "clang",
            &["clang"],
            "echo 'int main(void) { return 7; }' > a.c; $TRACE clang -O2 -o a a.c; ./a; echo $?",
        ),
        program(
            "ffmpeg",
            "ffmpeg",
            &["ffmpeg"],
            "$TRACE ffmpeg -v error -f lavfi -i testsrc=d=1:s=160x120 -f lavfi -i sine=d=1 \
             -bitexact -y a.mkv; cksum < a.mkv; $TRACE ffmpeg -v error -i a.mkv -f md5 -",
        ),
        program(
            "gcc",
            "gcc",
            &["gcc"],
            "echo 'int main(void) { return 7; }' > a.c; $TRACE gcc -O2 -o a a.c; ./a; echo $?",
        ),
        program(
            "gdb",
            "gdb",
            &["gdb"],
            "$TRACE gdb -nx -batch -ex 'print 6 * 7' -ex 'python print(6 * 7)'",
        ),
        program(
            "git",
            "git",
            &["git"],
            "rm -rf r; $TRACE git init -q r; cd r; seq 1000 > a; $TRACE git add a; \
             $TRACE git -c user.name=a -c user.email=b commit -q -m m; \
             $TRACE git log --format=%T; $TRACE git fsck --no-progress",
        ),
        Program {
            file: Some(("a.go", GO)),
            ..program(
                "go",
                "golang",
                &["go", "gcc"],
                "CGO_ENABLED=1 GOCACHE=$PWD/cache go build -o go-program a.go; \
                 $TRACE ./go-program",
            )
        },
        Program {
            file: Some(("A.java", JAVA)),
            ..program(
                "java",
                "default-jdk-headless",
                &["java", "javac"],
                "javac A.java; $TRACE java -cp . A",
            )
        },
        program(
            "lua",
            "lua5.4",
            &["lua5.4"],
            "$TRACE lua5.4 -e 'local t = {} for i = 1, 9 do t[i] = i * i end \
             print(table.concat(t, \",\"), pcall(error, \"x\"), coroutine.wrap(function() \
             coroutine.yield(1) end)())'",
        ),
        program(
            "luajit",
            "luajit",
            &["luajit"],
            "$TRACE luajit -e 'local s = 0 for i = 1, 1e6 do s = s + i % 7 end \
             print(s, pcall(error, \"x\"))'",
        ),
        program(
            "nginx",
            "nginx-light",
            &["nginx", "curl"],
            "mkdir -p t; printf 'daemon off; error_log stderr crit; pid nginx.pid; events {} \
             http { access_log off; client_body_temp_path t; proxy_temp_path t; \
             fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t; \
             server { listen unix:nginx.sock; location / { return 200 hello; } } }' > nginx.conf; \
             rm -f nginx.sock; $TRACE nginx -p $PWD -c nginx.conf & n=$!; \
             until [ -S nginx.sock ] || ! kill -0 $n; do sleep 0.1; done; \
             for i in 1 2 3 4 5; do curl -s --unix-socket nginx.sock http://localhost/; done; \
             kill -QUIT $n; wait $n; echo $?",
        ),
        Program {
            file: Some(("a.js", JAVASCRIPT)),
            ..program("node", "nodejs", &["node"], "$TRACE node a.js")
        },
        Program {
            file: Some(("a.ml", OCAML)),
            ..program(
                "ocaml",
                "ocaml-nox",
                &["ocamlopt"],
                "ocamlopt -o ocaml-program a.ml; $TRACE ./ocaml-program",
            )
        },
        program(
            "openssl",
            "openssl",
            &["openssl"],
            "seq 100000 > a; $TRACE openssl dgst -sha256 a; \
             $TRACE openssl enc -aes-256-ctr -K 00 -iv 00 -in a 2> e | $TRACE openssl md5; \
             $TRACE openssl prime 1000000007",
        ),
        program(
            "perl",
            "perl",
            &["perl"],
            "$TRACE perl -e 'my %h; $h{$_ % 7} .= chr(65 + $_ % 26) for 1 .. 9999; \
             print join(\",\", map { length } @h{sort keys %h}), eval { die 7 } // $@; \
             %ENV = (); print \"x\" =~ s/x/y/r, \"\\n\"'",
        ),
        program(
            "php",
            "php-cli",
            &["php"],
            "$TRACE php -n -r 'echo json_encode(array_map(fn($x) => $x * $x, range(1, 9))), \
             preg_replace(\"/a/\", \"b\", \"aaa\"), PHP_EOL;'",
        ),
        postgres(
            "postgres",
            &["initdb", "postgres", "psql", "su"],
            "psql -h $PWD/d -U a postgres -Atc 'select sum(i), md5(string_agg(i::text, chr(44))) \
             from generate_series(1, 9999) i'",
        ),
        postgres(
            "postgres under pgbench",
            &["initdb", "postgres", "psql", "su", "pgbench"],
            "pgbench -h $PWD/d -U a -i postgres 2> made; for how in '-c 2 -t 200' \
             '-S -c 2 -t 3000' '-S -C -t 50'; do \
             pgbench -n -h $PWD/d -U a $how postgres | grep processed; done",
        ),
        Program {
            file: Some(("a.py", PYTHON_PROGRAM)),
            ..program("python3", "python3", &["python3"], "$P; $TRACE $P a.py")
        },
        Program {
            file: Some(("a.py", GREENLET)),
            ..program(
                "python3 with greenlet and gevent",
                "PyPI",
                &["python3", "python3 -m gevent"],
                "$P; $TRACE $P a.py",
            )
        },
        program(
            "redis",
            "redis-server",
            &["redis-server", "redis-cli"],
            "rm -f s; $TRACE redis-server --port 0 --unixsocket $PWD/s --save '' > log & \
             until [ -S s ] || ! kill -0 $!; do sleep 0.1; done; \
             for i in 1 2 3; do redis-cli -s s incrby a $i; done; \
             redis-cli -s s eval 'return redis.call(\"get\", \"a\")' 0; \
             redis-cli -s s shutdown nosave; wait $!; echo $?",
        ),
        program(
            "ruby",
            "ruby",
            &["ruby"],
            "$TRACE ruby -e 'puts (1..9).map { |x| x * x }.inspect, \
             [1, 2].each.next, Fiber.new { 7 }.resume; begin; raise \"x\"; rescue => e; \
             puts e.message; end; puts Thread.new { 8 }.value'",
        ),
        program(
            "sbcl",
            "sbcl",
            &["sbcl"],
            "$TRACE sbcl --noinform --non-interactive --eval \
             '(progn (print (loop for i below 1000 sum (* i i))) (gc :full t) \
             (print (handler-case (error \"x\") (error () 7))))'",
        ),
        program(
            "sqlite3",
            "sqlite3",
            &["sqlite3"],
            "$TRACE sqlite3 :memory: 'with recursive t(i) as (select 1 union all select i + 1 \
             from t where i < 9999) select sum(i), count(distinct i % 7) from t'",
        ),
        program(
            "xz",
            "xz-utils",
            &["xz"],
            "seq 100000 > a; $TRACE xz -T2 -kc a > a.xz; $TRACE xz -dc a.xz | cksum; cksum < a.xz",
        ),
        program(
            "zstd",
            "zstd",
            &["zstd"],
            "seq 100000 > a; $TRACE zstd -qT2 -kc a > a.zst; $TRACE zstd -dc a.zst | cksum",
        ),
    ]
}

const PYTHON_PROGRAM: &str = "import json, re, threading, decimal, hashlib
out = []
def work(n):
    out.append(sum(i * i for i in range(n)))
threads = [threading.Thread(target=work, args=(n,)) for n in range(50, 60)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    raise ValueError(7)
except ValueError as error:
    out.append(error.args[0])
print(json.dumps(sorted(out)), re.sub('a+', 'b', 'caat'), decimal.Decimal(2).sqrt(),
      hashlib.sha256(b'x' * 9999).hexdigest())
";
const GREENLET: &str = "import gevent, greenlet
out = []
main = greenlet.getcurrent()
def turns():
    for i in range(5):
        out.append(i)
        main.switch()
all = [greenlet.greenlet(turns) for _ in range(10)]
for _ in range(6):
    for one in all: one.switch()
def sleeps(n):
    for i in range(20): gevent.sleep(0)
    return n
jobs = [gevent.spawn(sleeps, i) for i in range(20)]
gevent.joinall(jobs)
print(len(out), sum(job.value for job in jobs))
";
const JAVASCRIPT: &str = "let fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2);
let sum = 0, kept = [];
for (let i = 0; i < 10; i++) sum += fib(20);
for (let i = 0; i < 200000; i++) { kept.push({ i, text: 's' + i }); if (kept.length > 5000) kept = []; }
try { null.x } catch (error) { sum += error.stack.length > 0 }
console.log(sum, [3, 1, 2].sort().map(String), 'abc'.replace(/b/g, x => x + x));
";
const JAVA: &str = "import java.util.*;
public class A {
    static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    public static void main(String[] args) throws Exception {
        long sum = 0;
        List<String> kept = new ArrayList<>();
        for (int i = 0; i < 10; i++) sum += fib(22);
        for (int i = 0; i < 200000; i++) { kept.add(\"x\" + i); if (kept.size() > 10000) kept.clear(); }
        try { ((Object) null).toString(); } catch (NullPointerException e) { sum += e.getStackTrace().length; }
        System.gc();
        Thread thread = new Thread(() -> System.out.println(\"thread\"));
        thread.start();
        thread.join();
        System.out.println(sum + \" \" + kept.size());
    }
}
";
const OCAML: &str = "let rec fib n = if n < 2 then n else fib (n - 1) + fib (n - 2)
let () =
  let all = List.init 100000 string_of_int in
  let table = Hashtbl.create 16 in
  List.iteri (fun i s -> Hashtbl.replace table s i) all;
  (try List.iter (fun s -> if s = \"5000\" then raise Not_found) all
   with Not_found -> print_endline \"found\");
  Gc.compact ();
  Printf.printf \"%d %d\\n\" (fib 22) (Hashtbl.length table)
";
const GO: &str = "package main

// #include <stdlib.h>
import \"C\"
import (
\t\"fmt\"
\t\"runtime\"
)

func fib(n int) int {
\tif n < 2 {
\t\treturn n
\t}
\treturn fib(n-1) + fib(n-2)
}

func main() {
\tsums := make(chan int)
\tfor i := 0; i < 10; i++ {
\t\tgo func(n int) { sums <- fib(n) + int(C.abs(C.int(-n))) }(i + 10)
\t}
\tsum := 0
\tfor i := 0; i < 10; i++ {
\t\tsum += <-sums
\t}
\truntime.GC()
\tfmt.Println(sum)
}
";

/// Result of a program.
#[derive(Debug)]
pub(super) struct Outcome {
    name: Cow<'static, str>,
    runs: Vec<Run>,
    fault: Option<String>,
    missing: Option<Missing>,
}

/// A traced run.
#[derive(Debug)]
struct Run {
    users: u32,
    /// Ratio of its time to that of the previous, untraced run.
    factor: f64,
    entries: u64,
    returns: u64,
    /// Processor time for each call, beyond that of the untraced run and of hooking all functions;
    /// 0 if the number of calls is unknown.
    ns: f64,
}

/// Runs the programs of these names, or all.
pub(super) fn run(tools: &Tools, names: &[String]) -> io::Result<Vec<Outcome>> {
    let is_wanted = |program: &Program| {
        names.is_empty() || names.iter().any(|name| program.name.starts_with(name))
    };
    let wanted = all().into_iter().filter(is_wanted);
    wanted.map(|program| program.run(tools)).collect()
}

impl Program {
    fn run(&self, tools: &Tools) -> io::Result<Outcome> {
        let mut outcome = Outcome {
            name: self.name.clone(),
            runs: Vec::new(),
            fault: None,
            missing: self.missing(),
        };
        if outcome.missing.is_some() {
            return Ok(outcome);
        }
        let directory = self.directory(&tools.directory.join("programs"))?;
        let (untraced, untraced_cpu) = self.done(&directory, "")?;
        if let Some(fault) = untraced.fault() {
            outcome.fault = Some(format!("untraced: {fault}"));
            return Ok(outcome);
        }
        for users in USERS {
            let out = directory.join("counted");
            // Of an earlier run.
            let _ = fs::remove_file(&out);
            let trace = format!(
                "env LD_PRELOAD={} FGRAPH_FILTER=* FGRAPH_CHILDREN=1 FGRAPH_USERS={users} FGRAPH_OUT={}",
                tools.library.display(),
                out.display()
            );
            let (done, cpu) = self.done(&directory, &trace)?;
            let counted = fs::read_to_string(&out).unwrap_or_default();
            let sum = |name| -> u64 {
                let lines = counted.lines();
                lines.filter_map(|line| json::number(line, name)).sum()
            };
            let entries = sum("entries") + sum("forked_entries");
            let hooking = Duration::from_micros(sum("register_cpu_us"));
            let spent = cpu.saturating_sub(untraced_cpu).saturating_sub(hooking);
            let calls = entries / u64::from(users);
            outcome.runs.push(Run {
                users,
                factor: done.took.as_secs_f64() / untraced.took.as_secs_f64(),
                entries,
                returns: sum("returns") + sum("forked_returns"),
                ns: if calls == 0 {
                    0.0
                } else {
                    spent.as_nanos() as f64 / calls as f64
                },
            });
            let differs = || {
                (done.stdout != untraced.stdout).then(|| {
                    format!(
                        "prints\n{}instead of\n{}{}",
                        done.stdout, untraced.stdout, done.stderr
                    )
                })
            };
            if let Some(fault) = done.fault().or_else(differs) {
                outcome.fault = Some(format!("{users} users: {fault}"));
                break;
            }
        }
        Ok(outcome)
    }

    /// Returns the first of its needs that the machine lacks.
    pub(super) fn missing(&self) -> Option<Missing> {
        let missing = self.needs.iter().find(|need| !has(need));
        missing.map(|&need| (need, self.from))
    }

    /// Version of the package that has it, or of the module of Python; empty where neither is.
    pub(super) fn version(&self) -> String {
        let module = self.needs.iter().find_map(|need| need.split_once(" -m "));
        let mut command = match module {
            Some((python, module)) => {
                let mut command = Command::new(python);
                command.args(["-c", &format!("import {module} as m; print(m.__version__)")]);
                command
            }
            None => {
                let mut command = Command::new("dpkg-query");
                let first = self.from.split(' ').next().unwrap_or_default();
                command.args(["-W", "-f", "${Version}", first]);
                command
            }
        };
        let version = command.output().map(|output| output.stdout);
        let version = String::from_utf8_lossy(&version.unwrap_or_default()).into_owned();
        version.trim().to_owned()
    }

    /// The path of its directory in `all`.
    pub(super) fn path(&self, all: &Path) -> PathBuf {
        all.join(self.name.replace(' ', "-"))
    }

    /// Makes its directory in `all`, with its file.
    pub(super) fn directory(&self, all: &Path) -> io::Result<PathBuf> {
        let directory = self.path(all);
        fs::create_dir_all(&directory)?;
        if let Some((name, text)) = self.file {
            fs::write(directory.join(name), text)?;
        }
        Ok(directory)
    }

    /// The row of its newest result in `all`.
    pub(super) fn newest(&self, all: &Path) -> String {
        let row = fs::read_to_string(self.path(all).join(ROW));
        row.unwrap_or_else(|_| format!("| {} | | not run yet |\n", self.name))
    }

    /// Runs the script in `directory`. Gives also what the processor has spent for all that it has
    /// started.
    fn done(&self, directory: &Path, trace: &str) -> io::Result<(Done, Duration)> {
        let script = self.script.replace("$P;", &format!("{PYTHON};"));
        let script = format!("trap \"times > $PWD/times\" EXIT; {script}");
        let done = shell(directory, &script, trace, LIMIT)?;
        let times = fs::read_to_string(directory.join("times")).unwrap_or_default();
        Ok((done, spent(&times)))
    }
}

/// Runs a script of the shell in `directory`, with `trace` before what is to be traced.
pub(super) fn shell(
    directory: &Path,
    script: &str,
    trace: &str,
    seconds: &str,
) -> io::Result<Done> {
    let mut command = bounded_by(seconds, "/bin/sh");
    command
        .args(["-f", "-c", script])
        .current_dir(directory)
        .env("TRACE", trace);
    Done::of(&mut command)
}

/// What a shell's `times` prints, in two lines: of itself, and of what it has started, that of the
/// user and of the system, as `1m2.50s`.
fn spent(times: &str) -> Duration {
    let time = |word: &str| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        let (minutes, seconds): (f64, f64) = (minutes.parse().ok()?, seconds.parse().ok()?);
        Duration::try_from_secs_f64(60.0 * minutes + seconds).ok()
    };
    let children = times.lines().nth(1).unwrap_or_default();
    children.split_whitespace().filter_map(time).sum()
}

/// Whether there is a command, or else a module of Python that it names.
fn has(need: &str) -> bool {
    if let Some((python, module)) = need.split_once(" -m ") {
        let mut command = Command::new(python);
        command.args(["-c", &format!("import {module}")]);
        return command.output().is_ok_and(|output| output.status.success());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(need).is_file())
}

impl Outcome {
    pub(super) fn is_good(&self) -> bool {
        self.fault.is_none()
    }

    pub(super) fn json(&self) -> String {
        let runs = self.runs.iter().map(|run| {
            format!(
                r#"{{"users":{},"factor":{:.2},"entries":{},"returns":{},"ns":{:.0}}}"#,
                run.users, run.factor, run.entries, run.returns, run.ns
            )
        });
        let text = |text: Option<&str>| text.map_or("null".to_owned(), json::string);
        format!(
            r#"{{"program":{},"runs":{},"missing":{},"fault":{}}}"#,
            json::string(&self.name),
            json::array(runs),
            text(self.missing.map(|(need, _)| need)),
            text(self.fault.as_deref())
        )
    }
}

/// All outcomes for people.
pub(super) fn table(all: &[Outcome]) -> String {
    let mut text = String::from(
        "program                           users  outcome            calls         returns   times as long  ns a call\n",
    );
    for outcome in all {
        for (at, run) in outcome.runs.iter().enumerate() {
            let is_last = at + 1 == outcome.runs.len();
            let is_equal = !is_last || outcome.is_good();
            writeln!(
                text,
                "{:<34}{:>5}  {:<8}{:>16}{:>16}{:>16.1}{:>11.0}",
                outcome.name,
                run.users,
                if is_equal { "equal" } else { "NOT" },
                grouped(run.entries),
                grouped(run.returns),
                run.factor,
                run.ns,
            )
            .expect("a string takes all");
        }
    }
    for outcome in all {
        if let Some(fault) = &outcome.fault {
            writeln!(text, "FAILED: {}: {fault}", outcome.name).expect("a string takes all");
        }
    }
    for outcome in all {
        if let Some((need, from)) = outcome.missing {
            writeln!(text, "left out: {}: no {need} ({from})", outcome.name)
                .expect("a string takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn programs_are_told_apart_by_their_names_and_are_traced() {
        let mut names = HashSet::new();
        for program in all() {
            assert!(program.script.contains("$TRACE "), "{}", program.name);
            assert!(names.insert(program.name.clone()), "{}", program.name);
        }
    }

    #[test]
    fn processor_time_of_children_is_in_the_second_line() {
        let times = "0m9.00s 0m9.00s\n1m2.50s 0m0.25s\n";
        assert_eq!(spent(times), Duration::from_millis(62_750));
        assert_eq!(spent(""), Duration::ZERO);
    }

    #[test]
    fn differences_and_omissions_are_reported() {
        let outcome = |fault: Option<&str>, missing| Outcome {
            name: "it".into(),
            runs: vec![Run {
                users: 1,
                factor: 2.0,
                entries: 3,
                returns: 3,
                ns: 4.0,
            }],
            fault: fault.map(str::to_owned),
            missing,
        };
        let text = table(&[outcome(None, None)]);
        assert!(
            text.contains(" equal ") && text.lines().count() == 2,
            "{text}"
        );
        let text = table(&[outcome(Some("1 users: is killed"), None)]);
        assert!(text.contains(" NOT ") && text.contains("FAILED: it: 1 users: is killed"));
        let text = table(&[outcome(None, Some(("go", "golang")))]);
        assert!(text.contains("left out: it: no go (golang)"), "{text}");
        let is_good = |fault| outcome(fault, None).is_good();
        assert!(is_good(None) && !is_good(Some("")));
    }
}
