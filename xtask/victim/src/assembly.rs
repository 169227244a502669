//! Functions in assembly, whose first instructions are as the shape wants them.
//!
//! Compiled functions begin with few patterns. Each of these sixteen shapes has instructions at
//! other places of the first five bytes, in all combinations that exist, so that a thread may be
//! preempted at any place of the bytes that are patched:
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

/// Type of an assembly function.
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

/// Makes the macro of each shape, which takes a name, a number and perhaps a callee.
macro_rules! shapes {
    ($d:tt $($shape:ident($($callee:ident)?): $body:literal;)*) => {
        $(macro_rules! $shape {
            ($d name:ident, $d index:literal $(, $d $callee:ident)?) => {
                assembly!($d name, $d index, $body $(, $d $callee)?);
            };
        })*
    };
}

shapes! { $
    assembly_0():
    "mov rax, qword ptr [rip + 2f]
     xor rax, rdi
     ret
     .pushsection .rodata.fgraph_victim, \"a\", @progbits
     2: .quad {c}
     .popsection";

    assembly_1():
    "sub rsp, 24
     mov [rsp + 8], rdi
     movabs rax, {c}
     add rax, [rsp + 8]
     add rsp, 24
     ret";

    assembly_2():
    "mov rax, rdi
     ret
     .set fgraph_victim_unused, {c}";

    assembly_3():
    "mov rax, rdi
     push rbx
     movabs rbx, {c}
     xor rax, rbx
     pop rbx
     ret";

    assembly_4():
    "push r12
     mov r12, rdi
     movabs rax, {c}
     imul rax, r12
     pop r12
     ret";

    assembly_5():
    "test edi, edi
     js 2f
     movabs rax, {c}
     add rax, rdi
     ret
     2:
     movabs rax, {c}
     sub rax, rdi
     ret";

    assembly_6():
    "push r14
     push rbx
     mov rbx, rdi
     movabs r14, {c}
     lea rax, [rbx + r14]
     pop rbx
     pop r14
     ret";

    assembly_7():
    "push r14
     push rbx
     push rax
     movabs r14, {c}
     mov rbx, rdi
     lea rax, [rbx + r14 + 1]
     pop rcx
     pop rbx
     pop r14
     ret";

    assembly_8(callee):
    "push rbx
     call {callee}
     movabs rbx, {c}
     xor rax, rbx
     pop rbx
     ret";

    assembly_9():
    "push rbp
     mov rbp, rsp
     push rbx
     movabs rbx, {c}
     mov rax, rdi
     sub rax, rbx
     mov rbx, [rbp - 8]
     leave
     ret";

    assembly_10():
    "push rbp
     push r15
     mov r15, rdi
     movabs rbp, {c}
     mov rax, r15
     xor rax, rbp
     pop r15
     pop rbp
     ret";

    assembly_11():
    "push rbp
     push r14
     push rbx
     mov rbx, rdi
     movabs r14, {c}
     lea rax, [rbx + 2*r14]
     pop rbx
     pop r14
     pop rbp
     ret";

    assembly_12():
    "push rbx
     push rax
     mov rbx, rdi
     movabs rax, {c}
     add rax, rbx
     pop rcx
     pop rbx
     ret";

    assembly_13():
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
     ret";

    assembly_14():
    "push rbp
     push rbx
     push rax
     mov rbx, rdi
     movabs rax, {c}
     sub rax, rbx
     pop rcx
     pop rbx
     pop rbp
     ret";

    assembly_15():
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
     ret";
}
