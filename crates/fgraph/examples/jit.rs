//! A small JIT compiler that says which of its functions take how long.
//!
//! It assembles three functions into memory of its own, adds them to what fgraph can trace, runs
//! them, and prints how often each was called and how much time it took without what it called:
//!
//! ```text
//! cargo run --release --example jit -- 24
//! ```

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fgraph::{Entry, FgraphOps, GeneratedFunction, Return, UnregisterError, add_functions};

/// A function that takes a number and gives one.
type Compiled = extern "C" fn(u64) -> u64;

/// Puts machine code together.
#[derive(Default)]
struct Assembler {
    code: Vec<u8>,
    /// Name, start, and end of each function.
    functions: Vec<(&'static str, usize, usize)>,
}

impl Assembler {
    /// Assembles a function, at a multiple of 16, and gives its start.
    fn function(&mut self, name: &'static str, body: impl FnOnce(&mut Self, usize)) -> usize {
        // Breakpoints between functions.
        self.code.resize(self.code.len().next_multiple_of(16), 0xcc);
        let start = self.code.len();
        body(self, start);
        self.functions.push((name, start, self.code.len()));
        start
    }

    fn emit(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    /// A call of the function at `start`.
    fn call(&mut self, start: usize) {
        self.emit(&[0xe8]);
        let behind = self.code.len() + 4;
        let offset = start.wrapping_sub(behind) as i32;
        self.emit(&offset.to_le_bytes());
    }

    /// A short jump, by its opcode, to `target`.
    fn jump_back(&mut self, opcode: u8, target: usize) {
        let behind = self.code.len() + 2;
        self.emit(&[opcode, target.wrapping_sub(behind) as u8]);
    }

    /// A short jump, by its opcode, to what `land` will say.
    fn jump(&mut self, opcode: u8) -> usize {
        self.emit(&[opcode, 0]);
        self.code.len()
    }

    /// The jump that is behind `jump` leads here.
    fn land(&mut self, jump: usize) {
        self.code[jump - 1] = (self.code.len() - jump) as u8;
    }
}

/// `fibonacci`, `sum`, and `total`, which calls both for each number up to its argument.
fn compile() -> Assembler {
    const JZ: u8 = 0x74;
    const JNZ: u8 = 0x75;
    const JB: u8 = 0x72;
    const JMP: u8 = 0xeb;
    let mut asm = Assembler::default();
    let fibonacci = asm.function("fibonacci", |asm, fibonacci| {
        asm.emit(b"\x48\x89\xf8"); // mov rax, rdi
        asm.emit(b"\x48\x83\xff\x02"); // cmp rdi, 2
        let done = asm.jump(JB);
        asm.emit(b"\x53\x57"); // push rbx; push rdi
        asm.emit(b"\x48\x83\xec\x08"); // sub rsp, 8
        asm.emit(b"\x48\xff\xcf"); // dec rdi
        asm.call(fibonacci);
        asm.emit(b"\x48\x89\xc3"); // mov rbx, rax
        asm.emit(b"\x48\x8b\x7c\x24\x08"); // mov rdi, [rsp + 8]
        asm.emit(b"\x48\x83\xef\x02"); // sub rdi, 2
        asm.call(fibonacci);
        asm.emit(b"\x48\x01\xd8"); // add rax, rbx
        asm.emit(b"\x48\x83\xc4\x08"); // add rsp, 8
        asm.emit(b"\x5f\x5b"); // pop rdi; pop rbx
        asm.land(done);
        asm.emit(b"\xc3"); // ret
    });
    let sum = asm.function("sum", |asm, _| {
        asm.emit(b"\x31\xc0"); // xor eax, eax
        asm.emit(b"\x48\x85\xff"); // test rdi, rdi
        let done = asm.jump(JZ);
        let again = asm.code.len();
        asm.emit(b"\x48\x01\xf8"); // add rax, rdi
        asm.emit(b"\x48\xff\xcf"); // dec rdi
        asm.jump_back(JNZ, again);
        asm.land(done);
        asm.emit(b"\xc3"); // ret
    });
    asm.function("total", |asm, _| {
        asm.emit(b"\x53\x41\x54\x41\x55"); // push rbx; push r12; push r13
        asm.emit(b"\x48\x89\xfb"); // mov rbx, rdi
        asm.emit(b"\x45\x31\xe4"); // xor r12d, r12d
        let again = asm.code.len();
        asm.emit(b"\x48\x85\xdb"); // test rbx, rbx
        let done = asm.jump(JZ);
        for callee in [fibonacci, sum] {
            asm.emit(b"\x48\x89\xdf"); // mov rdi, rbx
            asm.call(callee);
            asm.emit(b"\x49\x01\xc4"); // add r12, rax
        }
        asm.emit(b"\x48\xff\xcb"); // dec rbx
        asm.jump_back(JMP, again);
        asm.land(done);
        asm.emit(b"\x4c\x89\xe0"); // mov rax, r12
        asm.emit(b"\x41\x5d\x41\x5c\x5b\xc3"); // pop r13; pop r12; pop rbx; ret
    });
    asm
}

/// Memory with code in it.
struct Executable {
    start: *mut u8,
    len: usize,
}

impl Executable {
    fn new(code: &[u8]) -> Result<Self, std::io::Error> {
        let len = code.len().next_multiple_of(4096);
        let (rw, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new memory, which is made executable when the code is in it.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), len, rw, flags, -1, 0);
            if start == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            let this = Self {
                start: start.cast(),
                len,
            };
            this.start.copy_from(code.as_ptr(), code.len());
            match libc::mprotect(start, len, libc::PROT_READ | libc::PROT_EXEC) {
                0 => Ok(this),
                _ => Err(std::io::Error::last_os_error()),
            }
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; none of its functions is called or traced any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Times the functions of the JIT.
struct Times {
    /// Address, calls, and nanoseconds of each function.
    functions: Vec<(usize, AtomicU64, AtomicU64)>,
}

impl FgraphOps for Times {
    /// When the call began, and the time of the calls in it.
    type Data = (Instant, Duration);

