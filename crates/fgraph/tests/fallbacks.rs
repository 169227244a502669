//! Systems that do not give all that fgraph likes to have.

use std::error::Error as _;
use std::ffi::CString;
use std::hint::black_box;
use std::ptr;
use std::thread;

use fgraph::{Error, Handle, RefusalReason, TextMethod, UnregisterError, Unsupported};
use fgraph_needs::skip;
use fgraph_scenario::{Count, code, forked, is_patched, scenario};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn modest(n: u64) -> u64 {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn modest_too(n: u64) -> u64 {
    black_box(modest(n)) + 1
}

const MODEST: *const () = modest as *const ();

fn count(filter: &str) -> Handle<Count> {
    fgraph_scenario::register(Count::default(), filter).unwrap()
}

/// Takes `/proc` away from this thread; `false` if that is not allowed.
fn hide_proc() -> bool {
    let text = |text: &str| CString::new(text).unwrap();
    let (none, root, tmpfs, proc) = (text("none"), text("/"), text("tmpfs"), text("/proc"));
    // SAFETY: strings; only the mounts of this thread are changed.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                ptr::null(),
            ) == 0
            && libc::mount(
                tmpfs.as_ptr(),
                proc.as_ptr(),
                tmpfs.as_ptr(),
                0,
                ptr::null(),
            ) == 0
    }
}

/// Does `work` in a child, which returns false if there is no `ability` here: the scenario is
/// skipped then.
fn in_child(ability: &str, work: impl FnOnce() -> bool) {
    let status = forked(|| if work() { 0 } else { 17 });
    if status.code() == Some(17) {
        return skip(&fgraph_scenario::name(), format_args!("no {ability} here"));
    }
    assert!(status.success(), "{status}");
}

#[scenario]
fn without_proc_text_is_written_through_mprotect() {
    if !hide_proc() {
        return skip!("no mounts here: {}", std::io::Error::last_os_error());
    }
    assert!(!std::path::Path::new("/proc/self").exists());
    let before: [u8; 5] = code(MODEST);
    let user = count("modest modest_too");
    assert_eq!(
        (
            user.report().unwrap().traced,
            user.report().unwrap().patched
        ),
        (2, 2)
    );
    let status = fgraph::status().unwrap();
    assert_eq!(status.text, TextMethod::Mprotect);
    assert!(status.to_string().contains("mprotect"), "{status}");
    assert!(is_patched(MODEST));
    assert_eq!(modest_too(1), 3);
    assert_eq!(user.user().both(), (2, 2));
    // Other threads, too: nothing can be read about their stacks.
    thread::spawn(|| (0..10).for_each(|n| assert_eq!(modest_too(n), n + 2)))
        .join()
        .unwrap();
    assert_eq!(user.user().both(), (22, 22));
    // While threads call.
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(modest_too(5), 7);
            }
        });
        for _ in 0..100 {
            drop(count("modest"));
            fgraph_scenario::set_filter(&user, "modest_too").unwrap();
            fgraph_scenario::set_filter(&user, "modest").unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    std::panic::set_hook(Box::new(|_| ()));
    drop(user);
    assert_eq!(code::<5>(MODEST), before);
    assert_eq!(fgraph_scenario::totals(), [0; 5]);
}

#[scenario]
fn without_proc_the_stack_of_a_main_thread_is_known() {
    fgraph_scenario::on_main_thread(|| {
        // In a child, whose only thread has the main thread's stack.
        in_child("mounts", || {
            if !hide_proc() {
                return false;
            }
            let user = count("modest modest_too");
            assert_eq!(modest_too(1), 3);
            assert_eq!(user.user().both(), (2, 2));
            assert_eq!(fgraph_scenario::totals(), [0; 5]);
            true
        });
    });
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn answer(what: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, what)
}

/// Installs a program that the kernel runs before each system call; returns false if it refuses.
fn install(program: &[libc::sock_filter]) -> bool {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: a valid program, which the kernel only reads.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) == 0
    }
}

