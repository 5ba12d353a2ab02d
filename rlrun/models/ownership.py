"""Whether somebody else could change a file or a folder that rlrun relies on."""

import grp
import os
import pwd
import stat
from pathlib import Path


def is_own(path: Path) -> bool:
    """Returns whether a file or folder belongs to this user or to root."""
    return path.stat().st_uid in (os.geteuid(), 0)


def others_may_write(path: Path) -> bool:
    """Returns whether somebody else may write to it. Many systems let a user's own group write."""
    status = path.stat()
    return bool(
        status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_own_group(status.st_gid))
    )


def others_may_replace_in(folder: Path) -> bool:
    """Returns whether others may rename entries of a folder. A sticky one such as /tmp protects them."""
    return not is_own(folder) or (others_may_write(folder) and not folder.stat().st_mode & stat.S_ISVTX)


def is_own_group(gid: int) -> bool:
    """Returns whether a group has no other member: the one that is named after this user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