    fn entry(&self, _call: &mut Entry<'_, Self::Data>) -> Option<Self::Data> {
        Some((Instant::now(), Duration::ZERO))
    }

    fn ret(&self, call: &mut Return<'_, Self::Data>, (began, inside): Self::Data) {
        let time = began.elapsed();
        let address = call.function().address();
        if let Some((_, calls, ns)) = self.functions.iter().find(|(at, ..)| *at == address) {
            calls.fetch_add(1, Ordering::Relaxed);
            let own = time.saturating_sub(inside).as_nanos() as u64;
            ns.fetch_add(own, Ordering::Relaxed);
        }
        if let Some((_, inside)) = call.parent_data_mut() {
            *inside += time;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let n = std::env::args().nth(1).map_or(Ok(20), |arg| arg.parse())?;
    let asm = compile();
    let memory = Executable::new(&asm.code)?;
    let at = |start: usize| memory.start.addr() + start;
    let functions: Vec<_> = asm
        .functions
        .iter()
        .map(|&(name, start, end)| GeneratedFunction {
            name,
            address: at(start),
            size: end - start,
        })
        .collect();
    let total = functions[2].address;
    // SAFETY: the function `total` is there, and its memory stays until the end.
    let total = unsafe { std::mem::transmute::<usize, Compiled>(total) };
    let expected = total(n);

    // SAFETY: these functions were just assembled, by the ABI, in memory that is not written to
    // any more, and stays until they are removed; nobody else calls them.
    let added = unsafe { add_functions("compiled", &functions)? };
    let times = Times {
        functions: functions
            .iter()
            .map(|function| (function.address, AtomicU64::new(0), AtomicU64::new(0)))
            .collect(),
    };
    // SAFETY: the callbacks use the clock and memory that is there already.
    let times = unsafe { fgraph::register(times, ":mod:compiled") }?;
    assert_eq!(times.functions()?.len(), functions.len());
    assert_eq!(total(n), expected);
    let times = times.unregister().map_err(UnregisterError::into_error)?;
    added.remove()?;
    // The functions are what they were.
    assert_eq!(total(n), expected);

    println!("total({n}) = {expected}");
    println!("{:<12}{:>12}{:>16}", "function", "calls", "ns per call");
    let mut calls = Vec::new();
    for (function, (_, count, ns)) in functions.iter().zip(&times.functions) {
        let (count, ns) = (count.load(Ordering::Relaxed), ns.load(Ordering::Relaxed));
        println!("{:<12}{count:>12}{:>16}", function.name, ns / count.max(1));
        calls.push(count);
    }
    assert_eq!(calls, [(1..=n).map(fibonacci_calls).sum(), n, 1]);
    Ok(())
}

/// Returns the number of calls of `fibonacci` in one call.
fn fibonacci_calls(n: u64) -> u64 {
    let (mut before, mut calls) = (1, 1);
    for _ in 1..n {
        (before, calls) = (calls, before + calls + 1);
    }
    calls
}
