"""Runs a test module of CPython: harness.py MODULE [LOG].

With a log, `sys.setprofile` writes the events of each thread there: lines with the names of
functions, then one line for each thread.
"""
import array
import gc
import random
import sys
import threading
import unittest

NUMBERS = {"call": 0, "return": 1, "c_call": 2, "c_return": 3, "c_exception": 4}
codes = {}
names = []
kept = []
threads = {}


def profile(frame, event, arg):
    number = NUMBERS[event]
    if number < 2:
        code = frame.f_code
        at = codes.get(id(code))
        if at is None:
            name = getattr(code, "co_qualname", code.co_name)
            module = frame.f_globals.get("__name__")
            if type(module) is str:
                name = f"{module}.{name}"
            at = codes[id(code)] = len(names)
            names.append(f"{code.co_filename}:{code.co_firstlineno}\t{name}")
            # No other object gets its address.
            kept.append(code)
    else:
        name = arg.__name__
        at = codes.get(name)
        if at is None:
            at = codes[name] = len(names)
            names.append(f"\t{name}")
    log = threads.get(get_ident())
    if log is None:
        log = threads[get_ident()] = array.array("L")
    log.append(at << 3 | number)


def get_ident():
    # Numbers of the kernel are used again later than those of `threading.get_ident`.
    return threading.get_native_id()


def run(suite, result):
    suite.run(result)


def main():
    from test import support

    # No test that takes long, or needs a network or a screen.
    support.use_resources = {}
    gc.disable()
    random.seed(1)
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    result = unittest.TestResult()
    if len(sys.argv) > 2:
        threading.setprofile(profile)
        sys.setprofile(profile)
    run(suite, result)
    if len(sys.argv) > 2:
        if sys.getprofile() is not profile:
            sys.exit("the profile function is gone: a test has removed it, or it failed")
        sys.setprofile(None)
        threading.setprofile(None)
        with open(sys.argv[2], "w", encoding="utf-8", errors="replace") as out:
            for name in names:
                print(name.replace("\n", " "), file=out)
            print(file=out)
            for log in threads.values():
                print(*log, file=out)
    for case, text in result.failures + result.errors:
        print(case, text, file=sys.stderr)
    print(result.testsRun, len(result.failures) + len(result.errors))


if __name__ == "__main__":
    main()
