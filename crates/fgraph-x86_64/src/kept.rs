//! Which functions have a caller that counts on more registers than the ABI promises.
//!
//! gcc lets a caller that knows the code of a function keep values in registers which that function leaves
//! alone (`-fipa-ra`), and people who write assembly agree on whatever they like. Both need a *direct* call
//! within a module: of a function in another module, or behind a pointer, no compiler knows the code. So
//! it can be seen in a module's code which functions are called like that: a register that is no result is
//! read behind the call before anything is written to it. All others may be traced as the ABI
//! says, which is much cheaper.
//!
//! ```text
//!     caller                   g                    f
//!       mov r8, rdi              ...                  ret     what r8 holds is read in the caller: so f
//!       call g     ------->      call f   ------->            and g must leave it alone, and g needs it
//!       add rax, r8    <---      ret                          behind its call of f, although it ends there
//! ```
//!
//! The code is cut into blocks, and for each block we find by iteration
//!
//! - what it may write to, and everything that is reached from there before a return (`writes`);
//! - which registers are read from there on before they are written, up to a return (`needs`);
//! - which registers are read after the return by those who called (`wanted`): at a call, what is read
//!   behind it becomes wanted of the called function, and all that is reached there, by jumps to other functions
//!   too, has it wanted. With this at returns, what is read is found a second time (`keeps`).
//!
//! # What is not seen
//!
//! What is behind a jump through a table, or what a function in another module takes as arguments, is not
//! seen. All registers, or all that may carry arguments, are taken to be read *there*, which would be the end
//! of it, since nearly every function calls some other module. But such a guess only holds for gcc's
//! callers, and gcc counts as written what it sees written in the body of a function or of those it
//! calls, and *everything* as soon as there is a call whose target it does not know. So a guess
//! is dropped at a call of a function that writes to the register. (gcc looks at every instruction that it has
//! emitted, also on paths that never return; what we find by following branches is a part of that, so
//! we never drop more than gcc does.) What is read by an instruction that we see is never dropped like this,
//! because it may be assembly, whose functions return what they like where they like.
//!
//! Callers with a call whose effect is not that of a C function and not of the code that it leads to are not
//! understood: pointers to functions of the Microsoft ABI are the only ones known, in functions that are called
//! by others which keep rsi, rdi or xmm6 to 15.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register,
};

use crate::nop::ENDBR64;

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Where it is.
    pub address: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Functions of which more is expected than the ABI says.
#[derive(Debug, Default)]
pub struct Kept {
    /// Their addresses, in order.
    functions: Vec<usize>,
}

impl Kept {
    /// Looks at all the code of a module that may be gcc's or written by hand.
    ///
    /// `code` are stretches in order and apart from each other; `functions` are the addresses where
    /// functions start, in order, and `parts` those of what has unwind information of its own: functions,
    /// too, and parts of them that stand elsewhere. A stretch that is left out may call what it likes: it keeps to the ABI.
    #[must_use]
    pub fn find(code: &[Code<'_>], functions: &[usize], parts: &[usize]) -> Self {
        let Some(graph) = Graph::new(code, functions, parts) else {
            return Self {
                functions: functions.to_vec(),
            };
        };
        let written = graph.written();
        let mut needs = vec![0; graph.blocks.len()];
        let mut open = Marks::full(graph.blocks.len());
        graph.needs(&mut open, &mut needs, &written, None);
        let wanted = graph.wanted(&written, &needs);
        let is_kept = |&&function: &&usize| {
            // Compilers give every function unwind information. This one is assembly, and may be called through
            // pointers as it likes.
            if parts.binary_search(&function).is_err() {
                return true;
            }
            let Some(first) = graph.block_at(function) else {
                return false;
            };
            let behind_pad = graph
                .is_pad(first)
                .then(|| graph.block_at(function + ENDBR64.len()));
            let wanted = |block: usize| wanted[block];
            needs[first] & NOT_PASSED != 0
                || wanted(first) != 0
                || behind_pad.flatten().is_some_and(|next| wanted(next) != 0)
        };
        Self {
            functions: functions.iter().filter(is_kept).copied().collect(),
        }
    }

    /// Whether more than the ABI is expected of the function at `address`.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        self.functions.binary_search(&address).is_ok()
    }

