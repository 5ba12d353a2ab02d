"""Programs that attack the sandbox, and a runner for them that any user can start with any Python.

    python sandbox_attacks.py [--watched | --kill] < names       a JSON line for each attack, then one in all

An attack that gets what it must not have prints `ESCAPED`. The runner needs no package, so that a user can
run it who may not read the environment of the tests.
"""
# ruff: noqa: E501 - programs on one line

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MEMORY = 160
SECONDS = 1.0
AT_A_TIME = 8

PRELUDE = """
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def hang():
    while True: time.sleep(1000)
def tried(function, *arguments):
    try: result = function(*arguments)
    except (OSError, ValueError) as error: print(error)
    else: print("ESCAPED", function, result)
def call(x86, arm, *arguments):
    result = libc.syscall(x86 if platform.machine() == "x86_64" else arm, *arguments)
    return result, ctypes.get_errno()
def forbidden(x86, arm, *arguments):
    result, error = call(x86, arm, *arguments)
    print("refused" if result == -1 and error in (errno.EPERM, errno.ENOSYS, errno.EINVAL) else f"ESCAPED {result} {error}")
"""

SURVIVE = {
    "endless loop": "while True: pass",
    "sleeps": "hang()",
    "sleeps in a session of its own": "if not os.fork(): os.setsid(); hang()\nhang()",
    "leaves a child behind": "if not os.fork(): hang()",
    "leaves a child in a session of its own behind": "if not os.fork(): os.setsid(); hang()",
    "daemon": """
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for each in range(64):
    try: os.close(each)
    except OSError: pass
hang()""",
    "clears its death signal": "libc.prctl(1, 0)\nif not os.fork(): libc.prctl(1, 0); os.setsid(); hang()\nhang()",
    "daemon that clears its death signal": "if not os.fork(): os.setsid(); libc.prctl(1, 0); hang()\nos._exit(0)",
    "process group of its own": "if not os.fork(): os.setpgid(0, 0); hang()\nhang()",
    "forks to reset its processor time": "while True:\n    if os.fork(): os._exit(0)",
    "forks to reset its processor time, working": """
while True:
    end = time.monotonic() + 0.2
    while time.monotonic() < end: pass
    if os.fork(): os._exit(0)""",
    "fork bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb of sessions": "while True:\n    try:\n        if not os.fork(): os.setsid()\n    except OSError: pass",
    "exec bomb": "os.execv(sys.executable, [sys.executable, __file__])",
    "starts itself": """
while True:
    try: subprocess.Popen([sys.executable, __file__], start_new_session=True)
    except OSError: pass""",
    "thread bomb": """
while True:
    try: threading.Thread(target=time.sleep, args=(99,)).start()
    except RuntimeError: pass""",
    "zombies": "while True:\n    try:\n        if not os.fork(): os._exit(0)\n    except OSError: pass",
    "orphans": """
while True:
    try: child = os.fork()
    except OSError: continue
    if not child:
        try: os.fork()
        finally: hang()
    os.kill(child, 9); os.waitpid(child, 0)""",
    "vfork that never execs": "libc.vfork()\nlibc.pause()",
    "ignores every signal": """
for each in range(1, 65):
    try: signal.signal(each, signal.SIG_IGN)
    except (OSError, ValueError): pass
hang()""",
    "blocks every signal": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); hang()",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its group": "os.kill(0, signal.SIGSTOP)",
    "stops everything": "if not os.fork(): hang()\nos.kill(-1, signal.SIGSTOP); os.kill(0, signal.SIGSTOP)",
    "stops init": "libc.kill(1, signal.SIGSTOP); libc.kill(os.getppid(), signal.SIGSTOP); hang()",
    "kills init": "libc.kill(1, signal.SIGKILL); hang()",
    "every signal to init": "for each in range(1, 65): libc.kill(1, each)\nhang()",
    "queued signals to init": """
for each in range(1, 65): call(129, 138, 1, each, ctypes.create_string_buffer(struct.pack("iii", each, 0, -1), 128))
hang()""",
    "every signal to all": "if not os.fork(): os.setsid(); hang()\nfor each in range(1, 65): libc.kill(-1, each)\nhang()",
    "kills its group": "if not os.fork(): os.setsid(); hang()\nos.kill(0, 9)",
    "slows init down": "libc.setpriority(0, 1, 19); libc.setpriority(2, 0, 19); [os.fork() for _ in range(3)]\nwhile True: pass",
    "limits init": "call(302, 261, 1, 7, struct.pack('QQ', 0, 0), 0); call(302, 261, 1, 0, struct.pack('QQ', 0, 0), 0); hang()",
    "closes every descriptor": "os.closerange(0, 64); hang()",
    "closes its output and goes on": "os.close(1); os.close(2)\nwhile True: pass",
    "a child holds the pipes": "if not os.fork(): os.setsid(); hang()\nprint('done'); os._exit(0)",
    "waits for input": "sys.stdin.read(); hang()",
    "busy in C": "x = 9 ** 9 ** 8",
    "catastrophic pattern": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "floods its output": "while True: os.write(1, b'x' * 65536)",
    "floods its error output": "while True: os.write(2, b'x' * 65536)",
    "floods from many": "[os.fork() for _ in range(3)]\nwhile True: os.write(1, b'x' * 65536)",
    "trickles output": "while True: print('x', flush=True); time.sleep(0.01)",
    "deep recursion": "sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "stack overflow in C": "sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "stack of a thread": "threading.stack_size(100 << 20); threading.Thread(target=hang).start(); hang()",
    "timers": "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6); hang()",
    "shell in the background": "subprocess.run(['/bin/sh', '-c', 'setsid sleep 1000 & setsid sleep 1000 & exit'])",
    "shell with nohup": "subprocess.Popen(['/bin/sh', '-c', 'trap \"\" HUP TERM; nohup sleep 1000 >/dev/null 2>&1 &'])",
    "clone with another parent": "call(56, 220, 0x8000 | 17, 0, 0, 0, 0)\nos.setsid() if os.getpid() > 3 else None\nhang()",
    "subreaper": "libc.prctl(36, 1)\nif not os.fork():\n    if not os.fork(): os.setsid(); hang()\n    os._exit(0)\nhang()",
    "deleted working folder": "os.mkdir('a'); os.chdir('a'); os.rmdir('../a')\nif not os.fork(): os.setsid(); hang()\nhang()",
    "dumps core": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nif not os.fork(): os.setsid(); hang()\nos.abort()",
    "wide arguments": "os.execv('/bin/true', ['x' * 131000] * 15)",
    "a pipe nobody reads": "r, w = os.pipe()\nwhile True: os.write(w, b'x' * 65536)",
    "locks itself out": "f = open('a', 'w'); g = open('a')\nfcntl.flock(f, fcntl.LOCK_EX); fcntl.flock(g, fcntl.LOCK_EX)",
    "changes its program file": "os.rename(__file__, 'old'); open(__file__, 'w').write('while True: pass'); os.execv(sys.executable, [sys.executable, __file__])",
    "removes its program file": "os.unlink(__file__); hang()",
}
"""Those that try to live on, or to make the sandbox wait."""

