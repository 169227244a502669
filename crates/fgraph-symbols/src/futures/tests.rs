//! The awaits of a program with types named like those of tokio, compiled as a crate `tokio`.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Cursor};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fgraph_needs::{RUSTC, needs};

use super::*;
use crate::elf::ElfFile;
use crate::lines::Lines;
use crate::mapping::Mapping;

const PROGRAM: &str = r#"
#![allow(dead_code)]
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

pub mod runtime { pub mod task {
    pub mod core {
        use std::cell::UnsafeCell;
        use std::future::Future;
        #[repr(C)]
        pub struct Cell<T: Future, S> { pub header: Header, pub core: Core<T, S> }
        pub struct Header { pub state: u64, pub vtable: &'static Vtable, pub owner_id: u64 }
        pub struct Vtable { pub drops: usize, pub poll: fn(*mut ()) }
        pub struct Core<T: Future, S> { pub scheduler: S, pub stage: CoreStage<T> }
        pub struct CoreStage<T: Future> { pub stage: UnsafeCell<Stage<T>> }
        pub enum Stage<T: Future> { Running(T), Finished(T::Output), Consumed }
    }
    pub mod raw {
        use super::core::{Cell, Stage};
        use std::{future::Future, pin::Pin, task::{Context, Waker}};
        pub fn poll<T: Future, S>(cell: *mut ()) {
            let cell = unsafe { &mut *cell.cast::<Cell<T, S>>() };
            if let Stage::Running(future) = cell.core.stage.stage.get_mut() {
                let future = unsafe { Pin::new_unchecked(future) };
                _ = future.poll(&mut Context::from_waker(Waker::noop()));
            }
        }
    }
} }

use runtime::task::{core::{Cell, Core, CoreStage, Header, Stage, Vtable}, raw::poll};

struct Cache;
impl Cache {
    async fn get(&self) { load().await }
}
async fn load() { pending::<()>().await }
async fn handler() {
    let cache = Cache;
    cache.get().await;
}
async fn boxed() {
    let inner: Pin<Box<dyn Future<Output = ()>>> = Box::pin(handler());
    inner.await;
}
async fn deep(depth: u32) {
    match depth {
        0 => load().await,
        _ => Box::pin(deep(depth - 1)).await,
    }
}
async fn both() {
    let mut futures = (load(), pending::<u8>());
    let mut futures = &mut futures;
    poll_fn(move |context| {
        let first = unsafe { Pin::new_unchecked(&mut futures.0) };
        first.poll(context)
    }).await;
}
async fn returns() {}

fn task<T: Future>(name: &str, future: T, is_polled: bool) {
    let vtable: &'static Vtable = Box::leak(Box::new(Vtable { drops: 0, poll: poll::<T, u8> }));
    let stage = CoreStage { stage: Stage::Running(future).into() };
    let header = Header { state: 0xc0, vtable, owner_id: 7 };
    let cell = Box::leak(Box::new(Cell { header, core: Core { scheduler: 1_u8, stage } }));
    let cell: *mut () = std::ptr::from_mut(cell).cast();
    if is_polled { poll::<T, u8>(cell); }
    println!("{name} {} {}", cell as usize, poll::<T, u8> as usize);
}

fn main() {
    task("handler", handler(), true);
    task("new", load(), false);
    task("boxed", boxed(), true);
    task("deep", deep(200), true);
    task("both", both(), true);
    task("returns", returns(), true);
    println!();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
"#;

/// A process of the program, and its debug information.
struct Program {
    folder: PathBuf,
    child: Child,
    futures: Futures,
    bias: u64,
    /// Name, address, and address of the function that polls it, of each task.
    tasks: Vec<(String, u64, u64)>,
}

impl Program {
    fn start(rustc: PathBuf, test: &str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("main.rs"), PROGRAM).unwrap();
        let mut rustc = Command::new(rustc);
        rustc.args([
            "--crate-name",
            "tokio",
            "--edition",
            "2024",
            "-o",
            "program",
        ]);
        let rustc = rustc.args(options).arg("main.rs").current_dir(&folder);
        assert!(rustc.status().unwrap().success());
        let path = folder.join("program");
        let mut command = Command::new(&path);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let lines = output.lines().map(Result::unwrap);
        let tasks = lines.take_while(|line| !line.is_empty()).map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().unwrap();
            (words[0].to_owned(), number(1), number(2))
        });
        let tasks = tasks.collect();
        let maps = fs::read(format!("/proc/{}/maps", child.id())).unwrap();
        let start = Mapping::all(&maps).next().unwrap().range.start;
        let bytes = fs::read(&path).unwrap();
        let elf = ElfFile::parse(&bytes).unwrap();
        let first = elf.load_addresses().map(|(start, _)| start).min();
        Self {
            folder,
            child,
            futures: Lines::read(Cursor::new(&bytes), &elf).unwrap().futures(),
            bias: start - first.unwrap(),
            tasks,
        }
    }

    fn memory(&self) -> ChildMemory {
        ChildMemory {
            file: File::open(format!("/proc/{}/mem", self.child.id())).unwrap(),
            damage: None,
        }
    }

    fn poll(&self, name: &str) -> (&PollFunction, u64) {
        let (_, task, poll) = self.tasks.iter().find(|(it, ..)| it == name).unwrap();
        (self.futures.poll(poll - self.bias).unwrap(), *task)
    }

    fn tree(&self, name: &str) -> Option<Future> {
        let (poll, task) = self.poll(name);
        self.futures.tree(poll, task, self.bias, &self.memory())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// The memory of a process; with a seed, some of its bytes are others.
struct ChildMemory {
    file: File,
    damage: Option<u64>,
}

impl Memory for ChildMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        self.file.read_exact_at(into, address).ok()?;
        if let Some(seed) = self.damage {
            let mixed = (address ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match mixed >> 60 {
                0 => return None,
                1 => into[0] ^= (mixed >> 32) as u8,
                2 => into.fill((mixed >> 32) as u8),
                _ => {}
            }
        }
        Some(())
    }

    fn function(&self, _: u64) -> Option<String> {
        None
    }
}

