//! A retired value that nobody looks at.
#![deny(unused_must_use)]

use owlet_rcu::{Rcu, domain};

domain!(One);

fn main() {
    let cell: Rcu<u32, One> = Rcu::new(1);
    cell.replace(2);
}