/// Makes the kernel answer system call `number` with `errno` from now on; `false` if it will not.
/// The second argument of the call must be `first`, if that is given.
fn forbid(number: libc::c_long, errno: i32, first: Option<u32>) -> bool {
    let unless = |k: u32, skip: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: skip,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    // Offsets in struct seccomp_data: the number is at 0, the first argument at 16.
    let mut program = vec![statement(load, 0)];
    match first {
        None => program.push(unless(number as u32, 1)),
        Some(first) => program.extend([
            unless(number as u32, 3),
            statement(load, 16),
            unless(first, 1),
        ]),
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    install(&program)
}

#[scenario]
fn without_membarrier_nothing_is_patched() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        in_child("seccomp", || {
            let before: [u8; 5] = code(MODEST);
            if !forbid(libc::SYS_membarrier, errno, None) {
                return false;
            }
            for _ in 0..20 {
                let error = fgraph_scenario::register(Count::default(), "modest").unwrap_err();
                assert_eq!(error, Error::Unsupported(Unsupported::Membarrier(errno)));
                let source = error.source().unwrap().to_string();
                assert!(source.contains("membarrier"), "{source}");
            }
            assert!(fgraph::status().is_err());
            assert_eq!(code::<5>(MODEST), before);
            assert_eq!(modest_too(1), 3);
            true
        });
    }
}

#[scenario]
fn without_sync_core_nothing_is_patched() {
    // Kernels before 4.16 know the one but not the other.
    in_child("seccomp", || {
        let command = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
        if !forbid(libc::SYS_membarrier, libc::EINVAL, Some(command)) {
            return false;
        }
        let error = fgraph_scenario::register(Count::default(), "modest").unwrap_err();
        assert_eq!(
            error,
            Error::Unsupported(Unsupported::Membarrier(libc::EINVAL))
        );
        assert!(!is_patched(MODEST));
        assert_eq!(modest_too(1), 3);
        true
    });
}

