//! The functions by which threads wait.

use super::*;

#[test]
fn arguments_tell_what_is_waited_for() {
    assert_eq!(thing("pthread_mutex_lock"), Some(Thing::Address(0)));
    assert_eq!(thing("__pthread_cond_wait"), Some(Thing::Address(0)));
    assert_eq!(released("pthread_cond_wait"), Some(1));
    assert_eq!(thing("__libc_recv"), Some(Thing::Descriptor));
    assert_eq!(thing("epoll_wait"), Some(Thing::Ready));
    assert_eq!(thing("usleep"), Some(Thing::Time(1_000)));
    assert_eq!(
        (thing("open"), thing("malloc"), thing("spin")),
        (None, None, None)
    );
    let words = words_of_arguments();
    assert!(
        words.iter().all(|word| !word.starts_with("malloc")),
        "{words:?}"
    );
    assert!(words.contains(&"read:mod:libc.so*".to_owned()), "{words:?}");
    let filter: Result<fgraph_symbols::filter::Filter, _> = words.join(" ").parse();
    assert!(filter.is_ok());
}

#[test]
fn functions_are_known_by_all_their_names() {
    for name in [
        "pthread_mutex_lock",
        "___pthread_mutex_lock",
        "pthread_mutex_lock@@GLIBC_2.2",
    ] {
        assert_eq!(of(name), Some(Cause::Lock), "{name}");
    }
    assert_eq!(of("__GI___libc_read"), Some(Cause::Input));
    assert_eq!(of("__libc_recv"), Some(Cause::Input));
    assert_eq!(
        of("std::sys::sync::mutex::futex::Mutex::lock_contended"),
        Some(Cause::Lock)
    );
    assert_eq!(of("my_read"), None);
    assert_eq!(ended_by("__pthread_mutex_unlock"), Some(Cause::Lock));
    assert_eq!(ended_by("spin"), None);
}
