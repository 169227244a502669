//! The modules of the running process: the program, the shared libraries it has loaded, and the
//! vDSO that the kernel gave it.
//!
//! The dynamic linker knows which files are loaded and where; the file on disk has the names and
//! the sections. A [`LoadedModule`] has the former, an [`ElfFile`] the latter. Both are needed to
//! find the function entries that the compiler listed: the file has the place of the list, but only
//! in memory is the list relocated. The vDSO is a file in memory.
//!
//! The file may have been replaced since it was loaded, and the library may be unloaded at any
//! time. So `listed_entries.rs` compares the two before it trusts the file, and does everything
//! with the lock of the dynamic linker's list held.
//!
//! # Safety
//!
//! The unsafe code here rests on four things.
//!
//! - The linker's descriptions of modules ([`libc::dl_phdr_info`]) are true: program headers,
//!   name and readable segments are mapped where they say. They are only followed inside a
//!   callback of `dl_iterate_phdr`, whose lock keeps every module loaded.
//! - The linker has finished relocating a module before its data is read, so constant data does not
//!   change.
//! - An address from a *file* is read only after it was checked to lie in such a segment.
//! - The copy of a file is never freed, and the vDSO is never unmapped.

use core::ffi::c_void;
use core::ptr;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::os::maps::{FileMapping, Protections};
use crate::process::described::{Info, callback, for_each_info};
use crate::process::generated_modules;
use crate::process::linker::{self, DlHandle};
use crate::process::loaded_module::{Kind, MappedFile, read};
use crate::process::loader_event;
use fgraph_symbols::elf::{ElfError, ElfFile};

pub(crate) use crate::process::described::Generation;
pub(crate) use crate::process::loaded_module::LoadedModule;

/// Returns the current generation of modules. This is much cheaper than [`loaded`].
#[must_use]
pub(crate) fn generation() -> Generation {
    let mut generation = Generation::default();
    for_each_info(|info| {
        generation = info.generation();
        false
    });
    generation
}

/// Runs `work` with the linker's lock held, and passes it the generation of modules. Meanwhile no
/// module is loaded or unloaded.
///
/// `work` must not call the linker: `dlsym` and similar functions take another lock, which threads
/// that load and unload take before this one.
pub(crate) fn while_locked<R>(work: impl FnOnce(Generation) -> R) -> R {
    let mut work = Some(work);
    let mut result = None;
    for_each_info(|info| {
        result = work.take().map(|work| work(info.generation()));
        false
    });
    result.expect("the program itself is listed")
}

/// Runs `work` with the linker's lock held if `module` is loaded, otherwise returns `None`. As in
/// [`while_locked`], `work` must not call the linker.
pub(crate) fn while_listed<R>(module: &LoadedModule, work: impl FnOnce() -> R) -> Option<R> {
    while_locked(|_| is_described(module).then(work))
}

/// Returns true if a module is loaded, from the same file. The linker's lock may be held.
pub(crate) fn is_present(module: &LoadedModule) -> bool {
    let id = || FileMapping::at(module.headers).map(|mapping| mapping.file);
    let is_it = |file: &MappedFile| id().as_ref() == Some(&file.id);
    is_described(module) && module.file.as_ref().is_none_or(is_it)
}

/// Returns true if the linker [describes](Info::describes) a module.
fn is_described(module: &LoadedModule) -> bool {
    if module.kind == Kind::Generated {
        return generated_modules::has(module);
    }
    let mut is_described = false;
    for_each_info(|info| {
        is_described = info.describes(module);
        !is_described
    });
    is_described
}

/// Runs `work` while `module` cannot be unloaded; `None` if it is gone. Other modules may be loaded
/// and unloaded meanwhile.
///
/// This waits for any `dlopen` in progress in another thread, including the constructors that it
/// runs. A thread that is itself in a `dlopen` keeps the linker's lock, like [`while_listed`]; so
/// does one whose module cannot be found by its path.
pub(crate) fn while_present<R>(module: &LoadedModule, work: impl FnOnce() -> R) -> Option<R> {
    if loader_event::is_loading() {
        return while_listed(module, work);
    }
    let path = CString::new(module.path.as_os_str().as_bytes()).ok();
    // The program and the vDSO are never unloaded.
    let handle = match module.kind {
        Kind::Library => path.and_then(|path| DlHandle::loaded(Some(&path)).map(Some)),
        Kind::Program | Kind::Vdso | Kind::Generated => Some(None),
    };
    match handle {
        Some(_handle) => is_present(module).then(work),
        // It cannot be found by its path.
        None => while_listed(module, work),
    }
}

/// Returns all modules with a file, the program first, and the vDSO, with their generation.
#[must_use]
pub(crate) fn loaded() -> (Vec<LoadedModule>, Generation) {
    while_locked(|generation| {
        let mut modules = Vec::new();
        for_each_info(|info| {
            modules.extend(LoadedModule::new(info));
            true
        });
        let mut maps = None;
        for module in &mut modules {
            module.identify(&mut maps);
        }
        modules.extend(generated_modules::all());
        (modules, generation)
    })
}

/// The result of comparing known modules with the loaded ones.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// For each known module, true if it is certainly still loaded.
    pub(crate) stay: Vec<bool>,
    /// The modules that are not certainly known, as in [`loaded`].
    pub(crate) others: Vec<LoadedModule>,
}

