//! A guard that is bound to its thread, held across an await in a task that may move.

use owlet_rcu::TasksTrace;

static DOMAIN: TasksTrace = TasksTrace::new();

fn spawn(_: impl Future + Send + 'static) {}

fn main() {
    spawn(async {
        let section = DOMAIN.read();
        std::future::ready(()).await;
        drop(section);
    });
}
