use super::*;

#[test]
fn running_counts_are_not_added_up() {
    let mut losses = Losses::default();
    let (a, b) = (StreamName::cpu(0), StreamName::cpu(1));
    assert_eq!(losses.to_string(), "0");
    losses.set(a, "full", 5);
    losses.set(a, "full", 12);
    losses.set(b, "full", 1000);
    losses.set(b, "busy", 3);
    losses.set(b, "busy", 1);
    losses.add(b, "malformed", 2);
    losses.add(b, "malformed", 2);
    losses.set(a, "recursion", 0);
    assert_eq!(losses.total(), 1019);
    assert_eq!(losses.to_string(), "1019 (full 1012, malformed 4, busy 3)");
    assert_eq!(losses.to_store().len(), 4);
}

#[test]
fn a_hostile_count_overflows_nothing() {
    let mut losses = Losses::default();
    losses.set(StreamName::cpu(0), "full", u64::MAX);
    losses.set(StreamName::cpu(1), "full", u64::MAX);
    losses.add(StreamName::cpu(1), "full", 1);
    assert_eq!(losses.total(), u64::MAX);
    assert_eq!(losses.by_cause(), [("full", u64::MAX)]);
}
