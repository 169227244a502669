//! Recursion deeper than the shadow stack.

use super::act::Act;
use super::signals::Actor;
use super::towers::Tower;

use crate::rng::Rng;
use crate::workers;

const LEVELS: std::ops::Range<usize> = 200..1500;

/// Shadow stacks of threads that come from now on are of a random size.
pub(crate) fn prepare(rng: &mut Rng) {
    fgraph::set_shadow_stack_size(8 << 10 << rng.below(7));
}

/// Calls functions at the bottom of a high tower.
pub(crate) fn descend(actor: &Actor, rng: &mut Rng) {
    let (value, seed) = (rng.next(), rng.next());
    let sites = actor.sites;
    let bottom = || {
        let mut rng = Rng::from_state(seed);
        for _ in 0..16 {
            workers::call(rng.below(sites), rng.next());
        }
        value
    };
    let tower = Tower::of_all(rng, sites, &bottom);
    tower.check(LEVELS.start + rng.below(LEVELS.len()), value, Act::Descend);
}
