//! The same functions of two builds.

use std::collections::{BTreeSet, HashMap};

use fgraph_analysis::calls::Slot;
use fgraph_analysis::pairs::{Key, Pairs, by_name};

use super::build::Build;
use crate::text::named;

/// A function in both builds, or in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// Its slots in the old build and in the new one.
    pub(super) slots: [Option<Slot>; 2],
    /// The old name, if it has another one now, or the probable reason for its absence.
    pub(super) note: Option<String>,
}

/// Pairs the functions of two builds: by name and module, by name alone, and by the name without
/// the suffixes of compilers. One of the others that has replaced another below the same callers
/// was probably renamed.
pub(super) fn pairs(builds: [&Build; 2]) -> Vec<Pair> {
    let by_origin = |(name, _): &Key| (without_clone(name).to_owned(), String::new());
    let mut found = Pairs::of(builds.map(|it| &it.keys[..]), &[by_name, by_origin]);
    let slots = |[old, new]: [usize; 2]| [old as Slot, new as Slot];
    let both = found.both.iter().map(|&both| {
        let [before, after] = slots(both);
        let names = [name(builds[0], before), name(builds[1], after)];
        Pair {
            slots: [Some(before), Some(after)],
            note: (names[0] != names[1]).then(|| format!("was {}", names[0])),
        }
    });
    let mut pairs: Vec<Pair> = both.collect();
    let new_of = found.both.iter().map(|&both| slots(both).into());
    let new_of: HashMap<Slot, Slot> = new_of.collect();
    for (before, after) in renamed(builds, &found.alone, &new_of) {
        let old = full_name(builds[0], before);
        pairs.push(Pair {
            slots: [Some(before), Some(after)],
            note: Some(format!("probably {old}, renamed")),
        });
        found.pair([before as usize, after as usize]);
    }
    let [of_old, of_new] = found.alone;
    for slot in of_old.into_iter().map(|it| it as Slot) {
        let note = inlined(builds, slot, &new_of);
        pairs.push(Pair {
            slots: [Some(slot), None],
            note: Some(note.unwrap_or_else(|| "not called any more".to_owned())),
        });
    }
    for slot in of_new.into_iter().map(|it| it as Slot) {
        pairs.push(Pair {
            slots: [None, Some(slot)],
            note: Some("not called before".to_owned()),
        });
    }
    pairs
}

fn name(build: &Build, slot: Slot) -> &str {
    &build.keys[slot as usize].0
}

fn full_name(build: &Build, slot: Slot) -> String {
    let (name, module) = &build.keys[slot as usize];
    named(name, module)
}

/// Returns a name without the suffixes by which compilers tell copies of a function apart.
fn without_clone(name: &str) -> &str {
    const CLONES: [&str; 6] = [
        ".constprop",
        ".isra",
        ".part",
        ".cold",
        ".llvm",
        ".lto_priv",
    ];
    let first = CLONES.iter().filter_map(|clone| name.find(clone)).min();
    first.map_or(name, |end| &name[..end])
}

/// Returns the callers of a function, `None` for callers that were not recorded.
fn callers(build: &Build, slot: Slot) -> impl Iterator<Item = Option<Slot>> {
    let edges = build.edges.keys().filter(move |(_, to)| *to == slot);
    edges.map(|(from, _)| *from)
}

/// Returns the functions that have replaced another one: each is the only one that is new below
/// some callers, where only the other one is gone, and is called as often.
fn renamed(
    builds: [&Build; 2],
    alone: &[BTreeSet<usize>; 2],
    new_of: &HashMap<Slot, Slot>,
) -> Vec<(Slot, Slot)> {
    type Below = (BTreeSet<Option<Slot>>, u64);
    let mut places: HashMap<Below, [Vec<Slot>; 2]> = HashMap::new();
    for at in [0, 1] {
        for slot in alone[at].iter().map(|&it| it as Slot) {
            let callers = callers(builds[at], slot);
            let callers: Option<BTreeSet<Option<Slot>>> = match at {
                0 => callers
                    .map(|it| it.map_or(Some(None), |it| new_of.get(&it).map(|&it| Some(it))))
                    .collect(),
                _ => Some(callers.collect()),
            };
            let counts = &builds[at].counts[slot as usize];
            let calls: f64 = counts.iter().map(|it| it.calls).sum();
            // Calls for each recording decide; builds may have different numbers of them.
            let calls = (calls / builds[at].recordings as f64).to_bits();
            if let Some(callers) = callers {
                places.entry((callers, calls)).or_default()[at].push(slot);
            }
        }
    }
    let only = places.into_values().filter_map(|both| match &both {
        [old, new] if old.len() == 1 && new.len() == 1 => Some((old[0], new[0])),
        _ => None,
    });
    only.collect()
}

