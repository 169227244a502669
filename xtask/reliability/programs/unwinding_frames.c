/* A personality routine finds the data of its frame by the stack pointer that the unwinder tells, as that of
 * LuaJIT's interpreter does: the frame is of assembly, and its data is in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "kept.h"

#define KEY 0x5a5a12345678a5a5

static volatile int sink;
static int asked, wrong;
static struct _Unwind_Exception thrown;

/* Calls `function` with a number; gives 1 if that throws. */
int called(void (*function)(int), int number);
extern char called_catches[], called_end[];

__asm__(".pushsection .text\n"
        ".globl called\n"
        ".hidden called_catches, called_end, personality\n"
        ".type called, @function\n"
        "called:\n"
        ".cfi_startproc\n"
        ".cfi_personality 0x1b, personality\n"
        "sub $24, %rsp\n"
        ".cfi_adjust_cfa_offset 24\n"
        "movabs $0x5a5a12345678a5a5, %rax\n"
        "mov %rax, (%rsp)\n"
        "mov %rdi, %rax\n"
        "mov %esi, %edi\n"
        "call *%rax\n"
        "xor %eax, %eax\n"
        "add $24, %rsp\n"
        ".cfi_adjust_cfa_offset -24\n"
        "ret\n"
        ".globl called_catches\n"
        "called_catches:\n"
        ".cfi_adjust_cfa_offset 24\n"
        "mov $1, %eax\n"
        "add $24, %rsp\n"
        ".cfi_adjust_cfa_offset -24\n"
        "ret\n"
        ".globl called_end\n"
        "called_end:\n"
        ".cfi_endproc\n"
        ".size called, . - called\n"
        ".popsection\n");

static void look(struct _Unwind_Context *context) {
    unsigned long key;
    memcpy(&key, (void *)_Unwind_GetCFA(context), sizeof key);
    asked = asked + 1;
    wrong = wrong + (key != KEY);
}

__attribute__((visibility("hidden"))) _Unwind_Reason_Code personality(int version, _Unwind_Action actions, unsigned long class,
                                                                      struct _Unwind_Exception *exception,
                                                                      struct _Unwind_Context *context) {
    (void)version, (void)class, (void)exception;
    look(context);
    if (actions & _UA_SEARCH_PHASE)
        return _URC_HANDLER_FOUND;
    _Unwind_SetIP(context, (unsigned long)called_catches);
    return _URC_INSTALL_CONTEXT;
}

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *unused) {
    (void)unused;
    unsigned long at = _Unwind_GetIP(context);
    if (at > (unsigned long)called && at < (unsigned long)called_end)
        look(context);
    return _URC_NO_REASON;
}

KEPT void returns(int number) {
    sink = sink + number;
    _Unwind_Backtrace(step, NULL);
    sink = sink + number;
}

KEPT void throws(int number) {
    if (number == 0) {
        _Unwind_RaiseException(&thrown);
        abort();
    }
    throws(number - 1);
    sink = sink + number;
}

int main(void) {
    for (int i = 0; i < 20; i++)
        sink = sink + called(returns, i) + called(throws, i % 4);
    printf("%d asked, %d wrong, %d\n", asked, wrong, sink);
    return asked != 60 || wrong;
}
