"""Locks of files that the kernel releases when the process that holds them ends, however it ends."""

import errno
import fcntl

_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file, and return whether that succeeded; None if its file system has no locks.

    The lock lasts until the descriptor is closed. Descriptors that Python opens are closed on exec, so the
    programs that this process starts do not keep it.
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
