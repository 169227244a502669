//! Names of addresses: the functions that contain them, and variables.

use std::borrow::Cow;

use fgraph_trace::names::{ModuleName, Names};
use fgraph_trace::text::escaped;

use crate::text::{file_name, named};

/// Looks up symbols of the modules of processes, traced or not.
///
/// Processes have their [numbers](fgraph_trace::names::process_number).
pub trait Addresses {
    /// Returns the function to which a call returns at an address, and the distance of the address
    /// from its entry; `None` if that is unknown.
    fn function(&mut self, names: &Names, process: u32, address: u64) -> Option<(String, u64)>;

    /// Returns the variable that an address is of, `table.lock [program]`, if a symbol tells it,
    /// without characters that a terminal obeys. Without debug information it is
    /// `table+0x8 [program]`.
    fn variable(&mut self, names: &Names, process: u32, address: u64) -> Option<String>;

    /// Returns the function in generated code that contains an address, as the recording has it.
    fn generated(&mut self, names: &Names, process: u32, address: u64) -> Option<Generated> {
        recorded(names, process, address)
    }

    /// Returns the facts about an address to which a call returns; `None` if there are none.
    fn place<'n>(&mut self, names: &'n Names, process: u32, address: u64) -> Option<Place<'n>> {
        if let Some(module) = module_at(names, process, address) {
            return Some(Place {
                file: file_name(&module.path).into(),
                in_file: address.checked_sub(module.start)?,
                function: self.function(names, process, address),
            });
        }
        // A call may be the last instruction of a function.
        let found = self.generated(names, process, address.checked_sub(1)?)?;
        let distance = address.checked_sub(found.start)?;
        Some(Place {
            file: found.file.into(),
            in_file: distance,
            function: Some((found.name, distance)),
        })
    }

    /// Describes a return address of a process, as far as it is known: `main+0x12 [program]`,
    /// without control characters for a terminal.
    fn at(&mut self, names: &Names, process: u32, address: u64) -> String {
        let Some(place) = self.place(names, process, address) else {
            return format!("{address:#x}");
        };
        let name = match place.function {
            Some((name, distance)) => format!("{name}+{distance:#x}"),
            None => format!("{:#x}", place.in_file),
        };
        escaped(&named(&name, &place.file)).into_owned()
    }

    /// Returns the function that contains a return address, `main [program]`; the address if that
    /// is unknown. Text from the program is in it unescaped.
    fn caller(&mut self, names: &Names, process: u32, address: u64) -> String {
        caller(self.place(names, process, address).as_ref(), address)
    }
}

/// Returns the result of [`Addresses::caller`] for an address with these facts.
#[must_use]
pub fn caller(place: Option<&Place<'_>>, address: u64) -> String {
    match place {
        Some(Place {
            file,
            function: Some((name, _)),
            ..
        }) => named(name, file),
        Some(place) => format!("{}+{:#x}", place.file, place.in_file),
        None => format!("{address:#x}"),
    }
}

/// A function in code that a program has generated.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Its name.
    pub name: String,
    /// The name of the file that tells it.
    pub file: String,
    /// Its first address.
    pub start: u64,
}

/// Returns the function in generated code that contains an address, if the recording has it.
#[must_use]
pub fn recorded(names: &Names, process: u32, address: u64) -> Option<Generated> {
    let (name, file, start) = names.generated(process, address)?;
    Some(Generated {
        name: name.to_owned(),
        file: file.to_owned(),
        start,
    })
}

/// The facts about an address.
#[derive(Clone, Debug)]
pub struct Place<'n> {
    /// The name of the module's file, or of the file with names of generated code.
    pub file: Cow<'n, str>,
    /// The distance of the address from the module's first byte.
    pub in_file: u64,
    /// The function, and the distance of the address from its entry.
    pub function: Option<(String, u64)>,
}

/// Returns the module that contains an address of a process; a child inherits its parent's. Returns
/// the smallest of several, because a file may be mapped elsewhere again.
#[must_use]
pub fn module_at(names: &Names, process: u32, address: u64) -> Option<&ModuleName> {
    let is_in = |it: &&ModuleName| (it.start..it.end).contains(&address);
    let here = names.modules().iter().filter(is_in);
    here.min_by_key(|it| (it.process != process, it.end - it.start))
}

/// Returns true if an address is of the library that the command `fgraph` loads into programs.
#[must_use]
pub fn is_of_agent(names: &Names, process: u32, address: u64) -> bool {
    let module = module_at(names, process, address);
    module.is_some_and(|module| file_name(&module.path).starts_with("fgraph-agent-"))
}
