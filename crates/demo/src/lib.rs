//! The server that `owlet demo` starts: a small key-value store on a loopback port, with clients of
//! its own, instrumented with `tracing` spans
//! and with trace points of Owlet's own.
//!
//! This is code of a traced program. It is a library, and the `owlet` command links it, because
//! `cargo run --release -- demo` builds the command and nothing else: the command starts itself a
//! second time as `owlet demo-server`, and only that process calls anything here. Nothing else of the
//! command uses the `owlet` crate.
//!
//! | module | owns |
//! |---|---|
//! | `points` | the trace points |
//! | `store` | the keys and values |
//! | `server` | one thread a connection, requests to replies |
//! | `client` | the load |

mod client;
mod points;
mod server;
mod store;

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

/// How much load the server makes for itself.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Client threads, each with a connection of its own.
    pub clients: u32,
    /// Requests a second of each client.
    pub rate: u32,
}

/// Serves until stdin ends, which it does when the process that started this one ends. Prints `ready`
/// and the port on stdout when it serves.
///
/// # Errors
/// When no loopback port can be had, or a thread cannot be started.
pub fn serve(options: Options) -> io::Result<()> {
    // The one line that a program adds; without `tracing` it is `owlet::init()`.
    let agent = owlet::tracing::init();
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let store = Arc::new(store::Store::default());
    thread::Builder::new()
        .name("kv-accept".into())
        .spawn(move || server::accept(&listener, &store))?;
    for number in 0..options.clients {
        let name = format!("kv-client-{number}");
        thread::Builder::new()
            .name(name)
            .spawn(move || client::run(address, number, options.rate))?;
    }
    if let Err(error) = agent {
        // A program goes on without being traceable; a demonstration of tracing does not.
        return Err(io::Error::other(error.to_string()));
    }
    println!("ready {}", address.port());
    io::stdout().flush()?;
    let mut rest = [0; 64];
    while io::stdin().read(&mut rest)? > 0 {}
    Ok(())
}
