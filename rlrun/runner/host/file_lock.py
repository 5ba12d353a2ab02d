"""File locks that the kernel releases when the process that holds them ends, even if it is killed."""

import errno
import fcntl

_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def try_lock(descriptor: int) -> bool | None:
    """Locks an open file, and returns whether that succeeded; None if its file system has no locks.

    The lock lasts until the descriptor is closed. Python's descriptors are closed on exec, so programs that
    this process starts do not hold the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True
