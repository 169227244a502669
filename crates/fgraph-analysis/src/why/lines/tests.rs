//! Lines of trees that are made up.

use super::*;

/// A tree of `a > b > c` and `a > d`.
fn tree() -> (Tree, [u32; 4]) {
    let mut tree = Tree::default();
    let a = tree.child(0, 1);
    let b = tree.child(a, 2);
    let c = tree.child(b, 3);
    let d = tree.child(a, 4);
    (tree, [a, b, c, d])
}

fn lines(tree: &Tree, differences: &[(u32, f64)]) -> Vec<(u32, f64)> {
    let differences = differences.iter();
    let differences = differences.map(|&(place, ticks)| ((Cause::Computes, place), ticks));
    let lines = explain(tree, &differences.collect());
    lines.iter().map(|line| (line.place, line.ticks)).collect()
}

#[test]
fn a_line_is_at_the_innermost_call_that_has_most_of_the_time() {
    let (tree, [a, b, c, d]) = tree();
    assert_eq!(lines(&tree, &[(a, 2.0), (c, 98.0)]), [(c, 98.0)]);
    assert_eq!(
        lines(&tree, &[(b, 50.0), (c, 49.0), (d, 1.0)]),
        [(b, 50.0), (c, 49.0)]
    );
    assert_eq!(
        lines(&tree, &[(c, 60.0), (d, 40.0)]),
        [(c, 60.0), (d, 40.0)]
    );
    let own = [(a, 30.0), (c, 40.0), (d, 30.0)];
    assert_eq!(lines(&tree, &own), [(c, 40.0), (a, 30.0), (d, 30.0)]);
}

#[test]
fn time_that_was_saved_has_no_line() {
    let (tree, [a, _, c, d]) = tree();
    assert_eq!(lines(&tree, &[(c, 100.0), (d, -20.0)]), [(c, 100.0)]);
    assert!(lines(&tree, &[(a, -5.0)]).is_empty());
    assert!(lines(&tree, &[]).is_empty());
}

#[test]
fn a_line_has_the_time_of_the_calls_below_it() {
    let (tree, [a, b, c, d]) = tree();
    let line = |place, except: &[u32]| Line {
        cause: Cause::Lock,
        place,
        ticks: 0.0,
        except: except.to_vec(),
    };
    let parts = [(a, 1), (b, 10), (c, 100), (d, 1000)];
    let parts: Parts = parts
        .map(|(place, ticks)| ((Cause::Lock, place), ticks))
        .into();
    assert_eq!(line(b, &[]).ticks_of(&tree, &parts), 110);
    assert_eq!(line(a, &[]).ticks_of(&tree, &parts), 1111);
    assert_eq!(line(a, &[b, d]).ticks_of(&tree, &parts), 1);
    assert_eq!(line(a, &[b]).ticks_of(&tree, &parts), 1001);
    assert_eq!(line(0, &[]).ticks_of(&tree, &parts), 1111);
}
