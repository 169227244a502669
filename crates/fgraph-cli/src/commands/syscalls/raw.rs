//! Formats system calls like Akaros' `kptrace`.

use fgraph_tracers::syscalls::{SystemCall, known_name};

use super::signatures::{self, Kind, Memory};

/// Returns the words of a call, its times, and its path or data.
pub(super) fn line(call: &SystemCall) -> String {
    let stamp = |time: u64| format!("[{:>6}.{:09}]", time / 1_000_000_000, time % 1_000_000_000);
    let name = known_name(call.number).unwrap_or("?");
    let words = call.args.map(|word| format!("{word:#x}")).join(", ");
    let mut line = stamp(call.entered);
    if let Some((left, _)) = call.end {
        line += &format!("-{}", stamp(left));
    }
    line += &format!(" Syscall {:>3} ({name:>12}):({words})", call.number);
    if let Some((_, result)) = call.end {
        line += &format!(" ret: {result:#x}");
    }
    let (process, core, thread) = (call.process, call.core, call.thread);
    let data = data(call, name).escape_ascii();
    line + &format!(" proc: {process} core: {core} thread: {thread} data: {data}")
}

/// Returns the first path or data of a call; at most as much data as was read or written.
fn data<'c>(call: &'c SystemCall, name: &str) -> &'c [u8] {
    let kinds = signatures::find(name).map_or(&[][..], |(kinds, _)| kinds);
    let shown = call.pieces.iter().find_map(|piece| {
        let Kind::Memory(memory) = kinds.get(piece.arg)? else {
            return None;
        };
        let len = match memory {
            Memory::Path => piece.bytes.len(),
            Memory::Data | Memory::Bytes => {
                let (_, result) = call.end?;
                usize::try_from(result).unwrap_or(0)
            }
            _ => return None,
        };
        Some(piece.bytes.get(..len).unwrap_or(&piece.bytes))
    });
    shown.unwrap_or_default()
}
