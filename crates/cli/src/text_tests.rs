use super::*;

#[test]
fn escape_leaves_nothing_a_terminal_acts_on() {
    let check = |input: &[u8], want: &str| assert_eq!(escape(input), want);
    check(b"plain text", "plain text");
    check("caf\u{e9}".as_bytes(), "caf\u{e9}");
    check(b"\x1b[31mred\x07", "\\x1b[31mred\\x07");
    check(b"a\nb\tc\rd\0e", "a\\nb\\tc\\rd\\x00e");
    check(b"back\\slash", "back\\\\slash");
    check(b"bad \xff\xfe utf", "bad \\xff\\xfe utf");
    check("\u{202e}rtl\u{200b}".as_bytes(), "\\u{202e}rtl\\u{200b}");
    check("\u{9b}csi".as_bytes(), "\\u{9b}csi");
}

#[test]
fn counts_are_grouped() {
    for (n, want) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(count(n), want);
    }
    assert_eq!(plural(1, "event"), "1 event");
    assert_eq!(plural(2, "process"), "2 processes");
}

#[test]
fn near_finds_typing_errors_and_parts() {
    let names = ["demo:tick", "demo:tock", "http:request", "db:query"];
    let near = |wanted| near(wanted, names.into_iter());
    assert_eq!(near("demo:tik"), ["demo:tick", "demo:tock"]);
    assert_eq!(near("request"), ["http:request"]);
    assert_eq!(near("*quer*"), ["db:query"]);
    assert!(near("zzzzzzzzz").is_empty());
    // A whole target, however long the names are.
    assert_eq!(near("htp:*"), ["http:request"]);
    assert_eq!(super::near("nu::bd::*", ["nu::db:main.rs:20"].into_iter()), ["nu::db:main.rs:20"]);
}

#[test]
fn command_lines_are_joined_and_escaped() {
    assert_eq!(command_line(b"server\0--port\0x\x1b\0"), "server --port x\\x1b");
    assert_eq!(command_line(b""), "");
    assert_eq!(program(b"/usr/bin/redis server"), "redis server");
}
