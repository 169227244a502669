//! The functions to which IFUNCs resolve.
//!
//! `memcpy` of glibc is one of several functions, whichever suits the processor best. Its symbol
//! stands for a resolver, a function that the dynamic linker calls to get the address of the
//! selected one. The selected function often has no symbol of its own, so it would have no name
//! without a query.
//!
//! The dynamic linker is queried in two ways. `dlsym` returns what other modules get. For calls
//! within the module the linker has written the result into the module's data, which is the only
//! way for IFUNCs that other modules do not see.

// Long strings: C code.

use core::ffi::{CStr, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use crate::process::linker::DlHandle;
use crate::process::modules::{self, LoadedModule};
use fgraph_symbols::elf::{ElfError, ElfFile};
use fgraph_symbols::functions::{Functions, Name};

/// Returns the functions within a module to which its IFUNCs resolve, each by its address relative
/// to the load bias and with a name of its IFUNC, for [`Functions::add_names`].
///
/// This waits for any `dlopen` in progress in another thread, including the constructors that it
/// runs. It runs the resolvers. It must not be called with the lock of the linker's list held.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn targets<'a>(
    module: &LoadedModule,
    file: &ElfFile<'_>,
    functions: &Functions<'a>,
) -> Result<Vec<(u64, Name<'a>)>, ElfError> {
    if functions.ifuncs().next().is_none() {
        return Ok(Vec::new());
    }
    let mut targets = Vec::new();
    for (target, resolver) in modules::resolved(module, file)? {
        if let Some(index) = functions.index_at(resolver) {
            targets.extend(functions.ifuncs_of(index).map(|name| (target, name)));
        }
    }
    if let Some(library) = library(module) {
        for (_, name) in functions.ifuncs() {
            targets.extend(address_of(&library, name).map(|target| (target, name)));
        }
    }
    targets.retain(|(target, _)| module.is_text(*target));
    targets.sort_unstable();
    targets.dedup();
    let relative = |(target, name)| ((target - module.load_bias()) as u64, name);
    Ok(targets.into_iter().map(relative).collect())
}

/// Returns the linker's handle of the module; `None` if it is gone.
fn library(module: &LoadedModule) -> Option<DlHandle> {
    let path = CString::new(module.path().as_os_str().as_bytes()).ok()?;
    DlHandle::loaded((!module.is_program()).then_some(&path))
}

/// Returns the address that other modules get by a name: perhaps in another module.
fn address_of(library: &DlHandle, name: Name<'_>) -> Option<usize> {
    let symbol = CString::new(name.symbol).ok()?;
    let address = match name.version {
        None => library.symbol(&symbol),
        Some(version) => of_version(library, &symbol, version.name)?,
    };
    (!address.is_null()).then_some(address.addr())
}

#[cfg(target_env = "gnu")]
fn of_version(library: &DlHandle, symbol: &CStr, version: &str) -> Option<*mut c_void> {
    let version = CString::new(version).ok()?;
    Some(library.symbol_of_version(symbol, &version))
}

/// Other dynamic linkers know neither versions nor IFUNCs.
#[cfg(not(target_env = "gnu"))]
fn of_version(_library: &DlHandle, _symbol: &CStr, _version: &str) -> Option<*mut c_void> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::modules::tests::{Directory, load};
    use fgraph_needs::{GCC, needs, skip};

    const SOURCE: &str = "
        static int target(int n) { return n + 1; }
        static int (*resolve(void))(int) { return target; }
        int visible(int) __attribute__((ifunc(\"resolve\")));

        static int other(int n) { return n + 2; }
        static int (*resolve_other(void))(int) { return other; }
        __attribute__((visibility(\"hidden\"))) int hidden(int) __attribute__((ifunc(\"resolve_other\")));
        int user(int n) { return hidden(n); }
    ";

    /// Returns the names of the function that has `wanted` among its names.
    fn names_beside(module: &LoadedModule, wanted: &str) -> Vec<String> {
        let file = ElfFile::parse(module.map().unwrap()).unwrap();
        let mut functions = Functions::read(&file, None).unwrap();
        let targets = targets(module, &file, &functions).unwrap();
        functions.add_names(targets);
        let found = (0..functions.len()).find(|&index| {
            let is_target = !functions.get(index).is_resolver;
            is_target && functions.names(index).any(|name| name.symbol == wanted)
        });
        let names = functions.names(found.expect(wanted));
        names.map(|name| name.symbol.to_owned()).collect()
    }

    #[test]
    fn targets_get_the_names_of_their_ifuncs() {
        let directory = Directory::new("ifunc");
        let library = needs!(directory.compile(&GCC, SOURCE, ""));
        let module = load(&library);
        assert_eq!(names_beside(&module, "visible"), ["visible", "target"]);
        assert_eq!(names_beside(&module, "hidden"), ["hidden", "other"]);
    }

    #[test]
    fn the_memcpy_that_runs_is_known() {
        let (loaded, _) = modules::loaded();
        let libc = |m: &&LoadedModule| m.path().to_string_lossy().contains("/libc.so.6");
        let Some(libc) = loaded.iter().find(libc) else {
            return skip!("another C library than GNU's");
        };
        let file = ElfFile::parse(libc.map().unwrap()).unwrap();
        let mut functions = Functions::read(&file, None).unwrap();
        let targets = targets(libc, &file, &functions).unwrap();
        functions.add_names(targets);
        let runs = libc::memcpy as unsafe extern "C" fn(_, _, _) -> _ as usize;
        let index = functions
            .index_at((runs - libc.load_bias()) as u64)
            .unwrap();
        assert!(!functions.get(index).is_resolver);
        let names: Vec<_> = functions
            .names(index)
            .map(|name| name.to_string())
            .collect();
        assert!(
            names.contains(&"memcpy@@GLIBC_2.14".to_owned()),
            "{names:?}"
        );
    }
}
