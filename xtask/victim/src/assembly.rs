//! Functions in assembly, whose first instructions are as the shape wants them.
//!
//! What a compiler makes of `functions.rs` begins with few patterns. Of these sixteen shapes each
//! has instructions at other ones of the first five bytes, all combinations there are, so that a
//! thread may be preempted at any place of the bytes that are patched:
//!
//! ```text
//!   shape  starts  begins with                   shape  starts  begins with
//!       0  |....   mov, relative to rip              8  ||...   push; call
//!       1  |...|   sub rsp                           9  ||..|   push rbp; mov rbp, rsp
//!       2  |..|.   a whole function, padding        10  ||.|.   push; push r15
//!       3  |..||   mov; push                        11  ||.||   push; push r14; push
//!       4  |.|..   push r12; mov                    12  |||..   push; push; mov
//!       5  |.|.|   test; js out of the window       13  |||.|   push; push; push r12
//!       6  |.||.   push r14; push; mov              14  ||||.   push; push; push; mov
//!       7  |.|||   push r14; push; push             15  |||||   five times push
//! ```
//!
//! They have the names of C functions, so all registers survive their being traced.

/// How an assembly function is called.
pub(crate) type Code = extern "C" fn(u64) -> u64;

/// Defines function `$name`, number `$index`, with `$body`, in which `{c}` is its constant.
macro_rules! assembly {
    ($name:ident, $index:literal, $body:literal $(, $callee:ident)?) => {
        core::arch::global_asm!(
            ".pushsection .text.fgraph_victim_assembly, \"ax\", @progbits",
            ".p2align 4",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            $body,
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            // Padding behind the last one as well.
            ".p2align 4",
            ".popsection",
            $(callee = sym $callee,)?
            c = const constant($index),
        );
        unsafe extern "C" {
            safe fn $name(x: u64) -> u64;
        }
    };
}

macro_rules! assembly_0 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "mov rax, qword ptr [rip + 2f]
             xor rax, rdi
             ret
             .pushsection .rodata.fgraph_victim, \"a\", @progbits
             2: .quad {c}
             .popsection"
        );
    };
}

macro_rules! assembly_1 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "sub rsp, 24
             mov [rsp + 8], rdi
             movabs rax, {c}
             add rax, [rsp + 8]
             add rsp, 24
             ret"
        );
    };
}

macro_rules! assembly_2 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "mov rax, rdi
             ret
             .set fgraph_victim_unused, {c}"
        );
    };
}

macro_rules! assembly_3 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "mov rax, rdi
             push rbx
             movabs rbx, {c}
             xor rax, rbx
             pop rbx
             ret"
        );
    };
}

macro_rules! assembly_4 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push r12
             mov r12, rdi
             movabs rax, {c}
             imul rax, r12
             pop r12
             ret"
        );
    };
}

macro_rules! assembly_5 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "test edi, edi
             js 2f
             movabs rax, {c}
             add rax, rdi
             ret
             2:
             movabs rax, {c}
             sub rax, rdi
             ret"
        );
    };
}

macro_rules! assembly_6 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push r14
             push rbx
             mov rbx, rdi
             movabs r14, {c}
             lea rax, [rbx + r14]
             pop rbx
             pop r14
             ret"
        );
    };
}

macro_rules! assembly_7 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push r14
             push rbx
             push rax
             movabs r14, {c}
             mov rbx, rdi
             lea rax, [rbx + r14 + 1]
             pop rcx
             pop rbx
             pop r14
             ret"
        );
    };
}

macro_rules! assembly_8 {
    ($name:ident, $index:literal, $callee:ident) => {
        assembly!(
            $name,
            $index,
            "push rbx
             call {callee}
             movabs rbx, {c}
             xor rax, rbx
             pop rbx
             ret",
            $callee
        );
    };
}

macro_rules! assembly_9 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             mov rbp, rsp
             push rbx
             movabs rbx, {c}
             mov rax, rdi
             sub rax, rbx
             mov rbx, [rbp - 8]
             leave
             ret"
        );
    };
}

macro_rules! assembly_10 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             push r15
             mov r15, rdi
             movabs rbp, {c}
             mov rax, r15
             xor rax, rbp
             pop r15
             pop rbp
             ret"
        );
    };
}

macro_rules! assembly_11 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             push r14
             push rbx
             mov rbx, rdi
             movabs r14, {c}
             lea rax, [rbx + 2*r14]
             pop rbx
             pop r14
             pop rbp
             ret"
        );
    };
}

macro_rules! assembly_12 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbx
             push rax
             mov rbx, rdi
             movabs rax, {c}
             add rax, rbx
             pop rcx
             pop rbx
             ret"
        );
    };
}

macro_rules! assembly_13 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             push rbx
             push r12
             mov rbx, rdi
             movabs r12, {c}
             mov rax, rbx
             rol rax, 7
             xor rax, r12
             pop r12
             pop rbx
             pop rbp
             ret"
        );
    };
}

macro_rules! assembly_14 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             push rbx
             push rax
             mov rbx, rdi
             movabs rax, {c}
             sub rax, rbx
             pop rcx
             pop rbx
             pop rbp
             ret"
        );
    };
}

macro_rules! assembly_15 {
    ($name:ident, $index:literal) => {
        assembly!(
            $name,
            $index,
            "push rbp
             push rbx
             push rax
             push rcx
             push rdx
             mov rbx, rdi
             movabs rax, {c}
             imul rax, rbx
             pop rdx
             pop rcx
             pop rcx
             pop rbx
             pop rbp
             ret"
        );
    };
}
