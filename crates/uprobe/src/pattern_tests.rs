//! Patterns in each form, and what is none.

use super::{Pattern, Wanted};

fn function(name: &str) -> Wanted {
    Wanted::Function(name.into())
}

fn probe(provider: &str, name: &str) -> Wanted {
    Wanted::Probe { provider: provider.into(), name: name.into() }
}

#[test]
fn each_form_is_taken_apart() {
    for (text, object, wanted) in [
        ("dict*", None, function("dict*")),
        ("mini_redis::cmd::*", None, function("mini_redis::cmd::*")),
        ("redis-server:dict*", Some("redis-server"), function("dict*")),
        ("*:a::b", Some("*"), function("a::b")),
        ("/usr/lib/x.so:<a::B as c::D>::e", Some("/usr/lib/x.so"), function("<a::B as c::D>::e")),
        ("usdt:/bin/x:p:n*", Some("/bin/x"), probe("p", "n*")),
        ("usdt::p:n", None, probe("p", "n")),
        ("usdt:p:n", None, probe("p", "n")),
        ("usdt:/odd:path:p:n", Some("/odd:path"), probe("p", "n")),
    ] {
        let pattern = Pattern::parse(text).unwrap();
        assert_eq!((pattern.object.as_deref(), pattern.wanted), (object, wanted), "{text}");
    }
}

#[test]
fn what_is_no_pattern_is_refused() {
    for text in ["", ":", "a:", ":a", "usdt:", "usdt:a", "usdt::", "usdt:a:", "usdt:x::", "a\nb"] {
        assert!(Pattern::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_object_is_a_path_a_name_or_the_program() {
    let names = ["redis-check-rdb".to_owned(), "redis-server".to_owned()];
    let means = |text: &str, program| {
        Pattern::parse(text).unwrap().means("/usr/bin/redis-check-rdb", &names, program)
    };
    assert!(means("f", true) && !means("f", false));
    assert!(means("redis-server:f", true) && means("redis-c*:f", false));
    assert!(means("/usr/bin/redis-check-rdb:f", false) && !means("/bin/redis-check-rdb:f", true));
    assert!(means("usdt:p:n", false) && !means("usdt:other:p:n", true));
}
