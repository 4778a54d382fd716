//! What a list says of ends with one program.

use super::{Entry, List, Lone};
use crate::{AtExit, Program};

fn list(programs: &[&Program]) -> Box<List> {
    let entries: Vec<_> =
        (1..).zip(programs).map(|(n, program)| Entry::new(program, n, n)).collect();
    List::make(None, |_| false, &entries).unwrap().unwrap()
}

/// Which of `plain`, `first`, `last` there are.
fn lones(list: &List) -> [bool; 3] {
    // SAFETY: the programs are the caller's; nobody follows the reference.
    let is = |lone: &Lone| unsafe { lone.program() }.is_some();
    [is(&list.plain), is(&list.first), is(&list.last)]
}

#[test]
fn lone_is_who_is_alone_of_its_end_until_it_is_killed() {
    let entry = Program::entry(|_| ()).build();
    let exit = Program::exit(|_| ()).build();
    let session = Program::session(|_| AtExit::Run, |_| ()).build();
    let modify = Program::modify(|_| None).build();
    let cases: [(&[&Program], [bool; 3], [bool; 3]); 7] = [
        (&[&entry], [true, true, false], [false, false, false]),
        (&[&exit], [false, false, true], [false, false, false]),
        (&[&session], [false, true, true], [false, false, false]),
        (&[&modify], [false, false, false], [false, false, false]),
        (&[&entry, &exit], [true, true, true], [false, false, true]),
        (&[&exit, &session], [false, true, false], [false, true, false]),
        (&[&session, &entry], [false, false, true], [false, false, false]),
    ];
    for (programs, before, after) in cases {
        let list = list(programs);
        assert_eq!(lones(&list), before, "{programs:?}");
        // The others stay.
        list.kill(|link| link == 1);
        assert_eq!(lones(&list), after, "{programs:?}");
    }
}
