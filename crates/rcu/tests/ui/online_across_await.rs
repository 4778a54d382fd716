//! A registration that is bound to its thread, held across an await in a task that may move.

use owlet_rcu::Qsbr;

static DOMAIN: Qsbr = Qsbr::new();

fn spawn(_: impl Future + Send + 'static) {}

fn main() {
    spawn(async {
        let mut reader = DOMAIN.register();
        let online = reader.online();
        std::future::ready(()).await;
        drop(online);
    });
}
