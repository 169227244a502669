//! The functions of async runtimes and thread pools that spawn, wake, poll and end tasks, and the
//! argument of each that tells tasks apart.
//!
//! In a release build these functions are there because they are called through pointers, or
//! because they are not generic and so compiled into the crate of their runtime. Functions that a
//! build has inlined are missing; each act has several functions where a runtime has them.

use fgraph_symbols::demangle;
use serde::Serialize;

/// A runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// Tokio 1.
    Tokio,
    /// The tasks of smol, async-std and async-executor.
    AsyncTask,
    /// Its jobs run once, and may take long.
    Rayon,
    /// The handlers of Asio and Boost.Asio, by their operations; each runs once.
    Asio,
    /// The coroutines of C++20, by their frames, whatever resumes them.
    Coroutine,
    /// Python's tasks, by the frames of the outermost coroutines, whatever runs them.
    Asyncio,
}

impl Runtime {
    /// The runtimes whose versions are in files of programs.
    const ALL: &[Self] = &[Self::Tokio, Self::AsyncTask, Self::Rayon];

    /// Returns the name of its crate or library.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::AsyncTask => "async-task",
            Self::Rayon => "rayon-core",
            Self::Asio => "Asio",
            Self::Coroutine => "C++",
            Self::Asyncio => "asyncio",
        }
    }

    /// Returns the versions for which its functions are known, from the first one to before the
    /// second one: major and minor number.
    const fn versions(self) -> [(u32, u32); 2] {
        match self {
            Self::Tokio => [(1, 13), (1, 55)],
            Self::AsyncTask => [(4, 0), (4, 8)],
            Self::Rayon => [(1, 9), (1, 14)],
            Self::Asio => [(1, 18), (1, 23)],
            Self::Coroutine => [(20, 0), (24, 0)],
            Self::Asyncio => [(3, 9), (3, 14)],
        }
    }

    /// Returns true if its functions are known in a version: `1.43.0`.
    #[must_use]
    pub fn knows(self, version: &str) -> bool {
        let mut numbers = version.split('.').map_while(|part| part.parse().ok());
        let found = (numbers.next(), numbers.next());
        let [first, end] = self.versions();
        matches!(found, (Some(major), Some(minor))
            if (first..end).contains(&(major, minor)))
    }

    /// Returns the known versions as text: `1.13 to 1.54`.
    #[must_use]
    pub fn known(self) -> String {
        let [(major, first), (_, end)] = self.versions();
        format!("{major}.{first} to {major}.{}", end - 1)
    }

    /// Finds the runtimes in the text of a program's file, by the paths of their sources, which
    /// messages of panics have: `tokio-1.43.0/src/`. A runtime may be there in several versions.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Vec<(Self, String)> {
        let mut found = Vec::new();
        for runtime in Self::ALL {
            let start = format!("/{}-", runtime.name());
            for at in memchr::memmem::find_iter(bytes, &start) {
                let rest = &bytes[at + start.len()..];
                let is_version = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
                let version = rest.iter().take(VERSION).take_while(is_version);
                let version: String = version.map(|byte| char::from(*byte)).collect();
                let is_path = rest[version.len()..].starts_with(b"/src/");
                let known = (*runtime, version);
                if is_path && known.1.contains('.') && !found.contains(&known) {
                    found.push(known);
                }
            }
        }
        found
    }
}

/// The longest text of a version.
const VERSION: usize = 16;

/// The meaning of a call for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The task exists from now on.
    Spawn,
    /// The task can be polled, or is about to be.
    Wake,
    /// The task runs until it waits or ends.
    Poll,
    /// The task runs to its end.
    Run,
    /// The task has ended, if it is polled now after the poll.
    End,
    /// Something is done with the task: functions in it tell its type.
    Touch,
    /// The thread runs tasks in it: the poll around it is not one of the program's tasks.
    Worker,
}

/// A function of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The runtime.
    pub runtime: Runtime,
    /// The effect of a call on the task.
    pub act: Act,
    /// The number of the argument that is the task, from 0.
    pub argument: usize,
}

