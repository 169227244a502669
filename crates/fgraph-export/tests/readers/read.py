"""Reads an export with the tools and libraries of its format, and prints what it says as JSON.

Calls are lists of thread, name, begin, duration, depth and how they ended, where the format says so.
Times are nanoseconds of the monotonic clock.
"""

import csv
import decimal
import json
import re
import subprocess
import sys
import time
import zlib


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True)


class Calls:
    """Pairs begins and ends, and fails if they do not match."""

    def __init__(self):
        self.stacks = {}
        self.done = []

    def begin(self, thread, name, at):
        self.stacks.setdefault(thread, []).append((name, at))

    def end(self, thread, at, name=None, ended="returned"):
        stack = self.stacks[thread]
        begun, start = stack.pop()
        assert name is None or name == begun, (name, begun)
        assert at >= start
        self.done.append([thread, begun, start, at - start, len(stack), ended])

    def result(self):
        assert not any(self.stacks.values()), "calls do not end"
        return sorted(self.done, key=str)


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_chrome(path):
    with open(path, encoding="utf-8") as file:
        trace = json.load(file, parse_float=decimal.Decimal)
    calls, marks, lost, names, words = Calls(), [], 0, {}, 0
    for event in trace["traceEvents"]:
        phase, thread = event["ph"], event["tid"]
        if phase == "M":
            names[f"{event['name']} {thread}"] = event["args"]["name"]
            continue
        at = int(event["ts"] * 1000)
        if phase == "B":
            calls.begin(thread, event["name"], at)
            words += sum(int(word, 16) for word in event.get("args", {}).values())
        elif phase == "E":
            ended = event.get("args", {}).get("ended", "returned")
            calls.end(thread, at, event["name"], ended)
        elif event.get("cat") == "lost":
            lost += int(event["name"].split()[1])
        else:
            marks.append([thread, at, event["name"]])
    calls = calls.result()
    return {"calls": calls, "marks": marks, "lost": lost, "names": names, "words": words % 2**64}


def perfetto_trace(proto, path):
    """The packets of a trace, which are compressed in it."""
    trace, packets = proto.Trace(), proto.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    for packet in trace.packet:
        packets.MergeFromString(zlib.decompress(packet.compressed_packets))
    return packets


