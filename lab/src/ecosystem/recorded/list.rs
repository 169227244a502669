//! The programs that are recorded and attached to.
//!
//! A script ends its work when there is a file `stop`. It is there from the beginning, except under
//! attaches, where the last attach makes it.

// Long strings: scripts.

use crate::ecosystem::program::Program;

/// A program, and how it is tried.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) program: Program,
    /// Commands of the shell, run once before all runs.
    pub(super) prepare: &'static str,
    /// True if it starts processes while it is attached to, which may end it.
    pub(super) starts_processes: bool,
}

/// Makes the table of all trials. A row has the program's name, the packages that have it, the
/// commands that it needs, and a script; behind `with` the name and the text of a file that is
/// written, and the commands that prepare.
macro_rules! trials {
    ($($kind:ident $name:literal, $from:literal, [$($need:literal),*] => $script:literal
       $(, with $file:literal, $text:expr, $prepare:literal)?;)*) => {
        /// All of them.
        pub(super) const TRIALS: &[Trial] = &[$(Trial {
            program: Program {
                name: $name,
                from: $from,
                needs: &[$($need),*],
                file: [$(Some(($file, $text)),)? None][0],
                script: $script,
            },
            prepare: [$($prepare,)? ""][0],
            starts_processes: $kind,
        }),*];
    };
}

/// True for a program that starts processes while it is attached to.
const PARENT: bool = true;
const ALONE: bool = false;

