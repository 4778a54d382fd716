//! Names of each scheme, and symbols that are none.

use super::{LONGEST, demangle};

#[track_caller]
fn check(symbol: &str, full: &str, short: Option<&str>) {
    let names = demangle(symbol);
    assert_eq!((names.full.as_str(), names.short.as_deref()), (full, short), "{symbol}");
}

#[test]
fn names_of_each_scheme() {
    check("dictFind", "dictFind", None);
    // Rust, legacy: the hash goes.
    check("_ZN3std2io5stdio6_print17h0123456789abcdefE", "std::io::stdio::_print", None);
    // Rust, v0.
    check("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", None);
    // C++: overloads differ by parameters.
    check("_ZN5space4nameEi", "space::name(int)", Some("space::name"));
    check("_ZNK3FooILi3EE3getEv", "Foo<3>::get() const", Some("Foo<3>::get"));
}

#[test]
fn what_is_no_mangled_name_stays_as_it_is() {
    for symbol in ["", "_Z", "_ZN", "_R", "_RNvC", "_ZN99999999999999999999xE", "a\u{1f980}b"] {
        check(symbol, symbol, None);
    }
    let long = format!("_Z{}", "N1a".repeat(LONGEST));
    check(&long, &long, None);
}
