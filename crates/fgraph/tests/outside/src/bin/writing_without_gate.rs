//! Safe code cannot change a call without the gate.

#![forbid(unsafe_code)]

use fgraph::{Entry, Return};

fn entry(call: &mut Entry<'_, ()>) {
    call.set_arg(0, 1); //~ E0599
    call.set_float_arg(0, 1.0); //~ E0599
    call.set_stack_arg(1 << 20, 1); //~ E0599
    call.vector_arg_mut(0); //~ E0599
}

fn ret(call: &mut Return<'_, ()>) {
    call.set_result(1); //~ E0599
    call.set_float_result(1.0); //~ E0599
    call.vector_result_mut(0); //~ E0599
}

fn main() {}
