//! A flame graph of two builds as a page for browsers.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use fgraph_trace::place;

use super::build::Build;
use super::matching::Pair;
use crate::error::Error;
use crate::text::{in_markup, named, signed_time, time};

/// The head of the page.
const HEAD: &str = "<!DOCTYPE html>
<html lang=en><meta charset=utf-8><title>fgraph diff</title>
<style>
body { font: 12px sans-serif; margin: 1em; background: #fff; color: #000 }
div { position: relative }
.f { position: absolute; height: 17px; overflow: hidden; white-space: nowrap; padding: 0 2px;
     box-sizing: border-box; border: 1px solid #fff; border-radius: 2px }
</style>
<p>Width: time in the new build, or in the old one if that was more. Red: time was added; blue: time
was saved; a deeper colour is a larger part. Point at a bar for numbers.
";

/// The part of the whole below which calls are not drawn.
const LEAST: f64 = 0.0005;

/// The calls from one place of the tree, in both builds.
#[derive(Debug, Default)]
struct Node {
    pair: usize,
    /// Mean times in nanoseconds.
    total: [f64; 2],
    own: [f64; 2],
    children: Vec<usize>,
}

/// Writes the page.
pub(super) fn write(path: &Path, builds: [&Build; 2], pairs: &[Pair]) -> Result<(), Error> {
    let page = page(builds, pairs);
    place::write(path, page).map_err(|error| Error::Write {
        path: path.to_owned(),
        error,
    })
}

fn page(builds: [&Build; 2], pairs: &[Pair]) -> String {
    let nodes = merged(builds, pairs);
    let mut page = HEAD.to_owned();
    let whole: f64 = nodes[0].children.iter().map(|&it| width(&nodes[it])).sum();
    let depth = draw(&mut page, &nodes, 0, (0.0, 0), whole, builds, pairs);
    _ = writeln!(page, "<div style=\"height:{}px\"></div>", (depth + 1) * 18);
    page
}

fn width(node: &Node) -> f64 {
    node.total[0].max(node.total[1])
}

/// Returns the nodes of both trees; the first one is the root.
fn merged(builds: [&Build; 2], pairs: &[Pair]) -> Vec<Node> {
    let mut nodes = vec![Node::default()];
    let mut places: HashMap<(usize, usize), usize> = HashMap::new();
    for (at, build) in builds.into_iter().enumerate() {
        let slots = pairs.iter().enumerate();
        let numbers: HashMap<u32, usize> = slots
            .filter_map(|(number, pair)| Some((pair.slots[at]?, number)))
            .collect();
        let recordings = build.recordings as f64;
        // A node comes after its parent.
        let mut merged = vec![0; build.tree.nodes.len()];
        for (place, node) in build.tree.nodes.iter().enumerate().skip(1) {
            let (parent, pair) = (merged[node.parent as usize], numbers[&node.slot]);
            let next = nodes.len();
            let number = *places.entry((parent, pair)).or_insert(next);
            if number == next {
                nodes.push(Node {
                    pair,
                    ..Node::default()
                });
                nodes[parent].children.push(number);
            }
            merged[place] = number;
            nodes[number].total[at] += node.total as f64 / recordings;
            nodes[number].own[at] += node.own as f64 / recordings;
        }
    }
    nodes
}

/// Draws the calls below a node from `(left, depth)` on, and returns the largest depth.
fn draw(
    page: &mut String,
    nodes: &[Node],
    parent: usize,
    (mut left, depth): (f64, usize),
    whole: f64,
    builds: [&Build; 2],
    pairs: &[Pair],
) -> usize {
    let mut children = nodes[parent].children.clone();
    children.sort_by(|&a, &b| width(&nodes[b]).total_cmp(&width(&nodes[a])));
    let mut deepest = depth;
    for child in children {
        let node = &nodes[child];
        let part = width(node) / whole;
        // Recursion of the page is as deep as the graph.
        if part < LEAST || depth > 500 {
            continue;
        }
        let at = usize::from(pairs[node.pair].slots[1].is_some());
        let key = pairs[node.pair].slots[at].map(|slot| &builds[at].keys[slot as usize]);
        let name = key.map_or_else(String::new, |(name, module)| named(name, module));
        let name = in_markup(&name);
        let [old, new] = node.total.map(|it| it as u64);
        let [own_old, own_new] = node.own.map(|it| it as u64);
        let title = format!(
            "{name}: {} before, {} now, {}; self {} before, {} now, {}",
            time(old),
            time(new),
            signed_time(old, new),
            time(own_old),
            time(own_new),
            signed_time(own_old, own_new),
        );
        _ = writeln!(
            page,
            "<div class=f style=\"left:{:.3}%;width:{:.3}%;top:{}px;background:{}\" \
             title=\"{title}\">{name}</div>",
            left * 100.0,
            part * 100.0,
            depth * 18,
            color(node),
        );
        let below = draw(page, nodes, child, (left, depth + 1), whole, builds, pairs);
        deepest = deepest.max(below);
        left += part;
    }
    deepest
}

/// Returns the colour of a node: by the change of its own time, as a part of its width.
fn color(node: &Node) -> String {
    let change = (node.own[1] - node.own[0]) / width(node).max(1.0);
    let rest = (255.0 - 175.0 * change.abs().min(1.0).sqrt()) as u8;
    match change > 0.0 {
        true => format!("#ff{rest:02x}{rest:02x}"),
        false => format!("#{rest:02x}{rest:02x}ff"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_time_is_red_and_saved_time_is_blue() {
        let node = |old: f64, new: f64| Node {
            own: [old, new],
            total: [old, new],
            ..Node::default()
        };
        assert_eq!(color(&node(0.0, 100.0)), "#ff5050");
        assert_eq!(color(&node(100.0, 0.0)), "#5050ff");
        assert_eq!(color(&node(100.0, 100.0)), "#ffffff");
    }
}
