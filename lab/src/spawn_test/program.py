# Starts processes with two threads until CHILDREN have ended, or for SECONDS.
import subprocess
import sys
import threading
import time

left = iter(range(int(sys.argv[1])))
end = time.monotonic() + int(sys.argv[2])
statuses = []


def starts():
    while next(left, None) is not None and time.monotonic() < end:
        status = subprocess.run(["/bin/true"]).returncode
        if status != 0:
            print("a child has ended with", status, file=sys.stderr)
        statuses.append(status)


print("begun", flush=True)
threads = [threading.Thread(target=starts) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("ended", len(statuses), sum(status != 0 for status in statuses))
