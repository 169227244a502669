//! What leaves out steps of patching is not there for users.

#![forbid(unsafe_code)]

use fgraph::testing; //~ E0432

fn main() {
    drop(testing::leave_out(testing::Skip::all()));
}
