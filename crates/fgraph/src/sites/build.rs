//! Makes records, stubs and relocated prologues for all functions of a layout at once.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use fgraph_core::site::{self, Module, Site, SiteName};
use fgraph_symbols::filter::NameIndex;

use super::entries::{LookedAt, Subject};
use super::facts::ModuleFacts;
use super::function_names::written_names;
use super::layout::{BuildContext, Layout, Placed};
use super::module_plan::{LivePlan, Refused};
use super::names::Names;
use super::parts::{Part, Parts};
use super::planners::Planners;
use super::record::{OFF, Original, is_padding_jump, patched_len};
use super::site_names::{NONE, NamedSites, SiteNames};
use super::site_symbols::SiteSymbols;
use super::unpatchable::Unpatchable;
use crate::arch::stub::{Fault, Guard, HEADER_NEAR_END, SITE_LEN};
use crate::arch::system_call;
use crate::arch::trampoline;
use crate::arch::trap::{TRAP_RANGES, TrapRange};
use crate::code::arena::{Arena, PrologueUnwind};
use crate::code::stub_blocks::{PlacedStubs, StubBlocks};
use crate::process::call_gate;
use crate::process::loader_event;
use crate::report::error::RefusalReason;
use crate::unwinding::registry::Place;

/// The sites of a module, in parts, and the functions without a site, with the reasons.
#[derive(Debug, Default)]
pub(super) struct BuiltModule {
    pub(super) parts: Parts,
    /// The index of the names of all sites.
    pub(super) index: NameIndex,
    pub(super) unpatchable: Vec<Unpatchable>,
    /// The index of the names of `unpatchable`.
    pub(super) unpatchable_index: NameIndex,
    /// The sites with a breakpoint, in order, and the reasons that they cannot have a jump.
    pub(super) breakpoints: Vec<(usize, RefusalReason)>,
    /// True while the module has its functions' indices, which others with its build id must not
    /// have. `None` without a build id.
    pub(super) has_indices: Option<&'static AtomicBool>,
    /// The common data of the sites, once there are any.
    module: Option<&'static Module>,
    /// The functions that were analyzed, if these are not all.
    pub(super) looked_at: Option<LookedAt>,
}

impl BuiltModule {
    /// Sets if the module is loaded.
    pub(super) fn set_loaded(&self, is_loaded: bool) {
        if let Some(has_indices) = self.has_indices {
            has_indices.store(is_loaded, Ordering::Relaxed);
        }
        for part in self.parts.iter() {
            part.traps.set_loaded(is_loaded);
            match is_loaded {
                true => part.padding_jump_unwind.register(),
                false => part.padding_jump_unwind.withdraw(),
            }
        }
    }

    /// Makes the sites of a plan, in addition to earlier ones. A function without a place for its
    /// stub is refused.
    pub(super) fn build(
        &mut self,
        known: &'static ModuleFacts,
        mut plan: LivePlan,
        context: &mut BuildContext,
        planners: Planners,
    ) {
        let is_taken = |range: &Range<usize>| self.parts.overlap(range);
        let has_indices = &mut self.has_indices;
        if let Some(layout) = Layout::new(known, &mut plan, context, has_indices, is_taken) {
            self.add(known, layout, &mut plan, context, planners);
        }
        let refused = plan.refused.into_iter();
        self.unpatchable.extend(refused.map(|refused| Unpatchable {
            names: match refused.subject {
                Subject::Listed => Vec::new(),
                subject => subject.names(known, refused.address),
            },
            address: refused.address,
            is_system_call: refused.subject.is_system_call(),
            reason: refused.reason,
        }));
        self.unpatchable_index = NameIndex::new();
    }

