use super::*;

#[test]
fn durations() {
    for (text, ms) in
        [("5s", 5000), ("500ms", 500), ("2m", 120_000), ("1.5s", 1500), ("1h", 3_600_000)]
    {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
    }
    for text in ["", "5", "s", "-5s", "5 s", "5days", "1..5s", "0s", "99999999999999999999h"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("4M", 4 << 20),
        ("256K", 256 << 10),
        ("1GiB", 1 << 30),
        ("65536", 65536),
        ("4mb", 4 << 20),
    ] {
        assert_eq!(parse_size(text), Ok(bytes), "{text}");
    }
    for text in ["", "0", "M", "-1", "4X", "1.5M", "99999999999999999999G", "18446744073709551615K"]
    {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn people_read_these() {
    assert_eq!(size(512), "512 B");
    assert_eq!(size(3_100_000), "3.1 MB");
    assert_eq!(rate(50_000.0), "50.0 K");
    assert_eq!(rate(7.0), "7");
    assert_eq!(clock(Duration::from_secs(65)), "01:05");
    assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
}

#[test]
fn timestamps() {
    assert_eq!(timestamp_of(0), "19700101-000000");
    assert_eq!(timestamp_of(951_827_696), "20000229-123456");
    assert_eq!(timestamp_of(1_798_761_599), "20261231-235959");
}