TAKE = {
    "one large block": "bytearray(10**10)",
    "bit by bit": "x = []\nwhile True: x.append(bytearray(10**6))",
    "seven children": """
for _ in range(7):
    if not os.fork(): break
x = bytearray(b'x') * (120 << 20)
hang()""",
    "seven children, populated at once": """
for _ in range(7):
    if not os.fork(): break
x = mmap.mmap(-1, 120 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)
hang()""",
    "children in sessions of their own": """
for _ in range(7):
    if not os.fork(): os.setsid(); break
x = bytearray(b'x') * (120 << 20)
hang()""",
    "orphans": """
for _ in range(3):
    if not os.fork():
        if os.fork(): os._exit(0)
        x = bytearray(b'x') * (120 << 20); hang()
hang()""",
    "handed on from child to child": """
for _ in range(3):
    if not os.fork():
        while True:
            x = bytearray(b'x') * (100 << 20)
            if os.fork(): os._exit(0)
            del x
hang()""",
    "lends its memory": "forbidden(56, 220, 0x4000 | 17, 0, 0, 0, 0)",
    "threads": """
def take(): x.append(bytearray(b'x') * (60 << 20)); hang()
x = []
for _ in range(6): threading.Thread(target=take).start()
hang()""",
    "children that share a parent's memory": """
x = bytearray(b'x') * (100 << 20)
for _ in range(6):
    if not os.fork():
        for i in range(0, len(x), 4096): x[i] = 1
        hang()
hang()""",
    "shared, then out of sight": """
for _ in range(6):
    if not os.fork(): break
try:
    x = mmap.mmap(-1, 120 << 20)
    for i in range(0, len(x), 4096): x[i] = 1
    x.madvise(mmap.MADV_DONTNEED); print('ESCAPED')
except OSError as error: print(error)
hang()""",
    "mapped /dev/zero": "tried(lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20))",
    "System V shared memory": "for _ in range(9): forbidden(29, 194, 0, 100 << 20, 0o1600)",
    "System V semaphores": "forbidden(64, 190, 0, 30000, 0o1600)",
    "System V messages": "forbidden(68, 186, 0, 0o1600)",
    "memfd": "forbidden(319, 279, b'x', 0)",
    "memfd by Python": "tried(os.memfd_create, 'x')",
    "secret memory": "forbidden(447, 447, 0)",
    "huge pages": "tried(lambda: mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))",
    "large pipes": "r, w = os.pipe(); tried(fcntl.fcntl, w, 1031, 1 << 20)",
    "many pipes": """
pipes = []
for _ in range(7):
    if not os.fork(): break
try:
    while True:
        r, w = os.pipe(); os.set_blocking(w, False); pipes.append((r, w))
        try:
            while True: os.write(w, b'x' * 4096)
        except BlockingIOError: pass
except OSError: hang()""",
    "vmsplice": "forbidden(278, 75, 1, 0, 0, 0)",
    "splice": "forbidden(275, 76, 0, 0, 1, 0, 4096, 0)",
    "large socket buffers": "a, b = socket.socketpair(); tried(a.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)",
    "many sockets": """
pairs = []
for _ in range(7):
    if not os.fork(): break
try:
    while True:
        a, b = socket.socketpair(); a.setblocking(False); pairs.append(b)
        try:
            while True: a.send(b'x' * 4096)
        except BlockingIOError: pass
        a.close()
except OSError: hang()""",
    "datagrams": "tried(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
    "descriptors in flight": "a, b = socket.socketpair(); tried(socket.send_fds, a, [b'x'], [0])",
    "message queues": "forbidden(240, 180, b'x', 66, 384, 0)",
    "io_uring": "forbidden(425, 425, 4096, ctypes.create_string_buffer(256))",
    "userfaultfd": "forbidden(323, 282, 1)",
    "keys": "forbidden(248, 217, b'user', b'x', b'y' * 1000, 1000, -3)",
    "keyrings": "forbidden(250, 219, 1, 0)",
    "fills its folder": """
try:
    while True: open('big', 'ab').write(bytes(1 << 20))
except OSError as error: print(error)
print('ESCAPED' if os.stat('big').st_size > 5 << 20 else 'bounded')""",
    "many files in its folder": """
def fill(number):
    with open(f'{number}', 'wb') as file: file.write(bytes(1 << 20))
for number in range(100):
    try: fill(number)
    except OSError: break
else: print('ESCAPED')""",
    "sparse files": "open('x', 'w').close(); tried(os.truncate, 'x', 1 << 40)",
    "deleted files": """
files = []
try:
    for number in range(40):
        files.append(open('x', 'wb')); os.unlink('x'); files[-1].write(bytes(1 << 20)); files[-1].flush()
    print('ESCAPED')
except OSError as error: print(error)""",
    "inodes": """
try:
    for number in range(10**5): os.mkdir(str(number))
    print('ESCAPED')
except OSError as error: print(error)""",
    "extended attributes": "open('x', 'w').close(); tried(os.setxattr, 'x', 'user.x', b'x' * 60000)",
    "files outside": "for each in '/dev/shm/x', '/tmp/x', '/var/tmp/x', '/x', '/run/x', '/dev/x': tried(open, each, 'w')",
    "raises its limits": """
for each in resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU:
    tried(resource.setrlimit, each, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))""",
    "locks memory": "result = libc.mlockall(3); print('ESCAPED' if result == 0 else 'refused')",
    "swaps memory out": """
x = mmap.mmap(-1, 100 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for _ in range(6):
    if not os.fork(): break
for i in range(0, len(x), 4096): x[i] = 1
x.madvise(21); hang()""",
}
"""Those that try to have more memory than they may."""

