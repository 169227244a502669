//! Futures in traces of programs that are compiled with optimisation: `docs/async.md`.

use std::fs;
use std::process::Command;
use std::sync::Mutex;

use fgraph::{Entry, FgraphOps, Return};
use fgraph_needs::{Missing, RUSTC, needs};
use fgraph_scenario::{Library, bounded, scenario};

/// A library with futures that are awaited, boxed and kept as tasks. Each waits once.
const RUST: &str = r#"
    use std::future::Future;
    use std::hint::black_box;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Task = Pin<Box<dyn Future<Output = u64>>>;

    struct Turn(bool);

    impl Future for Turn {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            match std::mem::replace(&mut self.0, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }
    }

    #[inline(never)]
    fn parse_row(key: u64) -> u64 {
        black_box(key) * 3
    }

    #[inline(never)]
    async fn awaited(key: u64) -> u64 {
        Turn(false).await;
        parse_row(key)
    }

    async fn boxed(key: u64) -> u64 {
        Turn(false).await;
        parse_row(key)
    }

    async fn unit() {
        Turn(false).await;
    }

    async fn task(key: u64) -> u64 {
        let row = awaited(key).await;
        let other: Task = Box::pin(boxed(key));
        let done: Pin<Box<dyn Future<Output = ()>>> = Box::pin(unit());
        done.await;
        row + other.await
    }

    #[unsafe(no_mangle)]
    pub extern "C" fn run_task(key: u64) -> u64 {
        let mut task: Task = black_box(Box::pin(task(key)));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
                return output;
            }
        }
    }
"#;

fn build() -> Result<Library, Missing> {
    let compiler = RUSTC.find()?;
    let directory = fgraph_scenario::directory();
    let (source, library) = (
        directory.join("futures.rs"),
        directory.join("libfutures.so"),
    );
    fs::write(&source, RUST).unwrap();
    let mut command = Command::new(compiler);
    command.args([
        "-Copt-level=3",
        "--edition=2024",
        "--crate-type=cdylib",
        "-o",
    ]);
    let output = bounded(command.arg(&library).arg(&source));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Ok(Library::open(&library))
}

/// Calls of futures: the name, the first argument, and the lowest byte of the result.
#[derive(Default)]
struct Polls(Mutex<Vec<(String, u64, u8)>>);

impl FgraphOps for Polls {
    type Data = u64;

    fn entry(&self, call: &mut Entry<'_, u64>) -> Option<u64> {
        call.arg(0)
    }

    fn ret(&self, call: &mut Return<'_, u64>, future: u64) {
        let name = call.function().name().to_string();
        let name = name
            .split("::")
            .find(|part| ["awaited", "boxed", "unit", "task", "parse_row"].contains(part));
        let result = call.result().unwrap() as u8;
        let name = name.unwrap_or_default().to_owned();
        self.0.lock().unwrap().push((name, future, result));
    }
}

#[scenario]
fn tasks_and_boxed_futures_are_seen_and_awaited_ones_are_not() {
    let library = needs!(build());
    // SAFETY: its type.
    let run: extern "C" fn(u64) -> u64 = unsafe { library.get("run_task") };
    let listed = fgraph::sites_of(":mod:*futures*.so").unwrap();
    let has = |part: &str| listed.iter().any(|site| site.name.contains(part));
    assert!(has("::task::{") && has("::boxed::{") && has("::unit::{"));
    assert!(has("parse_row") && !has("::awaited::{"));
    // `#[inline(never)]` is about the function that makes the future.
    assert!(has("::awaited"));

    let filter = "*::task::{*} *::boxed::{*} *::unit::{*} *::parse_row";
    let user = fgraph_scenario::register(Polls::default(), filter).unwrap();
    assert_eq!(run(5), 30);
    let polls = user.unregister().unwrap().0.into_inner().unwrap();
    let of = |name: &str| {
        polls
            .iter()
            .filter(|poll| poll.0 == name)
            .collect::<Vec<_>>()
    };
    // The task waits for the three futures, once each, and each call is a poll.
    assert_eq!(
        [of("task").len(), of("boxed").len(), of("unit").len()],
        [4, 2, 2]
    );
    assert_eq!(of("parse_row").len(), 2);
    // Polls return pending until the last.
    let results: Vec<_> = of("unit").iter().map(|poll| poll.2).collect();
    assert_eq!(results, [1, 0]);
    // One future has one address.
    assert!(
        of("unit").windows(2).all(|two| two[0].1 == two[1].1),
        "{polls:?}"
    );
}
