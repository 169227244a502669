//! The entries of debug information from which the search for futures starts.

// Names of DWARF's constants are as in its standard.
#![allow(non_upper_case_globals)]

use std::collections::HashMap;

use gimli::constants::*;
use gimli::{AttributeValue, Reader, Unit};

use super::facts::{Place, PollFunction, TaskHeader, TaskRuntime};
use super::shapes::{Entry, Shapes};
use crate::demangle;
use crate::signature::dwarf::start_of;
use crate::signature::dwarf::variables::address_of;

/// The end of the name of the table of a trait object's functions.
const TABLE: &str = "::{vtable}";

/// A function that polls tasks: a part of its symbol, the start of its name, and the name of the
/// type with the same type parameters, with the names of the modules around it.
struct Polls {
    runtime: TaskRuntime,
    symbol: [&'static str; 2],
    name: &'static str,
    of_type: &'static str,
    modules: &'static [&'static str],
}

const POLLS: [Polls; 2] = [
    Polls {
        runtime: TaskRuntime::Tokio,
        symbol: ["tokio7runtime4task3raw4poll", ""],
        name: "poll",
        of_type: "Cell",
        modules: &["tokio", "runtime", "task", "core"],
    },
    Polls {
        runtime: TaskRuntime::AsyncTask,
        symbol: ["async_task3raw", "3run"],
        name: "run",
        of_type: "RawTask",
        modules: &["async_task", "raw"],
    },
];

#[derive(Debug, Default)]
pub(super) struct Index {
    /// The functions that poll tasks, by address.
    pub(super) polls: Vec<PollFunction>,
    /// The types of trait objects, by the address of the table of their functions.
    pub(super) tables: HashMap<u64, usize>,
    /// The types of `impl` blocks, by the path that debug information has for them.
    impls: HashMap<String, String>,
}

/// Function that polls: the number in [`POLLS`], the address, and its type parameters.
type Found = (usize, u64, String);

impl Index {
    /// Reads all units of Rust. Entries after a damaged one are left out of a unit.
    pub(super) fn read<R: Reader<Offset = usize>>(shapes: &Shapes<R>) -> Self {
        let mut this = Self::default();
        let mut found = Vec::new();
        let mut types = HashMap::new();
        for header in shapes.headers() {
            let Some(unit) = shapes.unit(header) else {
                continue;
            };
            let root = unit.entry(unit.header.root_offset());
            let language = root.ok().and_then(|root| root.attr_value(DW_AT_language));
            if matches!(language, Some(AttributeValue::Language(DW_LANG_Rust))) {
                this.read_unit(shapes, &unit, &mut found, &mut types);
            }
            shapes.forget(header);
        }
        found.sort_by_key(|&(_, address, _)| address);
        found.dedup_by_key(|&mut (_, address, _)| address);
        for (kind, address, parameters) in found {
            let ty = types.get(&(kind, parameters)).copied();
            let poll = this.poll(shapes, &POLLS[kind], address, ty);
            this.polls.push(poll);
        }
        this
    }

    fn read_unit<R: Reader<Offset = usize>>(
        &mut self,
        shapes: &Shapes<R>,
        unit: &Unit<R>,
        found: &mut Vec<Found>,
        types: &mut HashMap<(usize, String), usize>,
    ) {
        let mut modules: Vec<(isize, String)> = Vec::new();
        let Ok(mut entries) = unit.entries_raw(None) else {
            return;
        };
        let mut entry = Entry::null();
        while !entries.is_empty() && entries.read_entry(&mut entry).is_ok() {
            let depth = entry.depth();
            while modules.last().is_some_and(|&(it, _)| it >= depth) {
                modules.pop();
            }
            let name = |entry| shapes.text(unit, entry, DW_AT_name).unwrap_or_default();
            match entry.tag() {
                DW_TAG_namespace => modules.push((depth, name(&entry))),
                DW_TAG_structure_type if entry.has_children() => {
                    let is_it = |polls: &Polls| {
                        let names = modules.iter().map(|(_, name)| name.as_str());
                        names.eq(polls.modules.iter().copied())
                    };
                    let Some(kind) = POLLS.iter().position(is_it) else {
                        continue;
                    };
                    let offset = entry.offset().to_debug_info_offset(&unit.header);
                    let name = name(&entry);
                    let parameters = name.strip_prefix(POLLS[kind].of_type);
                    if let (Some(parameters), Some(offset)) = (parameters, offset) {
                        types.insert((kind, parameters.to_owned()), offset.0);
                    }
                }
                DW_TAG_subprogram => {
                    let Some(symbol) = shapes.text(unit, &entry, DW_AT_linkage_name) else {
                        continue;
                    };
                    let is_it = |polls: &Polls| polls.symbol.iter().all(|it| symbol.contains(it));
                    if let Some(kind) = POLLS.iter().position(is_it)
                        && let Some(address) = start_of(unit.unit_ref(&shapes.dwarf), &entry)
                        && address != 0
                    {
                        let name = name(&entry);
                        let parameters = name.strip_prefix(POLLS[kind].name);
                        if let Some(parameters) = parameters {
                            found.push((kind, address, parameters.to_owned()));
                        }
                    }
                    self.learn(&modules, &symbol);
                }
                DW_TAG_variable if entry.has_attr(DW_AT_location) => {
                    let unit_ref = unit.unit_ref(&shapes.dwarf);
                    let Some(address) = address_of(unit_ref, &entry).filter(|&it| it != 0) else {
                        continue;
                    };
                    if name(&entry).ends_with(TABLE)
                        && let Some(table) = shapes.target(unit, &entry, DW_AT_type)
                        && let Some(of_type) = shapes.container(table)
                    {
                        self.tables.insert(address, of_type);
                    }
                }
                _ => {}
            }
        }
    }

