//! A reference that outlives the guard it was read under.

use owlet_rcu::{Rcu, StaticDomain, domain};

domain!(One);

fn main() {
    let cell: Rcu<u32, One> = Rcu::new(1);
    let section = One::read();
    let seen = cell.read(&section);
    drop(section);
    println!("{seen}");
}
