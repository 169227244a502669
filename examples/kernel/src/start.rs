//! The loader's information: memory, the kernel's own file, and the command line.

use core::ffi::CStr;

use crate::apic;
use crate::heap;
use crate::memory;
use crate::serial::println;
use crate::symbols;

/// Settings from the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The seed of all that is random.
    pub(crate) seed: u64,
    /// Seconds of load.
    pub(crate) seconds: u64,
}

/// The start of PVH's information.
#[repr(C)]
struct Information {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_len: u32,
    reserved: u32,
}

#[repr(C)]
struct Module {
    address: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

#[repr(C)]
struct MemoryRange {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

const MAGIC: u32 = 0x336e_c578;

/// Sets memory, heap, symbols and the local APIC up.
///
/// # Safety
///
/// `information` must be the loader's, the first processor alone, and this the first call.
pub(crate) unsafe fn prepare(information: usize) -> Settings {
    // SAFETY: the loader's tables are below 1 GiB, which the first tables map; nothing of them is
    // used after memory is handed out.
    unsafe {
        let information = &*(memory::direct(information) as *const Information);
        assert!(information.magic == MAGIC, "not started by PVH");
        let text = CStr::from_ptr(memory::direct(information.command_line as usize) as *const _);
        let settings = parse(text.to_str().unwrap_or(""));
        assert!(
            information.module_count > 0,
            "pass the kernel itself by -initrd"
        );
        let module = &*(memory::direct(information.modules as usize) as *const Module);
        let (file, len) = (module.address as usize, module.size as usize);
        let mut end = 0;
        for nth in 0..information.memory_map_len as usize {
            let map = memory::direct(information.memory_map as usize) as *const MemoryRange;
            let range = &*map.add(nth);
            // The range with the image.
            if range.kind == 1 && range.address <= 1 << 20 {
                end = (range.address + range.size) as usize;
            }
        }
        println!("memory: {} MiB, the file has {} KiB", end >> 20, len >> 10);
        // The loader puts the file at the end of memory.
        assert!(file < end && file > 64 << 20, "memory is too small");
        memory::prepare(end, file / memory::PAGE * memory::PAGE);
        heap::prepare();
        apic::prepare();
        let count = symbols::read(file, len);
        println!("symbols: {}", if count == 0 { "none" } else { "read" });
        settings
    }
}

fn parse(text: &str) -> Settings {
    let mut settings = Settings {
        seed: 1,
        seconds: 1,
    };
    for word in text.split_whitespace() {
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        match (name, value.parse()) {
            ("seed", Ok(seed)) => settings.seed = seed,
            ("seconds", Ok(seconds)) => settings.seconds = seconds,
            _ => println!("unknown setting: {word}"),
        }
    }
    settings
}
