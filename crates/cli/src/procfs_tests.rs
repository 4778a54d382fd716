use super::*;

#[test]
fn reads_this_process() {
    let me = Process::read(std::process::id()).unwrap();
    assert_eq!(me.tgid, std::process::id());
    assert!(!me.stopped());
    assert!(!me.comm.is_empty());
    assert_eq!(Process::read(0x3fff_ffff), None);
}

#[test]
fn a_status_with_anything_in_the_name() {
    let status =
        b"Name:\tod\\ndd name\nUmask:\t0022\nState:\tT (stopped)\nTgid:\t7\nUid:\t5\t5\t5\t5\n";
    let process = Process::parse(status).unwrap();
    assert_eq!(process.comm, b"od\\ndd name");
    assert!(process.stopped());
    assert_eq!((process.tgid, process.uid), (7, 5));
    assert_eq!(Process::parse(b"Name:\tx\n"), None);
}

#[test]
fn users_by_name_or_number() {
    assert_eq!(user(0), "root");
    assert_eq!(user(3_999_999_999), "with uid 3999999999");
}