/// Returns the lines of a tree, with the text of the lines of its awaits.
fn lines(future: &Future) -> Vec<String> {
    let place = future.place.as_ref().map(|(file, line)| {
        assert!(file.ends_with("/main.rs"), "{file}");
        PROGRAM.lines().nth(*line as usize - 1).unwrap().trim()
    });
    let mut found = vec![format!("{} @ {}", future.name, place.unwrap_or_default())];
    for child in &future.children {
        found.extend(lines(child).into_iter().map(|line| format!(" {line}")));
    }
    found
}

const HANDLER: [&str; 4] = [
    "tokio::handler @ cache.get().await;",
    " tokio::Cache::get @ async fn get(&self) { load().await }",
    "  tokio::load @ async fn load() { pending::<()>().await }",
    "   core::future::pending::Pending<()> @ ",
];

#[test]
fn the_awaits_of_tasks_are_in_their_memory() {
    let rustc = needs!(RUSTC.find());
    for (test, options) in [
        ("futures-debug", &["-g"][..]),
        ("futures-release", &["-g", "-O"]),
        (
            "futures-v0",
            &["-g", "-O", "-C", "symbol-mangling-version=v0"],
        ),
    ] {
        let program = Program::start(rustc.clone(), test, options);
        let (poll, _) = program.poll("handler");
        assert_eq!(poll.name, "tokio::handler", "{test}");
        let header = poll.header.unwrap();
        assert!(header.owner.is_some() && header.table != header.state);
        let handler = program.tree("handler").unwrap();
        assert_eq!(lines(&handler), HANDLER, "{test}");
        assert_eq!(program.tree("new").unwrap().state, FutureState::New);
        let boxed = program.tree("boxed").unwrap();
        assert_eq!(lines(&boxed)[0], "tokio::boxed @ inner.await;");
        assert_eq!(lines(&boxed.children[0]), HANDLER, "{test}");
        let both = program.tree("both").unwrap();
        let names = both.children.iter().map(|it| it.name.as_str());
        let expected = ["tokio::load", "core::future::pending::Pending<u8>"];
        assert_eq!(names.collect::<Vec<_>>(), expected, "{test}");
        let returns = program.tree("returns").unwrap();
        assert_eq!(returns.state, FutureState::Ended);
        // Its depth is limited.
        let mut deep = &program.tree("deep").unwrap();
        let mut depth = 0;
        while let Some(inner) = deep.children.first() {
            (deep, depth) = (inner, depth + 1);
        }
        assert!(deep.is_cut && (50..100).contains(&depth), "{depth}");
    }
}

#[test]
fn memory_that_changes_has_no_effect_but_another_tree() {
    let rustc = needs!(RUSTC.find());
    let program = Program::start(rustc, "futures-damage", &["-g"]);
    for seed in 0..200 {
        let memory = ChildMemory {
            damage: Some(seed),
            ..program.memory()
        };
        for (name, ..) in &program.tasks {
            let (poll, task) = program.poll(name);
            let tree = program.futures.tree(poll, task, program.bias, &memory);
            assert!(tree.is_none_or(|tree| lines_of(&tree) < 10_000));
        }
    }
}

fn lines_of(future: &Future) -> usize {
    1 + future.children.iter().map(lines_of).sum::<usize>()
}

#[test]
fn debug_information_without_types_describes_no_task() {
    let rustc = needs!(RUSTC.find());
    for (level, is_known) in [("1", false), ("line-tables-only", false), ("2", true)] {
        let option = format!("debuginfo={level}");
        let options = ["-C", option.as_str()];
        let program = Program::start(rustc.clone(), "futures-limited", &options);
        let mut polls = program.futures.polls().iter();
        assert_eq!(polls.any(|poll| poll.header.is_some()), is_known, "{level}");
    }
}