    /// How many functions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// The prefix of instructions that are atomic.
const LOCK: u8 = 0xf0;

/// A set of registers that a function may change, but for its results (rax, rdx, vectors 0 and 1), which
/// are always put back. Each stands twice:
///
/// ```text
///   bit 0    7    14        28        42       58      66   96   103       117     118       119
///       +----+----+---------+---------+--------+-------+----+----+---------+-------+---------+
///       | lo | hi | lowest  | above   | vector | op-   |    | as a whole, by guess           |
///       | of general | 128 of  | that    | 16-31  | masks |    | general, vectors 2-15, 16-31, k |
///       +----+----+---------+---------+--------+-------+----+----+---------+-------+---------+
///         seen to be read                                    taken to be read
/// ```
type Set = u128;

/// The general registers, by their position in the set.
const GENERAL: [Register; 7] = [
    Register::RDI,
    Register::RSI,
    Register::RCX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];
const LOW_BYTE: u32 = 0;
const REST: u32 = 7;
/// Of vectors 2 to 15.
const VECTOR: u32 = 14;
const UPPER: u32 = 28;
const HIGH_VECTOR: u32 = 42;
const OPMASK: u32 = 58;
/// Where the guesses begin.
const GUESS: u32 = 96;
const GUESS_VECTOR: u32 = GUESS + 7;
const GUESS_BEYOND: u32 = GUESS_VECTOR + 14;
const SEEN: Set = (1 << (OPMASK + 8)) - 1;
const GUESSED: Set = ((1 << (GUESS_BEYOND + 1 - GUESS)) - 1) << GUESS;
/// What may carry arguments: all general ones but r11, and vectors 2 to 7.
const ARGUMENTS: Set = 0b11_1111 << GUESS | 0b11_1111 << GUESS_VECTOR;
/// What the system may take: all general ones but rcx and r11.
const SYSTEM_ARGUMENTS: Set = 0b11_1011 << GUESS;
/// What does not survive until the entry of a function that is traced as the ABI says: r11, vectors 8 to
/// 15, and what is AVX-512's alone.
const NOT_PASSED: Set = 1 << (LOW_BYTE + 6)
    | 1 << (REST + 6)
    | 0xff << (VECTOR + 6)
    | 0xff << (UPPER + 6)
    | 0xff_ffff << HIGH_VECTOR;

/// The bits of a register, of those seen to be read; and whether a write to it that is no wider leaves
/// nothing of the whole register.
fn bits(register: Register) -> (Set, bool) {
    let (full, width) = (register.full_register(), register.size());
    if let Some(at) = GENERAL.iter().position(|&general| general == full) {
        let (low, rest) = (1 << (LOW_BYTE + at as u32), 1 << (REST + at as u32));
        return match width {
            1 if register == Register::CH => (rest, false),
            1 => (low, false),
            2 => (low | rest, false),
            _ => (low | rest, true),
        };
    }
    let number = register.number() as u32;
    if register.is_k() {
        return (1 << (OPMASK + number), false);
    }
    if !register.is_vector_register() {
        return (0, false);
    }
    match number {
        0 | 1 => (0, false),
        2..=15 => {
            let (low, upper) = (1 << (VECTOR + number - 2), 1 << (UPPER + number - 2));
            match width {
                16 => (low, false),
                _ => (low | upper, width == 64),
            }
        }
        _ => (1 << (HIGH_VECTOR + number - 16), false),
    }
}

/// The bit of the same register among those taken to be read.
fn guess(register: Register) -> Set {
    let full = register.full_register();
    if let Some(at) = GENERAL.iter().position(|&general| general == full) {
        return 1 << (GUESS + at as u32);
    }
    match register.number() as u32 {
        number @ 2..=15 if register.is_vector_register() => 1 << (GUESS_VECTOR + number - 2),
        _ => 0,
    }
}

/// The arguments among what is read, taken to be read instead of seen to be.
fn guessed_arguments(needs: Set) -> Set {
    let seen = |at: u32| {
        let bits = match at {
            0..7 => 1 << (LOW_BYTE + at) | 1 << (REST + at),
            _ => 1 << (VECTOR + at - 7) | 1 << (UPPER + at - 7),
        };
        (ARGUMENTS >> (GUESS + at) & 1 != 0 && needs & bits != 0)
            .then_some((bits, 1 << (GUESS + at)))
    };
    let guess = |needs, (bits, guess): (Set, Set)| needs & !bits | guess;
    (0..GUESS_BEYOND - GUESS)
        .filter_map(seen)
        .fold(needs, guess)
}

/// What a run of instructions reads and writes.
#[derive(Clone, Copy, Debug, Default)]
struct Effect {
    /// Read before anything is written there.
    reads: Set,
    /// Written, whatever happens.
    kills: Set,
    /// Written perhaps: guesses.
    writes: Set,
}

impl Effect {
    fn read(&mut self, registers: Set) {
        self.reads |= registers & !self.kills;
    }

    /// Adds an instruction. `is_entry` says whether it is in the first block of a function.
    fn add(
        &mut self,
        instruction: &Instruction,
        is_entry: bool,
        factory: &mut InstructionInfoFactory,
    ) {
        match instruction.mnemonic() {
            // vzeroupper is for gcc no write: what is written is what nobody has anything in.
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Vzeroupper => return,
            Mnemonic::Syscall => self.read(SYSTEM_ARGUMENTS),
            Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Sysenter => {
                self.read(GUESSED);
            }
            Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64 => self.read(SEEN),
            _ => {}
        }
        let weak = weak_reads(instruction, is_entry);
        let info = factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let (access, register) = (used.access(), used.register());
            let reads = matches!(
                access,
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if !reads || weak == Weak::Nothing(register) {
                continue;
            }
            let (seen, _) = bits(register);
            // What is above a byte that has just been written is seldom meant.
            let rest = seen >> REST & 0x7f;
            let above_byte = rest != 0 && seen >> LOW_BYTE & 0x7f & self.kills >> LOW_BYTE != 0;
            if above_byte || weak == Weak::Guess(register) {
                self.read(guess(register));
            } else {
                self.read(seen);
            }
        }
        for used in info.used_registers() {
            let always = matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite);
            if always || matches!(used.access(), OpAccess::CondWrite | OpAccess::ReadCondWrite) {
                self.writes |= guess(used.register());
            }
            if always {
                let (bits, whole) = bits(used.register());
                self.kills |= bits;
                if whole || used.register().is_xmm() {
                    self.kills |= guess(used.register());
                }
            }
        }
    }
}

