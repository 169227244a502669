"""The command `fgraph replay` in gdb: the recorded calls that led to the selected frame.

    (gdb) source fgraph-gdb.py
    (gdb) fgraph replay

It works on a core file, and on a live process, of which it makes a core file first, in a temporary
directory. The process must have been recorded: `fgraph record --flight`, or any other recorder with
`--ring overwrite`. The command `fgraph` is found on the PATH, or named by `set fgraph-command`.
"""

import os
import re
import shutil
import subprocess
import tempfile

import gdb

# The number of lines that are shown unless another is requested.
LINES = 40

# The frame of fgraph between a recorded call and its caller.
TRAMPOLINE = "fgraph_trampoline"


class FgraphCommand(gdb.Parameter):
    """The command that reads recordings."""

    set_doc = "Set the command that reads recordings."
    show_doc = "Show the command that reads recordings."

    def __init__(self):
        super().__init__("fgraph-command", gdb.COMMAND_FILES, gdb.PARAM_FILENAME)
        self.value = os.environ.get("FGRAPH", "fgraph")

    def get_set_string(self):
        return ""

    def get_show_string(self, value):
        return f"Recordings are read by {value}."


class Fgraph(gdb.Command):
    """Recorded calls of the program."""

    def __init__(self):
        super().__init__("fgraph", gdb.COMMAND_STACK, prefix=True)


class Replay(gdb.Command):
    """Show the recorded calls that led to the selected frame of the selected thread.

    fgraph replay [LINES]

    Shows LINES lines, 40 by default, up to the call that the frame is in, or up to the end for the
    innermost frame."""

    def __init__(self):
        super().__init__("fgraph replay", gdb.COMMAND_STACK)
        # The core file that was read last, and the recording of it.
        self.known = None
        self.directory = None

    def invoke(self, argument, from_tty):
        arguments = gdb.string_to_argv(argument)
        try:
            count = int(arguments[0]) if arguments else LINES
        except ValueError:
            raise gdb.GdbError("fgraph replay [LINES]")
        thread = gdb.selected_thread()
        if thread is None:
            raise gdb.GdbError("There is no process and no core file: load one first.")
        process, light, number = thread.ptid
        recording = self.recording()
        lines = run("replay", "--no-cpu", "--thread", str(light or number or process), recording)
        lines = lines.splitlines()
        if not lines:
            raise gdb.GdbError("This thread has no recorded calls.")
        selected = gdb.selected_frame()
        past_main = gdb.parameter("backtrace past-main")
        # Only a frame with an older one can be seen to be a recorded call: so can that of `main`.
        gdb.execute("set backtrace past-main on")
        try:
            end = end_of(lines, selected)
        finally:
            gdb.execute(f"set backtrace past-main {'on' if past_main else 'off'}")
            selected.select()
        if end is None:
            print("No recorded call of this thread is among its frames: these are its last calls.")
        lines = lines[:end]
        if len(lines) > count:
            print(f"... {len(lines) - count} lines before: fgraph replay {len(lines)}")
        for line in lines[max(0, len(lines) - count) :]:
            print(line)

    def recording(self):
        """Makes the recording, unless it is known, and returns its path."""
        core = core_file()
        key = core and (core, os.stat(core).st_mtime_ns)
        if key and key == self.known:
            return os.path.join(self.directory.name, "fgraph.data")
        self.known = None
        self.directory = tempfile.TemporaryDirectory(prefix="fgraph-gdb-")
        made = os.path.join(self.directory.name, "core")
        if core is None:
            # The rings are shared memory, which gdb writes unless the filter of the process
            # leaves it out.
            gdb.execute(f"generate-core-file {made}", to_string=True)
        recording = os.path.join(self.directory.name, "fgraph.data")
        program = gdb.current_progspace().filename
        options = ["--program", program] if core and program else []
        try:
            run("recover", "-q", *options, "-o", recording, core or made)
        finally:
            if core is None and os.path.exists(made):
                os.remove(made)
        self.known = key
        return recording


def core_file():
    """Returns the path of the core file that gdb has loaded; None if there is none."""
    found = re.search(r"core dump file:\s*`(.*)', file type", gdb.execute("info files", False, True))
    return found and found.group(1)


def run(*arguments):
    """Runs fgraph, and returns what it prints."""
    command = gdb.parameter("fgraph-command") or "fgraph"
    if shutil.which(command) is None:
        raise gdb.GdbError(f"There is no {command} here: see `set fgraph-command`.")
    done = subprocess.run(
        [command, "--no-config", "--color", "never", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    for line in done.stderr.splitlines():
        print(line)
    # With code 1 it has shown what is left of a file that is cut off.
    if done.returncode not in (0, 1):
        raise gdb.GdbError(f"fgraph {arguments[0]} has failed.")
    return done.stdout


def end_of(lines, selected):
    """Returns the number of lines up to the place where a frame is: the call that it makes, or the
    end. None if the recorded calls are not among the frames."""
    calls = open_calls(lines)
    names = [name for name, _ in calls]
    inner = 0
    recorded = []
    frame = gdb.newest_frame()
    is_inner = True
    while frame is not None and frame.is_valid():
        if frame == selected:
            is_inner = False
        name, older = frame.name(), frame.older()
        if name and older is not None and older.name() == TRAMPOLINE and name != TRAMPOLINE:
            recorded.append(plain(name))
            inner += is_inner
        frame = older
    # In fgraph's own code, the innermost call is about to begin, or over.
    for more in (0, 1):
        if recorded and names[more : more + 1] == recorded[:1]:
            index = inner + more - 1
            return calls[index][1] if 0 <= index < len(calls) else len(lines)
    return None


def open_calls(lines):
    """Returns the calls that have not ended, from the innermost outwards: the name of each, and
    the index of its line."""
    calls = []
    for index, line in enumerate(lines):
        text = line.split("|", 1)[-1]
        depth = len(text) - len(text.lstrip())
        text = text.strip()
        while calls and calls[-1][0] >= depth and text:
            calls.pop()
        if text.endswith("{"):
            calls.append((depth, plain(text), index))
    return [(name, index) for _, name, index in reversed(calls)]


def plain(name):
    """Returns the name of a function without its arguments, as far as they are shown."""
    name = name.split("(", 1)[0] if not name.startswith("(") else name
    return name.strip()


FgraphCommand()
Fgraph()
Replay()