#[scenario]
fn membarrier_that_is_forbidden_later_does_not_leave_half_a_change() {
    in_child("seccomp", || {
        let user = count("modest_too");
        if !forbid(libc::SYS_membarrier, libc::EPERM, None) {
            return false;
        }
        let before: [u8; 5] = code(MODEST);
        let error = fgraph_scenario::register(Count::default(), "modest").unwrap_err();
        assert_eq!(
            error,
            Error::Unsupported(Unsupported::Membarrier(libc::EPERM))
        );
        assert_eq!(code::<5>(MODEST), before);
        // The program and the user that was there go on.
        assert_eq!(modest_too(1), 3);
        assert_eq!(user.user().both(), (1, 1));
        // It gets no calls any more, but it cannot be waited for its callbacks, not even later.
        let mut user = user;
        for _ in 0..2 {
            user = match user.unregister().unwrap_err() {
                UnregisterError::Ended { handle, error } => {
                    assert_eq!(error, Unsupported::Membarrier(libc::EPERM).into());
                    handle
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(modest_too(1), 3);
            assert_eq!(user.user().both(), (1, 1));
        }
        drop(user);
        assert_eq!(modest_too(1), 3);
        true
    });
}

#[scenario]
fn a_write_that_the_kernel_refuses_falls_back_to_mprotect() {
    in_child("seccomp", || {
        // The file can be opened, but not written to: so does Linux 6.12 with
        // `proc_mem.force_override=never`.
        if !forbid(libc::SYS_pwrite64, libc::EIO, None) {
            return false;
        }
        let before: [u8; 5] = code(MODEST);
        let user = count("modest");
        assert!(is_patched(MODEST));
        assert_eq!(fgraph::status().unwrap().text, TextMethod::Mprotect);
        assert_eq!(modest(1), 2);
        assert_eq!(user.unregister().unwrap().both(), (1, 1));
        assert_eq!(code::<5>(MODEST), before);
        true
    });
}

#[scenario]
fn a_write_that_is_refused_in_every_way_is_an_error() {
    in_child("seccomp", || {
        // Everything that takes mprotect is made before.
        drop(count("modest_too"));
        let before: [u8; 5] = code(MODEST);
        if !forbid(libc::SYS_pwrite64, libc::EPERM, None)
            || !forbid(libc::SYS_mprotect, libc::EACCES, None)
        {
            return false;
        }
        let error = fgraph_scenario::register(Count::default(), "modest").unwrap_err();
        let Error::Text { address, errno } = error else {
            panic!("{error}")
        };
        assert_eq!(errno, libc::EACCES);
        assert!(error.to_string().contains("execmod"), "{error}");
        assert!(address <= MODEST as usize && MODEST as usize - address < 4096);
        assert_eq!(code::<5>(MODEST), before);
        assert_eq!(modest_too(1), 3);
        true
    });
}

#[scenario]
fn a_thread_without_memory_for_its_state_is_not_traced() {
    in_child("seccomp", || {
        let user = count("modest modest_too");
        assert_eq!(modest_too(1), 3);
        let thread = thread::spawn(|| {
            // Only this thread gets no more memory.
            if !forbid(libc::SYS_mprotect, libc::ENOMEM, None) {
                return false;
            }
            for n in 0..10 {
                assert_eq!(modest_too(n), n + 2);
            }
            true
        });
        if !thread.join().unwrap() {
            return false;
        }
        assert_eq!(user.user().both(), (2, 2));
        assert_eq!(fgraph::status().unwrap().unattached, 20);
        true
    });
}

/// Makes the kernel answer all that asks for executable memory with `errno` from now on, as it does
/// where SELinux denies `execmem`; `false` if it will not.
fn forbid_executable(errno: i32) -> bool {
    let jump = |test: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let is_call = |number: libc::c_long, jt, jf| jump(libc::BPF_JEQ, number as u32, jt, jf);
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let program = [
        // Offsets in struct seccomp_data: the number is at 0, the third argument at 32.
        statement(load, 0),
        is_call(libc::SYS_mmap, 1, 0),
        is_call(libc::SYS_mprotect, 0, 3),
        statement(load, 32),
        jump(libc::BPF_JSET, libc::PROT_EXEC as u32, 0, 1),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    install(&program)
}

/// Checks the errors where nothing can be traced.
fn nothing_is_traced(reason: &str) {
    let user = count("modest modest_too");
    let report = user.report().unwrap();
    assert_eq!((report.traced, report.refused.len()), (0, 2));
    assert_eq!(report.reasons().len(), 1);
    let text = report.to_string();
    assert!(text.starts_with("none of 2 selected functions"), "{text}");
    assert!(text.contains(reason), "{text}");
    assert_eq!(modest_too(1), 3);
    assert_eq!(user.user().both(), (0, 0));
}

#[scenario]
fn without_executable_memory_nothing_is_patched_and_the_reason_is_said() {
    for errno in [libc::EACCES, libc::EPERM] {
        in_child("seccomp", || {
            if !forbid_executable(errno) {
                return false;
            }
            nothing_is_traced("in SELinux execmem");
            true
        });
    }
}

/// Forbids for good that memory becomes executable that was not (Linux 6.3); `false` if the kernel
/// cannot.
fn refuse_exec_gain() -> bool {
    const PR_SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: libc::c_ulong = 1;
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) == 0 }
}

#[scenario]
fn functions_are_traced_where_memory_may_not_become_executable() {
    if !refuse_exec_gain() {
        return skip!("no PR_SET_MDWE here (Linux 6.3)");
    }
    // The functions of the C library are traced, too: many have their stubs in blocks.
    let user = count("modest modest_too *:mod:libc.so*");
    let report = user.report().unwrap();
    let is_of_memory = |refused: &fgraph::RefusedFunction| {
        matches!(refused.reason, RefusalReason::NotExecutable(_))
    };
    assert!(!report.refused.iter().any(is_of_memory), "{report}");
    assert!(report.traced > 1_000, "{report}");
    fgraph_scenario::set_filter(&user, "modest modest_too").unwrap();
    let before = user.user().both();
    assert_eq!(modest_too(1), 3);
    assert_eq!(user.user().both(), (before.0 + 2, before.1 + 2));
}

#[scenario]
fn where_no_way_leads_to_executable_memory_the_reason_is_said() {
    if !refuse_exec_gain() {
        return skip!("no PR_SET_MDWE here (Linux 6.3)");
    }
    if !forbid(libc::SYS_pwrite64, libc::EIO, None) {
        return skip!("no seccomp here");
    }
    nothing_is_traced("PR_SET_MDWE");
}