/// Of which register nothing is read, or not for its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weak {
    Neither,
    /// What is written does not depend on it.
    Nothing(Register),
    /// It is handed on, or what is read stays where it is.
    Guess(Register),
}

fn weak_reads(instruction: &Instruction, is_entry: bool) -> Weak {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let both = instruction.op1_kind() == OpKind::Register;
    match instruction.mnemonic() {
        Mnemonic::Pcmpeqb | Mnemonic::Pcmpeqw | Mnemonic::Pcmpeqd | Mnemonic::Pcmpeqq
            if both && to == from =>
        {
            Weak::Nothing(to)
        }
        Mnemonic::Or if matches!(instruction.try_immediate(1), Ok(all) if all as u32 == u32::MAX) => {
            Weak::Nothing(to)
        }
        Mnemonic::Sbb if both && to == from => Weak::Nothing(to),
        // Room on the stack is made like this.
        Mnemonic::Push => Weak::Guess(to),
        Mnemonic::Mov
            if is_entry
                && instruction.op0_kind() == OpKind::Memory
                && matches!(instruction.memory_base(), Register::RSP | Register::RBP) =>
        {
            Weak::Guess(from)
        }
        Mnemonic::Bsf
        | Mnemonic::Bsr
        | Mnemonic::Movhlps
        | Mnemonic::Movss
        | Mnemonic::Movsd
        | Mnemonic::Cvtsi2ss
        | Mnemonic::Cvtsi2sd
        | Mnemonic::Cvtss2sd
        | Mnemonic::Cvtsd2ss
        | Mnemonic::Sqrtss
        | Mnemonic::Sqrtsd
        | Mnemonic::Roundss
        | Mnemonic::Roundsd
            if to != from =>
        {
            Weak::Guess(to)
        }
        _ => Weak::Neither,
    }
}

/// How a block ends. Targets are indices of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The next block follows.
    Falls,
    Jumps(u32),
    /// To the target or to the next block.
    Branches(u32),
    Calls(u32),
    /// A function that the caller does not know.
    CallsUnknown,
    JumpsUnknown,
    /// A call that changes nothing but rax, for all we know: how thread-local variables may be found.
    CallsResolver,
    /// To a place in the same function, or to another function.
    JumpsByTable,
    Returns,
    /// Does not go on.
    Stops,
    /// Nobody knows.
    Unclear,
}

impl End {
    /// The block that it leads to.
    fn target(self) -> Option<u32> {
        match self {
            Self::Jumps(to) | Self::Branches(to) | Self::Calls(to) => Some(to),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Block {
    /// Its place, see `Graph::place`.
    place: u32,
    /// Starts with `endbr64`.
    is_pad: bool,
    /// Looks whether there are vector arguments.
    asks_al: bool,
    /// Is nothing but NOPs.
    is_padding: bool,
    effect: Effect,
    end: End,
}

/// The blocks of all code.
struct Graph<'a> {
    code: &'a [Code<'a>],
    /// The place of each stretch, and where the last ends.
    places: Vec<u32>,
    blocks: Vec<Block>,
    /// The blocks that functions begin with.
    functions: Vec<u32>,
    /// Those, and the blocks that parts of functions begin with.
    parts: Vec<u32>,
    /// The blocks that jump to, branch to or call each block, one after the other.
    sources: Vec<u32>,
    /// Where those of each block begin.
    source_starts: Vec<u32>,
}

/// What code writes to before it returns.
struct Written {
    /// By block.
    may: Vec<Set>,
    /// Whether it surely comes by a call of something unknown.
    calls: Vec<bool>,
    /// Whether it may return.
    returns: Vec<bool>,
}

/// Blocks of a part that only jumps by table lead to.
struct Strays {
    /// The part, if we see what leads to other blocks of it; if not, it may be of any function.
    part: Option<Range<usize>>,
    blocks: Vec<usize>,
}

/// One bit for each place, or for each block.
struct Marks(Vec<u64>);

impl Marks {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn set(&mut self, place: u32) {
        self.0[place as usize / 64] |= 1 << (place % 64);
    }

    fn full(len: usize) -> Self {
        let mut marks = Self(vec![u64::MAX; len.div_ceil(64)]);
        if let Some(last) = marks.0.last_mut().filter(|_| !len.is_multiple_of(64)) {
            *last = (1 << (len % 64)) - 1;
        }
        marks
    }

    fn has(&self, place: u32) -> bool {
        self.0[place as usize / 64] >> (place % 64) & 1 != 0
    }
}

/// Calls `each` with every instruction of some code, and where it is. `None` are bytes that are none.
fn each_instruction(
    bytes: &[u8],
    address: usize,
    mut each: impl FnMut(usize, Option<&Instruction>),
) {
    let mut decoder = Decoder::with_ip(64, bytes, address as u64, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            each(at, None);
            if decoder.set_position(at + 1).is_err() {
                break;
            }
            decoder.set_ip((address + at + 1) as u64);
        } else {
            each(at, Some(&instruction));
        }
    }
}

