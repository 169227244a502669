"""Runs a program, and has an empty pair of C functions called at entry and return of its `leaf`."""

import subprocess
import sys

import frida

AGENT = """
const watcher = new CModule(`
#include <gum/guminterceptor.h>
void onEnter(GumInvocationContext *call) {}
void onLeave(GumInvocationContext *call) {}
`);
Interceptor.attach(Process.mainModule.getExportByName('leaf'), watcher);
"""

program, calls = sys.argv[1:]
# With a second argument it waits for a line before it begins.
pipe = subprocess.PIPE
process = subprocess.Popen([program, calls, "wait"], stdin=pipe, stdout=pipe)
try:
    session = frida.attach(process.pid)
    script = session.create_script(AGENT)
    script.load()
    output, _ = process.communicate(b"\n", timeout=60)
finally:
    process.kill()
sys.stdout.write(output.decode())
