use super::*;

#[test]
fn near_and_far_domains_are_counted_apart() {
    for id in [0, 1, BUCKETS - 1, BUCKETS, 300, 5000] {
        for rank in [0, RANK] {
            let index = index(id) | rank;
            assert_eq!(count(id, index), 0, "domain {id}");
            for _ in 0..3 {
                // SAFETY: the index of a near domain.
                if is_near(id) { unsafe { up(index) } } else { far_up(id, index) }
            }
            assert_eq!((count(id, index), count(id, index ^ RANK)), (3, 0), "domain {id}");
            for _ in 0..3 {
                // SAFETY: the index of a near domain.
                if is_near(id) { unsafe { down(index) } } else { far_down(id, index) }
            }
            assert_eq!(count(id, index), 0, "domain {id}");
        }
    }
}

/// What a thread that ends inside leaves is not its successor's.
#[test]
fn pages_of_ended_threads_are_used_again() {
    let id = 77_000;
    for _ in 0..50 {
        std::thread::spawn(move || {
            assert_eq!(count(id, 0), 0);
            far_up(id, 0);
            assert_eq!(count(id, 0), 1);
        })
        .join()
        .expect("no panic");
    }
}

#[test]
fn guards_given_back_elsewhere_are_subtracted() {
    let (id, index) = (9, index(9));
    // SAFETY: the index of a near domain.
    unsafe { up(index) };
    // SAFETY: as above.
    unsafe { up(index) };
    let serial = serial();
    std::thread::spawn(move || note_foreign(serial, id, index & RANK)).join().expect("no panic");
    assert_eq!(count(id, index), 1);
    // SAFETY: as above.
    unsafe { down(index) };
    assert_eq!(count(id, index), 0);
}