/// The target of a direct branch.
fn direct(instruction: &Instruction) -> Option<usize> {
    let is_near = match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            matches!(instruction.op0_kind(), OpKind::NearBranch64)
        }
        FlowControl::Call => instruction.is_call_near(),
        FlowControl::XbeginXabortXend => instruction.mnemonic() == Mnemonic::Xbegin,
        _ => false,
    };
    is_near.then(|| instruction.near_branch_target() as usize)
}

impl<'a> Graph<'a> {
    /// Cuts code into blocks; `None` if there is more than can be numbered.
    fn new(code: &'a [Code<'a>], functions: &[usize], parts: &[usize]) -> Option<Self> {
        let mut starts_of_parts = [functions, parts].concat();
        starts_of_parts.sort_unstable();
        starts_of_parts.dedup();
        let parts = &starts_of_parts[..];
        let mut places = vec![0];
        for stretch in code {
            // One more, so that the end of a stretch is not the start of the next.
            let end = *places.last()? as usize + stretch.bytes.len() + 1;
            places.push(i32::try_from(end).ok()?.cast_unsigned());
        }
        let mut graph = Self {
            code,
            places,
            blocks: Vec::new(),
            functions: Vec::new(),
            parts: Vec::new(),
            sources: Vec::new(),
            source_starts: Vec::new(),
        };
        let len = *graph.places.last()?;
        let (mut starts, mut leaders) = (Marks::new(len as usize), Marks::new(len as usize));
        let mut entries = Marks::new(len as usize);
        for &function in parts {
            if let Some(place) = graph.place(function) {
                leaders.set(place);
                entries.set(place);
            }
        }
        for (stretch, piece) in graph.pieces(parts) {
            each_instruction(
                &stretch.bytes[piece.clone()],
                stretch.address + piece.start,
                |at, instruction| {
                    let address = stretch.address + piece.start + at;
                    let Some(place) = graph.place(address) else {
                        return;
                    };
                    let Some(instruction) = instruction else {
                        leaders.set(place);
                        return;
                    };
                    starts.set(place);
                    for to in direct(instruction)
                        .into_iter()
                        .flat_map(|to| graph.starts_for(to))
                    {
                        leaders.set(to);
                        if instruction.flow_control() == FlowControl::Call {
                            entries.set(to);
                        }
                    }
                    if instruction.mnemonic() == Mnemonic::Endbr64
                        && let Some(next) = graph.place(address + instruction.len())
                    {
                        leaders.set(next);
                    }
                },
            );
        }
        graph.blocks = graph.cut(parts, &starts, &leaders, &entries);
        let roots = functions.iter().filter_map(|&at| graph.block_at(at));
        graph.functions = roots.map(|block| block as u32).collect();
        let roots = parts.iter().filter_map(|&at| graph.block_at(at));
        graph.parts = roots.map(|block| block as u32).collect();
        graph.end_functions();
        graph.link_sources();
        Some(graph)
    }

    /// The number of an address among all that there is code at.
    fn place(&self, address: usize) -> Option<u32> {
        let next = self
            .code
            .partition_point(|stretch| stretch.address <= address);
        let stretch = self.code.get(next.checked_sub(1)?)?;
        let offset = address - stretch.address;
        (offset < stretch.bytes.len()).then(|| self.places[next - 1] + offset as u32)
    }

    /// Where the instruction may start that a branch to an address leads to: there, or at the `lock` before,
    /// which is jumped over where there is only one thread.
    fn starts_for(&self, address: usize) -> impl Iterator<Item = u32> + use<> {
        let place = self.place(address);
        let lock = self
            .place(address.wrapping_sub(1))
            .filter(|_| place.is_some());
        let is_lock = |place: &u32| self.byte(*place) == Some(LOCK);
        place.into_iter().chain(lock.filter(is_lock))
    }

    fn byte(&self, place: u32) -> Option<u8> {
        let at = self
            .places
            .partition_point(|&start| start <= place)
            .checked_sub(1)?;
        let offset = place - self.places[at];
        self.code.get(at)?.bytes.get(offset as usize).copied()
    }

    /// The pieces of the code that are decoded from their start on.
    fn pieces<'b>(
        &'b self,
        functions: &'b [usize],
    ) -> impl Iterator<Item = (&'a Code<'a>, Range<usize>)> + use<'a, 'b> {
        self.code.iter().flat_map(move |stretch| {
            let end = stretch.address + stretch.bytes.len();
            let first = functions.partition_point(|&at| at <= stretch.address);
            let behind = functions.partition_point(|&at| at < end);
            let inner = functions.get(first..behind).unwrap_or_default();
            let starts = core::iter::once(stretch.address).chain(inner.iter().copied());
            let ends = inner.iter().copied().chain([end]);
            let piece =
                move |(start, end)| (stretch, start - stretch.address..end - stretch.address);
            starts.zip(ends).map(piece)
        })
    }

    /// Makes the blocks. Their targets are places at first, and then blocks.
    fn cut(&self, parts: &[usize], starts: &Marks, leaders: &Marks, entries: &Marks) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut factory = InstructionInfoFactory::new();
        let mut is_open = false;
        let mut next_place = 0;
        for (stretch, piece) in self.pieces(parts) {
            each_instruction(
                &stretch.bytes[piece.clone()],
                stretch.address + piece.start,
                |at, instruction| {
                    let address = stretch.address + piece.start + at;
                    let Some(place) = self.place(address) else {
                        return;
                    };
                    if is_open && place != next_place {
                        // The end of a stretch.
                        if let Some(block) = blocks.last_mut() {
                            block.end = End::Unclear;
                        }
                        is_open = false;
                    }
                    if !is_open || leaders.has(place) {
                        blocks.push(Block {
                            place,
                            is_pad: instruction.is_some_and(|i| i.mnemonic() == Mnemonic::Endbr64),
                            effect: Effect::default(),
                            asks_al: false,
                            is_padding: true,
                            end: End::Falls,
                        });
                        is_open = true;
                    }
                    let Some(block) = blocks.last_mut() else {
                        return;
                    };
                    let Some(instruction) = instruction else {
                        (block.end, is_open) = (End::Unclear, false);
                        next_place = place + 1;
                        return;
                    };
                    next_place = place + instruction.len() as u32;
                    block
                        .effect
                        .add(instruction, entries.has(block.place), &mut factory);
                    block.is_padding &= instruction.mnemonic() == Mnemonic::Nop;
                    block.asks_al |= instruction.mnemonic() == Mnemonic::Test
                        && instruction.op0_register() == Register::AL
                        && instruction.op1_kind() == OpKind::Register
                        && instruction.op1_register() == Register::AL;
                    block.end = self.end(instruction, starts);
                    is_open = block.end == End::Falls;
                },
            );
        }
        if let Some(last) = blocks.last_mut()
            && matches!(
                last.end,
                End::Falls | End::Branches(_) | End::Calls(_) | End::CallsUnknown
            )
        {
            last.end = End::Unclear;
        }
        let index = |place: u32| blocks.binary_search_by_key(&place, |block| block.place);
        let ends: Vec<End> = (0..blocks.len())
            .map(|at| {
                let to = |place| index(place).map_or(u32::MAX, |block| block as u32);
                let end = match blocks[at].end {
                    End::Jumps(place) => End::Jumps(to(place)),
                    End::Branches(place) => End::Branches(to(place)),
                    End::Calls(place) => End::Calls(to(place)),
                    end => end,
                };
                match end {
                    End::Jumps(u32::MAX) | End::Branches(u32::MAX) | End::Calls(u32::MAX) => {
                        End::Unclear
                    }
                    end => end,
                }
            })
            .collect();
        for (block, end) in blocks.iter_mut().zip(ends) {
            block.end = end;
        }
        blocks
    }

    /// What an instruction does to the flow of control; `Falls` if nothing.
    fn end(&self, instruction: &Instruction, starts: &Marks) -> End {
        if let Some(to) = direct(instruction) {
            let place = self.place(to);
            let start = self.starts_for(to).find(|&start| starts.has(start));
            if place.is_some() && start.is_none() {
                return End::Unclear;
            }
            let place = start;
            return match (instruction.flow_control(), place) {
                (FlowControl::Call, Some(place)) => End::Calls(place),
                (FlowControl::Call, None) => End::CallsUnknown,
                (FlowControl::UnconditionalBranch, Some(place)) => End::Jumps(place),
                (FlowControl::UnconditionalBranch, None) => End::JumpsUnknown,
                (_, Some(place)) => End::Branches(place),
                // Perhaps to another function, which is unknown.
                (_, None) => End::Unclear,
            };
        }
        match instruction.flow_control() {
            FlowControl::IndirectBranch => {
                let by_table = instruction.op0_kind() == OpKind::Register
                    || instruction.memory_index() != Register::None;
                if by_table {
                    End::JumpsByTable
                } else {
                    End::JumpsUnknown
                }
            }
            FlowControl::IndirectCall => {
                let is_resolver = instruction.op0_kind() == OpKind::Memory
                    && instruction.memory_base() == Register::RAX
                    && instruction.memory_index() == Register::None
                    && instruction.memory_displacement64() == 0;
                if is_resolver {
                    End::CallsResolver
                } else {
                    End::CallsUnknown
                }
            }
            FlowControl::Return => End::Returns,
            FlowControl::Exception => End::Stops,
            _ if instruction.mnemonic() == Mnemonic::Hlt => End::Stops,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => End::Unclear,
            _ => End::Falls,
        }
    }

    /// A call whose next instruction starts a function, perhaps behind padding, is one that does not return.
    fn end_functions(&mut self) {
        let mut is_start = vec![false; self.blocks.len() + 1];
        for &at in &self.parts {
            is_start[at as usize] = true;
        }
        for block in &self.blocks {
            if let End::Calls(to) = block.end {
                is_start[to as usize] = true;
            }
        }
        for at in (0..self.blocks.len()).rev() {
            let block = &mut self.blocks[at];
            match block.end {
                // Everything behind it is as if it were not there.
                End::Falls if block.is_padding && is_start[at + 1] => {
                    is_start[at] = true;
                    block.end = End::Stops;
                }
                End::Calls(to) if is_start[at + 1] => block.end = End::Jumps(to),
                End::CallsUnknown if is_start[at + 1] => block.end = End::JumpsUnknown,
                _ => {}
            }
        }
    }

    fn link_sources(&mut self) {
        let targets = || {
            let blocks = (0_u32..).zip(&self.blocks);
            blocks.filter_map(|(at, block)| Some((at, block.end.target()?)))
        };
        let mut ends = vec![0; self.blocks.len() + 1];
        for (_, to) in targets() {
            ends[to as usize] += 1;
        }
        let mut all = 0;
        for end in &mut ends {
            all += *end;
            *end = all;
        }
        let mut sources = vec![0; all as usize];
        for (at, to) in targets() {
            ends[to as usize] -= 1;
            sources[ends[to as usize] as usize] = at;
        }
        (self.sources, self.source_starts) = (sources, ends);
    }

    fn block_at(&self, address: usize) -> Option<usize> {
        let place = self.place(address)?;
        self.blocks
            .binary_search_by_key(&place, |block| block.place)
            .ok()
    }

    fn is_pad(&self, block: usize) -> bool {
        self.blocks[block].is_pad
    }

    /// What each block, and what is reached from there, writes to.
    fn written(&self) -> Written {
        let mut may: Vec<Set> = self
            .blocks
            .iter()
            .map(|block| block.effect.writes)
            .collect();
        let mut calls = vec![false; self.blocks.len()];
        self.until_stable(&mut Marks::full(self.blocks.len()), |at| {
            let next = at + 1;
            let (more, calls_now) = match self.blocks[at].end {
                End::Falls => (may[next], calls[next]),
                End::Jumps(to) => (may[to as usize], calls[to as usize]),
                End::Branches(to) => {
                    let to = to as usize;
                    (may[next] | may[to], calls[next] && calls[to])
                }
                End::Calls(to) => {
                    let to = to as usize;
                    (may[next] | may[to], calls[next] || calls[to])
                }
                End::CallsResolver => (may[next], calls[next]),
                End::CallsUnknown | End::JumpsUnknown => (GUESSED, true),
                End::JumpsByTable | End::Returns | End::Stops | End::Unclear => (0, false),
            };
            let changes = more & !may[at] != 0 || calls_now && !calls[at];
            may[at] |= more;
            calls[at] |= calls_now;
            changes
        });
        let mut returns = vec![false; self.blocks.len()];
        self.until_stable(&mut Marks::full(self.blocks.len()), |at| {
            let next = at + 1;
            let now = match self.blocks[at].end {
                End::Falls | End::CallsUnknown | End::CallsResolver => returns[next],
                End::Jumps(to) => returns[to as usize],
                End::Branches(to) => returns[next] || returns[to as usize],
                End::Calls(to) => returns[next] && returns[to as usize],
                End::JumpsUnknown | End::JumpsByTable | End::Returns | End::Unclear => true,
                End::Stops => false,
            };
            core::mem::replace(&mut returns[at], now) != now
        });
        Written {
            may,
            calls,
            returns,
        }
    }

    /// Whether it is the start of a function with a variable number of arguments, which stores
    /// whatever is in the registers for them.
    fn saves_arguments(&self, at: usize) -> bool {
        const VECTORS: Set = 0b11_1111 << VECTOR;
        let block = &self.blocks[at];
        block.asks_al
            && matches!(block.end, End::Branches(_))
            && self.blocks[at + 1].effect.reads & VECTORS == VECTORS
    }

    /// Calls `step` with the open blocks, and with those that lead to one that it has changed, until there are
    /// none.
    fn until_stable(&self, open: &mut Marks, mut step: impl FnMut(usize) -> bool) {
        let mut is_stable = false;
        while !is_stable {
            is_stable = true;
            // Most of what a block depends on is behind it.
            for word in (0..open.0.len()).rev() {
                while open.0[word] != 0 {
                    let bit = open.0[word].ilog2();
                    open.0[word] &= !(1 << bit);
                    let at = word * 64 + bit as usize;
                    if !step(at) {
                        continue;
                    }
                    is_stable = false;
                    if at != 0 {
                        open.set(at as u32 - 1);
                    }
                    let sources = self.source_starts[at]..self.source_starts[at + 1];
                    for &source in &self.sources[sources.start as usize..sources.end as usize] {
                        open.set(source);
                    }
                }
            }
        }
    }

    /// What is read from each block on, before it is written. `wanted` says, by block, what is read after
    /// a return, and by whom it is called: the result of this function without it.
    fn needs(
        &self,
        open: &mut Marks,
        needs: &mut [Set],
        written: &Written,
        wanted: Option<(&[Set], &[Set])>,
    ) {
        self.until_stable(open, |at| {
            let next = at + 1;
            let block = &self.blocks[at];
            let behind = match block.end {
                End::Falls => needs[next],
                End::Jumps(to) => needs[to as usize],
                End::Branches(to) => needs[next] | needs[to as usize],
                End::Calls(to) => {
                    let to = to as usize;
                    let callee = wanted.map_or(needs[to], |(_, needs)| needs[to]);
                    if written.returns[to] {
                        callee | needs[next] & written.survives(to)
                    } else {
                        callee
                    }
                }
                End::CallsResolver => needs[next] | GUESSED,
                End::CallsUnknown | End::JumpsUnknown => ARGUMENTS,
                End::JumpsByTable => GUESSED,
                End::Returns => wanted.map_or(0, |(wanted, _)| wanted[at]),
                End::Stops => 0,
                End::Unclear => SEEN | GUESSED,
            };
            let mut now = block.effect.reads | behind & !block.effect.kills;
            if self.saves_arguments(at) {
                now = guessed_arguments(now);
            }
            let changes = now != needs[at];
            needs[at] = now;
            changes
        });
    }

    /// What is read after each block's function has returned.
    fn wanted(&self, written: &Written, needs: &[Set]) -> Vec<Set> {
        let mut wanted = vec![0; self.blocks.len()];
        let mut marked = vec![0; self.blocks.len()];
        let mut keeps = needs.to_vec();
        let strays = self.strays();
        let (mut open, mut given) = (Marks::new(self.blocks.len()), Vec::new());
        loop {
            self.needs(&mut open, &mut keeps, written, Some((&wanted, needs)));
            let mut is_stable = true;
            for (at, block) in self.blocks.iter().enumerate() {
                let End::Calls(to) = block.end else { continue };
                let to = to as usize;
                if !written.returns[to] {
                    continue;
                }
                let more = keeps[at + 1] & (SEEN | !written.may[to]);
                marked[to] |= more;
                if written.may[to] != GUESSED && more & !wanted[to] != 0 {
                    wanted[to] |= more;
                    given.push(to as u32);
                    is_stable = false;
                }
            }
            if is_stable {
                break;
            }
            self.spread(&mut wanted, &mut given, &strays, &mut open);
        }
        for (wanted, marked) in wanted.iter_mut().zip(marked) {
            *wanted |= marked;
        }
        wanted
    }

    /// Hands what is wanted of the blocks `given` on to all that is reached without a return, and opens
    /// the returns that it comes to.
    fn spread(
        &self,
        wanted: &mut [Set],
        given: &mut Vec<u32>,
        strays: &[Strays],
        returns: &mut Marks,
    ) {
        let mut by_table = 0;
        loop {
            while let Some(at) = given.pop() {
                let at = at as usize;
                let now = wanted[at];
                let mut hand = |to: usize| {
                    if now & !wanted[to] != 0 {
                        wanted[to] |= now;
                        given.push(to as u32);
                    }
                };
                match self.blocks[at].end {
                    End::Falls | End::Calls(_) | End::CallsUnknown | End::CallsResolver => {
                        hand(at + 1);
                    }
                    End::Jumps(to) => hand(to as usize),
                    End::Branches(to) => {
                        hand(at + 1);
                        hand(to as usize);
                    }
                    End::JumpsByTable | End::Unclear => {
                        by_table |= now;
                        self.around(at).for_each(hand);
                    }
                    End::Returns => returns.set(at as u32),
                    End::JumpsUnknown | End::Stops => {}
                }
            }
            for strays in strays {
                let now = match &strays.part {
                    Some(part) => wanted[part.clone()].iter().fold(0, |all, now| all | now),
                    None => by_table,
                };
                for &to in &strays.blocks {
                    if now & !wanted[to] != 0 {
                        wanted[to] |= now;
                        given.push(to as u32);
                    }
                }
            }
            if given.is_empty() {
                break;
            }
        }
    }

    /// The blocks between the start of the function that a block is in and that of the next.
    fn around(&self, block: usize) -> Range<usize> {
        let next = self.parts.partition_point(|&start| start as usize <= block);
        let start = next.checked_sub(1).map_or(0, |at| self.parts[at] as usize);
        let end = self
            .parts
            .get(next)
            .map_or(self.blocks.len(), |&end| end as usize);
        start..end
    }

    /// The blocks that nothing we see leads to, of parts that are no functions: only a jump by table in
    /// another part may.
    fn strays(&self) -> Vec<Strays> {
        let mut is_called = vec![false; self.blocks.len()];
        let called = self.blocks.iter().filter_map(|block| match block.end {
            End::Calls(to) => Some(to),
            _ => None,
        });
        for at in called.chain(self.functions.iter().copied()) {
            is_called[at as usize] = true;
        }
        let mut is_reached = vec![false; self.blocks.len()];
        let mut open = self.functions.clone();
        open.extend(self.blocks.iter().filter_map(|block| match block.end {
            End::Calls(to) => Some(to),
            _ => None,
        }));
        while let Some(at) = open.pop() {
            if core::mem::replace(&mut is_reached[at as usize], true) {
                continue;
            }
            match self.blocks[at as usize].end {
                End::Falls | End::Calls(_) | End::CallsUnknown | End::CallsResolver => {
                    open.push(at + 1);
                }
                End::Jumps(to) => open.push(to),
                End::Branches(to) => open.extend([at + 1, to]),
                _ => {}
            }
        }
        let mut strays = Vec::new();
        let mut start = 0;
        while start < self.blocks.len() {
            let part = self.around(start);
            start = part.end;
            if is_called[part.start] {
                continue;
            }
            let blocks: Vec<usize> = part.clone().filter(|&at| !is_reached[at]).collect();
            if !blocks.is_empty() {
                let part = (blocks.len() < part.len()).then_some(part);
                strays.push(Strays { part, blocks });
            }
        }
        strays
    }
}

