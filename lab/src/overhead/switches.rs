//! The cost of recording the states of a thread that switches 20,000 times a second.
//!
//! Two threads on one processor wake each other, and one of them computes in between. The program
//! measures itself: the processor time of that thread and the time on the clock, for each switch.
//! The kernel's work for a switch away is in the time of the thread that comes next, here the other
//! one, which does the same: each thread bears one switch away and one back.

use std::io;
use std::path::Path;
use std::process::Command;

use fgraph_chores::figures::median;
use fgraph_chores::process::{compile, succeed};
use fgraph_needs::CC;

pub(super) const NAME: &str = "switches";

/// The switches a second that are wanted.
const RATE: f64 = 20_000.0;

/// Each way to run the program, with options of `fgraph record`; `None` for a plain run. Few calls
/// are recorded, so that the ways differ in the states of threads only.
const WAYS: [(&str, Option<&[&str]>); 3] = [
    ("plain", None),
    ("record --no-sched", Some(&["-F", "main", "--no-sched"])),
    ("record", Some(&["-F", "main"])),
];

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 41, SWITCHES = 1000 };
static int to, from;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void *partner(void *unused) {
    uint64_t one;
    while (read(to, &one, 8) == 8 && write(from, &one, 8) == 8) {}
    return unused;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments) {
    long steps = count > 1 ? atol(arguments[1]) : 0;
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    sched_setaffinity(0, sizeof first, &first);
    /* Other programs do not disturb it, where that is allowed. */
    struct sched_param priority = { .sched_priority = 10 };
    sched_setscheduler(0, SCHED_RR, &priority);
    to = eventfd(0, 0);
    from = eventfd(0, 0);
    pthread_t thread;
    pthread_create(&thread, 0, partner, 0);
    double own[BATCHES], wall[BATCHES];
    for (int batch = 0; batch < BATCHES; batch++) {
        double since = now(CLOCK_MONOTONIC), before = now(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < SWITCHES; i++) {
            for (volatile long step = 0; step < steps; step++) {}
            uint64_t one = 1;
            if (write(to, &one, 8) != 8 || read(from, &one, 8) != 8) return 1;
        }
        own[batch] = now(CLOCK_THREAD_CPUTIME_ID) - before;
        wall[batch] = now(CLOCK_MONOTONIC) - since;
    }
    qsort(own, BATCHES, sizeof *own, order);
    qsort(wall, BATCHES, sizeof *wall, order);
    printf("%.1f %.1f\n", own[BATCHES / 2] / SWITCHES, wall[BATCHES / 2] / SWITCHES);
    return 0;
}
"#;

/// Nanoseconds for each switch.
#[derive(Clone, Copy, Debug)]
struct Times {
    own: f64,
    wall: f64,
}

/// Prints the medians of the times for a switch, and the medians of the ratios of each round.
pub(super) fn print(runs: u32, fgraph: &Path, directory: &Path) -> io::Result<()> {
    let compiler = match CC.find() {
        Ok(compiler) => compiler,
        Err(missing) => {
            println!("{NAME:<15} skipped: {missing}");
            return Ok(());
        }
    };
    let options = ["-O2", "-pthread"];
    let program = compile(&compiler, directory, ("switches.c", PROGRAM), &options)?;
    let run = |options, steps: u64| run_once(&program, options, steps, fgraph, directory);
    // As many steps as make a switch in each of the wanted times.
    const TRY: u64 = 100_000;
    let (none, some) = (run(None, 0)?.wall, run(None, TRY)?.wall);
    let steps = (1e9 / RATE - none) / (some - none).max(1.0) * TRY as f64;
    let mut all: [Vec<Times>; WAYS.len()] = Default::default();
    for _ in 0..runs {
        for ((_, options), found) in WAYS.iter().zip(&mut all) {
            found.push(run(*options, steps.max(0.0) as u64)?);
        }
    }
    for (n, (name, _)) in WAYS.iter().enumerate() {
        let of = |number: fn(&Times) -> f64| {
            let ratios = all[n].iter().zip(&all[n.saturating_sub(1)]);
            let ratio = median(ratios.map(|(it, before)| number(it) / number(before)));
            let time = median(all[n].iter().map(number)).unwrap_or_default();
            (time / 1000.0, ratio.unwrap_or_default())
        };
        let ((own, own_ratio), (wall, wall_ratio)) = (of(|it| it.own), of(|it| it.wall));
        println!(
            "{NAME:<15} {name:<19} {own:>8.3} us of the thread ({own_ratio:.3}), {wall:>8.3} us on \
             the clock ({wall_ratio:.3}) a switch"
        );
    }
    // Samples would cost nothing for each switch.
    let mut report = Command::new(fgraph);
    report
        .args(["report", "--time", "cpu"])
        .arg(directory.join("fgraph.data"));
    let said = String::from_utf8_lossy(&report.output()?.stderr).into_owned();
    said.lines().for_each(|line| println!("{NAME:<15} {line}"));
    Ok(())
}

fn run_once(
    program: &Path,
    options: Option<&[&str]>,
    steps: u64,
    fgraph: &Path,
    directory: &Path,
) -> io::Result<Times> {
    let mut command = match options {
        None => Command::new(program),
        Some(options) => {
            let mut command = Command::new(fgraph);
            command
                .args(["record", "-q", "-o"])
                .arg(directory.join("fgraph.data"));
            command.args(options).arg("--").arg(program);
            command
        }
    };
    let text = succeed(command.arg(steps.to_string()))?;
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(own)), Some(Ok(wall))) => Ok(Times { own, wall }),
        _ => Err(io::Error::other(format!("no times in {text:?}"))),
    }
}