REACH = {
    "environment": "print('ESCAPED' if set(os.environ) - {'PATH', 'HOME', 'LC_CTYPE', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'} else 'clean', os.environ)",
    "inherited descriptors": """
for each in range(3, 64):
    try: print('ESCAPED', each, os.fstat(each))
    except OSError: pass""",
    "files of others": "for each in '/etc/passwd', '/root/.ssh', '/tmp/.X11-unix', '/var', '/proc/1/mem', '/sys': tried(os.stat, each)",
    "its own process": "for each in 'oom_score_adj', 'mem', 'environ', 'fd/0': tried(open, f'/proc/self/{each}', 'w')",
    "sysrq": "tried(open, '/proc/sysrq-trigger', 'w')",
    "out by a symbolic link": "os.symlink('/etc/passwd', 'x'); tried(open, 'x')",
    "out by a link": "tried(os.link, sys.executable, 'x')",
    "out by dots": "tried(open, '/scratch/../../../../etc/passwd')",
    "out by the working folder": "os.chdir('/'); tried(os.chdir, '../../../etc/ssl')",
    "changes the system": "for each in '/usr/x', '/bin/x', sys.prefix + '/x', os.__file__: tried(open, each, 'w')",
    "devices": "for each in '/dev/mem', '/dev/kmsg', '/dev/tty', '/dev/ptmx', '/dev/vda', '/dev/fuse', '/dev/kvm': tried(open, each)",
    "makes a device": "tried(os.mknod, 'x', 0o60644, os.makedev(254, 0))",
    "types into the terminal": "tried(fcntl.ioctl, 0, 0x5412, b'x'); tried(open, '/dev/tty')",
    "locks the host's files": """
for path in os.__file__, sys.executable, '/usr/bin/env', '/usr', '/', '/dev/null':
    first, second = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error: print('ESCAPED', error)
    for command in 6, 37:
        try: fcntl.fcntl(first, command, struct.pack('hhqqi4x', 0, 0, 0, 0, 0))
        except OSError as error: print(error)
    if not os.fork():
        held = struct.unpack('hhqqi4x', fcntl.fcntl(second, 5, struct.pack('hhqqi4x', 1, 0, 0, 0, 0)))
        print('ESCAPED' if held[0] != 2 else 'free', held); os._exit(0)
    os.wait()""",
    "becomes root": "tried(os.setuid, 0); tried(os.setresuid, 0, 0, 0); tried(os.setgid, 0); tried(os.setgroups, [0])",
    "set-user-id programs": """
for each in '/usr/bin/su', '/bin/su', '/usr/bin/passwd', '/usr/bin/mount':
    if os.path.exists(each): print(subprocess.run([each, '--version'], stdin=0).returncode)
print('ESCAPED' if 0 in os.getresuid() else 'same')""",
    "has capabilities": """
header, data = struct.pack('Ii', 0x20080522, 0), ctypes.create_string_buffer(24)
libc.capget(header, data); print('ESCAPED' if any(struct.unpack('6I', data.raw)[i] for i in (0, 1, 3, 4)) else 'none')""",
    "network": "tried(socket.create_connection, ('127.0.0.1', 22), 1); tried(socket.create_connection, ('1.1.1.1', 53), 1)",
    "sockets of every kind": """
for family in 1, 2, 3, 10, 15, 16, 17, 29, 31, 38, 40, 44:
    for kind in 1, 2, 3, 5: tried(socket.socket, family, kind)""",
    "abstract sockets": "tried(lambda: socket.socket(socket.AF_UNIX).connect('\\0x'))",
    "user namespace": "forbidden(272, 97, 0x10000000)",
    "process namespace": "forbidden(272, 97, 0x20000000)",
    "namespaces of others": "forbidden(308, 268, 0, 0)",
    "clone with namespaces": "for each in 0x20000, 0x2000000, 0x10000000, 0x20000000, 0x40000000: forbidden(56, 220, each | 17, 0, 0, 0, 0)",
    "clone3": "forbidden(435, 435, struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)",
    "mounts": "forbidden(165, 40, b'x', b'/usr', b'tmpfs', 0, 0)",
    "new mounts": "forbidden(428, 428, -100, b'/', 0); forbidden(429, 429, -1, b'', -100, b'/', 0); forbidden(430, 430, b'tmpfs', 0)",
    "unmounts": "forbidden(166, 39, b'/usr', 2)",
    "changes its root": "forbidden(161, 51, b'/scratch'); forbidden(155, 41, b'/', b'/scratch')",
    "files by handle": "forbidden(304, 265, -100, ctypes.create_string_buffer(128), 0); forbidden(303, 264, -100, b'/', 0, 0, 0)",
    "traces init": "forbidden(101, 117, 16, 1, 0, 0)",
    "traces itself": "forbidden(101, 117, 0, 0, 0, 0)",
    "memory of init": "forbidden(310, 270, 1, 0, 0, 0, 0, 0); forbidden(311, 271, 1, 0, 0, 0, 0, 0)",
    "descriptors of init": "fd = os.pidfd_open(1); forbidden(438, 438, fd, 0, 0)",
    "bpf": "forbidden(321, 280, 0, ctypes.create_string_buffer(128), 128)",
    "perf": "forbidden(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    "another kernel": "forbidden(246, 104, 0, 0, 0, 0); forbidden(169, 142, 0, 0, 0, 0)",
    "kernel modules": "forbidden(175, 105, 0, 0, b''); forbidden(313, 273, 0, b'', 0)",
    "kernel log": "forbidden(103, 116, 3, 0, 0)",
    "clock": "forbidden(227, 112, 0, struct.pack('qq', 0, 0)); forbidden(159, 171, ctypes.create_string_buffer(208))",
    "host name": "forbidden(170, 161, b'x', 1)",
    "personality": "forbidden(135, 92, 0x0040000)",
    "real-time scheduling": "forbidden(144, 119, 0, 1, struct.pack('i', 50)); forbidden(314, 274, 0, b'', 0)",
    "scheduling of init": "forbidden(203, 122, 1, 8, b'\\1\\0\\0\\0\\0\\0\\0\\0'); forbidden(141, 140, 0, 1, 19)",
    "input and output priority": "forbidden(251, 30, 1, 0, 8193)",
    "processor ports": "forbidden(172, 92, 3)",
    "swap and accounting": "forbidden(167, 224, b'x', 0); forbidden(163, 89, b'x')",
    "quota": "forbidden(179, 60, 0, 0, 0, 0)",
    "inotify and fanotify": "forbidden(294, 26, 0); forbidden(300, 262, 0, 0)",
    "NUMA": "forbidden(237, 235, 0, 0, 0, 0, 0, 0); forbidden(256, 238, 1, 8, 0, 0)",
    "seccomp of its own": "forbidden(317, 277, 1, 0, 0)",
    "Landlock of its own": "forbidden(444, 444, 0, 0, 1)",
    "32-bit calls": """
if platform.machine() == 'x86_64':
    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex('b814000000cd80c3'))
    at = ctypes.addressof(ctypes.c_char.from_buffer(code))
    print('ESCAPED', ctypes.CFUNCTYPE(ctypes.c_int)(at)())""",
    "x32 calls": "if platform.machine() == 'x86_64': print('ESCAPED', libc.syscall(0x40000000 + 39))",
}
"""Those that try to see or change what is not theirs."""

