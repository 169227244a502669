//! The names of Linux errors.

/// Names by number, without the `E` that each begins with; a dash where there is none.
const NAMES: &str = "\
    - PERM NOENT SRCH INTR IO NXIO 2BIG NOEXEC BADF CHILD AGAIN NOMEM ACCES FAULT NOTBLK BUSY \
    EXIST XDEV NODEV NOTDIR ISDIR INVAL NFILE MFILE NOTTY TXTBSY FBIG NOSPC SPIPE ROFS MLINK \
    PIPE DOM RANGE DEADLK NAMETOOLONG NOLCK NOSYS NOTEMPTY LOOP - NOMSG IDRM CHRNG L2NSYNC \
    L3HLT L3RST LNRNG UNATCH NOCSI L2HLT BADE BADR XFULL NOANO BADRQC BADSLT - BFONT NOSTR \
    NODATA TIME NOSR NONET NOPKG REMOTE NOLINK ADV SRMNT COMM PROTO MULTIHOP DOTDOT BADMSG \
    OVERFLOW NOTUNIQ BADFD REMCHG LIBACC LIBBAD LIBSCN LIBMAX LIBEXEC ILSEQ RESTART STRPIPE \
    USERS NOTSOCK DESTADDRREQ MSGSIZE PROTOTYPE NOPROTOOPT PROTONOSUPPORT SOCKTNOSUPPORT \
    OPNOTSUPP PFNOSUPPORT AFNOSUPPORT ADDRINUSE ADDRNOTAVAIL NETDOWN NETUNREACH NETRESET \
    CONNABORTED CONNRESET NOBUFS ISCONN NOTCONN SHUTDOWN TOOMANYREFS TIMEDOUT CONNREFUSED \
    HOSTDOWN HOSTUNREACH ALREADY INPROGRESS STALE UCLEAN NOTNAM NAVAIL ISNAM REMOTEIO DQUOT \
    NOMEDIUM MEDIUMTYPE CANCELED NOKEY KEYEXPIRED KEYREVOKED KEYREJECTED OWNERDEAD \
    NOTRECOVERABLE RFKILL HWPOISON";

/// Returns the name of an error.
pub(super) fn name(number: u64) -> Option<String> {
    let name = NAMES.split(' ').nth(usize::try_from(number).ok()?)?;
    (name != "-").then(|| format!("E{name}"))
}

/// Returns the number of an error by its name, such as `ENOENT`.
pub(super) fn number(name: &str) -> Option<u64> {
    let name = match name {
        "EWOULDBLOCK" => "EAGAIN",
        "EDEADLOCK" => "EDEADLK",
        "ENOTSUP" => "EOPNOTSUPP",
        name => name,
    };
    let name = name.strip_prefix('E').filter(|name| *name != "-")?;
    let place = NAMES.split(' ').position(|known| known == name)?;
    Some(place as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_names() {
        let names = [
            (0, None),
            (1, Some("EPERM")),
            (2, Some("ENOENT")),
            (4095, None),
        ];
        for (number, expected) in names {
            assert_eq!(name(number).as_deref(), expected);
            assert!(expected.is_none_or(|name| super::number(name) == Some(number)));
        }
        for unknown in ["", "E", "E-", "NOENT", "ENOSUCH"] {
            assert_eq!(number(unknown), None, "{unknown}");
        }
        #[cfg(target_os = "linux")]
        for (number, expected) in [
            (libc::EAGAIN, "EAGAIN"),
            (libc::EILSEQ, "EILSEQ"),
            (libc::ENOTSUP, "EOPNOTSUPP"),
            (libc::ETIMEDOUT, "ETIMEDOUT"),
            (libc::EHWPOISON, "EHWPOISON"),
        ] {
            assert_eq!(name(number as u64).as_deref(), Some(expected));
        }
    }
}
