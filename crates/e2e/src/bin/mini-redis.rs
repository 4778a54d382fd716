//! mini-redis as its own binary starts it, with Owlet's line instead of its logging line.

use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> mini_redis::Result<()> {
    let logging = std::env::args().any(|arg| arg == "--log");
    if logging {
        // The server's own text logging, beside Owlet.
        owlet::tracing::init_with(
            tracing_subscriber_02::FmtSubscriber::builder()
                .with_max_level(tracing::Level::DEBUG)
                .with_writer(std::io::sink)
                .finish(),
        )?;
    } else {
        owlet::tracing::init()?;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    mini_redis::server::run(listener, tokio::signal::ctrl_c()).await
}