    /// Learns the type of an `impl` block from the symbol of a closure in it, as rustc compiles
    /// async code: that of `app::{impl#0}::get` is `app::Cache::get::{{closure}}`, or
    /// `<app::Cache>::get::{closure#0}`.
    fn learn(&mut self, modules: &[(isize, String)], symbol: &str) {
        let is_impl = |(_, name): &(isize, String)| name.starts_with("{impl#");
        let Some(last) = modules.iter().rposition(is_impl) else {
            return;
        };
        let Some((_, function)) = modules.get(last + 1) else {
            return;
        };
        let path: Vec<&str> = modules[..=last].iter().map(|(_, name)| &**name).collect();
        let path = path.join("::");
        if self.impls.contains_key(&path) {
            return;
        }
        let name = demangle::to_string(symbol);
        let function = function.split('<').next().unwrap_or_default();
        let Some(end) = name.find(&format!("::{function}::{{")) else {
            return;
        };
        let of_type = &name[..end];
        let inner = of_type
            .strip_prefix('<')
            .and_then(|it| it.strip_suffix('>'));
        let inner = inner.filter(|it| !it.contains(" as "));
        self.impls.insert(path, inner.unwrap_or(of_type).to_owned());
    }

    /// Returns the name of a type as programmers know it: `app::Cache::get` for the future of an
    /// async function of that name.
    pub(super) fn name<R: Reader<Offset = usize>>(&self, shapes: &Shapes<R>, ty: usize) -> String {
        self.plain(&shapes.path(ty).join("::"))
    }

    /// Returns a path of debug information as programmers write it.
    fn plain(&self, path: &str) -> String {
        let mut name = String::with_capacity(path.len());
        let mut rest = path;
        // The end of the path before the part in braces is the start of the name.
        while let Some(start) = rest.find('{') {
            name += &rest[..start];
            let Some(end) = rest[start..].find('}') else {
                break;
            };
            let part = &rest[start..=start + end];
            rest = &rest[start + end + 1..];
            let (kind, _) = part.split_once('#').unwrap_or((part, ""));
            match kind.trim_end_matches("_env") {
                "{async_fn" => name.truncate(name.trim_end_matches("::").len()),
                "{async_block" => name += "{async block}",
                "{async_closure" => name += "{async closure}",
                "{closure" => name += "{closure}",
                "{impl" => {
                    let from = name.rfind(['<', ' ', '(', '&', ',']).map_or(0, |at| at + 1);
                    match self.impls.get(&format!("{}{part}", &name[from..])) {
                        Some(known) => {
                            name.truncate(from);
                            name += known;
                        }
                        None => name += part,
                    }
                }
                _ => name += part,
            }
        }
        name + rest
    }

    fn poll<R: Reader<Offset = usize>>(
        &self,
        shapes: &Shapes<R>,
        polls: &Polls,
        address: u64,
        ty: Option<usize>,
    ) -> PollFunction {
        let future = ty.and_then(|ty| shapes.shape(ty)?.parameter);
        let inner = future.map(|future| shapes.without_wrappers(future));
        let parts = || match polls.runtime {
            TaskRuntime::Tokio => tokio(shapes, ty?),
            TaskRuntime::AsyncTask => async_task(shapes, ty?, future?),
        };
        let (header, place) = match parts() {
            Some((header, place)) => (Some(header), place),
            None => (None, Place::Nowhere),
        };
        PollFunction {
            address,
            runtime: polls.runtime,
            name: inner.map_or_else(String::new, |inner| self.name(shapes, inner)),
            header,
            future: place,
        }
    }
}

/// Returns the parts of tokio's `Cell<T, S>`.
fn tokio<R: Reader<Offset = usize>>(
    shapes: &Shapes<R>,
    cell: usize,
) -> Option<(TaskHeader, Place)> {
    let (header, header_type) = shapes.find(cell, &["header"])?;
    let (table, pointer) = shapes.find(header_type, &["vtable"])?;
    let (poll, _) = shapes.find(shapes.shape(pointer)?.target?, &["poll"])?;
    let (state, _) = shapes.find(header_type, &["state"])?;
    let owner = shapes.find(header_type, &["owner_id"]);
    let (offset, ty) = shapes
        .find(cell, &["core", "stage", "stage", "__0", "value"])
        .or_else(|| shapes.find(cell, &["core", "stage", "stage", "value"]))?;
    let header = TaskHeader {
        table: header.checked_add(table)?,
        state: header.checked_add(state)?,
        owner: owner.and_then(|(owner, _)| header.checked_add(owner)),
        poll,
    };
    Some((header, Place::At { ty, offset }))
}

/// Returns the parts of a task of async-task. The future is behind the header, where a table says.
fn async_task<R: Reader<Offset = usize>>(
    shapes: &Shapes<R>,
    raw: usize,
    future: usize,
) -> Option<(TaskHeader, Place)> {
    let (_, header) = shapes.find(raw, &["header"])?;
    let header = shapes.shape(header)?.target?;
    let (table, pointer) = shapes.find(header, &["vtable"])?;
    let functions = shapes.shape(pointer)?.target?;
    let (poll, _) = shapes.find(functions, &["run"])?;
    let (info, layout) = shapes.find(functions, &["layout_info"])?;
    let (member, _) = shapes.find(shapes.shape(layout)?.target?, &["offset_f"])?;
    let header = TaskHeader {
        table,
        state: shapes.find(header, &["state"])?.0,
        owner: None,
        poll,
    };
    let future = Place::Told {
        ty: future,
        table: info,
        member,
    };
    Some((header, future))
}
