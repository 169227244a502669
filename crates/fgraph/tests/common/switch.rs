//! Goes on with another stack.

core::arch::global_asm!(
    ".pushsection .text.fgraph_switch_stacks, \"ax\", @progbits",
    ".p2align 4",
    ".globl fgraph_switch_stacks",
    ".hidden fgraph_switch_stacks",
    ".type fgraph_switch_stacks, @function",
    "fgraph_switch_stacks:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size fgraph_switch_stacks, . - fgraph_switch_stacks",
    ".p2align 4",
    ".popsection",
);

unsafe extern "C" {
    /// Keeps the stack pointer at `save`, the other registers that a function must preserve above
    /// it, and goes on with what was kept so at `load`.
    #[link_name = "fgraph_switch_stacks"]
    pub(crate) fn switch_stacks(save: *mut usize, load: usize);
}
