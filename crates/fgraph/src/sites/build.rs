//! Records, stubs and copies, made for all functions of a module at once.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use fgraph_core::site::{Module, Site, SiteName};
use fgraph_symbols::filter::NameIndex;

use super::entries::{LookedAt, Subject};
use super::facts::{FactsSymbols, ModuleFacts, SiteNames};
use super::function_names::written_names;
use super::function_plan::Planned;
use super::indices::Indices;
use super::names::Names;
use super::parts::{Part, Parts};
use super::record::{OFF, Original, is_relay, patched_len, system_call as number_of};
use super::unpatchable::Unpatchable;
use crate::arch::relocate::Window;
use crate::arch::stub::SITE_LEN;
use crate::arch::system_call;
use crate::arch::trampoline::Trampolines;
use crate::arch::trap::{TRAP_RANGES, TrapRange};
use crate::code::arena::{self, Arena, CopyUnwind};
use crate::code::stub_blocks::{PlacedStubs, StubBlocks};
use crate::code::text_writer::Text;
use crate::process::loader_event;
use crate::process::spawn_gate;
use crate::report::error::RefusalReason;
use crate::unwinding::registry::Place;

/// What the making of sites needs, for all modules.
#[derive(Debug)]
pub(crate) struct BuildContext {
    pub(crate) trampolines: Trampolines,
    /// The headers of all arenas.
    pub(crate) headers: Vec<usize>,
    pub(crate) stub_blocks: StubBlocks,
    pub(crate) indices: Indices,
    /// For tests: threads between two instructions of a site are not heeded.
    pub(crate) ignore_inner: bool,
}

impl BuildContext {
    /// Where the stubs jump to from now on, those that are there included.
    pub(super) fn set_trampolines(&mut self, trampolines: Trampolines) {
        if self.trampolines == trampolines {
            return;
        }
        self.trampolines = trampolines;
        let headers = self.headers.iter().copied();
        for header in headers.chain(self.stub_blocks.headers()) {
            arena::reroute(header, &trampolines);
        }
    }
}

/// What was made for a module.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) parts: Parts,
    /// The index of the names of all sites.
    pub(super) index: NameIndex,
    pub(super) unpatchable: Vec<Unpatchable>,
    /// The index of the names of `unpatchable`.
    pub(super) unpatchable_index: NameIndex,
    /// The sites that get a breakpoint, in order, and why they cannot get a jump.
    pub(super) breakpoints: Vec<(usize, RefusalReason)>,
    /// Says that the module has the numbers of its functions, which others of its build id must not
    /// have. `None` without a build id.
    pub(super) has_indices: Option<&'static AtomicBool>,
    /// What the sites have in common, once there are any.
    module: Option<&'static Module>,
    /// What has been looked at, if it is not all.
    pub(super) looked_at: Option<LookedAt>,
}

impl Prepared {
    /// Says whether the module is loaded.
    pub(super) fn set_loaded(&self, is_loaded: bool) {
        if let Some(has_indices) = self.has_indices {
            has_indices.store(is_loaded, Ordering::Relaxed);
        }
        for part in self.parts.iter() {
            part.traps.set_loaded(is_loaded);
            match is_loaded {
                true => part.relay_unwind.register(),
                false => part.relay_unwind.withdraw(),
            }
        }
    }
}

