"""Status codes of NFSv4 (RFC 7530 section 13, RFC 8881 section 15)."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Those that this client or its users tell apart; others are numbers."""

    OK = 0
    PERM = 1
    NOENT = 2
    IO = 5
    NXIO = 6
    ACCESS = 13
    EXIST = 17
    XDEV = 18
    NOTDIR = 20
    ISDIR = 21
    INVAL = 22
    FBIG = 27
    NOSPC = 28
    ROFS = 30
    MLINK = 31
    NAMETOOLONG = 63
    NOTEMPTY = 66
    DQUOT = 69
    STALE = 70
    BADHANDLE = 10001
    BAD_COOKIE = 10003
    NOTSUPP = 10004
    TOOSMALL = 10005
    SERVERFAULT = 10006
    BADTYPE = 10007
    DELAY = 10008
    SAME = 10009
    DENIED = 10010
    EXPIRED = 10011
    LOCKED = 10012
    GRACE = 10013
    FHEXPIRED = 10014
    WRONGSEC = 10016
    CLID_INUSE = 10017
    RESOURCE = 10018
    MOVED = 10019
    NOFILEHANDLE = 10020
    MINOR_VERS_MISMATCH = 10021
    STALE_CLIENTID = 10022
    STALE_STATEID = 10023
    BAD_STATEID = 10025
    NOT_SAME = 10027
    SYMLINK = 10029
    ATTRNOTSUPP = 10032
    BADXDR = 10036
    BADOWNER = 10039
    BADCHAR = 10040
    BADNAME = 10041
    OP_ILLEGAL = 10044
    FILE_OPEN = 10046
    ADMIN_REVOKED = 10047
    BADSESSION = 10052
    BADSLOT = 10053
    CONN_NOT_BOUND_TO_SESSION = 10055
    SEQ_MISORDERED = 10063
    REQ_TOO_BIG = 10065
    REP_TOO_BIG = 10066
    REP_TOO_BIG_TO_CACHE = 10067
    RETRY_UNCACHED_REP = 10068
    TOO_MANY_OPS = 10070
    OP_NOT_IN_SESSION = 10071
    CLIENTID_BUSY = 10074
    SEQ_FALSE_RETRY = 10076
    DEADSESSION = 10078
    NOT_ONLY_OP = 10081
    WRONG_TYPE = 10083
    UNION_NOTSUPP = 10090
    OFFLOAD_NO_REQS = 10094
    NOXATTR = 10095
    XATTR2BIG = 10096


def name_of_status(status: int) -> str:
    """Return the name as in the RFCs, such as "NFS4ERR_NOENT"."""
    try:
        return f"NFS4ERR_{Status(status).name}"
    except ValueError:
        return f"NFS4ERR_{status}"
