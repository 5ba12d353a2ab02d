"""The system calls that a program in the sandbox may make, as a seccomp filter.

The filter is an allowlist, because every kernel adds harmful calls (io_uring, userfaultfd, keyrings, bpf,
memory outside of RLIMIT_AS), while the calls that Python, NumPy, threads and child processes need hardly
change. Any other call fails with ENOSYS, as on an older kernel, so that the C library falls back: for example
from clone3 to clone, whose flags a filter can read.
"""

import errno
import platform
import struct
from functools import cache

_ALLOWED = """
# Files
read:0:63 write:1:64 open:2:- close:3:57 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291
lseek:8:62 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 preadv2:327:286 pwritev2:328:287
readv:19:65 writev:20:66 sendfile:40:71 copy_file_range:326:285 access:21:- faccessat:269:48
faccessat2:439:439 dup:32:23 dup2:33:- dup3:292:24 close_range:436:436 fsync:74:82
fdatasync:75:83 sync_file_range:277:84 truncate:76:45 ftruncate:77:46 fallocate:285:47 fadvise64:221:223
getdents:78:- getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82:- renameat:264:38
renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- creat:85:- link:86:- linkat:265:37 unlink:87:-
unlinkat:263:35 symlink:88:- symlinkat:266:36 readlink:89:- readlinkat:267:78 chmod:90:- fchmod:91:52
fchmodat:268:53 fchmodat2:452:452 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 utime:132:-
utimes:235:- futimesat:261:- utimensat:280:88 statfs:137:43 fstatfs:138:44 openat:257:56 openat2:437:437
umask:95:166
# Memory
mprotect:10:226 munmap:11:215 brk:12:214 mremap:25:216 madvise:28:233 mincore:27:232 msync:26:227
membarrier:324:283
# Waiting
poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20
epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19
nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169
time:201:- alarm:37:- setitimer:38:103 getitimer:36:102 timerfd_create:283:85 timerfd_settime:286:86
timerfd_gettime:287:87 futex:202:98 futex_waitv:449:449 pause:34:-
# Signals
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigsuspend:130:133
rt_sigpending:127:136 rt_sigtimedwait:128:137 sigaltstack:131:132 kill:62:129 tkill:200:130
tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 pidfd_open:434:434
pidfd_send_signal:424:424 restart_syscall:219:128
# Processes and threads
fork:57:- vfork:58:- execve:59:221 execveat:322:281 exit:60:93 exit_group:231:94 wait4:61:260
waitid:247:95 set_robust_list:273:99 get_robust_list:274:100 set_tid_address:218:96 rseq:334:293
arch_prctl:158:- sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121
sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
sched_rr_get_interval:148:127 getcpu:309:168 getpid:39:172 getppid:110:173 gettid:186:178
getpgid:121:155 getpgrp:111:- getsid:124:156 setpgid:109:154 setsid:112:157 getpriority:140:141
getrlimit:97:163 setrlimit:160:164 getrusage:98:165 times:100:153 uname:63:160 sysinfo:99:179
getrandom:318:278
# Users: without privileges, the program can only keep its own
getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
getgroups:115:158 capget:125:90 setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143
setresuid:117:147 setresgid:119:149 setgroups:116:159
# Pipes and pairs of sockets
pipe:22:- pipe2:293:59 sendto:44:206 recvfrom:45:207 shutdown:48:210 getsockopt:55:209
getsockname:51:204 getpeername:52:205
"""
"""`name:number on x86-64:number on aarch64`, from the kernel's tables; `-` where a machine has none."""

