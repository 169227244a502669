//! Users cannot leave out steps of patching.

#![forbid(unsafe_code)]

use fgraph::testing; //~ E0432

fn main() {
    drop(testing::leave_out(testing::Skip::all()));
}