impl Written {
    /// What may survive a call of a block.
    fn survives(&self, block: usize) -> Set {
        let seen = if self.calls[block] { 0 } else { SEEN };
        seen | GUESSED & !self.may[block]
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Kept};
    use alloc::vec::Vec;

    const BASE: usize = 0x40_0000;
    /// Where the functions of these tests start.
    const CALLER: usize = BASE;
    const F: usize = BASE + 0x40;
    const G: usize = BASE + 0x80;
    /// Outside.
    const ELSEWHERE: usize = BASE + 0x1000;

    /// A direct call (0xe8) or jump (0xe9) from an offset.
    fn branch(opcode: u8, from: usize, to: usize) -> [u8; 5] {
        let [a, b, c, d] = ((to as i64 - (BASE + from + 5) as i64) as i32).to_le_bytes();
        [opcode, a, b, c, d]
    }

    fn kept(caller: &[u8], f: &[u8], g: &[u8]) -> Vec<usize> {
        let mut bytes = alloc::vec![0xcc; 0xc0];
        for (at, code) in [(0, caller), (0x40, f), (0x80, g)] {
            bytes[at..at + code.len()].copy_from_slice(code);
        }
        let code = [Code {
            address: BASE,
            bytes: &bytes,
        }];
        let functions = [CALLER, F, G];
        let kept = Kept::find(&code, &functions, &functions);
        let is_kept = |function: &usize| kept.contains(*function);
        functions.into_iter().filter(is_kept).collect()
    }