def read_perfetto(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = perfetto_trace(proto, path)
    calls, marks, lost, names, words = Calls(), [], 0, {}, 0
    tracks, interned, processes = {}, {}, {}
    for packet in trace.packet:
        for name in packet.interned_data.event_names:
            interned[name.iid] = name.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("thread"):
                tracks[track.uuid] = track.thread.tid
                assert processes[track.parent_uuid] == track.thread.pid
                names[f"thread_name {track.thread.tid}"] = track.thread.thread_name
            else:
                processes[track.uuid] = track.process.pid
                names[f"process_name {track.process.pid}"] = track.process.process_name
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        thread = tracks[event.track_uuid]
        notes = {note.name: note for note in event.debug_annotations}
        if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            calls.begin(thread, interned[event.name_iid], at)
            words += sum(note.pointer_value for note in notes.values())
        elif event.type == proto.TrackEvent.TYPE_SLICE_END:
            ended = notes["ended"].string_value if "ended" in notes else "returned"
            calls.end(thread, at, ended=ended)
        elif "lost" in notes:
            lost += notes["lost"].uint_value
        else:
            marks.append([thread, at, event.name])
    calls = calls.result()
    return {"calls": calls, "marks": marks, "lost": lost, "names": names, "words": words % 2**64}


def read_perfetto_categories(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = perfetto_trace(proto, path)
    names, categories, found = {}, {}, {}
    for packet in trace.packet:
        names.update((it.iid, it.name) for it in packet.interned_data.event_names)
        categories.update((it.iid, it.name) for it in packet.interned_data.event_categories)
        event = packet.track_event
        if packet.HasField("track_event") and event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            found[names[event.name_iid]] = [categories[iid] for iid in event.category_iids]
    return found


def read_perfetto_ids(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = perfetto_trace(proto, path)
    tracks = [it.track_descriptor for it in trace.packet if it.HasField("track_descriptor")]
    processes = [[it.process.pid, it.process.process_name] for it in tracks if it.process.pid]
    return processes + [[it.thread.pid, it.thread.tid] for it in tracks if it.thread.tid]


def read_perfetto_states(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    trace = perfetto_trace(proto, path)
    name = proto.GenericKernelTaskStateEvent.TaskStateEnum.Name
    states, counters, tracks = [], [], {}
    for packet in trace.packet:
        track, state = packet.track_descriptor, packet.generic_kernel_task_state_event
        if packet.HasField("track_descriptor"):
            tracks[track.uuid] = track
        if packet.HasField("generic_kernel_task_state_event"):
            what = name(state.state).removeprefix("TASK_STATE_").lower()
            states.append([packet.timestamp, state.tid, what, state.cpu, state.comm])
        elif packet.track_event.type == proto.TrackEvent.TYPE_COUNTER:
            track = tracks[packet.track_event.track_uuid]
            thread = tracks[track.parent_uuid].thread.tid
            value = packet.track_event.double_counter_value
            counters.append([packet.timestamp, thread, track.name, track.counter.unit_name, value])
    return {"states": states, "counters": counters}


def read_parquet(path):
    import duckdb

    rows = duckdb.execute(
        "select process, thread, \"function\", module, start, duration, self, depth,"
        " caller, ended, host, program from read_parquet(?)",
        [path],
    )
    return rows.fetchall()


def read_otlp(path):
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as collector
    from opentelemetry.proto.trace.v1 import trace_pb2 as proto

    with open(path, "rb") as file:
        data = file.read()
    traces, request = proto.TracesData(), collector.ExportTraceServiceRequest()
    traces.ParseFromString(data)
    request.ParseFromString(data)
    assert list(traces.resource_spans) == list(request.resource_spans)
    value = lambda it: it.string_value if it.HasField("string_value") else it.int_value
    attributes = lambda of: {each.key: value(each.value) for each in of.attributes}
    spans, calls, moments, hosts = {}, [], [], {}
    for resource in traces.resource_spans:
        process = attributes(resource.resource)
        hosts[str(process["process.pid"])] = [process["host.name"], process["service.name"]]
        for scope in resource.scope_spans:
            assert scope.scope.name == "fgraph"
            for span in scope.spans:
                assert span.kind == proto.Span.SPAN_KIND_INTERNAL
                assert len(span.trace_id) == 16 and len(span.span_id) == 8
                assert spans.setdefault(span.span_id, span) is span

    def depth(span):
        if not span.parent_span_id:
            return 0
        around = spans[span.parent_span_id]
        assert around.trace_id == span.trace_id
        assert around.start_time_unix_nano <= span.start_time_unix_nano
        assert around.end_time_unix_nano >= span.end_time_unix_nano
        return 1 + depth(around)

    words, roots = 0, set()
    for span in spans.values():
        found = attributes(span)
        begin, end = span.start_time_unix_nano, span.end_time_unix_nano
        if "code.function.name" not in found:
            moments.append([found["thread.id"], begin, span.name])
            continue
        if not span.parent_span_id:
            assert span.trace_id not in roots
            roots.add(span.trace_id)
        words += sum(int(v, 16) for k, v in found.items() if k.startswith("fgraph.argument."))
        ended = found.get("fgraph.ended", "returned")
        calls.append([found["thread.id"], span.name, begin, end - begin, depth(span), ended])
    return {"calls": calls, "moments": moments, "hosts": hosts, "words": words % 2**64}


def read_speedscope(path, schema):
    import jsonschema

    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    with open(schema, encoding="utf-8") as file:
        jsonschema.validate(profile, json.load(file))
    calls, frames = Calls(), profile["shared"]["frames"]
    for one in profile["profiles"]:
        thread = int(re.search(r"\((\d+)\)$", one["name"])[1])
        last = one["startValue"]
        for event in one["events"]:
            assert last <= event["at"] <= one["endValue"]
            last, name = event["at"], frames[event["frame"]]["name"]
            if event["type"] == "O":
                calls.begin(thread, name, last)
            else:
                calls.end(thread, last, name, ended=None)
    return calls.result()


def read_uftrace(path):
    calls, lost = Calls(), 0
    line = re.compile(r"(\d+)\.(\d{9}) +(\d+): \[(\w+) *\] (.*)\(([0-9a-f]+)\) depth: \d+")
    for text in run("uftrace", "dump", "-d", path, "--no-pager").stdout.splitlines():
        if found := line.fullmatch(text):
            seconds, rest, thread, kind, name, address = found.groups()
            thread, at = int(thread), int(seconds) * 10**9 + int(rest)
            if kind == "entry":
                calls.begin(thread, name, at)
            elif kind == "exit":
                calls.end(thread, at, name, ended=None)
            else:
                lost += int(address, 16)
    counts = {}
    report = run("uftrace", "report", "-d", path, "--no-pager", "-f", "call").stdout
    for text in report.splitlines()[2:]:
        count, name = text.split(None, 1)
        counts[name] = int(count)
    replay = run("uftrace", "replay", "-d", path, "--no-pager").stdout
    assert "main()" in replay
    return {"calls": calls.result(), "lost": lost, "counts": counts}


def read_ctf(path):
    shown = run("babeltrace2", "--clock-cycles", "--no-delta", path)
    calls, marks, words = Calls(), [], 0
    line = re.compile(r"\[(\d+)\] (\w+): \{ pid = (\d+), tid = (\d+) \}, \{ (.*) \}")
    for text in shown.stdout.splitlines():
        found = line.fullmatch(text)
        assert found, text
        at, kind, _, thread, fields = found.groups()
        at, thread = int(at), int(thread)
        if kind == "mark":
            marks.append([thread, at, json.loads(fields.removeprefix("text = "))])
            continue
        name = re.match(r'function = \( ("(?:[^"\\]|\\.)*") : container = \d+ \)', fields)
        name = json.loads(name[1])
        if kind == "entry":
            calls.begin(thread, name, at)
            words += sum(int(word, 16) for word in re.findall(r"\] = 0x([0-9A-F]+)", fields))
        else:
            ended = re.search(r'ended = \( "(\w+)"', fields)[1]
            calls.end(thread, at, name, ended)
    lost = sum(int(n) for n in re.findall(r"discarded (\d+) event", shown.stderr))
    return {"calls": calls.result(), "marks": marks, "lost": lost, "words": words % 2**64}


def read_folded(path):
    stacks = {}
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            stack, count = line.rstrip("\n").rsplit(" ", 1)
            # Functions of the same name in two modules have a line each.
            stacks[stack] = stacks.get(stack, 0) + int(count)
    return stacks


def read_svg(path):
    from xml.etree import ElementTree

    totals = {}
    for title in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title"):
        found = re.fullmatch(r"(.*) \(([\d,]+) ns, [\d.]+%\)", title.text or "", re.S)
        if not found:
            continue
        name, count = found.groups()
        totals[name] = totals.get(name, 0) + int(count.replace(",", ""))
    return totals


def read_callgrind(path):
    def rows(*options):
        shown = run("callgrind_annotate", "--threshold=100", *options, path).stdout
        number = re.compile(r"([\d,]+) \([ \d.]+%\)  (?:([*>])  +)?(?:\?\?\?|src/.*?\.c):(.*) \[(.*)\]")
        for text in shown.splitlines():
            if found := number.fullmatch(text.strip()):
                yield int(found[1].replace(",", "")), *found.groups()[1:]

    own = {name: time for time, _, name, _ in rows()}
    edges, current = {}, None
    # The calls of a function stand below it.
    for time_, kind, name, _ in rows("--tree=calling"):
        if kind == "*":
            current = edges.setdefault(name, [])
        else:
            callee, count = re.fullmatch(r"(.*) \((\d+)x\)", name).groups()
            current.append([callee, int(count), time_])
    return {"own": own, "edges": {name: sorted(all) for name, all in edges.items() if all}}


def read_firefox(path, home):
    import os

    os.environ["HOME"] = home

    def ask(*command):
        return json.loads(run("profiler-cli", *command, "--json").stdout)

    # It waits for its own server for half a second only, and advises to try again.
    subprocess.run(["profiler-cli", "load", path], capture_output=True)
    for attempt in range(60):
        try:
            threads = ask("thread", "list", "--limit", "0")["threads"]
            break
        except subprocess.CalledProcessError:
            time.sleep(0.5)
    try:
        result = []
        for thread in threads:
            handle = thread["threadHandle"]
            functions = ask("thread", "functions", "--thread", handle, "--limit", "0")["functions"]
            times = {}
            for function in functions:
                known = times.setdefault(function["name"], [0, 0])
                known[0] += round(function["selfSamples"] * 10**6)
                known[1] += round(function["totalSamples"] * 10**6)
            result.append([
                thread["tid"], thread["pid"], thread["name"], thread["processName"],
                thread["markerCount"], times,
            ])
        return sorted(result, key=lambda thread: thread[0])
    finally:
        subprocess.run(["profiler-cli", "stop", "--all"], capture_output=True)


if __name__ == "__main__":
    reader = globals()[f"read_{sys.argv[1]}"]
    print(json.dumps(reader(*sys.argv[2:])))
