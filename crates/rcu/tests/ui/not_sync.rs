//! A value that must not be shared between threads.

use std::cell::Cell;

use owlet_rcu::{Rcu, domain};

domain!(One);

fn main() {
    let _cell: Rcu<Cell<u32>, One> = Rcu::new(Cell::new(1));
}