/// Returns a note if a function is gone whose callees are called by its callers now, as if it were
/// inlined.
fn inlined(builds: [&Build; 2], slot: Slot, new_of: &HashMap<Slot, Slot>) -> Option<String> {
    let [old, new] = builds;
    let callers: Option<Vec<Slot>> = callers(old, slot)
        .map(|caller| new_of.get(&caller?).copied())
        .collect();
    let callers = callers.filter(|callers| !callers.is_empty())?;
    let callees = old
        .edges
        .keys()
        .filter(|(from, to)| *from == Some(slot) && *to != slot);
    let mut callees = callees.filter_map(|(_, to)| new_of.get(to)).peekable();
    callees.peek()?;
    let is_taken_over = callees.all(|&callee| {
        callers
            .iter()
            .all(|&caller| new.edges.contains_key(&(Some(caller), callee)))
    });
    let names: Vec<&str> = callers.iter().map(|&it| name(new, it)).collect();
    is_taken_over.then(|| format!("probably inlined into {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::commands::diff::build::Counts;
    use crate::json::Lost;
    use fgraph_analysis::tree::Tree;

    /// Makes a build with these edges; the caller "" was not recorded.
    fn build(edges: &[(&str, &str, u64)], module: &str) -> Build {
        let mut build = Build {
            keys: Vec::new(),
            known: HashSet::new(),
            counts: Vec::new(),
            edges: HashMap::new(),
            tree: Tree::default(),
            off: HashSet::new(),
            recordings: 1,
            lost: Lost::default(),
            hosts: BTreeSet::new(),
            arguments: BTreeSet::new(),
            whole: Ok(()),
        };
        let slot = |keys: &mut Vec<Key>, counts: &mut Vec<Vec<Counts>>, name: &str| {
            let known = keys.iter().position(|key| key.0 == name);
            known.unwrap_or_else(|| {
                keys.push((name.to_owned(), module.to_owned()));
                counts.push(vec![Counts::default()]);
                keys.len() - 1
            }) as Slot
        };
        for &(from, to, calls) in edges {
            let from = (!from.is_empty()).then(|| slot(&mut build.keys, &mut build.counts, from));
            let to = slot(&mut build.keys, &mut build.counts, to);
            build.counts[to as usize][0].calls += calls as f64;
            build.edges.insert((from, to), calls);
        }
        build
    }

    /// Returns the names of both builds, with the note.
    fn found(old: &Build, new: &Build) -> Vec<(String, String, String)> {
        let text = |build: &Build, slot: Option<Slot>| {
            slot.map_or_else(String::new, |slot| name(build, slot).to_owned())
        };
        let mut found: Vec<_> = pairs([old, new])
            .into_iter()
            .map(|pair| {
                let [before, after] = pair.slots;
                let note = pair.note.unwrap_or_default();
                (text(old, before), text(new, after), note)
            })
            .collect();
        found.sort();
        found
    }

    fn line(old: &str, new: &str, note: &str) -> (String, String, String) {
        (old.to_owned(), new.to_owned(), note.to_owned())
    }

    #[test]
    fn functions_are_paired_across_file_names_and_copies_by_compilers() {
        let old = build(&[("", "main", 1), ("main", "sum.constprop.0", 3)], "v1");
        let new = build(&[("", "main", 1), ("main", "sum.isra.0", 5)], "v2");
        let expected = [
            line("main", "main", ""),
            line("sum.constprop.0", "sum.isra.0", "was sum.constprop.0"),
        ];
        assert_eq!(found(&old, &new), expected);
    }

    #[test]
    fn a_function_that_has_replaced_another_is_probably_renamed() {
        let old = build(&[("", "main", 1), ("main", "parse", 3)], "v1");
        let new = build(&[("", "main", 1), ("main", "read", 3)], "v2");
        let expected = [
            line("main", "main", ""),
            line("parse", "read", "probably parse [v1], renamed"),
        ];
        assert_eq!(found(&old, &new), expected);
        let new = build(&[("", "main", 1), ("main", "read", 4)], "v2");
        let expected = [
            line("", "read", "not called before"),
            line("main", "main", ""),
            line("parse", "", "not called any more"),
        ];
        assert_eq!(found(&old, &new), expected);
    }

    #[test]
    fn a_function_whose_callees_its_callers_call_now_is_probably_inlined() {
        let old = build(
            &[("", "main", 1), ("main", "parse", 3), ("parse", "skip", 9)],
            "v1",
        );
        let new = build(&[("", "main", 1), ("main", "skip", 9)], "v2");
        let expected = [
            line("main", "main", ""),
            line("parse", "", "probably inlined into main"),
            line("skip", "skip", ""),
        ];
        assert_eq!(found(&old, &new), expected);
    }
}