    const RET: &[u8] = &[0xc3];
    /// add rax, r8; ret
    const READ_R8: &[u8] = &[0x4c, 0x01, 0xc0, 0xc3];
    /// mov r8d, 1
    const WRITE_R8: &[u8] = &[0x41, 0xb8, 1, 0, 0, 0];

    fn calls(to: usize, behind: &[u8]) -> Vec<u8> {
        [&branch(0xe8, 0, to)[..], behind].concat()
    }

    #[test]
    fn a_register_read_behind_a_call_is_kept_by_the_called_function() {
        assert_eq!(kept(&calls(F, READ_R8), RET, RET), [F]);
        assert_eq!(kept(&calls(F, RET), RET, RET), []);
        let written = [WRITE_R8, READ_R8].concat();
        assert_eq!(kept(&calls(F, &written), RET, RET), []);
        // add rax, rdx: a result.
        assert_eq!(kept(&calls(F, &[0x48, 0x01, 0xd0, 0xc3]), RET, RET), []);
        // movaps xmm0, xmm9, which the caller has not set: so it has it from its own.
        let read_xmm9 = calls(F, &[0x41, 0x0f, 0x28, 0xc1, 0xc3]);
        assert_eq!(kept(&read_xmm9, RET, RET), [CALLER, F]);
        // In another module nobody knows what is kept.
        assert_eq!(kept(&calls(ELSEWHERE, READ_R8), RET, RET), []);
    }