    /// Adds the sites of a layout, or refuses them if they cannot be written.
    fn add(
        &mut self,
        known: &'static ModuleFacts,
        layout: Layout,
        plan: &mut LivePlan,
        context: &mut BuildContext,
        planners: Planners,
    ) {
        let Layout {
            placed,
            mut arena,
            unwind,
            mut text,
        } = layout;
        let padding_jumps = placed
            .iter()
            .filter(|one| one.function.plan.padding_jump.is_some());
        let count = placed.len() + padding_jumps.count();
        // Stubs contain the addresses of records, so these do not move from now on.
        let mut sites: Vec<Site> = Vec::with_capacity(count);
        let records = (0..).map(|index| sites.as_ptr().wrapping_add(index).addr());
        let stubs = write_stubs(known, &placed, records, &mut arena);
        let header = arena.header();
        let written = stubs.write(&mut text);
        let finished =
            written.and_then(|()| arena.finish(&mut text, &context.trampolines, &unwind));
        if let Err(errno) = finished {
            let refuse =
                |one: &Placed| Refused::new(&one.function, RefusalReason::NotExecutable(errno));
            plan.refused.extend(placed.iter().map(refuse));
            return;
        }
        context.headers.push(header);
        let made = self.parts.len();
        let module: &'static Module = self.module.get_or_insert_with(|| {
            let symbols = Box::leak(Box::new(SiteSymbols(known)));
            Box::leak(Box::new(site::module(known.path, symbols)))
        });
        let all = known.names();
        let parts = planners.split(&placed, |part| site_names(part, known, all));
        let (own, functions): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let names = SiteNames::new(Names::joined(own), functions.concat(), all);
        let names: &'static SiteNames = Box::leak(Box::new(names));
        for mut one in placed {
            if let Some(nop) = one.function.plan.padding_jump {
                // Its own record is right before that of the function.
                sites.push(padding_jump_record(&one, nop, module));
            }
            let no_jump = one.function.plan.no_jump.take();
            let reason = no_jump.map(|reason| (made + sites.len(), reason));
            self.breakpoints.extend(reason);
            sites.push(record(&one, module));
        }
        for (index, site) in sites.iter_mut().enumerate() {
            site.name = SiteName::new(names.best(index));
        }
        let sites: &'static [Site] = sites.leak();
        sites.as_ptr().expose_provenance();
        known.add_sites(NamedSites { sites, names });
        let mut unwind = PrologueUnwind::new(Place::InText);
        for padding_jump in sites.iter().filter(|site| is_padding_jump(site)) {
            unwind.add_jump(padding_jump.entry);
        }
        // They work even without memory for it.
        let padding_jump_unwind = unwind.write().unwrap_or_default();
        padding_jump_unwind.register();
        self.index = NameIndex::new();
        if let Some(last) = sites.last() {
            self.parts.push(Part {
                named: NamedSites { sites, names },
                padding_jump_unwind,
                // SAFETY: the stubs are complete and permanent, and planned sites are sorted.
                traps: unsafe { TRAP_RANGES.push(TrapRange::new(sites, patched_len(last))) },
            });
        }
    }
}

/// Returns the names of the functions' records, with that of a padding jump before that of its
/// function: names that are not among `all`, and the functions of the others.
fn site_names(placed: &[Placed], known: &ModuleFacts, all: Option<&Names>) -> (Names, Vec<u32>) {
    let mut own = match all {
        Some(_) => Names::default(),
        None => Names::with_capacity(placed.len()),
    };
    let mut functions = Vec::with_capacity(placed.len());
    let mut symbols = Vec::new();
    for one in placed {
        if one.function.plan.padding_jump.is_some() {
            // A jump in the padding has no name.
            own.push(core::iter::empty());
            functions.push(NONE);
        }
        let mut function = NONE;
        match one.function.subject {
            Subject::Function(index) if all.is_some_and(|all| all.has(index)) => {
                own.push(core::iter::empty());
                function = index as u32;
            }
            Subject::Function(index) => {
                symbols.clear();
                symbols.extend(known.functions.names(index));
                own.push_written(written_names(&known.functions, known.path, index, &symbols));
            }
            subject => {
                let names = subject.names(known, one.function.address);
                own.push(names.iter().map(String::as_str));
            }
        }
        functions.push(function);
    }
    (own, functions)
}

