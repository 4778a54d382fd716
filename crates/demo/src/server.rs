//! One thread a connection. A request is a line: `get KEY`, `set KEY VALUE`, `del KEY`; a reply is a
//! line too.

use crate::points::{Op, Status, kv};
use crate::store::Store;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Accepts for ever.
pub(crate) fn accept(listener: &TcpListener, store: &Arc<Store>) {
    let mut connection = 0_u64;
    for stream in listener.incoming().flatten() {
        connection += 1;
        let port = stream.peer_addr().map_or(0, |address| address.port());
        owlet::trace!(kv::accept, connection, port);
        let store = Arc::clone(store);
        let serve = move || {
            let requests = serve(&stream, connection, &store);
            owlet::trace!(kv::close, connection, requests.unwrap_or(0));
        };
        // A client that finds no thread is hung up on.
        let _ = thread::Builder::new().name(format!("kv-server-{connection}")).spawn(serve);
    }
}

fn serve(stream: &TcpStream, connection: u64, store: &Store) -> io::Result<u64> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    let mut line = String::new();
    let mut requests = 0;
    loop {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            return Ok(requests);
        }
        let begin = Instant::now();
        requests += 1;
        let span = tracing::debug_span!("request", connection, line = line.trim_end()).entered();
        let (status, mut reply) = answer(line.trim_end(), connection, store);
        owlet::trace!(
            kv::reply,
            connection,
            status,
            reply.len().try_into().unwrap_or(u32::MAX),
            begin.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
        );
        drop(span);
        reply.push(b'\n');
        (&mut &*stream).write_all(&reply)?;
    }
}

#[owlet::traced(name = "kv::server::answer", skip(store))]
fn answer(line: &str, connection: u64, store: &Store) -> (Status, Vec<u8>) {
    let mut words = line.splitn(3, ' ');
    let (op, key, value) = (words.next(), words.next().unwrap_or(""), words.next().unwrap_or(""));
    let op = match op {
        Some("get") => Op::Get,
        Some("set") => Op::Set,
        Some("del") => Op::Del,
        _ => return (Status::Bad, b"bad request".to_vec()),
    };
    owlet::trace!(kv::request, connection, op, key);
    match op {
        Op::Get => match store.get(key) {
            Some(value) => (Status::Ok, value),
            None => (Status::Missing, b"missing".to_vec()),
        },
        Op::Set => {
            store.set(key, value.as_bytes());
            (Status::Ok, b"ok".to_vec())
        }
        Op::Del if store.del(key) => (Status::Ok, b"ok".to_vec()),
        Op::Del => (Status::Missing, b"missing".to_vec()),
    }
}
