//! Functions as compilers name them.

use super::*;

#[test]
fn functions_have_their_roles_in_both_manglings() {
    for name in [
        "tokio::runtime::task::raw::poll",
        "tokio::runtime::task::raw::poll::<app::run::{closure#0}, alloc::sync::Arc<Handle>>",
        "tokio::runtime::task::harness::Harness<T,S>::poll",
        "tokio::runtime::task::harness::Harness<app::f::{closure#0}, S>::poll",
    ] {
        let role = role(name).map(|role| (role.runtime, role.act, role.argument));
        assert_eq!(role, Some((Runtime::Tokio, Act::Poll, 0)), "{name}");
    }
    for name in [
        "tokio::runtime::task::raw::RawTask::poll",
        "core::ptr::drop_in_place<tokio::runtime::task::raw::poll>",
        "<tokio::runtime::task::raw::poll as Trait>::poll",
        "poll",
        "<",
    ] {
        assert_eq!(role(name), None, "{name}");
    }
    for name in [
        "<rayon_core::job::StackJob<L,F,R> as rayon_core::job::Job>::execute",
        "<rayon_core::job::StackJob<L, fn(u8) -> u8, R> as rayon_core::job::Job>::execute",
    ] {
        let role = role(name).map(|role| (role.runtime, role.act));
        assert_eq!(role, Some((Runtime::Rayon, Act::Run)), "{name}");
    }
}

#[test]
fn functions_of_libraries_are_between_a_runtime_and_its_tasks() {
    for name in [
        "core::ptr::drop_in_place<app::Row>",
        "<F as axum::handler::Handler<(M,T1),S>>::call::{{closure}}",
        "<tokio::time::Sleep as core::future::future::Future>::poll",
    ] {
        assert!(is_between(name), "{name}");
    }
    for name in [
        "app::handle",
        "<app::Row as core::future::future::Future>::poll",
    ] {
        assert!(!is_between(name), "{name}");
    }
}

#[test]
fn coroutines_have_the_names_of_their_functions() {
    let gcc = "_Z12slow_handlerPZ12slow_handleriE23_Z12slow_handleri.Frame.actor";
    for (name, expected) in [(gcc, "slow_handler"), ("app::handle.resume", "app::handle")] {
        let role = role(name).map(|role| (role.runtime, role.act, role.argument));
        assert_eq!(role, Some((Runtime::Coroutine, Act::Poll, 0)), "{name}");
        assert_eq!(type_of_future(name).as_deref(), Some(expected));
    }
}

#[test]
fn operations_of_asio_have_the_names_of_their_handlers() {
    for (name, expected) in [
        (
            "boost::asio::detail::executor_op<main::{lambda()#1}, std::allocator<void>, \
             boost::asio::detail::scheduler_operation>::do_complete",
            "main::{lambda()#1}",
        ),
        (
            "asio::detail::descriptor_read_op<asio::mutable_buffers_1, \
             app::read(int)::{lambda(std::error_code, unsigned long)#2}, E<int> >::do_complete",
            "app::read(int)::{lambda(std::error_code, unsigned long)#2}",
        ),
        (
            "boost::asio::detail::completion_handler<boost::asio::detail::binder1<Done, \
             boost::system::error_code>, E>::do_complete",
            "Done",
        ),
    ] {
        let role = role(name).map(|role| (role.runtime, role.act, role.argument));
        assert_eq!(role, Some((Runtime::Asio, Act::Run, 1)), "{name}");
        assert_eq!(type_of_future(name).as_deref(), Some(expected));
    }
    // It completes operations, and is none.
    let reactor = "boost::asio::detail::epoll_reactor::descriptor_state::do_complete";
    assert_eq!(role(reactor), None);
}

#[test]
fn the_argument_of_each_function_is_recorded() {
    let all = FUNCTIONS.iter().flat_map(|(_, functions)| *functions);
    assert!(all.clone().all(|(.., argument)| *argument < ARGUMENTS));
    assert!(
        all.clone()
            .all(|(path, ..)| plain(path) == *path && path.contains("::"))
    );
    let others = COROUTINES.len() + OPERATIONS.len();
    assert_eq!(words().len(), all.count() + others);
}

#[test]
fn names_have_no_type_parameters_but_the_parts_of_pythons() {
    for (name, expected) in [
        ("a::B<T>::c::<D<E>>", "a::B::c"),
        ("f<fn(u8) -> C<T>>", "f"),
        ("app.main.<locals>.works", "app.main.<locals>.works"),
        ("app.<lambda>", "app.<lambda>"),
    ] {
        assert_eq!(plain(name), expected);
    }
}

#[test]
fn the_type_of_a_future_is_found_in_names_of_functions() {
    let name = "core::ptr::drop_in_place<tokio::runtime::task::core::Cell<\
        app::serve<(u8, fn(u8) -> B<u8>)>::{{closure}},alloc::sync::Arc<S>>>";
    let of = |name| type_of_future(name);
    let expected = "app::serve<(u8, fn(u8) -> B<u8>)>::{{closure}}";
    assert_eq!(of(name).as_deref(), Some(expected));
    assert_eq!(
        of("tokio::runtime::task::harness::Harness<T,S>::poll"),
        None
    );
    let name = "tokio::runtime::task::raw::poll::<app::f::{closure#0}, S>";
    assert_eq!(of(name).as_deref(), Some("app::f::{closure#0}"));
    let glue = "core::ptr::drop_in_place<app::f::{{closure}}>";
    assert_eq!(dropped_future(glue).as_deref(), Some("app::f::{{closure}}"));
    assert_eq!(
        dropped_future("core::ptr::drop_in_place<tokio::f::{{closure}}>"),
        None
    );
    let blocking = "tokio::runtime::blocking::task::BlockingTask<app::f::{{closure}}>";
    assert_eq!(shown_type(blocking), "app::f::{{closure}}");
    assert_eq!(work(blocking), Work::Blocking);
}

#[test]
fn versions_are_found_in_paths_of_sources() {
    let text = b"x/index/tokio-1.43.0/src/a.rs\0/tokio-util-0.7.1/src/\0/tokio-1.43.0/src/b.rs";
    assert_eq!(Runtime::find(text), [(Runtime::Tokio, "1.43.0".to_owned())]);
    assert!(Runtime::Tokio.knows("1.43.0") && !Runtime::Tokio.knows("0.2.25"));
    assert!(!Runtime::Tokio.knows("2.0.0"));
}
