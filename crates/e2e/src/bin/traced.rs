//! A program with traced functions: what a line on its standard input asks for, it calls.
//!
//! `get N`, `set N`, `step N`, `threads T N`, `busy` (until the next line), `nothing`, `exit`.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod cmd {
    /// Looks something up: the value is twice the number.
    #[owlet::traced]
    pub(crate) fn get(key: &str, number: u64) -> Option<u64> {
        (key != "nothing").then_some(number * 2)
    }

    /// Sleeps, as a disk would.
    #[owlet::traced]
    pub(crate) fn set(key: String, ms: u64) -> usize {
        std::thread::sleep(super::Duration::from_millis(ms));
        key.len()
    }
}

/// A step, of a machine that has four.
#[owlet::traced]
fn step(number: u32) -> u32 {
    (number + 1) % 4
}

fn main() {
    owlet::init().expect("no agent");
    let say = |word: &str| {
        println!("{word}");
        let _ = std::io::stdout().flush();
    };
    static BUSY: AtomicBool = AtomicBool::new(false);
    say("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        BUSY.store(false, Ordering::Relaxed);
        let words: Vec<_> = line.split(' ').collect();
        let n = |at: usize| words.get(at).map_or(0, |word| word.parse().expect("a number"));
        match words[0] {
            "get" => (0..n(1)).for_each(|number| _ = cmd::get("apple", number)),
            "step" => _ = (0..n(1)).fold(0, |number, _| step(number)),
            "nothing" => _ = cmd::get("nothing", 0),
            "set" => _ = cmd::set("pear".to_owned(), n(1)),
            "threads" => std::thread::scope(|scope| {
                for _ in 0..n(1) {
                    scope.spawn(|| (0..n(2)).for_each(|number| _ = cmd::get("fig", number)));
                }
            }),
            "busy" => {
                BUSY.store(true, Ordering::Relaxed);
                std::thread::spawn(|| {
                    while BUSY.load(Ordering::Relaxed) {
                        let _ = cmd::get("busy", 1);
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
            }
            "exit" => std::process::exit(0),
            other => panic!("{other}"),
        }
        say("done");
    }
}
