//! Async: guards that live across `.await`, and grace periods that are awaited. Any runtime will do;
//! this one is ten lines.
//!
//! `cargo run -p owlet-rcu --example async`

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use owlet_rcu::Srcu;

static DOMAIN: Srcu = Srcu::named("sessions");

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

async fn read() -> u32 {
    // A section across `.await`: the guard is Send, so the task may go on on another thread.
    let _section = DOMAIN.read();
    std::future::ready(42).await
}

async fn update() {
    // .. unpublish something here ..
    DOMAIN.synchronize_async().await;
    // .. and free it here: no thread has been blocked.
}

fn main() {
    let reader = thread::spawn(|| block_on(read()));
    block_on(update());
    println!("read {}", reader.join().expect("no panic"));
    // Started now, awaited later: the moment is that of the call.
    let wait = DOMAIN.synchronize_async();
    println!("other work");
    block_on(wait);
    println!("{:?}", DOMAIN.stats());
}