    #[test]
    fn what_is_called_in_between_must_keep_it_too() {
        let caller = calls(F, READ_R8);
        let f = [&branch(0xe8, 0x40, G)[..], RET].concat();
        assert_eq!(kept(&caller, &f, RET), [F, G]);
        let tail = branch(0xe9, 0x40, G);
        assert_eq!(kept(&caller, &tail, RET), [F, G]);
        // push r8; call g; pop r8; ret
        let call = branch(0xe8, 0x42, G);
        let saved = [&[0x41, 0x50][..], &call, &[0x41, 0x58], RET].concat();
        assert_eq!(kept(&caller, &saved, RET), [F]);
    }

    #[test]
    fn what_an_unknown_function_may_read_counts_only_where_it_is_left_alone() {
        let unknown = branch(0xe8, 5, ELSEWHERE);
        let caller = calls(F, &[&unknown[..], RET].concat());
        // f writes to nothing: rdi may be the argument still.
        assert_eq!(kept(&caller, RET, RET), [F]);
        // f calls an unknown function itself.
        let f = [&branch(0xe8, 0x40, ELSEWHERE)[..], RET].concat();
        assert_eq!(kept(&caller, &f, RET), []);
        // What is seen to be read counts in any case.
        assert_eq!(kept(&calls(F, READ_R8), &f, RET), [F]);
    }

    #[test]
    fn a_function_that_takes_r11_needs_it() {
        // mov rax, r11; ret
        assert_eq!(kept(RET, &[0x4c, 0x89, 0xd8, 0xc3], RET), [F]);
    }

    #[test]
    fn behind_a_jump_by_table_everything_may_be_read() {
        // jmp rax
        assert_eq!(kept(&calls(F, &[0xff, 0xe0]), RET, RET), [F]);
    }

    #[test]
    fn a_callee_that_never_returns_keeps_nothing() {
        // ud2
        assert_eq!(kept(&calls(F, READ_R8), &[0x0f, 0x0b], RET), []);
    }

    #[test]
    fn any_bytes_are_looked_at() {
        let mut state = 1_u64;
        for len in 0..200 {
            let mut byte = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            };
            let bytes: Vec<u8> = (0..len * 7).map(|_| byte()).collect();
            let code = [Code {
                address: BASE,
                bytes: &bytes,
            }];
            let _ = Kept::find(&code, &[BASE, BASE + 3, BASE + 50], &[BASE + 9]);
        }
    }
}
