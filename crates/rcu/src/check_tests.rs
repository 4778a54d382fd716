use super::*;

/// A key that is nobody's address.
fn key(n: u64) -> Key {
    Key(1_000_000 + n)
}

fn chain(length: u64) -> (Graph, Option<Cycle>) {
    let mut graph = Graph { nodes: Vec::new() };
    for n in 0..length - 1 {
        assert!(graph.edge(key(n), key(n + 1)));
        assert_eq!(graph.cycle(key(n), key(n + 1)), None, "a chain is no cycle");
    }
    assert!(graph.edge(key(length - 1), key(0)));
    let cycle = graph.cycle(key(length - 1), key(0));
    (graph, cycle)
}

/// GP-09: cycles of every length from 1 to 10, and beyond.
#[test]
fn gp_09_cycles_of_length_1_to_10_are_found() {
    for length in (1..=10).chain([40]) {
        let (_, cycle) = chain(length);
        let cycle = cycle.unwrap_or_else(|| panic!("length {length} is missed"));
        assert_eq!(cycle.path.len(), length as usize);
    }
}

/// A thing that is gone takes its edges with it.
#[test]
fn gp_09_forgotten_nodes_close_no_cycle() {
    let (mut graph, _) = chain(5);
    graph.nodes.retain(|node| node.key != key(2));
    for node in &mut graph.nodes {
        node.waits_for.retain(|to| *to != key(2));
    }
    assert_eq!(graph.cycle(key(4), key(0)), None);
}

/// The shortest cycle is told, in the order of the waits.
#[test]
fn gp_09_the_path_is_the_order_of_the_waits() {
    let mut graph = Graph { nodes: Vec::new() };
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        graph.with_node(key(n as u64), |node| node.name = name);
    }
    graph.edge(key(0), key(1));
    graph.edge(key(1), key(2));
    graph.edge(key(2), key(0));
    let cycle = graph.cycle(key(2), key(0)).expect("a cycle");
    assert_eq!(
        cycle.to_string(),
        "possible deadlock: threads have waited in a cycle: a -> b -> c -> a"
    );
}

/// Sections nest, end in any order, and a thing that nobody counted is taken without harm.
#[test]
fn holds_are_counted() {
    let (a, b) = (key(10), key(11));
    let held: Held = [const { AtomicU64::new(0) }; HELD];
    let holds = |key| count(&held, key) != 0;
    add(&held, a);
    add(&held, b);
    add(&held, a);
    take(&held, a);
    assert!(holds(a) && holds(b));
    take(&held, a);
    assert!(!holds(a) && holds(b));
    take(&held, a);
    take(&held, b);
    assert!(!holds(a) && !holds(b));
    // More than there is room for: those are not seen, the others are.
    for n in 0..HELD as u64 + 5 {
        add(&held, key(100 + n));
    }
    assert!(holds(key(100)) && !holds(key(100 + HELD as u64)));
    for n in 0..HELD as u64 + 5 {
        take(&held, key(100 + n));
    }
    assert!((0..HELD as u64 + 5).all(|n| !holds(key(100 + n))));
}