/// The most arguments that are needed.
pub const ARGUMENTS: usize = 3;

/// A function: the name without type parameters, the act, and the argument.
type Function = (&'static str, Act, usize);

/// The functions of each runtime.
#[rustfmt::skip]
const FUNCTIONS: &[(Runtime, &[Function])] = &[
    (Runtime::Tokio, &[
        ("tokio::runtime::task::list::OwnedTasks::bind_inner", Act::Spawn, 1),
        ("tokio::util::sharded_list::ShardGuard::push", Act::Spawn, 1),
        ("tokio::runtime::scheduler::multi_thread::worker::schedule_option_task_without_yield",
            Act::Spawn, 1),
        ("tokio::runtime::scheduler::multi_thread::handle::Handle::\
            schedule_option_task_without_yield", Act::Spawn, 1),
        ("tokio::runtime::blocking::pool::Spawner::spawn_task", Act::Spawn, 1),
        ("tokio::runtime::blocking::sharded::ShardedImpl::spawn_task", Act::Spawn, 1),
        ("tokio::runtime::task::waker::wake_by_val", Act::Wake, 0),
        ("tokio::runtime::task::waker::wake_by_ref", Act::Wake, 0),
        ("tokio::runtime::task::raw::schedule", Act::Wake, 0),
        ("tokio::runtime::scheduler::current_thread::schedule", Act::Wake, 1),
        ("tokio::runtime::scheduler::multi_thread::worker::schedule_task", Act::Wake, 1),
        ("tokio::runtime::thread_pool::worker::schedule", Act::Wake, 1),
        ("tokio::runtime::basic_scheduler::schedule", Act::Wake, 1),
        ("tokio::runtime::task::raw::poll", Act::Poll, 0),
        ("tokio::runtime::task::harness::Harness::poll", Act::Poll, 0),
        ("tokio::runtime::task::harness::Harness::complete", Act::End, 0),
        ("tokio::runtime::task::state::State::transition_to_complete", Act::End, 0),
        ("tokio::runtime::task::raw::shutdown", Act::End, 0),
        ("tokio::runtime::task::raw::dealloc", Act::End, 0),
        ("tokio::runtime::task::raw::try_read_output", Act::Touch, 0),
        ("tokio::runtime::task::raw::drop_join_handle_slow", Act::Touch, 0),
        ("tokio::runtime::scheduler::multi_thread::worker::run", Act::Worker, 0),
        ("tokio::runtime::thread_pool::worker::run", Act::Worker, 0),
    ]),
    (Runtime::AsyncTask, &[
        ("async_task::raw::RawTask::schedule", Act::Wake, 0),
        ("async_task::raw::RawTask::wake", Act::Wake, 0),
        ("async_task::raw::RawTask::wake_by_ref", Act::Wake, 0),
        ("async_task::raw::RawTask::run", Act::Poll, 0),
        ("async_task::raw::RawTask::drop_future", Act::End, 0),
        ("async_task::raw::RawTask::destroy", Act::End, 0),
    ]),
    (Runtime::Rayon, &[
        ("rayon_core::registry::Registry::inject", Act::Spawn, 2),
        ("rayon_core::registry::Registry::inject_or_push", Act::Spawn, 2),
        ("rayon_core::job::StackJob as rayon_core::job::Job::execute", Act::Run, 0),
        ("rayon_core::job::HeapJob as rayon_core::job::Job::execute", Act::Run, 0),
        ("rayon_core::job::ArcJob as rayon_core::job::Job::execute", Act::Run, 0),
    ]),
];

/// The endings of the names of the functions of a coroutine, as gcc and clang make them; the frame
/// is their first argument.
const COROUTINES: &[(&str, Act)] = &[
    (".Frame.actor", Act::Poll),
    (".Frame.destroy", Act::End),
    (".resume", Act::Poll),
    (".destroy", Act::End),
    (".cleanup", Act::End),
];

/// Namespaces of the operations of Asio. The function that completes an operation is called through
/// a pointer, with the operation as its second argument.
const OPERATIONS: [&str; 2] = ["boost::asio::detail::", "asio::detail::"];

/// Operations, and the number of the type parameter that is the handler; the first one in others.
const HANDLERS: &[(&str, usize)] = &[
    ("descriptor_read_op", 1),
    ("descriptor_write_op", 1),
    ("reactive_socket_accept_op", 2),
    ("reactive_socket_recv_op", 1),
    ("reactive_socket_recvfrom_op", 2),
    ("reactive_socket_recvmsg_op", 1),
    ("reactive_socket_send_op", 1),
    ("reactive_socket_sendto_op", 2),
    ("resolve_query_op", 1),
];

/// Types of Asio around a handler, which is their first type parameter.
const BOUND: &[&str] = &["binder0", "binder1", "binder2", "work_dispatcher"];

/// Names of types that have a future's type as their first parameter: they tell the type of a task,
/// also in symbols of rustc's older form, which otherwise lack type parameters.
const AROUND_FUTURES: &[&str] = &[
    "tokio::runtime::task::core::Stage<",
    "tokio::runtime::task::core::CoreStage<",
    "tokio::runtime::task::core::Cell<",
    "tokio::runtime::task::core::Core<",
    "tokio::runtime::task::raw::poll<",
    "tokio::runtime::task::raw::poll::<",
    "tokio::runtime::task::harness::Harness<",
    "async_task::raw::RawTask<",
    "async_executor::AsyncCallOnDrop<",
];

/// A task that runs one closure on a thread for work that blocks.
const BLOCKING: &str = "tokio::runtime::blocking::task::BlockingTask";
/// Types around the type of a future or a closure, which is their first parameter.
const WRAPPERS: &[&str] = &[
    BLOCKING,
    "async_executor::AsyncCallOnDrop",
    "async_std::task::builder::SupportTaskLocals",
];
/// A thread of the runtime, which is one of these tasks.
const WORKERS: &[&str] = &[
    "multi_thread::worker::Launch::launch",
    "thread_pool::worker::Launch",
];

/// Crates whose functions are between a runtime and the functions of its tasks.
#[rustfmt::skip]
const BETWEEN: &[&str] = &[
    "_asyncio.", "alloc::", "asio::", "asyncio.",
    "async_executor::", "async_io::", "async_lock::", "async_std::",
    "async_task::",
    "axum::", "axum_core::", "boost::", "bytes::", "concurrent_queue::", "core::", "crossbeam_",
    "event_listener::", "futures_channel::", "futures_core::", "futures_lite::", "futures_util::",
    "h2::", "http::", "http_body::", "http_body_util::", "hyper::", "hyper_util::", "mio::",
    "parking::", "polling::", "rayon::", "rayon_core::", "__rustc::", "smol::", "std::", "tokio::",
    "tokio_util::", "tower::", "tower_layer::", "tower_service::", "tracing::",
];

/// The reason for which a task waits, by a part of a function's name that is active when it is
/// woken.
#[rustfmt::skip]
const REASONS: &[(&str, &str)] = &[
    ("tokio::sync::batch_semaphore", "a lock or a semaphore"),
    ("tokio::sync::notify", "a notification"),
    ("tokio::sync::mpsc", "a channel"),
    ("tokio::sync::oneshot", "a channel"),
    ("tokio::sync::broadcast", "a channel"),
    ("tokio::sync::watch", "a channel"),
    ("tokio::runtime::time", "a timer"),
    ("tokio::time::driver", "a timer"),
    ("tokio::runtime::io", "input or output"),
    ("tokio::io::driver", "input or output"),
    ("tokio::runtime::signal", "a signal"),
    ("tokio::runtime::task::harness", "the end of a task"),
    ("tokio::runtime::scheduler::defer", "its own yield"),
    ("async_lock::", "a lock or a semaphore"),
    ("async_channel::", "a channel"),
    ("event_listener::", "a lock, a channel or a notification"),
    ("async_io::reactor", "a timer, or input or output"),
    ("async_task::header", "the end of a task"),
];

/// Returns the words of a filter that select all functions of the table.
#[must_use]
pub fn words() -> Vec<String> {
    let all = FUNCTIONS.iter().flat_map(|(_, functions)| *functions);
    let word = |(path, ..): &Function| {
        let (parent, name) = path.rsplit_once("::").unwrap_or_default();
        match parent.split_once(" as ") {
            Some((of_type, _)) => format!("<{of_type}*::{name}*"),
            None => format!("{parent}*::{name}*"),
        }
    };
    let coroutines = COROUTINES.iter().map(|(ending, _)| format!("*{ending}"));
    let operations = OPERATIONS.map(|namespace| format!("{namespace}*::do_complete*"));
    all.map(word).chain(coroutines).chain(operations).collect()
}

/// Returns a name without its type parameters: `a::B<T>::c::<D>` becomes `a::B::c`. Parts of
/// Python's names stay: `a.<locals>.b`.
#[must_use]
pub fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let (mut depth, mut before, mut is_part) = (0_usize, ' ', false);
    for character in name.chars() {
        match character {
            '<' if depth == 0 && before == '.' => {
                is_part = true;
                plain.push(character);
            }
            '>' if is_part => {
                is_part = false;
                plain.push(character);
            }
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
        if character == '<' && depth == 1 && plain.ends_with("::") {
            plain.truncate(plain.len() - 2);
        }
        before = character;
    }
    plain
}

/// Returns the role of a function, if it has one.
#[must_use]
pub fn role(name: &str) -> Option<Role> {
    if let Some((_, act)) = COROUTINES.iter().find(|(ending, _)| name.ends_with(ending)) {
        return Some(Role {
            runtime: Runtime::Coroutine,
            act: *act,
            argument: 0,
        });
    }
    if operation(name).is_some() {
        return Some(Role {
            runtime: Runtime::Asio,
            act: Act::Run,
            argument: 1,
        });
    }
    // Glue has the path of its type elsewhere.
    if name.starts_with("core::") {
        return None;
    }
    let plain = match name.strip_prefix('<') {
        // `<A<T> as B<U>>::c` becomes `A as B::c`.
        Some(rest) => {
            let end = parameters_end(rest)?;
            let (of_type, of_trait) = rest[..end].split_once(" as ")?;
            let (of_type, of_trait) = (plain(of_type), plain(of_trait));
            format!("{of_type} as {of_trait}{}", plain(&rest[end + 1..]))
        }
        None => plain(name),
    };
    for (runtime, functions) in FUNCTIONS {
        if let Some((_, act, argument)) = functions.iter().find(|(path, ..)| *path == plain) {
            return Some(Role {
                runtime: *runtime,
                act: *act,
                argument: *argument,
            });
        }
    }
    None
}

/// Returns the operation of Asio that a function completes, with its type parameters:
/// `wait_handler`, and the text from the handler on.
fn operation(name: &str) -> Option<(&str, &str)> {
    let start = |namespace: &&str| name.strip_prefix(namespace);
    let rest = OPERATIONS.iter().find_map(start)?;
    let (operation, parameters) = rest.split_once('<')?;
    let rest = &parameters[parameters_end(parameters)? + 1..];
    (rest == "::do_complete").then_some((operation, parameters))
}

/// Returns the type of the handler of an operation of Asio.
fn handler<'n>((operation, parameters): (&str, &'n str)) -> &'n str {
    let known = HANDLERS.iter().find(|(name, _)| *name == operation);
    let mut rest = parameters;
    for _ in 0..known.map_or(0, |(_, place)| *place) {
        rest = rest[first_parameter(rest).len()..].trim_start_matches([',', ' ']);
    }
    let mut found = first_parameter(rest);
    while let Some((_, inner)) = OPERATIONS
        .iter()
        .find_map(|namespace| found.strip_prefix(namespace)?.split_once('<'))
        .filter(|(bound, _)| BOUND.contains(bound))
    {
        found = first_parameter(inner);
    }
    found
}

