//! Lines of `maps` in all their forms, and this process as it is.

use super::{object_files, parse};
use crate::error::ErrorKind;

#[test]
fn lines_that_map_code_of_a_file_count() {
    let maps = "\
55d0-55e0 r--p 00000000 fe:00 12                         /usr/bin/cat
55e0-55f0 r-xp 00002000 fe:00 12                         /usr/bin/cat
7f00-7f10 r-xp 00000000 00:01 7                          /memfd:jit code (deleted)
7f10-7f20 r-xp 00000000 00:00 0 
7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]
7fff-8000 rwxp 00000000 fe:00 13                         /odd name\\012with break
junk
 
a b c d e
";
    let found: Vec<_> = parse(maps).map(|m| (m.range, m.inode, m.path)).collect();
    let expected = [
        ("55e0-55f0", 12, "/usr/bin/cat"),
        ("7f00-7f10", 7, "/memfd:jit code"),
        ("7fff-8000", 13, "/odd name\nwith break"),
    ];
    let expected = expected.map(|(range, inode, path)| (range.to_owned(), inode, path.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn this_process_runs_this_program() {
    let files = object_files(std::process::id()).unwrap();
    let exe = std::env::current_exe().unwrap();
    assert!(files[0].program && files[0].path == exe.to_str().unwrap(), "{files:?}");
    assert_eq!(files.iter().filter(|file| file.program).count(), 1);
    assert!(std::fs::read(&files[0].open).is_ok(), "{files:?}");
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let error = object_files(u32::MAX >> 1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoProcess);
    assert!(error.message.starts_with("no process "), "{error}");
}