ATTACKS = {
    f"{kind}: {name}": PRELUDE + program
    for kind, programs in (("survive", SURVIVE), ("take", TAKE), ("reach", REACH))
    for name, program in programs.items()
}


WORKER = f"""
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
sandbox = Sandbox(Limits(timeout=100, memory={MEMORY}, scratch=4))
print("ready", flush=True)
while True: sandbox.run("import os, time\\nif not os.fork(): os.setsid()\\ntime.sleep(0.05)", b"")
"""
"""Starts programs for ever."""


def main() -> None:
    """Run the attacks whose names come in, or kill workers."""
    names = json.loads(sys.stdin.read())
    if "--kill" in sys.argv:
        for number in range(12):
            kill_worker(number * 0.017)
    else:
        run(names)
    deadline = time.monotonic() + 1
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.01)
    print(json.dumps({"left": [Path(f"/proc/{one}/cmdline").read_text() for one in left]}))


def run(names: list[str]) -> None:
    """Print how each attack ended: those on memory one by one, the others side by side."""
    from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox

    sandbox = Sandbox(Limits(timeout=SECONDS, memory=MEMORY, scratch=4))
    if "--watched" in sys.argv:
        sandbox.watch_memory()
    peak = Peak()

    def attack(name: str) -> None:
        peak.reset()
        ending = sandbox.run(ATTACKS[name], b"")
        output = ending.output.decode(errors="replace")[-2000:]
        answer = {"name": name, "output": output, "problem": ending.problem, "memory": peak.bytes >> 20}
        print(json.dumps(answer), flush=True)

    for name in names:
        if name.startswith("take"):
            attack(name)
    peak.stop()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(attack, [name for name in names if not name.startswith("take")]))


def kill_worker(seconds: float) -> None:
    """Kill a worker at some moment of its programs' lives."""
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(seconds)
        worker.kill()


class Peak:
    """The most memory that all programs have had together since the last reset."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def reset(self) -> None:
        self.bytes = 0

    def stop(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.bytes = max(self.bytes, sum(map(memory_of, processes())))


def processes() -> list[int]:
    """All processes but this one and process 1: the runner has a process namespace of its own."""
    found = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [one for one in found if one not in {1, os.getpid()} and not has_ended(one)]


def has_ended(process: int) -> bool:
    """Whether only the process's exit status is left, for whoever adopted it."""
    try:
        return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return True


def memory_of(process: int) -> int:
    """Bytes that belong to no file, in physical memory or swapped out."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    names = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
    return sum(int(line.split()[1]) for line in lines if line.startswith(names)) * 1024


if __name__ == "__main__":
    main()