/// Returns the type of a future that the name of a function of its task contains.
#[must_use]
pub fn type_of_future(name: &str) -> Option<String> {
    if let Some((ending, _)) = COROUTINES.iter().find(|(ending, _)| name.ends_with(ending)) {
        let name = name.strip_suffix(ending).unwrap_or(name);
        // gcc adds the frame's type, whose name has the symbol of the function.
        let symbol = name.rfind("_Z").map_or(name, |at| &name[at..]);
        return Some(demangle::to_string(symbol));
    }
    if let Some(operation) = operation(name) {
        return Some(handler(operation).to_owned());
    }
    AROUND_FUTURES.iter().find_map(|around| {
        let start = name.find(around)? + around.len();
        let found = first_parameter(&name[start..]);
        // `Harness<T,S>` of rustc's older form.
        let is_letter = found.len() <= PARAMETER;
        (!is_letter).then(|| found.to_owned())
    })
}

/// Returns the type of a future that a function drops, if it is one of the program's.
#[must_use]
pub fn dropped_future(name: &str) -> Option<String> {
    let rest = name.strip_prefix("core::ptr::drop_in_place")?;
    let dropped = first_parameter(rest.trim_start_matches("::").strip_prefix('<')?);
    let is_future = dropped.ends_with("{{closure}}") || dropped.ends_with("}");
    (is_future && !is_between(dropped)).then(|| dropped.to_owned())
}