trials! {
    PARENT "dash", "dash", ["dash"] =>
        "$TRACE dash -c 'while :; do i=0; while [ $i -lt 500 ]; do i=$((i + 1)); done; \
         x=$(echo $i | cat); /bin/true; [ -e stop ] && break; done; echo $i $x'";
    PARENT "zsh", "zsh", ["zsh"] =>
        "$TRACE zsh -f -c 'while :; do a=({1..500}); x=$(print $#a | cat); /bin/true; \
         [[ -e stop ]] && break; done; print $#a $x ${(j:,:)a[1,9]}'";
    PARENT "make -j", "make", ["make"] =>
        "[ -e stop ] && N=20 || N=200; while :; do $TRACE make -s -j4 N=$N | sort -u > out; \
         [ -e stop ] && break; done; cat out",
        with "Makefile", "all: $(shell seq $(N))\n%:\n\t@[ -e stop ] || sleep 0.1; echo made\n", "";
    PARENT "cmake + ninja", "cmake ninja-build", ["cmake", "ninja", "cc"] =>
        "while :; do rm -rf b; $TRACE cmake -G Ninja -S . -B b > log && \
         $TRACE ninja -C b > log; b/hello > out; [ -e stop ] && break; done; cat out",
        with "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.10)\nproject(hello C)\nadd_executable(hello a.c)\n",
        "echo 'int puts(const char *); int main(void) { puts(\"hello\"); return 0; }' > a.c";
    ALONE "R", "r-base-core", ["R"] =>
        "$TRACE R --vanilla --no-echo -e 'cat(system(\"echo child\", intern = TRUE), \"\\n\"); \
         repeat { x <- lm(dist ~ speed, cars); s <- sum(sort(as.numeric(1:20000 %% 97))); \
         if (file.exists(\"stop\")) break }; print(coef(x)); print(s)'";
    ALONE "GHC", "ghc", ["ghc"] =>
        "$TRACE ./hello", with "hello.hs", HASKELL, "ghc -v0 -O hello.hs";
    ALONE "GHC -threaded", "ghc", ["ghc"] =>
        "$TRACE ./hello +RTS -N2",
        with "hello.hs", HASKELL, "ghc -v0 -O -threaded -rtsopts hello.hs";
    ALONE "pandoc", "pandoc", ["pandoc"] =>
        "(seq -f '* item *%.0f*' 200; until [ -e stop ]; do echo; sleep 0.1; done) | \
         $TRACE pandoc -t html | cksum";
    ALONE "mono", "mono-mcs", ["mono", "mcs"] =>
        "$TRACE mono a.exe", with "a.cs", CSHARP, "mcs a.cs";
    ALONE "guile", "guile-3.0", ["guile"] =>
        "$TRACE guile --no-auto-compile -c '(let loop () (let ((s (apply + (map (lambda (x) \
         (* x x)) (iota 20000))))) (catch (quote oops) (lambda () (throw (quote oops))) \
         (lambda _ 1)) (gc) (if (file-exists? \"stop\") (begin (display s) (newline)) \
         (loop))))'";
    PARENT "ecl", "ecl", ["ecl", "gcc"] =>
        "$TRACE ecl --norc --shell a.lisp; echo $?", with "a.lisp", LISP, "";
    ALONE "maxima", "maxima", ["maxima"] =>
        "$TRACE maxima --very-quiet -b a.mac", with "a.mac", MAXIMA, "";
    ALONE "ruby", "ruby", ["ruby"] => "$TRACE ruby a.rb; echo $?", with "a.rb", RUBY, "";
    ALONE "ruby, GC.stress", "ruby", ["ruby"] =>
        "$TRACE ruby -e 'GC.stress = true; begin; h = {}; 20.times { |i| \
         h[\"x#{i}\"] = [i, \"a#{i}\".upcase] }; end until File.exist?(\"stop\"); p h; \
         exit 3'; echo $?";
    ALONE "coqc", "coq", ["coqc"] =>
        "while :; do $TRACE coqc a.v > out; [ -e stop ] && break; done; cat out",
        with "a.v", COQ, "";
    ALONE "qemu-user", "qemu-user", ["qemu-x86_64", "perl"] =>
        "$TRACE qemu-x86_64 $(command -v perl) -e 'do { %h = map { $_ => \"x\" x ($_ % 9) } \
         1..5000; $t = 0; $t += $_ * length $h{$_} for keys %h; eval { die \"a\" }; \
         $SIG{ALRM} = sub { $t++ }; kill ALRM => $$; } until -e \"stop\"; print \"$t\\n\"; exit 3'; echo $?";
    ALONE "erlang", "erlang-base", ["erl"] =>
        "$TRACE erl -noshell -eval 'L = fun(F) -> P = self(), \
         [spawn(fun() -> P ! lists:sum(lists:seq(1, N)) end) || N <- lists:seq(1, 200)], \
         S = lists:sum([receive X -> X end || _ <- lists:seq(1, 200)]), \
         case filelib:is_file(\"stop\") of true -> io:format(\"~p~n\", [S]); \
         false -> F(F) end end, L(L), halt().'";
    ALONE "sbcl", "sbcl", ["sbcl"] =>
        "$TRACE sbcl --noinform --non-interactive --eval '(loop (let ((s (loop for i below \
         100000 sum (* i i)))) (gc) (when (probe-file \"stop\") (print s) (return))))'";
    ALONE "swipl", "swi-prolog-nox", ["swipl"] =>
        "$TRACE swipl -g 'repeat, numlist(1, 20000, L), sum_list(L, S), \
         catch(throw(a), a, true), exists_file(stop), !, writeln(S), halt'";
    ALONE "php", "php-cli", ["php"] =>
        "$TRACE php -n -r 'do { clearstatcache(); $a = array_map(fn($x) => $x * $x, \
         range(1, 5000)); usort($a, fn($x, $y) => $y <=> $x); $s = preg_replace(\"/[02]/\", \
         \"_\", implode(\",\", $a)); } while (!file_exists(\"stop\")); \
         echo md5($s), PHP_EOL;'";
    ALONE "numpy + pandas", "python3-pandas", ["/usr/bin/python3", "/usr/bin/python3 -m pandas"] =>
        "$TRACE /usr/bin/python3 a.py", with "a.py", PANDAS, "";
    ALONE "polars", "PyPI", ["python3", "python3 -m polars"] =>
        "P=$(python3 -c 'import sys; print(sys.executable)'); $TRACE $P a.py",
        with "a.py", POLARS, "";
    ALONE "emacs --batch", "emacs-nox", ["emacs"] =>
        "$TRACE emacs -Q --batch --eval '(progn (while (progn (with-temp-buffer \
         (dotimes (i 3000) (insert (format \"%d \" i))) (goto-char 1) \
         (while (re-search-forward \"7+\" nil t) (replace-match \"x\")) \
         (setq s (md5 (buffer-string)))) (not (file-exists-p \"stop\")))) (princ s))'";
    ALONE "Go with cgo", "golang-go", ["go", "gcc"] =>
        "$TRACE ./hello",
        with "hello.go", GO, "CGO_ENABLED=1 GOCACHE=$PWD/cache go build -o hello hello.go";
    PARENT "java ProcessBuilder", "default-jdk-headless", ["java", "javac"] =>
        "$TRACE java -cp . A", with "A.java", JAVA, "javac A.java";
    PARENT "node child_process", "nodejs", ["node"] => "$TRACE node a.js", with "a.js", NODE, "";
    ALONE "qemu-system", "qemu-system-x86", ["qemu-system-x86_64"] =>
        "(sleep 5; until [ -e stop ]; do sleep 0.1; done; echo quit) | \
         $TRACE qemu-system-x86_64 -accel tcg -m 64 -nodefaults -display none \
         -monitor stdio > log; echo $?";
    PARENT "chromium --headless", "chromium", ["chromium"] =>
        "echo '<p id=a></p><script>a.textContent = 6 * 7</script>' > a.html; \
         while :; do rm -rf profile; $TRACE chromium --headless --no-sandbox --disable-gpu \
         --disable-quic --no-first-run --disable-background-networking \
         --disable-component-update --disable-sync --user-data-dir=$PWD/profile \
         --dump-dom file://$PWD/a.html > out 2> log; [ -e stop ] && break; done; cat out";
    ALONE "Boost.Context", "libboost-context-dev",
        ["g++", "/usr/include/boost/context/fiber.hpp"] =>
        "$TRACE ./context",
        with "context.cpp", CONTEXT, "g++ -O2 -o context context.cpp -lboost_context";
    ALONE "Boost.Fiber", "libboost-fiber-dev", ["g++", "/usr/include/boost/fiber/all.hpp"] =>
        "$TRACE ./fiber",
        with "fiber.cpp", FIBER, "g++ -O2 -o fiber fiber.cpp -lboost_fiber -lboost_context -pthread";
    ALONE "jemalloc preloaded", "libjemalloc2", ["gcc", "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"] =>
        "$TRACE env LD_PRELOAD=libjemalloc.so.2 ./blocks",
        with "blocks.c", BLOCKS, "gcc -O2 -o blocks blocks.c -pthread";
    ALONE "mimalloc preloaded", "libmimalloc2.0", ["gcc", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"] =>
        "$TRACE env LD_PRELOAD=libmimalloc.so.2 ./blocks",
        with "blocks.c", BLOCKS, "gcc -O2 -o blocks blocks.c -pthread";
    ALONE "nginx", "nginx", ["nginx", "curl"] =>
        "mkdir -p t; printf 'daemon off; error_log stderr crit; pid nginx.pid; events {} \
         http { access_log off; client_body_temp_path t; proxy_temp_path t; \
         fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t; \
         server { listen unix:nginx.sock; location / { return 200 hello; } } }' > nginx.conf; \
         rm -f nginx.sock; $TRACE nginx -p $PWD -c nginx.conf & n=$!; \
         until [ -S nginx.sock ] || ! kill -0 $n; do sleep 0.1; done; \
         while curl -s -o out --unix-socket nginx.sock http://localhost/ && \
         ! [ -e stop ]; do :; done; cat out; kill -QUIT $(cat nginx.pid); wait $n; echo $?";
    ALONE "haproxy", "haproxy", ["haproxy", "curl"] =>
        "printf 'defaults\\n mode http\\n timeout client 9s\\n timeout server 9s\\n \
         timeout connect 9s\\nfrontend a\\n bind unix@haproxy.sock\\n \
         http-request return status 200 content-type text/plain string hello\\n' > a.cfg; \
         rm -f haproxy.sock; $TRACE haproxy -q -db -f a.cfg & n=$!; \
         until [ -S haproxy.sock ] || ! kill -0 $n; do sleep 0.1; done; \
         while curl -s -o out --unix-socket haproxy.sock http://localhost/ && \
         ! [ -e stop ]; do :; done; cat out; kill -USR1 $(pgrep -P $n haproxy || echo $n); wait $n; echo $?";
    ALONE "memcached", "memcached", ["memcached", "curl"] =>
        "rm -f m.sock; $TRACE memcached -u $(id -un) -s $PWD/m.sock -P $PWD/m.pid & n=$!; \
         until [ -S m.sock ] || ! kill -0 $n; do sleep 0.1; done; \
         ask() { printf \"$1\\r\\nquit\\r\\n\" | \
         curl -s --unix-socket m.sock telnet://localhost:1; }; \
         ask 'set a 0 0 1\\r\\n0'; \
         while ask 'incr a 1' > out && ! [ -e stop ]; do :; done; ask 'set a 0 0 1\\r\\n7'; \
         ask 'get a'; kill $(cat m.pid); wait $n; echo $?";
    ALONE "mariadb under sysbench", "mariadb-server sysbench", ["mariadbd", "mariadb-install-db", "mariadb-admin", "sysbench"] =>
        "$TRACE mariadbd --no-defaults --user=$(id -un) --datadir=$PWD/d --skip-networking \
         --socket=$PWD/s --pid-file=$PWD/pid 2> log & n=$!; \
         until mariadb-admin -S s -u root ping > ready 2>&1 || ! kill -0 $n; do sleep 0.2; \
         done; mariadb -S s -u root -e 'drop database if exists b; create database b'; \
         s() { sysbench oltp_read_write --mysql-socket=$PWD/s --mysql-user=root \
         --mysql-db=b --table-size=1000 --threads=2 --events=100 --time=0 $1 >> bench; }; \
         s prepare; while s run && ! [ -e stop ]; do :; done; \
         mariadb -S s -u root -N -e 'select count(*) from b.sbtest1'; \
         grep -c FATAL bench; mariadb-admin -S s -u root shutdown; wait $n; echo $?",
        with "empty", "", "[ -d d ] || mariadb-install-db --no-defaults --user=$(id -un) --datadir=$PWD/d \
         --auth-root-authentication-method=normal > log";
}

const HASKELL: &str = "import Control.Concurrent
import Control.Exception
import System.Directory
import qualified System.IO.Error as E

main :: IO ()
main = do
  done <- newEmptyMVar
  _ <- forkIO (mapM_ (\\n -> evaluate (sum [1 .. n :: Integer])) [1 .. 200] >> putMVar done ())
  takeMVar done
  r <- try (ioError (userError \"oops\")) :: IO (Either E.IOError ())
  stop <- doesFileExist \"stop\"
  if stop then print (sum [1 .. 20000 :: Integer], either (const 1) (const 2) r :: Int) else main
";
const LISP: &str = "(require :cmp)
(with-open-file (o \"b.lisp\" :direction :output :if-exists :supersede)
  (print '(defun work (n)
    (let ((h (make-hash-table :test 'equal)))
      (dotimes (i n) (setf (gethash (format nil \"~a\" i) h) (list i (* i i i i i))))
      (catch 'done (loop (handler-case (error \"~a\" h) (error () (throw 'done nil)))))
      (loop for i below n sum (second (gethash (format nil \"~a\" i) h))))) o))
(loop (handler-bind ((warning #'muffle-warning)) (compile-file \"b.lisp\" :verbose nil :print nil))
      (load \"b.fas\" :verbose nil)
      (si::gc t)
      (when (probe-file \"stop\") (return)))
(format t \"~%~a~%\" (work 2000))
(si::exit 3)
";
const MAXIMA: &str = "display2d: errormsg: false$
block(do (r: [integrate(1/(1+x^4), x), factor(x^30-1), taylor(sin(x)/x*exp(cos(x)), x, 0, 8),
  errcatch(error(1)), solve(x^4-3*x^2+1=0, x),
  determinant(genmatrix(lambda([i, j], 1/(i+j-1)), 9, 9))],
  if ?probe\\-file(\"stop\") # false then return(r)));
";
const RUBY: &str = "begin
  h = {}
  2000.times { |i| h[\"k#{i}\"] = [i, i.to_s * 3, { a: i }] }
  GC.start
  t = h.sum { |_, v| v[0] + v[1].size }
  500.times { |i| begin; raise \"x#{i}\"; rescue => e; t += e.message.size; end }
  f = Fiber.new { 100.times { |i| Fiber.yield i }; nil }
  while (v = f.resume) do t += v end
  t += 4.times.map { |n| Thread.new { (1..300).map { |x| \"#{x}\" * n }.join.size } }.sum(&:value)
  t += catch(:done) { 1000.times { |i| throw :done, i if i == 777 } }
  GC.compact
end until File.exist?(\"stop\")
puts t
exit 3
";
const COQ: &str = "Require Import Arith List Lia.
Fixpoint sum n := match n with 0 => 0 | S m => n + sum m end.
Lemma sum_ok : forall n, 2 * sum n = n * (n + 1).
Proof. induction n; simpl; lia. Qed.
Lemma square : forall x y, (x + y) * (x + y) = x * x + 2 * x * y + y * y.
Proof. intros; ring. Qed.
Fail Lemma no : 1 = 2 -> missing.
Eval vm_compute in sum 60.
Print Assumptions sum_ok.
";
const CSHARP: &str = "using System;
using System.Collections.Generic;
using System.IO;
using System.Threading;
class A {
    static int Fib(int n) { return n < 2 ? n : Fib(n - 1) + Fib(n - 2); }
    static void Main() {
        int sum;
        do {
            sum = Fib(18);
            var kept = new List<string>();
            for (int i = 0; i < 20000; i++) kept.Add(\"x\" + i);
            try { ((object) null).ToString(); } catch (NullReferenceException) { sum += 1; }
            var thread = new Thread(() => { sum += kept.Count; });
            thread.Start();
            thread.Join();
            GC.Collect();
        } while (!File.Exists(\"stop\"));
        Console.WriteLine(sum);
    }
}
";
const PANDAS: &str = "import os, numpy, pandas
while True:
    a = numpy.arange(40000.0).reshape(200, 200) % 7
    frame = pandas.DataFrame({'k': numpy.arange(10000) % 13, 'v': numpy.arange(10000)})
    sums = frame.groupby('k').v.sum()
    if os.path.exists('stop'): break
print(int((a @ a).sum()), numpy.linalg.matrix_rank(a), sums.tolist())
";
const POLARS: &str = "import os, polars
while True:
    frame = polars.DataFrame({'k': [i % 13 for i in range(10000)], 'v': list(range(10000))})
    sums = frame.lazy().group_by('k').agg(polars.col('v').sum()).sort('k').collect()
    if os.path.exists('stop'): break
print(sums.rows())
";
const JAVA: &str = "import java.io.*;
public class A {
    public static void main(String[] args) throws Exception {
        String line;
        do {
            Process child = new ProcessBuilder(\"echo\", \"child\").start();
            line = new BufferedReader(new InputStreamReader(child.getInputStream())).readLine();
            line += \" \" + child.waitFor();
        } while (!new File(\"stop\").exists());
        System.out.println(line);
    }
}
";
const GO: &str = "package main

// #include <stdlib.h>
import \"C\"
import (
\t\"fmt\"
\t\"os\"
\t\"runtime\"
)

func fib(n int) int {
\tif n < 2 {
\t\treturn n
\t}
\treturn fib(n-1) + fib(n-2)
}

func main() {
\tfor {
\t\tsums, sum := make(chan int), 0
\t\tfor i := 0; i < 10; i++ {
\t\t\tgo func(n int) { sums <- fib(n) + int(C.abs(C.int(-n))) }(i + 10)
\t\t}
\t\tfor i := 0; i < 10; i++ {
\t\t\tsum += <-sums
\t\t}
\t\truntime.GC()
\t\tif _, missing := os.Stat(\"stop\"); missing == nil {
\t\t\tfmt.Println(sum)
\t\t\treturn
\t\t}
\t}
}
";
const NODE: &str =
    "const { execFileSync, execFile } = require('child_process'), fs = require('fs');
function again() {
    const first = execFileSync('echo', ['child']).toString();
    execFile('echo', ['other'], (error, out) => {
        if (!fs.existsSync('stop')) return again();
        console.log(first + out, error);
    });
}
again();
";
const CONTEXT: &str = "#include <boost/context/fiber.hpp>
#include <cstdio>
#include <stdexcept>
#include <unistd.h>
namespace ctx = boost::context;
int main() {
    long sum;
    do {
        sum = 0;
        for (int i = 0; i < 200; i++) {
            ctx::fiber fiber{[&](ctx::fiber &&main) {
                for (int j = 0; j < 20; j++) {
                    try { throw std::runtime_error(\"oops\"); } catch (std::exception &) { sum += j; }
                    main = std::move(main).resume();
                }
                return std::move(main);
            }};
            while (fiber) fiber = std::move(fiber).resume();
        }
    } while (access(\"stop\", F_OK));
    std::printf(\"%ld\\n\", sum);
}
";
const FIBER: &str = "#include <boost/fiber/all.hpp>
#include <cstdio>
#include <unistd.h>
namespace fibers = boost::fibers;
int main() {
    long sum;
    do {
        sum = 0;
        fibers::buffered_channel<int> channel(8);
        fibers::fiber writer([&] {
            for (int i = 0; i < 5000; i++) channel.push(i);
            channel.close();
        });
        fibers::fiber reader([&] { for (int i : channel) sum += i; });
        writer.join();
        reader.join();
    } while (access(\"stop\", F_OK));
    std::printf(\"%ld\\n\", sum);
}
";
const BLOCKS: &str = "#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *work(void *sum) {
    char *kept[64] = {0};
    for (int i = 0; i < 20000; i++) {
        char **slot = &kept[i * 7 % 64];
        *slot = realloc(*slot, 1 + i * 31 % 5000);
        memset(*slot, i, 1 + i * 31 % 5000);
        *(long *)sum += (*slot)[0];
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return NULL;
}
int main(void) {
    long sums[4];
    do {
        pthread_t threads[4];
        memset(sums, 0, sizeof sums);
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, &sums[i]);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } while (access(\"stop\", F_OK));
    printf(\"%ld %ld\\n\", sums[0], sums[3]);
}
";
