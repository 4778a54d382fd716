//! A small axum server with tower-http's request spans and tracepoints of its own. It counts what it
//! serves and says so when it ends.

use axum::{Router, routing::get};
use std::sync::atomic::{AtomicU64, Ordering};
use tower_http::trace::TraceLayer;

owlet::tracepoint! {
    /// A web server's requests.
    mod web {
        /// A request came in.
        request(number: u64, path: &str);
        /// Its answer is ready.
        response(number: u64, status: u16, bytes: u32);
    }
}

static SERVED: AtomicU64 = AtomicU64::new(0);

async fn hello() -> String {
    let number = SERVED.fetch_add(1, Ordering::Relaxed);
    owlet::trace!(web::request, number, "/hello");
    let body = format!("hello {number}\n");
    owlet::trace!(web::response, number, 200, body.len() as u32);
    body
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    owlet::tracing::init()?;
    let app = Router::new().route("/hello", get(hello)).layer(TraceLayer::new_for_http());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    axum::serve(listener, app)
        .with_graceful_shutdown(async move {
            stop.recv().await;
        })
        .await?;
    println!("served {}", SERVED.load(Ordering::Relaxed));
    Ok(())
}