/// Compares the loaded modules with the known ones. Unless `may_be_gone`, none of these was
/// unloaded. Call it with the linker's lock held.
pub(crate) fn compare(known: &[&LoadedModule], may_be_gone: bool) -> Comparison {
    let mut by_key: Vec<_> = known
        .iter()
        .zip(0..)
        .map(|(known, at)| (known.key(), at))
        .collect();
    by_key.sort_unstable();
    let find = |key| {
        let found = by_key.binary_search_by_key(&key, |&(key, _)| key);
        found.ok().map(|at| by_key[at].1)
    };
    let mut stay = vec![false; known.len()];
    let mut others = Vec::new();
    for_each_info(|info| {
        // For a library without a build id, the file must be checked.
        let is_it =
            |known: &LoadedModule| !may_be_gone || known.file.is_none() && info.describes(known);
        match find(info.headers.as_ptr().addr()) {
            Some(at) if is_it(known[at]) => stay[at] = true,
            _ => others.extend(LoadedModule::new(info)),
        }
        true
    });
    let mut maps = None;
    for module in &mut others {
        module.identify(&mut maps);
    }
    for module in generated_modules::all() {
        match find(module.key()) {
            Some(at) if known[at].is(&module) => stay[at] = true,
            _ => others.push(module),
        }
    }
    Comparison { stay, others }
}

/// Returns the current protection of the process's memory. If `/proc` cannot be read, it comes from
/// the program headers of all modules.
pub(crate) fn protections() -> Protections {
    Protections::now(loaded().0.iter().flat_map(LoadedModule::segments))
}

/// Returns the current protection of a module's memory. If it is only available for all memory at
/// once, it is stored in `all`.
pub(crate) fn protections_of(
    module: &LoadedModule,
    all: &mut Option<Arc<Protections>>,
) -> Arc<Protections> {
    let mut segments: Vec<_> = module.segments().map(|(range, _)| range).collect();
    segments.sort_unstable_by_key(|range| range.start);
    match Protections::within(segments.into_iter()) {
        Some(own) => Arc::new(own),
        None => all.get_or_insert_with(|| Arc::new(protections())).clone(),
    }
}

/// Returns the functions that the linker found for the module's own calls of IFUNCs, each with its
/// resolver.
///
/// Like `listed_entries`, this waits for any `dlopen`.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn resolved(
    module: &LoadedModule,
    file: &ElfFile<'_>,
) -> Result<Vec<(usize, u64)>, ElfError> {
    if module.kind == Kind::Generated {
        return Ok(Vec::new());
    }
    when_relocated(module, file, || {
        let target = |(slot, resolver): (u64, u64)| {
            let start = module.bias.wrapping_add(slot as usize);
            let slot: *const usize = ptr::with_exposed_provenance(start);
            let is_slot = slot.is_aligned() && module.is_readable(&(start..start.checked_add(8)?));
            // SAFETY: a readable segment of a module that stays loaded meanwhile. Volatile, since a
            // damaged file may name a place that is being written.
            is_slot.then(|| (unsafe { slot.read_volatile() }, resolver))
        };
        file.irelative().filter_map(target).collect()
    })
}

/// Returns the result of `read`, which runs when the module is loaded and relocated, with the
/// linker's lock held.
///
/// # Errors
///
/// Fails if the module was unloaded, or if `file` is not the file from which it was loaded.
pub(crate) fn when_relocated<R>(
    module: &LoadedModule,
    file: &ElfFile<'_>,
    read: impl Fn() -> R,
) -> Result<R, ElfError> {
    loop {
        let relocated = await_relocation();
        let mut result = Some(Err(ElfError::Unloaded));
        for_each_info(|info| {
            if info.generation().adds != relocated.adds {
                result = None;
            } else if !info.describes(module) {
                return true;
            } else if is_loaded_from(module, info, file) {
                result = Some(Ok(read()));
            } else {
                result = Some(Err(ElfError::NotTheLoadedFile));
            }
            false
        });
        if let Some(result) = result {
            return result;
        }
    }
}

/// Checks that a module is loaded, and from that file.
///
/// # Errors
///
/// Fails if it is not.
pub(crate) fn check(module: &LoadedModule, file: &ElfFile<'_>) -> Result<(), ElfError> {
    if module.kind == Kind::Generated && generated_modules::has(module) {
        return Ok(());
    }
    let mut result = Err(ElfError::Unloaded);
    for_each_info(|info| {
        let found = info.describes(module);
        if found {
            result = if is_loaded_from(module, info, file) {
                Ok(())
            } else {
                Err(ElfError::NotTheLoadedFile)
            };
        }
        !found
    });
    result
}

/// Waits until all modules of a generation are relocated, and returns that generation.
///
/// A module is listed as soon as it is mapped, and relocated afterwards under another lock, so
/// without this its list of entries could be empty or incomplete. `dladdr` takes that other lock
/// and has no effect except its result.
fn await_relocation() -> Generation {
    let generation = generation();
    let _ = linker::module_of(callback as *const c_void);
    generation
}

/// Returns true if the module was loaded from the file: their program headers are the same, and so
/// are their notes, which include the build id.
fn is_loaded_from(module: &LoadedModule, info: &Info<'_>, file: &ElfFile<'_>) -> bool {
    let same_note = |(address, content): (u64, &[u8])| {
        let start = module.bias.wrapping_add(address as usize);
        let range = start..start.saturating_add(content.len());
        // SAFETY: the module is loaded, since `info` describes it.
        unsafe { read(module, &range) }.is_none_or(|loaded| loaded == content)
    };
    file.program_headers() == info.header_bytes() && file.notes().all(same_note)
}

#[cfg(test)]
pub(crate) mod tests;
