"""Runs a test module of CPython: harness.py MODULE [LOG [LIBRARY]].

With a log, `sys.setprofile` writes the events of each thread there: a line with the number of ends
that are left out and whether the profile function is gone, lines with the names of functions, an
empty line, and one line for each thread. An end without a begin is left out; an end of an outer
call also ends those in it.

With a library, the profile function is the one in C that the library has.
"""
import array
import gc
import random
import sys
import tempfile
import threading
import unittest
import weakref

try:
    # In each run: modules that are there are seen in the events.
    import ctypes
except ImportError:
    ctypes = None

NUMBERS = {"call": 0, "return": 1, "c_call": 2, "c_return": 3, "c_exception": 4}
codes = {}
names = []
kept = []
threads = {}
left_out = 0


def name_of(code, module):
    name = getattr(code, "co_qualname", code.co_name)
    if type(module) is str:
        name = f"{module}.{name}"
    return f"{code.co_filename}:{code.co_firstlineno}\t{name}"


def profile(frame, event, arg):
    global left_out
    kind = NUMBERS[event]
    if kind < 2:
        code = frame.f_code
        at = codes.get(id(code))
        if at is None:
            at = codes[id(code)] = len(names)
            names.append(name_of(code, frame.f_globals.get("__name__")))
            # No other object gets its address.
            kept.append(code)
    else:
        name = arg.__name__
        at = codes.get(name)
        if at is None:
            at = codes[name] = len(names)
            names.append(f"\t{name}")
    # Numbers of the kernel are used again later than those of `threading.get_ident`.
    found = threads.get(threading.get_native_id())
    if found is None:
        found = threads[threading.get_native_id()] = (array.array("L"), [])
    log, calls = found
    call = (id(frame), at, kind >= 2)
    if kind == 0 or kind == 2:
        calls.append(call)
    elif calls and calls[-1] == call:
        calls.pop()
    elif call in calls:
        while calls[-1] != call:
            _, inner, is_c = calls.pop()
            log.append(inner << 3 | (4 if is_c else 1))
        calls.pop()
    else:
        # Calls around all others have begun before the profile function was set.
        left_out += bool(calls)
        return
    log.append(at << 3 | kind)


class Python:
    """The profile function in Python."""

    def begin(self):
        threading.setprofile(profile)
        sys.setprofile(profile)

    def is_gone(self):
        return sys.getprofile() is not profile

    def results(self):
        return left_out, names, [log for log, _ in threads.values()]


class C:
    """The profile function in C."""

    def __init__(self, path):
        library = self.library = ctypes.PyDLL(path)
        pointer, number = ctypes.c_void_p, ctypes.c_uint32
        library.reference_begin.argtypes = [pointer]
        library.reference_begin.restype = None
        library.reference_left_out.restype = ctypes.c_uint64
        for function in (library.reference_code, library.reference_module):
            function.argtypes, function.restype = [number], pointer
        library.reference_name.argtypes = [number]
        library.reference_name.restype = ctypes.c_char_p
        library.reference_log.argtypes = [pointer]
        library.reference_log.restype = pointer
        library.reference_events.argtypes = [pointer]
        library.reference_events.restype = pointer
        library.reference_len.argtypes = [pointer]
        library.reference_len.restype = ctypes.c_size_t
        self.set = library.reference_begin

    def first(self, frame, event, arg):
        # The first event of a thread is perhaps the end of `setprofile`.
        self.set(id(frame) if event == "call" else None)

    def begin(self):
        threading.setprofile(self.first)
        self.set(None)

    def is_gone(self):
        return False

    def results(self):
        library = self.library
        as_object = lambda at: ctypes.cast(at, ctypes.py_object).value
        found = []
        for at in range(library.reference_count()):
            code, module = library.reference_code(at), library.reference_module(at)
            if code is None:
                name = library.reference_name(at).decode("utf-8", "replace")
                found.append(f"\t{name}")
            else:
                found.append(name_of(as_object(code), module and as_object(module)))
        logs = []
        log = library.reference_log(None)
        while log is not None:
            size = 8 * library.reference_len(log)
            events = array.array("L")
            events.frombytes(ctypes.string_at(library.reference_events(log), size))
            logs.append(events)
            log = library.reference_log(log)
        return library.reference_left_out(), found, logs


class Ordered(dict):
    """A set in the order of additions."""

    def add(self, item):
        self[item] = None

    def discard(self, item):
        self.pop(item, None)

    def remove(self, item):
        del self[item]


def order_tasks():
    """Gives the tasks of asyncio an order that their addresses do not change."""
    tasks = sys.modules.get("asyncio.tasks")
    for name in ("_all_tasks", "_scheduled_tasks"):
        found = getattr(tasks, name, None)
        if isinstance(found, weakref.WeakSet) and not found:
            found.data = Ordered()


def run(suite, result):
    suite.run(result)


def main():
    from test import support

    # No test that takes long, or needs a network or a screen.
    support.use_resources = {}
    gc.disable()
    random.seed(1)
    # The same names of temporary files in each run.
    tempfile.gettempdir()
    tempfile._get_candidate_names().rng.seed(1)
    # Threads take turns where one waits, and not after some time.
    sys.setswitchinterval(1000)
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    order_tasks()
    result = unittest.TestResult()
    profiler = None
    if len(sys.argv) > 2:
        profiler = C(sys.argv[3]) if len(sys.argv) > 3 else Python()
        profiler.begin()
    run(suite, result)
    if profiler:
        is_gone = profiler.is_gone()
        sys.setprofile(None)
        threading.setprofile(None)
        left_out, names, logs = profiler.results()
        with open(sys.argv[2], "w", encoding="utf-8", errors="replace") as out:
            print(left_out, int(is_gone), file=out)
            for name in names:
                print(name.replace("\n", " "), file=out)
            print(file=out)
            for log in logs:
                print(*log, file=out)
    for case, text in result.failures + result.errors:
        print(case, text, file=sys.stderr)
    print(result.testsRun, len(result.failures) + len(result.errors))


if __name__ == "__main__":
    main()
