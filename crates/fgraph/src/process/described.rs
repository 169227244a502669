//! The dynamic linker's descriptions of modules.
//!
//! # Safety
//!
//! The linker's descriptions ([`libc::dl_phdr_info`]) are true: program headers, name and readable
//! segments are mapped where they say. They are only followed inside a callback of
//! `dl_iterate_phdr`, whose lock keeps every module loaded.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::{fmt, mem, slice};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use libc::{Elf64_Phdr, dl_phdr_info};

use crate::process::loaded_module::{
    Kind, LoadedModule, Segment, VDSO, auxiliary, program_path, read,
};

/// The number of modules of generated functions ever added.
pub(super) static ADDED: AtomicU64 = AtomicU64::new(0);
/// The number of modules of generated functions ever removed.
pub(super) static REMOVED: AtomicU64 = AtomicU64::new(0);

/// The numbers of modules that were loaded and unloaded since the process began.
///
/// Two equal generations mean that the list of modules did not change in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation {
    /// The number of modules ever loaded.
    pub(crate) adds: u64,
    /// The number of modules ever unloaded.
    pub(crate) subs: u64,
}

/// The linker's description of one module, valid during the callback. Most modules are skipped by
/// the address of their headers, so the rest is computed when it is requested.
pub(super) struct Info<'a> {
    pub(super) told: &'a dl_phdr_info,
    pub(super) size: usize,
    pub(super) bias: usize,
    pub(super) headers: &'a [Elf64_Phdr],
}

impl fmt::Debug for Info<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("name", &self.name())
            .field("bias", &self.bias)
            .finish()
    }
}

impl LoadedModule {
    /// Returns the module that the linker describes, unless it is one without a file.
    pub(super) fn new(info: &Info<'_>) -> Option<Self> {
        let loads = info.headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
        let segments: Vec<_> = loads.filter_map(|h| Segment::new(info.bias, h)).collect();
        let vdso = auxiliary(libc::AT_SYSINFO_EHDR);
        let headers = info.headers.as_ptr().addr();
        let (kind, path) = if segments.iter().any(|s| s.range.contains(&vdso)) {
            (Kind::Vdso, PathBuf::from(VDSO))
        } else if headers == auxiliary(libc::AT_PHDR) {
            (Kind::Program, program_path())
        } else {
            (Kind::Library, PathBuf::from(info.name()))
        };
        if path.as_os_str().is_empty() {
            return None;
        }
        let mut this = Self {
            path,
            kind,
            bias: info.bias,
            headers,
            segments,
            headers_and_notes: Default::default(),
            file: None,
            dynamic: info.dynamic(),
            image: &[],
        };
        this.headers_and_notes = [info.header_bytes().to_vec(), info.notes(&this)];
        Some(this)
    }
}

impl<'a> Info<'a> {
    /// # Safety
    ///
    /// `info` must come from `dl_iterate_phdr`, with the size it passed, and be borrowed only until
    /// the callback returns.
    pub(super) unsafe fn new(info: &'a dl_phdr_info, size: usize) -> Self {
        let count = usize::from(info.dlpi_phnum);
        // SAFETY: there are as many headers as the count says.
        let headers = (count > 0).then(|| unsafe { slice::from_raw_parts(info.dlpi_phdr, count) });
        Self {
            told: info,
            size,
            bias: info.dlpi_addr as usize,
            headers: headers.unwrap_or_default(),
        }
    }

    pub(super) fn name(&self) -> &'a OsStr {
        let name = self.told.dlpi_name;
        // SAFETY: a name, if any, is a C string of the linker's, as `new` requires.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
        OsStr::from_bytes(name.unwrap_or_default().to_bytes())
    }

    pub(super) fn generation(&self) -> Generation {
        // A linker without the counters passes a shorter structure.
        let counted = self.size >= mem::offset_of!(dl_phdr_info, dlpi_subs) + size_of::<u64>();
        let [added, removed] = [&ADDED, &REMOVED].map(|count| count.load(Ordering::Relaxed));
        match counted {
            true => Generation {
                adds: self.told.dlpi_adds + added,
                subs: self.told.dlpi_subs + removed,
            },
            false => Generation {
                adds: added,
                subs: removed,
            },
        }
    }

    pub(super) fn dynamic(&self) -> Range<usize> {
        let dynamic = self.headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC);
        dynamic.map_or(0..0, |header| {
            let start = self.bias.wrapping_add(header.p_vaddr as usize);
            start..start.saturating_add(header.p_memsz as usize)
        })
    }

    pub(super) fn header_bytes(&self) -> &[u8] {
        // SAFETY: program headers are plain integers without padding, so they may be read as bytes.
        unsafe { slice::from_raw_parts(self.headers.as_ptr().cast(), size_of_val(self.headers)) }
    }

    /// Returns the bytes of all notes of `module`, which has these program headers.
    pub(super) fn notes(&self, module: &LoadedModule) -> Vec<u8> {
        let notes = self.headers.iter().filter(|h| h.p_type == libc::PT_NOTE);
        let content = |header: &Elf64_Phdr| {
            let start = self.bias.wrapping_add(header.p_vaddr as usize);
            // SAFETY: the module is loaded, since this describes it.
            unsafe {
                read(
                    module,
                    &(start..start.saturating_add(header.p_memsz as usize)),
                )
            }
        };
        notes.filter_map(content).flatten().copied().collect()
    }

    /// Returns true if this is the module, and it was not replaced by that of another file; a file
    /// without a build id and with the same program headers is not told apart.
    pub(super) fn describes(&self, module: &LoadedModule) -> bool {
        let [headers, notes] = &module.headers_and_notes;
        self.bias == module.bias
            && self.headers.as_ptr().addr() == module.headers
            && (module.kind != Kind::Library || self.name() == module.path.as_os_str())
            && self.header_bytes() == headers
            && self.notes(module) == *notes
    }
}

/// Calls `visit` for one module after the other while it returns true, with the linker's lock held.
pub(super) fn for_each_info(mut visit: impl FnMut(&Info<'_>) -> bool) {
    let mut visit: &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    let data: *mut &mut dyn FnMut(&Info<'_>) -> bool = &mut visit;
    // SAFETY: the callback gets `data`, which lives until the end of this function.
    unsafe { libc::dl_iterate_phdr(Some(callback), data.cast()) };
}

pub(super) unsafe extern "C" fn callback(
    info: *mut dl_phdr_info,
    size: usize,
    data: *mut c_void,
) -> c_int {
    let visit: *mut &mut dyn FnMut(&Info<'_>) -> bool = data.cast();
    // SAFETY: `info` and `size` are the linker's, and `data` is that of `for_each_info`, which no
    // other code uses meanwhile.
    let goes_on = unsafe { (*visit)(&Info::new(&*info, size)) };
    c_int::from(!goes_on)
}