_NEW_NAMESPACES, _CLONE_VM, _CLONE_VFORK = 0x7E020000, 0x100, 0x4000
_FCNTL = (0, 1, 2, 3, 4, 5, 36, 1030, 1032)
"""Copies and flags of descriptors, and questions about locks; not F_SETPIPE_SZ, leases, and signals."""
_FCNTL_LOCKS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW."""
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTL = (1, 2, 3, 15, 16, 0x53564D41)
"""Death signal, PR_GET_DUMPABLE, names of threads and of memory areas."""
_MAP_SHARED_ANONYMOUS, _MAP_HUGETLB = 0x21, 0x40000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

Instruction = tuple[int, int, int, int]
"""Code, number of instructions to skip if the condition holds, number to skip if it does not, constant."""


@cache
def filter_for(machine: str) -> bytes:
    """Returns the filter's instructions for a `platform.machine()`.

    Raises ValueError for a machine without a table.
    """
    if machine not in _MACHINES:
        raise ValueError(f"no table of system calls for {machine}: only for {', '.join(_MACHINES)}")
    architecture, column = _MACHINES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit system calls have other numbers, so the table would not fit
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for line in _ALLOWED.strip().splitlines():
        for entry in line.split() if not line.startswith("#") else ():
            number = entry.split(":")[column]
            if number != "-":
                program += _if_number(int(number), [_answer(0)])
    for numbers, block in _CHECKED:
        program += _if_number(numbers[column - 1], block)
    program.append(_answer(errno.ENOSYS))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def host_filter() -> bytes:
    """Returns the filter for this machine."""
    return filter_for(platform.machine())


def _answer(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error if error else _ALLOW)


def _if_number(number: int, block: list[Instruction]) -> list[Instruction]:
    """Returns instructions that run a block, which must end in an answer, for one system call."""
    return [(_EQUAL, 0, len(block), number), *block]


def _argument(number: int) -> Instruction:
    """Loads an argument's lower 32 bits, which are all that the kernel reads of flags and commands."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * number)


def _pretended() -> Instruction:
    """Returns 0 to the program, as if the call had succeeded, but does not make it."""
    return (_RETURN, 0, 0, _ERRNO)


def _one_of(argument: int, values: tuple[int, ...], error: int = errno.EPERM) -> list[Instruction]:
    """Allows the given values of an argument, and answers others with `error`."""
    choices = [step for value in values for step in ((_EQUAL, 0, 1, value), _answer(0))]
    return [_argument(argument), *choices, _answer(error)]


def _must_be(argument: int, value: int, mask: int = 0xFFFFFFFF) -> list[Instruction]:
    """Answers with EPERM unless an argument, under a mask, has the given value."""
    return [_argument(argument), (_AND, 0, 0, mask), (_EQUAL, 1, 0, value), _answer(errno.EPERM)]


_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}
"""The kernel's name for the architecture, and the column of the table."""
_CHECKED: tuple[tuple[tuple[int, int], list[Instruction]], ...] = (
    # clone: memory.py counts a parent that waits in vfork and its child once, so they must share their memory
    (
        (56, 220),
        [
            _argument(0),
            (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
            _answer(errno.EPERM),
            (_AND, 0, 0, _CLONE_VFORK | _CLONE_VM),
            (_EQUAL, 0, 1, _CLONE_VFORK),
            _answer(errno.EPERM),
            _answer(0),
        ],
    ),
    # flock and fcntl: other jails and the host would see a lock on a file of the host. A filter cannot tell
    # such files from the program's own, and refusing all locks would stop SQLite.
    ((73, 32), [_pretended()]),
    (
        (72, 25),
        [
            _argument(1),
            *(step for command in _FCNTL_LOCKS for step in ((_EQUAL, 0, 1, command), _pretended())),
            *_one_of(1, _FCNTL),
        ],
    ),
    # ioctl, prctl
    ((16, 29), _one_of(1, _IOCTL, errno.ENOTTY)),
    ((157, 167), _one_of(0, _PRCTL, errno.EINVAL)),
    # mmap: huge pages and shared anonymous pages, which no process's count has once they are unmapped
    (
        (9, 222),
        [
            _argument(3),
            (_ANY_BIT, 0, 1, _MAP_HUGETLB),
            _answer(errno.EPERM),
            (_AND, 0, 0, _MAP_SHARED_ANONYMOUS),
            (_EQUAL, 0, 1, _MAP_SHARED_ANONYMOUS),
            _answer(errno.EPERM),
            _answer(0),
        ],
    ),
    # socket: every family has uncounted memory; ENETUNREACH tells the program that it has no network
    ((41, 198), [_answer(errno.ENETUNREACH)]),
    # setxattr and the eleven calls after it: shutil understands only ENOTSUP as "not supported here"
    *(((188 + at, 5 + at), [_answer(errno.ENOTSUP)]) for at in range(12)),
    # socketpair, which asyncio needs
    ((53, 199), [*_must_be(0, _AF_UNIX), *_must_be(1, _SOCK_STREAM, _SOCK_TYPE), _answer(0)]),
    # prlimit64 and setpriority for the caller only: init may run as the same user
    ((302, 261), [*_must_be(0, 0), _answer(0)]),
    ((141, 140), [*_must_be(0, 0), *_must_be(1, 0), _answer(0)]),
)
