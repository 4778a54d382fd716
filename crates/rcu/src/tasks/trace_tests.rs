use super::*;

fn word(domain: &TasksTrace) -> u64 {
    with_word(domain.engine().id() % PLACES, |word| word.load(Ordering::Relaxed))
}

/// TK-06: only the outermost section touches the counter, whatever the order of the ends.
#[test]
fn tk_06_nested_sections_count_in_the_word() {
    let domain = TasksTrace::new();
    let outer = domain.read();
    let middle = domain.read();
    let inner = domain.read();
    assert_eq!(word(&domain) & DEPTH_MAX, 3);
    let cookie = domain.snapshot();
    drop(outer);
    drop(inner);
    assert_eq!(word(&domain) & DEPTH_MAX, 1);
    let waiter = std::thread::scope(|s| {
        let waiter = s.spawn(|| domain.synchronize());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!domain.poll(cookie), "the section in the middle is still open");
        drop(middle);
        waiter.join()
    });
    assert!(waiter.is_ok());
    assert_eq!(word(&domain), 0);
}

/// A handler at each of the instants of an entry and an exit: before and after the counter, before
/// and after the word. What it reads is protected, and it leaves everything as it was.
#[test]
fn tk_06_a_handler_at_each_step_enters_by_itself() {
    let domain = TasksTrace::new();
    let id = domain.engine().id();
    let place = id % PLACES;
    let handler = || {
        let before = word(&domain);
        let section = domain.read();
        let cookie = domain.snapshot();
        assert!(!domain.poll(cookie));
        drop(section);
        assert_eq!(word(&domain) & DEPTH_MAX, before & DEPTH_MAX);
    };
    // enter(), by hand.
    handler();
    let token = domain.srcu.read_lock();
    handler();
    with_word(place, |word| word.store(pack(id, token), Ordering::Relaxed));
    handler();
    // leave(), by hand.
    with_word(place, |word| word.store(0, Ordering::Relaxed));
    handler();
    // SAFETY: the token from above.
    unsafe { domain.srcu.read_unlock(token) };
    handler();
    domain.synchronize();
}

/// Domains that share a word are both protected.
#[test]
fn tk_06_domains_that_share_a_word() {
    let domains: Vec<_> = (0..=2 * PLACES).map(|_| TasksTrace::new()).collect();
    let sections: Vec<_> = domains.iter().flat_map(|d| [d.read(), d.read()]).collect();
    let cookies: Vec<_> = domains.iter().map(Domain::snapshot).collect();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| {
            let all: Vec<&dyn Domain> = domains.iter().map(|d| d as &dyn Domain).collect();
            crate::wait_all(&all);
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(domains.iter().zip(&cookies).all(|(d, c)| !d.poll(*c)));
        drop(sections);
        assert!(waiter.join().is_ok());
    });
    assert!(domains.iter().zip(&cookies).all(|(d, c)| d.poll(*c)));
}
