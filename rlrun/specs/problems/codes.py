"""The kinds of problems and errors. Each has a code and a page, which `rlrun explain CODE` prints."""

from enum import StrEnum


class Code(StrEnum):
    """A kind of problem. A code keeps its meaning: it is never given to another kind."""

    FILE = "E0101"
    SYNTAX = "E0102"
    EXTENDS = "E0103"
    OVERRIDE = "E0104"
    VARIABLE = "E0105"
    PROFILE = "E0106"

    UNKNOWN_KEY = "E0201"
    MISSING_KEY = "E0202"
    TYPE = "E0203"
    RANGE = "E0204"
    CHOICE = "E0205"
    FORM = "E0206"
    PATH = "E0207"
    PLUGIN = "E0208"
    LITERAL_SECRET = "E0209"
    SECRET_REFERENCE = "E0210"

    CONFLICT = "E0301"
    NO_EFFECT = "E0302"
    BATCH = "E0303"
    ROLLOUT = "E0304"
    ENGINE = "E0305"
    LAYOUT = "E0306"
    TRAINER = "E0307"
    ADAPTER = "E0308"
    ALGORITHM = "E0309"
    SWEEP = "E0310"

    MODEL = "E0401"
    DATA = "E0402"
    PACKAGE = "E0403"
    RUN_FOLDER = "E0404"

    JOB = "E0501"
    PROCESS = "E0502"
    CALL = "E0503"
    CLUSTER = "E0504"
    NODE = "E0505"
    STARVED = "E0506"
    REWARD = "E0507"
    DISK = "E0508"
    CHECKPOINT = "E0509"
    WEIGHTS = "E0510"
    ENVIRONMENT = "E0511"
    BUG = "E0599"
