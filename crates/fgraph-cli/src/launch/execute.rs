//! Executes a program with the agent preloaded.

use std::ffi::{CString, OsString, c_char};
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use fgraph_protocol::Settings;

use super::inherited;
use super::library::Library;
use super::program::Program;

impl Program {
    /// Executes the program with the agent inside.
    pub(super) fn execute(&self, library: &Library) -> io::Result<std::process::Child> {
        self.prepare(library)?.spawn()
    }

    /// Executes the program with the agent inside, in place of this one; returns only if it cannot.
    pub(super) fn execute_here(&self, library: &Library) -> io::Error {
        match self.prepare(library) {
            Ok(mut command) => command.exec(),
            Err(error) => error,
        }
    }

    fn prepare(&self, library: &Library) -> io::Result<Command> {
        let string = |text: Vec<u8>| CString::new(text).map_err(io::Error::other);
        let strings = |all: Vec<Vec<u8>>| -> io::Result<Strings> {
            let all: Result<Vec<CString>, _> = all.into_iter().map(string).collect();
            Ok(Strings::new(all?))
        };
        let arguments = self.command.iter().cloned().map(OsString::into_vec);
        let arguments = strings(arguments.collect())?;
        let variables = strings(variables(library, &self.settings))?;
        let path = string(self.path.clone().into_os_string().into_vec())?;
        let mut child = Command::new(&self.path);
        if self.is_apart {
            child.process_group(0);
        }
        if let Some(output) = &self.output {
            if io::stdin().is_terminal() {
                child.stdin(Stdio::null());
            }
            child.stdout(output.try_clone()?);
            if io::stderr().is_terminal() {
                child.stderr(output.try_clone()?);
            }
        }
        inherited::pass_on(&mut child);
        // `Command` would sort the variables; it does everything else.
        let execute = move || {
            // SAFETY: a C string, and lists of C strings with a null pointer at their ends.
            unsafe { libc::execve(path.as_ptr(), arguments.list(), variables.list()) };
            Err(io::Error::last_os_error())
        };
        // SAFETY: `execute` only makes a system call.
        unsafe { child.pre_exec(execute) };
        Ok(child)
    }
}

/// Strings, with the list of them that `execve` takes.
struct Strings {
    _all: Vec<CString>,
    /// Their addresses, and 0.
    list: Vec<usize>,
}

impl Strings {
    fn new(all: Vec<CString>) -> Self {
        let addresses = all.iter().map(|it| it.as_ptr().expose_provenance());
        let list = addresses.chain([0]).collect();
        Self { _all: all, list }
    }

    fn list(&self) -> *const *const c_char {
        self.list.as_ptr().cast()
    }
}

/// Returns the variables of this process, in their order, and those of the agent.
fn variables(library: &Library, settings: &Settings) -> Vec<Vec<u8>> {
    const PRELOAD: &[u8] = b"LD_PRELOAD=";
    let mut preload = PRELOAD.to_vec();
    preload.extend(library.path().as_os_str().as_encoded_bytes());
    let asan = format!("{}=", fgraph_protocol::ASAN_VARIABLE).into_bytes();
    let option = fgraph_protocol::ASAN_OPTION.as_bytes();
    let all = std::env::vars_os();
    let mut variables: Vec<Vec<u8>> = all
        .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
        .collect();
    match variables.iter_mut().find(|it| it.starts_with(PRELOAD)) {
        Some(known) => {
            let rest = known.split_off(PRELOAD.len());
            preload.push(b':');
            preload.extend(rest);
            *known = preload;
        }
        None => variables.push(preload),
    }
    match variables.iter_mut().find(|it| it.starts_with(&asan)) {
        Some(known) => {
            known.push(b':');
            known.extend(option);
        }
        None => variables.push([&asan, option].concat()),
    }
    variables.push(format!("{}={}", fgraph_protocol::VARIABLE, settings.to_value()).into_bytes());
    variables
}