/// Makes records, stubs and copies for what was planned, in addition to those that were made;
/// `breakpoints` says whether a function may get one.
pub(super) fn build(
    known: &'static ModuleFacts,
    planned: Vec<Planned>,
    breakpoints: bool,
    context: &mut BuildContext,
    prepared: &mut Prepared,
    refuse: &mut impl FnMut(Subject, usize, RefusalReason),
) {
    let (Some(first), Some(last)) = (planned.first(), planned.last()) else {
        return;
    };
    let windows = || {
        planned
            .iter()
            .filter_map(|planned| planned.plan.window.as_ref())
    };
    let is_call = |planned: &&Planned| planned.subject.is_system_call();
    let calls = planned.iter().filter(is_call).count();
    let stubs: usize = planned
        .iter()
        .filter(|planned| !is_call(planned))
        .map(|planned| planned.plan.variant.stub().stub_len())
        .sum();
    let copies: usize = windows().map(Window::relocated_len).sum();
    let copies = copies + calls * system_call::LEN;
    let mut arena = match Arena::reserve(first.address, last.address, stubs, copies) {
        Ok(arena) => arena,
        Err(reason) => {
            for planned in planned {
                refuse(planned.subject, planned.address, reason.clone());
            }
            return;
        }
    };
    let (mut next_stub, mut next_copy) = (arena.stubs(), arena.copies());
    let mut unwind = CopyUnwind::new(Place::Apart);
    let mut text = Text::open_for(planned.len());
    let mut placed = PlacedStubs::default();
    let mut sites = Vec::with_capacity(planned.len());
    let mut with_breakpoint = Vec::new();
    let mut variants = Vec::with_capacity(planned.len());
    let (mut names, mut symbols) = (Names::with_capacity(planned.len()), Names::default());
    let mut own_names = Vec::new();
    let (build_id, made) = (known.file.build_id(), prepared.parts.len());
    let (mut indices, is_loaded) = context.indices.of(build_id, prepared.has_indices);
    let module: &'static Module = prepared.module.get_or_insert_with(|| {
        Box::leak(Box::new(Module {
            path: known.path,
            symbols: Box::leak(Box::new(FactsSymbols(known))),
        }))
    });
    for one in planned {
        let entry = one.entry();
        let variant = one.plan.variant;
        let mut patched = one.plan.patched_len();
        let mut body = entry + SITE_LEN;
        let mut inner = [0; 4];
        let mut starts = 1;
        if let Some(window) = &one.plan.window {
            let copy = match window.relocate(next_copy, arena.bytes(next_copy)) {
                Ok(copy) => copy,
                Err(error) => {
                    refuse(one.subject, one.address, RefusalReason::Displace(error));
                    continue;
                }
            };
            body = next_copy;
            if !context.ignore_inner {
                starts = window.boundaries();
                for at in (1..SITE_LEN).filter(|at| starts >> at & 1 != 0) {
                    inner[at - 1] = copy.resume[at];
                }
            }
            unwind.add(next_copy, copy.len, &copy.rows);
            next_copy += copy.len;
            if starts == 1 && loader_event::event() == Some(one.address) {
                body = loader_event::take_place_of(body);
            }
            if let Some(gate) = spawn_gate::take_place_of(one.address, body) {
                body = gate;
            }
        }
        let Some(index) = indices.get(one.address.wrapping_sub(known.bias) as u64) else {
            refuse(one.subject, one.address, RefusalReason::NoIndex);
            continue;
        };
        let len = variant.stub().stub_len();
        let previous = sites
            .last()
            .map_or(0, |site: &Site| site.entry + patched_len(site));
        let is_taken = |nop: usize| {
            let relay = entry - nop..entry - nop + SITE_LEN;
            relay.start < previous || prepared.parts.overlap(&relay)
        };
        if one.plan.relay.is_some_and(is_taken) {
            refuse(one.subject, one.address, RefusalReason::NoPlace);
            continue;
        }
        let (mut place, mut no_jump) = (None, one.no_jump);
        if starts != 1 {
            let blocks = &mut context.stub_blocks;
            place = blocks.take(entry, starts, len, &mut text, &context.trampolines);
            if place.is_none() && !breakpoints {
                refuse(one.subject, one.address, RefusalReason::NoPlace);
                continue;
            }
            if place.is_none() {
                // The copy serves as well.
                (patched, inner) = (1, [0; 4]);
                no_jump = Some(RefusalReason::NoPlace);
            }
        }
        let is_system_call = one.subject.is_system_call();
        if is_system_call {
            unwind.add(next_copy, system_call::LEN, &system_call::rows(entry));
            (place, body) = (Some(next_copy), next_copy + system_call::BODY);
            next_copy += system_call::LEN;
        }
        let stub = place.unwrap_or_else(|| {
            next_stub += len;
            next_stub - len
        });
        let site = |entry, body, lead, original: Original| Site {
            entry,
            body,
            interest: AtomicU16::new(0),
            lead,
            state: AtomicU8::new(OFF),
            inner,
            name: SiteName::new(""),
            index,
            module,
            stub,
            runtime: AtomicU64::new(original.to_word()),
        };
        if let Some(nop) = one.plan.relay {
            // Its own record is right before that of the function.
            names.push(core::iter::empty());
            symbols.push(core::iter::empty());
            variants.push(variant);
            sites.push(site(
                entry - nop,
                entry,
                0,
                Original {
                    bytes: one.relay,
                    patched_len: SITE_LEN as u8,
                    is_relay: true,
                    is_system_call: false,
                },
            ));
        }
        let symbol = if let Subject::Function(index) = one.subject {
            own_names.clear();
            own_names.extend(known.functions.names(index));
            names.push_written(written_names(
                &known.functions,
                known.path,
                index,
                &own_names,
            ));
            own_names.first().map_or("", |name| name.symbol)
        } else {
            let all = one.subject.names(known, one.address);
            names.push(all.iter().map(String::as_str));
            ""
        };
        let is_other = names.best(sites.len()) != symbol;
        symbols.push(is_other.then_some(symbol).into_iter());
        variants.push(variant);
        let lead = one.plan.lead as u8;
        with_breakpoint.extend(no_jump.map(|reason| (made + sites.len(), reason)));
        sites.push(site(
            entry,
            body,
            lead,
            Original {
                bytes: one.original,
                patched_len: patched as u8,
                is_relay: false,
                is_system_call,
            },
        ));
    }
    drop(indices);
    names.shrink();
    symbols.shrink();
    let names: &'static Names = Box::leak(Box::new(names));
    for (index, site) in sites.iter_mut().enumerate() {
        site.name = SiteName::new(names.best(index));
    }
    let sites: &'static [Site] = sites.leak();
    sites.as_ptr().expose_provenance();
    known.add_site_names(SiteNames {
        sites,
        names,
        symbols,
    });
    for (site, variant) in sites.iter().zip(variants) {
        // Its stub is the function's.
        if is_relay(site) {
            continue;
        }
        let record = ptr::from_ref(site).addr() as u64;
        let outside = !arena.contains(site.stub);
        let header = if outside {
            StubBlocks::header(site.stub)
        } else {
            arena.header()
        };
        let word = variant.word(header);
        if let Some(number) = number_of(site) {
            let code = system_call::encode(site.stub, site.entry, number, record, word);
            let code = code.expect("an arena is within reach of its sites");
            arena.bytes(site.stub)[..code.len()].copy_from_slice(&code);
            continue;
        }
        let stub = variant.stub().encode(site.stub, record, word);
        let stub = stub.expect("a header is within 2 GiB of its stubs");
        if outside {
            placed.add(site.stub, &stub);
        } else {
            arena.bytes(site.stub)[..stub.len()].copy_from_slice(&stub);
        }
    }
    let written = placed.write(&mut text);
    let header = arena.header();
    let finished = written.and_then(|()| arena.finish(&mut text, &context.trampolines, &unwind));
    if let Err(errno) = finished {
        for site in sites {
            let within = || {
                let (index, ..) = known.function_at(site.entry)?;
                number_of(site).map(|_| Subject::SystemCall(index))
            };
            let function = || known.index_of(site).map(Subject::Function);
            let subject = within().or_else(function).unwrap_or(Subject::Listed);
            refuse(subject, site.address(), RefusalReason::NotExecutable(errno));
        }
        return;
    }
    context.headers.push(header);
    let mut unwind = CopyUnwind::new(Place::InText);
    for relay in sites.iter().filter(|site| is_relay(site)) {
        unwind.add_jump(relay.entry);
    }
    // Without memory for it they work as well.
    let relay_unwind = unwind.write().unwrap_or_default();
    relay_unwind.register();
    prepared.breakpoints.extend(with_breakpoint);
    prepared.has_indices = is_loaded;
    prepared.index = NameIndex::new();
    if let Some(last) = sites.last() {
        prepared.parts.push(Part {
            sites,
            names,
            relay_unwind,
            // SAFETY: the stubs are complete and stay, and planned sites are sorted.
            traps: unsafe { TRAP_RANGES.push(TrapRange::new(sites, patched_len(last))) },
        });
    }
}