/// Writes the stubs into the arena, and returns those that are elsewhere. `records` are the
/// addresses of the records, that of a padding jump before that of its function.
fn write_stubs(
    known: &ModuleFacts,
    placed: &[Placed],
    mut records: impl Iterator<Item = usize>,
    arena: &mut Arena,
) -> PlacedStubs {
    let mut elsewhere = PlacedStubs::default();
    for one in placed {
        if one.function.plan.padding_jump.is_some() {
            // It uses the function's stub.
            records.next();
        }
        let record = records.next().expect("as many as there are sites") as u64;
        let is_outside = !arena.contains(one.stub);
        let header = match is_outside {
            true => StubBlocks::header(one.stub),
            false => arena.header(),
        };
        let variant = one.function.plan.variant;
        let word = variant.word(header);
        if let Some(number) = original(one).system_call() {
            let entry = one.function.entry();
            let code = system_call::encode(one.stub, entry, number, record, word);
            let code = code.expect("an arena is within reach of its sites");
            arena.bytes(one.stub)[..code.len()].copy_from_slice(&code);
            continue;
        }
        let mut add = |stub: Option<&[u8]>| {
            let stub = stub.expect("a header is within 2 GiB of its stubs");
            match is_outside {
                true => elsewhere.add(one.stub, stub),
                false => arena.bytes(one.stub)[..stub.len()].copy_from_slice(stub),
            }
        };
        if known.is_of_ocaml() {
            let guard = Guard {
                storage: trampoline::guard_storage(),
                near_end_word: header + HEADER_NEAR_END,
            };
            add(guard
                .encode(one.stub, record, word, fault(known, one))
                .as_deref());
        } else {
            add(variant.stub().encode(one.stub, record, word).as_deref());
        }
    }
    elsewhere
}

/// Returns the fault that the displaced instructions of a function may cause at the end of a stack.
fn fault(known: &ModuleFacts, one: &Placed) -> Option<Fault> {
    let (Subject::Function(index), Some(window)) =
        (one.function.subject, &one.function.plan.window)
    else {
        return None;
    };
    // The first word is on the page of the return address.
    let depth = window.depth().div_ceil(size_of::<usize>());
    let patched = one.function.plan.lead + window.len().max(SITE_LEN);
    let at = || known.ret_in(index, patched);
    let depth = u8::try_from(depth).ok().filter(|&depth| depth > 1)?;
    Some(Fault { depth, at: at()? })
}

/// Makes the record of a function, or of a system call within one, that has its places. Replaces
/// its body if fgraph hooks the function for itself.
fn record(one: &Placed, module: &'static Module) -> Site {
    let function = &one.function;
    let mut body = one.body;
    if function.plan.window.is_some() {
        let is_event = loader_event::event() == Some(function.address);
        if is_event && one.inner == [0; 4] {
            body = loader_event::take_place_of(body);
        }
        body = call_gate::take_place_of(function.address, body).unwrap_or(body);
    }
    let lead = function.plan.lead as u8;
    site(one, module, function.entry(), body, lead, original(one))
}

/// Makes the record of the NOP of `nop` bytes before a function that becomes its jump.
fn padding_jump_record(one: &Placed, nop: usize, module: &'static Module) -> Site {
    let entry = one.function.entry();
    let original = Original {
        bytes: one.function.padding_jump,
        patched_len: SITE_LEN as u8,
        is_padding_jump: true,
        is_system_call: false,
        is_exchanged: one.function.plan.is_exchanged,
    };
    site(one, module, entry - nop, entry, 0, original)
}

/// Makes a record, not patched and without a name, that shares the stub and the index of `one`.
fn site(
    one: &Placed,
    module: &'static Module,
    entry: usize,
    body: usize,
    lead: u8,
    original: Original,
) -> Site {
    Site {
        entry,
        body,
        interest: AtomicU16::new(0),
        lead,
        state: AtomicU8::new(OFF),
        inner: one.inner,
        name: SiteName::new(""),
        index: one.index,
        module,
        stub: one.stub,
        runtime: AtomicU64::new(original.to_word()),
    }
}

/// Returns the bytes that the compiler made at the entry of a function, or of a system call within
/// one.
fn original(one: &Placed) -> Original {
    Original {
        bytes: one.function.original,
        patched_len: one.patched_len as u8,
        is_padding_jump: false,
        is_system_call: one.function.subject.is_system_call(),
        is_exchanged: one.function.plan.is_exchanged,
    }
}
