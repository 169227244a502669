//! Check that the functions are traced in the way of the run.
//!
//! # Safety
//!
//! The unsafe code reads the first bytes of functions.

use std::collections::HashMap;
use std::error::Error;

use fgraph::TraceMethod;
use fgraph::testing::Skip;

use crate::functions::{FUNCTIONS, address};

/// Method by which all functions must be traced.
const HOW: TraceMethod = if cfg!(feature = "relocated") {
    TraceMethod::Relocated
} else {
    TraceMethod::Nop
};

/// Fails unless all functions are sites of the right kind whose returns are reported. Fails also
/// unless threads trap between two instructions, except where the run leaves that step out.
pub(crate) fn check(leave_out: Skip) -> Result<(), Box<dyn Error>> {
    let sites = fgraph::sites()?;
    let sites: HashMap<usize, _> = sites.iter().map(|site| (site.address, site)).collect();
    for index in 0..FUNCTIONS.len() {
        let site = sites.get(&address(index));
        let site = site.ok_or_else(|| format!("fn_{index:04} is not known"))?;
        if site.how != Ok(HOW) || !site.returns {
            return Err(format!("is to be {HOW}: {site}").into());
        }
    }
    if cfg!(feature = "relocated") && !leave_out.contains(Skip::INNER) {
        assembly::check()?;
    }
    Ok(())
}

mod assembly {
    use std::error::Error;

    use fgraph_x86_64::punned_jump;

    use crate::formula::Shape;
    use crate::formula::starts;
    use crate::functions::{FUNCTIONS, address};
    use crate::ledger::Lanes;
    use crate::users::{Identity, Taste, Watcher};

    /// The last byte of a jump may trap by chance in all functions.
    const BUT_LAST: u8 = 0b01111;

    /// Fails unless the bytes of the jumps trap where instructions of the assembly functions start,
    /// and only there. This shows that their shapes are as documented.
    pub(super) fn check() -> Result<(), Box<dyn Error>> {
        let nobody = Identity {
            user: 0,
            registration: 0,
        };
        let probe = Watcher::<(), Lanes, true>::new(nobody, Taste::Nothing);
        // SAFETY: nobody calls the functions meanwhile.
        let _user = unsafe { fgraph::register(probe, "*fn_*") }?;
        let mut trap_in_all = [u8::MAX; 16];
        for index in 0..FUNCTIONS.len() {
            if let Shape::Assembly(shape) = Shape::of(index) {
                let entry = std::ptr::with_exposed_provenance::<[u8; 5]>(address(index));
                // SAFETY: a function is longer than that, or has padding. Nobody changes it
                // meanwhile.
                let bytes = unsafe { entry.read_volatile() };
                let traps = (1..5).filter(|&at| punned_jump::traps(at, bytes[at]));
                trap_in_all[shape] &= traps.fold(1, |mask, at| mask | 1 << at);
            }
        }
        for (shape, traps) in trap_in_all.into_iter().enumerate() {
            let starts = starts(shape);
            if traps & starts != starts || (traps ^ starts) & BUT_LAST != 0 {
                let error = format!("assembly {shape}: {traps:05b} is to be {starts:05b}");
                return Err(error.into());
            }
        }
        Ok(())
    }
}