/// Returns the text up to the end of the first type parameter.
fn first_parameter(text: &str) -> &str {
    end_of(text, &[',', '>']).map_or(text, |end| &text[..end])
}

/// Returns the place of the bracket that ends type parameters.
fn parameters_end(text: &str) -> Option<usize> {
    end_of(text, &['>'])
}

/// Returns the place of the first of these characters that is in no further brackets.
fn end_of(text: &str, ends: &[char]) -> Option<usize> {
    let (mut depth, mut before) = (0_usize, ' ');
    for (at, character) in text.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if before == '-' => {}
            end if depth == 0 && ends.contains(&end) => return Some(at),
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = character;
    }
    None
}

/// The kind of task that the type of a future tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It is polled, and should return soon.
    Future,
    /// A closure that runs once and may block, or a job of a pool of threads.
    Blocking,
    /// A thread of the runtime.
    Worker,
}

/// Returns the kind of work that the type of a future, or the name of a function that a task
/// calls, tells.
#[must_use]
pub fn work(name: &str) -> Work {
    match name.contains(BLOCKING) {
        _ if WORKERS.iter().any(|worker| name.contains(worker)) => Work::Worker,
        true => Work::Blocking,
        false => Work::Future,
    }
}

/// Returns the type of a future as programmers know it: without the runtime's own types around it.
#[must_use]
pub fn shown_type(name: &str) -> String {
    let inner = WRAPPERS.iter().find_map(|wrapper| {
        let rest = name.strip_prefix(wrapper)?;
        let rest = rest.trim_start_matches("::").strip_prefix('<')?;
        Some(first_parameter(rest))
    });
    inner.unwrap_or(name).to_owned()
}

/// Returns true if a function is of a runtime or a library between it and its tasks.
#[must_use]
pub fn is_between(name: &str) -> bool {
    let is_it = |name: &str| BETWEEN.iter().any(|start| name.starts_with(start));
    let Some(rest) = name.strip_prefix('<') else {
        return is_it(name);
    };
    // A method of a trait for any type belongs to the crate of the trait.
    let (of_type, of_trait) = rest.split_once(" as ").unwrap_or((rest, ""));
    match of_type.len() <= PARAMETER {
        true => is_it(of_trait),
        false => is_it(of_type.trim_start_matches(['&', '<'])),
    }
}

/// The longest name of a type parameter.
const PARAMETER: usize = 3;

/// Returns the reason for which a task waited that is woken in this function.
#[must_use]
pub fn reason(name: &str) -> Option<&'static str> {
    let found = REASONS.iter().find(|(part, _)| name.contains(part));
    found.map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests;
