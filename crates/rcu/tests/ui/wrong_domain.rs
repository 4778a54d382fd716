//! A guard of another static domain.

use owlet_rcu::{Rcu, StaticDomain, domain};

domain!(One);
domain!(Two);

fn main() {
    let cell: Rcu<u32, One> = Rcu::new(1);
    let section = Two::read();
    println!("{}", cell.read(&section));
}
